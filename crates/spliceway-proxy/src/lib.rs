//! The program `spliceway`: forwards and proxies TCP; the bytes stay in the kernel.
//!
//! ```text
//!   what was typed ─ cli ─▶ Settings ─ serve ─▶ listener ─▶ session: handshake ▸ dial ▸ relay ▸ one record
//!                                        │         │              │         │       │          │
//!                                      drain   admission   protocol, auth  policy  spliceway  metrics
//! ```
//!
//! No library for others: `main.rs` calls [`main`], and the fuzz targets what reads the words of strangers.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod address;
mod admission;
mod associate;
mod auth;
mod bind;
mod cli;
mod dial;
mod drain;
mod errno;
mod handshake;
mod limits;
mod listener;
mod metrics;
mod policy;
#[doc(hidden)]
pub mod protocol;
mod rates;
mod record;
mod serve;
mod session;
mod settings;
mod stream;

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use serve::CannotRun;
use settings::Settings;

/// How long the way out waits for threads that the runtime cannot stop: one that sits in a name lookup.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(1);

/// More than a client can send: 255 bytes, and the end of a line.
const SECRET_MAX_BYTES: u64 = 257;
/// Bad usage, and settings that are not safe.
const USAGE: u8 = 2;

/// The program, from its command line to its exit code.
#[must_use]
pub fn main() -> ExitCode {
    listener::adopt_inherited();
    match cli::asked() {
        cli::Asked::Hash => ended(hash_password().map_err(CannotRun::System)),
        cli::Asked::Run(settings) => {
            log_to_stderr(settings.log_level);
            ended(run(*settings))
        }
    }
}

fn ended(result: Result<(), CannotRun>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    announce(&format_args!("spliceway: {error}"));
    match error {
        CannotRun::System(_) => ExitCode::FAILURE,
        CannotRun::Unsafe(_) => ExitCode::from(USAGE),
    }
}

fn run(settings: Settings) -> Result<(), CannotRun> {
    let descriptors = limits::raise_descriptors(settings.limits.descriptors)?;
    let mut builder = match settings.workers.get() {
        1 => tokio::runtime::Builder::new_current_thread(),
        workers => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(workers);
            builder
        }
    };
    let runtime = builder.enable_all().build()?;
    let served = runtime.block_on(serve::run(settings, descriptors));
    // Cuts the sessions that are left; each writes its record as it goes.
    runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    served
}

/// Reads a secret and prints its hash. A terminal does not show what is typed.
fn hash_password() -> io::Result<()> {
    let secret = if io::stdin().is_terminal() {
        rpassword::prompt_password("Secret: ")?
    } else {
        let mut line = String::new();
        io::stdin().lock().take(SECRET_MAX_BYTES).read_line(&mut line)?;
        line.truncate(line.trim_end_matches(['\r', '\n']).len());
        line
    };
    if secret.is_empty() {
        return Err(io::Error::other("there is no secret on standard input"));
    }
    let hash = auth::hash(secret.as_bytes()).map_err(|error| io::Error::other(error.to_string()))?;
    writeln!(io::stdout(), "{hash}")
}

fn log_to_stderr(level: tracing_subscriber::filter::LevelFilter) {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_max_level(level)
        .init();
}

/// A line that the log level does not silence. A closed stderr is no reason to stop serving.
fn announce(line: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
