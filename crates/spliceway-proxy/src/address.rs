//! Addresses as people write them: where to listen, where to relay to.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

/// The longest name DNS can carry, in its text form; also the most a SOCKS5 request has room for is 255.
const NAME_MAX_BYTES: usize = 255;

/// What an address on the file system starts with.
const UNIX: &str = "unix:";
/// `sun_path` has 108 bytes, and the last is 0.
const PATH_MAX_BYTES: usize = 107;
/// What comes between a path and the permissions of its socket.
const MODE: &str = ",mode=";
/// What the name of a socket of the service manager's starts with.
const INHERITED: &str = "fd:";

/// Where to accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// `:port`: every address of this machine, IPv4 and IPv6.
    Every(u16),
    /// One address; `[::]` is every IPv6 address and no IPv4 one, so that `0.0.0.0` can stand beside it.
    Ip(SocketAddr),
    /// Every address that this name has.
    Name(Box<str>, u16),
    /// A socket on the file system, and who may connect to it.
    Unix { path: Box<Path>, mode: Option<u32> },
    /// `fd:NAME`: what the service manager listens on for us, by the name it has there, or by its number.
    Inherited(Box<str>),
}

/// Where to accept, on one port or on several in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenRange {
    pub first: ListenAddress,
    /// At least 1, and 1 for what has no ports and for port 0, which is any.
    pub count: u16,
}

/// Where to relay to, from one port or from several in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRange {
    pub first: Target,
    /// At least 1, and 1 for what has no ports.
    pub count: u16,
}

/// Where to relay to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Ip(SocketAddr),
    /// Looked up for every connection.
    Name(Box<str>, u16),
    /// A socket on the file system. Only who starts the program can name one, no client.
    Unix(Box<Path>),
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

    /// `None` of what has no ports.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Ip(address) => Some(address.port()),
            Self::Name(_, port) => Some(*port),
            Self::Unix(_) => None,
        }
    }
}

impl ListenAddress {
    /// The same on another port, where it has ports.
    fn on_port(&self, port: u16) -> Self {
        match self {
            Self::Every(_) => Self::Every(port),
            Self::Ip(address) => Self::Ip(with_port(*address, port)),
            Self::Name(name, _) => Self::Name(name.clone(), port),
            Self::Unix { .. } | Self::Inherited(_) => self.clone(),
        }
    }

    fn port(&self) -> Option<u16> {
        match self {
            Self::Every(port) | Self::Name(_, port) => Some(*port),
            Self::Ip(address) => Some(address.port()),
            Self::Unix { .. } | Self::Inherited(_) => None,
        }
    }
}

impl ListenRange {
    /// Each address, by ascending ports.
    pub fn iter(&self) -> impl Iterator<Item = ListenAddress> {
        // The sum is a port: the range was checked when it was read.
        let port = |offset| self.first.port().map_or(0, |first| first.saturating_add(offset));
        (0..self.count).map(move |offset| self.first.on_port(port(offset)))
    }
}

impl From<ListenAddress> for ListenRange {
    fn from(first: ListenAddress) -> Self {
        Self { first, count: 1 }
    }
}

impl TargetRange {
    /// The target for the client of the listener that many ports after the first. One target is everybody's.
    pub fn nth(&self, offset: u16) -> Target {
        let offset = if self.count == 1 { 0 } else { offset };
        match &self.first {
            Target::Ip(address) => Target::Ip(with_port(*address, address.port().saturating_add(offset))),
            Target::Name(name, port) => Target::Name(name.clone(), port.saturating_add(offset)),
            Target::Unix(_) => self.first.clone(),
        }
    }
}

impl From<Target> for TargetRange {
    fn from(first: Target) -> Self {
        Self { first, count: 1 }
    }
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected HOST:PORT, such as example.com:80, 192.0.2.1:80 or [2001:db8::1]:80, or unix:/PATH";
        if let Some(path) = text.strip_prefix(UNIX) {
            return socket_path(path).map(Self::Unix).ok_or(expected);
        }
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
        let expected = "expected :PORT, IP:PORT, [IPV6]:PORT or NAME:PORT, such as 127.0.0.1:1080, or unix:/PATH[,mode=0660] or fd:NAME";
        if let Some(port) = text.strip_prefix(':') {
            return port_number(port).map(Self::Every).ok_or(expected);
        }
        if let Some(name) = text.strip_prefix(INHERITED) {
            return inherited_name(name).map(Self::Inherited).ok_or(expected);
        }
        let (address, mode) = match text.strip_prefix(UNIX).and_then(|_| text.rsplit_once(MODE)) {
            Some((address, mode)) => (address, Some(permissions(mode).ok_or(EXPECTED_MODE)?)),
            None => (text, None),
        };
        if address.strip_prefix(UNIX).is_some_and(ends_with_an_option) {
            return Err(EXPECTED_MODE);
        }
        match address.parse().map_err(|_| expected)? {
            Target::Ip(address) => Ok(Self::Ip(address)),
            Target::Name(name, port) => Ok(Self::Name(name, port)),
            Target::Unix(path) => Ok(Self::Unix { path, mode }),
        }
    }
}

impl FromStr for ListenRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = split_range(text);
        let first: ListenAddress = first.parse()?;
        let count = ports(first.port(), last)?;
        Ok(Self { first, count })
    }
}

impl FromStr for TargetRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = split_range(text);
        let first: Target = first.parse()?;
        let count = ports(first.port(), last)?;
        Ok(Self { first, count })
    }
}

/// An IPv4 address mapped into IPv6 as the IPv4 address that it is. The scope of an IPv6 address stays.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The same address with all that belongs to it, such as the interface of a link-local one.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// `a:1-3` is `a:1` and `3`. A hyphen that stands elsewhere, as in a name or a path, is no range.
fn split_range(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once('-') {
        Some((first, last)) if !text.starts_with(UNIX) && !text.starts_with(INHERITED) && !last.contains(':') => {
            (first, Some(last))
        }
        _ => (text, None),
    }
}

/// How many ports there are from `first` to the one that is written as `last`.
fn ports(first: Option<u16>, last: Option<&str>) -> Result<u16, &'static str> {
    let Some(last) = last else { return Ok(1) };
    let expected = "expected a range of ports such as :8000-8009, the lower one first and not 0";
    let (first, last) = first.zip(port_number(last)).ok_or(expected)?;
    match first {
        0 => Err(expected),
        _ => last.checked_sub(first).map(|more| more + 1).ok_or(expected),
    }
}

/// From the root, as nobody sees from where the program was started; and `unix:80` is a host of that name, or nothing.
fn socket_path(text: &str) -> Option<Box<Path>> {
    (text.starts_with('/') && text.len() <= PATH_MAX_BYTES && !text.contains('\0')).then(|| Path::new(text).into())
}

/// systemd.socket(5), `FileDescriptorName=`: ASCII, no control characters, no colon, 255 at most.
fn inherited_name(text: &str) -> Option<Box<str>> {
    let of_names = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    (!text.is_empty() && text.len() <= 255 && text.bytes().all(of_names)).then(|| text.into())
}

const EXPECTED_MODE: &str =
    "expected ,mode= with octal digits up to 0777, as in unix:/run/a.sock,mode=0660, or no option after the path";

/// Whether it looks like `PATH,OPTION=VALUE`, which would make a socket of a name that nobody meant.
fn ends_with_an_option(path: &str) -> bool {
    let name = path.rsplit_once(',').and_then(|(_, option)| option.split_once('='));
    name.is_some_and(|(name, _)| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// `0660`, in octal: what chmod(1) takes, and no set-id or sticky bits.
fn permissions(text: &str) -> Option<u32> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok()?;
    (digits && mode <= 0o777).then_some(mode)
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
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(port) => write!(f, ":{port}"),
            Self::Ip(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Unix { path, mode: None } => write!(f, "{UNIX}{}", path.display()),
            Self::Unix { path, mode: Some(mode) } => write!(f, "{UNIX}{}{MODE}{mode:04o}", path.display()),
            Self::Inherited(name) => write!(f, "{INHERITED}{name}"),
        }
    }
}

impl fmt::Display for ListenRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        last_port(f, self.first.port(), self.count)
    }
}

impl fmt::Display for TargetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        last_port(f, self.first.port(), self.count)
    }
}

fn last_port(f: &mut fmt::Formatter<'_>, first: Option<u16>, count: u16) -> fmt::Result {
    match first {
        Some(first) if count > 1 => write!(f, "-{}", u32::from(first) + u32::from(count) - 1),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_as_it_was_written() {
        for text in [
            ":80",
            "127.0.0.1:0",
            "[::1]:1080",
            "localhost:1080",
            "unix:/run/a,b-1.sock",
            "unix:/run/a.sock,mode=0660",
            "fd:web.socket",
            "fd:3",
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
            let range: ListenRange = text.parse().unwrap();
            assert_eq!((range.count, range.to_string()), (1, text.to_owned()));
        }
        for text in [
            "192.0.2.1:1",
            "[2001:db8::1]:65535",
            "a_b.example.com.:80",
            "a-b:80",
            "unix:/run/a-b:1-2.sock",
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
            let range: TargetRange = text.parse().unwrap();
            assert_eq!((range.count, range.to_string()), (1, text.to_owned()));
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
            "unix:",
            "unix:80",
            "unix:run/a.sock",
            "unix:/run/a\0.sock",
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
        assert!("fd:web".parse::<Target>().is_err());
        for text in [
            "fd:",
            "fd:a b",
            "fd:a:b",
            "unix:/run/a.sock,mode=",
            "unix:/run/a.sock,mode=66",
            "unix:/run/a.sock,mode=0868",
            "unix:/run/a.sock,mode=+660",
            "unix:/run/a.sock,mode=4755",
            "unix:/run/a.sock,mod=0660",
            "unix:/run/a.sock,user=www,mode=0660",
            "127.0.0.1:80,mode=0660",
        ] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
        let long = format!("unix:/{}", "a".repeat(PATH_MAX_BYTES));
        assert!(long.parse::<Target>().is_err());
        assert!(long[..long.len() - 1].parse::<Target>().is_ok());
    }

    #[test]
    fn a_mapped_address_becomes_ipv4_and_a_scope_stays() {
        for (text, expected) in [
            ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
            ("[::192.0.2.1]:80", "[::192.0.2.1]:80"),
            ("[fe80::1%3]:80", "[fe80::1%3]:80"),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(canonical(address), expected.parse().unwrap(), "{text}");
        }
    }

    #[test]
    fn a_range_of_ports_is_each_of_them_and_maps_onto_another() {
        let range: ListenRange = "[::1]:8000-8002".parse().unwrap();
        let each: Vec<_> = range.iter().map(|address| address.to_string()).collect();
        assert_eq!(each, ["[::1]:8000", "[::1]:8001", "[::1]:8002"]);
        for text in [":1-65535", "127.0.0.1:8000-8000", "web-1:65534-65535"] {
            let range: ListenRange = text.parse().unwrap();
            let last = range.iter().last().unwrap();
            assert!(last.to_string().ends_with(text.rsplit('-').next().unwrap()), "{last}");
        }
        let scoped: ListenRange = "[fe80::1%3]:8000-8001".parse().unwrap();
        assert_eq!(scoped.iter().last().unwrap().to_string(), "[fe80::1%3]:8001");
        let targets: TargetRange = "a-b.example.com:90-92".parse().unwrap();
        assert_eq!(
            (targets.count, targets.to_string()),
            (3, "a-b.example.com:90-92".to_owned())
        );
        assert_eq!(targets.nth(2).to_string(), "a-b.example.com:92");
        let one: TargetRange = "192.0.2.1:90".parse().unwrap();
        assert_eq!(one.nth(2).to_string(), "192.0.2.1:90", "one target is everybody's");
    }

    #[test]
    fn a_range_that_is_none_is_refused() {
        for text in [
            ":2-1",
            ":0-1",
            ":1-",
            ":-1",
            ":1-65536",
            ":1-2-3",
            "fd:web:1-2",
            ":1-+2",
            "a:1-:2",
        ] {
            assert!(text.parse::<ListenRange>().is_err(), "{text}");
        }
        assert!("a:0-1".parse::<TargetRange>().is_err());
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
