//! The calls other than splice that a relay makes on a socket. Each call is retried on EINTR.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::retry_on_intr;

use crate::sys::{self, Errno, PollFlags, RecvFlags, SendFlags};
use crate::tcp_info;

/// Whether a call may wait for the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The call never waits (`MSG_DONTWAIT`), even if the socket is blocking.
    Never,
    /// The call waits if the socket is blocking.
    IfBlocking,
}

/// Returns whether a receive of fewer bytes than requested shows that the socket is drained. Bytes
/// after an urgent mark are an exception (see [`UrgentMarks`](crate::UrgentMarks)).
///
/// This holds for TCP. On other sockets, a receive ends where a record ends, or where the sender's
/// credentials change.
pub fn is_drained_by_a_short_receive(socket: impl AsFd) -> bool {
    sys::is_plain_tcp(socket.as_fd())
}

/// Calls `recv(2)`, and returns the number of bytes. If the buffer is not empty, 0 means the end of
/// the stream.
///
/// # Errors
/// The socket's own errors. `WouldBlock` if the socket is drained and the call may not wait.
pub fn recv(socket: impl AsFd, buf: &mut [u8], wait: Wait) -> io::Result<usize> {
    let socket = socket.as_fd();
    Ok(retry_on_intr(|| sys::recv(socket, buf, wait.recv_flags()))?)
}

/// Returns whether the `errno` of a splice is the error with which a TCP source failed, and not an
/// error of the call itself.
///
/// A router's answer can make the kernel give up a connection with `EACCES` or `EOPNOTSUPP`. The
/// kernel reports such an error once. A later receive would find a clean end.
pub(crate) fn source_has_failed(source: BorrowedFd<'_>, errno: Errno) -> bool {
    sink_has_failed(source, errno) && sys::bytes_to_read(source) == Ok(0)
}

/// Does the same as [`source_has_failed`] for a sink. A sink may still have bytes to receive.
pub(crate) fn sink_has_failed(sink: BorrowedFd<'_>, errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::OPNOTSUPP)
        && sys::is_plain_tcp(sink)
        && sys::poll_source(sink).is_ok_and(|events| events.contains(PollFlags::HUP))
}

/// Returns whether the kernel reports a single byte to pollers. It does unless `SO_RCVLOWAT` was
/// changed.
pub(crate) fn reports_every_byte(socket: impl AsFd) -> bool {
    sys::receive_low_water_mark(socket.as_fd()).is_ok_and(|bytes| bytes <= 1)
}

/// Returns the number of bytes that the peer of a TCP socket has not acknowledged (`SIOCOUTQ`). A
/// FIN that was sent counts as one byte. The kernel still counts the bytes of a connection that was
/// reset, but no peer acknowledges them, so this returns 0.
///
/// # Errors
/// A connected TCP socket causes no errors.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    let socket = socket.as_fd();
    let bytes = sys::unacknowledged(socket)?;
    Ok(if tcp_info::is_closed(socket) { 0 } else { bytes })
}

/// Calls `send(2)` with `MSG_NOSIGNAL`.
///
/// # Errors
/// The socket's own errors. `WouldBlock` if the socket is full and the call may not wait.
/// `WriteZero` if the socket accepts none of the bytes.
pub fn send(socket: impl AsFd, bytes: &[u8], wait: Wait) -> io::Result<usize> {
    let socket = socket.as_fd();
    match retry_on_intr(|| sys::send(socket, bytes, wait.send_flags()))? {
        0 if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
        sent => Ok(sent),
    }
}

/// Makes a blocking socket non-blocking. `splice(2)` needs this, because it has no flag of its own
/// for the socket's side.
///
/// # Errors
/// An open socket causes no errors.
pub fn set_nonblocking(socket: impl AsFd) -> io::Result<()> {
    Ok(sys::set_nonblocking(socket.as_fd())?)
}

/// Returns whether the descriptor is a stream (`SOCK_STREAM`).
///
/// `splice(2)` also accepts datagrams and records, and does not preserve their boundaries. A
/// descriptor that is not a socket has no records, so it counts as a stream.
///
/// # Errors
/// An open descriptor causes no errors.
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
