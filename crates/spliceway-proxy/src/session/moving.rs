//! A session that moves to another process, or arrives from one.
//!
//! ```text
//!   relay ── suspended ──▶ Parcel ── Moving ──▶ hand-over ──▶ another process
//!     ▲                      ▲                      │
//!     └────── resumes ───────┴────── not taken ─────┘
//! ```

use std::sync::Arc;

use spliceway::RelayState;
use tokio::sync::oneshot;

use super::Ends;
use crate::access::admission::Permit;
use crate::kit::alive::Alive;
use crate::net::stream::Stream;
use crate::session::record::Record;

/// A session whose relay is suspended. No task reads from its sockets or writes to them.
pub(crate) struct Parcel {
    pub(crate) record: Record,
    pub(crate) permit: Permit,
    pub(crate) suspended: Suspended,
}

/// Both ends of a suspended relay.
pub(crate) struct Suspended {
    pub(crate) client: Stream,
    pub(crate) upstream: Stream,
    pub(crate) state: RelayState,
    pub(crate) rates: crate::access::rates::SessionRates,
}

/// A parcel that waits for the answer of another process. If it is dropped, the session continues
/// in its task.
pub(crate) struct Moving(Option<(Parcel, oneshot::Sender<Parcel>)>);

impl Moving {
    pub(crate) fn parcel(&self) -> &Parcel {
        let (parcel, _) = self.0.as_ref().expect("until the answer");
        parcel
    }

    /// The other process has taken the session, and has the sockets.
    pub(crate) fn taken(mut self) {
        if let Some((parcel, _)) = self.0.take() {
            parcel.record.leave();
        }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        if let Some((parcel, back)) = self.0.take() {
            // If the task has been cut, the session ends here.
            let _ = back.send(parcel);
        }
    }
}

/// Offers a parcel to another process. Returns it if that process has not taken it.
pub(super) async fn offer(parcel: Parcel, to: oneshot::Sender<Moving>) -> Option<Parcel> {
    let (back, returned) = oneshot::channel();
    // If the hand-over has given up on the parcel, it comes back.
    drop(to.send(Moving(Some((parcel, back)))));
    returned.await.ok()
}

/// Continues a session from another process, in its own task.
pub(crate) fn arrive(parcel: Parcel, alive: Alive) {
    let session = Arc::clone(parcel.record.session());
    let task = tokio::spawn(async move {
        let Parcel {
            record,
            permit,
            suspended,
        } = parcel;
        super::relay_to_end(Ends::from(suspended), record, permit).await;
        drop(alive);
    });
    session.runs_in(task.abort_handle());
}

impl From<Suspended> for Ends {
    fn from(suspended: Suspended) -> Self {
        Self {
            client: suspended.client,
            upstream: suspended.upstream,
            rates: suspended.rates,
            begin: super::Begin::Resume(Box::new(suspended.state)),
        }
    }
}
