//! The log on stderr, and the access log. A separate thread writes the lines of each, so that no
//! worker waits for a reader or a disk.
//!
//! ```text
//!   workers ── line ──▶ queue (4 MiB, 65,536 lines) ──▶ thread `spliceway-log` ──▶ stderr
//!                         └─ full: dropped and counted        └─ error: dropped and counted
//!   workers ── record ─▶ a queue of the same kind ────▶ thread `spliceway-access` ──▶ file, stdout
//! ```
//!
//! tracing-appender's `NonBlocking` does the same, but it limits lines and not bytes. It does not
//! count lines whose write failed, and it prints to stdout when its queue is full at exit.

mod access;
mod line;
mod queue;
mod stderr;
mod throttle;

use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{panic, thread};

use tokio::time::Instant;
use tracing::Level;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Format as TextEvents;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::kit::health::Health;
use line::{Clock, Events};
use stderr::{LOG, LogWriter, Look, STARTED, Stderr};

pub(crate) use access::{AccessLog, follow_renames, record, reopen, reopen_at_signal, reopens};
pub(crate) use line::{Format, Line};
pub(crate) use stderr::announce;
pub(crate) use throttle::LogThrottle;

/// The longest time that the process waits at its end for a slow reader or a slow disk.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
/// The longest time that it waits after a second signal. A fast reader needs a few milliseconds.
const HURRIED_PATIENCE: Duration = Duration::from_millis(200);
/// The stack size of the thread, whose calls are only a few levels deep.
const STACK_BYTES: usize = 64 << 10;

/// Changes the level while the program runs.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
static HURRIED: AtomicBool = AtomicBool::new(false);
/// What operators can set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) level: LevelFilter,
    pub(crate) format: Format,
    /// Where the records of sessions go.
    pub(crate) access: AccessLog,
    /// The format of records. Among the lines of the log, it is that of the log.
    pub(crate) access_format: Format,
}

/// Starts the threads of both logs. From then on, the log thread writes every line of the process,
/// including panic messages.
///
/// # Errors
/// Returns an error if the access log cannot be opened, or if the system cannot create a thread.
pub(crate) fn start(settings: &LogSettings, health: &Health) -> io::Result<Flush> {
    access::start(&settings.access, settings.access_format, health)?;
    let guard = health.guard("the thread that writes the log");
    thread::Builder::new()
        .name("spliceway-log".into())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let _guard = guard;
            LOG.write_to(Stderr)
        })?;
    let look = Look {
        format: settings.format,
        is_colored: settings.format == Format::Text && io::stderr().is_terminal(),
    };
    let _ = STARTED.set(look);
    let (level, handle) = reload::Layer::new(settings.level);
    let _ = LEVEL.set(handle);
    let events = match look.format {
        Format::Text => Events::Text(TextEvents::default().with_target(false).with_timer(Clock)),
        Format::Json => Events::Json,
    };
    let lines = tracing_subscriber::fmt::layer()
        .event_format(events)
        .with_writer(|| LogWriter)
        .with_ansi(look.is_colored)
        .log_internal_errors(false);
    tracing_subscriber::registry().with(level).with(lines).init();
    let health = health.clone();
    // The default hook writes to stderr itself and would wait for the reader.
    panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        let thread = thread.name().unwrap_or("?");
        announce(Level::ERROR, &format_args!("spliceway: the thread {thread} {panic}"));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            announce(Level::ERROR, &trace);
        }
        health.panics(thread);
    }));
    Ok(Flush)
}

/// Returns the number of lines that each log has dropped.
pub(crate) fn dropped() -> [(&'static str, u64); 2] {
    [("main", LOG.dropped()), ("access", access::LINES.dropped())]
}

/// Sets the level of the log. Returns `false` if the log has not started.
pub(crate) fn set_level(level: LevelFilter) -> bool {
    LEVEL.get().is_some_and(|handle| handle.reload(level).is_ok())
}

/// Returns the level of the log.
pub(crate) fn level() -> String {
    LevelFilter::current().to_string()
}

/// A guard that waits, when it is dropped, until every line is written. It gives up after
/// [`FLUSH_PATIENCE`], or after [`HURRIED_PATIENCE`] if the process must end immediately.
pub(crate) struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        let patience = if HURRIED.load(Ordering::Relaxed) {
            HURRIED_PATIENCE
        } else {
            FLUSH_PATIENCE
        };
        let until = Instant::now() + patience;
        // Both threads work at the same time.
        LOG.hasten();
        access::flush(until);
        LOG.flush(until);
    }
}

/// Records that the process must end immediately.
pub(crate) fn hurry() {
    HURRIED.store(true, Ordering::Relaxed);
}
