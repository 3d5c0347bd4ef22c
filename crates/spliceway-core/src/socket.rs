//! The calls a relay makes on a socket besides splice. Each retries EINTR.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::retry_on_intr;

use crate::sys::{self, Errno, PollFlags, RecvFlags, SendFlags};

/// Whether a call may wait for the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Never (`MSG_DONTWAIT`), whatever the socket's own `O_NONBLOCK` says.
    Never,
    /// If the socket is a blocking one.
    IfBlocking,
}

/// Whether a receive that brings less than was asked for has drained the socket, except for bytes behind an urgent mark (see
/// [`UrgentMarks`](crate::UrgentMarks)). This holds for TCP. Other sockets end a receive where a record ends, or where the
/// sender's credentials change.
pub fn is_drained_by_a_short_receive(socket: impl AsFd) -> bool {
    sys::is_plain_tcp(socket.as_fd())
}

/// `recv(2)`: bytes, of which 0 is the end of the stream (for a buffer that is not empty).
///
/// # Errors
/// The socket's own; `WouldBlock` if it is drained and the call may not wait.
pub fn recv(socket: impl AsFd, buf: &mut [u8], wait: Wait) -> io::Result<usize> {
    let socket = socket.as_fd();
    Ok(retry_on_intr(|| sys::recv(socket, buf, wait.recv_flags()))?)
}

/// Whether there is something to receive: `true`, or `false` at the end of the stream. Takes nothing.
///
/// # Errors
/// The socket's own; `WouldBlock` if it is drained and the call may not wait.
pub fn peek(socket: impl AsFd, wait: Wait) -> io::Result<bool> {
    let socket = socket.as_fd();
    Ok(retry_on_intr(|| sys::peek(socket, wait.recv_flags()))? > 0)
}

/// Whether `errno` of a splice is the error that a TCP source failed with, and not the call's own: a router's answers make the kernel give
/// up with either of these two. The kernel tells such an error once, and a receive would then find a clean end.
pub(crate) fn has_failed(source: BorrowedFd<'_>, errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::OPNOTSUPP)
        && sys::is_plain_tcp(source)
        && sys::poll_source(source).is_ok_and(|told| told.contains(PollFlags::HUP))
        && matches!(peek(source, Wait::Never), Ok(false))
}

/// Whether pollers are told of a single byte, as they are unless `SO_RCVLOWAT` was changed.
pub(crate) fn reports_every_byte(socket: impl AsFd) -> bool {
    sys::receive_low_water_mark(socket.as_fd()).is_ok_and(|bytes| bytes <= 1)
}

/// Bytes of a TCP socket that its peer has not acknowledged (`SIOCOUTQ`). An end of stream that was sent counts as one.
///
/// # Errors
/// None that a connected TCP socket has.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    Ok(sys::unacknowledged(socket.as_fd())?)
}

/// `send(2)` with `MSG_NOSIGNAL`.
///
/// # Errors
/// The socket's own; `WouldBlock` if it is full and the call may not wait; `WriteZero` if it takes nothing of something.
pub fn send(socket: impl AsFd, bytes: &[u8], wait: Wait) -> io::Result<usize> {
    let socket = socket.as_fd();
    match retry_on_intr(|| sys::send(socket, bytes, wait.send_flags()))? {
        0 if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
        sent => Ok(sent),
    }
}

/// Makes a socket that blocks a non-blocking one. `splice(2)` needs that: it has no flag of its own for the socket's side.
///
/// # Errors
/// None that an open socket has.
pub fn set_nonblocking(socket: impl AsFd) -> io::Result<()> {
    Ok(sys::set_nonblocking(socket.as_fd())?)
}

/// Whether it is a stream (`SOCK_STREAM`). splice takes datagrams and records too, and loses where each ends. What is no socket has
/// no records.
///
/// # Errors
/// None that an open descriptor has.
pub fn is_stream(socket: impl AsFd) -> io::Result<bool> {
    match sys::is_stream(socket.as_fd()) {
        Err(Errno::NOTSOCK) => Ok(true),
        outcome => Ok(outcome?),
    }
}

impl Wait {
    fn recv_flags(self) -> RecvFlags {
        match self {
            Self::Never => RecvFlags::DONTWAIT,
            Self::IfBlocking => RecvFlags::empty(),
        }
    }

    fn send_flags(self) -> SendFlags {
        match self {
            Self::Never => SendFlags::DONTWAIT,
            Self::IfBlocking => SendFlags::empty(),
        }
    }
}
