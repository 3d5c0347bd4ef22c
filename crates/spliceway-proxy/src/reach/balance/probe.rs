//! What a check sends to a backend, and what it expects.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::str::FromStr;

use spliceway_protocol::address::Target;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::net::stream::Stream;
use crate::reach::dial::{DialError, Dialed};

/// The most bytes of an answer that are looked at.
const ANSWER_MAX_BYTES: usize = 4096;
/// The most bytes that a check sends or expects.
const TEXT_MAX_BYTES: usize = 1024;
/// `HTTP/1.1 200`, and the byte after it.
const STATUS_BYTES: usize = 13;
/// The content types of TLS records: an alert, and a handshake. Both come from a TLS server.
const TLS_RECORDS: [u8; 2] = [21, 22];

/// What a check sends, and what it expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The connection is enough.
    Connect,
    /// A TLS handshake, in which the backend proves who it is. The dial has it.
    Tls,
    /// A TLS ClientHello, which a TLS record must answer. Nothing is proven.
    TlsHello,
    /// A request for this path, whose answer must have one of these statuses.
    Http(Box<str>, RangeInclusive<u16>),
    /// These bytes, and bytes that the answer must contain.
    Send(Vec<u8>, Vec<u8>),
}

/// Why a check failed.
#[derive(Debug)]
pub(super) enum Unhealthy {
    Unreachable(DialError),
    Io(io::Error),
    /// The answer, or the start of it.
    Unexpected(Vec<u8>),
    TooSlow,
}

impl Probe {
    /// Checks a backend. A check of HTTP asks for `host`.
    pub(super) async fn run(&self, dialed: Dialed, introduction: &[u8], host: &Target) -> Result<(), Unhealthy> {
        let mut stream = dialed.stream;
        self.talk(&mut stream, dialed.early, introduction, host).await?;
        if matches!(stream, Stream::Tls(_)) {
            // Some servers log a connection that ends without an announcement.
            let _ = stream.shutdown().await;
        }
        Ok(())
    }

    async fn talk(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        mut answer: Vec<u8>,
        introduction: &[u8],
        host: &Target,
    ) -> Result<(), Unhealthy> {
        let mut said = introduction.to_vec();
        match self {
            Self::Connect | Self::Tls => {}
            Self::TlsHello => said.extend(client_hello()),
            Self::Http(path, _) => {
                let request = format!(
                    "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: spliceway\r\nConnection: close\r\n\r\n",
                    name_of(host)
                );
                said.extend(request.bytes());
            }
            Self::Send(text, _) => said.extend(text),
        }
        stream.write_all(&said).await?;
        stream.flush().await?;
        loop {
            match self.is_answered(&answer) {
                Some(true) => return Ok(()),
                Some(false) => return Err(Unhealthy::Unexpected(answer)),
                None if answer.len() >= ANSWER_MAX_BYTES => return Err(Unhealthy::Unexpected(answer)),
                None => {}
            }
            let mut part = [0; 512];
            match stream.read(&mut part).await? {
                0 => return Err(Unhealthy::Unexpected(answer)),
                count => answer.extend_from_slice(&part[..count]),
            }
        }
    }

    /// Returns whether this is the answer that is expected, or `None` if more must be read.
    fn is_answered(&self, answer: &[u8]) -> Option<bool> {
        match self {
            Self::Connect | Self::Tls => Some(true),
            Self::TlsHello => answer.first().map(|first| TLS_RECORDS.contains(first)),
            Self::Http(_, statuses) => is_http_answered(answer, statuses),
            Self::Send(_, expected) => {
                let is_here = expected.is_empty() || answer.windows(expected.len()).any(|part| part == expected);
                is_here.then_some(true)
            }
        }
    }
}

/// Returns whether the final answer has one of these statuses, or `None` if more must be read.
fn is_http_answered(mut answer: &[u8], statuses: &RangeInclusive<u16>) -> Option<bool> {
    /// The end of a head.
    const END: &[u8] = b"\r\n\r\n";
    /// The final answer follows these (RFC 9110, section 15.2), except after 101.
    const INTERIM: [RangeInclusive<u16>; 2] = [100..=100, 102..=199];
    loop {
        let status = status(answer.get(..STATUS_BYTES)?);
        let is_interim = status.is_some_and(|status| INTERIM.iter().any(|range| range.contains(&status)));
        if !is_interim {
            return Some(status.is_some_and(|status| statuses.contains(&status)));
        }
        let end = answer.windows(END.len()).position(|bytes| bytes == END)?;
        answer = &answer[end + END.len()..];
    }
}

/// Returns the status at the start of an answer: `HTTP/1.1 200`, and the byte after it.
fn status(start: &[u8]) -> Option<u16> {
    match start.strip_prefix(b"HTTP/1.")? {
        [b'0'..=b'9', b' ', digits @ .., b' ' | b'\r' | b'\n'] if digits.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(digits).ok()?.parse().ok()
        }
        _ => None,
    }
}

/// Returns the name of the host for the request.
fn name_of(target: &Target) -> String {
    match target {
        Target::Unix(_) => "localhost".to_owned(),
        target => target.to_string(),
    }
}

/// Returns a TLS ClientHello (RFC 8446) without a key, so that a server of TLS 1.3 answers with a
/// HelloRetryRequest, which costs it no cryptography. Its random numbers are not secret.
fn client_hello() -> Vec<u8> {
    const CIPHERS: [u16; 13] = [
        0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0x009c, 0x009d, 0x002f, 0x0035,
    ];
    const EXTENSIONS: &[&[u8]] = &[
        // supported_groups: x25519, secp256r1, secp384r1
        &[0, 10, 0, 8, 0, 6, 0, 29, 0, 23, 0, 24],
        // ec_point_formats: uncompressed
        &[0, 11, 0, 2, 1, 0],
        // signature_algorithms: ECDSA, RSA-PSS and RSA with SHA-256, Ed25519
        &[0, 13, 0, 10, 0, 8, 4, 3, 8, 4, 4, 1, 8, 7],
        // supported_versions: 1.3, 1.2
        &[0, 43, 0, 5, 4, 3, 4, 3, 3],
        // psk_key_exchange_modes: with (EC)DHE
        &[0, 45, 0, 2, 1, 1],
        // key_share: none
        &[0, 51, 0, 2, 0, 0],
    ];
    let mut hello = vec![3, 3];
    hello.extend(rand::random::<[u8; 32]>());
    hello.push(32);
    hello.extend(rand::random::<[u8; 32]>());
    with_length(&mut hello, &CIPHERS.map(u16::to_be_bytes).concat());
    hello.extend([1, 0]);
    with_length(&mut hello, &EXTENSIONS.concat());
    let mut handshake = vec![1, 0];
    with_length(&mut handshake, &hello);
    let mut record = vec![22, 3, 1];
    with_length(&mut record, &handshake);
    record
}

fn with_length(to: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).expect("a hello is short");
    to.extend(length.to_be_bytes());
    to.extend_from_slice(bytes);
}

/// Parses the kind of a check, without what it expects.
impl FromStr for Probe {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected connect, tls, tls-hello, http:/PATH or send:TEXT";
        match text.split_once(':').unwrap_or((text, "")) {
            ("connect", "") => Ok(Self::Connect),
            ("tls", "") => Ok(Self::Tls),
            ("tls-hello", "") => Ok(Self::TlsHello),
            ("http", path) if is_path(path) => Ok(Self::Http(path.into(), 200..=399)),
            ("send", text) => Ok(Self::Send(unescaped(text)?, Vec::new())),
            _ => Err(expected),
        }
    }
}

impl Probe {
    /// Sets what the check expects.
    ///
    /// # Errors
    /// Returns an error if this kind of check expects something else.
    pub(crate) fn expect(&mut self, text: &str) -> Result<(), &'static str> {
        match self {
            Self::Connect | Self::Tls | Self::TlsHello => return Err("is only for checks http:/PATH and send:TEXT"),
            Self::Http(_, statuses) => {
                let expected = "expected a status such as 200, or 200-299";
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                let status = |text: &str| text.parse().ok().filter(|status| (100..=999).contains(status));
                let (first, last) = status(first).zip(status(last)).ok_or(expected)?;
                *statuses = first..=last;
            }
            Self::Send(_, expected) => *expected = unescaped(text)?,
        }
        Ok(())
    }
}

fn is_path(path: &str) -> bool {
    // Two slashes are a mistyped URL.
    path.starts_with('/')
        && !path.starts_with("//")
        && path.len() <= TEXT_MAX_BYTES
        && path.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Replaces `\r`, `\n`, `\t`, `\\` and `\xHH`.
fn unescaped(text: &str) -> Result<Vec<u8>, &'static str> {
    let expected = "expected text of at most 1024 bytes, in which \\ begins \\r, \\n, \\t, \\\\ or \\xHH";
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        let (byte, length) = match after.as_bytes() {
            [b'r', ..] => (b'\r', 1),
            [b'n', ..] => (b'\n', 1),
            [b't', ..] => (b'\t', 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (u8::from_str_radix(&after[1..3], 16).map_err(|_| expected)?, 3)
            }
            _ => return Err(expected),
        };
        bytes.push(byte);
        rest = &after[length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    if bytes.len() > TEXT_MAX_BYTES {
        Err(expected)
    } else {
        Ok(bytes)
    }
}

impl From<io::Error> for Unhealthy {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Longer text would hide the rest of a log line.
        const SHOWN_BYTES: usize = 40;
        match self {
            Self::Unreachable(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Unexpected(answer) => {
                let shown = &answer[..answer.len().min(SHOWN_BYTES)];
                write!(f, "unexpected answer \"{}\"", shown.escape_ascii())
            }
            Self::TooSlow => f.write_str("no answer in time"),
        }
    }
}

#[cfg(test)]
mod tests;
