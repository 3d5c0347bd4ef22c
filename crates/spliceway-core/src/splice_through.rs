//! Splices between the caller's own pipe and another end, with no pipe in between. Only this file
//! interprets the results `EAGAIN` and 0 of such a splice.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::retry_on_intr;

use crate::reason::Reason;
use crate::socket;
use crate::sys::{self, Errno};

/// The kind of descriptor at one end of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndKind {
    /// A socket.
    #[default]
    Socket,
    /// One end of a pipe or FIFO.
    Pipe,
    /// A TCP socket with TLS in the kernel. The other end must be a socket too.
    Tls,
}

/// An end of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that bytes are read from.
    Source,
    /// The end that bytes are written to.
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
    /// This many bytes, more than 0, went from the source to the sink.
    Moved(usize),
    /// There is nothing to splice. The source is drained, has ended, *or* is at an urgent mark,
    /// which splice does not step over. It is also possible that the sink is a pipe without a
    /// reader. A read and the write that follows it show the cause.
    SourceStopped,
    /// The sink is full.
    SinkWouldBlock,
    /// These two ends cannot be spliced, now or at all.
    Cannot(Reason),
    /// Another call that this splice needs (`FIONREAD` or `poll`) is not possible.
    CannotAsk(Reason),
}

/// Calls `splice(source → sink)` once, for at most `max` bytes. Both ends must be non-blocking.
///
/// If the source is a pipe, the function first queries how many bytes the pipe holds. A splice of
/// more bytes would cork a TCP sink. (If other readers also use the pipe, this can still happen,
/// and the last bytes arrive late.)
///
/// `splice(2)` returns `EAGAIN` both for an empty source and for a full sink. The function then
/// checks the sink, because new bytes may have reached the source since the splice.
///
/// # Errors
/// The error of a stream, with the side that failed.
pub(crate) fn splice_through(
    source: &ThroughEnd<'_>,
    sink: &ThroughEnd<'_>,
    max: usize,
    guards_sigpipe: bool,
) -> Result<Through, (Side, io::Error)> {
    let there = match source.kind {
        EndKind::Socket | EndKind::Tls => max,
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
        // `splice(2)` checks the pipe before it checks the socket, which may be at its end.
        Err(Errno::PIPE) if source.kind == EndKind::Socket => Ok(Through::SourceStopped),
        Err(errno) if source.kind == EndKind::Socket && socket::source_has_failed(source.fd, errno) => {
            Err((Side::Source, errno.into()))
        }
        Err(errno) if sink.kind == EndKind::Socket && socket::sink_has_failed(sink.fd, errno) => {
            Err((Side::Sink, errno.into()))
        }
        Err(errno) => match (Reason::of_errno(errno), source.kind) {
            (Some(reason), _) => Ok(Through::Cannot(reason)),
            (None, EndKind::Socket | EndKind::Tls) => Err((Side::Source, errno.into())),
            // A pipe as the source has no errors of its own.
            (None, EndKind::Pipe) => Err((Side::Sink, errno.into())),
        },
    }
}

fn cannot_ask(errno: Errno, side: Side) -> Result<Through, (Side, io::Error)> {
    let reason = Reason::of_errno(errno).ok_or_else(|| (side, errno.into()));
    reason.map(Through::CannotAsk)
}

/// Returns the number of bytes in a pipe (`ioctl(FIONREAD)`). 0 may mean that the pipe has ended.
///
/// # Errors
/// If the descriptor is not a pipe, or if a sandbox forbids the call.
pub fn bytes_in_pipe(pipe: impl AsFd) -> io::Result<usize> {
    Ok(sys::bytes_to_read(pipe.as_fd())?)
}

/// Calls `read(2)`, and retries on EINTR. 0 means the end of the stream: the pipe no longer has a
/// writer.
///
/// # Errors
/// `WouldBlock` if the pipe is empty.
pub(crate) fn read(pipe: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| sys::read(pipe, buf))?)
}

/// Calls `write(2)`, and retries on EINTR. If `guards_sigpipe` is set, the call suppresses the
/// `SIGPIPE` that would kill the process.
///
/// # Errors
/// `WouldBlock` if the pipe is full. `BrokenPipe` if it no longer has a reader. `WriteZero` if it
/// accepts no bytes.
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
