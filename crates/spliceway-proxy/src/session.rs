//! The session of one client: handshake, connect, relay, record.
//!
//! ```text
//!   Arrival ─ arrival: client allowed? ─▶ open: ask, dial, answer ─┬─▶ Ends ──────▶ relay
//!                                                                  └─▶ datagrams ─▶ association
//! ```
//!
//! The state that a session needs before it relays is boxed and freed before the relay starts.
//! Thousands of idle sessions are normal. Each of them holds two sockets, the relay and the record.

mod answering;
mod arrival;
mod backends;
mod bind;
pub(crate) mod bottleneck;
mod byte_counter;
mod departure;
mod destinations;
mod exchange;
pub(crate) mod handshake;
mod moving;
mod open;
pub(crate) mod process;
pub(crate) mod record;
mod refusals;
mod request_body;
pub(crate) mod service;
pub(crate) mod sessions;
mod spin;
pub(crate) mod udp;

use std::future::{Future, poll_fn, ready};
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use spliceway::{Engine, Operation, Peer, Relay, RelayError, RelayOptions, RelayState, RelaySummary};
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::coop::unconstrained;

use crate::access::admission::Permit;
use crate::access::rates::SessionRates;
use crate::kit::alive::Alive;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::net::listener::Accepted;
use crate::net::stream::Stream;
use crate::session::record::Record;
use crate::session::service::Service;
use crate::session::sessions::Session;
use answering::{Answering, Upload};
use byte_counter::{ByteCounter, Moved, counted};
pub(crate) use moving::{Moving, Parcel, Suspended, arrive};
pub(crate) use refusals::refusals;
use request_body::RequestBody;
use spin::Spin;
use spliceway_protocol::http::{Chunks, Malformed};

/// A client that a listener has accepted.
pub(crate) struct Arrival {
    pub(crate) accepted: Accepted,
    /// The position of the listener's port in the port range.
    pub(crate) port_index: u16,
    /// The session's place in the limit on sessions.
    pub(crate) permit: Permit,
}

/// A session until its relay starts. One task may poll it first, and another may then await it.
///
/// The future is boxed, so that a relay does not hold the memory that only a handshake and a dial
/// need.
pub(crate) type Opening = Pin<Box<dyn Future<Output = AfterOpening> + Send>>;

/// A session that is ready to relay, or that has failed.
pub(crate) struct AfterOpening {
    opened: Result<Opened, Outcome>,
    record: Record,
    permit: Permit,
}

/// Begins to serve one client, in the calling task. A session that needs nothing from its client
/// issues its `connect(2)` here. So the sessions of one accept task reach their target in the order
/// in which they were accepted.
///
/// Returns `None` if the session panicked, which ends only that session. If the returned future is
/// dropped before its end, the session is cut and recorded as drained.
pub(crate) fn begin(arrival: Arrival, service: Arc<Service>) -> Option<(Opening, Arc<Session>)> {
    let record = Record::new(service, arrival.accepted.peer);
    let session = Arc::clone(record.session());
    Some((poll_first(open(arrival, record))?, session))
}

fn open(arrival: Arrival, mut record: Record) -> Opening {
    Box::pin(async move {
        let Arrival {
            accepted,
            port_index,
            mut permit,
        } = arrival;
        let opened = open::open(accepted, port_index, &mut permit, &mut record).await;
        AfterOpening { opened, record, permit }
    })
}

/// Polls `future` once. The task that awaits it next polls it immediately, which replaces the waker
/// used here.
fn poll_first<T: Send + 'static>(
    mut future: Pin<Box<dyn Future<Output = T> + Send>>,
) -> Option<Pin<Box<dyn Future<Output = T> + Send>>> {
    let mut cx = Context::from_waker(Waker::noop());
    // The poll is unconstrained. Otherwise, the session would yield before it dials if the caller's
    // budget were used up.
    let first = catch_unwind(AssertUnwindSafe(|| pin!(unconstrained(future.as_mut())).poll(&mut cx)));
    match first {
        Ok(Poll::Pending) => Some(future),
        Ok(Poll::Ready(output)) => Some(Box::pin(ready(output))),
        Err(_) => None,
    }
}

/// Serves the client to the end of the session. If this future is dropped before that, the session
/// is cut and recorded as drained.
pub(crate) async fn run(opening: Opening, _alive: Alive) {
    let AfterOpening {
        opened,
        mut record,
        permit,
    } = opening.await;
    let outcome = match opened {
        // Boxed, so that no session holds the memory of a step that it is not in.
        Ok(Opened::Relay(ends)) => return Box::pin(relay_to_end(ends, record, permit)).await,
        Ok(Opened::Association(associated)) => Box::pin(associated.run(&mut record)).await,
        Err(outcome) => outcome,
    };
    record.end(outcome);
    drop(permit);
}

/// Relays until the session ends, or has moved to another process.
async fn relay_to_end(mut ends: Ends, mut record: Record, mut permit: Permit) {
    loop {
        let (suspended, to) = match relay(ends, &mut record).await {
            Relayed::Ended(outcome) => {
                record.end(outcome);
                return drop(permit);
            }
            Relayed::Suspended(suspended, to) => (*suspended, to),
        };
        let parcel = Parcel {
            record,
            permit,
            suspended,
        };
        match Box::pin(moving::offer(parcel, to)).await {
            Some(parcel) => (ends, record, permit) = (parcel.suspended.into(), parcel.record, parcel.permit),
            None => return,
        }
    }
}

/// What follows a relay.
enum Relayed {
    Ended(Outcome),
    /// Another process asks for the session.
    Suspended(Box<Suspended>, oneshot::Sender<Moving>),
}

/// An open session, of the kind that its client asked for.
enum Opened {
    Relay(Ends),
    Association(Box<udp::associate::Associated>),
}

/// Both ends of a relay, and how the relay begins.
struct Ends {
    client: Stream,
    upstream: Stream,
    rates: SessionRates,
    begin: Begin,
}

enum Begin {
    /// With the bytes that each end has sent after its handshake.
    New {
        up: Vec<u8>,
        /// The part of the client's further bytes that is for the target. `None` means all of them.
        rest: Option<RemainingBody>,
        down: Vec<u8>,
    },
    /// From the state of a suspended relay.
    Resume(Box<RelayState>),
}

/// The part of a request's body that has not arrived yet.
enum RemainingBody {
    /// The target has the whole request, and the proxy has read the head of its answer.
    Nothing,
    Bytes(u64),
    Chunks(Chunks),
}

impl RemainingBody {
    /// Returns how many of these next bytes belong to the body.
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

/// Relays between sockets of concrete types, because the relay decides by type what it can splice.
async fn relay(ends: Ends, record: &mut Record) -> Relayed {
    let Ends {
        client,
        upstream,
        rates,
        begin,
    } = ends;
    let mut options = record.service().relays.clone();
    if let Some(limit) = &rates.incoming {
        options = options.a_to_b_rate_limit(limit);
    }
    if let Some(limit) = &rates.outgoing {
        options = options.b_to_a_rate_limit(limit);
    }
    let state = match begin {
        Begin::New {
            up,
            rest: Some(rest),
            down,
        } => {
            let asked = Request { up, rest, down };
            return Relayed::Ended(Box::pin(exchange(client, asked, upstream, options, record)).await);
        }
        Begin::New { up, rest: None, down } => {
            options = options.a_to_b_prefix(up).b_to_a_prefix(down);
            None
        }
        Begin::Resume(state) => Some(state),
    };
    let ended = match (client, upstream) {
        (Stream::Tcp(client), Stream::Tcp(upstream)) => plain(client, upstream, options, state, record).await,
        (Stream::Tcp(client), Stream::Unix(upstream)) => plain(client, upstream, options, state, record).await,
        (Stream::Unix(client), Stream::Tcp(upstream)) => plain(client, upstream, options, state, record).await,
        (Stream::Unix(client), Stream::Unix(upstream)) => plain(client, upstream, options, state, record).await,
    };
    match ended {
        Ok(outcome) => Relayed::Ended(outcome),
        Err((client, upstream, state, to)) => {
            let suspended = Suspended {
                client,
                upstream,
                state: *state,
                rates,
            };
            Relayed::Suspended(Box::new(suspended), to)
        }
    }
}

/// Why a relay ended before its streams: another process asks for the session.
type Interrupted = (Stream, Stream, Box<RelayState>, oneshot::Sender<Moving>);

/// A request, and the bytes of its answer that were read before the relay started.
struct Request {
    up: Vec<u8>,
    rest: RemainingBody,
    down: Vec<u8>,
}

/// Relays a request and its answer, and then gives the client time to read the answer.
async fn exchange(
    mut client: Stream,
    request: Request,
    upstream: Stream,
    options: RelayOptions,
    record: &mut Record,
) -> Outcome {
    let Stream::Tcp(mut upstream) = upstream else {
        unreachable!("no client can name a Unix socket");
    };
    let is_in_chunks = matches!(request.rest, RemainingBody::Chunks(_));
    let ended = match request.rest {
        RemainingBody::Nothing => answer(&mut client, request.down, &mut upstream, options, record).await,
        _ => match ask(&mut client, request, &mut upstream, &options, record).await {
            Some(ended) => ended,
            None => answer(&mut client, Vec::new(), &mut upstream, options, record).await,
        },
    };
    record.observe(&client, &upstream);
    if let Err(error) = &ended {
        // The lost bytes are part of a body that the target did not read.
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
        // After any other end, only closing the connection shows the client that the answer is
        // over.
        exchange::linger(&mut client, record.service().timeouts.half_close).await;
    }
    ended.into()
}

/// Relays the request and the head of its answer. Returns `None` if a second relay can continue.
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
    // The head must pass through user space, even with `--splice on`.
    let engine = record.service().engine;
    let engine = if engine == Engine::Splice { Engine::Auto } else { engine };
    let options = options.clone().engine(engine).a_to_b_prefix(up);
    let ended = match (rest, client) {
        (RemainingBody::Chunks(chunks), client) => {
            let (reader, writer) = tokio::io::split(client);
            let body = RequestBody::new(reader, chunks, sent, Arc::clone(&upload));
            ask_of(join(body, writer), upstream, options, &upload, record).await
        }
        (rest, client) => {
            let left = match rest {
                RemainingBody::Bytes(left) => left,
                RemainingBody::Nothing | RemainingBody::Chunks(_) => 0,
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
    let counter = ByteCounter::new(record, Moved::Relay(relay.stats()));
    counted(counter, relay).await
}

/// Relays the rest of the answer and reads no further bytes from the client.
async fn answer(
    client: &mut Stream,
    down: Vec<u8>,
    upstream: &mut TcpStream,
    options: RelayOptions,
    record: &mut Record,
) -> Result<RelaySummary, RelayError> {
    let options = options.b_to_a_prefix(down).a_to_b_limit(0);
    match client {
        Stream::Tcp(client) => answer_to(client, upstream, options, record).await,
        Stream::Unix(client) => answer_to(client, upstream, options, record).await,
    }
}

async fn answer_to<A: AsyncRead + AsyncWrite + Unpin>(
    client: A,
    upstream: &mut TcpStream,
    options: RelayOptions,
    record: &mut Record,
) -> Result<RelaySummary, RelayError> {
    let relay = relay_of(client, upstream, options, record);
    let counter = ByteCounter::new(record, Moved::Relay(relay.stats()));
    counted(counter, relay).await
}

/// Relays without looking at the bytes, and stays awake after messages if the settings say so. If
/// another process asks for the session, the relay is suspended.
async fn plain<A, B>(
    client: A,
    upstream: B,
    options: RelayOptions,
    state: Option<Box<RelayState>>,
    record: &mut Record,
) -> Result<Outcome, Interrupted>
where
    A: AsyncRead + AsyncWrite + AsFd + Unpin + Into<Stream>,
    B: AsyncRead + AsyncWrite + AsFd + Unpin + Into<Stream>,
{
    let mut relay = match state {
        None => relay_of(client, upstream, options, record),
        Some(state) => {
            let mut relay = Relay::resume(client, upstream, options, *state);
            record.resuming(relay.stats(), relay.cancel_handle());
            relay
        }
    };
    let mut spin = Spin::new(record.service().spin, relay.stats());
    let mut counter = ByteCounter::new(record, Moved::Relay(relay.stats()));
    let (session, mut is_movable) = (record.session(), false);
    let to = poll_fn(|cx| {
        let mut poll = |cx: &mut Context<'_>| Pin::new(&mut relay).poll(cx);
        let polled = match &mut counter {
            Some(counter) => counter.poll(cx, poll),
            None => poll(cx),
        };
        if let Poll::Ready(ended) = polled {
            return Poll::Ready(Ok(ended));
        }
        if let Some(spin) = &mut spin {
            spin.after_poll(cx);
        }
        if !is_movable {
            is_movable = true;
            session.is_movable_by(cx.waker());
        }
        if let Some(to) = session.asked_to_move() {
            if relay.can_suspend() {
                return Poll::Ready(Err(to));
            }
            session.is_movable_by(cx.waker());
        }
        Poll::Pending
    });
    let to = match to.await {
        Ok(ended) => {
            let (client, upstream) = relay.streams();
            record.observe(client, upstream);
            return Ok(ended.into());
        }
        Err(to) => to,
    };
    match relay.suspend() {
        Ok(suspended) => Err((suspended.a.into(), suspended.b.into(), Box::new(suspended.state), to)),
        // The streams are gone, and with them what the pipes held.
        Err(error) => Ok(not_suspended(&error)),
    }
}

/// Returns the end of a session whose relay could not be suspended for another process.
fn not_suspended(error: &io::Error) -> Outcome {
    let why = format!("cannot read out a pipe for a hand-over: {error}");
    tracing::error!("a session ends: {why}");
    Outcome::because(SessionEnd::Drained, &why)
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
