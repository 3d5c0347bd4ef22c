//! The log on stderr: its queue, and the writers on both of its ends.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{LazyLock, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use spliceway_operator::text::count;
use tracing::Level;

use super::line::{Format, Line};
use super::queue::{Destination, Lines, Report};

pub(super) static LOG: LazyLock<Lines> = LazyLock::new(Lines::default);
pub(super) static STARTED: OnceLock<Look> = OnceLock::new();

/// How the lines on stderr look.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) format: Format,
    pub(super) is_colored: bool,
}

/// Writes a line even if the log shows only lines of a higher level, or none. Before the log has
/// started, the line is the message alone.
pub(crate) fn announce(level: Level, message: &dyn Display) {
    match STARTED.get() {
        Some(look) => look.line(level, message).end(|line| LOG.push(line)),
        None => {
            // A failed write only loses this line, so the program continues.
            let _ = writeln!(io::stderr(), "{message}");
        }
    }
}

impl Look {
    fn line(self, level: Level, message: &dyn Display) -> Line {
        Line::of_log(self.format, level, &message.to_string(), self.is_colored)
    }
}

pub(super) struct LogWriter;

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

pub(super) struct Stderr;

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
    fn report_dropped(&mut self, dropped: u64, _works: bool) -> Report {
        let Some(look) = STARTED.get() else {
            return Report::Later;
        };
        let dropped = count(dropped, "line");
        let why = "the log reader is too slow, or a write failed";
        let message = format!("spliceway: the log misses {dropped}: {why}");
        let mut report = Vec::new();
        look.line(Level::WARN, &message).end(|line| report = line.to_vec());
        Report::Line(report)
    }
}

/// Writes to a descriptor, without the lock of the standard library's streams. Other threads would
/// wait for that lock while a write blocks.
pub(super) fn write(to: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match rustix::io::write(&to, bytes) {
            // Another process that shares the descriptor has made it non-blocking.
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&to, PollFlags::OUT)], None)),
            written => return Ok(written?),
        }
    }
}
