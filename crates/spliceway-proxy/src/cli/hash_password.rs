//! The command `spliceway hash-password`: reads a password and prints its hash.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::process::ExitCode;

use tracing::Level;

use crate::access::auth;
use crate::log;
use crate::run::lifetime::USAGE;

/// The longest password that a SOCKS5 client can send (RFC 1929).
const SECRET_MAX_BYTES: usize = 255;

/// The code is 2 for a password that is not accepted.
pub(super) fn run() -> ExitCode {
    let Err(error) = hash_password() else {
        return ExitCode::SUCCESS;
    };
    log::announce(Level::ERROR, &format_args!("spliceway: {error}"));
    if error.kind() == io::ErrorKind::InvalidInput {
        ExitCode::from(USAGE)
    } else {
        ExitCode::FAILURE
    }
}

fn hash_password() -> io::Result<()> {
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
    let hash = auth::hash(secret.as_bytes()).map_err(|error| io::Error::other(error.to_string()))?;
    writeln!(io::stdout(), "{hash}")
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
        "the two passwords differ, so nothing was hashed",
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
