//! The calls a relay makes on a socket besides splice. Each retries EINTR.

use std::io;
use std::os::fd::AsFd;

use rustix::io::retry_on_intr;

use crate::sys::{self, Errno, RecvFlags, SendFlags};

/// What [`recv`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes now in the buffer; 0 is the end of the stream (for a buffer that is not empty).
    pub bytes: usize,
    /// Bytes that wait behind them, if the kernel said. 0 means that the next `recv` would find nothing. A short count of
    /// [`bytes`](Received::bytes) does not mean that: `recv` also stops short at an urgent mark.
    pub left: Option<usize>,
}

/// Whether a call may wait for the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Never (`MSG_DONTWAIT`), whatever the socket's own `O_NONBLOCK` says.
    Never,
    /// If the socket is a blocking one.
    IfBlocking,
}

/// A socket's answer to the question whether [`recv`] may ask for [`Received::left`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TellsLeft {
    /// TCP since Linux 4.18: `TCP_INQ` is now set on it.
    Yes,
    /// Every other socket.
    No,
}

/// Asks the kernel to tell with each receive how many bytes are left (`TCP_INQ`). One system call; harmless to every other
/// user of the socket, as only `recvmsg` with room for a control message sees the answer.
pub fn ask_left(socket: impl AsFd) -> TellsLeft {
    match sys::enable_inq(socket.as_fd()) {
        Ok(()) => TellsLeft::Yes,
        Err(_) => TellsLeft::No,
    }
}

/// `recv(2)`, or `recvmsg(2)` where the socket tells what is left.
///
/// # Errors
/// The socket's own; `WouldBlock` if it is drained and the call may not wait.
pub fn recv(socket: impl AsFd, tells: TellsLeft, buf: &mut [u8], wait: Wait) -> io::Result<Received> {
    let (socket, flags) = (socket.as_fd(), wait.recv_flags());
    let (bytes, left) = match tells {
        TellsLeft::Yes => retry_on_intr(|| sys::recv_inq(socket, buf, flags))?,
        TellsLeft::No => (retry_on_intr(|| sys::recv(socket, buf, flags))?, None),
    };
    Ok(Received { bytes, left })
}

/// Whether there is something to receive: `true`, or `false` at the end of the stream. Takes nothing.
///
/// # Errors
/// The socket's own; `WouldBlock` if it is drained and the call may not wait.
pub fn peek(socket: impl AsFd, wait: Wait) -> io::Result<bool> {
    let socket = socket.as_fd();
    Ok(retry_on_intr(|| sys::peek(socket, wait.recv_flags()))? > 0)
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
