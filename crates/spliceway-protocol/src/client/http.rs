//! The client side of HTTP CONNECT (RFC 9110 section 9.3.6).

use super::{Error, Step};
use crate::address::Target;
use crate::http::{FIELDS_MAX, HEAD_MAX_BYTES, basic_credentials, head_length};
use crate::message::Message;
use crate::{Credentials, Failure};

/// A handshake with an HTTP proxy. It awaits the response.
#[derive(Debug)]
pub struct Handshake {
    message: Message,
    /// Whether the request contains credentials.
    identified: bool,
    /// The length of all interim responses so far, in bytes.
    interim_bytes: usize,
}

impl Handshake {
    /// Starts a handshake. Returns the handshake and the request to send.
    ///
    /// `via` is the value of the field `Via`: the proxies that the request has passed through.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] or [`Error::Target`] if HTTP cannot express the credentials
    /// or the target.
    pub fn start(target: &Target, credentials: Option<&Credentials>, via: &str) -> Result<(Self, Vec<u8>), Error> {
        if matches!(target, Target::Unix(_)) {
            return Err(Error::Target);
        }
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(credentials) = credentials {
            let value = basic_credentials(credentials).ok_or(Error::Credentials)?;
            request.push_str(&format!("Proxy-Authorization: {value}\r\n"));
        }
        request.push_str(&format!("Via: {via}\r\n\r\n"));
        let handshake = Self {
            message: Message::default(),
            identified: credentials.is_some(),
            interim_bytes: 0,
        };
        Ok((handshake, request.into_bytes()))
    }

    /// Consumes the bytes of the awaited response from `input`: see
    /// [`Handshake::feed`](super::Handshake::feed).
    ///
    /// # Errors
    /// Returns the reason why the upstream proxy does not connect to the target.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Step, Error> {
        loop {
            let room = HEAD_MAX_BYTES - self.interim_bytes;
            let Some(head) = self.message.feed(input, |held| answer_length(held, room))? else {
                return Ok(Step::Wait);
            };
            match status(head)? {
                // This status does not answer the request, because the request did not ask for
                // another protocol.
                101 => return Err(Error::Protocol),
                100..=199 => {
                    self.interim_bytes += head.len();
                    self.message.clear();
                }
                // This response has no body, and a client must ignore fields that describe one.
                200..=299 => return Ok(Step::Connected),
                407 if self.identified => return Err(Error::Authentication),
                407 => return Err(Error::Method),
                code => return Err(Error::Failed(failure(code))),
            }
        }
    }
}

/// Returns the minimum length of a response head that starts with `held`. The length is exact once
/// `held` is that long.
fn answer_length(held: &[u8], room: usize) -> Result<usize, Error> {
    // A server that speaks another protocol may wait for the next message and never end a line.
    let speaks_http = held.iter().zip(b"HTTP/1.").all(|(byte, expected)| byte == expected);
    head_length(held)
        .filter(|length| speaks_http && *length <= room)
        .ok_or(Error::Protocol)
}

fn status(head: &[u8]) -> Result<u16, Error> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(bytes)) if bytes == head.len() => parsed.code.ok_or(Error::Protocol),
        _ => Err(Error::Protocol),
    }
}

fn failure(code: u16) -> Failure {
    match code {
        403 => Failure::NotAllowed,
        502 | 503 => Failure::HostUnreachable,
        504 => Failure::TimedOut,
        508 => Failure::Loop,
        _ => Failure::General,
    }
}
