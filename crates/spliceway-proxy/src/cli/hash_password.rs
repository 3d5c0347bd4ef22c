//! Reads passwords, and the command `spliceway hash-password`, which prints the hash of one.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::process::ExitCode;

use tracing::Level;

use crate::access::auth;
use crate::log;
use crate::run::lifetime::USAGE;

/// The longest password that a SOCKS5 client can send (RFC 1929).
const SECRET_MAX_BYTES: usize = auth::FIELD_MAX_BYTES;

/// Prints the hash, or the line of a user file with this name.
pub(super) fn run(name: Option<&str>) -> ExitCode {
    let printed = hash().and_then(|hash| match name {
        Some(name) => writeln!(io::stdout(), "{name}:{hash}"),
        None => writeln!(io::stdout(), "{hash}"),
    });
    printed.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

/// The code is 2 for a password that is not accepted.
pub(super) fn failed(error: &io::Error) -> ExitCode {
    log::announce(Level::ERROR, &format_args!("spliceway: {error}"));
    if error.kind() == io::ErrorKind::InvalidInput {
        ExitCode::from(USAGE)
    } else {
        ExitCode::FAILURE
    }
}

/// Reads a password from the terminal or from standard input, and returns its hash.
pub(super) fn hash() -> io::Result<String> {
    let secret = if io::stdin().is_terminal() {
        typed_secret()?
    } else {
        piped_secret()?
    };
    if secret.is_empty() {
        return Err(io::Error::other("there is no password on standard input"));
    }
    if secret.len() > SECRET_MAX_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the password is too long: expected at most {SECRET_MAX_BYTES} bytes"),
        ));
    }
    auth::hash(secret.as_bytes()).map_err(|error| io::Error::other(error.to_string()))
}

/// Reads the password from the terminal twice, because the terminal does not show it.
fn typed_secret() -> io::Result<String> {
    let secret = rpassword::prompt_password("Password: ")?;
    // The caller refuses an empty password.
    if secret.is_empty() || rpassword::prompt_password("Repeat it: ")? == secret {
        return Ok(secret);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the two passwords differ, so nothing was done: try again",
    ))
}

fn piped_secret() -> io::Result<String> {
    // The limit includes the end of the line and one extra byte. The extra byte shows that the
    // password is too long.
    let max = SECRET_MAX_BYTES as u64 + 3;
    let mut line = String::new();
    io::stdin().lock().take(max).read_line(&mut line)?;
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(line)
}
