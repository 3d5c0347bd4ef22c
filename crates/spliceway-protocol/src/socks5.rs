//! The server side of SOCKS5 (RFC 1928), with user name and password (RFC 1929).
//!
//! ```text
//!   Greeting ──▶ Offer ─┬─ Agreed ────────────────────────────▶ RequestStage ──▶ Request
//!                       └─ PasswordStage ─▶ Undecided ─ Proof ─▶ Agreed
//! ```
//!
//! Each step consumes the value before it. Therefore, the server can read a request only after the
//! client has met the demand. The client either agreed to no authentication or proved its identity.
//!
//! The parsers find the end of each message, no matter how the stream was split into reads. The
//! bytes that follow the last message stay in the input. The longest message has 513 bytes.

pub(crate) mod address;
pub mod datagram;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::message::Message;
use super::{Command, Credentials, Demand, Failure, Proof, Refused, Request};

pub(super) const VERSION: u8 = 5;
/// The version of the messages that carry user name and password, or the answer to them.
pub(super) const PASSWORD_VERSION: u8 = 1;
pub(super) const NO_AUTHENTICATION: u8 = 0;
pub(super) const PASSWORD: u8 = 2;
pub(super) const NONE_ACCEPTABLE: u8 = 0xFF;
pub(super) const CONNECT: u8 = 1;
const BIND: u8 = 2;
const ASSOCIATE: u8 = 3;
/// The number of bytes before the address in a request or a reply: version, command or reply code,
/// and a reserved byte.
pub(super) const HEAD_BYTES: usize = 3;

/// The bound address in a reply if no address was bound: `0.0.0.0:0`.
pub const UNSPECIFIED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Parses the client's first message: the authentication methods that it offers.
#[derive(Debug)]
pub struct Greeting {
    demand: Demand,
    message: Message,
}

/// The method that the service chose from the client's offer. Send [`answer`](Offer::answer) to the
/// client.
#[derive(Debug)]
pub enum Offer {
    /// No authentication. The service demands none.
    Agreed(Agreed),
    /// User name and password. The client sends them next.
    Password(PasswordStage),
}

/// Parses the client's message with its user name and password.
#[derive(Debug)]
pub struct PasswordStage {
    message: Message,
}

/// A client whose credentials have not been checked yet.
#[derive(Debug)]
pub struct Undecided(());

/// A client that may send its request. The service demanded no authentication, or the client has
/// proven its identity.
#[derive(Debug)]
pub struct Agreed(());

/// Parses the client's last message: its request.
#[derive(Debug)]
pub struct RequestStage {
    message: Message,
}

/// The reason why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The client does not speak SOCKS5.
    Version,
    /// The client does not offer the method that the service demands.
    Method,
    /// The message with user name and password does not have the version of RFC 1929.
    PasswordVersion,
    /// The command is not supported.
    Command,
    /// The address type is unknown.
    AddressType,
    /// The name of the target is empty, or contains bytes that host names do not contain.
    Name,
}

/// The reply code to a request (RFC 1928 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The request succeeded.
    Succeeded = 0x00,
    /// The request failed for a reason that has no other code.
    GeneralFailure = 0x01,
    /// The rules of the proxy do not allow the target.
    NotAllowed = 0x02,
    /// The network of the target is unreachable.
    NetworkUnreachable = 0x03,
    /// The host of the target is unreachable.
    HostUnreachable = 0x04,
    /// The target refused the connection.
    ConnectionRefused = 0x05,
    /// The TTL expired. [`Failure::TimedOut`] maps to this code.
    TtlExpired = 0x06,
    /// The command is not supported.
    CommandNotSupported = 0x07,
    /// The address type is not supported.
    AddressTypeNotSupported = 0x08,
}

impl Greeting {
    /// Creates a parser for a service with this demand.
    pub fn new(demand: Demand) -> Self {
        Self {
            demand,
            message: Message::default(),
        }
    }

    /// Consumes the bytes of this message from `input`. Returns `None` until the message is
    /// complete.
    ///
    /// The parser looks only for the method that the service demands. If the service demands no
    /// authentication, a client with a password must offer "no authentication", too.
    ///
    /// # Errors
    /// Returns [`Refusal::Version`] or [`Refusal::Method`].
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
    /// Returns the answer to the client.
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

    /// Consumes the bytes of this message from `input`. Returns `None` until the message is
    /// complete.
    ///
    /// RFC 1929 does not allow an empty name or password, but the parser accepts both. Such
    /// credentials belong to no user, so the client receives the answer to wrong credentials.
    ///
    /// # Errors
    /// Returns [`Refusal::PasswordVersion`].
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
    /// The answer to a client that has proven its identity.
    pub const ACCEPTED: [u8; 2] = [PASSWORD_VERSION, 0];
    /// The answer to a client with wrong credentials, before its connection is closed.
    pub const REFUSED: [u8; 2] = [PASSWORD_VERSION, 1];
    /// The answer to a client that has to wait, because too many passwords from its address were
    /// wrong.
    ///
    /// In RFC 1929, every status except 0 means failure. Different numbers only help with
    /// diagnosis.
    pub const WAIT: [u8; 2] = [PASSWORD_VERSION, 2];
    /// The answer to a client whose password was not checked, because too many other passwords are
    /// waiting to be checked.
    pub const BUSY: [u8; 2] = [PASSWORD_VERSION, 3];

    /// Accepts the client in exchange for proof of its identity.
    pub fn accept(self, _: Proof) -> Agreed {
        Agreed(())
    }
}

impl Agreed {
    /// Returns the parser for the client's request.
    pub fn request(self) -> RequestStage {
        RequestStage {
            message: Message::default(),
        }
    }
}

impl RequestStage {
    /// Consumes the bytes of this message from `input`. Returns `None` until the message is
    /// complete.
    ///
    /// The parser refuses an unknown command once the request is complete. It refuses an unknown
    /// address type immediately, because the length of the address is unknown.
    ///
    /// # Errors
    /// Returns [`Refusal::Version`], [`Refusal::Command`], [`Refusal::AddressType`] or
    /// [`Refusal::Name`].
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

/// Returns the minimum length of a greeting that starts with `held`. The length is exact once
/// `held` is that long.
fn greeting_length(held: &[u8]) -> Result<usize, Refusal> {
    match held {
        [] => Ok(1),
        [VERSION] => Ok(2),
        [VERSION, methods, ..] => Ok(2 + usize::from(*methods)),
        _ => Err(Refusal::Version),
    }
}

/// Like `greeting_length`, for the message with user name and password.
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

/// Like `greeting_length`, for a request.
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
    /// Every refusal, for code that keeps one counter for each refusal.
    pub const ALL: [Self; 6] = [
        Self::Version,
        Self::Method,
        Self::PasswordVersion,
        Self::Command,
        Self::AddressType,
        Self::Name,
    ];

    /// Returns the answer to the client. It is empty if the client does not speak SOCKS5.
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

    /// Returns the value of `reason` in metrics and log records.
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

/// Returns the reply to a request that succeeded.
///
/// `bound` is the local address of the connection to the target, or the address that was bound for
/// the client.
pub fn succeeded(bound: SocketAddr) -> Vec<u8> {
    Reply::Succeeded.encode(bound)
}

/// Returns the reply to a request whose target was not reached.
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
    /// Returns the bytes of the reply with this bound address.
    pub fn encode(self, bound: SocketAddr) -> Vec<u8> {
        let mut bytes = vec![VERSION, self as u8, 0];
        address::encode(bound, &mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests;
