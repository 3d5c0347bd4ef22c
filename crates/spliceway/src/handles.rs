//! The handles of a relay, and what they share with it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use spliceway_core::{Counts, Waits};

use crate::cancel::Cancel;
use crate::outcome::{EndReason, Peer, RelaySummary};

/// State that the relay shares with its handles.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) a_to_b: Counts,
    pub(crate) b_to_a: Counts,
    pub(crate) first_eof: OnceLock<Peer>,
    pub(crate) end: OnceLock<EndReason>,
    pub(crate) cancel: Cancel,
}

impl Shared {
    /// Records that the direction whose source is `peer` has ended. Returns `true`.
    pub(crate) fn has_ended(&self, peer: Peer, counts: &Counts) -> bool {
        if self.first_eof.get().is_none() && counts.is_eof() {
            let _ = self.first_eof.set(peer);
        }
        true
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.a_to_b.bytes() + self.b_to_a.bytes()
    }

    pub(crate) fn summary(&self) -> RelaySummary {
        RelaySummary {
            a_to_b: self.a_to_b.snapshot(),
            b_to_a: self.b_to_a.snapshot(),
            first_eof: self.first_eof.get().copied(),
            end: self.end.get().copied().unwrap_or_default(),
        }
    }
}

/// A handle to a relay's live counts. It is cheap and lock-free. It works from any thread, while
/// the relay runs and afterwards.
#[derive(Clone, Debug)]
pub struct RelayStats(pub(crate) Arc<Shared>);

impl RelayStats {
    /// Returns the current counts. Each count is exact. While the relay runs, the counts may be
    /// from slightly different moments.
    #[must_use]
    pub fn snapshot(&self) -> RelaySummary {
        self.0.summary()
    }

    /// Returns what each direction has waited for, and for how long. While the relay runs, the
    /// times include the waits of now.
    #[must_use]
    pub fn waits(&self) -> RelayWaits {
        RelayWaits {
            a_to_b: self.0.a_to_b.waits(),
            b_to_a: self.0.b_to_a.waits(),
        }
    }
}

/// The times that the directions of a relay have spent waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayWaits {
    /// The waits of the direction from `a` to `b`.
    pub a_to_b: Waits,
    /// The waits of the direction from `b` to `a`.
    pub b_to_a: Waits,
}

/// A handle that ends a relay. It is cheap to clone, and works from any thread.
///
/// ```
/// # async fn example(a: tokio::net::TcpStream, b: tokio::net::TcpStream, shutdown: tokio::sync::oneshot::Receiver<()>) {
/// use std::time::Duration;
///
/// let mut relay = spliceway::Relay::new(a, b);
/// let cancel = relay.cancel_handle();
/// let summary = tokio::select! {
///     ended = &mut relay => ended,
///     _ = shutdown => {
///         cancel.cancel(Duration::from_secs(5));
///         // Ends with `EndReason::Cancelled`.
///         relay.await
///     }
/// };
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(pub(crate) Arc<Shared>);

impl CancelHandle {
    /// Ends the relay with [`EndReason::Cancelled`].
    ///
    /// The relay reads nothing more from either stream. Within `deadline`, it writes the bytes that
    /// it holds. Neither stream is shut down. Bytes that were not written by then are lost, and
    /// they are counted in [`DirectionSummary::lost`](crate::DirectionSummary::lost).
    ///
    /// A byte counts as written when the kernel has accepted it for sending. A TCP socket that is
    /// dropped with unread bytes resets its connection. Bytes that its peer has not read yet are
    /// then lost after all. A relay that owns its streams drops them when it ends. If the peers may
    /// still send and no byte may be lost, lend the streams (`Relay::new(&mut a, &mut b)`).
    /// Afterwards, shut both streams down. Then read both to their end, for as long as you want to
    /// wait.
    ///
    /// Only the first call counts, so a second call cannot shorten the deadline. To end the relay
    /// immediately, drop it. If the relay has ended, the call does nothing.
    ///
    /// # Panics
    /// The relay panics when it is polled outside a tokio runtime, or in one without the time
    /// driver.
    pub fn cancel(&self, deadline: Duration) {
        self.0.cancel.cancel(deadline);
    }
}
