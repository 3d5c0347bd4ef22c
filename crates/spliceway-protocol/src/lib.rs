//! Parsers and encoders for SOCKS4, SOCKS5, HTTP/1 proxying, the PROXY protocol, the first message
//! of TLS, and queries of DNS: bytes in, decisions out, no I/O.
//!
//! ```text
//!   stream ─▶ one message ─┬─ proxy ────────────────▶ the client's address, from a load balancer
//!                          ├─ socks5, socks4, http ─▶ a request, or a refusal with its answer
//!                          ├─ tls ──────────────────▶ the name of a server, or a refusal
//!                          ├─ sniff ────────────────▶ the protocol, and the name of a server
//!                          └─ client ───────────────▶ the next bytes for an upstream proxy
//! ```
//!
//! Each stream parser has a function `feed`. The function consumes the bytes of the current message
//! from its input, no matter how the stream was split into reads. The bytes that follow the message
//! stay in the input. Until the message is complete, `feed` returns `None` or
//! [`client::Step::Wait`].
//!
//! Five parsers work differently: [`sniff::Sniffer`] refuses nothing, [`http::Chunks`] counts the
//! bytes of a body, [`socks5::datagram`] and [`dns`] parse one datagram at a time, and [`pem`]
//! finds the sections of a whole file.
//!
//! Types enforce the order of calls. If a service demands a password ([`Demand::Password`]), the
//! parsers release a request only in exchange for a [`Proof`]. SOCKS4 has no passwords, so its
//! parser refuses every client of such a service.
//!
//! # Example
//!
//! A SOCKS5 server reads a greeting and a request. The first read ends in the middle of the
//! greeting.
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
//! | parser | most received bytes that it holds |
//! |---|---|
//! | SOCKS5 handshake, either side | 513 bytes |
//! | SOCKS4 request | 520 bytes |
//! | HTTP request head | 16 KiB, 100 fields |
//! | HTTP response heads from a target | 64 KiB, 100 fields each |
//! | HTTP response heads from an upstream proxy | 16 KiB, 100 fields each |
//! | HTTP body in chunks | none |
//! | PROXY header | 107 bytes, and 4 KiB of TLVs |
//! | TLS ClientHello | 20 KiB, twice |
//! | DNS query | a question of 259 bytes |
//! | first bytes of an unknown protocol | 16 bytes, or those of HTTP and TLS |
//!
//! A buffer can allocate up to twice this limit, because a vector doubles its capacity when it
//! grows. Parsers return copies of these bytes, so the results are bounded, too.
//!
//! # Out of scope
//!
//! - This crate performs no I/O: it opens, reads and writes no sockets.
//! - It needs no async runtime, starts no threads and measures no time. The caller enforces
//!   timeouts.
//! - It does not look up names, connect, or decide which targets are allowed. [`rule`] only parses
//!   what operators write about targets.
//! - It does not check passwords. The caller compares them and creates a [`Proof`].
//! - It does not write logs. It returns the reason for each refusal, and [`printable`] makes bytes
//!   safe for a log.
//! - It supports neither HTTP/2 nor GSSAPI, and it does not reassemble SOCKS5 datagrams.

pub mod address;
pub mod client;
pub mod dns;
pub mod http;
mod message;
pub mod pem;
pub mod proxy;
pub mod rule;
pub mod sniff;
pub mod socks4;
pub mod socks5;
pub mod tls;

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

/// A SOCKS command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Connect to the target.
    Connect,
    /// Accept one connection *from* the target.
    Bind,
    /// Relay datagrams. The target is the address from which the client intends to send them.
    Associate,
}

/// The authentication that a service demands from its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// No authentication.
    Nothing,
    /// A user name and its password.
    Password,
}

/// The user name that a client claims, and the password that is meant to prove it.
///
/// This type has no `PartialEq`. The caller knows the correct password and must compare the two in
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

/// The most characters of a client's bytes that a log shows. A SOCKS field has at most 255 bytes.
const PRINTABLE_MAX_CHARS: usize = 255;

/// Returns a client's bytes in a form that is safe for a log: printable ASCII only.
///
/// The function escapes all other bytes, quotes and backslashes. It truncates the text to 255
/// characters.
pub fn printable(bytes: &[u8]) -> Box<str> {
    let escaped = bytes.escape_ascii().map(char::from);
    escaped.take(PRINTABLE_MAX_CHARS).collect::<String>().into()
}

/// A proof that a client is the user that it claims to be.
///
/// If a service demands a password, a handshake continues only in exchange for this value.
#[derive(Debug)]
pub struct Proof(());

impl Proof {
    /// Creates a proof. With this call, the caller asserts that it checked the password and that
    /// the password belongs to the user name.
    #[must_use]
    pub fn of_known_user() -> Self {
        Self(())
    }
}

/// The reason why a target was not reached. Each protocol has its own codes for these reasons.
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
    /// The request returned to a proxy that it had already passed through.
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
    /// All protocols.
    pub const ALL: [Self; 3] = [Self::Socks5, Self::Socks4, Self::Http];

    /// Returns the value of `protocol` in log records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Socks5 => "socks5",
            Self::Socks4 => "socks4",
            Self::Http => "http",
        }
    }
}

/// A refusal in a form that all protocols share. Each protocol's `Refusal` converts into this type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The value of `reason` in metrics and log records.
    pub reason: &'static str,
    /// The bytes to send to the client. Empty if the client would not understand an answer.
    pub answer: Vec<u8>,
}

#[cfg(test)]
mod tests;
