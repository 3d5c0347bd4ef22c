//! The client side of SOCKS5 (RFC 1928, RFC 1929). It supports only CONNECT.
//!
//! ```text
//!   Method ─┬─ no authentication ────────────▶ Reply ──▶ connected
//!           └─ name and password ─▶ Verdict ──▶ Reply
//! ```

use super::{Error, Step};
use crate::address::Target;
use crate::message::Message;
use crate::socks5::{
    CONNECT, HEAD_BYTES, NO_AUTHENTICATION, NONE_ACCEPTABLE, PASSWORD, PASSWORD_VERSION, Reply, VERSION, address,
};
use crate::{Credentials, Failure};

/// A handshake with a SOCKS5 proxy. Each state has the name of the message that the handshake
/// awaits.
#[derive(Debug)]
pub struct Handshake {
    awaited: Awaited,
    message: Message,
    /// The message with name and password, for a proxy that asks for them. `None` if no credentials
    /// are configured.
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
    /// Starts a handshake. Returns the handshake and the greeting to send.
    ///
    /// With credentials, the greeting offers both methods, so a proxy that needs no password can
    /// choose "no authentication".
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] or [`Error::Target`] if SOCKS5 cannot express the credentials
    /// or the target.
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

    /// Consumes the bytes of the awaited answer from `input`: see
    /// [`Handshake::feed`](super::Handshake::feed).
    ///
    /// # Errors
    /// Returns the reason why the upstream proxy does not connect to the target.
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
                // A proxy that chooses a method that was not offered violates the protocol.
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

/// Returns the client's RFC 1929 message. A length byte, which must not be 0, precedes each field.
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

/// Returns the minimum length of an answer to the greeting that starts with `held`. The length is
/// exact once `held` is that long.
fn method_length(held: &[u8]) -> Result<usize, Error> {
    match held {
        [] | [VERSION, ..] => Ok(2),
        _ => Err(Error::Protocol),
    }
}

/// Like `method_length`, for the answer to name and password. The version is 1, but some proxies
/// send 5.
fn verdict_length(held: &[u8]) -> Result<usize, Error> {
    match held {
        [] | [PASSWORD_VERSION | VERSION, ..] => Ok(2),
        _ => Err(Error::Protocol),
    }
}

/// Like `method_length`, for the answer to the request. Only the length of its address matters.
fn reply_length(held: &[u8]) -> Result<usize, Error> {
    match held {
        [] | [VERSION] => Ok(2),
        // The rest of a refusal does not matter, and some proxies do not send it.
        [VERSION, code, ..] if *code != Reply::Succeeded as u8 => Ok(2),
        [VERSION, ..] => {
            let address = held.get(HEAD_BYTES..).unwrap_or_default();
            Ok(HEAD_BYTES + address::length(address).map_err(|_| Error::Protocol)?)
        }
        _ => Err(Error::Protocol),
    }
}
