//! The system calls that can be made to fail, and how to distinguish them.

use std::fs;
use std::path::Path;

use crate::sys::{Notice, Watched};

/// A kind of system call that a relay, or a program around it, makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `splice(2)` from a socket into a pipe.
    SpliceIn,
    /// `splice(2)` from a pipe into a socket.
    SpliceOut,
    /// `pipe2(2)`.
    Pipe,
    /// `fcntl(F_SETPIPE_SZ)`.
    SetPipeSize,
    /// `recvfrom(2)` without `MSG_PEEK`.
    Recv,
    /// `recvfrom(2)` with `MSG_PEEK`.
    Peek,
    /// `sendto(2)`.
    Send,
    /// `read(2)` from a pipe.
    ReadPipe,
    /// `ioctl(FIONREAD)`.
    BytesToRead,
    /// `accept4(2)`.
    Accept,
    /// `ppoll(2)`.
    Poll,
}

impl Call {
    /// Returns the pattern that the kernel filter matches for this kind. The pattern may match
    /// other kinds too. [`Call::of`] then distinguishes them.
    pub(crate) fn watched(self) -> Watched {
        let (number, argument) = match self {
            Self::SpliceIn | Self::SpliceOut => (libc::SYS_splice, None),
            Self::Pipe => (libc::SYS_pipe2, None),
            Self::SetPipeSize => (libc::SYS_fcntl, Some((1, libc::F_SETPIPE_SZ as u32))),
            Self::Recv | Self::Peek => (libc::SYS_recvfrom, None),
            Self::Send => (libc::SYS_sendto, None),
            Self::ReadPipe => (libc::SYS_read, None),
            Self::BytesToRead => (libc::SYS_ioctl, Some((1, libc::FIONREAD as u32))),
            Self::Accept => (libc::SYS_accept4, None),
            Self::Poll => (libc::SYS_ppoll, None),
        };
        Watched {
            number: number as u32,
            argument,
        }
    }

    /// Returns the kind of this call, or `None` if it is not a known kind.
    pub(crate) fn of(notice: &Notice) -> Option<Self> {
        Some(match notice.number {
            libc::SYS_splice if is_pipe(notice, 0) => Self::SpliceOut,
            libc::SYS_splice => Self::SpliceIn,
            libc::SYS_pipe2 => Self::Pipe,
            libc::SYS_fcntl => Self::SetPipeSize,
            libc::SYS_recvfrom if notice.arguments[3] as i32 & libc::MSG_PEEK != 0 => Self::Peek,
            libc::SYS_recvfrom => Self::Recv,
            libc::SYS_sendto => Self::Send,
            libc::SYS_read if is_pipe(notice, 0) => Self::ReadPipe,
            libc::SYS_ioctl => Self::BytesToRead,
            libc::SYS_accept4 => Self::Accept,
            libc::SYS_ppoll => Self::Poll,
            _ => return None,
        })
    }
}

/// Returns whether this argument is a pipe descriptor in the caller's own table. The caller is
/// stopped during this check.
fn is_pipe(notice: &Notice, argument: usize) -> bool {
    let link = format!("/proc/{}/fd/{}", notice.thread, notice.arguments[argument] as i32);
    fs::read_link(Path::new(&link)).is_ok_and(|target| target.to_string_lossy().starts_with("pipe:"))
}
