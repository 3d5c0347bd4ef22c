//! The three calls a relay makes on a socket besides splice. Each retries EINTR and obeys the socket's own `O_NONBLOCK`.

use std::io;
use std::os::fd::AsFd;

use rustix::io::retry_on_intr;

use crate::sys;

/// What [`recv`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes now in the buffer; 0 is the end of the stream (for a buffer that is not empty).
    pub bytes: usize,
    /// Bytes that wait behind them, if the kernel said. 0 means that the next `recv` would find nothing. A short count of
    /// [`bytes`](Received::bytes) does not mean that: `recv` also stops short at an urgent mark.
    pub left: Option<usize>,
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
/// The socket's own; `WouldBlock` if it is non-blocking and drained.
pub fn recv(socket: impl AsFd, tells: TellsLeft, buf: &mut [u8]) -> io::Result<Received> {
    let socket = socket.as_fd();
    let (bytes, left) = match tells {
        TellsLeft::Yes => retry_on_intr(|| sys::recv_inq(socket, buf))?,
        TellsLeft::No => (retry_on_intr(|| sys::recv(socket, buf))?, None),
    };
    Ok(Received { bytes, left })
}

/// Whether there is something to receive: `true`, or `false` at the end of the stream. Takes nothing.
///
/// # Errors
/// The socket's own; `WouldBlock` if it is non-blocking and drained.
pub fn peek(socket: impl AsFd) -> io::Result<bool> {
    let socket = socket.as_fd();
    Ok(retry_on_intr(|| sys::peek(socket))? > 0)
}

/// `send(2)` with `MSG_NOSIGNAL`.
///
/// # Errors
/// The socket's own; `WouldBlock` if it is non-blocking and full; `WriteZero` if it takes nothing of something.
pub fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let socket = socket.as_fd();
    match retry_on_intr(|| sys::send(socket, bytes))? {
        0 if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
        sent => Ok(sent),
    }
}
