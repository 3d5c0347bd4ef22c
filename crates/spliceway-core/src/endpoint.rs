//! One end of a direction, with the properties of its descriptor. Each property is queried only
//! once and as late as possible, because most relays are short.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::reason::Reason;
use crate::socket::{self, Wait};
use crate::splice_through::{self, EndKind, ThroughEnd};
use crate::sys::{self, PollFlags};
use crate::transfer::Event;

#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    pub(crate) kind: EndKind,
    short_read_drains: Option<bool>,
    reports_every_byte: Option<bool>,
    is_fit: bool,
    guards_sigpipe: Option<bool>,
}

impl Endpoint {
    /// Prepares the end for splicing. Returns the reason if that is not possible. `splice(2)` obeys
    /// the end's own `O_NONBLOCK`, and does not preserve datagram boundaries. (A pipe has no
    /// datagrams, but it must not block in `read` and `write` either.)
    pub(crate) fn unfit_to_splice(&mut self, end: impl AsFd, wait: Wait) -> io::Result<Option<Reason>> {
        if self.is_fit {
            return Ok(None);
        }
        let end = end.as_fd();
        if self.kind == EndKind::Socket && !socket::is_stream(end)? {
            return Ok(Some(Reason::NotSupported));
        }
        if wait == Wait::Never {
            socket::set_nonblocking(end)?;
        }
        self.is_fit = true;
        Ok(None)
    }

    /// See [`socket::is_drained_by_a_short_receive`].
    pub(crate) fn short_read_drains(&mut self, source: BorrowedFd<'_>) -> bool {
        *self
            .short_read_drains
            .get_or_insert_with(|| socket::is_drained_by_a_short_receive(source))
    }

    /// Records the answer for a source whose origin is known.
    pub(crate) fn set_short_read_drains(&mut self) {
        self.short_read_drains = Some(true);
    }

    /// Probes a source. Returns `true` if it certainly has no byte, no end, no error and no urgent
    /// mark. Returns `false` if the kernel does not report every byte to pollers.
    pub(crate) fn is_drained(&mut self, source: BorrowedFd<'_>) -> bool {
        // TLS in the kernel may have bytes that it has not looked at.
        self.kind != EndKind::Tls
            && self.reports_every_byte(source)
            && sys::poll_source(source).is_ok_and(|events| events.is_empty())
    }

    fn reports_every_byte(&mut self, source: BorrowedFd<'_>) -> bool {
        *self
            .reports_every_byte
            .get_or_insert_with(|| socket::reports_every_byte(source))
    }

    /// Looks at a source without reading. Returns [`Event::SourceStopped`] if only a read can show
    /// what the source has.
    ///
    /// `MSG_PEEK` would skip bytes if the caller has set `SO_PEEK_OFF`, and would move the caller's
    /// position.
    pub(crate) fn peek(&mut self, source: BorrowedFd<'_>) -> Event {
        let has_bytes = || sys::bytes_to_read(source).is_ok_and(|bytes| bytes > 0);
        let events = match self.kind {
            EndKind::Socket => sys::poll_source(source).ok(),
            EndKind::Pipe | EndKind::Tls => None,
        };
        match events {
            Some(PollFlags::IN) => Event::Peeked,
            Some(events) if events.is_empty() && self.reports_every_byte(source) => Event::WouldBlock,
            // The end, an error or an urgent mark may come after bytes.
            _ if has_bytes() => Event::Peeked,
            _ => Event::SourceStopped,
        }
    }

    #[inline]
    pub(crate) fn send(&mut self, sink: BorrowedFd<'_>, bytes: &[u8], wait: Wait) -> io::Result<usize> {
        match self.kind {
            EndKind::Socket | EndKind::Tls => socket::send(sink, bytes, wait),
            EndKind::Pipe => {
                self.unfit_to_splice(sink, wait)?;
                splice_through::write(sink, bytes, self.guards_sigpipe())
            }
        }
    }

    pub(crate) fn at<'a>(&self, fd: BorrowedFd<'a>) -> ThroughEnd<'a> {
        ThroughEnd { fd, kind: self.kind }
    }

    /// Returns whether the `SIGPIPE` that a splice or a write raises would kill this process.
    pub(crate) fn guards_sigpipe(&mut self) -> bool {
        *self.guards_sigpipe.get_or_insert_with(sys::dies_of_sigpipe)
    }
}
