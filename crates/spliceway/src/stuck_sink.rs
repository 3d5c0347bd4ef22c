//! Waits for a sink that counts as writable in tokio although it is full.

use std::io;
use std::task::{Context, Poll, ready};

use spliceway_core::WriteEvents;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use crate::readiness::ReadySocket;

/// A sink whose readiness tokio cannot clear, because epoll has reported an error (`EPOLLERR`).
/// tokio takes the error for the end of the writing side. In fact, the caller's socket has
/// something in its error queue.
#[derive(Debug)]
pub(crate) struct StuckSink {
    events: AsyncFd<WriteEvents>,
    /// Whether the last write found no room.
    is_full: bool,
}

impl StuckSink {
    /// Records that a write to `sink` has found no room, if tokio cannot wait for the sink.
    ///
    /// Without a descriptor for the events, the direction tries to write again and again, and
    /// yields between the attempts.
    #[cold]
    pub(crate) fn note_full(stuck: &mut Option<Box<Self>>, sink: ReadySocket<'_>, cx: &mut Context<'_>) {
        if let Some(stuck) = stuck {
            stuck.is_full = true;
        } else if sink.counts_as_closed(cx) && Handle::try_current().is_ok() {
            *stuck = Self::new(sink).ok().map(Box::new);
        }
    }

    #[allow(
        deprecated,
        reason = "tokio's new constructor is unsafe, and `WriteEvents` keeps the rule for which it is"
    )]
    fn new(sink: ReadySocket<'_>) -> io::Result<Self> {
        Ok(Self {
            events: AsyncFd::with_interest(WriteEvents::of(sink)?, Interest::READABLE)?,
            is_full: true,
        })
    }

    /// Ready when the sink may have room. The first event may come before there is room.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_full {
            let mut readiness = ready!(self.events.poll_read_ready(cx))?;
            readiness.clear_ready();
            self.events.get_ref().clear();
            self.is_full = false;
        }
        Poll::Ready(Ok(()))
    }
}
