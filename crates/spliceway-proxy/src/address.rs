//! Addresses as people write them: where to listen, where to relay to.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The longest name DNS can carry, in its text form; also the most a SOCKS5 request has room for is 255.
const NAME_MAX_BYTES: usize = 255;

/// Where to accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// `:port`: every address of this machine, IPv4 and IPv6.
    Every(u16),
    /// One address; `[::]` is every IPv6 address and no IPv4 one, so that `0.0.0.0` can stand beside it.
    Ip(SocketAddr),
    /// Every address that this name has.
    Name(Box<str>, u16),
}

/// Where to relay to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Ip(SocketAddr),
    /// Looked up for every connection.
    Name(Box<str>, u16),
}

impl Target {
    /// A target by name or by an address written as text; `None` where `host` can be neither.
    ///
    /// Only what host names are made of gets through, so that nobody writes control characters into a log.
    pub fn named(host: &str, port: u16) -> Option<Self> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(Self::Ip(SocketAddr::new(ip, port)));
        }
        let of_names = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_name = !host.is_empty() && host.len() <= NAME_MAX_BYTES && host.bytes().all(of_names);
        is_name.then(|| Self::Name(host.into(), port))
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Ip(address) => address.port(),
            Self::Name(_, port) => *port,
        }
    }
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected HOST:PORT, such as example.com:80, 192.0.2.1:80 or [2001:db8::1]:80";
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(expected)?;
        Self::named(host, port_number(port).ok_or(expected)?)
            // An IPv6 address without brackets: is `::1:80` port 80 of ::1, or an address?
            .filter(|target| matches!(target, Self::Name(..)))
            .ok_or(expected)
    }
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected :PORT, IP:PORT, [IPV6]:PORT or NAME:PORT, such as 127.0.0.1:1080";
        if let Some(port) = text.strip_prefix(':') {
            return port_number(port).map(Self::Every).ok_or(expected);
        }
        match text.parse().map_err(|_| expected)? {
            Target::Ip(address) => Ok(Self::Ip(address)),
            Target::Name(name, port) => Ok(Self::Name(name, port)),
        }
    }
}

/// Digits only: `str::parse` would take a plus sign.
fn port_number(text: &str) -> Option<u16> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(port) => write!(f, ":{port}"),
            Self::Ip(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_as_it_was_written() {
        for text in [":80", "127.0.0.1:0", "[::1]:1080", "localhost:1080"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["192.0.2.1:1", "[2001:db8::1]:65535", "a_b.example.com.:80"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_was_expected() {
        for text in [
            "",
            "80",
            "localhost",
            ":",
            ":65536",
            ":+1",
            "::1:80",
            "a b:80",
            "http://a:80",
            "a\n:80",
            "[::1]",
            "[::1:80",
        ] {
            assert!(
                text.parse::<ListenAddress>().unwrap_err().starts_with("expected :PORT"),
                "{text}"
            );
            assert!(
                text.parse::<Target>().unwrap_err().starts_with("expected HOST:PORT"),
                "{text}"
            );
        }
        assert!(":80".parse::<Target>().is_err());
    }

    #[test]
    fn an_address_in_place_of_a_name_is_an_address() {
        assert_eq!(
            Target::named("127.0.0.1", 1),
            Some(Target::Ip(([127, 0, 0, 1], 1).into()))
        );
        assert_eq!(
            Target::named("::1", 1),
            Some(Target::Ip((std::net::Ipv6Addr::LOCALHOST, 1).into()))
        );
        assert_eq!(Target::named(&"a".repeat(256), 1), None);
        assert!(Target::named(&"a".repeat(255), 1).is_some());
    }
}
