//! Sends a request without a body and reads the head of its answer.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::departure::{Finish, departed};
use crate::kit::outcome::Outcome;
use crate::net::stream::Stream;
use crate::reach::dial::Dialed;
use crate::session::client::Client;
use crate::session::linger::FORGOTTEN_MAX_BYTES;
use spliceway_protocol::http::{Answer, Body, Exchange, Followed, Reuse};

/// The size of one read, with room for most answer heads.
const READ_BYTES: usize = 4 << 10;

/// The reason why an exchange has no answer.
pub(super) enum NoAnswer {
    /// The client's connection failed.
    Client(io::Error),
    /// The client has left.
    Left(Outcome),
    Target {
        error: io::Error,
        /// Whether no byte of the answer has arrived.
        is_silent: bool,
    },
    /// The target ended its stream without sending a byte.
    Eof,
    /// The target ended its stream within the head of the answer.
    Cut,
    /// The target did not send a whole head within the idle timeout.
    Idle,
    /// The target did not send a whole head within the half-close timeout after the client had
    /// finished.
    HalfClosed,
}

/// The time that a target has for the head of its answer.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) idle: Option<Duration>,
    pub(super) half_closed: Option<Duration>,
}

/// The answer that a request awaits.
pub(super) struct Awaited<K> {
    request: Exchange,
    /// Returns whether the client may send another request.
    may_keep: K,
}

impl<K: Fn() -> bool> Awaited<K> {
    pub(super) fn new(request: Exchange, may_keep: K) -> Self {
        Self { request, may_keep }
    }
}

/// The rewritten head of an answer.
pub(super) struct Answered {
    pub(super) heads: Vec<u8>,
    /// The bytes that were received after the head.
    pub(super) body: Vec<u8>,
    pub(super) followed: Followed,
}

/// Sends `request` and returns the head of the answer, rewritten for the client.
///
/// `sent` is called with each number of bytes that were sent, whether or not there is an answer.
pub(super) async fn exchange<K: Fn() -> bool>(
    request: &[u8],
    sent: impl FnMut(u64),
    awaited: Awaited<K>,
    dialed: &mut Dialed,
    client: &mut Client,
    patience: Patience,
) -> Result<Answered, NoAnswer> {
    let asked = awaited.request;
    let answered = async {
        tokio::select! {
            answer = request_head(request, sent, awaited, dialed) => answer,
            given_up = gone(client, asked, patience.half_closed) => Err(given_up),
        }
    };
    match patience.idle {
        None => answered.await,
        Some(idle) => timeout(idle, answered).await.unwrap_or(Err(NoAnswer::Idle)),
    }
}

async fn request_head<K: Fn() -> bool>(
    request: &[u8],
    sent: impl FnMut(u64),
    awaited: Awaited<K>,
    dialed: &mut Dialed,
) -> Result<Answered, NoAnswer> {
    // A target that accepts no more bytes may already have answered, so the answer is read even if
    // this write fails.
    let written = send(request, sent, &mut dialed.stream).await;
    let mut answer = Answer::to(awaited.request);
    let mut received = std::mem::take(&mut dialed.early);
    loop {
        let mut input = &received[..];
        if !(awaited.may_keep)() {
            answer.closes();
        }
        if let Some(heads) = answer.feed(&mut input) {
            return Ok(Answered {
                heads,
                body: input.to_vec(),
                followed: answer.into_followed().unwrap_or(Followed::LAST),
            });
        }
        received.clear();
        received.reserve(READ_BYTES);
        let read = match dialed.stream.read_buf(&mut received).await {
            Ok(read) => read,
            Err(error) => {
                let is_silent = answer.is_empty();
                return Err(NoAnswer::Target { error, is_silent });
            }
        };
        if read == 0 {
            return Err(match (answer.is_empty(), written) {
                (false, _) => NoAnswer::Cut,
                (true, Ok(())) => NoAnswer::Eof,
                (true, Err(error)) => NoAnswer::Target { error, is_silent: true },
            });
        }
    }
}

async fn send(mut request: &[u8], mut sent: impl FnMut(u64), target: &mut Stream) -> io::Result<()> {
    while !request.is_empty() {
        let bytes = target.write(request).await?;
        sent(bytes as u64);
        request = &request[bytes..];
    }
    // TLS may still hold a part.
    target.flush().await
}

/// Waits until the client's connection fails or has been half-closed for too long. If this is the
/// last request, bytes that the client sends meanwhile are discarded. Otherwise, they belong to its
/// next request, or to the new protocol of an upgrade.
async fn gone(client: &mut Client, request: Exchange, half_closed: Option<Duration>) -> NoAnswer {
    if request.body == Body::Upgrade {
        return NoAnswer::Left(departed(client, Finish::Waits).await);
    }
    let is_last = request.reuse == Reuse::Close;
    let mut forgotten = 0;
    while forgotten <= FORGOTTEN_MAX_BYTES {
        match (client.fill_buf().await, half_closed) {
            (Err(error), _) => return NoAnswer::Client(error),
            (Ok([]), Some(limit)) => {
                sleep(limit).await;
                return NoAnswer::HalfClosed;
            }
            (Ok([]), None) => break,
            (Ok(_), _) if !is_last => return NoAnswer::Left(departed(client, Finish::Waits).await),
            (Ok(more), _) => {
                let bytes = more.len();
                forgotten += bytes;
                client.consume(bytes);
            }
        }
    }
    std::future::pending().await
}
