//! The first bytes of a client: recognizes its protocol, and reads the name of the server that it
//! wants.
//!
//! ```text
//!   recognize ─┬─ TLS ────▶ tls::Hello ─▶ Sniffed::Tls: the name in the ClientHello
//!              ├─ HTTP/1 ─▶ http::Head ─▶ Sniffed::Http: the name in the request
//!              └─ others ───────────────▶ Sniffed::Other: no name
//! ```
//!
//! A program states the protocols that it distinguishes, and waits for no more bytes than these
//! need: a router of TLS knows after one byte that a client of SSH does not speak TLS.
//!
//! # What it does not do
//!
//! It proves nothing: any client can state any name, and speak another protocol later. It does not
//! recognize protocols whose server speaks first, such as SMTP and MySQL. Their clients send
//! nothing, so the caller needs a time limit.

use std::mem;

use super::tls::{self, ClientHello};
use super::{Proof, Spoken, http, socks4, socks5};

/// A protocol that its first bytes identify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TLS, or SSL.
    Tls,
    /// HTTP/2 without TLS and without an upgrade (RFC 9113, section 3.3).
    Http2,
    /// A PROXY header.
    Proxy,
    /// SSH (RFC 4253).
    Ssh,
    /// PostgreSQL: a request for TLS ([`POSTGRES_TLS`]).
    PostgresTls,
    /// PostgreSQL: a request for encryption by GSSAPI.
    PostgresGssapi,
    /// PostgreSQL without encryption: a start of version 3, or a cancellation.
    Postgres,
    /// SOCKS5.
    Socks5,
    /// SOCKS4 or SOCKS4a.
    Socks4,
    /// HTTP/1: the first letter of a method, perhaps after an empty line. Every other protocol that
    /// begins with a letter or a line end must come before it.
    Http,
}

/// The result of [`recognize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recognized {
    /// More bytes are needed, at most [`RECOGNIZE_MAX_BYTES`] together.
    Undecided,
    /// The client speaks this protocol.
    Known(Protocol),
    /// The client speaks none of the protocols.
    Other,
}

/// The most bytes that [`recognize`] needs: those of the first line of HTTP/2.
pub const RECOGNIZE_MAX_BYTES: usize = HTTP2.len();

/// The request for TLS of a client of PostgreSQL. The server answers with `S` and then speaks TLS,
/// or with `N`.
pub const POSTGRES_TLS: [u8; 8] = *b"\0\0\0\x08\x04\xd2\x16\x2f";

const POSTGRES_GSSAPI: [u8; 8] = *b"\0\0\0\x08\x04\xd2\x16\x30";
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n";
const PROXY_V1: &[u8] = b"PROXY ";
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const SSH: &[u8] = b"SSH-";

/// Returns which of these protocols a client speaks whose first bytes these are. If the bytes fit
/// several of them, the first one counts.
pub fn recognize(bytes: &[u8], protocols: &[Protocol]) -> Recognized {
    for protocol in protocols {
        match protocol.begins(bytes) {
            Some(true) => return Recognized::Known(*protocol),
            Some(false) => {}
            None => return Recognized::Undecided,
        }
    }
    Recognized::Other
}

impl Protocol {
    /// Every protocol, in an order for [`recognize`].
    pub const ALL: [Self; 10] = [
        Self::Tls,
        Self::Http2,
        Self::Proxy,
        Self::Ssh,
        Self::PostgresTls,
        Self::PostgresGssapi,
        Self::Postgres,
        Self::Socks5,
        Self::Socks4,
        Self::Http,
    ];

    /// Returns the protocol in which a client names its target to a proxy. `None` means that it is
    /// no protocol of proxies.
    pub const fn spoken(self) -> Option<Spoken> {
        match self {
            Self::Socks5 => Some(Spoken::Socks5),
            Self::Socks4 => Some(Spoken::Socks4),
            Self::Http => Some(Spoken::Http),
            Self::Tls
            | Self::Http2
            | Self::Proxy
            | Self::Ssh
            | Self::PostgresTls
            | Self::PostgresGssapi
            | Self::Postgres => None,
        }
    }

    /// Returns whether the stream of such a client begins with `bytes`, or `None` if that is not
    /// known yet.
    fn begins(self, bytes: &[u8]) -> Option<bool> {
        match self {
            Self::Tls => tls::begins(bytes),
            Self::Http2 => begins_with(bytes, HTTP2),
            Self::Proxy if bytes.starts_with(b"\r") => begins_with(bytes, PROXY_V2),
            Self::Proxy => begins_with(bytes, PROXY_V1),
            Self::Ssh => begins_with(bytes, SSH),
            Self::PostgresTls => begins_with(bytes, &POSTGRES_TLS),
            Self::PostgresGssapi => begins_with(bytes, &POSTGRES_GSSAPI),
            Self::Postgres => begins_postgres(bytes),
            Self::Socks5 => bytes.first().map(|first| *first == socks5::VERSION),
            Self::Socks4 => bytes.first().map(|first| *first == socks4::VERSION),
            Self::Http => begins_http(bytes),
        }
    }
}

fn begins_with(bytes: &[u8], start: &[u8]) -> Option<bool> {
    let known = bytes.len().min(start.len());
    if bytes[..known] != start[..known] {
        return Some(false);
    }
    (known == start.len()).then_some(true)
}

/// Some clients send an empty line after a body, and so before the next request. RFC 9112 section
/// 2.2 asks servers to ignore one.
fn begins_http(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [] | [b'\r' | b'\n'] | [b'\r', b'\n'] => None,
        [b'\r', b'\n', first, ..] | [b'\n', first, ..] | [first, ..] => Some(first.is_ascii_alphabetic()),
    }
}

/// The message has its length, and then a version or the code of a cancellation.
fn begins_postgres(bytes: &[u8]) -> Option<bool> {
    /// The server refuses a longer first message.
    const MAX_BYTES: u32 = 10_000;
    const CANCEL: u32 = 80_877_102;
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return begins_with(bytes, &[0, 0]).filter(|begins| !begins);
    };
    let length = u32::from_be_bytes(*length);
    if !(8..=MAX_BYTES).contains(&length) {
        return Some(false);
    }
    let code = u32::from_be_bytes(*rest.first_chunk()?);
    Some(match code {
        CANCEL => length >= 16,
        version => version >> 16 == 3,
    })
}

/// What a client states with its first bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// A ClientHello, or the reason why it cannot be read.
    Tls(Result<ClientHello, tls::Refusal>),
    /// A request to a server, or the reason why it cannot be read.
    Http(Result<http::HttpRequest, http::Refusal>),
    /// A protocol without a name. `None` means a protocol that is not recognized.
    Other(Option<Protocol>),
}

/// Reads what a client states. It consumes at most 20 KiB, which is the limit for a ClientHello.
#[derive(Debug)]
pub struct Sniffer {
    protocols: &'static [Protocol],
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The bytes so far.
    First(Vec<u8>),
    Tls(tls::Hello),
    Http(http::Head),
}

impl Sniffer {
    /// Creates a sniffer for these protocols.
    pub fn new(protocols: &'static [Protocol]) -> Self {
        Self {
            protocols,
            stage: Stage::First(Vec::new()),
        }
    }

    /// Consumes the bytes of the first message from `input`, or those that show that there is no
    /// name. Returns `None` until they are complete. After a result, the sniffer must not be fed
    /// again.
    pub fn feed(&mut self, input: &mut &[u8]) -> Option<Sniffed> {
        loop {
            let held = match &mut self.stage {
                Stage::First(held) => held,
                Stage::Tls(hello) => return hello.feed(input).transpose().map(Sniffed::Tls),
                Stage::Http(head) => return head.feed(input).transpose().map(request),
            };
            match recognize(held, self.protocols) {
                Recognized::Undecided => {
                    let (next, rest) = input.split_first()?;
                    held.push(*next);
                    *input = rest;
                }
                Recognized::Known(Protocol::Tls) => self.stage = Stage::Tls(tls::Hello::begun(mem::take(held))),
                Recognized::Known(Protocol::Http) => self.stage = Stage::Http(http::Head::to_server(mem::take(held))),
                Recognized::Known(protocol) => return Some(Sniffed::Other(Some(protocol))),
                Recognized::Other => return Some(Sniffed::Other(None)),
            }
        }
    }

    /// Returns what an HTTP request means for the connections that it uses.
    pub fn exchange(&self) -> Option<http::Exchange> {
        match &self.stage {
            Stage::Http(head) => Some(head.exchange()),
            Stage::First(_) | Stage::Tls(_) => None,
        }
    }

    /// Returns the bytes that were consumed, so that a server can have them unchanged. A
    /// [`ClientHello`] that was returned has them instead.
    pub fn into_bytes(self) -> Vec<u8> {
        match self.stage {
            Stage::First(held) => held,
            Stage::Tls(hello) => hello.into_bytes(),
            Stage::Http(head) => head.into_bytes(),
        }
    }
}

/// A request to a server needs no proof.
fn request(head: Result<http::RequestHead, http::Refusal>) -> Sniffed {
    Sniffed::Http(head.map(|head| match head {
        http::RequestHead::Agreed(request) => request,
        http::RequestHead::Password(unproven) => unproven.accept(Proof::of_known_user()),
    }))
}

#[cfg(test)]
mod tests;
