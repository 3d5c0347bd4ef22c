//! Splices between a pipe of the caller's and another end, with no pipe in between. Only this file interprets `EAGAIN`
//! and 0 of such a splice.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::retry_on_intr;

use crate::reason::Reason;
use crate::socket;
use crate::sys::{self, Errno};

/// What an end of a direction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndKind {
    /// A socket.
    #[default]
    Socket,
    /// One end of a pipe or FIFO.
    Pipe,
}

/// An end of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where the bytes come from.
    Source,
    /// Where they go.
    Sink,
}

/// One end of [`splice_through`].
pub(crate) struct ThroughEnd<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) kind: EndKind,
}

/// The outcome of [`splice_through`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    /// This many bytes went from the source to the sink, more than 0.
    Moved(usize),
    /// Nothing to splice: the source is drained, ended, *or* at an urgent mark, which splice does not step over; or the
    /// sink is a pipe without a reader. A read tells which, and the write that follows.
    SourceStopped,
    /// The sink takes nothing now.
    SinkWouldBlock,
    /// These two cannot be spliced, now or at all.
    Cannot(Reason),
    /// A call that splicing needs besides is not possible.
    CannotAsk(Reason),
}

/// `splice(source → sink)`, once, for at most `max` bytes. Neither end may block.
///
/// A source that is a pipe is asked first how many bytes it holds, because a splice of more than there is corks a TCP
/// sink. (If others read from the pipe as well, that can happen all the same, and the last bytes come late.) Splice
/// returns `EAGAIN` both for an empty source and for a full sink. Then the sink is asked, because bytes may have come to
/// the source since.
///
/// # Errors
/// That of a stream, and whose it is.
pub(crate) fn splice_through(
    source: &ThroughEnd<'_>,
    sink: &ThroughEnd<'_>,
    max: usize,
    guards_sigpipe: bool,
) -> Result<Through, (Side, io::Error)> {
    let there = match source.kind {
        EndKind::Socket => max,
        EndKind::Pipe => match sys::bytes_to_read(source.fd) {
            Ok(waiting) => max.min(waiting),
            Err(errno) => return cannot_ask(errno, Side::Source),
        },
    };
    if there == 0 {
        return Ok(Through::SourceStopped);
    }
    let splice = if guards_sigpipe {
        sys::splice_without_sigpipe
    } else {
        sys::splice
    };
    match retry_on_intr(|| splice(source.fd, sink.fd, there)) {
        Ok(0) => Ok(Through::SourceStopped),
        Ok(moved) => Ok(Through::Moved(moved)),
        Err(Errno::AGAIN) => match sys::is_writable(sink.fd) {
            Ok(true) => Ok(Through::SourceStopped),
            Ok(false) => Ok(Through::SinkWouldBlock),
            Err(errno) => cannot_ask(errno, Side::Sink),
        },
        // Splice checks the pipe before it checks the socket, which may be at its end.
        Err(Errno::PIPE) if source.kind == EndKind::Socket => Ok(Through::SourceStopped),
        Err(errno) if source.kind == EndKind::Socket && socket::has_failed(source.fd, errno) => {
            Err((Side::Source, errno.into()))
        }
        Err(errno) => match (Reason::of_errno(errno), source.kind) {
            (Some(reason), _) => Ok(Through::Cannot(reason)),
            (None, EndKind::Socket) => Err((Side::Source, errno.into())),
            // Which has no errors of its own to give.
            (None, EndKind::Pipe) => Err((Side::Sink, errno.into())),
        },
    }
}

fn cannot_ask(errno: Errno, side: Side) -> Result<Through, (Side, io::Error)> {
    let reason = Reason::of_errno(errno).ok_or_else(|| (side, errno.into()));
    reason.map(Through::CannotAsk)
}

/// Bytes in a pipe: `ioctl(FIONREAD)`. 0 may be its end.
///
/// # Errors
/// Of a descriptor that is no pipe, or a sandbox that forbids the call.
pub fn bytes_in_pipe(pipe: impl AsFd) -> io::Result<usize> {
    Ok(sys::bytes_to_read(pipe.as_fd())?)
}

/// `read(2)`; retries EINTR. 0 is the end: the pipe has no writer any more.
///
/// # Errors
/// `WouldBlock` if it is empty.
pub(crate) fn read(pipe: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| sys::read(pipe, buf))?)
}

/// `write(2)`; retries EINTR, and raises no `SIGPIPE` in a process that would die of it.
///
/// # Errors
/// `WouldBlock` if it is full; `BrokenPipe` if it has no reader any more; `WriteZero` if it takes nothing.
pub(crate) fn write(pipe: BorrowedFd<'_>, bytes: &[u8], guards_sigpipe: bool) -> io::Result<usize> {
    let write = if guards_sigpipe {
        sys::write_without_sigpipe
    } else {
        sys::write
    };
    match retry_on_intr(|| write(pipe, bytes))? {
        0 if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
        written => Ok(written),
    }
}
