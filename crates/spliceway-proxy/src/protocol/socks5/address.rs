//! Addresses as SOCKS5 writes them in requests, replies and datagrams: type, address, port.

use std::net::{IpAddr, SocketAddr};

use crate::address::Target;

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
const PORT_BYTES: usize = 2;

/// What is wrong with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Its type is unknown, and so its length.
    Type,
    /// Its name is none: empty, or with bytes that no host name has.
    Name,
}

/// How long an address is at least, that starts with `held`. Once `held` is that long, it is exact. At most 259 bytes.
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

/// Reads an address that is whole: as long as [`length`] says.
pub(crate) fn decode(address: &[u8]) -> Result<Target, Wrong> {
    let (host, port) = address.split_last_chunk().ok_or(Wrong::Type)?;
    let port = u16::from_be_bytes(*port);
    let ip: IpAddr = match host {
        [IPV4, ip @ ..] => <[u8; 4]>::try_from(ip).map_err(|_| Wrong::Type)?.into(),
        [IPV6, ip @ ..] => <[u8; 16]>::try_from(ip).map_err(|_| Wrong::Type)?.into(),
        [NAME, _, name @ ..] => {
            let name = std::str::from_utf8(name).map_err(|_| Wrong::Name)?;
            return Target::named(name, port).ok_or(Wrong::Name);
        }
        _ => return Err(Wrong::Type),
    };
    Ok(Target::Ip(SocketAddr::new(ip, port)))
}

/// Writes an address behind what is in `bytes`.
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

/// Writes a target behind what is in `bytes`; `None`, and nothing written, if SOCKS5 has no word for it.
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
