//! The story of one session. Each step takes a state, and returns the next one or how the session
//! ends.
//!
//! ```text
//!   Arrival ──▶ Admitted ──▶ Connecting ──▶ Connected ──▶ Outcome ──▶ record
//!   accepted    admitted     asked          answered      relayed     recorded
//!                             │  ▲           ▲  │
//!          dial, answer, head └──┘ not taken ┘  └──▶ Offer ──▶ another process
//! ```
//!
//! While its target is dialled, a session stays `Connecting`: if the dial, the answer or the first
//! exchange fails, that state has what refuses the client.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::admit::Admitted;
use super::connect::Connecting;
use super::facts::Session;
use super::first_poll::poll_first;
use super::guard::Guard;
use super::handover::{Offer, Suspended};
use super::handshake::TlsStart;
use super::record::Record;
use super::relay::{Ends, Relayed, relay};
use super::service::Service;
use super::udp::associate::Associated;
use crate::access::admission::SessionPermit;
use crate::kit::alive::Alive;
use crate::kit::outcome::Outcome;
use crate::net::listener::Accepted;
use crate::settings::Kind;
use spliceway_protocol::Command;

/// A client that a listener has accepted.
pub(crate) struct Arrival {
    pub(crate) accepted: Accepted,
    /// The position of the listener's port in the port range.
    pub(crate) port_index: u16,
    /// What the session holds of the limits.
    pub(crate) permit: SessionPermit,
}

/// A session that has what its client asked for.
enum Connected {
    Relay(Ends),
    Association(Box<Associated>),
}

/// A session until its relay starts. One task may poll it first, and another may then await it.
///
/// The future is boxed, so that a relay does not hold the memory that only a handshake and a dial
/// need. Thousands of idle sessions are normal. Each of them holds two sockets, the relay and the
/// record.
pub(crate) type SettingUp = Pin<Box<dyn Future<Output = SetUp> + Send>>;

/// A session that is connected, or that has failed.
pub(crate) struct SetUp {
    connected: Result<Connected, Outcome>,
    record: Record,
}

/// Begins to serve one client, in the calling task. A session that needs nothing from its client
/// issues its `connect(2)` here. So the sessions of one accept task reach their target in the order
/// in which they were accepted.
///
/// Returns `None` if the session panicked, which ends only that session. If the returned future is
/// dropped before its end, the session is cut and recorded as drained.
pub(crate) fn begin(arrival: Arrival, service: Arc<Service>) -> Option<(SettingUp, Arc<Session>)> {
    let mut record = Record::new(service, arrival.accepted.peer, arrival.permit);
    let session = Arc::clone(record.guard.session());
    let setup = Box::pin(async move {
        let connected = set_up(arrival.accepted, arrival.port_index, &mut record.guard).await;
        SetUp { connected, record }
    });
    Some((poll_first(setup)?, session))
}

/// Serves the client to the end of the session. If this future is dropped before that, the session
/// is cut and recorded as drained.
pub(crate) async fn run(setup: SettingUp, _alive: Alive) {
    let SetUp { connected, mut record } = setup.await;
    let outcome = match connected {
        // Boxed, so that no session holds the memory of a step that it is not in.
        Ok(Connected::Relay(ends)) => return Box::pin(relay_to_end(ends, record)).await,
        Ok(Connected::Association(associated)) => Box::pin(associated.run(&mut record.guard)).await,
        Err(outcome) => outcome,
    };
    record.end(outcome);
}

/// Continues a session from another process, in its own task.
pub(crate) fn resume(record: Record, suspended: Suspended, alive: Alive) {
    let session = Arc::clone(record.guard.session());
    let task = tokio::spawn(async move {
        relay_to_end(suspended.into(), record).await;
        drop(alive);
    });
    session.set_task(task.abort_handle());
}

/// Takes a connection to what its client asks for.
async fn set_up(accepted: Accepted, port_index: u16, guard: &mut Guard) -> Result<Connected, Outcome> {
    let mut admitted = Admitted::admit(accepted, guard).await?;
    // On a router, the hello chooses a route first.
    let is_router = matches!(guard.service().kind, Kind::Sni(_));
    if let Some(terminator) = guard.service().tls.clone().filter(|_| !is_router) {
        // Boxed, so that other sessions do not hold the memory of this handshake.
        admitted = Box::pin(admitted.end_tls(&terminator, TlsStart::now(), guard)).await?;
    }
    let connecting = admitted.receive_request(port_index, guard).await?;
    // Boxed, so that a handshake does not hold the memory of a dial.
    Box::pin(connect(connecting, guard)).await
}

async fn connect(mut connecting: Connecting, guard: &mut Guard) -> Result<Connected, Outcome> {
    let mut dialed = match connecting.command() {
        Command::Associate => return connecting.associate(guard).await.map(Connected::Association),
        command => {
            let service = Arc::clone(guard.service());
            let _counted = connecting.count_dial(&service).await?;
            let mut dialed = match (command, &service.balancer) {
                (Command::Bind, _) => connecting.bind(guard).await?,
                (_, Some(balancer)) => Box::pin(connecting.dial_backend(balancer, guard)).await?,
                (_, None) => connecting.dial(guard).await?,
            };
            if connecting.request.asks_for_tls {
                connecting.ask_for_tls(&mut dialed, guard).await?;
            }
            connecting.answer(&dialed).await?;
            dialed
        }
    };
    if connecting.is_whole() {
        connecting.exchange(&mut dialed, guard).await?;
    }
    connecting.into_ends(dialed, guard).await.map(Connected::Relay)
}

/// Relays until the session ends, or another process has taken it.
async fn relay_to_end(mut ends: Ends, mut record: Record) {
    loop {
        let (suspended, to) = match relay(ends, &mut record).await {
            Relayed::Ended(outcome) => return record.end(outcome),
            Relayed::Suspended(suspended, to) => (*suspended, to),
        };
        match Box::pin(offer(record, suspended, to)).await {
            Some((kept, returned)) => (record, ends) = (kept, returned.into()),
            None => return,
        }
    }
}

/// Offers a suspended relay to another process. Returns it if that process has not taken it.
///
/// Another task waits for the answer. So a session that is cut meanwhile ends here only if the
/// other process has not taken it.
async fn offer(record: Record, suspended: Suspended, to: oneshot::Sender<Offer>) -> Option<(Record, Suspended)> {
    let (offer, mut answer) = Offer::new(suspended);
    // If the hand-over does not wait for it any more, the relay comes back.
    drop(to.send(offer));
    let waiting = tokio::spawn(async move {
        let Some(suspended) = answer.returned().await else {
            record.hand_over();
            return None;
        };
        Some((record, suspended))
    });
    waiting.await.ok().flatten()
}
