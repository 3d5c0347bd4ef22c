//! One end of a direction: what was asked of it, and how it is written to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::pipe_end::{self, EndKind, PassEnd};
use crate::reason::Reason;
use crate::socket::{self, Wait};
use crate::sys;

/// What was asked of an end, once and as late as possible: most relays are short.
#[derive(Debug, Default)]
pub(super) struct End {
    pub(super) kind: EndKind,
    short_drains: Option<bool>,
    fit: Fit,
}

/// Whether an end is known to be fit to be spliced.
#[derive(Clone, Copy, Debug, Default)]
enum Fit {
    #[default]
    NotAsked,
    Yes {
        /// Whether this process would die of the `SIGPIPE` that a splice or a write raises, if that was asked.
        guards_sigpipe: Option<bool>,
    },
}

impl End {
    /// Makes it fit to be spliced, before it first is: splice obeys an end's own `O_NONBLOCK`, and takes no heed of where a
    /// datagram ends. The reason if it cannot be made so. (A pipe has no datagrams, and is to be read and written as well.)
    pub(super) fn unfit_to_splice(&mut self, end: impl AsFd, wait: Wait) -> io::Result<Option<Reason>> {
        if self.is_fit() {
            return Ok(None);
        }
        let end = end.as_fd();
        if self.kind == EndKind::Socket && !socket::is_stream(end)? {
            return Ok(Some(Reason::NotSupported));
        }
        if wait == Wait::Never {
            socket::set_nonblocking(end)?;
        }
        self.fit = Fit::Yes { guards_sigpipe: None };
        Ok(None)
    }

    /// Whether it is known to be fit to be spliced.
    pub(super) fn is_fit(&self) -> bool {
        matches!(self.fit, Fit::Yes { .. })
    }

    /// See [`socket::is_drained_by_a_short_receive`].
    pub(super) fn short_drains(&mut self, source: BorrowedFd<'_>) -> bool {
        let ask = || socket::is_drained_by_a_short_receive(source);
        *self.short_drains.get_or_insert_with(ask)
    }

    #[inline]
    pub(super) fn send(&mut self, sink: BorrowedFd<'_>, bytes: &[u8], wait: Wait) -> io::Result<usize> {
        match self.kind {
            EndKind::Socket => socket::send(sink, bytes, wait),
            EndKind::Pipe => {
                self.unfit_to_splice(sink, wait)?;
                let guards_sigpipe = self.guards_sigpipe();
                pipe_end::write(sink, bytes, guards_sigpipe)
            }
        }
    }

    pub(super) fn at<'a>(&self, fd: BorrowedFd<'a>) -> PassEnd<'a> {
        PassEnd { fd, kind: self.kind }
    }

    /// Of an end that is fit.
    pub(super) fn guards_sigpipe(&mut self) -> bool {
        match &mut self.fit {
            Fit::NotAsked => sys::dies_of_sigpipe(),
            Fit::Yes { guards_sigpipe } => *guards_sigpipe.get_or_insert_with(sys::dies_of_sigpipe),
        }
    }
}
