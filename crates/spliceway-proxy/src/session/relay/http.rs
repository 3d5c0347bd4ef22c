//! Relays one HTTP request and its answer.

use std::sync::Arc;

use spliceway::{Engine, Operation, Peer, RelayError, RelayOptions, RelaySummary};
use tokio::io::{AsyncRead, AsyncWrite, join};

use super::answering::{Answering, Upload};
use super::ends::{RemainingBody, new_relay};
use super::plain::pass_reset;
use super::request_body::RequestBody;
use crate::kit::outcome::Outcome;
use crate::net::stream::Stream;
use crate::session::byte_counter::{ByteCounter, ByteSource, counted};
use crate::session::guard::Guard;
use crate::session::linger::linger;
use crate::session::record::Record;

/// A request, and the bytes of its answer that were read before the relay started.
pub(super) struct Request {
    pub(super) up: Vec<u8>,
    pub(super) rest: RemainingBody,
    pub(super) down: Vec<u8>,
}

/// Relays a request and its answer, and then gives the client time to read the answer.
pub(super) async fn exchange(
    mut client: Stream,
    request: Request,
    mut upstream: Stream,
    options: RelayOptions,
    record: &mut Record,
) -> Outcome {
    let is_in_chunks = matches!(request.rest, RemainingBody::Chunks(_));
    let guard = &mut record.guard;
    let down = match request.rest {
        RemainingBody::Nothing => Ok(request.down),
        _ => {
            let sent = match &mut upstream {
                Stream::Tcp(upstream) => send_request(&mut client, request, upstream.split(), &options, guard).await,
                Stream::Tls(upstream) => {
                    let halves = tokio::io::split(&mut **upstream);
                    Box::pin(send_request(&mut client, request, halves, &options, guard)).await
                }
                Stream::Unix(_) => unreachable!("no client can name a Unix socket"),
            };
            sent.map_or(Ok(Vec::new()), Err)
        }
    };
    let ended = match (down, &mut upstream) {
        (Err(ended), _) => ended,
        (Ok(down), Stream::Tcp(upstream)) => read_answer(&mut client, down, upstream, options, guard).await,
        (Ok(down), Stream::Tls(upstream)) => {
            Box::pin(read_answer(&mut client, down, &mut **upstream, options, guard)).await
        }
        (Ok(_), Stream::Unix(_)) => unreachable!("no client can name a Unix socket"),
    };
    record.observe(&client, &upstream);
    if let Err(error) = &ended {
        // The lost bytes are part of a body that the target did not read.
        let is_early_answer = error.summary.a_to_b.lost > 0;
        let is_cut = error.peer() == Peer::B && error.operation == Operation::Read && !is_early_answer;
        match client {
            Stream::Tcp(client) if is_in_chunks && is_cut => {
                drop(upstream);
                spliceway::reset(client).await;
            }
            Stream::Tls(_) if is_cut => pass_reset(upstream, client).await,
            _ => {}
        }
    } else if ended.as_ref().is_ok_and(|summary| summary.first_eof == Some(Peer::B)) {
        drop(upstream);
        // After any other end, only closing the connection shows the client that the answer is
        // over.
        linger(&mut client, record.guard.service().settings.timeouts.half_close).await;
    }
    ended.into()
}

/// Relays the request and the head of its answer. Returns `None` if a second relay can continue.
async fn send_request<R, W>(
    client: &mut Stream,
    request: Request,
    (reader, writer): (R, W),
    options: &RelayOptions,
    guard: &mut Guard,
) -> Option<Result<RelaySummary, RelayError>>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Unpin,
{
    let Request { up, rest, down } = request;
    let sent = up.len() as u64;
    let upload = Arc::new(Upload::default());
    let answer: Box<dyn AsyncRead + Send + Unpin + '_> = Box::new(Answering::new(reader, &down, Arc::clone(&upload)));
    let upstream = join(answer, writer);
    // The head must pass through user space, even with `--splice on`.
    let engine = guard.service().settings.engine;
    let engine = if engine == Engine::Splice { Engine::Auto } else { engine };
    let options = options.clone().engine(engine).a_to_b_prefix(up);
    let ended = match (rest, client) {
        (RemainingBody::Chunks(chunks), client) => {
            let (reader, writer) = tokio::io::split(client);
            let body = RequestBody::new(reader, chunks, sent, Arc::clone(&upload));
            relay_request(join(body, writer), upstream, options, &upload, guard).await
        }
        (rest, client) => {
            let left = match rest {
                RemainingBody::Bytes(left) => left,
                RemainingBody::Nothing | RemainingBody::Chunks(_) => 0,
            };
            upload.set_total(sent + left);
            let options = options.a_to_b_limit(left);
            match client {
                Stream::Tcp(client) => relay_request(client, upstream, options, &upload, guard).await,
                Stream::Unix(client) => relay_request(client, upstream, options, &upload, guard).await,
                Stream::Tls(client) => relay_request(client, upstream, options, &upload, guard).await,
            }
        }
    };
    (ended.is_err() || !upload.is_finished()).then_some(ended)
}

async fn relay_request<A, B>(
    client: A,
    upstream: B,
    options: RelayOptions,
    upload: &Upload,
    guard: &mut Guard,
) -> Result<RelaySummary, RelayError>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = new_relay(client, upstream, options, guard);
    upload.set_relay(relay.stats(), relay.cancel_handle());
    let counter = ByteCounter::new(guard.session(), ByteSource::Relay(relay.stats()));
    counted(counter, relay).await
}

/// Relays the rest of the answer and reads no further bytes from the client.
async fn read_answer<B: AsyncRead + AsyncWrite + Unpin>(
    client: &mut Stream,
    down: Vec<u8>,
    upstream: &mut B,
    options: RelayOptions,
    guard: &mut Guard,
) -> Result<RelaySummary, RelayError> {
    let options = options.b_to_a_prefix(down).a_to_b_limit(0);
    match client {
        Stream::Tcp(client) => relay_answer(client, upstream, options, guard).await,
        Stream::Unix(client) => relay_answer(client, upstream, options, guard).await,
        Stream::Tls(client) => relay_answer(client, upstream, options, guard).await,
    }
}

async fn relay_answer<A, B>(
    client: A,
    upstream: &mut B,
    options: RelayOptions,
    guard: &mut Guard,
) -> Result<RelaySummary, RelayError>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let relay = new_relay(client, upstream, options, guard);
    let counter = ByteCounter::new(guard.session(), ByteSource::Relay(relay.stats()));
    counted(counter, relay).await
}
