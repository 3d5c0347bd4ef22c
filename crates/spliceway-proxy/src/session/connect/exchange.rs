//! Sends a request without a body and reads the head of its answer.
//!
//! ```text
//!   request ─▶ target ─┬─ interim answer ─▶ client, and the next head
//!                      └─ final head ─────▶ the caller
//! ```

use std::io;
use std::time::Duration;

use spliceway::Direction;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::access::rates::SessionRates;
use crate::kit::outcome::Outcome;
use crate::net::stream::Stream;
use crate::reach::dial::Dialed;
use crate::session::client::Client;
use crate::session::departure::{Finish, departed};
use crate::session::guard::Guard;
use crate::session::linger::FORGOTTEN_MAX_BYTES;
use crate::session::rate_wait::wait_for_rate;
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
    /// The client did not read an interim answer within the idle timeout.
    Unread,
    /// The target did not send a whole head within the half-close timeout after the client had
    /// finished.
    HalfClosed,
}

/// What bounds an exchange.
pub(super) struct Bounds<'a> {
    /// The time that a target has for each head of its answer.
    pub(super) idle: Option<Duration>,
    /// The same, after the client has finished.
    pub(super) half_closed: Option<Duration>,
    pub(super) rates: &'a SessionRates,
    /// Counts the bytes that are sent, whether or not there is an answer.
    pub(super) guard: &'a Guard,
}

/// The answer that a request awaits.
pub(super) struct Awaited<'a, K> {
    request: Exchange,
    /// The part of the request that is still to be sent.
    unsent: &'a [u8],
    answer: Answer,
    /// Whether no byte of the answer has arrived.
    is_silent: bool,
    /// Returns whether the client may send another request.
    may_keep: K,
}

/// The rewritten head of an answer.
pub(super) struct Answered {
    /// The final head, and the interim answers that came together with it.
    pub(super) heads: Vec<u8>,
    /// The bytes that were received after the head.
    pub(super) body: Vec<u8>,
    pub(super) followed: Followed,
}

/// What a target has answered.
enum Said {
    Interim(Vec<u8>),
    Final(Answered),
}

/// Sends a request and returns the head of the answer, rewritten for the client. Interim answers
/// are passed to the client as they come.
pub(super) async fn exchange<K: Fn() -> bool>(
    mut awaited: Awaited<'_, K>,
    dialed: &mut Dialed,
    client: &mut Client,
    bounds: Bounds<'_>,
) -> Result<Answered, NoAnswer> {
    let (request, mut forgotten) = (awaited.request, 0);
    loop {
        let said = async {
            tokio::select! {
                said = awaited.next(dialed, bounds.guard) => said,
                given_up = gone(client, &mut forgotten, request, bounds.half_closed) => Err(given_up),
            }
        };
        match within(bounds.idle, said).await.unwrap_or(Err(NoAnswer::Idle))? {
            Said::Final(answered) => return Ok(answered),
            Said::Interim(heads) => pass(&heads, client, &bounds).await?,
        }
    }
}

impl<'a, K: Fn() -> bool> Awaited<'a, K> {
    pub(super) fn new(request: Exchange, bytes: &'a [u8], may_keep: K) -> Self {
        Self {
            request,
            unsent: bytes,
            answer: Answer::to(request),
            is_silent: true,
            may_keep,
        }
    }

    /// Sends the request, if it was not sent before. Returns what the target answers next.
    async fn next(&mut self, dialed: &mut Dialed, guard: &Guard) -> Result<Said, NoAnswer> {
        // A target that accepts no more bytes may already have answered, so the answer is read even
        // if this write fails.
        let written = send(std::mem::take(&mut self.unsent), guard, &mut dialed.stream).await;
        loop {
            let mut received = std::mem::take(&mut dialed.early);
            self.is_silent &= received.is_empty();
            let mut input = &received[..];
            if !(self.may_keep)() {
                self.answer.closes();
            }
            if let Some(heads) = self.answer.feed(&mut input) {
                let answer = std::mem::take(&mut self.answer);
                return Ok(Said::Final(Answered {
                    heads,
                    body: input.to_vec(),
                    followed: answer.into_followed().unwrap_or(Followed::LAST),
                }));
            }
            let interim = self.answer.take_interim();
            if !interim.is_empty() {
                return Ok(Said::Interim(interim));
            }
            received.clear();
            received.reserve(READ_BYTES);
            let is_silent = self.is_silent;
            let read = match dialed.stream.read_buf(&mut received).await {
                Ok(read) => read,
                Err(error) => return Err(NoAnswer::Target { error, is_silent }),
            };
            if read == 0 {
                return Err(match (is_silent, written) {
                    (false, _) => NoAnswer::Cut,
                    (true, Ok(())) => NoAnswer::Eof,
                    (true, Err(error)) => NoAnswer::Target { error, is_silent },
                });
            }
            dialed.early = received;
        }
    }
}

async fn send(mut request: &[u8], guard: &Guard, target: &mut Stream) -> io::Result<()> {
    if request.is_empty() {
        return Ok(());
    }
    while !request.is_empty() {
        let bytes = target.write(request).await?;
        guard.sent_ahead(bytes as u64);
        request = &request[bytes..];
    }
    // TLS may still hold a part.
    target.flush().await
}

/// Passes interim answers to the client.
async fn pass(heads: &[u8], client: &mut Client, bounds: &Bounds<'_>) -> Result<(), NoAnswer> {
    let patient = (&*client, Finish::Waits);
    let wait = wait_for_rate(bounds.rates, Direction::BToA, heads.len(), patient, bounds.guard);
    wait.await.map_err(NoAnswer::Left)?;
    let write = async {
        client.write_all(heads).await?;
        client.flush().await
    };
    let written = within(bounds.idle, write).await.ok_or(NoAnswer::Unread)?;
    written.map_err(NoAnswer::Client)?;
    bounds.guard.received_ahead(heads.len() as u64);
    Ok(())
}

/// Returns `None` after the limit.
async fn within<F: Future>(limit: Option<Duration>, future: F) -> Option<F::Output> {
    match limit {
        None => Some(future.await),
        Some(limit) => timeout(limit, future).await.ok(),
    }
}

/// Waits until the client's connection fails or has been half-closed for too long. If this is the
/// last request, bytes that the client sends meanwhile are discarded. Otherwise, they belong to its
/// next request, or to the new protocol of an upgrade.
async fn gone(
    client: &mut Client,
    forgotten: &mut usize,
    request: Exchange,
    half_closed: Option<Duration>,
) -> NoAnswer {
    if request.body == Body::Upgrade {
        return NoAnswer::Left(departed(client, Finish::Waits).await);
    }
    let is_last = request.reuse == Reuse::Close;
    while *forgotten <= FORGOTTEN_MAX_BYTES {
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
                *forgotten += bytes;
                client.consume(bytes);
            }
        }
    }
    std::future::pending().await
}
