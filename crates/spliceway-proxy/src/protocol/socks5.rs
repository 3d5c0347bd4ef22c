//! SOCKS5 (RFC 1928) from the server's side, with user and password (RFC 1929).
//!
//! ```text
//!   Greeting ──▶ Offer ─┬─ Agreed ────────────────────────────▶ RequestStage ──▶ Request
//!                       └─ PasswordStage ─▶ Undecided ─ Proof ─▶ Agreed
//! ```
//!
//! Each arrow needs the value before it, so no request is read of a client that has not agreed to no authentication, where nothing is
//! demanded, or proven who it is. Messages are cut out of the stream however it was cut into reads; what follows the last one stays
//! in the input. The longest message has 513 bytes.

pub(crate) mod address;
pub mod datagram;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::message::Message;
use super::{Command, Credentials, Demand, Failure, Proof, Refused, Request};

pub(super) const VERSION: u8 = 5;
/// Of the messages in which user and password are told.
pub(super) const PASSWORD_VERSION: u8 = 1;
pub(super) const NO_AUTHENTICATION: u8 = 0;
pub(super) const PASSWORD: u8 = 2;
pub(super) const NONE_ACCEPTABLE: u8 = 0xFF;
pub(super) const CONNECT: u8 = 1;
const BIND: u8 = 2;
const ASSOCIATE: u8 = 3;
/// Bytes of a request or a reply before its address: version, command or reply code, reserved.
pub(super) const HEAD_BYTES: usize = 3;

/// The bound address of a reply that binds none.
pub const UNSPECIFIED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The client's first message: the methods it offers.
#[derive(Debug)]
pub struct Greeting {
    demand: Demand,
    message: Message,
}

/// The method chosen of those that the client offers. The client is told with [`answer`](Offer::answer).
#[derive(Debug)]
pub enum Offer {
    /// No authentication, which is what is demanded.
    Agreed(Agreed),
    Password(PasswordStage),
}

/// The client's message with its name and secret.
#[derive(Debug)]
pub struct PasswordStage {
    message: Message,
}

/// A client whose credentials are to be looked at.
#[derive(Debug)]
pub struct Undecided(());

/// That the client may ask: nothing was demanded of it, or it has proven who it is.
#[derive(Debug)]
pub struct Agreed(());

/// The client's last message: what it wants.
#[derive(Debug)]
pub struct RequestStage {
    message: Message,
}

/// Why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It speaks something else.
    Version,
    /// It does not offer the method that is demanded.
    Method,
    /// It tells name and secret in another way than RFC 1929's.
    PasswordVersion,
    Command,
    AddressType,
    /// Its name is none: empty, or with bytes that no host name has.
    Name,
}

/// The reply code to a request, RFC 1928 section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    Succeeded = 0x00,
    GeneralFailure = 0x01,
    NotAllowed = 0x02,
    NetworkUnreachable = 0x03,
    HostUnreachable = 0x04,
    ConnectionRefused = 0x05,
    TtlExpired = 0x06,
    CommandNotSupported = 0x07,
    AddressTypeNotSupported = 0x08,
}

impl Greeting {
    pub fn new(demand: Demand) -> Self {
        Self {
            demand,
            message: Message::default(),
        }
    }

    /// Takes from `input` what belongs to this message; `None` while it is not whole.
    ///
    /// Of what is offered one method is looked for: the one that is demanded. A client that would give its name unasked must offer
    /// none as well.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Offer>, Refusal> {
        let Some(message) = self.message.feed(input, greeting_length)? else {
            return Ok(None);
        };
        let (method, offer) = match self.demand {
            Demand::Nothing => (NO_AUTHENTICATION, Offer::Agreed(Agreed(()))),
            Demand::Password => (PASSWORD, Offer::Password(PasswordStage::new())),
        };
        match message[2..].contains(&method) {
            true => Ok(Some(offer)),
            false => Err(Refusal::Method),
        }
    }
}

impl Offer {
    /// What the client is told.
    pub fn answer(&self) -> [u8; 2] {
        match self {
            Self::Agreed(_) => [VERSION, NO_AUTHENTICATION],
            Self::Password(_) => [VERSION, PASSWORD],
        }
    }
}

impl PasswordStage {
    fn new() -> Self {
        Self {
            message: Message::default(),
        }
    }

    /// Takes from `input` what belongs to this message; `None` while it is not whole.
    ///
    /// An empty name or secret, which RFC 1929 does not know, is read as such: it is nobody's, and its client is told so.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<(Credentials, Undecided)>, Refusal> {
        let Some(message) = self.message.feed(input, password_length)? else {
            return Ok(None);
        };
        let (name, secret) = message[2..].split_at(usize::from(message[1]));
        let credentials = Credentials {
            name: name.into(),
            secret: secret[1..].into(),
        };
        Ok(Some((credentials, Undecided(()))))
    }
}

impl Undecided {
    /// What a client is told that is who it says.
    pub const ACCEPTED: [u8; 2] = [PASSWORD_VERSION, 0];
    /// What any other is told, before its connection is closed.
    pub const REFUSED: [u8; 2] = [PASSWORD_VERSION, 1];
    /// One that has to wait, since too many secrets of its address were wrong. RFC 1929 has one word for all failures, any number but 0:
    /// these differ for those who look.
    pub const WAIT: [u8; 2] = [PASSWORD_VERSION, 2];
    /// One whose secret could not be looked at, since there are too many others.
    pub const BUSY: [u8; 2] = [PASSWORD_VERSION, 3];

    pub fn accept(self, _: Proof) -> Agreed {
        Agreed(())
    }
}

impl Agreed {
    pub fn request(self) -> RequestStage {
        RequestStage {
            message: Message::default(),
        }
    }
}

impl RequestStage {
    /// Takes from `input` what belongs to this message; `None` while it is not whole.
    ///
    /// An unknown command is refused when its request is whole, an unknown address type as soon as it is seen: its length is unknown.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Request>, Refusal> {
        let Some(message) = self.message.feed(input, request_length)? else {
            return Ok(None);
        };
        let command = match message[1] {
            CONNECT => Command::Connect,
            BIND => Command::Bind,
            ASSOCIATE => Command::Associate,
            _ => return Err(Refusal::Command),
        };
        let target = address::decode(&message[HEAD_BYTES..])?;
        Ok(Some(Request { command, target }))
    }
}

/// How long a greeting is at least, that starts with `held`. Once `held` is that long, it is exact.
fn greeting_length(held: &[u8]) -> Result<usize, Refusal> {
    match held {
        [] => Ok(1),
        [VERSION] => Ok(2),
        [VERSION, methods, ..] => Ok(2 + usize::from(*methods)),
        _ => Err(Refusal::Version),
    }
}

/// The same of name and secret.
fn password_length(held: &[u8]) -> Result<usize, Refusal> {
    match held {
        [] => Ok(1),
        [PASSWORD_VERSION] => Ok(2),
        [PASSWORD_VERSION, name_bytes, rest @ ..] => {
            let name_bytes = usize::from(*name_bytes);
            let secret_bytes = rest.get(name_bytes).map_or(0, |bytes| usize::from(*bytes));
            Ok(2 + name_bytes + 1 + secret_bytes)
        }
        _ => Err(Refusal::PasswordVersion),
    }
}

/// The same of a request.
fn request_length(held: &[u8]) -> Result<usize, Refusal> {
    match held {
        [] => Ok(1),
        [VERSION, ..] => Ok(HEAD_BYTES + address::length(held.get(HEAD_BYTES..).unwrap_or_default())?),
        _ => Err(Refusal::Version),
    }
}

impl From<address::Wrong> for Refusal {
    fn from(wrong: address::Wrong) -> Self {
        match wrong {
            address::Wrong::Type => Self::AddressType,
            address::Wrong::Name => Self::Name,
        }
    }
}

impl Refusal {
    /// Every one, for whoever keeps a count of each.
    pub const ALL: [Self; 6] = [
        Self::Version,
        Self::Method,
        Self::PasswordVersion,
        Self::Command,
        Self::AddressType,
        Self::Name,
    ];

    /// What the client is told; nothing if it does not speak SOCKS5.
    pub fn answer(self) -> Vec<u8> {
        match self {
            Self::Version => Vec::new(),
            Self::Method => vec![VERSION, NONE_ACCEPTABLE],
            Self::PasswordVersion => Undecided::REFUSED.to_vec(),
            Self::Command => Reply::CommandNotSupported.encode(UNSPECIFIED),
            Self::AddressType => Reply::AddressTypeNotSupported.encode(UNSPECIFIED),
            Self::Name => Reply::GeneralFailure.encode(UNSPECIFIED),
        }
    }

    /// The `reason` of metrics and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Method => "method",
            Self::PasswordVersion => "password_version",
            Self::Command => "command",
            Self::AddressType => "address_type",
            Self::Name => "name",
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

/// What a client is told whose target is reached. `bound` is where that connection goes out from, or what was bound for it.
pub fn succeeded(bound: SocketAddr) -> Vec<u8> {
    Reply::Succeeded.encode(bound)
}

/// What a client is told whose target is not.
pub fn failed(failure: Failure) -> Vec<u8> {
    Reply::from(failure).encode(UNSPECIFIED)
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotAllowed => Self::NotAllowed,
            Failure::NetworkUnreachable => Self::NetworkUnreachable,
            Failure::HostUnreachable => Self::HostUnreachable,
            Failure::Refused => Self::ConnectionRefused,
            Failure::TimedOut => Self::TtlExpired,
            Failure::Loop => Self::GeneralFailure,
            Failure::General => Self::GeneralFailure,
        }
    }
}

impl Reply {
    /// The reply as sent.
    pub fn encode(self, bound: SocketAddr) -> Vec<u8> {
        let mut bytes = vec![VERSION, self as u8, 0];
        address::encode(bound, &mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests;
