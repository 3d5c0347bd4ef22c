//! The first message of a TLS client: its ClientHello, with the name of the server that it wants.
//!
//! ```text
//!   record: 22, version, length (2) ▸ a part of the ClientHello      one record or several
//! ```
//!
//! The parser of rustls reads the message. This module finds the end of each record, no matter how
//! the records were split into reads, and keeps the bytes so that a server can have them unchanged.
//! The bytes after the message stay in the input.
//!
//! # Encrypted ClientHello
//!
//! A client may hide the name of its server in an encrypted ClientHello (ECH). It then states the
//! name of the server that can decrypt it, and this parser returns that name. Browsers send the
//! same extension with random content to every other server (GREASE). Nobody but the server can
//! tell the two apart, so the extension says nothing about the name.
//!
//! # What it does not do
//!
//! It decrypts nothing and proves nothing. Any client can state any name.

use std::mem;

use rustls::server::Acceptor;
use rustls::{Error, PeerMisbehaved};

use super::Refused;
use super::message::append;

/// The most bytes of a ClientHello, with the heads of its records. The limit has room for 16 KiB of
/// extensions. A browser's message has about 2 KiB.
const HELLO_MAX_BYTES: usize = 20 << 10;
/// The number of bytes before the content of a record: type, version, and length.
const HEAD_BYTES: usize = 5;
/// The number of bytes at the beginning of a message: type, and length.
const BEGIN_BYTES: usize = 4;
/// A record that is not encrypted has fewer bytes of content (RFC 8446, section 5.1).
const RECORD_TOO_LONG: usize = (16 << 10) + 1;
/// The type of a record with a part of a ClientHello.
const HANDSHAKE: u8 = 22;
/// The type of a ClientHello.
const CLIENT_HELLO: u8 = 1;

/// What a client states in its first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHello {
    /// The name of the server (SNI), in lower case and without a dot at its end: ASCII letters,
    /// digits, `-`, `_` and `.`, at most 253 bytes. `None` if the client states no name, or an IP
    /// address in its place.
    pub name: Option<Box<str>>,
    /// The protocols that the client offers (ALPN). Their names can contain any bytes.
    pub protocols: Vec<Box<[u8]>>,
    /// The records that the client sent, unchanged.
    pub bytes: Vec<u8>,
}

/// Parses the ClientHello at the beginning of a connection.
#[derive(Default)]
pub struct Hello {
    /// The bytes so far. Never has a byte after the record that is being read.
    held: Vec<u8>,
    /// The number of bytes in whole records.
    whole: usize,
    /// The first bytes of the message in whole records, and the number of all of them.
    begin: [u8; BEGIN_BYTES],
    message: usize,
}

/// The reason why a client is refused.
///
/// The parser gives only some of these reasons. The others are for programs that choose a server by
/// what the client states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The connection does not begin with a handshake record.
    Missing,
    /// The message is longer than 20 KiB.
    TooLong,
    /// The message is not a valid ClientHello.
    Malformed,
    /// The client supports no version from TLS 1.2 on, or demands a compression.
    Unsupported,
    /// The client states a name that no host can have.
    InvalidName,
    /// The client states no name, and a name is needed.
    NoName,
    /// No server has the name that the client states.
    UnknownName,
    /// The server of this name speaks none of the protocols that the client offers.
    UnknownProtocol,
}

impl Hello {
    /// Creates a parser.
    pub fn new() -> Self {
        Self::default()
    }

    /// Consumes the bytes of the message from `input`. Returns what the client states, or `None`
    /// until the message is complete. After a result, the parser must not be used again.
    ///
    /// # Errors
    /// Returns the reason why the client is refused.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<ClientHello>, Refusal> {
        loop {
            let missing = record_length(&self.held[self.whole..], self.whole)? + self.whole - self.held.len();
            if missing == 0 {
                if self.is_complete()? {
                    return self.accept().map(Some);
                }
                continue;
            }
            if input.is_empty() {
                return Ok(None);
            }
            let (taken, rest) = input.split_at(missing.min(input.len()));
            append(&mut self.held, taken);
            *input = rest;
        }
    }

    /// Adds the last record to the message. Returns whether the message is complete.
    fn is_complete(&mut self) -> Result<bool, Refusal> {
        let content = &self.held[self.whole + HEAD_BYTES..];
        let begin = self.begin.iter_mut().skip(self.message);
        begin.zip(content).for_each(|(byte, said)| *byte = *said);
        self.whole = self.held.len();
        self.message += content.len();
        let [kind, high, middle, low] = self.begin;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize + BEGIN_BYTES;
        match kind {
            CLIENT_HELLO if self.message < BEGIN_BYTES => Ok(false),
            CLIENT_HELLO if length > HELLO_MAX_BYTES => Err(Refusal::TooLong),
            CLIENT_HELLO => Ok(self.message >= length),
            _ => Err(Refusal::Malformed),
        }
    }

    /// Gives the complete message to the parser of rustls. Before that, it would hold a second copy
    /// of what a slow client has sent.
    fn accept(&mut self) -> Result<ClientHello, Refusal> {
        let (mut acceptor, mut records) = (Acceptor::default(), &self.held[..]);
        let accepted = loop {
            // A call takes at most 4 KiB. It fails if its buffer is full, which a valid message
            // cannot cause, and takes nothing after the last record.
            match acceptor.read_tls(&mut records) {
                Ok(1..) => {}
                _ => return Err(Refusal::Malformed),
            }
            let accepted = acceptor.accept().map_err(|(error, _)| match error {
                Error::PeerMisbehaved(PeerMisbehaved::ServerNameMustContainOneHostName) => Refusal::InvalidName,
                Error::PeerIncompatible(_) => Refusal::Unsupported,
                _ => Refusal::Malformed,
            })?;
            if let Some(accepted) = accepted {
                break accepted;
            }
        };
        let hello = accepted.client_hello();
        Ok(ClientHello {
            name: hello.server_name().map(Into::into),
            protocols: hello.alpn().into_iter().flatten().map(Into::into).collect(),
            bytes: mem::take(&mut self.held),
        })
    }
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hello({} bytes)", self.held.len())
    }
}

/// Returns the minimum length of a record that starts with `held`. The length is exact once its
/// head is held. `before` is the number of bytes in earlier records.
fn record_length(held: &[u8], before: usize) -> Result<usize, Refusal> {
    match held {
        [] | [HANDSHAKE, ..] => {}
        _ if before == 0 => return Err(Refusal::Missing),
        _ => return Err(Refusal::Malformed),
    }
    let &[_, _, _, high, low, ..] = held else {
        return Ok(HEAD_BYTES);
    };
    match usize::from(u16::from_be_bytes([high, low])) {
        0 | RECORD_TOO_LONG.. => Err(Refusal::Malformed),
        length if before + HEAD_BYTES + length > HELLO_MAX_BYTES => Err(Refusal::TooLong),
        length => Ok(HEAD_BYTES + length),
    }
}

impl Refusal {
    /// Every refusal, for code that keeps one counter for each refusal.
    pub const ALL: [Self; 8] = [
        Self::Missing,
        Self::TooLong,
        Self::Malformed,
        Self::Unsupported,
        Self::InvalidName,
        Self::NoName,
        Self::UnknownName,
        Self::UnknownProtocol,
    ];

    /// Returns the answer to the client: a record with a fatal alert (RFC 8446, section 6). It is
    /// empty if the client does not speak TLS.
    pub fn answer(self) -> Vec<u8> {
        const ALERT: u8 = 21;
        const FATAL: u8 = 2;
        let description = match self {
            Self::Missing => return Vec::new(),
            Self::TooLong | Self::Malformed => 50, // decode_error
            Self::Unsupported => 40,               // handshake_failure
            Self::InvalidName => 47,               // illegal_parameter
            Self::NoName => 109,                   // missing_extension
            Self::UnknownName => 112,              // unrecognized_name
            Self::UnknownProtocol => 120,          // no_application_protocol
        };
        vec![ALERT, 3, 3, 0, 2, FATAL, description]
    }

    /// Returns the value of `reason` in metrics and log records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "tls_missing",
            Self::TooLong => "tls_too_long",
            Self::Malformed => "tls_malformed",
            Self::Unsupported => "tls_unsupported",
            Self::InvalidName => "sni_invalid",
            Self::NoName => "sni_missing",
            Self::UnknownName => "sni_unknown",
            Self::UnknownProtocol => "alpn_unknown",
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

#[cfg(test)]
mod tests;
