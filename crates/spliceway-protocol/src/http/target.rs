//! Parses the target in a request line: `host:port` for CONNECT, a URI for every other method.

use std::net::Ipv6Addr;

use httparse::Header;

use super::Refusal;
use crate::address::{Target, canonical};
use crate::rule::canonical_name;

const HTTP_PORT: u16 = 80;

/// The parts of an `http://` URI.
#[derive(Debug)]
pub(super) struct Absolute<'head> {
    /// Host and port as written. Every character is valid in a `Host` field.
    pub(super) authority: &'head str,
    pub(super) target: Target,
    /// The path with the query. It may be empty, or consist of a query alone.
    pub(super) path: &'head str,
}

impl<'head> Absolute<'head> {
    pub(super) fn parse(uri: &'head str) -> Result<Self, Refusal> {
        let is_scheme = |scheme: &str| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let (scheme, rest) = uri
            .split_once("://")
            .filter(|(scheme, _)| is_scheme(scheme))
            .ok_or(Refusal::NoHost)?;
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(Refusal::Scheme);
        }
        // A fragment is for the client alone and does not belong in a request.
        if rest.contains('#') {
            return Err(Refusal::Target);
        }
        let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        Ok(Self {
            authority: host,
            target: authority(host, Some(HTTP_PORT)).ok_or(Refusal::Target)?,
            path,
        })
    }

    /// Parses the URI of a request to a server: a path, `*`, or a URI with the host in `Host`.
    pub(super) fn of_server(uri: &'head str, fields: &[Header<'head>]) -> Result<Self, Refusal> {
        // There is at most one such field.
        let host = fields.iter().find(|field| field.name.eq_ignore_ascii_case("host"));
        let host = host.filter(|host| !host.value.is_empty()).ok_or(Refusal::NoHost)?;
        let host = std::str::from_utf8(host.value).map_err(|_| Refusal::Target)?;
        let target = authority(host, Some(HTTP_PORT))
            .filter(has_one_meaning)
            .ok_or(Refusal::Target)?;
        if uri.starts_with('/') || uri == "*" {
            return Ok(Self {
                authority: host,
                target,
                path: uri,
            });
        }
        if !uri.contains("://") {
            return Err(Refusal::Malformed);
        }
        let absolute = Self::parse(uri)?;
        let is_same = is_same(&absolute.target, &target);
        is_same.then_some(absolute).ok_or(Refusal::Target)
    }
}

/// Returns whether a target is an address, or a name without empty labels.
fn has_one_meaning(target: &Target) -> bool {
    match target {
        Target::Name(name, _) => canonical_name(name).is_some(),
        Target::Ip(_) | Target::Unix(_) => true,
    }
}

fn is_same(one: &Target, other: &Target) -> bool {
    match (one, other) {
        (Target::Name(one, port), Target::Name(other, other_port)) => {
            port == other_port && canonical_name(one) == canonical_name(other)
        }
        (Target::Ip(one), Target::Ip(other)) => canonical(*one) == canonical(*other),
        _ => false,
    }
}

/// Parses the target of CONNECT, which always has a port.
///
/// Therefore, an IPv6 address without brackets ends at the last colon. PySocks and proxychains4
/// write addresses in this form.
pub(super) fn of_connect(text: &str) -> Option<Target> {
    authority(text, None).or_else(|| {
        let (ip, port) = text.rsplit_once(':')?;
        Some(Target::Ip((ip.parse::<Ipv6Addr>().ok()?, number(port, None)?).into()))
    })
}

/// Parses `host`, `host:port` or `[v6]:port`. The function does not use the `FromStr`
/// implementation of [`Target`], because that accepts targets that a client may not name.
///
/// User information is not valid here. A browser never sends it, and a URI such as
/// `http://good@evil/` misleads its reader.
fn authority(text: &str, default_port: Option<u16>) -> Option<Target> {
    if let Some(text) = text.strip_prefix('[') {
        let (ip, port) = text.split_once(']')?;
        let port = match port {
            "" => default_port?,
            port => number(port.strip_prefix(':')?, default_port)?,
        };
        return Some(Target::Ip((ip.parse::<Ipv6Addr>().ok()?, port).into()));
    }
    let (host, port) = text.split_once(':').unwrap_or((text, ""));
    Target::named(host, number(port, default_port)?)
}

/// Accepts digits only, because `str::parse` also accepts a plus sign.
fn number(text: &str, default: Option<u16>) -> Option<u16> {
    match text {
        "" => default,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    }
}
