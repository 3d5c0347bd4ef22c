//! The log: lines on stderr. A separate thread writes the lines, so that no worker waits for the
//! reader of the log.
//!
//! ```text
//!   workers ── line ──▶ queue (4 MiB, 65,536 lines) ──▶ thread `spliceway-log` ──▶ stderr
//!                         └─ full: dropped and counted        └─ error: dropped and counted
//! ```
//!
//! tracing-appender's `NonBlocking` does the same, but it limits lines and not bytes. It does not
//! count lines whose write failed, and it prints to stdout when its queue is full at exit.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{panic, thread};

use prometheus_client::metrics::counter::Counter;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::time::Instant;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::health::Health;

/// The limit on lines that wait for the thread, enough for about 13,000 session records. In
/// addition, the thread holds at most the same number of bytes that it is writing.
const QUEUE_MAX_BYTES: usize = 4 << 20;
const QUEUE_MAX_LINES: usize = 1 << 16;
/// The memory that the thread keeps for the next lines.
const KEEP_BYTES: usize = 64 << 10;
/// The time from one batch of lines to the next. The first line after a silence is written
/// immediately. If each record wakes the thread, a session of 1 KiB costs 98 µs of CPU time
/// instead of 85 µs.
const BATCH_TIME: Duration = Duration::from_millis(5);
/// The longest time that the process waits at its end for a slow reader.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
/// The same limit after a second signal. A fast reader needs a few milliseconds.
const HURRIED_PATIENCE: Duration = Duration::from_millis(200);
/// The stack size of the thread, whose calls are only a few levels deep.
const STACK_BYTES: usize = 64 << 10;

static LOG: LazyLock<Log> = LazyLock::new(Log::default);
/// Changes the level while the program runs.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
static STARTED: OnceLock<()> = OnceLock::new();
static HURRIED: AtomicBool = AtomicBool::new(false);

/// Starts the log thread. From then on, this thread writes every line of the process, including
/// panic messages.
///
/// # Errors
/// Returns an error if the system cannot create a thread.
pub(crate) fn start(level: LevelFilter, health: &Health) -> io::Result<Flush> {
    let guard = health.guard("the thread that writes the log");
    thread::Builder::new()
        .name("spliceway-log".into())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let _guard = guard;
            LOG.write_to(Stderr)
        })?;
    let _ = STARTED.set(());
    let (level, handle) = reload::Layer::new(level);
    let _ = LEVEL.set(handle);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| LogWriter)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
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
    let line = format!("{line}\n");
    if STARTED.get().is_some() {
        LOG.push(line.as_bytes());
    } else {
        // A failed write only loses this line, so the program continues.
        let _ = io::stderr().write_all(line.as_bytes());
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
        LOG.flush(patience);
    }
}

/// Records that the process must end immediately.
pub(crate) fn hurry() {
    HURRIED.store(true, Ordering::Relaxed);
}

/// Returns the counter of dropped lines.
pub(crate) fn dropped() -> Counter {
    LOG.dropped.clone()
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

#[derive(Default)]
struct Log {
    queue: Mutex<Queue>,
    pushed: Condvar,
    written: Condvar,
    dropped: Counter,
}

#[derive(Default)]
struct Queue {
    lines: Lines,
    /// The number of dropped lines that no log line has reported yet.
    unreported: u64,
    /// Whether the thread is waiting for a line. If it is, all earlier lines have been written.
    idle: bool,
    /// Whether a flush is waiting. The thread then does not wait to collect a batch.
    flushing: bool,
}

/// Lines, one after another in one buffer.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Log {
    /// Adds a line to the queue. If there is no room, the line is dropped, so this method never
    /// waits for the reader.
    fn push(&self, line: &[u8]) {
        let mut queue = self.queue();
        if !queue.lines.add(line) {
            queue.unreported += 1;
            self.dropped.inc();
            return;
        }
        if std::mem::take(&mut queue.idle) {
            self.pushed.notify_one();
        }
    }

    /// Writes all lines. This method never returns.
    fn write_to(&self, to: impl Write) -> ! {
        let mut lines = Lines::default();
        let mut sink = Sink { to, torn: false };
        loop {
            let mut unreported = self.next(&mut lines);
            for line in lines.iter() {
                if !sink.write_line(line) {
                    unreported += 1;
                    self.dropped.inc();
                }
            }
            lines.clear();
            if unreported > 0 {
                let report = format!(
                    "spliceway: {unreported} log lines were dropped: the log reader is too slow, or a write failed\n"
                );
                if !sink.write_line(report.as_bytes()) {
                    self.queue().unreported += unreported;
                }
            }
            self.collect();
        }
    }

    /// Waits [`BATCH_TIME`] after a batch, so that lines collect for the next one. Only a flush
    /// ends the wait early.
    fn collect(&self) {
        drop(
            self.pushed
                .wait_timeout_while(self.queue(), BATCH_TIME, |queue| !queue.flushing),
        );
    }

    /// Waits for lines and moves them to `lines`, which must be empty. Returns the number of
    /// dropped lines that have not been reported yet.
    fn next(&self, lines: &mut Lines) -> u64 {
        let mut queue = self.queue();
        while queue.lines.ends.is_empty() {
            queue.idle = true;
            self.written.notify_all();
            queue = self.pushed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.idle = false;
        std::mem::swap(&mut queue.lines, lines);
        std::mem::take(&mut queue.unreported)
    }

    fn flush(&self, patience: Duration) {
        let mut queue = self.queue();
        queue.flushing = true;
        self.pushed.notify_one();
        let waited = self.written.wait_timeout_while(queue, patience, |queue| !queue.idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.flushing = false;
    }

    /// Locks the queue and ignores poisoning, because the queue is valid at every instant.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    /// Adds a line. Returns `false` if there is no room for it.
    fn add(&mut self, line: &[u8]) -> bool {
        let end = self.text.len() + line.len();
        if end > QUEUE_MAX_BYTES || self.ends.len() == QUEUE_MAX_LINES {
            return false;
        }
        self.text.extend_from_slice(line);
        self.ends.push(end);
        true
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.text.shrink_to(KEEP_BYTES);
        self.ends.shrink_to(KEEP_BYTES / size_of::<usize>());
    }
}

/// The destination of lines, and whether an error cut the last line short.
struct Sink<W> {
    to: W,
    torn: bool,
}

impl<W: Write> Sink<W> {
    /// Writes a line and returns whether all of it was written. If the previous line was cut short,
    /// this line starts on a new one.
    fn write_line(&mut self, line: &[u8]) -> bool {
        (!self.torn || self.write_whole(b"\n")) && self.write_whole(line)
    }

    fn write_whole(&mut self, bytes: &[u8]) -> bool {
        let mut left = bytes;
        while !left.is_empty() {
            match self.to.write(left) {
                Ok(count @ 1..) => left = &left[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    self.torn |= left.len() < bytes.len();
                    return false;
                }
            }
        }
        self.torn = false;
        true
    }
}

/// Stderr without the standard library's lock. Other threads would wait for that lock while a write
/// blocks.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        loop {
            match rustix::io::write(&stderr, bytes) {
                // Another process that shares stderr has made it non-blocking.
                Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)),
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

    /// A slow reader. The test decides when the reader accepts a write, and how many bytes it
    /// accepts.
    struct Slow {
        writes: SyncSender<Vec<u8>>,
        outcomes: Receiver<io::Result<usize>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
            self.writes.send(bytes.to_vec()).map_err(|_| gone(()))?;
            self.outcomes
                .recv()
                .map_err(|_| gone(()))?
                .map(|most| most.min(bytes.len()))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Reader {
        writes: Receiver<Vec<u8>>,
        outcomes: Sender<io::Result<usize>>,
    }

    impl Reader {
        fn read(&self) -> String {
            self.answer(Ok(usize::MAX))
        }

        fn answer(&self, outcome: io::Result<usize>) -> String {
            self.outcomes.send(outcome).unwrap();
            String::from_utf8(self.writes.recv().unwrap()).unwrap()
        }
    }

    /// Returns a log for one test, and its reader. The log's thread lives as long as the test
    /// process.
    fn log() -> (&'static Log, Reader) {
        let log: &Log = Box::leak(Box::default());
        let ((writes, written), (outcomes, taken)) = (sync_channel(0), channel());
        let sink = Slow {
            writes,
            outcomes: taken,
        };
        thread::spawn(move || log.write_to(sink));
        let reader = Reader {
            writes: written,
            outcomes,
        };
        (log, reader)
    }

    /// Pushes a line and waits until the thread holds it and the queue is empty.
    fn pushed_alone(log: &Log, line: &str) {
        log.push(line.as_bytes());
        while !log.queue().lines.ends.is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn one_line_in_ten_seconds_is_admitted() {
        let (mut throttle, start) = (LogThrottle::default(), Instant::now());
        let mut admits = |after| throttle.admits(start + after);
        assert!(admits(Duration::ZERO) && !admits(LogThrottle::EVERY / 2) && admits(LogThrottle::EVERY));
    }

    #[test]
    fn lines_beyond_the_bound_are_dropped_counted_and_reported() {
        let (log, reader) = log();
        pushed_alone(log, "first\n");
        let long = "x".repeat(QUEUE_MAX_BYTES / 4 - 1) + "\n";
        for _ in 0..7 {
            log.push(long.as_bytes());
        }
        assert_eq!(log.dropped.get(), 3);
        assert_eq!(reader.read(), "first\n");
        for _ in 0..4 {
            assert!(reader.read() == long);
        }
        let report = reader.read();
        assert!(report.starts_with("spliceway: 3 log lines were dropped"), "{report}");
        pushed_alone(log, "last\n");
        assert_eq!(reader.read(), "last\n");
    }

    #[test]
    fn short_lines_are_bounded_in_number() {
        let (log, _reader) = log();
        pushed_alone(log, "first\n");
        for _ in 0..QUEUE_MAX_LINES + 5 {
            log.push(b"\n");
        }
        assert_eq!(log.dropped.get(), 5);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_reported() {
        let full = || Err(io::ErrorKind::StorageFull.into());
        let (log, reader) = log();
        pushed_alone(log, "first\n");
        log.push(b"second\n");
        assert_eq!(reader.answer(full()), "first\n");
        let report = reader.answer(full());
        assert!(report.contains("1 log lines"), "{report}");
        assert_eq!(reader.answer(Ok(3)), "second\n");
        assert_eq!(reader.answer(full()), "ond\n");
        assert_eq!(reader.read(), "\n", "a line that was cut ends here");
        let report = reader.read();
        assert!(report.contains("2 log lines"), "{report}");
        assert_eq!(log.dropped.get(), 2);
    }

    #[test]
    fn a_flush_waits_for_every_line_but_not_beyond_its_limit() {
        let (log, reader) = log();
        log.push(b"line\n");
        log.flush(Duration::from_millis(1));
        assert_eq!(reader.read(), "line\n");
        // The limit is longer than the flush takes.
        log.flush(Duration::from_secs(20));
        assert!(log.queue().idle);
    }
}
