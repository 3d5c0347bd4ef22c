//! SOCKS4 and 4a from the server's side: one message, one reply.
//!
//! It knows a user id, which anybody may claim, and no secret: where users are demanded, every client is refused. The longest message
//! has 520 bytes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::message::Message;
use super::{Command, Demand, Failure, Refused, Request};
use crate::address::Target;

pub(super) const VERSION: u8 = 4;
const CONNECT: u8 = 1;
const BIND: u8 = 2;
/// Bytes before the user id: version, command, port, address.
const HEAD_BYTES: usize = 8;
/// Of a user id and of a name, each followed by a 0. What SOCKS5 has room for.
const FIELD_MAX_BYTES: usize = 255;

const GRANTED: u8 = 90;
const REJECTED: u8 = 91;

/// Whom the client says it is. Anybody may say that.
pub type UserId = Box<[u8]>;

/// The client's only message.
#[derive(Debug)]
pub struct RequestStage {
    demand: Demand,
    message: Message,
}

/// Why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It speaks something else.
    Version,
    Command,
    /// Its user id is longer than 255 bytes.
    UserId,
    /// Its name is none: empty, longer than 255 bytes, or with bytes that no host name has.
    Name,
    /// A secret is demanded, and this protocol has none.
    Method,
}

impl RequestStage {
    pub fn new(demand: Demand) -> Self {
        Self {
            demand,
            message: Message::default(),
        }
    }

    /// Takes from `input` what belongs to this message, and gives what is asked and the user id; `None` while it is not whole.
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
                Target::named(name, port).ok_or(Refusal::Name)?
            }
        };
        Ok(Some((Request { command, target }, user_id.into())))
    }
}

/// How long a message is at least, that starts with `held`. Once `held` is that long, it is exact.
///
/// Grows by a byte at a time behind the head, since nothing says where a field ends but its end.
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

/// Where the 0 is, if it is there.
fn end_of_field(rest: &[u8], too_long: Refusal) -> Result<Option<usize>, Refusal> {
    match rest.iter().position(|byte| *byte == 0) {
        None if rest.len() > FIELD_MAX_BYTES => Err(too_long),
        end => Ok(end),
    }
}

/// User id and name of a whole message, without the 0 behind each; no name if it has an address.
fn fields(message: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut fields = message[HEAD_BYTES..].split(|byte| *byte == 0);
    let user_id = fields.next().unwrap_or_default();
    (user_id, fields.next().filter(|_| has_name(ip(message))))
}

fn ip(message: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(message[4], message[5], message[6], message[7])
}

/// SOCKS4a: an address that nothing can have, 0.0.0.x, says that a name follows.
fn has_name(ip: Ipv4Addr) -> bool {
    matches!(ip.octets(), [0, 0, 0, last] if last != 0)
}

impl Refusal {
    /// Every one, for whoever keeps a count of each.
    pub const ALL: [Self; 5] = [Self::Version, Self::Command, Self::UserId, Self::Name, Self::Method];

    /// What the client is told; nothing if it does not speak SOCKS4.
    pub fn answer(self) -> Vec<u8> {
        match self {
            Self::Version => Vec::new(),
            Self::Command | Self::UserId | Self::Name | Self::Method => {
                reply(REJECTED, Ipv4Addr::UNSPECIFIED, 0).to_vec()
            }
        }
    }

    /// The `reason` of metrics and records.
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

/// What a client is told whose target is reached. `bound` as in SOCKS5; 0.0.0.0 stands for an IPv6 address, which has no room here.
pub fn succeeded(bound: SocketAddr) -> [u8; 8] {
    let ip = match bound.ip().to_canonical() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    reply(GRANTED, ip, bound.port())
}

/// What a client is told whose target is not. The protocol has one word for all of it.
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
