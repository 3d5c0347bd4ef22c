//! The server side of SOCKS4 and SOCKS4a: one message and one reply.
//!
//! The protocol has a user ID, which any client can claim, and no password. If a service demands a
//! password, the parser refuses every client. The longest message has 520 bytes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::message::Message;
use super::{Command, Demand, Failure, Refused, Request};
use crate::address::Target;
use crate::socks5::address::of_name;

pub(super) const VERSION: u8 = 4;
const CONNECT: u8 = 1;
const BIND: u8 = 2;
/// The number of bytes before the user ID: version, command, port, and address.
const HEAD_BYTES: usize = 8;
/// The most bytes of a user ID or of a name, without the 0 byte that follows each. SOCKS5 has the
/// same limit.
const FIELD_MAX_BYTES: usize = 255;

const GRANTED: u8 = 90;
const REJECTED: u8 = 91;

/// The user ID that the client claims. The protocol has no means to prove it.
pub type UserId = Box<[u8]>;

/// Parses the client's only message: its request.
#[derive(Debug)]
pub struct RequestStage {
    demand: Demand,
    message: Message,
}

/// The reason why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The client does not speak SOCKS4.
    Version,
    /// The command is not supported.
    Command,
    /// The user ID is longer than 255 bytes.
    UserId,
    /// The name of the target is empty or longer than 255 bytes, or contains bytes that host names
    /// do not contain.
    Name,
    /// The service demands a password, and SOCKS4 has no passwords.
    Method,
}

impl RequestStage {
    /// Creates a parser for a service with this demand.
    pub fn new(demand: Demand) -> Self {
        Self {
            demand,
            message: Message::default(),
        }
    }

    /// Consumes the bytes of this message from `input`. Returns the request and the user ID, or
    /// `None` until the message is complete.
    ///
    /// # Errors
    /// Returns the reason why the client is refused.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<(Request, UserId)>, Refusal> {
        let Some(message) = self.message.feed(input, length)? else {
            return Ok(None);
        };
        if self.demand == Demand::Password {
            return Err(Refusal::Method);
        }
        let command = match message[1] {
            CONNECT => Command::Connect,
            BIND => Command::Bind,
            _ => return Err(Refusal::Command),
        };
        let port = u16::from_be_bytes([message[2], message[3]]);
        let (user_id, name) = fields(message);
        let target = match name {
            None => Target::Ip((ip(message), port).into()),
            Some(name) => {
                let name = std::str::from_utf8(name).map_err(|_| Refusal::Name)?;
                of_name(name, port).ok_or(Refusal::Name)?
            }
        };
        Ok(Some((Request { command, target }, user_id.into())))
    }
}

/// Returns the minimum length of a message that starts with `held`. The length is exact once `held`
/// is that long.
///
/// After the head, the length grows by one byte at a time, because only a 0 byte shows the end of a
/// field.
fn length(held: &[u8]) -> Result<usize, Refusal> {
    match held {
        [] => return Ok(1),
        [VERSION, ..] => {}
        _ => return Err(Refusal::Version),
    }
    let Some(rest) = held.get(HEAD_BYTES..) else {
        return Ok(HEAD_BYTES);
    };
    let Some(end) = end_of_field(rest, Refusal::UserId)? else {
        return Ok(held.len() + 1);
    };
    match !has_name(ip(held)) || end_of_field(&rest[end + 1..], Refusal::Name)?.is_some() {
        true => Ok(held.len()),
        false => Ok(held.len() + 1),
    }
}

/// Returns the position of the 0 byte that ends the field, if that byte has arrived.
fn end_of_field(rest: &[u8], too_long: Refusal) -> Result<Option<usize>, Refusal> {
    match rest.iter().position(|byte| *byte == 0) {
        None if rest.len() > FIELD_MAX_BYTES => Err(too_long),
        end => Ok(end),
    }
}

/// Returns the user ID and the name in a complete message, without the 0 byte after each. A message
/// with an address has no name.
fn fields(message: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut fields = message[HEAD_BYTES..].split(|byte| *byte == 0);
    let user_id = fields.next().unwrap_or_default();
    (user_id, fields.next().filter(|_| has_name(ip(message))))
}

fn ip(message: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(message[4], message[5], message[6], message[7])
}

/// Returns whether a name follows. SOCKS4a marks this with an address that no host can have:
/// 0.0.0.x, with x not 0.
fn has_name(ip: Ipv4Addr) -> bool {
    matches!(ip.octets(), [0, 0, 0, last] if last != 0)
}

impl Refusal {
    /// Every refusal, for code that keeps one counter for each refusal.
    pub const ALL: [Self; 5] = [Self::Version, Self::Command, Self::UserId, Self::Name, Self::Method];

    /// Returns the answer to the client. It is empty if the client does not speak SOCKS4.
    pub fn answer(self) -> Vec<u8> {
        match self {
            Self::Version => Vec::new(),
            Self::Command | Self::UserId | Self::Name | Self::Method => {
                reply(REJECTED, Ipv4Addr::UNSPECIFIED, 0).to_vec()
            }
        }
    }

    /// Returns the value of `reason` in metrics and log records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Command => "command",
            Self::UserId => "user_id",
            Self::Name => "name",
            Self::Method => "method",
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            reason: refusal.as_str(),
            answer: refusal.answer(),
        }
    }
}

/// Returns the reply to a request that succeeded.
///
/// `bound` has the same meaning as in [`socks5::succeeded`](crate::socks5::succeeded). The reply
/// has no room for an IPv6 address, and contains 0.0.0.0 instead.
pub fn succeeded(bound: SocketAddr) -> [u8; 8] {
    let ip = match bound.ip().to_canonical() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    reply(GRANTED, ip, bound.port())
}

/// Returns the reply to a request whose target was not reached. SOCKS4 has one code for all
/// failures.
pub fn failed(_: Failure) -> [u8; 8] {
    reply(REJECTED, Ipv4Addr::UNSPECIFIED, 0)
}

fn reply(code: u8, ip: Ipv4Addr, port: u16) -> [u8; 8] {
    let [port_high, port_low] = port.to_be_bytes();
    let [a, b, c, d] = ip.octets();
    [0, code, port_high, port_low, a, b, c, d]
}

#[cfg(test)]
mod tests;
