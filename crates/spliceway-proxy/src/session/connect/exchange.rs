//! Sends a request without a body and reads the head of its answer.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::departure::{Finish, departed};
use crate::kit::outcome::Outcome;
use crate::net::stream::Stream;
use crate::reach::dial::Dialed;
use crate::session::handshake::Client;
use crate::session::linger::FORGOTTEN_MAX_BYTES;
use spliceway_protocol::http::Answer;

/// The size of one read, with room for most answer heads.
const READ_BYTES: usize = 4 << 10;

/// The reason why an exchange has no answer.
pub(super) enum NoAnswer {
    /// The client's connection failed.
    Client(io::Error),
    /// The client has left.
    Left(Outcome),
    Target(io::Error),
    /// The target ended its stream without sending a byte.
    Eof,
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

/// The rewritten head of an answer, and the bytes received after it.
pub(super) struct Answered {
    pub(super) bytes: Vec<u8>,
    /// Whether the target agreed to an upgrade.
    pub(super) has_switched: bool,
}

/// Sends `request` and returns the answer, rewritten to be the last one on its connection. With
/// `wants_upgrade`, a 101 answer is returned unchanged.
///
/// `sent` is called with each number of bytes that were sent, whether or not there is an answer.
///
/// If the target closes the connection before the head of the answer is complete, the target's
/// bytes are returned unchanged.
pub(super) async fn exchange(
    request: &[u8],
    sent: impl FnMut(u64),
    wants_upgrade: bool,
    dialed: &mut Dialed,
    client: &mut Client,
    patience: Patience,
) -> Result<Answered, NoAnswer> {
    let answered = async {
        tokio::select! {
            answer = request_head(request, sent, wants_upgrade, dialed) => answer,
            given_up = gone(client, wants_upgrade, patience.half_closed) => Err(given_up),
        }
    };
    match patience.idle {
        None => answered.await,
        Some(idle) => timeout(idle, answered).await.unwrap_or(Err(NoAnswer::Idle)),
    }
}

async fn request_head(
    request: &[u8],
    sent: impl FnMut(u64),
    wants_upgrade: bool,
    dialed: &mut Dialed,
) -> Result<Answered, NoAnswer> {
    // A target that accepts no more bytes may already have answered, so the answer is read even if
    // this write fails.
    let written = send(request, sent, &mut dialed.stream).await;
    let mut answer = if wants_upgrade {
        Answer::to_upgrade()
    } else {
        Answer::default()
    };
    let mut received = std::mem::take(&mut dialed.early);
    loop {
        let mut input = &received[..];
        if let Some(heads) = answer.feed(&mut input) {
            return Ok(Answered {
                bytes: [&heads[..], input].concat(),
                has_switched: answer.has_switched(),
            });
        }
        received.clear();
        received.reserve(READ_BYTES);
        let read = dialed.stream.read_buf(&mut received).await.map_err(NoAnswer::Target)?;
        if read == 0 {
            let cut_short = answer.cut_short();
            return match (cut_short.is_empty(), written) {
                (false, _) => Ok(Answered {
                    bytes: cut_short,
                    has_switched: false,
                }),
                (true, Ok(())) => Err(NoAnswer::Eof),
                (true, Err(error)) => Err(NoAnswer::Target(error)),
            };
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

/// Waits until the client's connection fails or has been half-closed for too long. Bytes that the
/// client sends meanwhile are discarded. If the client asked for an upgrade, the bytes may belong
/// to the new protocol, so they stay unread.
async fn gone(client: &mut Client, wants_upgrade: bool, half_closed: Option<Duration>) -> NoAnswer {
    if wants_upgrade {
        return NoAnswer::Left(departed(client, Finish::Waits).await);
    }
    let mut forgotten = 0;
    while forgotten <= FORGOTTEN_MAX_BYTES {
        match (client.fill_buf().await, half_closed) {
            (Err(error), _) => return NoAnswer::Client(error),
            (Ok([]), Some(limit)) => {
                sleep(limit).await;
                return NoAnswer::HalfClosed;
            }
            (Ok([]), None) => break,
            (Ok(more), _) => {
                let bytes = more.len();
                forgotten += bytes;
                client.consume(bytes);
            }
        }
    }
    std::future::pending().await
}
