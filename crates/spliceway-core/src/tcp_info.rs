use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::sys;

/// What the kernel knows about a TCP connection (`TCP_INFO`), as its sender.
///
/// A value that the kernel does not know is 0. This holds for [`rtt`](Self::rtt) before the first
/// acknowledgement, and for `busy` and the fields after it before Linux 4.10.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// The number of segments that were sent again. Segments that met a full receive window count
    /// too.
    pub retransmitted: u32,
    /// The rate at which bytes recently arrived at the peer, in bytes per second.
    pub delivery_rate: u64,
    /// The time for which there were bytes that the peer had not acknowledged.
    pub busy: Duration,
    /// The part of `busy` in which the peer's receive window was full, because the peer's program
    /// did not read.
    pub receive_window_limited: Duration,
    /// The part of `busy` in which the socket's send buffer was too small.
    pub send_buffer_limited: Duration,
}

/// The places of fields in `struct tcp_info` (`include/uapi/linux/tcp.h`). The structure only grows
/// at its end.
const STATE: usize = 0;
const RTT: usize = 68;
const TOTAL_RETRANS: usize = 100;
const BYTES_ACKED: usize = 120;
const DELIVERY_RATE: usize = 160;
const BUSY_TIME: usize = 168;
const RWND_LIMITED: usize = 176;
const SNDBUF_LIMITED: usize = 184;
const LENGTH: usize = 192;

/// The state of a connection that has ended on both sides, or was reset (`TCP_CLOSE`).
const CLOSED: u8 = 7;

impl TcpInfo {
    /// Asks the kernel about a TCP socket, also after its connection has ended.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a TCP socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut info = [0; LENGTH];
        // An older kernel leaves the fields that it does not know at 0.
        sys::tcp_info(socket.as_fd(), &mut info)?;
        let number = |at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().expect("8 bytes"));
        let micros = |at| Duration::from_micros(long(at));
        Ok(Self {
            rtt: Duration::from_micros(number(RTT).into()),
            retransmitted: number(TOTAL_RETRANS),
            delivery_rate: long(DELIVERY_RATE),
            busy: micros(BUSY_TIME),
            receive_window_limited: micros(RWND_LIMITED),
            send_buffer_limited: micros(SNDBUF_LIMITED),
        })
    }
}

/// Returns how many bytes of a TCP socket its peer has acknowledged since the connection began.
pub(crate) fn acknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = [0; BYTES_ACKED + 8];
    sys::tcp_info(socket, &mut info)?;
    Ok(u64::from_ne_bytes(*info.last_chunk().expect("8 bytes")))
}

/// Returns whether the connection of a TCP socket is gone.
pub(crate) fn is_closed(socket: BorrowedFd<'_>) -> bool {
    let mut info = [0; STATE + 1];
    sys::tcp_info(socket, &mut info).is_ok() && info[STATE] == CLOSED
}
