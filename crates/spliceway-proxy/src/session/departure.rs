//! Detects that a client has left while it waits for its answer.
//!
//! A reset always means that the client has left. An EOF means the same if two conditions hold.
//! There must be no unread bytes before it, and the client may finish only after its answer
//! ([`Finish::Leaves`]). If there are unread bytes before the EOF, the client has only finished
//! sending. In this case, only a reset counts.
//!
//! A client that speaks TLS announces its end, so one unread record may be before the EOF. It is
//! not decrypted. If it is no announcement, the client has ended without one, and has left too.
//!
//! The detection consumes no bytes and uses no timer.

use std::io;

use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;

use crate::kit::outcome::{Outcome, SessionEnd};
use crate::net::stream::Stream;
use crate::session::client::Client;

/// The meaning of EOF from the client before it has its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// The client has given up. This holds for SOCKS, for CONNECT, and for a request whose body is
    /// still to come.
    Leaves,
    /// The client has sent everything and is waiting for the answer. This holds for a forwarder's
    /// client, and for a whole HTTP request.
    Waits,
}

/// Waits until the client has left and returns how it left.
///
/// # Cancel safety
/// Dropping this future has no effect, because it does not consume the client's bytes.
pub(super) async fn departed(client: &Client, finish: Finish) -> Outcome {
    let stream = client.get_ref();
    // PRIORITY reports EOF. It also reports urgent data, but these sockets are not registered for
    // it. Unlike READABLE, it does not report readable bytes, so unread bytes do not make this loop
    // spin.
    let mut interest = match finish {
        Finish::Leaves => Interest::PRIORITY.add(Interest::ERROR),
        Finish::Waits => Interest::ERROR,
    };
    loop {
        match stream.ready(interest).await {
            Ok(ready) if ready.is_error() => return reset(stream.take_error()),
            Ok(_) if client.buffer().is_empty() => match has_unread(stream) {
                Ok(false) => return SessionEnd::ClientEof.into(),
                Ok(true) => {}
                Err(error) => return reset(Err(error)),
            },
            Ok(_) => {}
            Err(error) => return reset(Err(error)),
        }
        // The EOF stays reported. From now on, only an error is a new event.
        interest = Interest::ERROR;
    }
}

/// Returns whether there are unread bytes that the client wants to be served. At EOF, these are the
/// bytes before it.
fn has_unread(stream: &Stream) -> io::Result<bool> {
    let mut bytes = [0; RECORD_MAX_BYTES + 1];
    let (received, _) = recv(stream, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    let is_end = matches!(stream, Stream::Tls(_)) && may_announce_end(&bytes[..received]);
    Ok(received > 0 && !is_end)
}

/// The most bytes of a record with an alert: its head, a nonce, the alert, and a tag.
const RECORD_MAX_BYTES: usize = 5 + 8 + 2 + 16;

/// Returns whether these bytes are one record with an alert, or look like one. TLS 1.3 hides the
/// type of a record, but not its length: the alert, its type, and a tag.
fn may_announce_end(bytes: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const DATA: u8 = 23;
    const HIDDEN_ALERT_BYTES: usize = 2 + 1 + 16;
    match bytes {
        [kind, _, _, high, low, content @ ..] if content.len() == usize::from(u16::from_be_bytes([*high, *low])) => {
            *kind == ALERT || *kind == DATA && content.len() == HIDDEN_ALERT_BYTES
        }
        _ => false,
    }
}

fn reset(error: io::Result<Option<io::Error>>) -> Outcome {
    match error {
        Ok(None) => SessionEnd::ResetByClient.into(),
        Ok(Some(error)) | Err(error) => Outcome::because(SessionEnd::ResetByClient, &error),
    }
}
