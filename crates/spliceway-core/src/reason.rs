use std::fmt;
use std::io;

use crate::sys::Errno;

/// Why bytes are copied that might have been spliced.
///
/// Not an error: the relay goes on by `recv` and `send`. It is a fact to count and to show, because a fallback that
/// nobody sees is how peers lost their zero copy for a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// One of the streams is no plain socket or pipe (a TLS stream, a mock …).
    NotSockets,
    /// The caller asked for copying.
    Disabled,
    /// `EPERM` or `EACCES`: a security policy forbids the call (or the soft limit forbids a pipe of that size).
    NotPermitted,
    /// `ENOSYS`: this kernel, or a sandbox in front of it, has no such call.
    NotImplemented,
    /// `EINVAL`: this kind of descriptor cannot be spliced.
    InvalidArgument,
    /// `EBADF`: a descriptor is not open for this kind of use.
    BadDescriptor,
    /// `EOPNOTSUPP`, or a socket of datagrams or records: its protocol does not splice.
    NotSupported,
    /// `ENOMEM` or `ENOBUFS`.
    NoMemory,
    /// `EMFILE`: this process has no descriptor left for a pipe.
    ProcessDescriptors,
    /// `ENFILE`: the system has no file left for a pipe.
    SystemFiles,
    /// The pool's limit on pipes is reached.
    PipeBudget,
    /// The pool's limit on pipe pages is reached.
    PageBudget,
    /// The kernel grants only pipes of a few slots: this user is past `fs.pipe-user-pages-soft`.
    Undersized,
    /// An error of the call that has no name here, and is none of the stream's.
    Unexpected,
}

/// How long a [`Reason`] to copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every socket of this process: it is tried again only now and then.
    Process,
    /// This relay, for good: it lies in its descriptors.
    Relay,
    /// This moment: it is tried again after some more bytes.
    Moment,
}

impl Reason {
    /// Every reason, for whoever keeps a count of each.
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

    /// A stable name in lower case and underscores, fit for a metric's label.
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

    /// How long this reason holds.
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

    /// The reason that `errno` of `splice(2)` or `pipe2(2)` gives to copy instead; `None` where it is a broken stream.
    ///
    /// Only the errors of a stream are listed, because a sandbox may answer with any other. A few are of both kinds: see
    /// [`socket::has_failed`](crate::socket).
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
}

impl Reason {
    /// The reason there is no pipe, of an error of `pipe2(2)`.
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
