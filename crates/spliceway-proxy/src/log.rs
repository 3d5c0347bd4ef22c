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

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;
use std::{panic, thread};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::time::Instant;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Format as TextEvents;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::kit::health::Health;
use line::{Clock, Events};
use queue::{Destination, Lines, Report};

pub(crate) use access::{AccessLog, record, reopen_at_signal, reopens};
pub(crate) use line::{Format, Line};

/// The longest time that the process waits at its end for a slow reader or a slow disk.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
/// The same limit after a second signal. A fast reader needs a few milliseconds.
const HURRIED_PATIENCE: Duration = Duration::from_millis(200);
/// The stack size of the thread, whose calls are only a few levels deep.
const STACK_BYTES: usize = 64 << 10;

static LOG: LazyLock<Lines> = LazyLock::new(|| Lines::counted_by(dropped_of("main")));
/// Changes the level while the program runs.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
static STARTED: OnceLock<Look> = OnceLock::new();
static HURRIED: AtomicBool = AtomicBool::new(false);
static DROPPED: LazyLock<Family<LogLabel, Counter>> = LazyLock::new(Family::default);

/// How the lines on stderr look.
#[derive(Clone, Copy)]
struct Look {
    format: Format,
    is_colored: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LogLabel {
    log: &'static str,
}

/// What operators can set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) level: LevelFilter,
    pub(crate) format: Format,
    /// Where the records of sessions go.
    pub(crate) access: AccessLog,
}

/// Starts the threads of both logs. From then on, the log thread writes every line of the process,
/// including panic messages.
///
/// # Errors
/// Returns an error if the access log cannot be opened, or if the system cannot create a thread.
pub(crate) fn start(settings: &LogSettings, health: &Health) -> io::Result<Flush> {
    access::start(settings, health)?;
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
        announce(&format_args!("spliceway: the thread {thread} {panic}"));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            announce(&trace);
        }
        health.panics(thread);
    }));
    Ok(Flush)
}

/// Sets the level of the log. Returns `false` if the log has not started.
pub(crate) fn set_level(level: LevelFilter) -> bool {
    LEVEL.get().is_some_and(|handle| handle.reload(level).is_ok())
}

/// Returns the level of the log.
pub(crate) fn level() -> String {
    LevelFilter::current().to_string()
}

/// Writes a line at any log level, even `off`.
pub(crate) fn announce(line: &dyn Display) {
    let format = STARTED.get().map(|look| look.format);
    let line = announcement(format.unwrap_or_default(), &line.to_string());
    if format.is_some() {
        LOG.push(line.as_bytes());
    } else {
        // A failed write only loses this line, so the program continues.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Returns the line of a message that has no level.
fn announcement(format: Format, message: &str) -> String {
    match format {
        Format::Text => format!("{message}\n"),
        Format::Json => {
            let mut line = Line::new(format);
            line.text("message", message);
            let mut text = String::new();
            line.end(|line| text = String::from_utf8_lossy(line).into_owned());
            text
        }
    }
}

/// Lets at most one line per [`LogThrottle::EVERY`] through.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    last: Option<Instant>,
}

impl LogThrottle {
    pub(crate) const EVERY: Duration = Duration::from_secs(10);

    /// Returns whether to log a line now.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        let admits = self.last.is_none_or(|last| now - last >= Self::EVERY);
        if admits {
            self.last = Some(now);
        }
        admits
    }
}

/// A guard that waits, when it is dropped, until every line is written. It gives up after
/// [`FLUSH_PATIENCE`], or after [`HURRIED_PATIENCE`] if the process must end immediately.
pub(crate) struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        let patience = match HURRIED.load(Ordering::Relaxed) {
            true => HURRIED_PATIENCE,
            false => FLUSH_PATIENCE,
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

/// Returns the counters of dropped lines.
pub(crate) fn dropped() -> Family<LogLabel, Counter> {
    // This creates the series, so that they are 0 before the first drop.
    drop((dropped_of("main"), dropped_of("access")));
    DROPPED.clone()
}

/// Returns the number of dropped lines of both logs.
pub(crate) fn lines_dropped() -> u64 {
    dropped_of("main").get() + dropped_of("access").get()
}

fn dropped_of(log: &'static str) -> Counter {
    DROPPED.get_or_create(&LogLabel { log }).clone()
}

struct LogWriter;

impl Write for LogWriter {
    /// The subscriber passes one whole line at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write(io::stderr(), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Destination for Stderr {
    /// Whether the line can be written shows whether stderr works.
    fn report(&mut self, dropped: u64, _works: bool) -> Report {
        let format = STARTED.get().map(|look| look.format).unwrap_or_default();
        let message =
            format!("spliceway: {dropped} log lines were dropped: the log reader is too slow, or a write failed");
        Report::Line(announcement(format, &message))
    }
}

/// Writes to a descriptor, without the lock of the standard library's streams. Other threads would
/// wait for that lock while a write blocks.
fn write(to: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match rustix::io::write(&to, bytes) {
            // Another process that shares the descriptor has made it non-blocking.
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&to, PollFlags::OUT)], None)),
            written => return Ok(written?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_is_admitted() {
        let (mut throttle, start) = (LogThrottle::default(), Instant::now());
        let mut admits = |after| throttle.admits(start + after);
        assert!(admits(Duration::ZERO) && !admits(LogThrottle::EVERY / 2) && admits(LogThrottle::EVERY));
    }
}
