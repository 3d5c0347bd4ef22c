//! SOCKS5 (RFC 1928) from the server's side, CONNECT without authentication.
//!
//! ```text
//!   Greeting ──▶ NoAuth ──▶ Request ──▶ Target
//! ```
//!
//! Each arrow needs the value before it, so no request is read where the method was not agreed. Messages are cut out of the
//! stream however it was cut into reads; what follows the last one stays in the input. A message is at most 262 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::address::Target;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
/// Bytes of a request before its address: version, command, reserved, address type.
const REQUEST_HEAD_BYTES: usize = 4;
const PORT_BYTES: usize = 2;

/// The answer where the client offers no method that is spoken here.
pub const NO_ACCEPTABLE_METHOD: [u8; 2] = [VERSION, 0xFF];

/// The client's first message: the methods it offers.
#[derive(Debug, Default)]
pub struct Greeting {
    message: Message,
}

/// Proof that "no authentication" was offered, and so agreed.
#[derive(Debug)]
pub struct NoAuth(());

/// The client's second message: what it wants.
#[derive(Debug)]
pub struct Request {
    message: Message,
}

/// Why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It speaks something else.
    Version,
    /// It offers no method that is spoken here.
    Method,
    Command,
    AddressType,
    /// Its name is none: empty, or with bytes that no host name has.
    Name,
}

/// The reply code to a request, RFC 1928 section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    Succeeded = 0x00,
    GeneralFailure = 0x01,
    NotAllowed = 0x02,
    NetworkUnreachable = 0x03,
    HostUnreachable = 0x04,
    ConnectionRefused = 0x05,
    TtlExpired = 0x06,
    CommandNotSupported = 0x07,
    AddressTypeNotSupported = 0x08,
}

impl Greeting {
    /// Takes from `input` what belongs to this message; `None` while it is not whole.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<NoAuth>, Refusal> {
        let Some(message) = self.message.feed(input, greeting_length)? else {
            return Ok(None);
        };
        match message[2..].contains(&NO_AUTHENTICATION) {
            true => Ok(Some(NoAuth(()))),
            false => Err(Refusal::Method),
        }
    }
}

impl NoAuth {
    /// What the client is told.
    pub const ANSWER: [u8; 2] = [VERSION, NO_AUTHENTICATION];

    pub fn request(self) -> Request {
        Request {
            message: Message::default(),
        }
    }
}

impl Request {
    /// Takes from `input` what belongs to this message; `None` while it is not whole.
    ///
    /// An unknown command is refused when its request is whole, an unknown address type as soon as it is seen: its length is unknown.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Target>, Refusal> {
        let Some(message) = self.message.feed(input, request_length)? else {
            return Ok(None);
        };
        let (address, port) = message[REQUEST_HEAD_BYTES..].split_at(message.len() - REQUEST_HEAD_BYTES - PORT_BYTES);
        let port = u16::from_be_bytes([port[0], port[1]]);
        if message[1] != CONNECT {
            return Err(Refusal::Command);
        }
        target(message[3], address, port).map(Some)
    }
}

fn target(address_type: u8, address: &[u8], port: u16) -> Result<Target, Refusal> {
    let ip: IpAddr = match address_type {
        IPV4 => <[u8; 4]>::try_from(address).map_err(|_| Refusal::AddressType)?.into(),
        IPV6 => <[u8; 16]>::try_from(address).map_err(|_| Refusal::AddressType)?.into(),
        NAME => {
            let name = std::str::from_utf8(&address[1..]).map_err(|_| Refusal::Name)?;
            return Target::named(name, port).ok_or(Refusal::Name);
        }
        _ => return Err(Refusal::AddressType),
    };
    Ok(Target::Ip(SocketAddr::new(ip, port)))
}

impl Refusal {
    /// Every one, for whoever keeps a count of each.
    pub const ALL: [Self; 5] = [
        Self::Version,
        Self::Method,
        Self::Command,
        Self::AddressType,
        Self::Name,
    ];

    /// What the client is told; nothing if it does not speak SOCKS5.
    pub fn answer(self) -> Vec<u8> {
        match self {
            Self::Version => Vec::new(),
            Self::Method => NO_ACCEPTABLE_METHOD.to_vec(),
            Self::Command => Reply::CommandNotSupported.encode(UNSPECIFIED),
            Self::AddressType => Reply::AddressTypeNotSupported.encode(UNSPECIFIED),
            Self::Name => Reply::GeneralFailure.encode(UNSPECIFIED),
        }
    }

    /// The `reason` of metrics and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Method => "method",
            Self::Command => "command",
            Self::AddressType => "address_type",
            Self::Name => "name",
        }
    }
}

/// The bound address of a reply that binds none.
pub const UNSPECIFIED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Reply {
    /// The reply as sent, with the address that the connection to the target goes out from.
    pub fn encode(self, bound: SocketAddr) -> Vec<u8> {
        let mut bytes = vec![VERSION, self as u8, 0];
        match bound.ip() {
            IpAddr::V4(ip) => {
                bytes.push(IPV4);
                bytes.extend(Ipv4Addr::octets(&ip));
            }
            IpAddr::V6(ip) => {
                bytes.push(IPV6);
                bytes.extend(Ipv6Addr::octets(&ip));
            }
        }
        bytes.extend(bound.port().to_be_bytes());
        bytes
    }
}

/// One message of which the first `held` bytes are here.
#[derive(Debug, Default)]
struct Message {
    held: Vec<u8>,
}

impl Message {
    /// Moves bytes from `input` until the message is whole, as `length` tells it of what is held: all of it, or `None`.
    fn feed(
        &mut self,
        input: &mut &[u8],
        length: fn(&[u8]) -> Result<usize, Refusal>,
    ) -> Result<Option<&[u8]>, Refusal> {
        loop {
            let missing = length(&self.held)?.saturating_sub(self.held.len());
            if missing == 0 {
                return Ok(Some(&self.held));
            }
            let Some((taken, rest)) = input
                .split_at_checked(missing.min(input.len()))
                .filter(|(taken, _)| !taken.is_empty())
            else {
                return Ok(None);
            };
            self.held.extend_from_slice(taken);
            *input = rest;
        }
    }
}

/// How long a greeting is at least, that starts with `held`. Once `held` is that long, it is exact.
fn greeting_length(held: &[u8]) -> Result<usize, Refusal> {
    match held {
        [] => Ok(1),
        [VERSION] => Ok(2),
        [VERSION, methods, ..] => Ok(2 + usize::from(*methods)),
        _ => Err(Refusal::Version),
    }
}

/// How long a request is at least, that starts with `held`. Once `held` is that long, it is exact.
fn request_length(held: &[u8]) -> Result<usize, Refusal> {
    let address_bytes = match held {
        [] => return Ok(1),
        [VERSION] | [VERSION, _] | [VERSION, _, _] => return Ok(REQUEST_HEAD_BYTES),
        [VERSION, _, _, IPV4, ..] => 4,
        [VERSION, _, _, IPV6, ..] => 16,
        [VERSION, _, _, NAME] => 1,
        [VERSION, _, _, NAME, name_bytes, ..] => 1 + usize::from(*name_bytes),
        [VERSION, ..] => return Err(Refusal::AddressType),
        _ => return Err(Refusal::Version),
    };
    Ok(REQUEST_HEAD_BYTES + address_bytes + PORT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole conversation in pieces: the target, and what is left behind it.
    fn converse(pieces: &[&[u8]]) -> Result<(Option<Target>, Vec<u8>), Refusal> {
        let (mut greeting, mut request, mut target) = (Greeting::default(), None, None);
        let mut left = Vec::new();
        for mut input in pieces.iter().copied() {
            if request.is_none() {
                request = greeting.feed(&mut input)?.map(NoAuth::request);
            }
            if let (Some(request), None) = (&mut request, &target) {
                target = request.feed(&mut input)?;
            }
            if target.is_some() {
                left.extend_from_slice(input);
            } else {
                assert!(input.is_empty(), "what is not the end is taken whole");
            }
        }
        Ok((target, left))
    }

    fn request(command: u8, address_type: u8, address: &[u8]) -> Vec<u8> {
        [
            &[VERSION, 1, 0, VERSION, command, 0, address_type],
            address,
            &[0x1f, 0x90],
        ]
        .concat()
    }

    fn name(name: &[u8]) -> Vec<u8> {
        [&[u8::try_from(name.len()).unwrap()], name].concat()
    }

    #[test]
    fn every_address_type_is_read_at_every_split_and_early_data_is_left() {
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
        let cases = [
            (request(CONNECT, IPV4, &[192, 0, 2, 1]), "192.0.2.1:8080"),
            (request(CONNECT, IPV6, &v6.octets()), "[2001:db8::7]:8080"),
            (request(CONNECT, NAME, &name(b"example.com")), "example.com:8080"),
        ];
        for (mut stream, expected) in cases {
            stream.extend(b"early");
            for first in 0..=stream.len() {
                for second in first..=stream.len() {
                    let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                    let (target, left) = converse(&pieces).unwrap();
                    assert_eq!(
                        (target.unwrap().to_string().as_str(), left.as_slice()),
                        (expected, &b"early"[..])
                    );
                }
            }
            let single: Vec<&[u8]> = stream.chunks(1).collect();
            assert_eq!(converse(&single).unwrap().0.unwrap().to_string(), expected);
        }
    }

    #[test]
    fn a_message_that_is_not_whole_decides_nothing() {
        let stream = request(CONNECT, NAME, &name(b"example.com"));
        for end in 0..stream.len() {
            assert_eq!(converse(&[&stream[..end]]), Ok((None, Vec::new())), "{end}");
        }
    }

    #[test]
    fn a_name_of_255_bytes_and_255_methods_fit() {
        let long = [b'a'; 255];
        let mut stream = vec![VERSION, 255];
        stream.extend([2; 254]);
        stream.push(NO_AUTHENTICATION);
        stream.extend(&request(CONNECT, NAME, &name(&long))[3..]);
        for split in 0..=stream.len() {
            let target = converse(&[&stream[..split], &stream[split..]]).unwrap().0;
            assert_eq!(target, Target::named(std::str::from_utf8(&long).unwrap(), 8080));
        }
    }

    #[test]
    fn an_address_written_as_a_name_is_that_address() {
        let stream = request(CONNECT, NAME, &name(b"127.0.0.1"));
        assert_eq!(
            converse(&[&stream]).unwrap().0,
            Some(Target::Ip(([127, 0, 0, 1], 8080).into()))
        );
    }

    #[test]
    fn another_version_is_refused_at_its_first_byte() {
        assert_eq!(converse(&[b"GET / HTTP/1.1\r\n"]), Err(Refusal::Version));
        assert_eq!(converse(&[&[4]]), Err(Refusal::Version));
        assert_eq!(converse(&[&[5, 1, 0], &[4]]), Err(Refusal::Version));
    }

    #[test]
    fn without_a_common_method_nothing_further_is_read() {
        assert_eq!(converse(&[&[5, 1, 2]]), Err(Refusal::Method));
        assert_eq!(converse(&[&[5, 0]]), Err(Refusal::Method));
        assert_eq!(
            converse(&[&[5, 2, 1, 2], &request(CONNECT, IPV4, &[1; 4])]),
            Err(Refusal::Method)
        );
    }

    #[test]
    fn what_is_not_supported_is_refused_by_its_name() {
        assert_eq!(converse(&[&request(2, IPV4, &[1; 4])]), Err(Refusal::Command));
        assert_eq!(converse(&[&request(3, NAME, &name(b"a"))]), Err(Refusal::Command));
        assert_eq!(converse(&[&request(CONNECT, 2, &[1; 4])]), Err(Refusal::AddressType));
        for bad in [&b""[..], b"a\0b", b"a b", b"a\n", b"\xff\xfe", b"caf\xc3\xa9"] {
            assert_eq!(
                converse(&[&request(CONNECT, NAME, &name(bad))]),
                Err(Refusal::Name),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_refused_command_is_refused_only_when_its_request_is_whole() {
        let stream = request(2, IPV4, &[1; 4]);
        assert_eq!(converse(&[&stream[..stream.len() - 1]]), Ok((None, Vec::new())));
    }

    #[test]
    fn replies_carry_the_address_family_of_what_is_bound() {
        let v4 = Reply::Succeeded.encode(([127, 0, 0, 1], 258).into());
        assert_eq!(v4, [5, 0, 0, 1, 127, 0, 0, 1, 1, 2]);
        let v6 = Reply::TtlExpired.encode((Ipv6Addr::LOCALHOST, 258).into());
        assert_eq!((&v6[..4], &v6[19..], v6.len()), (&[5, 6, 0, 4][..], &[1, 1, 2][..], 22));
        assert_eq!(Refusal::Version.answer(), []);
        assert_eq!(Refusal::Method.answer(), [5, 0xFF]);
        assert_eq!(Refusal::Command.answer(), [5, 7, 0, 1, 0, 0, 0, 0, 0, 0]);
    }
}
