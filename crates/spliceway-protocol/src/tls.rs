//! The first message of a TLS client: its ClientHello, with the name of the server that it wants.
//!
//! ```text
//!   record: 22, version, length (2) ▸ a part of the ClientHello      one record or several
//! ```
//!
//! The parser finds the end of each record, no matter how the records were split into reads. It
//! keeps the bytes so that a server can have them unchanged. The bytes after the message stay in
//! the input.
//!
//! A router does not negotiate. So the parser reads only the names, and the server judges
//! everything else: versions, ciphers, compressions, signatures, and extensions that nobody knows.
//!
//! A client of before 1999 may begin with a hello of SSL 2.0, which has no names. Its first five
//! bytes identify it, and the parser reads no more of it.
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
use std::net::IpAddr;

use super::Refused;
use super::message::append;
use super::rule::canonical_name;

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
/// The first version of a record. Every version from SSL 3.0 on begins with this number.
const SSL3: u8 = 3;
/// The bit that the length of an SSL 2.0 record begins with.
const SSL2: u8 = 0x80;
/// The type of a ClientHello.
const CLIENT_HELLO: u8 = 1;
/// The number of bytes of a ClientHello before its first part with a length: version, and random.
const FIXED_BYTES: usize = 2 + 32;
/// The types of extensions with the names of servers (RFC 6066) and of protocols (RFC 7301).
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
/// The type of a host's name in the extension with names of servers.
const HOST_NAME: u8 = 0;
/// The longest name and the longest label of a name, in bytes (RFC 1035).
const NAME_MAX_BYTES: usize = 253;
const LABEL_MAX_BYTES: usize = 63;

/// What a client states in its first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHello {
    /// The name of the server (SNI), in lower case and without a dot at its end: ASCII letters,
    /// digits, `-`, `_` and `.`, at most 253 bytes. `None` if the client states no name, or an IP
    /// address in its place.
    pub name: Option<Box<str>>,
    /// The protocols that the client offers (ALPN). Their names can contain any bytes.
    pub protocols: Vec<Box<[u8]>>,
    /// The records that the client sent, unchanged, or the first five bytes of an SSL 2.0 hello.
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
    /// The connection does not begin with a handshake record. The client does not speak TLS.
    Missing,
    /// The message is longer than 20 KiB.
    TooLong,
    /// The message is not a valid ClientHello.
    Malformed,
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

    /// Creates a parser for a client that has sent these bytes, which [`begins`] accepts.
    pub(super) fn begun(held: Vec<u8>) -> Self {
        Self {
            held,
            ..Self::default()
        }
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
                if self.held[0] != HANDSHAKE {
                    return Ok(Some(self.hello(Stated::default())));
                }
                if self.is_complete()? {
                    let stated = stated(&self.body()).ok_or(Refusal::Malformed)??;
                    return Ok(Some(self.hello(stated)));
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

    /// Returns the bytes that the parser has consumed. A client that does not speak TLS
    /// ([`Refusal::Missing`]) may have another server, which needs them.
    pub fn into_bytes(self) -> Vec<u8> {
        self.held
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

    /// Returns the content of the complete message, without the heads of its records.
    fn body(&self) -> Vec<u8> {
        let (mut body, mut records) = (Vec::with_capacity(self.message), &self.held[..]);
        while let [_, _, _, high, low, rest @ ..] = records {
            let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
            body.extend_from_slice(&rest[..length]);
            records = &rest[length..];
        }
        // Further messages may follow in the last record. They are the server's business.
        let [_, high, middle, low] = self.begin;
        body.truncate(u32::from_be_bytes([0, high, middle, low]) as usize + BEGIN_BYTES);
        body.drain(..BEGIN_BYTES.min(body.len()));
        body
    }

    fn hello(&mut self, stated: Stated) -> ClientHello {
        ClientHello {
            name: stated.name,
            protocols: stated.protocols,
            bytes: mem::take(&mut self.held),
        }
    }
}

/// The names in a ClientHello.
#[derive(Default)]
struct Stated {
    name: Option<Box<str>>,
    protocols: Vec<Box<[u8]>>,
}

/// Reads the names from the content of a ClientHello. `None` means that another reader might take
/// other names: a part is cut, bytes follow a list of names, or two extensions have names of one
/// type.
fn stated(body: &[u8]) -> Option<Result<Stated, Refusal>> {
    let mut body = Parts(body);
    body.take(FIXED_BYTES)?;
    let _session = body.short()?;
    let _ciphers = body.long()?;
    let _compressions = body.short()?;
    if body.0.is_empty() {
        // Extensions came after TLS 1.0.
        return Some(Ok(Stated::default()));
    }
    let mut extensions = Parts(body.long()?);
    let (mut host, mut protocols) = (None, None);
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let content = Parts(extensions.long()?);
        match kind {
            SERVER_NAME if host.is_none() => host = Some(host_name(content)?),
            ALPN if protocols.is_none() => protocols = Some(protocol_names(content)?),
            SERVER_NAME | ALPN => return None,
            _ => {}
        }
    }
    let name = match host.flatten().map(normal_name).transpose() {
        Ok(name) => name.flatten(),
        Err(refusal) => return Some(Err(refusal)),
    };
    let protocols = protocols.unwrap_or_default();
    Some(Ok(Stated { name, protocols }))
}

/// Returns the name of the host in the content of an extension. Servers send this extension without
/// content, and some clients do, too. They mean no name, as with an empty one.
fn host_name(mut content: Parts<'_>) -> Option<Option<&[u8]>> {
    if content.0.is_empty() {
        return Some(None);
    }
    let mut names = Parts(content.only_long()?);
    let mut host = None;
    while !names.0.is_empty() {
        let kind = names.byte()?;
        let name = names.long()?;
        if kind == HOST_NAME && host.replace(name).is_some() {
            return None;
        }
    }
    Some(host.filter(|host| !host.is_empty()))
}

fn protocol_names(mut content: Parts<'_>) -> Option<Vec<Box<[u8]>>> {
    let mut list = Parts(content.only_long()?);
    let mut names = Vec::new();
    while !list.0.is_empty() {
        let name = list.short()?;
        if name.is_empty() {
            return None;
        }
        names.push(name.into());
    }
    Some(names)
}

/// Returns the form in which names are compared. `None` means an address, which is no name.
fn normal_name(name: &[u8]) -> Result<Option<Box<str>>, Refusal> {
    let name = std::str::from_utf8(name).map_err(|_| Refusal::InvalidName)?;
    if name.parse::<IpAddr>().is_ok() {
        return Ok(None);
    }
    let name = canonical_name(name).ok_or(Refusal::InvalidName)?;
    let is_label = |label: &str| {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=LABEL_MAX_BYTES).contains(&label.len()) && label.bytes().all(is_valid)
    };
    if name.len() > NAME_MAX_BYTES || !name.split('.').all(is_label) {
        return Err(Refusal::InvalidName);
    }
    Ok(Some(name.into()))
}

/// The rest of a message. Every method returns `None` if the rest is too short.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|taken| u16::from_be_bytes([taken[0], taken[1]]))
    }

    /// Takes the bytes behind their length in one byte.
    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(length.into())
    }

    /// Takes the bytes behind their length in two bytes.
    fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(length.into())
    }

    /// Takes the bytes behind their length in two bytes. They must be the whole rest.
    fn only_long(&mut self) -> Option<&'a [u8]> {
        self.long().filter(|_| self.0.is_empty())
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
        _ if before == 0 && begins(held) == Some(false) => return Err(Refusal::Missing),
        [SSL2..=u8::MAX, ..] if before == 0 => return Ok(HEAD_BYTES),
        [] | [HANDSHAKE, ..] => {}
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

/// Returns whether the stream of a client of TLS or SSL begins with `held`, or `None` if that is
/// not known yet.
pub(super) fn begins(held: &[u8]) -> Option<bool> {
    match held {
        [] | [HANDSHAKE] => None,
        [HANDSHAKE, SSL3..=u8::MAX, ..] => Some(true),
        [SSL2..=u8::MAX, rest @ ..] if is_ssl2(rest) => (held.len() >= HEAD_BYTES).then_some(true),
        _ => Some(false),
    }
}

/// Returns whether a hello of SSL 2.0 can continue like this after its first byte: the length, the
/// type, and the version that the client wants.
fn is_ssl2(rest: &[u8]) -> bool {
    let [_, kind, version @ ..] = rest else {
        return true;
    };
    *kind == CLIENT_HELLO && matches!(version, [] | [0] | [0, 2, ..] | [SSL3..=u8::MAX, ..])
}

impl Refusal {
    /// Every refusal, for code that keeps one counter for each refusal.
    pub const ALL: [Self; 7] = [
        Self::Missing,
        Self::TooLong,
        Self::Malformed,
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
