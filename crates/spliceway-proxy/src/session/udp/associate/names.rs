//! The names that the client sends to, and the datagrams that wait for their addresses.
//!
//! ```text
//!        look_up           found       look_up, 5 s later
//!   (none) ────▶ Looking up ───▶ Known ───────────────────▶ Known, refreshing
//!      ▲              │            ▲                             │
//!      └──────────────┘            └─────────────────────────────┘
//!          not found                    found, or not found
//! ```
//!
//! Datagrams to one name and port keep their order. Datagrams that arrive during the first lookup
//! wait and are sent before all later ones. Datagrams to different names have no order. This module
//! does no I/O and gets the time as an argument.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// A name and its port. The policy may depend on both.
pub(super) type Name = (Box<str>, u16);

/// The time for which an address is used before the resolver is asked again. The resolver itself
/// caches an address for its TTL. The association notices a change up to this much later than with
/// a lookup for every datagram.
const FRESH: Duration = Duration::from_secs(5);
/// The maximum number of concurrent lookups: enough for the names on a web page, but too few to
/// flood a resolver.
pub(super) const LOOKUPS_MAX: usize = 4;
/// The maximum number of names: 16 for each concurrent lookup. So there is always a name without a
/// running lookup that can be dropped.
pub(super) const NAMES_MAX: usize = 16 * LOOKUPS_MAX;
/// The maximum number of addresses that are kept for a name. The first ones are kept.
const ADDRESSES_MAX: usize = 8;
/// The maximum total size of the waiting datagrams: enough for the first flights of a few flows,
/// and for one datagram of any size.
pub(super) const WAITING_MAX_BYTES: usize = 128 << 10;
/// The memory that a waiting datagram needs besides its data: its slot in the queue, and the
/// allocator's overhead.
const WAITING_BYTES_EACH: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Names {
    names: HashMap<Name, State>,
    lookups: usize,
    waiting_bytes: usize,
}

#[derive(Debug)]
enum State {
    /// The first lookup is running, and these datagrams wait for it.
    LookingUp(Vec<Box<[u8]>>),
    Known {
        /// Never empty. The first address is in use.
        addresses: Vec<SocketAddr>,
        since: Instant,
        refreshing: bool,
        proven: bool,
    },
}

/// Whether a datagram to a name needs a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The name is known, or its lookup is running.
    NotNeeded,
    /// The caller must look up the name and report the result to [`Names::finish_lookup`].
    Start,
    /// No further lookup may start.
    TooMany,
}

impl Names {
    /// Returns whether to look up `name`. Call this method before each datagram to the name.
    pub(super) fn look_up(&mut self, name: &Name, now: Instant) -> Lookup {
        let may_ask = self.lookups < LOOKUPS_MAX;
        match self.names.get_mut(name) {
            Some(State::Known { since, refreshing, .. })
                if !*refreshing && now.duration_since(*since) >= FRESH && may_ask =>
            {
                *refreshing = true;
            }
            Some(_) => return Lookup::NotNeeded,
            None if !may_ask => return Lookup::TooMany,
            None => {
                self.make_room();
                self.names.insert(name.clone(), State::LookingUp(Vec::new()));
            }
        }
        self.lookups += 1;
        Lookup::Start
    }

    /// Returns the addresses of `name`, best first, or `None` while they are not known.
    pub(super) fn addresses(&self, name: &Name) -> Option<&[SocketAddr]> {
        match self.names.get(name) {
            Some(State::Known { addresses, .. }) => Some(addresses),
            _ => None,
        }
    }

    /// Returns the first address, if a datagram has been sent to it since the last lookup.
    pub(super) fn proven(&self, name: &Name) -> Option<SocketAddr> {
        match self.names.get(name) {
            Some(State::Known {
                addresses,
                proven: true,
                ..
            }) => addresses.first().copied(),
            _ => None,
        }
    }

    /// Records that a datagram was sent to the address at this index. This address is used from
    /// now on.
    pub(super) fn prove(&mut self, name: &Name, index: usize) {
        if let Some(State::Known { addresses, proven, .. }) = self.names.get_mut(name) {
            addresses[..=index].rotate_right(1);
            *proven = true;
        }
    }

    /// Keeps a datagram until the lookup of its name ends. Returns `false` if there is no room, or
    /// if the first lookup of the name is not running.
    pub(super) fn wait(&mut self, name: &Name, data: &[u8]) -> bool {
        let bytes = data.len() + WAITING_BYTES_EACH;
        match self.names.get_mut(name) {
            Some(State::LookingUp(waiting)) if self.waiting_bytes + bytes <= WAITING_MAX_BYTES => {
                self.waiting_bytes += bytes;
                waiting.push(data.into());
                true
            }
            _ => false,
        }
    }

    /// Adds the result of a lookup, which is empty if the lookup failed. Returns the datagrams that
    /// waited for the lookup, in order.
    ///
    /// A flow keeps its address as long as the result contains it, because resolvers rotate
    /// addresses. A flow also keeps its address if the result is empty, as a connection would.
    pub(super) fn finish_lookup(
        &mut self,
        name: &Name,
        mut addresses: Vec<SocketAddr>,
        now: Instant,
    ) -> Vec<Box<[u8]>> {
        self.lookups -= 1;
        let (waiting, known) = match self.names.remove(name) {
            Some(State::LookingUp(waiting)) => (waiting, Vec::new()),
            Some(State::Known { addresses, .. }) => (Vec::new(), addresses),
            None => (Vec::new(), Vec::new()),
        };
        let bytes: usize = waiting.iter().map(|data| data.len() + WAITING_BYTES_EACH).sum();
        self.waiting_bytes -= bytes;
        let in_use = |address: &SocketAddr| known.first() == Some(address);
        if let Some(index) = addresses.iter().position(in_use) {
            addresses[..=index].rotate_right(1);
        }
        addresses.truncate(ADDRESSES_MAX);
        let addresses = if addresses.is_empty() { known } else { addresses };
        if !addresses.is_empty() {
            let known = State::Known {
                addresses,
                since: now,
                refreshing: false,
                proven: false,
            };
            self.names.insert(name.clone(), known);
        }
        waiting
    }

    /// Drops the name with the oldest lookup if there is no room for another name. A name with a
    /// running lookup stays.
    fn make_room(&mut self) {
        if self.names.len() < NAMES_MAX {
            return;
        }
        let oldest = self
            .names
            .iter()
            .filter_map(|(name, state)| match state {
                State::Known {
                    since,
                    refreshing: false,
                    ..
                } => Some((since, name)),
                _ => None,
            })
            .min_by_key(|(since, _)| **since)
            .map(|(_, name)| name.clone());
        if let Some(oldest) = oldest {
            self.names.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        (text.into(), 53)
    }

    fn address(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 53).into()
    }

    /// Adds a name whose lookup ends at `now`.
    fn known(names: &mut Names, text: &str, now: Instant) {
        assert_eq!(names.look_up(&name(text), now), Lookup::Start, "{text}");
        names.finish_lookup(&name(text), vec![address(1)], now);
    }

    #[test]
    fn a_name_is_looked_up_once_and_waiting_datagrams_keep_their_order() {
        let (mut names, now) = (Names::default(), Instant::now());
        let example = name("example.com");
        assert_eq!(names.look_up(&example, now), Lookup::Start);
        for data in [b"1", b"2", b"3"] {
            assert_eq!(names.addresses(&example), None);
            assert!(names.wait(&example, data));
            assert_eq!(names.look_up(&example, now), Lookup::NotNeeded);
        }
        let waited = names.finish_lookup(&example, vec![address(1), address(2)], now);
        assert_eq!(waited.concat(), b"123");
        assert_eq!(names.addresses(&example), Some(&[address(1), address(2)][..]));
        assert_eq!((names.lookups, names.waiting_bytes), (0, 0));
    }

    #[test]
    fn a_name_that_is_not_found_is_forgotten_and_can_be_looked_up_again() {
        let (mut names, now) = (Names::default(), Instant::now());
        let example = name("example.com");
        assert_eq!(names.look_up(&example, now), Lookup::Start);
        assert!(names.wait(&example, b"1"));
        assert_eq!(names.finish_lookup(&example, Vec::new(), now).concat(), b"1");
        assert_eq!((names.names.len(), names.waiting_bytes), (0, 0));
        assert!(!names.wait(&example, b"2"), "nobody looks it up");
        assert_eq!(names.look_up(&example, now), Lookup::Start);
    }

    #[test]
    fn an_address_serves_while_the_name_is_looked_up_again() {
        let (mut names, start) = (Names::default(), Instant::now());
        let example = name("example.com");
        known(&mut names, "example.com", start);
        assert_eq!(names.look_up(&example, start + FRESH / 2), Lookup::NotNeeded);
        let stale = start + FRESH;
        assert_eq!(names.look_up(&example, stale), Lookup::Start);
        assert_eq!(names.look_up(&example, stale), Lookup::NotNeeded, "once");
        assert_eq!(names.addresses(&example), Some(&[address(1)][..]));
        assert!(
            names
                .finish_lookup(&example, vec![address(2), address(3), address(1)], stale)
                .is_empty()
        );
        let kept = [address(1), address(2), address(3)];
        assert_eq!(names.addresses(&example), Some(&kept[..]), "the one in use stays first");
        assert_eq!(names.proven(&example), None);
        names.prove(&example, 2);
        assert_eq!(names.proven(&example), Some(address(3)));
        assert_eq!(
            names.addresses(&example),
            Some(&[address(3), address(1), address(2)][..])
        );
        assert_eq!(names.look_up(&example, stale + FRESH), Lookup::Start);
        names.finish_lookup(&example, Vec::new(), stale + FRESH);
        assert_eq!(
            names.addresses(&example).map(<[_]>::len),
            Some(3),
            "a flow outlives its name"
        );
        assert_eq!(
            names.look_up(&example, stale + 2 * FRESH),
            Lookup::Start,
            "which is asked for again"
        );
    }

    #[test]
    fn concurrent_lookups_are_bounded() {
        let (mut names, now) = (Names::default(), Instant::now());
        known(&mut names, "old", now);
        for number in 0..LOOKUPS_MAX {
            assert_eq!(names.look_up(&name(&number.to_string()), now), Lookup::Start);
        }
        assert_eq!(names.look_up(&name("one.more"), now), Lookup::TooMany);
        assert_eq!(
            names.look_up(&name("old"), now + FRESH),
            Lookup::NotNeeded,
            "the old address serves on"
        );
        names.finish_lookup(&name("0"), Vec::new(), now);
        assert_eq!(names.look_up(&name("one.more"), now), Lookup::Start);
    }

    #[test]
    fn waiting_datagrams_are_bounded_over_all_names() {
        let (mut names, now) = (Names::default(), Instant::now());
        for text in ["a", "b"] {
            assert_eq!(names.look_up(&name(text), now), Lookup::Start);
        }
        let half = vec![0; WAITING_MAX_BYTES / 2 - WAITING_BYTES_EACH];
        assert!(names.wait(&name("a"), &half) && names.wait(&name("b"), &half));
        assert!(!names.wait(&name("a"), b"") && !names.wait(&name("b"), b""));
        assert_eq!(names.finish_lookup(&name("a"), Vec::new(), now).len(), 1);
        assert!(names.wait(&name("b"), b""), "there is room again");
    }

    #[test]
    fn names_are_bounded_and_the_oldest_is_forgotten() {
        let (mut names, start) = (Names::default(), Instant::now());
        for number in 0..2 * NAMES_MAX {
            let now = start + Duration::from_millis(u64::try_from(number).unwrap());
            known(&mut names, &number.to_string(), now);
            assert!(names.names.len() <= NAMES_MAX);
        }
        let is_known = |number: &usize| names.names.contains_key(&name(&number.to_string()));
        assert_eq!(
            (0..2 * NAMES_MAX).filter(is_known).collect::<Vec<_>>(),
            (NAMES_MAX..2 * NAMES_MAX).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_datagram_of_any_size_may_wait() {
        let (mut names, now) = (Names::default(), Instant::now());
        assert_eq!(names.look_up(&name("a"), now), Lookup::Start);
        assert!(names.wait(&name("a"), &[0; 65_507 - 10]));
        let _ = names.finish_lookup(&name("a"), Vec::new(), now);
    }
}
