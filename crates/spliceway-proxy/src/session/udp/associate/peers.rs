//! The addresses that the client has sent to, and that may therefore answer.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// The table remembers at least this many recent peers, and at most twice as many. This is enough
/// for a client of a peer-to-peer network. The table needs less than 64 KiB.
pub(super) const REMEMBERED: usize = 512;

/// The peers of the most recent datagrams in either direction.
///
/// Each datagram puts its peer into the younger of two generations. When the younger generation is
/// full, it replaces the older one.
#[derive(Debug, Default)]
pub(super) struct Peers {
    younger: HashSet<Peer>,
    older: HashSet<Peer>,
}

/// The IP address and the port of a peer. The scope of an IPv6 address is omitted, because the
/// kernel adds it and the client cannot specify it.
type Peer = (IpAddr, u16);

impl Peers {
    /// Records that a datagram goes to this address.
    pub(super) fn sent_to(&mut self, address: SocketAddr) {
        self.remember((address.ip(), address.port()));
    }

    /// Returns whether a datagram from this address is an answer.
    pub(super) fn may_answer(&mut self, address: SocketAddr) -> bool {
        let peer = (address.ip(), address.port());
        if self.younger.contains(&peer) {
            return true;
        }
        let known = self.older.contains(&peer);
        if known {
            self.remember(peer);
        }
        known
    }

    fn remember(&mut self, peer: Peer) {
        if self.younger.contains(&peer) {
            return;
        }
        if self.younger.len() == REMEMBERED {
            self.older = std::mem::take(&mut self.younger);
        }
        self.younger.insert(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: usize) -> SocketAddr {
        ([192, 0, 2, 1], u16::try_from(port).unwrap()).into()
    }

    #[test]
    fn only_a_peer_that_the_client_has_sent_to_may_answer() {
        let mut peers = Peers::default();
        peers.sent_to(peer(1));
        assert!(peers.may_answer(peer(1)) && !peers.may_answer(peer(2)));
        assert!(!peers.may_answer(([192, 0, 2, 2], 1).into()));
    }

    #[test]
    fn recent_peers_are_known_and_the_table_is_bounded() {
        let mut peers = Peers::default();
        for port in 1..=10 * REMEMBERED {
            peers.sent_to(peer(port));
            assert!(peers.younger.len() <= REMEMBERED && peers.older.len() <= REMEMBERED);
        }
        assert!((9 * REMEMBERED + 1..=10 * REMEMBERED).all(|port| peers.may_answer(peer(port))));
        assert!((1..=8 * REMEMBERED).all(|port| !peers.may_answer(peer(port))));
    }

    #[test]
    fn an_active_peer_is_never_forgotten() {
        let mut peers = Peers::default();
        peers.sent_to(peer(1));
        for port in 2..=10 * REMEMBERED {
            peers.sent_to(peer(port));
            // One datagram from the peer per generation is enough.
            assert!(port % (REMEMBERED - 1) != 0 || peers.may_answer(peer(1)), "{port}");
        }
    }

    #[test]
    fn the_ipv6_scope_does_not_distinguish_peers() {
        let address = |scope| std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 1, 0, scope).into();
        let mut peers = Peers::default();
        peers.sent_to(address(0));
        assert!(peers.may_answer(address(2)));
    }
}
