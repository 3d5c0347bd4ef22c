//! Remembers correct passwords by client address. So a user does not have to wait if other users at
//! the same address have failed.
//!
//! The table holds keyed digests of passwords, but no passwords. Each set of users has its own
//! table. If a file is read again, its users get a new table.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::digest::Digest;
use crate::kit::client_key::ClientKey;

/// The maximum number of passwords. Each of them uses about 200 bytes. The least recently used one
/// is dropped first.
const ENTRIES_MAX: usize = 10_000;
/// The limit on wrong passwords in [`WINDOW`], from one address for one user. When this limit is
/// reached, the user has to wait at this address like all other users. Otherwise, an attacker who
/// shares an address with a user could guess passwords as fast as the network allows.
const WRONG_MAX: u32 = 100;
const WINDOW: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Passed(Mutex<Table>);

#[derive(Default)]
struct Table {
    entries: BTreeMap<Key, Entry>,
    /// The keys in the order of their last use, which `Entry::used` numbers.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
}

/// The number of a user.
pub(super) type UserId = u32;
type Key = (ClientKey, UserId);

struct Entry {
    digest: Digest,
    used: u64,
    wrong: u32,
    /// The time of the first wrong password that `wrong` counts.
    since: Instant,
}

impl Passed {
    /// Returns whether this password was accepted before, for this user and from this address. The
    /// comparison takes the same time even if there is no entry.
    pub(super) fn has(&self, client: ClientKey, user: UserId, given: &Digest, now: Instant) -> bool {
        let mut table = self.0.lock();
        let mut nothing = Entry::new([0; 32], now);
        let entry = table.entries.get_mut(&(client, user));
        let is_known = entry.is_some();
        let entry = entry.unwrap_or(&mut nothing);
        if now > entry.since + WINDOW {
            entry.wrong = 0;
        }
        let is_same = bool::from(entry.digest.ct_eq(given)) & is_known & (entry.wrong < WRONG_MAX);
        if is_same {
            table.touch((client, user));
        } else {
            entry.since = if entry.wrong == 0 { now } else { entry.since };
            entry.wrong = entry.wrong.saturating_add(1);
        }
        is_same
    }

    /// Records that this password was correct.
    pub(super) fn remember(&self, client: ClientKey, user: UserId, given: Digest, now: Instant) {
        let mut table = self.0.lock();
        let key = (client, user);
        match table.entries.get_mut(&key) {
            // The count of wrong passwords does not change.
            Some(entry) => entry.digest = given,
            None => {
                table.make_room();
                table.entries.insert(key, Entry::new(given, now));
            }
        }
        table.touch(key);
    }

    /// Returns whether any user has logged in from this address.
    pub(super) fn knows(&self, client: ClientKey) -> bool {
        let table = self.0.lock();
        let mut of_client = table.entries.range((client, UserId::MIN)..=(client, UserId::MAX));
        of_client.next().is_some()
    }
}

impl Table {
    fn touch(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, key);
    }

    fn make_room(&mut self) {
        if self.entries.len() >= ENTRIES_MAX
            && let Some((_, key)) = self.by_use.pop_first()
        {
            self.entries.remove(&key);
        }
    }
}

impl Entry {
    /// Creates an entry. `used` is 0 until the entry is touched. The numbers of uses start at 1.
    fn new(digest: Digest, now: Instant) -> Self {
        Self {
            digest,
            used: 0,
            wrong: 0,
            since: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(number: u32) -> ClientKey {
        IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number)).into()
    }

    #[test]
    fn a_secret_counts_for_its_user_and_address_alone() {
        let (passed, now) = (Passed::default(), Instant::now());
        passed.remember(client(1), 1, [7; 32], now);
        assert!(passed.has(client(1), 1, &[7; 32], now));
        for (client, user, digest) in [
            (client(1), 1, [8; 32]),
            (client(1), 2, [7; 32]),
            (client(2), 1, [7; 32]),
            (client(2), 1, [0; 32]),
        ] {
            assert!(!passed.has(client, user, &digest, now), "{user} {digest:?}");
        }
        assert!(passed.knows(client(1)) && !passed.knows(client(2)) && !passed.knows(client(0)));
    }

    #[test]
    fn a_hundred_wrong_passwords_suspend_a_remembered_one_for_ten_minutes() {
        let (passed, now) = (Passed::default(), Instant::now());
        passed.remember(client(1), 1, [1; 32], now);
        passed.remember(client(1), 2, [2; 32], now);
        for _ in 0..WRONG_MAX {
            assert!(passed.has(client(1), 1, &[1; 32], now));
            assert!(!passed.has(client(1), 1, &[9; 32], now));
        }
        assert!(!passed.has(client(1), 1, &[1; 32], now), "a guess would be answered");
        assert!(passed.has(client(1), 2, &[2; 32], now));
        let later = now + WINDOW + Duration::from_secs(1);
        assert!(passed.has(client(1), 1, &[1; 32], later));
    }

    #[test]
    fn the_table_is_bounded_and_drops_the_least_recently_used_entry() {
        let (passed, now) = (Passed::default(), Instant::now());
        let count = u32::try_from(ENTRIES_MAX).unwrap();
        for number in 0..count + 100 {
            passed.remember(client(number), 1, [1; 32], now);
            assert!(passed.has(client(0), 1, &[1; 32], now));
        }
        assert!(!passed.has(client(1), 1, &[1; 32], now) && !passed.has(client(100), 1, &[1; 32], now));
        assert!(passed.has(client(101), 1, &[1; 32], now));
        let table = passed.0.lock();
        assert_eq!((table.entries.len(), table.by_use.len()), (ENTRIES_MAX, ENTRIES_MAX));
    }
}
