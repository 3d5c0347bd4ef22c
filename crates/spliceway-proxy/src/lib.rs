//! The program `spliceway`: forwards and proxies TCP; the bytes stay in the kernel.
//!
//! ```text
//!   what was typed ─ cli ─▶ Settings ─ serve ─▶ listener ─▶ session: handshake ▸ dial ▸ relay ▸ one record
//!                                        │                     │          │       │          │
//!                                      drain              protocol   upstream  spliceway  metrics
//! ```
//!
//! No library for others: `main.rs` calls [`main`], and the fuzz targets what reads the words of strangers.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod address;
mod cli;
mod drain;
mod errno;
mod limits;
mod listener;
mod metrics;
#[doc(hidden)]
pub mod protocol;
mod record;
mod serve;
mod session;
mod settings;
mod upstream;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use settings::Settings;

/// How long the way out waits for threads that the runtime cannot stop: one that sits in a name lookup.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(1);

/// The program, from its command line to its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let settings = cli::settings();
    limits::raise_descriptors();
    log_to_stderr(settings.log_level);
    match run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            announce(&format_args!("spliceway: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(settings: Settings) -> io::Result<()> {
    let mut builder = match settings.workers.get() {
        1 => tokio::runtime::Builder::new_current_thread(),
        workers => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(workers);
            builder
        }
    };
    let runtime = builder.enable_all().build()?;
    let served = runtime.block_on(serve::run(settings));
    // Cuts the sessions that are left; each writes its record as it goes.
    runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    served
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
