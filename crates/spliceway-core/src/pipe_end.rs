//! A pipe of the caller's at one end of a direction, or at both: one splice moves the bytes, with no pipe between. This file alone
//! says what `EAGAIN` and 0 of that splice mean.

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

/// An end as [`pass`] takes it.
pub(crate) struct PassEnd<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) kind: EndKind,
}

/// What [`pass`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// This many bytes went from the source to the sink, more than 0.
    Moved(usize),
    /// Nothing to splice: the source is drained, ended, *or* stands at an urgent mark, which splice does not pass; or the sink is a pipe
    /// that nobody reads. A read tells which, and the write that follows.
    SourceStopped,
    /// The sink takes nothing now.
    SinkWouldBlock,
    /// These two cannot be spliced, now or at all.
    Cannot(Reason),
    /// Neither can they, for want of a call that splicing needs besides.
    CannotAsk(Reason),
}

/// `splice(source → sink)`, once, for at most `most` bytes. Neither must block.
///
/// A pipe is asked first how many bytes it holds: to splice more than there is corks a TCP sink. (Where others read from it too that
/// may happen all the same, and the last bytes come late.) Splice says `EAGAIN` both of an empty source and of a full sink. Where
/// that is said, the sink is asked: bytes may have come to the source since.
///
/// # Errors
/// That of a stream, and whose it is.
pub(crate) fn pass(
    source: &PassEnd<'_>,
    sink: &PassEnd<'_>,
    most: usize,
    guards_sigpipe: bool,
) -> Result<Pass, (Side, io::Error)> {
    let there = match source.kind {
        EndKind::Socket => most,
        EndKind::Pipe => match sys::bytes_to_read(source.fd) {
            Ok(waiting) => most.min(waiting),
            Err(errno) => return cannot_ask(errno, Side::Source),
        },
    };
    if there == 0 {
        return Ok(Pass::SourceStopped);
    }
    let splice = if guards_sigpipe {
        sys::splice_without_sigpipe
    } else {
        sys::splice
    };
    match retry_on_intr(|| splice(source.fd, sink.fd, there)) {
        Ok(0) => Ok(Pass::SourceStopped),
        Ok(moved) => Ok(Pass::Moved(moved)),
        Err(Errno::AGAIN) => match sys::is_writable(sink.fd) {
            Ok(true) => Ok(Pass::SourceStopped),
            Ok(false) => Ok(Pass::SinkWouldBlock),
            Err(errno) => cannot_ask(errno, Side::Sink),
        },
        // Splice looks at the pipe before it looks at the socket, which may have nothing but its end.
        Err(Errno::PIPE) if source.kind == EndKind::Socket => Ok(Pass::SourceStopped),
        Err(errno) if source.kind == EndKind::Socket && socket::has_failed(source.fd, errno) => {
            Err((Side::Source, errno.into()))
        }
        Err(errno) => match (Reason::of_errno(errno), source.kind) {
            (Some(reason), _) => Ok(Pass::Cannot(reason)),
            (None, EndKind::Socket) => Err((Side::Source, errno.into())),
            // Which has no errors of its own to give.
            (None, EndKind::Pipe) => Err((Side::Sink, errno.into())),
        },
    }
}

fn cannot_ask(errno: Errno, side: Side) -> Result<Pass, (Side, io::Error)> {
    let reason = Reason::of_errno(errno).ok_or_else(|| (side, errno.into()));
    reason.map(Pass::CannotAsk)
}

/// Bytes in a pipe: `ioctl(FIONREAD)`. 0 may be its end.
///
/// # Errors
/// Of a descriptor that is no pipe, or a sandbox that forbids the call.
pub fn bytes_in_pipe(pipe: impl AsFd) -> io::Result<usize> {
    Ok(sys::bytes_to_read(pipe.as_fd())?)
}

/// `read(2)`; retries EINTR. 0 is the end: nobody is left who could write.
///
/// # Errors
/// `WouldBlock` if it is empty.
pub(crate) fn read(pipe: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| sys::read(pipe, buf))?)
}

/// `write(2)`; retries EINTR, and raises no `SIGPIPE` in a process that would die of it.
///
/// # Errors
/// `WouldBlock` if it is full; `BrokenPipe` if nobody is left who could read; `WriteZero` if it takes nothing of something.
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
