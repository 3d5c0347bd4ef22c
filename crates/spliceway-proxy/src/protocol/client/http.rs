//! HTTP CONNECT (RFC 9110 section 9.3.6) towards an upstream proxy.

use super::{Error, Step};
use crate::address::Target;
use crate::protocol::http::{FIELDS_MAX, HEAD_MAX_BYTES, basic_credentials, head_length};
use crate::protocol::message::Message;
use crate::protocol::{Credentials, Failure};

/// A conversation in which the answer is awaited.
#[derive(Debug)]
pub struct Handshake {
    message: Message,
    /// Whether the request says who asks.
    identified: bool,
    /// Of the heads that said that the answer is yet to come.
    interim_bytes: usize,
}

impl Handshake {
    /// The conversation, and the request to send.
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

    /// See [`Handshake::feed`](super::Handshake::feed).
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Step, Error> {
        loop {
            let room = HEAD_MAX_BYTES - self.interim_bytes;
            let Some(head) = self.message.feed(input, |held| answer_length(held, room))? else {
                return Ok(Step::Wait);
            };
            match status(head)? {
                // An answer to anything but our request: we did not ask to speak something else.
                101 => return Err(Error::Protocol),
                100..=199 => {
                    self.interim_bytes += head.len();
                    self.message.clear();
                }
                // Fields that speak of a body are to be ignored in this answer: there is none.
                200..=299 => return Ok(Step::Connected),
                407 if self.identified => return Err(Error::Authentication),
                407 => return Err(Error::Method),
                code => return Err(Error::Failed(failure(code))),
            }
        }
    }
}

/// How long an answer is at least, that starts with `held`. Once `held` is that long, it is exact.
fn answer_length(held: &[u8], room: usize) -> Result<usize, Error> {
    // Who speaks something else may wait for us to go on, and never end a line.
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
