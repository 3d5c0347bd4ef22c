//! What is said before the relay starts: bytes in, decisions out, no I/O.
//!
//! ```text
//!   stream ─ Message ─▶ one message ─ socks5, socks4, http ─▶ Request, or a refusal with its answer
//!                                   └ client ─▶ what to say next to an upstream proxy
//! ```
//!
//! Every parser has `feed`, which takes from its input what belongs to the message, however the stream was cut into reads, and
//! leaves what follows. What a parser holds is bounded by the longest message of its protocol. Where users are demanded
//! ([`Demand::Password`]), no request can be read from a parser but with a [`Proof`].

pub mod client;
pub mod http;
mod message;
pub mod proxy;
pub mod socks4;
pub mod socks5;

use std::fmt;

use crate::address::Target;

/// What a SOCKS client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub command: Command,
    pub target: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Connect,
    /// One connection *from* the target.
    Bind,
    /// Datagrams; the target is where the client says it will send them from.
    Associate,
}

/// What a service wants to know of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    Nothing,
    /// A name and the secret that goes with it.
    Password,
}

/// Who a client says it is, and what is to prove it. Not comparable: secrets are compared in constant time, by whoever knows them.
#[derive(Clone)]
pub struct Credentials {
    pub name: Box<[u8]>,
    pub secret: Box<[u8]>,
}

impl Credentials {
    /// The name as it may stand in a log: see [`printable`].
    pub fn name_as_text(&self) -> Box<str> {
        printable(&self.name)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("name", &self.name_as_text())
            .finish_non_exhaustive()
    }
}

/// Characters of a client's own words that a log gets to see: what a SOCKS field can hold.
const PRINTABLE_MAX_CHARS: usize = 255;

/// A client's bytes as a log may show them: printable ASCII, the rest escaped, and cut after 255 characters.
pub fn printable(bytes: &[u8]) -> Box<str> {
    let escaped = bytes.escape_ascii().map(char::from);
    escaped.take(PRINTABLE_MAX_CHARS).collect::<String>().into()
}

/// That a client is who it says. Opens what a handshake keeps closed where users are demanded.
#[derive(Debug)]
pub struct Proof(());

impl Proof {
    /// For `auth.rs` alone, after the secret was compared with what is kept for that name.
    pub(crate) fn of_known_user() -> Self {
        Self(())
    }

    /// The fuzzers' users are all known.
    #[doc(hidden)]
    pub fn for_fuzzing() -> Self {
        Self::of_known_user()
    }
}

/// What became of an attempt to reach a target. Each protocol has its word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// By us, or by an upstream proxy.
    NotAllowed,
    NetworkUnreachable,
    HostUnreachable,
    Refused,
    TimedOut,
    /// The request has come back to a proxy that it had passed.
    Loop,
    General,
}

impl Failure {
    pub const ALL: [Self; 7] = [
        Self::NotAllowed,
        Self::NetworkUnreachable,
        Self::HostUnreachable,
        Self::Refused,
        Self::TimedOut,
        Self::General,
        Self::Loop,
    ];
}

/// A protocol that a client may speak where all of them are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    Socks5,
    Socks4,
    Http,
}

impl Spoken {
    /// The `protocol` of records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Socks5 => "socks5",
            Self::Socks4 => "socks4",
            Self::Http => "http",
        }
    }

    /// SOCKS starts with its version, HTTP with the letters of a method. `None` of what starts neither.
    pub fn by_first_byte(byte: u8) -> Option<Self> {
        match byte {
            socks5::VERSION => Some(Self::Socks5),
            socks4::VERSION => Some(Self::Socks4),
            b'A'..=b'Z' | b'a'..=b'z' => Some(Self::Http),
            _ => None,
        }
    }
}

/// A refusal as a session deals with it, whatever the protocol: each protocol's `Refusal` becomes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// For metrics and records.
    pub reason: &'static str,
    /// For the client; empty where it speaks something else.
    pub answer: Vec<u8>,
}

#[cfg(test)]
mod tests;
