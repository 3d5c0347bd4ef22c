//! The PROXY protocol, versions 1 and 2: a header that names the client of a connection.
//!
//! A load balancer sends such a header to the proxy, and the proxy can send one to the target.
//!
//! ```text
//!   v1   PROXY TCP4 client reached port port\r\n      at most 107 bytes
//!   v2   signature (12), command, family, length ▸ addresses ▸ TLVs in the rest of the length
//! ```
//!
//! The crate `proxy-header` parses and writes the addresses. This module finds the end of a header,
//! no matter how the header was split into reads, and decides which headers are valid.
//!
//! The parser keeps at most 107 bytes of a header, whatever length the header claims. It also keeps
//! up to 4 KiB of TLVs to pass on. The bytes after the header stay in the input.
//!
//! A wrong checksum is refused, because the addresses may be damaged too. A header with more than
//! 4 KiB of TLVs is not checked.
//!
//! Specification: <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>

mod tls;

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use proxy_header::{ParseConfig, ProxiedAddress, ProxyHeader};

use super::Refused;
use crate::address::canonical;
pub use tls::{Tls, without_tls};

/// The first bytes of a version 1 header. A version 2 header starts with [`SIGNATURE`].
const PREFIX: &[u8] = b"PROXY ";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest version 1 header, in bytes: `UNKNOWN`, two IPv6 addresses, two ports, and the line
/// end.
const LINE_MAX_BYTES: usize = 107;
/// The number of bytes of a version 2 header before the addresses: signature, version and command,
/// family and protocol, and the length of the rest.
const HEAD_BYTES: usize = 16;
/// The length of two IPv4 addresses and two ports, in bytes.
const IPV4_BYTES: usize = 12;
const IPV6_BYTES: usize = 36;
/// The length of the longest header of a datagram, in bytes: version 2 with IPv6 addresses.
pub const DATAGRAM_HEADER_MAX_BYTES: usize = HEAD_BYTES + IPV6_BYTES;
/// The most bytes of TLVs that are passed on. The names in a certificate or the identifier of a
/// cloud endpoint need a few hundred bytes.
const TLVS_MAX_BYTES: usize = 4 << 10;
/// The checksum of one header. It is useless in another header.
const TLV_CRC32C: u8 = 0x03;
/// Padding. It is useless in another header.
const TLV_NOOP: u8 = 0x04;
/// The length of two Unix socket paths, in bytes.
const UNIX_BYTES: usize = 216;

/// The version of a header to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Version 1: a line of text.
    V1,
    /// Version 2: binary, with TLVs.
    V2,
    /// Version 2, with TLVs about the TLS of the client: see [`Tls`].
    V2Tls,
}

/// The header with which a connection must begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// A version 1 header.
    V1,
    /// A version 2 header.
    V2,
    /// A header of either version.
    Any,
}

/// The origin of a connection, as its header states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The peer that opened the connection.
    ///
    /// Either a load balancer opened the connection for itself, for example for a health check
    /// (`LOCAL`), or its header states no TCP address. Such a header states `UNKNOWN`, the path of
    /// a Unix socket, or a protocol other than TCP.
    Own,
    /// A client of the load balancer.
    Proxied {
        /// The address of the client.
        client: SocketAddr,
        /// The address to which the client connected.
        reached: SocketAddr,
    },
}

/// The reason why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The connection does not begin with a header.
    Missing,
    /// The connection begins with a header of a version that is not accepted.
    Version,
    /// The line of a version 1 header does not end within 107 bytes.
    TooLong,
    /// The header is not valid.
    Malformed,
}

/// Parses the header at the beginning of a connection.
#[derive(Debug)]
pub struct Header {
    accept: Accept,
    state: State,
    /// The TLVs so far. Stays empty if the header has more than [`TLVS_MAX_BYTES`] of them.
    tlvs: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// Awaits the bytes up to the end of the addresses. Holds the bytes so far.
    Saying(Vec<u8>),
    /// Awaits this many bytes after the addresses.
    Skipping {
        left: usize,
        source: Source,
        /// The bytes before, which the checksum includes.
        said: Vec<u8>,
    },
}

/// The meaning of the bytes so far.
enum Said {
    /// The addresses are not complete.
    NotYet,
    /// The addresses are complete, and `left` more bytes belong to the header.
    This { source: Source, left: usize },
}

impl Header {
    /// Creates a parser that accepts these versions.
    pub fn new(accept: Accept) -> Self {
        Self {
            accept,
            state: State::Saying(Vec::new()),
            tlvs: Vec::new(),
        }
    }

    /// Returns the TLVs of a complete header, to pass on with the addresses.
    ///
    /// The result has at most 4 KiB, without checksums, padding, and parts of `SSL` outside of it.
    /// It is empty if the TLVs are not well-formed, or if the header had more than 4 KiB of them.
    pub fn into_tlvs(self) -> Vec<u8> {
        passed_on(&self.tlvs).unwrap_or_default()
    }

    /// Consumes the bytes of the header from `input`. Returns `None` until the header is complete.
    ///
    /// If the bytes so far cannot become a valid header, the parser refuses them without waiting
    /// for the end of the header.
    ///
    /// # Errors
    /// Returns the reason why the connection is refused.
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
                        let said = std::mem::take(said);
                        self.state = State::Skipping { left, source, said };
                    }
                }
                State::Skipping { left, source, said } => {
                    let (tlvs, rest) = input.split_at((*left).min(input.len()));
                    let is_kept = matches!(source, Source::Proxied { .. }) && *left + self.tlvs.len() <= TLVS_MAX_BYTES;
                    if is_kept {
                        self.tlvs.extend_from_slice(tlvs);
                    }
                    (*input, *left) = (rest, *left - tlvs.len());
                    if *left > 0 {
                        return Ok(None);
                    }
                    return match is_intact(said, &self.tlvs) {
                        true => Ok(Some(*source)),
                        false => Err(Refusal::Malformed),
                    };
                }
            }
        }
    }
}

/// Returns the meaning of the bytes so far, which are not empty. The parser calls this function
/// after each byte.
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
    // The crate `proxy-header` accepts `+80` as a port, as `str::parse` does.
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
        // The family does not matter here.
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
    // Only TCP addresses can belong to a connection like this one.
    if !matches!(family, 0x11 | 0x21) {
        return own;
    }
    if said.len() < HEAD_BYTES + expected {
        return Ok(Said::NotYet);
    }
    // The crate receives a header without the TLVs, because it does not read them.
    let mut header = said.to_vec();
    header[14..HEAD_BYTES].copy_from_slice(&(expected as u16).to_be_bytes());
    let source = addresses(&header)?;
    Ok(Said::This {
        source,
        left: length - expected,
    })
}

/// Returns the source that a complete header states.
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

/// Returns the type and the value of each TLV. Ends with `None` if a TLV is not complete.
fn each(mut tlvs: &[u8]) -> impl Iterator<Item = Option<(u8, &[u8])>> {
    std::iter::from_fn(move || {
        if tlvs.is_empty() {
            return None;
        }
        let whole = tlvs.split_at_checked(3).and_then(|(head, rest)| {
            let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
            let (value, next) = rest.split_at_checked(length)?;
            Some((head[0], value, next))
        });
        tlvs = whole.map_or(&[], |(_, _, next)| next);
        Some(whole.map(|(kind, value, _)| (kind, value)))
    })
}

/// Returns the TLVs, except those that apply to one header alone, and those that are not where they
/// belong. Returns `None` if a TLV is not complete.
fn passed_on(tlvs: &[u8]) -> Option<Vec<u8>> {
    let mut kept = Vec::new();
    for tlv in each(tlvs) {
        let (kind, value) = tlv?;
        if !matches!(kind, TLV_CRC32C | TLV_NOOP) && !tls::WITHIN_SSL.contains(&kind) {
            kept.push(kind);
            kept.extend_from_slice(&(value.len() as u16).to_be_bytes());
            kept.extend_from_slice(value);
        }
    }
    Some(kept)
}

/// Returns whether the checksum of a header is right, if it has one. The header is `said` and then
/// `tlvs`.
fn is_intact(said: &[u8], tlvs: &[u8]) -> bool {
    let mut at = said.len();
    let mut sums = each(tlvs).map_while(|tlv| tlv).filter_map(|(kind, value)| {
        let start = at + 3;
        at = start + value.len();
        (kind == TLV_CRC32C).then_some((start, value))
    });
    let Some((start, sum)) = sums.next() else {
        return true;
    };
    // The sum is that of the header with zeros in its place.
    let bytes = said.iter().chain(tlvs).enumerate();
    let zeroed = bytes.map(|(index, byte)| if (start..start + 4).contains(&index) { 0 } else { *byte });
    sum == crc32c(zeroed).to_be_bytes()
}

/// Returns the checksum CRC32C (RFC 3720 appendix B.4).
fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let shifted = |sum: u32| (sum >> 1) ^ (POLYNOMIAL * (sum & 1));
    !bytes.fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| shifted(sum))
    })
}

/// Returns the header for a connection from `client`, which reached the proxy at `reached`.
///
/// If either address is unknown, the header marks the connection as the proxy's own and contains no
/// TLVs. Otherwise, a version 2 header contains `tlvs`, which come from [`Header::into_tlvs`]
/// or [`Tls::after`].
///
/// # Panics
/// Panics if the addresses and `tlvs` together have more than 65535 bytes, the limit of a version 2
/// header. [`Header::into_tlvs`] returns at most 4 KiB.
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
        Version::V2 | Version::V2Tls => header.encode_v2(&mut bytes),
    }
    .expect("a vector has room, and the addresses are of one family");
    if version != Version::V1 {
        bytes.extend_from_slice(tlvs);
        let length = u16::try_from(bytes.len() - HEAD_BYTES).expect("the TLVs that are kept fit the length");
        bytes[14..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    }
    bytes
}

/// Returns the version 2 header of a datagram from `client`, which reached the proxy at `reached`.
/// It has at most [`DATAGRAM_HEADER_MAX_BYTES`]. Version 1 has no header for datagrams.
pub fn encode_datagram(client: SocketAddr, reached: SocketAddr) -> Vec<u8> {
    let (client, reached) = of_one_family(canonical(client), canonical(reached));
    let header = ProxyHeader::with_address(ProxiedAddress::datagram(client, reached));
    let mut bytes = Vec::with_capacity(DATAGRAM_HEADER_MAX_BYTES);
    let encoded = header.encode_v2(&mut bytes);
    encoded.expect("a vector has room, and the addresses are of one family");
    bytes
}

/// Returns both addresses in one family, because a header has room for only one family. If the
/// families differ, the IPv4 address becomes an IPv4-mapped IPv6 address.
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
    /// Every refusal, for code that keeps one counter for each refusal.
    pub const ALL: [Self; 4] = [Self::Missing, Self::Version, Self::TooLong, Self::Malformed];

    /// Returns the value of `reason` in metrics and log records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "proxy_header_missing",
            Self::Version => "proxy_header_version",
            Self::TooLong => "proxy_header_too_long",
            Self::Malformed => "proxy_header_malformed",
        }
    }
}

/// The answer is empty, because a load balancer that sends a wrong header does not wait for an
/// answer.
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
            "v2-tls" => Ok(Self::V2Tls),
            _ => Err("expected v1, v2 or v2-tls"),
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
