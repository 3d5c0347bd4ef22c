//! Parsers and encoders for SOCKS4, SOCKS5, HTTP/1 proxying and the PROXY protocol: bytes in,
//! decisions out, no I/O.
//!
//! ```text
//!   stream ─▶ one message ─┬─ proxy ────────────────▶ the client's address, from a load balancer
//!                          ├─ socks5, socks4, http ─▶ a request, or a refusal with its answer
//!                          └─ client ───────────────▶ the next bytes for an upstream proxy
//! ```
//!
//! A parser of a stream has a function `feed`. It takes the bytes of the current message from its
//! input, however the stream was cut into reads. It leaves the bytes that follow the message. Until
//! the message is complete, it returns `None` or [`client::Step::Wait`].
//!
//! Two parsers work differently: [`http::Chunks`] counts the bytes of a body, and
//! [`socks5::datagram`] parses one datagram at a time.
//!
//! Types carry the order of calls. Where a service demands a password ([`Demand::Password`]), the
//! parsers give out a request only in exchange for a [`Proof`]. SOCKS4 has no passwords and refuses
//! every client there.
//!
//! # Example
//!
//! A SOCKS5 server reads a greeting and a request. The first read ends inside the greeting.
//!
//! ```
//! use spliceway_protocol::address::Target;
//! use spliceway_protocol::socks5::{Greeting, Offer};
//! use spliceway_protocol::{Command, Demand};
//!
//! // Version 5, one method: no authentication. Then CONNECT to example.com:80, and early data.
//! let stream: &[u8] = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.com\x00\x50early";
//! let (mut first, mut second) = stream.split_at(2);
//!
//! let mut greeting = Greeting::new(Demand::Nothing);
//! assert!(greeting.feed(&mut first).unwrap().is_none());
//! let offer = greeting.feed(&mut second).unwrap().expect("the greeting is complete");
//! // Send this answer to the client.
//! assert_eq!(offer.answer(), [5, 0]);
//! let Offer::Agreed(agreed) = offer else {
//!     panic!("the service demands no password");
//! };
//!
//! let request = agreed.request().feed(&mut second).unwrap().expect("the request is complete");
//! assert_eq!(request.command, Command::Connect);
//! assert_eq!(request.target, Target::Name("example.com".into(), 80));
//! assert_eq!(second, b"early");
//! ```
//!
//! # Limits
//!
//! | parser | received bytes that it holds at most |
//! |---|---|
//! | SOCKS5 handshake, either side | 513 bytes |
//! | SOCKS4 request | 520 bytes |
//! | HTTP request head | 16 KiB, 100 fields |
//! | HTTP response heads from a target | 64 KiB, 100 fields each |
//! | HTTP response heads from an upstream proxy | 16 KiB, 100 fields each |
//! | HTTP body in chunks | none |
//! | PROXY header | 107 bytes, and 4 KiB of TLVs |
//!
//! A buffer can allocate up to twice as much, because a vector doubles its capacity when it grows.
//! Parsers return copies of these bytes, so the results are bounded as well.
//!
//! # Out of scope
//!
//! - This crate performs no I/O: it opens, reads and writes no sockets.
//! - It needs no async runtime, starts no threads and measures no time. The caller enforces
//!   timeouts.
//! - It does not look up names, connect, or decide which targets are allowed.
//! - It does not check passwords. The caller compares them and creates a [`Proof`].
//! - It does not write logs. It returns the reasons, and [`printable`] makes bytes safe for a log.
//! - It supports neither HTTP/2 nor GSSAPI, and it does not reassemble SOCKS5 datagrams.

pub mod address;
pub mod client;
pub mod http;
mod message;
pub mod proxy;
pub mod socks4;
pub mod socks5;

use std::fmt;

use crate::address::Target;

/// The request of a SOCKS client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The command that the client asks for.
    pub command: Command,
    /// The target of the command. Its meaning depends on the command.
    pub target: Target,
}

/// A command of SOCKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Connect to the target.
    Connect,
    /// Accept one connection *from* the target.
    Bind,
    /// Relay datagrams. The target is the address from which the client says that it will send
    /// them.
    Associate,
}

/// The authentication that a service demands of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// No authentication.
    Nothing,
    /// A user name and its password.
    Password,
}

/// The user name that a client claims, and the password that is meant to prove it.
///
/// This type has no `PartialEq`. The caller knows the right password and must compare it in
/// constant time.
#[derive(Clone)]
pub struct Credentials {
    /// The user name. It can contain any bytes.
    pub name: Box<[u8]>,
    /// The password. It can contain any bytes.
    pub secret: Box<[u8]>,
}

impl Credentials {
    /// Returns the user name in a form that is safe for a log: see [`printable`].
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

/// The number of characters of a client's bytes that a log shows. A SOCKS field holds 255 bytes.
const PRINTABLE_MAX_CHARS: usize = 255;

/// Returns a client's bytes in a form that is safe for a log: printable ASCII only.
///
/// The function escapes all other bytes, quotes and backslashes. It cuts the text after 255
/// characters.
pub fn printable(bytes: &[u8]) -> Box<str> {
    let escaped = bytes.escape_ascii().map(char::from);
    escaped.take(PRINTABLE_MAX_CHARS).collect::<String>().into()
}

/// A proof that a client is the user that it claims to be.
///
/// Where a service demands a password, a handshake continues only in exchange for this value.
#[derive(Debug)]
pub struct Proof(());

impl Proof {
    /// Creates a proof. The caller thereby states that it compared the password with the one that
    /// it keeps for this name, and that they are equal.
    #[must_use]
    pub fn of_known_user() -> Self {
        Self(())
    }
}

/// The reason why a target was not reached. Each protocol has its own codes for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// This proxy or an upstream proxy does not allow the target.
    NotAllowed,
    /// The network of the target is unreachable.
    NetworkUnreachable,
    /// The host of the target was not found or is unreachable.
    HostUnreachable,
    /// The target refused the connection.
    Refused,
    /// The target did not answer in time.
    TimedOut,
    /// The request came back to a proxy that it had already passed.
    Loop,
    /// Any other reason.
    General,
}

impl Failure {
    /// Every failure.
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

/// The protocol that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    /// SOCKS5.
    Socks5,
    /// SOCKS4 or SOCKS4a.
    Socks4,
    /// HTTP/1.
    Http,
}

impl Spoken {
    /// Returns the value of `protocol` in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Socks5 => "socks5",
            Self::Socks4 => "socks4",
            Self::Http => "http",
        }
    }

    /// Returns the protocol whose first byte can be `byte`, or `None` if there is none.
    ///
    /// SOCKS starts with its version, and HTTP with a letter of a method.
    pub fn by_first_byte(byte: u8) -> Option<Self> {
        match byte {
            socks5::VERSION => Some(Self::Socks5),
            socks4::VERSION => Some(Self::Socks4),
            b'A'..=b'Z' | b'a'..=b'z' => Some(Self::Http),
            _ => None,
        }
    }
}

/// A refusal in the same form for every protocol. Each protocol's `Refusal` converts into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The value of `reason` in metrics and records.
    pub reason: &'static str,
    /// The bytes to send to the client. They are empty if the client would not understand an
    /// answer.
    pub answer: Vec<u8>,
}

#[cfg(test)]
mod tests;
