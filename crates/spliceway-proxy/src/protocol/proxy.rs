//! The PROXY protocol, versions 1 and 2: who a connection comes from, as the proxy in front of us says and as we say to who is behind.
//!
//! ```text
//!   v1   PROXY TCP4 client reached port port\r\n      107 bytes at most
//!   v2   signature (12), command, family, length ▸ addresses ▸ what else the length has room for (TLVs)
//! ```
//!
//! The crate `proxy-header` reads and writes the addresses. Here is where a header ends, in whatever pieces it comes, and what it may be:
//! at most 107 bytes of it are kept, and 4 KiB of TLVs to pass on, whatever length it claims; what follows it stays in the input.
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use proxy_header::{ParseConfig, ProxiedAddress, ProxyHeader};

use super::Refused;
use crate::address::canonical;

/// What a header of version 1 starts with; version 2 with [`SIGNATURE`].
const PREFIX: &[u8] = b"PROXY ";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest header of version 1: `UNKNOWN`, two IPv6 addresses and two ports, and the line's end.
const LINE_MAX_BYTES: usize = 107;
/// Of version 2: the signature, version and command, family and protocol, and the length of what follows.
const HEAD_BYTES: usize = 16;
/// Two addresses and two ports.
const IPV4_BYTES: usize = 12;
const IPV6_BYTES: usize = 36;
/// TLVs that are passed on. A certificate's names or a cloud's endpoint take some hundred bytes.
const TLVS_MAX_BYTES: usize = 4 << 10;
/// A checksum of one header, and padding: of no use in another header.
const TLV_CRC32C: u8 = 0x03;
const TLV_NOOP: u8 = 0x04;
/// Two paths of sockets.
const UNIX_BYTES: usize = 216;

/// Which header is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// Which header a connection must begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    V1,
    V2,
    Any,
}

/// Who a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Who opened it: the proxy itself, as for a check of health (`LOCAL`), or one that does not know or cannot say (`UNKNOWN`,
    /// a path, a protocol that is not TCP).
    Own,
    /// A client of the proxy's, and where it had connected to.
    Proxied { client: SocketAddr, reached: SocketAddr },
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It begins with something else.
    Missing,
    /// It begins with a header of the version that is not accepted.
    Version,
    /// A line that does not end.
    TooLong,
    /// A header that says what none may.
    Malformed,
}

/// The beginning of a connection.
#[derive(Debug)]
pub struct Header {
    accept: Accept,
    state: State,
    /// The TLVs so far; none where there are more than [`TLVS_MAX_BYTES`].
    tlvs: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// Awaits the rest of what has meaning; here is what came of it.
    Saying(Vec<u8>),
    /// Awaits so many bytes that have none.
    Skipping { left: usize, source: Source },
}

/// What the bytes so far come to.
enum Said {
    /// More is to come.
    NotYet,
    /// All that has meaning, and so many bytes behind it that belong to the header.
    This { source: Source, left: usize },
}

impl Header {
    pub fn new(accept: Accept) -> Self {
        Self {
            accept,
            state: State::Saying(Vec::new()),
            tlvs: Vec::new(),
        }
    }

    /// The TLVs to pass on with the addresses, of a header that is whole. None where they are not well formed.
    pub fn into_tlvs(self) -> Vec<u8> {
        passed_on(&self.tlvs).unwrap_or_default()
    }

    /// Takes from `input` what belongs to the header; `None` while it is not whole. What cannot become a header is refused without
    /// waiting for its end.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Source>, Refusal> {
        loop {
            match &mut self.state {
                State::Saying(said) => {
                    let Some((&byte, rest)) = input.split_first() else {
                        return Ok(None);
                    };
                    *input = rest;
                    said.push(byte);
                    if let Said::This { source, left } = look(said, self.accept)? {
                        self.state = State::Skipping { left, source };
                    }
                }
                State::Skipping { left, source } => {
                    let (tlvs, rest) = input.split_at((*left).min(input.len()));
                    let is_kept = matches!(source, Source::Proxied { .. }) && *left + self.tlvs.len() <= TLVS_MAX_BYTES;
                    if is_kept {
                        self.tlvs.extend_from_slice(tlvs);
                    }
                    (*input, *left) = (rest, *left - tlvs.len());
                    return Ok((*left == 0).then_some(*source));
                }
            }
        }
    }
}

/// What these bytes, which are not empty, come to, after each of them.
fn look(said: &[u8], accept: Accept) -> Result<Said, Refusal> {
    let starts = |with: &[u8]| said.iter().zip(with).all(|(byte, expected)| byte == expected);
    match accept {
        Accept::V1 | Accept::Any if starts(PREFIX) => line(said),
        Accept::V2 | Accept::Any if starts(SIGNATURE) => binary(said),
        Accept::V1 if starts(SIGNATURE) => Err(Refusal::Version),
        Accept::V2 if starts(PREFIX) => Err(Refusal::Version),
        _ => Err(Refusal::Missing),
    }
}

fn line(said: &[u8]) -> Result<Said, Refusal> {
    match said {
        [.., b'\r', b'\n'] => {}
        [.., b'\r', _] | [.., b'\n'] => return Err(Refusal::Malformed),
        _ if said.len() >= LINE_MAX_BYTES => return Err(Refusal::TooLong),
        _ => return Ok(Said::NotYet),
    }
    // The crate takes `+80` for a port, as `str::parse` does.
    let is_known = !said[PREFIX.len()..].starts_with(b"UNKNOWN");
    if is_known && said.contains(&b'+') {
        return Err(Refusal::Malformed);
    }
    let source = addresses(said)?;
    Ok(Said::This { source, left: 0 })
}

fn binary(said: &[u8]) -> Result<Said, Refusal> {
    const LOCAL: u8 = 0x20;
    const PROXY: u8 = 0x21;
    if said.len() < HEAD_BYTES {
        return Ok(Said::NotYet);
    }
    let (command, family) = (said[12], said[13]);
    let length = usize::from(u16::from_be_bytes([said[14], said[15]]));
    let own = Ok(Said::This {
        source: Source::Own,
        left: length,
    });
    let expected = match (command, family) {
        // Whatever family it names.
        (LOCAL, _) => return own,
        (PROXY, 0x00..=0x02) => return own,
        (PROXY, 0x10..=0x12) => IPV4_BYTES,
        (PROXY, 0x20..=0x22) => IPV6_BYTES,
        (PROXY, 0x30..=0x32) => UNIX_BYTES,
        _ => return Err(Refusal::Malformed),
    };
    if length < expected {
        return Err(Refusal::Malformed);
    }
    // Only of TCP are the addresses those of a connection such as this.
    if !matches!(family, 0x11 | 0x21) {
        return own;
    }
    if said.len() < HEAD_BYTES + expected {
        return Ok(Said::NotYet);
    }
    // To the crate, a header without TLVs: it does not read those.
    let mut header = said.to_vec();
    header[14..HEAD_BYTES].copy_from_slice(&(expected as u16).to_be_bytes());
    let source = addresses(&header)?;
    Ok(Said::This {
        source,
        left: length - expected,
    })
}

/// The addresses in a whole header.
fn addresses(header: &[u8]) -> Result<Source, Refusal> {
    match ProxyHeader::parse(header, ParseConfig::default()) {
        Ok((parsed, length)) if length == header.len() => {
            Ok(parsed.proxied_address().map_or(Source::Own, |said| Source::Proxied {
                client: canonical(said.source),
                reached: canonical(said.destination),
            }))
        }
        _ => Err(Refusal::Malformed),
    }
}

/// TLVs without those that hold for one header alone; `None` where a length exceeds what is there.
fn passed_on(mut tlvs: &[u8]) -> Option<Vec<u8>> {
    let mut kept = Vec::new();
    while let Some((head, rest)) = tlvs.split_at_checked(3) {
        let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
        let (value, next) = rest.split_at_checked(length)?;
        if !matches!(head[0], TLV_CRC32C | TLV_NOOP) {
            kept.extend_from_slice(head);
            kept.extend_from_slice(value);
        }
        tlvs = next;
    }
    tlvs.is_empty().then_some(kept)
}

/// The header that says that a connection is `client`'s, who reached us at `reached`; that it is our own where either is not known.
/// Version 2 also passes on the TLVs of [`Header::into_tlvs`].
pub fn encode(version: Version, client: Option<SocketAddr>, reached: Option<SocketAddr>, tlvs: &[u8]) -> Vec<u8> {
    let addresses = client.zip(reached);
    let tlvs = if addresses.is_some() { tlvs } else { &[] };
    let header = match addresses {
        Some((client, reached)) => {
            let (client, reached) = of_one_family(canonical(client), canonical(reached));
            ProxyHeader::with_address(ProxiedAddress::stream(client, reached))
        }
        None => ProxyHeader::with_local(),
    };
    let mut bytes = Vec::with_capacity(LINE_MAX_BYTES);
    match version {
        Version::V1 => header.encode_v1(&mut bytes),
        Version::V2 => header.encode_v2(&mut bytes),
    }
    .expect("a vector has room, and the addresses are of one family");
    if version == Version::V2 {
        bytes.extend_from_slice(tlvs);
        let length = u16::try_from(bytes.len() - HEAD_BYTES).expect("the TLVs that are kept fit the length");
        bytes[14..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    }
    bytes
}

/// A header has room for addresses of one family: beside one of IPv6, one of IPv4 is written in that form.
fn of_one_family(one: SocketAddr, other: SocketAddr) -> (SocketAddr, SocketAddr) {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    if one.is_ipv4() == other.is_ipv4() {
        (one, other)
    } else {
        (mapped(one), mapped(other))
    }
}

impl Refusal {
    pub const ALL: [Self; 4] = [Self::Missing, Self::Version, Self::TooLong, Self::Malformed];

    /// For metrics and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "proxy_header_missing",
            Self::Version => "proxy_header_version",
            Self::TooLong => "proxy_header_too_long",
            Self::Malformed => "proxy_header_malformed",
        }
    }
}

/// There is nobody to be told: a balancer that sends what it should not waits for no answer.
impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            reason: refusal.as_str(),
            answer: Vec::new(),
        }
    }
}

impl FromStr for Version {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "v1" => Ok(Self::V1),
            "v2" => Ok(Self::V2),
            _ => Err("expected v1 or v2"),
        }
    }
}

impl FromStr for Accept {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "v1" => Ok(Self::V1),
            "v2" => Ok(Self::V2),
            "any" => Ok(Self::Any),
            _ => Err("expected v1, v2 or any"),
        }
    }
}

#[cfg(test)]
mod tests;
