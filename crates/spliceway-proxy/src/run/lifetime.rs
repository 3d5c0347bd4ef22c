//! The lifetime of a service: from its settings to its exit code.

use std::process::ExitCode;
use std::time::Duration;

use spliceway_operator::text::count;
use tracing::Level;

use crate::kit::health::Health;
use crate::kit::heap;
use crate::kit::{created, limits, pid_file};
use crate::log;
use crate::run::handover::Successor;
use crate::run::serve;
use crate::run::startup::{self, CannotRun};
use crate::settings::{Settings, Source};

/// The longest time that the program waits at its end for threads that the runtime cannot stop,
/// such as a name lookup.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(1);

/// The exit code for bad usage and for unsafe settings.
pub(crate) const USAGE: u8 = 2;
/// The exit code after a stop that cut sessions.
const CUT: u8 = 3;
/// The warning about a limit that ends every long run.
const CPU_TIME: &str = "the system limits the CPU time of this process (RLIMIT_CPU): at the limit, the program stops";

/// Serves until the program stops. A process that an upgrade has started takes over.
pub(crate) fn serve(settings: Settings, source: Source) -> ExitCode {
    let successor = match Successor::from_stdin() {
        Ok(successor) => successor,
        Err(wrong) => return failed(&CannotRun::Unsafe(wrong)),
    };
    if let Err(error) = startup::check_threads(settings.workers.get()) {
        return not_started(successor, &error.into());
    }
    let health = Health::new();
    let cpu_time = limits::cpu_time();
    match log::start(&settings.log, &health) {
        Ok(_flushes) => {
            if let Some(limit) = cpu_time {
                tracing::warn!(?limit, "{CPU_TIME}");
            }
            let ended = run(settings, source, successor, &health);
            // The program has written its files for the last time.
            created::remove();
            pid_file::remove();
            match ended {
                Ok(0) => ExitCode::SUCCESS,
                Ok(_) => ExitCode::from(CUT),
                Err(error) => failed(&error),
            }
        }
        Err(error) => {
            created::remove();
            not_started(successor, &error.into())
        }
    }
}

/// Serves, and returns the number of sessions that the stop of the program has cut.
fn run(settings: Settings, source: Source, successor: Option<Successor>, health: &Health) -> Result<u64, CannotRun> {
    heap::keep_small();
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
        tracing::warn!("stopped: cut {}", count(cut, "session"));
    }
    Ok(cut)
}

/// Says what is wrong with a configuration.
pub(crate) fn refuse(problem: &str) -> ExitCode {
    if !refuse_upgrade(problem) {
        log::announce(Level::ERROR, &problem);
    }
    ExitCode::from(USAGE)
}

/// Tells the process that waits for this one to take over why it does not. Returns `false` if there
/// is no such process.
///
/// The old process writes the reason into its log. A line of this process would have the wrong
/// form, because its own log has not started.
pub(crate) fn refuse_upgrade(problem: &str) -> bool {
    match Successor::from_stdin() {
        Ok(Some(successor)) => successor.refuse(&problem),
        Ok(None) | Err(_) => false,
    }
}

/// Says why the program ends before its log has started.
fn not_started(successor: Option<Successor>, error: &CannotRun) -> ExitCode {
    if successor.is_some_and(|successor| successor.refuse(error)) {
        return exit_code(error);
    }
    failed(error)
}

/// Says why the program ends.
pub(crate) fn failed(error: &CannotRun) -> ExitCode {
    let remedy = match error {
        CannotRun::System(error) => startup::remedy(error),
        _ => "",
    };
    log::announce(Level::ERROR, &format_args!("spliceway: {error}{remedy}"));
    exit_code(error)
}

fn exit_code(error: &CannotRun) -> ExitCode {
    match error {
        CannotRun::System(_) | CannotRun::Failed(_) => ExitCode::FAILURE,
        CannotRun::Unsafe(_) => ExitCode::from(USAGE),
    }
}
