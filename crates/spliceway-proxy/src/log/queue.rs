//! A bounded queue of lines, and the thread that writes them.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// The limit on lines that wait for the thread, enough for about 13,000 session records. In
/// addition, the thread holds at most the same number of bytes that it is writing.
pub(super) const QUEUE_MAX_BYTES: usize = 4 << 20;
pub(super) const QUEUE_MAX_LINES: usize = 1 << 16;
/// The memory that the thread keeps for the next lines.
const KEEP_BYTES: usize = 64 << 10;
/// The time from one batch of lines to the next. The first line after a silence is written
/// immediately. If each record wakes the thread, a session of 1 KiB costs 98 µs of CPU time
/// instead of 85 µs.
const BATCH_TIME: Duration = Duration::from_millis(5);
/// The most bytes that one write contains, if it contains several lines. Such a write to a pipe is
/// atomic (`PIPE_BUF`), so the lines of another program that shares it stay whole.
const GROUP_MAX_BYTES: usize = 4096;

/// Receives a sentence that says what was opened, or why not.
type Reopened = oneshot::Sender<Result<String, String>>;

/// The lines that wait for one destination.
#[derive(Default)]
pub(super) struct Lines {
    queue: Mutex<Queue>,
    pushed: Condvar,
    written: Condvar,
    dropped: AtomicU64,
    /// Whether the thread looks for another file at the path before each batch.
    follows: AtomicBool,
}

#[derive(Default)]
struct Queue {
    lines: Batch,
    /// The number of dropped lines that no log line has reported yet.
    unreported: u64,
    /// Whether the thread is waiting for a line. If it is, all earlier lines have been written.
    idle: bool,
    /// Whether a flush is waiting. The thread then does not wait to collect a batch.
    flushing: bool,
    /// Those who wait until the destination is opened again, after the lines in the queue. `None`
    /// if it stays open. The connections to the admin socket limit their number.
    reopening: Option<Vec<Reopened>>,
}

/// Lines, one after another in one buffer.
#[derive(Default)]
struct Batch {
    text: Vec<u8>,
    ends: Vec<usize>,
}

/// Where a thread writes its lines.
pub(super) trait Destination: Write {
    /// Returns whether the destination ends in the middle of a line when it is opened.
    fn is_torn(&self) -> bool {
        false
    }

    /// Opens the destination again if another one has its place. Returns whether the lines that
    /// follow go to a new place.
    fn follow(&mut self) -> bool {
        false
    }

    /// Opens the destination again, and says what it has opened.
    ///
    /// # Errors
    /// Returns a sentence that says why the lines that follow go to the same place as before.
    fn reopen(&mut self) -> Result<String, String> {
        Err("it cannot be opened again".to_owned())
    }

    /// Tells the operator that a line could not be written.
    fn failed(&mut self, _error: &io::Error) {}

    /// Tells the operator that this many lines were dropped. `works` says whether the last write
    /// succeeded.
    fn report_dropped(&mut self, dropped: u64, works: bool) -> Report;
}

/// How the operator learns that lines were dropped.
pub(super) enum Report {
    /// By this line in the destination itself.
    Line(Vec<u8>),
    Told,
    /// By a later call.
    Later,
}

impl Lines {
    /// Adds a line to the queue. If there is no room, the line is dropped, so this method never
    /// waits for the reader.
    pub(super) fn push(&self, line: &[u8]) {
        let mut queue = self.queue();
        if !queue.lines.add(line) {
            queue.unreported += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if std::mem::take(&mut queue.idle) {
            self.pushed.notify_one();
        }
    }

    /// Writes all lines. This method never returns.
    pub(super) fn write_to(&self, to: impl Destination) -> ! {
        let mut batch = Batch::default();
        let mut sink = Sink { torn: to.is_torn(), to };
        loop {
            let (mut unreported, reopening) = self.next(&mut batch);
            let mut failure = None;
            if self.follows.load(Ordering::Relaxed) && sink.to.follow() {
                sink.torn = sink.to.is_torn();
            }
            let mut next = 0;
            while next < batch.ends.len() {
                let lines = batch.group(next);
                failure = match sink.write_lines(&batch.text[lines.clone()]) {
                    Ok(()) => {
                        next = batch.lines_before(lines.end);
                        None
                    }
                    Err((written, error)) => {
                        // The line that the error has cut is lost. Those that follow may not be.
                        next = batch.lines_before(lines.start + written) + 1;
                        unreported += 1;
                        self.dropped.fetch_add(1, Ordering::Relaxed);
                        sink.to.failed(&error);
                        Some(error)
                    }
                };
            }
            batch.clear();
            if let Some(waiting) = reopening {
                let reopened = sink.to.reopen();
                if reopened.is_ok() {
                    (sink.torn, failure) = (sink.to.is_torn(), None);
                }
                for one in waiting {
                    // Nobody waits any more if the operator has left.
                    let _ = one.send(reopened.clone());
                }
            }
            if unreported > 0 && !sink.report_dropped(unreported, failure.is_none()) {
                self.queue().unreported += unreported;
            }
            self.collect();
        }
    }

    /// Waits [`BATCH_TIME`] after a batch, so that lines collect for the next one. Only a flush
    /// ends the wait early.
    fn collect(&self) {
        let mut queue = self.queue();
        self.pushed
            .wait_while_for(&mut queue, |queue| !queue.flushing, BATCH_TIME);
    }

    /// Waits for lines and moves them to `batch`, which must be empty. Returns the number of
    /// dropped lines that have not been reported yet, and who waits until the destination is opened
    /// again.
    fn next(&self, batch: &mut Batch) -> (u64, Option<Vec<Reopened>>) {
        let mut queue = self.queue();
        while queue.lines.ends.is_empty() && queue.reopening.is_none() {
            queue.idle = true;
            self.written.notify_all();
            self.pushed.wait(&mut queue);
        }
        queue.idle = false;
        std::mem::swap(&mut queue.lines, batch);
        (
            std::mem::take(&mut queue.unreported),
            std::mem::take(&mut queue.reopening),
        )
    }

    /// Opens the destination again, once the lines that are in the queue now are written. `answer`
    /// gets the result.
    pub(super) fn reopen(&self, answer: Option<Reopened>) {
        self.queue().reopening.get_or_insert_default().extend(answer);
        self.pushed.notify_one();
    }

    /// Follows renames from now on.
    pub(super) fn follow(&self) {
        self.follows.store(true, Ordering::Relaxed);
    }

    /// Asks the thread to write all lines without a pause.
    pub(super) fn hasten(&self) {
        self.queue().flushing = true;
        self.pushed.notify_one();
    }

    /// Waits until every line is written, but not beyond `until`.
    pub(super) fn flush(&self, until: Instant) {
        self.hasten();
        let patience = until.saturating_duration_since(Instant::now());
        let mut queue = self.queue();
        self.written.wait_while_for(&mut queue, |queue| !queue.idle, patience);
        queue.flushing = false;
    }

    /// Returns the number of dropped lines.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Locks the queue.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

impl Batch {
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

    /// Returns where the lines are that one write may contain, from the line `first` on: at least
    /// one line, and otherwise at most [`GROUP_MAX_BYTES`].
    fn group(&self, first: usize) -> Range<usize> {
        let start = first.checked_sub(1).map_or(0, |before| self.ends[before]);
        let last = self.lines_before(start + GROUP_MAX_BYTES).max(first + 1) - 1;
        start..self.ends[last]
    }

    /// Returns the number of lines that end at `position` or before.
    fn lines_before(&self, position: usize) -> usize {
        self.ends.partition_point(|end| *end <= position)
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.text.shrink_to(KEEP_BYTES);
        self.ends.shrink_to(KEEP_BYTES / size_of::<usize>());
    }
}

/// A destination, and whether an error cut the last line short.
struct Sink<D> {
    to: D,
    torn: bool,
}

impl<D: Destination> Sink<D> {
    /// Writes whole lines. If the previous line was cut short, they start on a new one.
    ///
    /// # Errors
    /// Returns the number of bytes of these lines that were written, and the error.
    fn write_lines(&mut self, lines: &[u8]) -> Result<(), (usize, io::Error)> {
        if self.torn {
            self.write_whole(b"\n").map_err(|(_, error)| (0, error))?;
            self.torn = false;
        }
        self.write_whole(lines).inspect_err(|(written, _)| {
            self.torn = lines[..*written].last().is_some_and(|last| *last != b'\n');
        })
    }

    fn write_whole(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut left = bytes;
        while !left.is_empty() {
            let error = match self.to.write(left) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    left = &left[count..];
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            return Err((bytes.len() - left.len(), error));
        }
        Ok(())
    }

    /// Returns whether the operator knows about the dropped lines now.
    fn report_dropped(&mut self, dropped: u64, works: bool) -> bool {
        match self.to.report_dropped(dropped, works) {
            Report::Told => true,
            Report::Later => false,
            Report::Line(line) => self.write_lines(&line).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
    use std::thread;

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

    impl Destination for Slow {
        fn report_dropped(&mut self, dropped: u64, _works: bool) -> Report {
            Report::Line(format!("{dropped} lines were dropped\n").into_bytes())
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
    fn log() -> (&'static Lines, Reader) {
        let log: &Lines = Box::leak(Box::default());
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
    fn pushed_alone(log: &Lines, line: &str) {
        log.push(line.as_bytes());
        while !log.queue().lines.ends.is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn lines_beyond_the_bound_are_dropped_counted_and_reported() {
        let (log, reader) = log();
        pushed_alone(log, "first\n");
        let long = "x".repeat(QUEUE_MAX_BYTES / 4 - 1) + "\n";
        for _ in 0..7 {
            log.push(long.as_bytes());
        }
        assert_eq!(log.dropped(), 3);
        assert_eq!(reader.read(), "first\n");
        for _ in 0..4 {
            assert!(reader.read() == long);
        }
        let report = reader.read();
        assert_eq!(report, "3 lines were dropped\n");
        pushed_alone(log, "last\n");
        assert_eq!(reader.read(), "last\n");
    }

    #[test]
    fn lines_share_a_write_up_to_the_size_that_is_atomic() {
        let (log, reader) = log();
        pushed_alone(log, "first\n");
        let half = "x".repeat(GROUP_MAX_BYTES / 2 - 1) + "\n";
        let long = "y".repeat(GROUP_MAX_BYTES) + "\n";
        for line in ["a\n", "b\n", &half, &half, &long, "c\n"] {
            log.push(line.as_bytes());
        }
        for expected in ["first\n", &("a\nb\n".to_owned() + &half), &half, &long, "c\n"] {
            assert!(reader.read() == expected);
        }
    }

    #[test]
    fn only_the_line_that_an_error_cuts_is_lost() {
        let full = || Err(io::ErrorKind::StorageFull.into());
        let (log, reader) = log();
        pushed_alone(log, "first\n");
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            log.push(line.as_bytes());
        }
        assert_eq!(reader.read(), "first\n");
        assert_eq!(reader.answer(Ok(6)), "one\ntwo\nthree\nfour\n");
        assert_eq!(reader.answer(full()), "o\nthree\nfour\n");
        assert_eq!(reader.read(), "\n", "the line that was cut ends here");
        assert_eq!(reader.answer(Ok(6)), "three\nfour\n");
        assert_eq!(reader.answer(full()), "four\n");
        let report = reader.read();
        assert_eq!(report, "2 lines were dropped\n");
        assert_eq!(log.dropped(), 2);
    }

    #[test]
    fn short_lines_are_bounded_in_number() {
        let (log, _reader) = log();
        pushed_alone(log, "first\n");
        for _ in 0..QUEUE_MAX_LINES + 5 {
            log.push(b"\n");
        }
        assert_eq!(log.dropped(), 5);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_reported() {
        let full = || Err(io::ErrorKind::StorageFull.into());
        let (log, reader) = log();
        pushed_alone(log, "first\n");
        log.push(b"second\n");
        assert_eq!(reader.answer(full()), "first\n");
        let report = reader.answer(full());
        assert_eq!(report, "1 lines were dropped\n");
        assert_eq!(reader.answer(Ok(3)), "second\n");
        assert_eq!(reader.answer(full()), "ond\n");
        assert_eq!(reader.read(), "\n", "a line that was cut ends here");
        let report = reader.read();
        assert_eq!(report, "2 lines were dropped\n");
        assert_eq!(log.dropped(), 2);
    }

    #[test]
    fn a_flush_waits_for_every_line_but_not_beyond_its_limit() {
        let (log, reader) = log();
        log.push(b"line\n");
        log.flush(Instant::now() + Duration::from_millis(1));
        assert_eq!(reader.read(), "line\n");
        // The limit is longer than the flush takes.
        log.flush(Instant::now() + Duration::from_secs(20));
        assert!(log.queue().idle);
    }
}
