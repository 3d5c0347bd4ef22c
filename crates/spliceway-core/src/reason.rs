use std::fmt;
#[cfg(target_os = "linux")]
use std::io;

#[cfg(target_os = "linux")]
use crate::sys::Errno;

/// The reason why bytes that might have been spliced are copied.
///
/// A reason is not an error, because the relay continues with `recv` and `send`. Programs should
/// count it and show it. Comparable projects lost zero copy for a year because their fallback was
/// not visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// One of the streams is not a plain socket or pipe. It is a TLS stream or a mock, for example.
    NotSockets,
    /// The caller asked for copying.
    Disabled,
    /// `EPERM` or `EACCES`: a security policy forbids the call, or the soft limit forbids a pipe of
    /// that size.
    NotPermitted,
    /// `ENOSYS`: this kernel, or a sandbox in front of it, does not provide this call.
    NotImplemented,
    /// `EINVAL`: this kind of descriptor cannot be spliced.
    InvalidArgument,
    /// `EBADF`: a descriptor is not open for this operation.
    BadDescriptor,
    /// `EOPNOTSUPP`, or a socket for datagrams or records: its protocol does not support splice.
    NotSupported,
    /// `ENOMEM` or `ENOBUFS`: the kernel has no memory for the call.
    NoMemory,
    /// `EMFILE`: this process has no descriptor left for a pipe.
    ProcessDescriptors,
    /// `ENFILE`: the system-wide limit on open files leaves no room for a pipe.
    SystemFiles,
    /// The pool has reached its limit on pipes.
    PipeBudget,
    /// The pool has reached its limit on pipe pages.
    PageBudget,
    /// The kernel grants only small pipes of a few slots, because this user exceeds
    /// `fs.pipe-user-pages-soft`.
    Undersized,
    /// The call failed with an error that is not listed here and is not an error of the stream.
    Unexpected,
}

/// How long a [`Reason`] to copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The reason holds for every socket of this process. The process tries again only
    /// occasionally.
    Process,
    /// The reason holds for this relay permanently, because its descriptors are the cause.
    Relay,
    /// The reason holds only at this moment. The relay tries again after it has moved more bytes.
    Moment,
}

impl Reason {
    /// All reasons, for code that keeps a count for each of them.
    pub const ALL: [Self; 14] = [
        Self::NotSockets,
        Self::Disabled,
        Self::NotPermitted,
        Self::NotImplemented,
        Self::InvalidArgument,
        Self::BadDescriptor,
        Self::NotSupported,
        Self::NoMemory,
        Self::ProcessDescriptors,
        Self::SystemFiles,
        Self::PipeBudget,
        Self::PageBudget,
        Self::Undersized,
        Self::Unexpected,
    ];

    /// Returns a stable name in lower case with underscores, suitable as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSockets => "not_sockets",
            Self::Disabled => "disabled",
            Self::NotPermitted => "eperm",
            Self::NotImplemented => "enosys",
            Self::InvalidArgument => "einval",
            Self::BadDescriptor => "ebadf",
            Self::NotSupported => "eopnotsupp",
            Self::NoMemory => "enomem",
            Self::ProcessDescriptors => "emfile",
            Self::SystemFiles => "enfile",
            Self::PipeBudget => "pipe_budget",
            Self::PageBudget => "page_budget",
            Self::Undersized => "undersized",
            Self::Unexpected => "unexpected",
        }
    }

    /// Returns how long this reason holds.
    #[must_use]
    pub const fn scope(self) -> Scope {
        match self {
            Self::NotPermitted | Self::NotImplemented => Scope::Process,
            Self::NotSockets
            | Self::Disabled
            | Self::InvalidArgument
            | Self::BadDescriptor
            | Self::NotSupported
            | Self::Unexpected => Scope::Relay,
            Self::NoMemory
            | Self::ProcessDescriptors
            | Self::SystemFiles
            | Self::PipeBudget
            | Self::PageBudget
            | Self::Undersized => Scope::Moment,
        }
    }
}

#[cfg(target_os = "linux")]
impl Reason {
    /// Returns the reason to copy that follows from this `errno` of `splice(2)` or `pipe2(2)`.
    /// Returns `None` if the stream is broken.
    ///
    /// The match lists the errors that give `None`, because a sandbox may return any other error. A
    /// few errors can mean either: see [`socket::has_failed`](crate::socket).
    pub(crate) const fn of_errno(errno: Errno) -> Option<Self> {
        match errno {
            Errno::PERM | Errno::ACCESS => Some(Self::NotPermitted),
            Errno::NOSYS => Some(Self::NotImplemented),
            Errno::INVAL => Some(Self::InvalidArgument),
            Errno::BADF => Some(Self::BadDescriptor),
            Errno::OPNOTSUPP => Some(Self::NotSupported),
            Errno::NOMEM | Errno::NOBUFS => Some(Self::NoMemory),
            Errno::MFILE => Some(Self::ProcessDescriptors),
            Errno::NFILE => Some(Self::SystemFiles),
            Errno::BADMSG
            | Errno::CONNABORTED
            | Errno::CONNREFUSED
            | Errno::CONNRESET
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::MSGSIZE
            | Errno::NETDOWN
            | Errno::NETRESET
            | Errno::NETUNREACH
            | Errno::NONET
            | Errno::NOPROTOOPT
            | Errno::NOTCONN
            | Errno::PIPE
            | Errno::PROTO
            | Errno::SHUTDOWN
            | Errno::TIMEDOUT => None,
            _ => Some(Self::Unexpected),
        }
    }

    /// Converts an error of `pipe2(2)` to the reason why there is no pipe.
    pub(crate) fn of_error(error: &io::Error) -> Self {
        Errno::from_io_error(error)
            .and_then(Self::of_errno)
            .unwrap_or(Self::NoMemory)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
