//! SOCKS5 (RFC 1928, RFC 1929) towards an upstream proxy: CONNECT alone.
//!
//! ```text
//!   Method ─┬─ no authentication ────────────▶ Reply ──▶ connected
//!           └─ name and password ─▶ Verdict ──▶ Reply
//! ```

use super::{Error, Step};
use crate::address::Target;
use crate::protocol::message::Message;
use crate::protocol::socks5::{
    CONNECT, HEAD_BYTES, NO_AUTHENTICATION, NONE_ACCEPTABLE, PASSWORD, PASSWORD_VERSION, Reply, VERSION, address,
};
use crate::protocol::{Credentials, Failure};

/// A conversation that is named for what it awaits.
#[derive(Debug)]
pub struct Handshake {
    awaited: Awaited,
    message: Message,
    /// What is sent once the method is known; `None` if no credentials are set.
    password: Option<Vec<u8>>,
    request: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Method,
    Verdict,
    Reply,
}

impl Handshake {
    /// The conversation, and what to send first.
    ///
    /// With credentials both methods are offered: a proxy that wants none takes none.
    pub fn start(target: &Target, credentials: Option<&Credentials>) -> Result<(Self, Vec<u8>), Error> {
        let password = credentials.map(password).transpose()?;
        let mut request = vec![VERSION, CONNECT, 0];
        address::encode_target(target, &mut request).ok_or(Error::Target)?;
        let greeting = match password {
            Some(_) => vec![VERSION, 2, NO_AUTHENTICATION, PASSWORD],
            None => vec![VERSION, 1, NO_AUTHENTICATION],
        };
        let handshake = Self {
            awaited: Awaited::Method,
            message: Message::default(),
            password,
            request,
        };
        Ok((handshake, greeting))
    }

    /// See [`Handshake::feed`](super::Handshake::feed).
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Step, Error> {
        let length = match self.awaited {
            Awaited::Method => method_length,
            Awaited::Verdict => verdict_length,
            Awaited::Reply => reply_length,
        };
        let Some(message) = self.message.feed(input, length)? else {
            return Ok(Step::Wait);
        };
        let code = message[1];
        self.message.clear();
        match (self.awaited, code) {
            (Awaited::Method, NO_AUTHENTICATION) | (Awaited::Verdict, 0) => {
                self.awaited = Awaited::Reply;
                Ok(Step::Send(std::mem::take(&mut self.request)))
            }
            (Awaited::Method, PASSWORD) => {
                self.awaited = Awaited::Verdict;
                // One that chooses what was not offered does not speak the protocol.
                self.password.take().map(Step::Send).ok_or(Error::Protocol)
            }
            (Awaited::Method, NONE_ACCEPTABLE) => Err(Error::Method),
            (Awaited::Method, _) => Err(Error::Protocol),
            (Awaited::Verdict, _) => Err(Error::Authentication),
            (Awaited::Reply, code) if code == Reply::Succeeded as u8 => Ok(Step::Connected),
            (Awaited::Reply, code) => Err(Error::Failed(failure(code))),
        }
    }
}

/// RFC 1929's one message: each field is counted by a byte that is not 0.
fn password(credentials: &Credentials) -> Result<Vec<u8>, Error> {
    let mut message = vec![PASSWORD_VERSION];
    for field in [&credentials.name, &credentials.secret] {
        let bytes = u8::try_from(field.len()).ok().filter(|bytes| *bytes > 0);
        message.push(bytes.ok_or(Error::Credentials)?);
        message.extend_from_slice(field);
    }
    Ok(message)
}

fn failure(code: u8) -> Failure {
    let failures = Failure::ALL.into_iter();
    let mut known = failures.filter(|failure| Reply::from(*failure) as u8 == code);
    known.next().unwrap_or(Failure::General)
}

/// How long the answer to the greeting is at least, that starts with `held`. Once `held` is that long, it is exact.
fn method_length(held: &[u8]) -> Result<usize, Error> {
    match held {
        [] | [VERSION, ..] => Ok(2),
        _ => Err(Error::Protocol),
    }
}

/// The same of the answer to name and password. Some say 5 for its version, which is 1.
fn verdict_length(held: &[u8]) -> Result<usize, Error> {
    match held {
        [] | [PASSWORD_VERSION | VERSION, ..] => Ok(2),
        _ => Err(Error::Protocol),
    }
}

/// The same of the answer to the request. The address in it is nothing that we need, but its length is.
fn reply_length(held: &[u8]) -> Result<usize, Error> {
    match held {
        [] | [VERSION] => Ok(2),
        // A refusal says no more that matters, and some end it here.
        [VERSION, code, ..] if *code != Reply::Succeeded as u8 => Ok(2),
        [VERSION, ..] => {
            let address = held.get(HEAD_BYTES..).unwrap_or_default();
            Ok(HEAD_BYTES + address::length(address).map_err(|_| Error::Protocol)?)
        }
        _ => Err(Error::Protocol),
    }
}
