//! One client: handshake, connect, relay, record.
//!
//! ```text
//!   Arrival ─ arrival: whose is it, may it? ─▶ open: ask, dial, answer ─┬─▶ Ends ──────▶ relay
//!                                                                      └─▶ datagrams ─▶ association
//! ```
//!
//! What a session needs before it relays is boxed and gone by then: thousands of idle relays are the normal state, and each holds
//! two sockets, the relay and its record.

mod arrival;
mod association;
mod exchange;
mod open;
mod request_body;

use std::net::IpAddr;
use std::sync::Arc;

use spliceway::{EndReason, Peer, Relay, RelayError, RelayOptions, RelaySummary};
use tokio::io::{AsyncRead, AsyncWrite, join};

use crate::admission::{self, Permit};
use crate::auth::{Penalties, Users};
use crate::dial::Dialer;
use crate::drain::Alive;
use crate::handshake;
use crate::listener::Accepted;
use crate::metrics::{Metrics, Traffic};
use crate::policy::{ClientPolicy, Denied};
use crate::protocol::http::{Chunks, Malformed};
use crate::protocol::proxy;
use crate::rates::{RateLimits, SessionRates};
use crate::record::{End, Outcome, Record};
use crate::settings::{AcceptProxy, Kind, ServiceSettings, Timeouts};
use crate::stream::Stream;
use request_body::RequestBody;

/// The reasons for which a client of such a service may be refused.
pub(crate) fn refusals(service: &ServiceSettings) -> Vec<&'static str> {
    let mut reasons = vec![arrival::NO_CLIENT, admission::TOO_MANY_OF_CLIENT];
    reasons.extend(Denied::ALL.map(Denied::as_str));
    if service.accept_proxy.is_some() {
        reasons.extend([arrival::NO_BALANCER, handshake::TOO_SLOW]);
        reasons.extend(proxy::Refusal::ALL.map(proxy::Refusal::as_str));
    }
    if matches!(service.kind, Kind::Socks5 | Kind::Mixed) {
        reasons.push(admission::NO_PLACE_LEFT);
    }
    reasons.extend(handshake::refusals(&service.kind, service.users.is_some()));
    reasons
}

/// What the sessions of one service share.
pub(crate) struct Service {
    pub(crate) kind: Kind,
    pub(crate) timeouts: Timeouts,
    pub(crate) relays: RelayOptions,
    pub(crate) clients: ClientPolicy,
    pub(crate) users: Option<Arc<Users>>,
    pub(crate) penalties: Penalties,
    pub(crate) accept_proxy: Option<AcceptProxy>,
    pub(crate) send_proxy: Option<proxy::Version>,
    pub(crate) dialer: Dialer,
    pub(crate) rates: Arc<RateLimits>,
    pub(crate) advertise: Option<IpAddr>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traffic: Arc<Traffic>,
}

/// A client as its listener hands it over.
pub(crate) struct Arrival {
    pub(crate) accepted: Accepted,
    /// Which port of the listener's range it came to.
    pub(crate) port_index: u16,
    /// Its place among the sessions.
    pub(crate) permit: Permit,
}

/// Serves one client to the end. Dropped before that, it is cut, and its record says so.
pub(crate) async fn run(arrival: Arrival, service: Arc<Service>, _alive: Alive) {
    let mut record = Record::new(service, arrival.accepted.peer);
    let Arrival {
        accepted,
        port_index,
        mut permit,
    } = arrival;
    let opened = Box::pin(open::open(accepted, port_index, &mut permit, &mut record)).await;
    let outcome = match opened {
        Ok(Opened::Relay(ends)) => relay(ends, &mut record).await,
        Ok(Opened::Association(open)) => open.run(&mut record).await,
        Err(outcome) => outcome,
    };
    record.end(outcome);
}

/// What a session is, once it is what its client asked for.
enum Opened {
    Relay(Ends),
    Association(Box<association::Open>),
}

/// Both ends of a relay, and what each has sent beyond its handshake.
struct Ends {
    client: Stream,
    up: Vec<u8>,
    /// What of the client's further bytes is for the target; `None`: all.
    rest: Option<Rest>,
    upstream: Stream,
    down: Vec<u8>,
    rates: SessionRates,
}

/// How much of a request's body is to come.
enum Rest {
    Bytes(u64),
    Chunks(Chunks),
}

impl Rest {
    /// How many of these bytes, which come next, are the body's.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            Self::Chunks(chunks) => chunks.take(bytes),
            Self::Bytes(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                Ok(taken)
            }
        }
    }
}

/// A relay of sockets as what they are, since what is spliced is found by its type.
async fn relay(ends: Ends, record: &mut Record) -> Outcome {
    let Ends {
        client,
        up,
        rest,
        upstream,
        down,
        rates,
    } = ends;
    let mut options = record.service().relays.clone().a_to_b_prefix(up).b_to_a_prefix(down);
    if let Some(limit) = &rates.incoming {
        options = options.a_to_b_rate_limit(limit);
    }
    if let Some(limit) = &rates.outgoing {
        options = options.b_to_a_rate_limit(limit);
    }
    if let Some(rest) = rest {
        return Box::pin(exchange(client, rest, upstream, options, record)).await;
    }
    let ended = match (client, upstream) {
        (Stream::Tcp(client), Stream::Tcp(upstream)) => relay_of(client, upstream, options, record).await,
        (Stream::Tcp(client), Stream::Unix(upstream)) => relay_of(client, upstream, options, record).await,
        (Stream::Unix(client), Stream::Tcp(upstream)) => relay_of(client, upstream, options, record).await,
        (Stream::Unix(client), Stream::Unix(upstream)) => relay_of(client, upstream, options, record).await,
    };
    ended.into()
}

/// The same where not all that the client sends is for the target.
async fn exchange(client: Stream, rest: Rest, upstream: Stream, options: RelayOptions, record: &mut Record) -> Outcome {
    let ended = match (rest, client, upstream) {
        (Rest::Bytes(left), Stream::Tcp(client), Stream::Tcp(upstream)) => {
            exchange_of(client, upstream, options.a_to_b_limit(left), record).await
        }
        (Rest::Bytes(left), Stream::Unix(client), Stream::Tcp(upstream)) => {
            exchange_of(client, upstream, options.a_to_b_limit(left), record).await
        }
        // Somebody has to see where the body ends.
        (Rest::Chunks(chunks), client, Stream::Tcp(upstream)) => {
            let (reader, writer) = tokio::io::split(client);
            relay_of(
                join(RequestBody::new(reader, chunks), writer),
                upstream,
                options,
                record,
            )
            .await
        }
        (_, _, Stream::Unix(_)) => unreachable!("no client can name a socket of the file system"),
    };
    ended.into()
}

/// A relay of a request and its answer, which the client is given the time to read.
async fn exchange_of<A, B>(
    mut client: A,
    upstream: B,
    options: RelayOptions,
    record: &mut Record,
) -> Result<RelaySummary, RelayError>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let ended = relay_of(&mut client, upstream, options, record).await;
    // At any other end the client has not been told that it is one: the close is what tells it.
    if ended.as_ref().is_ok_and(|summary| summary.first_eof == Some(Peer::B)) {
        exchange::linger(&mut client, record.service().timeouts.half_close).await;
    }
    ended
}

fn relay_of<A, B>(client: A, upstream: B, options: RelayOptions, record: &mut Record) -> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = Relay::with_options(client, upstream, options);
    record.relaying(relay.stats(), relay.cancel_handle());
    relay
}

/// The client is `a`, the upstream `b`.
impl From<Result<RelaySummary, RelayError>> for Outcome {
    fn from(ended: Result<RelaySummary, RelayError>) -> Self {
        let summary = match ended {
            Ok(summary) => summary,
            Err(error) => {
                let end = match error.peer() {
                    Peer::A => End::ResetByClient,
                    Peer::B => End::ResetByUpstream,
                };
                return Self::because(end, &format_args!("{} failed: {}", error.operation, error.source));
            }
        };
        let end = match (summary.end, summary.first_eof) {
            (EndReason::IdleTimeout, _) => End::Idle,
            (EndReason::HalfCloseTimeout, _) => End::HalfCloseTimeout,
            (EndReason::Cancelled, _) => End::Drained,
            (_, Some(Peer::B)) => End::UpstreamEof,
            (_, Some(Peer::A) | None) => End::ClientEof,
        };
        end.into()
    }
}
