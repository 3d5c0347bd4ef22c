//! The addresses at which nothing received a moment ago, so that the next session of a name takes
//! another address.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// The time for which other addresses come first.
const REMEMBERED: Duration = Duration::from_secs(30);
/// The most addresses. A name has at most 16.
const ADDRESSES_MAX: usize = 64;

/// The latest addresses, and when the network has reported them.
#[derive(Debug, Default)]
pub(super) struct Refused(Mutex<VecDeque<(SocketAddr, Instant)>>);

impl Refused {
    pub(super) fn add(&self, address: SocketAddr, now: Instant) {
        let mut refused = self.0.lock();
        refused.retain(|(one, _)| *one != address);
        if refused.len() >= ADDRESSES_MAX {
            refused.pop_front();
        }
        refused.push_back((address, now));
    }

    pub(super) fn has(&self, address: SocketAddr, now: Instant) -> bool {
        let refused = self.0.lock();
        let mut known = refused.iter();
        known.any(|(one, when)| *one == address && now < *when + REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: usize) -> SocketAddr {
        ([192, 0, 2, 1], u16::try_from(port).unwrap()).into()
    }

    #[test]
    fn the_latest_addresses_are_known_for_a_while() {
        let (refused, now) = (Refused::default(), Instant::now());
        refused.add(address(1), now);
        assert!(refused.has(address(1), now) && !refused.has(address(2), now));
        assert!(!refused.has(address(1), now + REMEMBERED));
        for port in 1..=10 * ADDRESSES_MAX {
            refused.add(address(port), now);
            refused.add(address(port), now);
        }
        assert_eq!(refused.0.lock().len(), ADDRESSES_MAX);
        assert!(refused.has(address(9 * ADDRESSES_MAX + 1), now) && !refused.has(address(9 * ADDRESSES_MAX), now));
    }
}
