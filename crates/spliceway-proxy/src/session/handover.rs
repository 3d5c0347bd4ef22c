//! A suspended relay on its way to another process. The record of its session stays in this
//! process, until the other one has taken the session.
//!
//! ```text
//!   relay ── suspended ──▶ Offer ──▶ run/handover ──▶ another process
//!     ▲                      │
//!     └────── resumes ───────┴────── not taken
//! ```

use std::convert::Infallible;

use spliceway::RelayState;
use tokio::sync::oneshot;

use crate::access::rates::SessionRates;
use crate::net::stream::Stream;

/// Both ends of a suspended relay. No task reads from its sockets or writes to them.
pub(crate) struct Suspended {
    pub(crate) client: Stream,
    pub(crate) upstream: Stream,
    pub(crate) state: RelayState,
    pub(crate) rates: SessionRates,
}

/// A suspended relay that another process may take. If the offer is dropped, the relay goes back to
/// the task of its session.
pub(crate) struct Offer {
    /// `None` after the answer.
    relay: Option<(Suspended, oneshot::Sender<Suspended>)>,
    /// Closed when this process has forgotten the session.
    forgotten: oneshot::Receiver<Infallible>,
}

/// Waits for the answer to an offer.
pub(super) struct Answer {
    returned: oneshot::Receiver<Suspended>,
    _forgotten: oneshot::Sender<Infallible>,
}

impl Offer {
    pub(super) fn new(suspended: Suspended) -> (Self, Answer) {
        let (back, returned) = oneshot::channel();
        let (sender, forgotten) = oneshot::channel();
        let relay = Some((suspended, back));
        let answer = Answer {
            returned,
            _forgotten: sender,
        };
        (Self { relay, forgotten }, answer)
    }

    pub(crate) fn suspended(&self) -> &Suspended {
        let (suspended, _) = self.relay.as_ref().expect("until the answer");
        suspended
    }

    /// The other process has taken the session, and has the sockets. The returned future waits
    /// until this process has forgotten the session, so that it no longer counts here.
    pub(crate) fn taken(mut self) -> impl Future<Output = ()> {
        drop(self.relay.take());
        async move {
            // No message can exist, so the channel only closes.
            let _ = (&mut self.forgotten).await;
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some((suspended, back)) = self.relay.take() {
            // Nobody waits if the runtime is shutting down.
            let _ = back.send(suspended);
        }
    }
}

impl Answer {
    /// Returns the relay if the other process has not taken the session. Drop the answer when this
    /// process has forgotten a session that was taken.
    pub(super) async fn returned(&mut self) -> Option<Suspended> {
        (&mut self.returned).await.ok()
    }
}
