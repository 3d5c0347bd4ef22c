//! UDP datagrams between a client and its association (RFC 1928 section 7). Each datagram is a
//! whole message.
//!
//! ```text
//!   0   2      3      4
//!   ┌───┬──────┬──────┬─────────┬──────┬──────┐
//!   │ 0 │ FRAG │ ATYP │ address │ port │ data │
//!   └───┴──────┴──────┴─────────┴──────┴──────┘
//! ```
//!
//! In a datagram from the client, the address is the destination of the data. In a datagram to the
//! client, the address is the source of the data.
//!
//! The parser refuses fragments. The RFC makes reassembly optional, and requires implementations
//! without it to drop fragments.

use std::net::{IpAddr, SocketAddr};

use super::address;
use crate::address::{Target, canonical};

/// The number of bytes before the address: two reserved bytes, which are 0, and the fragment
/// number.
const FIXED_BYTES: usize = 3;
const IPV4: u8 = 1;
const IPV6: u8 = 4;

/// The longest header of a datagram to a client, in bytes.
///
/// A header from a client may contain a name, and may therefore be longer.
pub const HEADER_MAX_BYTES: usize = FIXED_BYTES + 1 + 16 + 2;

/// The reason why a client's datagram is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The datagram ends before its header does.
    Short,
    /// The first two bytes are not 0.
    Reserved,
    /// The datagram is a fragment.
    Fragment,
    /// The address type is unknown.
    AddressType,
    /// The name of the target is empty, or contains bytes that host names do not contain.
    Name,
    /// The port of the target is 0, which is not a valid destination.
    Port,
}

impl Malformed {
    /// Returns the value of `reason` in metrics and log records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Reserved => "reserved",
            Self::Fragment => "fragment",
            Self::AddressType => "address_type",
            Self::Name => "name",
            Self::Port => "port",
        }
    }
}

/// Returns the target and the data of a client's datagram. The data may be empty.
///
/// An IPv4-mapped IPv6 address becomes the IPv4 address, so that rules and answers see only one
/// form of the address.
///
/// # Errors
/// Returns the fault in the header. The function checks the whole header, but never the data.
pub fn parse(datagram: &[u8]) -> Result<(Target, &[u8]), Malformed> {
    let (fixed, rest) = datagram.split_first_chunk::<FIXED_BYTES>().ok_or(Malformed::Short)?;
    let [reserved @ .., fragment] = *fixed;
    if reserved != [0, 0] {
        return Err(Malformed::Reserved);
    }
    if fragment != 0 {
        return Err(Malformed::Fragment);
    }
    let (address, data) = rest.split_at_checked(address::length(rest)?).ok_or(Malformed::Short)?;
    let target = match address::decode(address)? {
        Target::Ip(address) => Target::Ip(canonical(address)),
        named => named,
    };
    match target.port() {
        Some(0) => Err(Malformed::Port),
        _ => Ok((target, data)),
    }
}

impl From<address::Wrong> for Malformed {
    fn from(wrong: address::Wrong) -> Self {
        match wrong {
            address::Wrong::Type => Self::AddressType,
            address::Wrong::Name => Self::Name,
        }
    }
}

/// The header of a datagram to the client. It precedes the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; HEADER_MAX_BYTES],
    length: usize,
}

impl Header {
    /// Returns the header of a datagram that came from `source`. The header has no room for the
    /// scope and the flow information of an IPv6 address.
    pub fn of(source: SocketAddr) -> Self {
        let mut header = Self {
            bytes: [0; HEADER_MAX_BYTES],
            length: FIXED_BYTES,
        };
        match source.ip() {
            IpAddr::V4(ip) => {
                header.push(&[IPV4]);
                header.push(&ip.octets());
            }
            IpAddr::V6(ip) => {
                header.push(&[IPV6]);
                header.push(&ip.octets());
            }
        }
        header.push(&source.port().to_be_bytes());
        header
    }

    /// Returns the bytes of the header: at most [`HEADER_MAX_BYTES`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    const NAME: u8 = 3;
    const PORT_BYTES: usize = 2;
    const V4: [u8; 10] = [0, 0, 0, IPV4, 192, 0, 2, 1, 0x1f, 0x90];

    fn v6(ip: Ipv6Addr) -> Vec<u8> {
        [&[0, 0, 0, IPV6][..], &ip.octets(), &[0x1f, 0x90]].concat()
    }

    fn named(name: &[u8]) -> Vec<u8> {
        let length = u8::try_from(name.len()).unwrap();
        [&[0, 0, 0, NAME, length][..], name, &[0x1f, 0x90]].concat()
    }

    #[test]
    fn every_address_type_is_read_and_the_data_follows_it() {
        let documentation = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
        let cases = [
            (V4.to_vec(), "192.0.2.1:8080"),
            (v6(documentation), "[2001:db8::7]:8080"),
            (named(b"example.com"), "example.com:8080"),
        ];
        for (header, expected) in cases {
            for data in [&b""[..], b"d", b"data", &[0; 4]] {
                let datagram = [&header, data].concat();
                let (target, rest) = parse(&datagram).unwrap();
                assert_eq!((target.to_string().as_str(), rest), (expected, data));
            }
        }
    }

    #[test]
    fn a_header_cut_anywhere_is_short() {
        for header in [V4.to_vec(), v6(Ipv6Addr::LOCALHOST), named(b"example.com")] {
            for end in 0..header.len() {
                assert_eq!(parse(&header[..end]), Err(Malformed::Short), "{header:?} cut at {end}");
            }
        }
        assert_eq!(parse(&[0, 0, 0, NAME, 255, b'a', 0, 80]), Err(Malformed::Short));
    }

    #[test]
    fn every_fragment_is_refused_whatever_follows() {
        for fragment in 1..=255 {
            for address_type in [0, IPV4, 255] {
                assert_eq!(parse(&[0, 0, fragment, address_type]), Err(Malformed::Fragment));
            }
        }
    }

    #[test]
    fn reserved_bytes_must_be_0() {
        for reserved in [[0, 1], [1, 0], [255, 255]] {
            let datagram = [&reserved, &V4[2..]].concat();
            assert_eq!(parse(&datagram), Err(Malformed::Reserved));
        }
    }

    #[test]
    fn an_unknown_address_type_is_refused() {
        for address_type in (0..=255).filter(|known| ![IPV4, NAME, IPV6].contains(known)) {
            let datagram = [&[0, 0, 0, address_type][..], &[1; 300]].concat();
            assert_eq!(parse(&datagram), Err(Malformed::AddressType));
        }
    }

    #[test]
    fn a_name_that_no_host_can_have_is_refused() {
        for bad in [
            &b""[..],
            b"a\0b",
            b"a b",
            b"a\n",
            b"\xff\xfe",
            b"caf\xc3\xa9",
            b"[::1]:80",
        ] {
            assert_eq!(parse(&named(bad)), Err(Malformed::Name), "{bad:?}");
        }
        let (target, _) = parse(&named(&[b'a'; 255]))
            .map(|(target, data)| (target, data.len()))
            .unwrap();
        assert_eq!(target.to_string().len(), 255 + ":8080".len());
    }

    #[test]
    fn a_target_with_port_0_is_refused() {
        for mut header in [V4.to_vec(), v6(Ipv6Addr::LOCALHOST), named(b"example.com")] {
            let port = header.len() - PORT_BYTES;
            header[port..].fill(0);
            assert_eq!(parse(&header), Err(Malformed::Port));
        }
    }

    #[test]
    fn every_form_of_an_ipv4_address_becomes_that_address() {
        let mapped = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0201);
        let forms = [V4.to_vec(), v6(mapped), named(b"192.0.2.1"), named(b"::ffff:192.0.2.1")];
        for form in &forms[..3] {
            assert_eq!(parse(form), Ok((Target::Ip(([192, 0, 2, 1], 8080).into()), &b""[..])));
        }
        // A colon is not allowed in a name, but the text may be an IPv6 address.
        assert_eq!(parse(&forms[3]), parse(&forms[0]));
    }

    #[test]
    fn a_header_to_the_client_names_the_source() {
        let v4 = Header::of(([192, 0, 2, 1], 8080).into());
        assert_eq!(v4.as_bytes(), V4);
        let ip = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
        let header = Header::of((ip, 8080).into());
        assert_eq!(header.as_bytes(), v6(ip));
        assert_eq!(header.as_bytes().len(), HEADER_MAX_BYTES);
    }
}
