//! Whether a client has left while it waits for its answer.
//!
//! A reset always means that it has. An end of stream means so where nothing unread is before it, of a client that has to wait for an
//! answer before it may finish ([`Finish::Leaves`]). Where bytes are unread before the end, the client has only sent all that it had:
//! then a reset alone counts. No byte is consumed, and no timer runs.

use std::io;

use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;

use crate::handshake::Client;
use crate::record::{SessionEnd, Outcome};
use crate::stream::Stream;

/// What an end of the client's stream means before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// That it has given up: SOCKS, CONNECT, and a request whose body is still to come.
    Leaves,
    /// Nothing: it has said all it has to say, and reads. A forwarder's client, and a whole HTTP request.
    Waits,
}

/// Waits until the client has left, and says how.
///
/// # Cancel safety
/// Dropping it changes nothing: what the client has sent is where it was.
pub(super) async fn departed(client: &Client, finish: Finish) -> Outcome {
    let stream = client.get_ref();
    // The bits of PRIORITY are urgent data, which these sockets are not registered for, and the end of the stream. Unlike those of
    // READABLE they do not say that bytes are there, so that unread bytes do not make this spin.
    let mut interest = match finish {
        Finish::Leaves => Interest::PRIORITY.add(Interest::ERROR),
        Finish::Waits => Interest::ERROR,
    };
    loop {
        match stream.ready(interest).await {
            Ok(ready) if ready.is_error() => return reset(stream.take_error()),
            Ok(_) if client.buffer().is_empty() => match unread(stream) {
                Ok(false) => return SessionEnd::ClientEof.into(),
                Ok(true) => {}
                Err(error) => return reset(Err(error)),
            },
            Ok(_) => {}
            Err(error) => return reset(Err(error)),
        }
        // The end stays seen: from now on only an error is news.
        interest = Interest::ERROR;
    }
}

/// Whether bytes are there; at the end of a stream, whether any are before it.
fn unread(stream: &Stream) -> io::Result<bool> {
    let (received, _) = recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    Ok(received > 0)
}

fn reset(error: io::Result<Option<io::Error>>) -> Outcome {
    match error {
        Ok(None) => SessionEnd::ResetByClient.into(),
        Ok(Some(error)) | Err(error) => Outcome::because(SessionEnd::ResetByClient, &error),
    }
}
