//! Addresses in SOCKS5 requests, replies and datagrams: type, address, and port.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::address::Target;

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
const PORT_BYTES: usize = 2;

/// The reason why an address is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The type is unknown, and therefore the length is unknown, too.
    Type,
    /// The name is empty, or contains bytes that host names do not contain.
    Name,
}

/// Returns the minimum length of an address that starts with `held`. The length is exact once
/// `held` is that long. It is at most 259 bytes.
pub(crate) fn length(held: &[u8]) -> Result<usize, Wrong> {
    match held {
        [] => Ok(1),
        [IPV4, ..] => Ok(1 + 4 + PORT_BYTES),
        [IPV6, ..] => Ok(1 + 16 + PORT_BYTES),
        [NAME] => Ok(2),
        [NAME, name_bytes, ..] => Ok(2 + usize::from(*name_bytes) + PORT_BYTES),
        [_, ..] => Err(Wrong::Type),
    }
}

/// Decodes a complete address, which has the length that [`length`] returns.
pub(crate) fn decode(address: &[u8]) -> Result<Target, Wrong> {
    let (host, port) = address.split_last_chunk().ok_or(Wrong::Type)?;
    let port = u16::from_be_bytes(*port);
    let ip: IpAddr = match host {
        [IPV4, ip @ ..] => <[u8; 4]>::try_from(ip).map_err(|_| Wrong::Type)?.into(),
        [IPV6, ip @ ..] => <[u8; 16]>::try_from(ip).map_err(|_| Wrong::Type)?.into(),
        [NAME, _, name @ ..] => {
            let name = std::str::from_utf8(name).map_err(|_| Wrong::Name)?;
            return of_name(name, port).ok_or(Wrong::Name);
        }
        _ => return Err(Wrong::Type),
    };
    Ok(Target::Ip(SocketAddr::new(ip, port)))
}

/// Returns the target that a client states as a name, or `None` if no host can have the name.
///
/// Clients that take the host from a URI may leave the brackets of an IPv6 address in place.
pub(crate) fn of_name(name: &str, port: u16) -> Option<Target> {
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let ip = inner.and_then(|inner| inner.parse::<Ipv6Addr>().ok());
    match ip {
        Some(ip) => Some(Target::Ip(SocketAddr::new(ip.into(), port))),
        None => Target::named(name, port),
    }
}

/// Appends an address to `bytes`.
pub(crate) fn encode(address: SocketAddr, bytes: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes.push(IPV4);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(IPV6);
            bytes.extend(ip.octets());
        }
    }
    bytes.extend(address.port().to_be_bytes());
}

/// Appends a target to `bytes`. Returns `None`, and appends nothing, if SOCKS5 cannot express the
/// target.
pub(crate) fn encode_target(target: &Target, bytes: &mut Vec<u8>) -> Option<()> {
    match target {
        Target::Ip(address) => encode(*address, bytes),
        Target::Name(name, port) => {
            let name_bytes = u8::try_from(name.len()).ok()?;
            bytes.extend([NAME, name_bytes]);
            bytes.extend(name.as_bytes());
            bytes.extend(port.to_be_bytes());
        }
        Target::Unix(_) => return None,
    }
    Some(())
}
