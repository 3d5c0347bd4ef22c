//! What counts as one client.

use std::net::{IpAddr, Ipv6Addr};

/// The unit that counts as one client: an IPv4 address or an IPv6 /64 network. An Internet provider
/// assigns at least a /64 network to each customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientKey(IpAddr);

impl ClientKey {
    /// Returns the address. That of an IPv6 network ends with 64 zero bits.
    pub(crate) fn ip(self) -> IpAddr {
        self.0
    }
}

impl From<IpAddr> for ClientKey {
    fn from(client: IpAddr) -> Self {
        const NETWORK: u128 = u128::MAX << 64;
        Self(match client.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
            ipv4 => ipv4,
        })
    }
}
