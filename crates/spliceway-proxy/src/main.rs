//! The `spliceway` program: forwards and proxies TCP while the bytes stay in the kernel.
//!
//! ```text
//!   arguments ─ cli ─▶ Settings ─ serve ─▶ listener ─▶ session: handshake ▸ dial ▸ relay ▸ record
//!                                   │         │              │         │       │            │
//!                                 drain   admission   protocol, auth  policy  spliceway  metrics
//! ```
#![deny(unsafe_code)]

mod access;
mod cli;
mod kit;
mod log;
mod metrics;
mod monitor;
mod net;
mod reach;
mod run;
mod session;
mod settings;

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use access::auth;
use kit::health::Health;
use kit::{created, limits};
use net::listener;
use run::handover::Successor;
use run::startup::CannotRun;
use run::{drain, serve, startup};
use settings::{Settings, Source};
use spliceway_lab::{bench, doctor};

/// The longest time that the program waits at its end for threads that the runtime cannot stop,
/// such as a name lookup.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(1);

/// The longest password that a SOCKS5 client can send (RFC 1929).
const SECRET_MAX_BYTES: usize = 255;
/// The exit code for bad usage and for unsafe settings.
const USAGE: u8 = 2;
/// The warning about a limit that ends every long run.
const CPU_TIME: &str = "the system limits the CPU time of this process (RLIMIT_CPU): at the limit, the program stops";
/// The exit code after a stop that cut sessions.
const CUT: u8 = 3;

fn main() -> ExitCode {
    match startup::check_stack() {
        Ok(()) => start(),
        Err(error) => failed(&error.into()),
    }
}

/// Does what the command line asks for. It is not inlined, because its stack is large.
#[inline(never)]
fn start() -> ExitCode {
    listener::adopt_inherited();
    limits::survive_file_size();
    match cli::parse() {
        cli::Action::Operate(socket, command) => spliceway_operator::run(&socket, &command).unwrap_or_else(|error| {
            log::announce(&format_args!("spliceway: {error}"));
            ExitCode::FAILURE
        }),
        cli::Action::Doctor(command) => ended(doctor::run(command, possible_sessions())),
        cli::Action::Bench(command) => ended(limits::raise_descriptors(None).and_then(|_| bench::run(&command))),
        cli::Action::BenchRelay(command) => {
            printed(limits::raise_descriptors(None).and_then(|_| bench::serve(&command)))
        }
        cli::Action::HashPassword => hash_password().map_or_else(not_hashed, |()| ExitCode::SUCCESS),
        cli::Action::Print(text) => printed(io::stdout().write_all(text.as_bytes())),
        cli::Action::Write(folder, files) => printed(write_files(&folder, &files)),
        cli::Action::Refuse(problem) => {
            log::announce(&problem);
            if let Ok(Some(successor)) = Successor::from_stdin() {
                successor.refuse(&problem);
            }
            ExitCode::from(USAGE)
        }
        cli::Action::Serve(settings, source) => {
            let successor = match Successor::from_stdin() {
                Ok(successor) => successor,
                Err(wrong) => return failed(&CannotRun::Unsafe(wrong)),
            };
            if let Err(error) = startup::check_threads(settings.workers.get()) {
                if let Some(successor) = successor {
                    successor.refuse(&error);
                }
                return failed(&error.into());
            }
            let health = Health::new();
            let cpu_time = limits::cpu_time();
            match log::start(&settings.log, &health) {
                Ok(_flushes) => {
                    if let Some(limit) = cpu_time {
                        tracing::warn!(?limit, "{CPU_TIME}");
                    }
                    let ended = run(*settings, source, successor, &health);
                    // The program has written its files for the last time.
                    created::remove();
                    match ended {
                        Ok(0) => ExitCode::SUCCESS,
                        Ok(_) => ExitCode::from(CUT),
                        Err(error) => failed(&error),
                    }
                }
                Err(error) => {
                    created::remove();
                    failed(&error.into())
                }
            }
        }
    }
}

/// Writes these files, each with its name.
fn write_files(folder: &Path, files: &[(String, String)]) -> io::Result<()> {
    for (name, text) in files {
        let path = folder.join(name);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        std::fs::write(&path, text).map_err(named)?;
    }
    Ok(())
}

/// Returns how many sessions a service could have at the same time. A service raises its soft limit
/// on descriptors, so only the hard limit matters.
fn possible_sessions() -> usize {
    let descriptors = limits::raise_descriptors(None).unwrap_or(0);
    limits::Descriptors::of(descriptors, 1).sessions()
}

fn ended(result: io::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| failed(&error.into()))
}

fn printed(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.into()),
    }
}

fn failed(error: &CannotRun) -> ExitCode {
    let remedy = match error {
        CannotRun::System(error) => startup::remedy(error),
        _ => "",
    };
    log::announce(&format_args!("spliceway: {error}{remedy}"));
    match error {
        CannotRun::System(_) | CannotRun::Failed(_) => ExitCode::FAILURE,
        CannotRun::Unsafe(_) => ExitCode::from(USAGE),
    }
}

/// Serves, and returns the number of sessions that the stop of the program has cut.
fn run(settings: Settings, source: Source, successor: Option<Successor>, health: &Health) -> Result<u64, CannotRun> {
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
    let served = runtime.block_on(async {
        log::reopen_at_signal(health)?;
        serve::run(settings, source, successor, descriptors, health).await
    });
    // This cuts the remaining sessions. Each one writes its record.
    runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    let process = served?;
    // No session counts bytes any more.
    process.accounts.finish();
    let cut = process.metrics.cut();
    if cut > 0 {
        tracing::warn!("stopped: cut {}", drain::sessions(cut));
    }
    Ok(cut)
}

/// Reads a password and prints its hash.
fn hash_password() -> io::Result<()> {
    let secret = match io::stdin().is_terminal() {
        true => typed_secret()?,
        false => piped_secret()?,
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

fn not_hashed(error: io::Error) -> ExitCode {
    log::announce(&format_args!("spliceway: {error}"));
    match error.kind() {
        io::ErrorKind::InvalidInput => ExitCode::from(USAGE),
        _ => ExitCode::FAILURE,
    }
}
