//! One client: handshake, connect, relay, record.
//!
//! ```text
//!   Arrival ─ arrival: whose is it, may it? ─▶ open: ask, dial, answer ─┬─▶ Ends ──────▶ relay
//!                                                                      └─▶ datagrams ─▶ association
//! ```
//!
//! What a session needs before it relays is boxed and gone by then: thousands of idle relays are the normal state, and each holds
//! two sockets, the relay and its record.

mod answering;
mod arrival;
mod association;
mod departure;
mod exchange;
mod open;
mod request_body;

use std::future::{Future, ready};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use spliceway::{EndReason, Engine, Operation, Peer, Relay, RelayError, RelayOptions, RelaySummary};
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;

use crate::admission::{self, Dials, Permit};
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
use crate::record::{SessionEnd, Outcome, Record};
use crate::settings::{AcceptProxy, Kind, ServiceSettings, Timeouts};
use crate::stream::Stream;
use answering::{Answering, Upload};
use request_body::RequestBody;

/// The reasons for which a client of such a service may be refused.
pub(crate) fn refusals(service: &ServiceSettings) -> Vec<&'static str> {
    let mut reasons = vec![arrival::NO_CLIENT, admission::TOO_MANY_OF_CLIENT];
    reasons.extend(Denied::ALL.map(Denied::as_str));
    if service.accept_proxy.is_some() {
        reasons.extend([arrival::NO_BALANCER, handshake::TOO_SLOW]);
        reasons.extend(proxy::Refusal::ALL.map(proxy::Refusal::as_str));
    }
    if !matches!(service.kind, Kind::Forward(_)) {
        reasons.push(admission::TOO_MANY_DIALS);
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
    /// That of `relays`.
    pub(crate) engine: Engine,
    pub(crate) clients: ClientPolicy,
    pub(crate) users: Option<Arc<Users>>,
    pub(crate) penalties: Penalties,
    pub(crate) accept_proxy: Option<AcceptProxy>,
    pub(crate) send_proxy: Option<proxy::Version>,
    pub(crate) dialer: Dialer,
    pub(crate) dials: Dials,
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

/// A session up to its relay. It may be polled by one task first and then awaited by another.
///
/// Boxed, so that a relay does not hold the memory that only a handshake and a dial need.
pub(crate) type Opening = Pin<Box<dyn Future<Output = AfterOpening> + Send>>;

/// A session that relays next, or that has failed.
pub(crate) struct AfterOpening {
    opened: Result<Opened, Outcome>,
    record: Record,
    permit: Permit,
}

/// Begins to serve one client, in the calling task: a session that needs nothing from its client issues its `connect(2)` here,
/// so sessions of one accept task reach their target in the order in which they were accepted. `None` if it panicked, which
/// ends that session alone. Dropped before its end, the session is cut, and its record says so.
pub(crate) fn begin(arrival: Arrival, service: Arc<Service>) -> Option<Opening> {
    poll_first(open(arrival, service))
}

fn open(arrival: Arrival, service: Arc<Service>) -> Opening {
    Box::pin(async move {
        let Arrival {
            accepted,
            port_index,
            mut permit,
        } = arrival;
        let mut record = Record::new(service, accepted.peer);
        let opened = open::open(accepted, port_index, &mut permit, &mut record).await;
        AfterOpening { opened, record, permit }
    })
}

/// Polls `future` once. The task that awaits it next polls it at once, which replaces the waker used here.
fn poll_first<T: Send + 'static>(
    mut future: Pin<Box<dyn Future<Output = T> + Send>>,
) -> Option<Pin<Box<dyn Future<Output = T> + Send>>> {
    let mut cx = Context::from_waker(Waker::noop());
    // Unconstrained: with the caller's budget used up, the session would yield before it dials.
    let first = catch_unwind(AssertUnwindSafe(|| pin!(unconstrained(future.as_mut())).poll(&mut cx)));
    match first {
        Ok(Poll::Pending) => Some(future),
        Ok(Poll::Ready(output)) => Some(Box::pin(ready(output))),
        Err(_) => None,
    }
}

/// Serves the client to the end. Dropped before that, the session is cut, and its record says so.
pub(crate) async fn run(opening: Opening, _alive: Alive) {
    let AfterOpening {
        opened,
        mut record,
        permit: _permit,
    } = opening.await;
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
    /// The target has the whole request, and the head of its answer was read.
    Nothing,
    Bytes(u64),
    Chunks(Chunks),
}

impl Rest {
    /// How many of these bytes, which come next, are the body's.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            Self::Nothing => Ok(0),
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
    let mut options = record.service().relays.clone();
    if let Some(limit) = &rates.incoming {
        options = options.a_to_b_rate_limit(limit);
    }
    if let Some(limit) = &rates.outgoing {
        options = options.b_to_a_rate_limit(limit);
    }
    if let Some(rest) = rest {
        let asked = Request { up, rest, down };
        return Box::pin(exchange(client, asked, upstream, options, record)).await;
    }
    let options = options.a_to_b_prefix(up).b_to_a_prefix(down);
    let ended = match (client, upstream) {
        (Stream::Tcp(client), Stream::Tcp(upstream)) => relay_of(client, upstream, options, record).await,
        (Stream::Tcp(client), Stream::Unix(upstream)) => relay_of(client, upstream, options, record).await,
        (Stream::Unix(client), Stream::Tcp(upstream)) => relay_of(client, upstream, options, record).await,
        (Stream::Unix(client), Stream::Unix(upstream)) => relay_of(client, upstream, options, record).await,
    };
    ended.into()
}

/// A request, and the bytes of its answer that were read before the relay.
struct Request {
    up: Vec<u8>,
    rest: Rest,
    down: Vec<u8>,
}

/// Relays a request and its answer, then gives the client time to read the answer.
async fn exchange(
    mut client: Stream,
    request: Request,
    upstream: Stream,
    options: RelayOptions,
    record: &mut Record,
) -> Outcome {
    let Stream::Tcp(mut upstream) = upstream else {
        unreachable!("no client can name a socket of the file system");
    };
    let is_in_chunks = matches!(request.rest, Rest::Chunks(_));
    let ended = match request.rest {
        Rest::Nothing => answer(&mut client, request.down, &mut upstream, options, record).await,
        _ => match ask(&mut client, request, &mut upstream, &options, record).await {
            Some(ended) => ended,
            None => answer(&mut client, Vec::new(), &mut upstream, options, record).await,
        },
    };
    if let Err(error) = &ended {
        // What was lost is a body that the target did not want.
        let is_early_answer = error.summary.a_to_b.lost > 0;
        let is_cut = error.peer() == Peer::B && error.operation == Operation::Read && !is_early_answer;
        if is_in_chunks
            && is_cut
            && let Stream::Tcp(client) = client
        {
            drop(upstream);
            spliceway::reset(client).await;
        }
    } else if ended.as_ref().is_ok_and(|summary| summary.first_eof == Some(Peer::B)) {
        drop(upstream);
        // After any other end, only the close tells the client that the answer is over.
        exchange::linger(&mut client, record.service().timeouts.half_close).await;
    }
    ended.into()
}

/// Relays the request and the head of its answer. `None` if a second relay can continue.
async fn ask(
    client: &mut Stream,
    request: Request,
    upstream: &mut TcpStream,
    options: &RelayOptions,
    record: &mut Record,
) -> Option<Result<RelaySummary, RelayError>> {
    let Request { up, rest, down } = request;
    let sent = up.len() as u64;
    let upload = Arc::new(Upload::default());
    let (reader, writer) = upstream.split();
    let answer: Box<dyn AsyncRead + Send + Unpin + '_> = Box::new(Answering::new(reader, &down, Arc::clone(&upload)));
    let upstream = join(answer, writer);
    // The head must pass user space, also with `--splice on`.
    let engine = record.service().engine;
    let engine = if engine == Engine::Splice { Engine::Auto } else { engine };
    let options = options.clone().engine(engine).a_to_b_prefix(up);
    let ended = match (rest, client) {
        (Rest::Chunks(chunks), client) => {
            let (reader, writer) = tokio::io::split(client);
            let body = RequestBody::new(reader, chunks, sent, Arc::clone(&upload));
            ask_of(join(body, writer), upstream, options, &upload, record).await
        }
        (rest, client) => {
            let left = match rest {
                Rest::Bytes(left) => left,
                Rest::Nothing | Rest::Chunks(_) => 0,
            };
            upload.is_of(sent + left);
            let options = options.a_to_b_limit(left);
            match client {
                Stream::Tcp(client) => ask_of(client, upstream, options, &upload, record).await,
                Stream::Unix(client) => ask_of(client, upstream, options, &upload, record).await,
            }
        }
    };
    (ended.is_err() || !upload.is_handed_over()).then_some(ended)
}

async fn ask_of<A, B>(
    client: A,
    upstream: B,
    options: RelayOptions,
    upload: &Upload,
    record: &mut Record,
) -> Result<RelaySummary, RelayError>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = relay_of(client, upstream, options, record);
    upload.passes_by(relay.stats(), relay.cancel_handle());
    relay.await
}

/// Relays the rest of the answer. Further bytes of the client are not read.
async fn answer(
    client: &mut Stream,
    down: Vec<u8>,
    upstream: &mut TcpStream,
    options: RelayOptions,
    record: &mut Record,
) -> Result<RelaySummary, RelayError> {
    let options = options.b_to_a_prefix(down).a_to_b_limit(0);
    match client {
        Stream::Tcp(client) => relay_of(client, upstream, options, record).await,
        Stream::Unix(client) => relay_of(client, upstream, options, record).await,
    }
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
                    Peer::A => SessionEnd::ResetByClient,
                    Peer::B => SessionEnd::ResetByUpstream,
                };
                return Self::because(end, &format_args!("{} failed: {}", error.operation, error.source));
            }
        };
        let end = match (summary.end, summary.first_eof) {
            (EndReason::IdleTimeout, _) => SessionEnd::Idle,
            (EndReason::HalfCloseTimeout, _) => SessionEnd::HalfCloseTimeout,
            (EndReason::Cancelled, _) => SessionEnd::Drained,
            (_, Some(Peer::B)) => SessionEnd::UpstreamEof,
            (_, Some(Peer::A) | None) => SessionEnd::ClientEof,
        };
        end.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;
    use tokio::task::coop;

    #[tokio::test]
    async fn a_future_that_is_polled_first_elsewhere_ends_in_its_task() {
        let (sender, receiver) = oneshot::channel();
        let waits = poll_first(Box::pin(receiver)).unwrap();
        let ended = tokio::spawn(waits);
        sender.send("sent").unwrap();
        assert_eq!(ended.await.unwrap(), Ok("sent"));
        assert_eq!(poll_first(Box::pin(ready("ready"))).unwrap().await, "ready");
    }

    #[tokio::test]
    async fn the_first_poll_does_not_need_the_budget_of_its_caller() {
        while coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
        let (sender, mut receiver) = oneshot::channel();
        let first = poll_first(Box::pin(async {
            coop::consume_budget().await;
            sender.send("dialled")
        }));
        assert_eq!(receiver.try_recv(), Ok("dialled"));
        drop(first);
    }

    #[tokio::test]
    async fn a_panic_in_the_first_poll_does_not_reach_its_caller() {
        assert!(poll_first::<()>(Box::pin(async { panic!("in the session") })).is_none());
    }
}
