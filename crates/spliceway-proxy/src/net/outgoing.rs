//! The settings of sockets to targets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The settings that all sockets to targets share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SocketSettings {
    /// The source address of IPv4 connections. If only one family has a source address, targets of
    /// the other family cannot be reached.
    pub(crate) source_v4: Option<Ipv4Addr>,
    pub(crate) source_v6: Option<Ipv6Addr>,
    /// The network interface for outgoing packets (`SO_BINDTODEVICE`).
    pub(crate) interface: Option<Box<str>>,
    /// The mark of outgoing packets (`SO_MARK`), for routing and firewalls.
    pub(crate) mark: Option<u32>,
    /// Whether connections have the address of the client as their source.
    pub(crate) keeps_client: bool,
    /// Whether a firewall rule might send the connections back to this process, so that it must
    /// recognize them.
    pub(crate) is_transparent: bool,
    /// The silence before the kernel sends a keepalive probe, and the time between probes. `None`
    /// means no probes.
    pub(crate) keepalive: Option<Duration>,
}

impl SocketSettings {
    /// Returns the source address for targets of the family of `to`, if there is one.
    pub(crate) fn source(&self, to: IpAddr) -> Option<IpAddr> {
        match to {
            IpAddr::V4(_) => self.source_v4.map(IpAddr::from),
            IpAddr::V6(_) => self.source_v6.map(IpAddr::from),
        }
    }

    /// Returns whether there is a source address for any family.
    pub(crate) fn has_source(&self) -> bool {
        self.source_v4.is_some() || self.source_v6.is_some()
    }
}

/// Returns the address that means any address of the family of `to`.
pub(crate) fn unspecified(to: IpAddr) -> IpAddr {
    match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
