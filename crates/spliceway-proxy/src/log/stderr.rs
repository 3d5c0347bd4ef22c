//! The log on stderr: its queue, and the writers on both of its ends.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{LazyLock, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

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
        let format = STARTED.get().map(|look| look.format).unwrap_or_default();
        let message =
            format!("spliceway: {dropped} log lines were dropped: the log reader is too slow, or a write failed");
        Report::Line(announcement(format, &message))
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
