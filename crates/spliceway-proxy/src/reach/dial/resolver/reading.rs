//! The whole names that a host may stand for, and who knows their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::answer::LookupError;

/// A name that a host may stand for, and who knows its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::reach::dial) struct Reading {
    pub(in crate::reach::dial) name: String,
    pub(super) origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The addresses are known, from `/etc/hosts`.
    Known(Vec<IpAddr>),
    /// The name servers. The name may have a search domain.
    Dns { is_searched: bool },
    /// The C library.
    System,
}

/// What a failed reading means for the later ones.
#[derive(Debug, Default)]
pub(in crate::reach::dial) struct SearchEnd(bool);

impl SearchEnd {
    /// Returns whether this reading must not be tried any more.
    pub(in crate::reach::dial) fn skips(&self, reading: &Reading) -> bool {
        self.0 && reading.origin == Origin::Dns { is_searched: true }
    }

    /// Records the failure of a reading. If no server has answered about a name with a search
    /// domain, that name may exist, and the next domain may have another host of this name. glibc
    /// then tries only the name without a domain.
    pub(in crate::reach::dial) fn failed(&mut self, reading: &Reading, error: &LookupError) {
        let is_silence = !matches!(error, LookupError::NoAddress | LookupError::Failed(_));
        self.0 |= is_silence && reading.origin == Origin::Dns { is_searched: true };
    }
}

pub(super) fn by_dns(host: &str, names: Vec<String>) -> impl Iterator<Item = Reading> {
    let shortest = host.len() + 1;
    names.into_iter().map(move |name| Reading {
        origin: Origin::Dns {
            is_searched: name.len() > shortest,
        },
        name,
    })
}

pub(super) fn by_system(mut host: String, only_whole: bool) -> Reading {
    if only_whole && !host.ends_with('.') {
        host.push('.');
    }
    Reading {
        name: host,
        origin: Origin::System,
    }
}

pub(super) fn known(name: String, addresses: Vec<IpAddr>) -> Reading {
    Reading {
        name,
        origin: Origin::Known(addresses),
    }
}

/// Returns the addresses of `localhost` and of all names below it (RFC 6761).
pub(super) fn loopback_of(host: &str) -> Option<Vec<IpAddr>> {
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_localhost = name == "localhost" || name.ends_with(".localhost");
    is_localhost.then(|| vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()])
}
