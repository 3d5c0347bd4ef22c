//! Caches DNS answers for as long as their TTL allows. This module does no I/O and gets the time as
//! an argument.
//!
//! hickory's own cache is not used, because each of its entries is a whole message of up to 64 KiB
//! on the wire. Here, clients choose the names, so they could make such a cache very large.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::happy_eyeballs::{ADDRESSES_MAX, Family};

/// The maximum number of names in each of the two generations. A name has at most 255 bytes and 32
/// addresses. A cache full of such names uses 4 MiB.
const GENERATION_MAX: usize = 2048;
/// The longest time that an answer with addresses is used, whatever its TTL.
const POSITIVE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time that the answer "no address" is used. Such a name often gets an address soon.
const NEGATIVE_MAX: Duration = Duration::from_secs(5 * 60);

/// A cache of at most 2 × 2048 names. When the young generation is full, it replaces the old one. A
/// name that is used moves to the young generation.
#[derive(Debug, Default)]
pub(super) struct Cache {
    young: HashMap<Box<str>, Known>,
    old: HashMap<Box<str>, Known>,
}

/// The answers for a name, by family.
type Known = [Option<Answer>; 2];

#[derive(Debug, Clone)]
struct Answer {
    /// Empty if the name has no address of this family.
    addresses: Arc<[IpAddr]>,
    until: Instant,
}

impl Cache {
    /// Returns the cached addresses of `name`. The list is empty if the name is known to have no
    /// address. Returns `None` if a query is needed.
    pub(super) fn get(&mut self, name: &str, family: Family, now: Instant) -> Option<Arc<[IpAddr]>> {
        if let Some((name, known)) = self.old.remove_entry(name) {
            // If the young generation also has the name, its answer is newer.
            if !self.young.contains_key(&name) {
                self.insert(name, known);
            }
        }
        let answer = self.young.get(name)?[family as usize].as_ref()?;
        (now < answer.until).then(|| Arc::clone(&answer.addresses))
    }

    /// Keeps an answer for `ttl`, which may be 0. Only the first 16 addresses are kept.
    pub(super) fn put(&mut self, name: &str, family: Family, addresses: &[IpAddr], ttl: Duration, now: Instant) {
        let longest = if addresses.is_empty() {
            NEGATIVE_MAX
        } else {
            POSITIVE_MAX
        };
        let ttl = ttl.min(longest);
        if ttl.is_zero() {
            return;
        }
        let answer = Answer {
            addresses: addresses.iter().copied().take(ADDRESSES_MAX).collect(),
            until: now + ttl,
        };
        if let Some(known) = self.young.get_mut(name) {
            known[family as usize] = Some(answer);
            return;
        }
        let mut known = self.old.remove(name).unwrap_or_default();
        known[family as usize] = Some(answer);
        self.insert(name.into(), known);
    }

    fn insert(&mut self, name: Box<str>, known: Known) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn one() -> [IpAddr; 1] {
        [[192, 0, 2, 1].into()]
    }

    #[test]
    fn an_answer_is_valid_until_its_ttl_ends_and_only_for_its_family() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.put("a.", Family::V4, &one(), 10 * SECOND, start);
        let last = start + 10 * SECOND - Duration::from_nanos(1);
        assert_eq!(cache.get("a.", Family::V4, last).as_deref(), Some(&one()[..]));
        assert_eq!(cache.get("a.", Family::V4, start + 10 * SECOND), None);
        assert_eq!(cache.get("a.", Family::V6, start), None);
        cache.put("a.", Family::V6, &[], 10 * SECOND, start);
        assert_eq!(cache.get("a.", Family::V6, start).as_deref(), Some(&[][..]));
        assert!(cache.get("a.", Family::V4, start).is_some());
    }

    #[test]
    fn an_answer_with_a_ttl_of_zero_is_not_cached() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.put("a.", Family::V4, &one(), Duration::ZERO, start);
        assert_eq!(cache.get("a.", Family::V4, start), None);
        assert!(cache.young.is_empty(), "it takes the place of nothing");
    }

    #[test]
    fn answers_expire_after_a_day_and_negative_ones_after_five_minutes() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.put("a.", Family::V4, &one(), Duration::from_secs(u32::MAX.into()), start);
        assert!(cache.get("a.", Family::V4, start + POSITIVE_MAX - SECOND).is_some());
        assert_eq!(cache.get("a.", Family::V4, start + POSITIVE_MAX), None);
        cache.put("b.", Family::V4, &[], 3600 * SECOND, start);
        assert!(cache.get("b.", Family::V4, start + NEGATIVE_MAX - SECOND).is_some());
        assert_eq!(cache.get("b.", Family::V4, start + NEGATIVE_MAX), None);
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_names_in_use() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.put("used.", Family::V4, &one(), SECOND, start);
        for index in 0..10 * GENERATION_MAX {
            cache.put(&format!("{index}."), Family::V4, &one(), SECOND, start);
            assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION_MAX);
            if index % 100 == 0 {
                assert!(cache.get("used.", Family::V4, start).is_some(), "{index}");
            }
        }
        assert_eq!(cache.get("0.", Family::V4, start), None);
    }

    #[test]
    fn an_answer_about_one_family_keeps_that_of_the_other() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.put("a.", Family::V4, &one(), SECOND, start);
        for index in 0..GENERATION_MAX {
            cache.put(&format!("{index}."), Family::V4, &one(), SECOND, start);
        }
        assert!(cache.old.contains_key("a."));
        cache.put("a.", Family::V6, &[], SECOND, start);
        assert!(cache.young.contains_key("a.") && cache.get("a.", Family::V4, start).is_some());
    }

    #[test]
    fn of_many_addresses_the_first_16_are_kept() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        let many: Vec<IpAddr> = (0..=255).map(|low| IpAddr::from([192, 0, 2, low])).collect();
        cache.put("a.", Family::V4, &many, SECOND, start);
        assert_eq!(
            cache.get("a.", Family::V4, start).as_deref(),
            Some(&many[..ADDRESSES_MAX])
        );
    }
}
