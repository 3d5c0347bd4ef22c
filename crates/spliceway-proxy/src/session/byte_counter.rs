//! Counts the bytes of a session for its user, and ends the session if a quota is used up.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use spliceway::RelayStats;
use tokio::sync::futures::OwnedNotified;

use crate::access::accounts::Account;
use crate::access::datagram_counts::DatagramStats;
use crate::session::facts::Session;

/// Counts after each poll of a relay or an association. A poll passes at most one poll budget and
/// one more read, so a quota is exceeded by at most that much in each session.
pub(super) struct ByteCounter {
    session: Arc<Session>,
    account: Arc<Account>,
    source: ByteSource,
    counted: u64,
    /// The next share of the quota, while the session waits for it.
    waits: Option<Pin<Box<OwnedNotified>>>,
}

/// Where the bytes are counted.
pub(super) enum ByteSource {
    Relay(RelayStats),
    Datagrams(DatagramStats),
}

impl ByteSource {
    fn bytes(&self) -> u64 {
        match self {
            Self::Relay(stats) => stats.snapshot().bytes(),
            Self::Datagrams(stats) => {
                let passed = stats.snapshot();
                passed.up.bytes + passed.down.bytes
            }
        }
    }
}

impl ByteCounter {
    /// Returns `None` for a session whose user has no limits. What has passed before does not
    /// count.
    pub(super) fn new(session: &Arc<Session>, source: ByteSource) -> Option<Box<Self>> {
        let account = Arc::clone(session.facts().account.as_ref()?.account());
        Some(Box::new(Self {
            session: Arc::clone(session),
            account,
            counted: source.bytes(),
            source,
            waits: None,
        }))
    }

    /// Polls what passes the bytes, and counts them. If a quota is used up, the session is cut, and
    /// its future is dropped after this call.
    fn poll<T>(&mut self, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        if self.account.is_used_up() {
            self.session.use_up();
            return Poll::Pending;
        }
        if self.poll_share(cx).is_pending() {
            return Poll::Pending;
        }
        let polled = poll(cx);
        let bytes = self.source.bytes();
        if bytes != self.counted {
            let is_used_up = self.account.count(bytes - self.counted);
            self.counted = bytes;
            if is_used_up {
                self.session.use_up();
            }
        }
        polled
    }

    /// Waits while another process may use what is left of the quota.
    fn poll_share(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.account.has_share() {
            match &mut self.waits {
                // It may have come before this call.
                None => self.waits = Some(Box::pin(self.account.next_share())),
                Some(next) => {
                    std::task::ready!(next.as_mut().poll(cx));
                    self.waits = None;
                }
            }
        }
        self.waits = None;
        Poll::Ready(())
    }
}

/// Polls what passes the bytes of a session, and counts them if its user has limits.
pub(super) fn poll_counted<T>(
    counter: &mut Option<Box<ByteCounter>>,
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    match counter {
        Some(counter) => counter.poll(cx, poll),
        None => poll(cx),
    }
}

/// Awaits a relay or an association, and counts after each of its polls.
pub(super) async fn counted<F: Future>(mut counter: Option<Box<ByteCounter>>, passing: F) -> F::Output {
    let mut passing = pin!(passing);
    poll_fn(|cx| poll_counted(&mut counter, cx, |cx| passing.as_mut().poll(cx))).await
}
