//! Parses the addresses that users write: addresses to listen on, and targets to relay to.

#[cfg(test)]
mod tests;
mod unix_socket;

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::Path;
use std::str::FromStr;

use unix_socket::{ABSTRACT_MODES, EXPECTED_ABSTRACT_MODE, EXPECTED_SOCKET, socket_path};
pub use unix_socket::{is_abstract, system_path};

/// The longest DNS name in text form, in bytes. A SOCKS5 request has room for the same number.
const NAME_MAX_BYTES: usize = 255;

/// The prefix of a Unix socket path.
const UNIX: &str = "unix:";
/// The text between a path and the permissions of its socket.
const MODE: &str = ",mode=";
/// The prefix of the name of a socket that the service manager passed.
const INHERITED: &str = "fd:";

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// `:port`: every IPv4 and IPv6 address of this machine.
    Every(u16),
    /// One address. `[::]` means every IPv6 address and no IPv4 address, so `0.0.0.0` can use the
    /// same port.
    Ip(SocketAddr),
    /// Every address of this name, with this port.
    Name(Box<str>, u16),
    /// A Unix socket.
    Unix {
        /// The absolute path, or the name of an abstract socket.
        path: Box<Path>,
        /// The permissions, if the address states them.
        mode: Option<u32>,
    },
    /// `fd:NAME`: a socket that the service manager passed, identified by its name or number.
    Inherited(Box<str>),
}

/// An address to listen on, with one port or several consecutive ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenRange {
    /// The address with the first port.
    pub first: ListenAddress,
    /// The number of ports, at least 1. It is 1 for addresses without a port and for port 0.
    pub count: u16,
}

/// A target with one port or several consecutive ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRange {
    /// The target with the first port.
    pub first: Target,
    /// The number of ports, at least 1. It is 1 for targets without a port.
    pub count: u16,
}

/// A target to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// A name, which is looked up for every connection, and a port.
    Name(Box<str>, u16),
    /// The path of a Unix socket, or the name of an abstract one ([`is_abstract`]). Only the
    /// operator can name a Unix socket. A client cannot.
    Unix(Box<Path>),
}

impl Target {
    /// Returns the target for a name or for an address in text form, or `None` if `host` is
    /// neither.
    ///
    /// The function accepts only characters that host names contain. A client therefore cannot
    /// write control characters to a log.
    pub fn named(host: &str, port: u16) -> Option<Self> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(Self::Ip(SocketAddr::new(ip, port)));
        }
        let of_names = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_name = !host.is_empty() && host.len() <= NAME_MAX_BYTES && host.bytes().all(of_names);
        is_name.then(|| Self::Name(host.into(), port))
    }

    /// Returns the port, or `None` for a Unix socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Ip(address) => Some(address.port()),
            Self::Name(_, port) => Some(*port),
            Self::Unix(_) => None,
        }
    }
}

impl ListenAddress {
    /// Returns the address with this port. An address without a port stays unchanged.
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
    /// Returns the addresses in ascending order of their ports.
    pub fn iter(&self) -> impl Iterator<Item = ListenAddress> {
        // The sum is a valid port, because the parser checked the range.
        let port = |offset| self.first.port().map_or(0, |first| first.saturating_add(offset));
        (0..self.count).map(move |offset| self.first.on_port(port(offset)))
    }
}

impl ListenRange {
    /// Returns whether both contain the same address, as it is written. Port 0 is never the same as
    /// another port 0, because the kernel chooses each.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let same_host = match (&self.first, &other.first) {
            (ListenAddress::Unix { path, .. }, ListenAddress::Unix { path: other, .. }) => return path == other,
            (first, other) => first.on_port(0) == other.on_port(0),
        };
        match (self.first.port(), other.first.port()) {
            (Some(0), _) | (_, Some(0)) => false,
            (Some(first), Some(other_first)) => {
                let last = |first: u16, count: u16| u32::from(first) + u32::from(count);
                same_host
                    && u32::from(first) < last(other_first, other.count)
                    && u32::from(other_first) < last(first, self.count)
            }
            _ => same_host,
        }
    }
}

impl From<ListenAddress> for ListenRange {
    fn from(first: ListenAddress) -> Self {
        Self { first, count: 1 }
    }
}

impl TargetRange {
    /// Returns the target for clients of the listener at this offset in its range. A single target
    /// serves all listeners.
    #[must_use]
    pub fn nth(&self, offset: u16) -> Target {
        let offset = if self.count == 1 { 0 } else { offset };
        match &self.first {
            Target::Ip(address) => Target::Ip(with_port(*address, address.port().saturating_add(offset))),
            Target::Name(name, port) => Target::Name(name.clone(), port.saturating_add(offset)),
            Target::Unix(_) => self.first.clone(),
        }
    }

    /// Returns whether a listener of some offset has this target.
    #[must_use]
    pub fn contains(&self, target: &Target) -> bool {
        let offset = match (self.first.port(), target.port()) {
            (Some(first), Some(port)) => port.checked_sub(first),
            (first, port) => first.or(port).map_or(Some(0), |_| None),
        };
        offset.is_some_and(|offset| offset < self.count && self.nth(offset) == *target)
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
        let expected =
            "expected HOST:PORT, such as example.com:80, 192.0.2.1:80 or [2001:db8::1]:80, unix:/PATH or unix:@NAME";
        if let Some(path) = text.strip_prefix(UNIX) {
            return socket_path(path).map(Self::Unix);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        if let Some(address) = address_with_zone(text, expected) {
            return address.map(Self::Ip);
        }
        let (host, port) = text.rsplit_once(':').ok_or(expected)?;
        Self::named(host, port_number(port, expected)?)
            // An IPv6 address without brackets is ambiguous: `::1:80` may be port 80 of ::1, or an
            // address without a port.
            .filter(|target| matches!(target, Self::Name(..)))
            .ok_or(expected)
    }
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected :PORT, IP:PORT, [IPV6]:PORT or NAME:PORT, such as 127.0.0.1:1080, or unix:/PATH[,mode=0660], unix:@NAME or fd:NAME";
        if let Some(port) = text.strip_prefix(':') {
            return port_number(port, expected).map(Self::Every);
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
        match address.parse().map_err(|wrong| {
            if matches!(wrong, TOO_HIGH | NO_INTERFACE) || EXPECTED_SOCKET.contains(&wrong) {
                wrong
            } else {
                expected
            }
        })? {
            Target::Ip(address) => Ok(Self::Ip(address)),
            Target::Name(name, port) => Ok(Self::Name(name, port)),
            Target::Unix(path) if is_abstract(&path) && mode.is_some_and(|mode| !ABSTRACT_MODES.contains(&mode)) => {
                Err(EXPECTED_ABSTRACT_MODE)
            }
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

/// Parses an IP address, perhaps with a zone (RFC 4007): `fe80::1%eth0` or `fe80::1%2`. The result
/// has this port. A zone that is a name must be that of an interface of this machine.
///
/// # Errors
/// Returns an error if the text is not an address, or if there is no such interface.
pub fn ip_with_zone(text: &str, port: u16) -> Result<SocketAddr, &'static str> {
    let expected = "this is not an IP address";
    match text.split_once('%') {
        None => text.parse().map(|ip| SocketAddr::new(ip, port)).map_err(|_| expected),
        Some((ip, zone)) => {
            let ip = ip.parse().map_err(|_| expected)?;
            Ok(SocketAddrV6::new(ip, port, 0, zone_index(zone)?).into())
        }
    }
}

/// Returns the address if the text has the form `[IP%ZONE]:PORT`, with the name of an interface.
fn address_with_zone(text: &str, expected: &'static str) -> Option<Result<SocketAddr, &'static str>> {
    let (host, port) = text.strip_prefix('[')?.split_once("]:")?;
    host.contains('%').then(|| {
        let address = ip_with_zone(host, port_number(port, expected)?);
        address.map_err(|wrong| if wrong == NO_INTERFACE { wrong } else { expected })
    })
}

/// Returns the number of the interface. A number counts as it is, as in getaddrinfo(3).
fn zone_index(zone: &str) -> Result<u32, &'static str> {
    match zone.parse() {
        Ok(number) if zone.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
        _ => nix::net::if_::if_nametoindex(zone).map_err(|_| NO_INTERFACE),
    }
}

/// Converts an IPv4-mapped IPv6 address into the IPv4 address. Every other address stays unchanged,
/// including the scope of an IPv6 address.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Returns the address with this port. The scope of a link-local address stays unchanged.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Splits `a:1-3` into `a:1` and `3`. A hyphen in a name or a path does not start a range.
fn split_range(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once('-') {
        Some((first, last)) if !text.starts_with(UNIX) && !text.starts_with(INHERITED) && !last.contains(':') => {
            (first, Some(last))
        }
        _ => (text, None),
    }
}

/// Returns the number of ports from `first` to `last`.
fn ports(first: Option<u16>, last: Option<&str>) -> Result<u16, &'static str> {
    let Some(last) = last else { return Ok(1) };
    let expected = "expected a range of ports such as :8000-8009, the lower one first and not 0";
    let (first, last) = (first.ok_or(expected)?, port_number(last, expected)?);
    match first {
        0 => Err(expected),
        _ => last.checked_sub(first).map(|more| more + 1).ok_or(expected),
    }
}

/// Returns the name if it follows the rules of `FileDescriptorName=` (systemd.socket(5)): at most
/// 255 bytes of ASCII, without control characters and colons. The function does not accept spaces,
/// either.
fn inherited_name(text: &str) -> Option<Box<str>> {
    let of_names = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    (!text.is_empty() && text.len() <= 255 && text.bytes().all(of_names)).then(|| text.into())
}

const EXPECTED_MODE: &str =
    "expected ,mode= with octal digits up to 0777, as in unix:/run/a.sock,mode=0660, or no option after the path";

/// Returns whether the text looks like `PATH,OPTION=VALUE`. Such a path is a typing error.
fn ends_with_an_option(path: &str) -> bool {
    let name = path.rsplit_once(',').and_then(|(_, option)| option.split_once('='));
    name.is_some_and(|(name, _)| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// Parses octal permissions such as `0660`, without set-id and sticky bits.
fn permissions(text: &str) -> Option<u32> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok()?;
    (digits && mode <= 0o777).then_some(mode)
}

const NO_INTERFACE: &str = "the zone after the % is not the name or number of an interface of this machine";

const TOO_HIGH: &str = "the port is too high: ports end at 65535";

/// Accepts digits only, because `str::parse` also accepts a plus sign.
fn port_number(text: &str, expected: &'static str) -> Result<u16, &'static str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(expected);
    }
    text.parse().map_err(|_| TOO_HIGH)
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
