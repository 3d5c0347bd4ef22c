//! Waits for room in a socket whose state a runtime cannot see.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::sys;

/// An epoll instance that watches one sink. It becomes readable at each event that may have made
/// room in the sink, or that may have broken it.
///
/// A runtime that keeps the report of a failed socket never waits for that socket again. Linux also
/// reports a failure (`EPOLLERR`) while the socket's error queue holds something, for example a
/// completion of the caller's `MSG_ZEROCOPY`. The queue belongs to the caller, so nobody may empty
/// it. This instance reports each event only once (`EPOLLET`).
#[derive(Debug)]
pub struct WriteEvents(OwnedFd);

impl WriteEvents {
    /// Watches `sink`, which the caller must keep open.
    ///
    /// # Errors
    /// The errors of `epoll_create1(2)` and `epoll_ctl(2)`: `EMFILE`, `ENFILE`, `ENOMEM`, `ENOSPC`.
    pub fn of(sink: impl AsFd) -> io::Result<Self> {
        Ok(Self(sys::write_events(sink.as_fd())?))
    }

    /// Discards the reported events. The next event makes the instance readable again.
    pub fn clear(&self) {
        sys::discard_events(self.0.as_fd());
    }
}

impl AsFd for WriteEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for WriteEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
