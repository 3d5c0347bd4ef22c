//! The story of one session. Each step takes a state, and returns the next one or how the session
//! ends.
//!
//! ```text
//!   Arrival ──▶ Admitted ──▶ Connecting ──▶ Connected ──▶ Outcome ──▶ record
//!   accepted    admitted     asked          answered      relayed     recorded
//!                ▲            │  ▲           ▲  │            │
//!                │    dial, ──┘  │ not taken ┘  └──▶ Offer   │
//!                │    answer, ───┘                   │       │
//!                │    head                           ▼       │
//!                │                     another process       │
//!                └────────── next HTTP request ──────────────┘
//! ```
//!
//! A connection may carry many HTTP requests. Each of them is a session of its own.
//!
//! While its target is dialled, a session stays `Connecting`: if the dial, the answer or the first
//! exchange fails, that state has what refuses the client.

use std::sync::Arc;

use super::admit::Admitted;
use super::connect::Connecting;
use super::facts::Session;
use super::guard::Guard;
use super::handover::Suspended;
use super::handshake::TlsStart;
use super::next_request::Ended;
use super::record::Record;
use super::relay::{Ends, Exchange, relay};
use super::service::Service;
use super::step::{Step, run};
use super::udp::associate::Associated;
use crate::access::admission::SessionPermit;
use crate::kit::alive::Alive;
use crate::kit::outcome::Outcome;
use crate::net::listener::Accepted;
use crate::reach::dial::Dialed;
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
    Request(Box<Exchange>),
    Association(Box<Associated>),
}

/// Begins to serve one client, in the calling task. A session that needs nothing from its client
/// issues its `connect(2)` here. So the sessions of one accept task reach their target in the order
/// in which they were accepted.
///
/// Returns `None` if the session has ended, or panicked, which ends only that session. If the
/// returned step is dropped before its end, the session is cut and recorded as drained.
pub(crate) fn begin(arrival: Arrival, service: Arc<Service>) -> Option<(Step, Arc<Session>)> {
    let mut record = Record::new(service, arrival.accepted.peer, arrival.permit);
    let session = Arc::clone(record.guard.session());
    let first = Step::new(async move {
        let connected = set_up(arrival.accepted, arrival.port_index, &mut record.guard).await;
        serve(connected, record)
    });
    Some((first.poll_first()?, session))
}

/// Returns the step that gives the client what it asked for. A client of HTTP that did not get it
/// may send another request.
fn serve(connected: Result<Connected, Ended>, record: Record) -> Option<Step> {
    match connected {
        Ok(Connected::Relay(ends)) => Some(relay(ends, record)),
        Ok(Connected::Request(exchange)) => Some(answer(exchange, record)),
        Ok(Connected::Association(associated)) => Some(associate(associated, record)),
        Err(ended) => end(ended, record),
    }
}

/// Passes datagrams until the association ends.
fn associate(associated: Box<Associated>, mut record: Record) -> Step {
    Step::new(async move {
        let outcome = associated.run(&mut record.guard).await;
        record.end(outcome);
        None
    })
}

/// Relays an HTTP request and its answer.
fn answer(exchange: Box<Exchange>, mut record: Record) -> Step {
    Step::new(async move {
        let ended = exchange.run(&mut record).await;
        end(ended, record)
    })
}

/// Ends a session. The client may send another HTTP request, which is a session of its own.
fn end(Ended { outcome, kept }: Ended, record: Record) -> Option<Step> {
    let Some(kept) = kept else {
        record.end(outcome);
        return None;
    };
    let carried = record.end_request(outcome);
    Some(Step::new(async move {
        let (admitted, mut record) = kept.next_request(carried).await?;
        Some(Step::new(async move {
            let connected = set_up_request(*admitted, 0, &mut record.guard).await;
            serve(connected, record)
        }))
    }))
}

/// Continues a session from another process, in its own task.
pub(crate) fn resume(record: Record, suspended: Suspended, alive: Alive) {
    let session = Arc::clone(record.guard.session());
    let task = tokio::spawn(run(relay(suspended.into(), record), alive));
    session.set_task(task.abort_handle());
}

/// Takes a connection to what its client asks for.
async fn set_up(accepted: Accepted, port_index: u16, guard: &mut Guard) -> Result<Connected, Ended> {
    let mut admitted = Admitted::admit(accepted, guard).await?;
    // On a router, the hello chooses a route first.
    let is_router = matches!(guard.service().kind, Kind::Sni(_));
    if let Some(terminator) = guard.service().tls.clone().filter(|_| !is_router) {
        // Boxed, so that other sessions do not hold the memory of this handshake.
        admitted = Box::pin(admitted.end_tls(&terminator, TlsStart::now(), guard)).await?;
    }
    set_up_request(admitted, port_index, guard).await
}

/// Takes an admitted client to what it asks for.
async fn set_up_request(admitted: Admitted, port_index: u16, guard: &mut Guard) -> Result<Connected, Ended> {
    let connecting = admitted.receive_request(port_index, guard).await?;
    // Boxed, so that a handshake does not hold the memory of a dial.
    Box::pin(connect(connecting, guard)).await
}

async fn connect(mut connecting: Connecting, guard: &mut Guard) -> Result<Connected, Ended> {
    if connecting.command() == Command::Associate {
        // Boxed, so that other dials do not hold the memory of an association, nor move it.
        return Ok(Connected::Association(Box::pin(connecting.associate(guard)).await?));
    }
    match reach(&mut connecting, guard).await {
        Ok(dialed) if connecting.has_end() => Box::pin(connecting.into_exchange(dialed)).await.map(Connected::Request),
        Ok(dialed) => Ok(Connected::Relay(connecting.into_ends(dialed))),
        Err(outcome) => Err(connecting.into_ended(outcome)),
    }
}

/// Connects to the target. If the client has sent a whole request, reads the head of the answer.
async fn reach(connecting: &mut Connecting, guard: &mut Guard) -> Result<Dialed, Outcome> {
    connecting.wait_for_rates(guard).await?;
    if let Some(mut dialed) = connecting.reuse(guard) {
        let is_whole = connecting.is_whole();
        if !is_whole || Box::pin(connecting.exchange(&mut dialed, true, guard)).await?.is_some() {
            return Ok(dialed);
        }
    }
    let mut dialed = dial(connecting, guard).await?;
    if connecting.is_whole() {
        Box::pin(connecting.exchange(&mut dialed, false, guard)).await?;
    }
    Ok(dialed)
}

async fn dial(connecting: &mut Connecting, guard: &mut Guard) -> Result<Dialed, Outcome> {
    let service = Arc::clone(guard.service());
    let _counted = connecting.count_dial(&service).await?;
    let mut dialed = match (connecting.command(), &service.balancer) {
        (Command::Bind, _) => Box::pin(connecting.bind(guard)).await?,
        (_, Some(balancer)) => Box::pin(connecting.dial_backend(balancer, guard)).await?,
        (_, None) => connecting.dial(guard).await?,
    };
    if connecting.request.asks_for_tls {
        Box::pin(connecting.ask_for_tls(&mut dialed, guard)).await?;
    }
    connecting.answer(&dialed).await?;
    Ok(dialed)
}
