//! Decides the steps of happy eyeballs (RFC 8305): which address to try now, or how long to wait.
//! This module does no I/O and gets the time as an argument.
//!
//! ```text
//!   answers ──▶ waiting IPv6 ─┐ in turn
//!   answers ──▶ waiting IPv4 ─┴────────▶ Try ──▶ connected, or Exhausted
//!                                        ▲ │ the next one: after 250 ms or a failure
//!                                        └─┘
//! ```

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// The "Connection Attempt Delay" of section 5: the time before the next attempt starts in
/// parallel.
pub(super) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The "Resolution Delay" of section 3: how long an IPv4 answer waits for the IPv6 answer.
pub(super) const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
/// The maximum number of addresses to try for one connection. This also limits the number of
/// sockets that are open for the connection. All attempts have started after 4 s.
pub(super) const ADDRESSES_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    V6,
    V4,
}

impl From<IpAddr> for Family {
    fn from(ip: IpAddr) -> Self {
        if ip.is_ipv6() { Self::V6 } else { Self::V4 }
    }
}

/// The attempts for one connection. IPv6 comes first (section 4), unless only IPv4 is known.
#[derive(Debug)]
pub(super) struct HappyEyeballs {
    /// The addresses that wait, by family.
    waiting: [VecDeque<IpAddr>; 2],
    /// The families whose answers are still missing.
    awaited: Vec<Family>,
    /// The family that is next, if both have an address.
    turn: Family,
    under_way: usize,
    /// The number of addresses that may still be tried.
    left: usize,
    /// The earliest time to try the next address. `None` means immediately.
    not_before: Option<Instant>,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Try this address, in parallel with the attempts that are already running.
    Try(IpAddr),
    /// Wait for an attempt or an answer, at most until this time.
    Wait(Option<Instant>),
    /// No attempt is running, and no address is left to try.
    Exhausted,
}

impl HappyEyeballs {
    /// Starts before the answer for either family is known.
    pub(super) fn looking_up() -> Self {
        Self {
            waiting: Default::default(),
            awaited: vec![Family::V6, Family::V4],
            turn: Family::V6,
            under_way: 0,
            left: ADDRESSES_MAX,
            not_before: None,
        }
    }

    /// Starts with all addresses known.
    pub(super) fn with_addresses(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut eyeballs = Self::looking_up();
        eyeballs.awaited.clear();
        eyeballs.add(addresses);
        eyeballs
    }

    /// Adds the answer for a family. It is empty if there is no address, or if the lookup failed.
    pub(super) fn answered(&mut self, family: Family, addresses: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let begun = self.left < ADDRESSES_MAX;
        self.awaited.retain(|awaited| *awaited != family);
        self.add(addresses);
        if !begun {
            let waits = self.waiting[Family::V6 as usize].is_empty() && self.awaited.contains(&Family::V6);
            self.not_before = waits.then(|| now + RESOLUTION_DELAY);
        }
    }

    /// Records that an attempt failed.
    pub(super) fn failed(&mut self) {
        self.under_way -= 1;
        self.not_before = None;
    }

    /// Returns the next step. Call this method again after each `Try` and after each `Wait`.
    pub(super) fn next(&mut self, now: Instant) -> Step {
        let may_try = self.left > 0;
        let is_waiting = self.waiting.iter().any(|waiting| !waiting.is_empty());
        if let Some(then) = self.not_before.filter(|then| may_try && is_waiting && now < *then) {
            return Step::Wait(Some(then));
        }
        if let Some(ip) = may_try.then(|| self.take()).flatten() {
            self.under_way += 1;
            self.left -= 1;
            self.not_before = Some(now + ATTEMPT_DELAY);
            return Step::Try(ip);
        }
        if self.under_way > 0 || (may_try && !self.awaited.is_empty()) {
            Step::Wait(None)
        } else {
            Step::Exhausted
        }
    }

    /// Returns the waiting addresses, at most 16, in the order in which they would be tried.
    pub(super) fn in_turn(mut self) -> Vec<IpAddr> {
        std::iter::from_fn(|| self.take()).take(ADDRESSES_MAX).collect()
    }

    fn take(&mut self) -> Option<IpAddr> {
        let mut families = [self.turn as usize, 1 - self.turn as usize].into_iter();
        let ip = families.find_map(|family| self.waiting[family].pop_front())?;
        self.turn = if ip.is_ipv6() { Family::V4 } else { Family::V6 };
        Some(ip)
    }

    fn add(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        for ip in addresses.into_iter().map(|ip| ip.to_canonical()) {
            let waiting = &mut self.waiting[Family::from(ip) as usize];
            if waiting.len() < ADDRESSES_MAX {
                waiting.push_back(ip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "2001:db8::a";
    const B: &str = "2001:db8::b";
    const ONE: &str = "192.0.2.1";
    const TWO: &str = "192.0.2.2";

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn tries(ip: &str) -> Step {
        Step::Try(ip.parse().unwrap())
    }

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn families_take_turns_250_ms_apart_whatever_order_they_came_in() {
        let start = Instant::now();
        let mut eyeballs = HappyEyeballs::with_addresses(ips(&[ONE, TWO, A, B]));
        for (index, ip) in (0..).zip([A, ONE, B, TWO]) {
            let now = after(start, index * 250);
            assert_eq!(eyeballs.next(now), tries(ip));
            let waits = if index < 3 { Some(after(now, 250)) } else { None };
            assert_eq!(eyeballs.next(now), Step::Wait(waits));
            assert_eq!(eyeballs.next(after(now, 249)), Step::Wait(waits));
        }
    }

    #[test]
    fn after_a_failure_the_next_attempt_starts_immediately() {
        let start = Instant::now();
        let mut eyeballs = HappyEyeballs::with_addresses(ips(&[A, ONE]));
        assert_eq!(eyeballs.next(start), tries(A));
        eyeballs.failed();
        assert_eq!(eyeballs.next(start), tries(ONE));
        assert_eq!(eyeballs.next(start), Step::Wait(None));
        eyeballs.failed();
        assert_eq!(eyeballs.next(start), Step::Exhausted);
    }

    #[test]
    fn ipv6_starts_without_waiting_for_the_answer_about_ipv4() {
        let start = Instant::now();
        let mut eyeballs = HappyEyeballs::looking_up();
        assert_eq!(eyeballs.next(start), Step::Wait(None));
        eyeballs.answered(Family::V6, ips(&[A]), start);
        assert_eq!(eyeballs.next(start), tries(A));
        eyeballs.answered(Family::V4, ips(&[ONE]), after(start, 10));
        assert_eq!(eyeballs.next(after(start, 10)), Step::Wait(Some(after(start, 250))));
        assert_eq!(eyeballs.next(after(start, 250)), tries(ONE));
    }

    #[test]
    fn ipv4_waits_50_ms_for_the_ipv6_answer_and_lets_ipv6_go_first() {
        let start = Instant::now();
        let mut eyeballs = HappyEyeballs::looking_up();
        eyeballs.answered(Family::V4, ips(&[ONE]), start);
        assert_eq!(eyeballs.next(start), Step::Wait(Some(after(start, 50))));
        eyeballs.answered(Family::V6, ips(&[A]), after(start, 30));
        assert_eq!(eyeballs.next(after(start, 30)), tries(A));
    }

    #[test]
    fn ipv4_starts_after_50_ms_and_a_late_answer_joins_in() {
        let start = Instant::now();
        let mut eyeballs = HappyEyeballs::looking_up();
        eyeballs.answered(Family::V4, ips(&[ONE, TWO]), start);
        assert_eq!(eyeballs.next(after(start, 50)), tries(ONE));
        eyeballs.answered(Family::V6, ips(&[A]), after(start, 60));
        assert_eq!(eyeballs.next(after(start, 299)), Step::Wait(Some(after(start, 300))));
        assert_eq!(eyeballs.next(after(start, 300)), tries(A));
        assert_eq!(eyeballs.next(after(start, 550)), tries(TWO));
    }

    #[test]
    fn ipv4_starts_immediately_if_there_is_no_ipv6() {
        let start = Instant::now();
        let mut eyeballs = HappyEyeballs::looking_up();
        eyeballs.answered(Family::V4, ips(&[ONE]), start);
        eyeballs.answered(Family::V6, [], after(start, 1));
        assert_eq!(eyeballs.next(after(start, 1)), tries(ONE));
    }

    #[test]
    fn attempts_without_addresses_fail_when_both_answers_are_there() {
        let start = Instant::now();
        let mut eyeballs = HappyEyeballs::looking_up();
        eyeballs.answered(Family::V6, [], start);
        assert_eq!(eyeballs.next(start), Step::Wait(None));
        eyeballs.answered(Family::V4, [], start);
        assert_eq!(eyeballs.next(start), Step::Exhausted);
        assert_eq!(HappyEyeballs::with_addresses([]).next(start), Step::Exhausted);
    }

    #[test]
    fn if_all_known_addresses_fail_the_missing_answer_is_awaited() {
        let start = Instant::now();
        let mut eyeballs = HappyEyeballs::looking_up();
        eyeballs.answered(Family::V6, ips(&[A]), start);
        assert_eq!(eyeballs.next(start), tries(A));
        eyeballs.failed();
        assert_eq!(eyeballs.next(start), Step::Wait(None));
        eyeballs.answered(Family::V4, ips(&[ONE]), start);
        assert_eq!(eyeballs.next(start), tries(ONE));
    }

    #[test]
    fn no_more_than_16_addresses_are_tried_and_both_families_are_among_them() {
        let start = Instant::now();
        let v6 = (0..100_u16).map(|low| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, low]));
        let v4 = (0..100_u8).map(|low| IpAddr::from([192, 0, 2, low]));
        let mut eyeballs = HappyEyeballs::with_addresses(v6.chain(v4));
        let mut tried = Vec::new();
        while let Step::Try(ip) = eyeballs.next(start) {
            tried.push(ip);
            eyeballs.failed();
        }
        assert_eq!(eyeballs.next(start), Step::Exhausted);
        assert_eq!(tried.len(), ADDRESSES_MAX);
        assert_eq!(tried.iter().filter(|ip| ip.is_ipv4()).count(), ADDRESSES_MAX / 2);
    }

    #[test]
    fn an_ipv4_mapped_ipv6_address_is_tried_as_ipv4() {
        assert_eq!(
            HappyEyeballs::with_addresses(ips(&["::ffff:192.0.2.1"])).next(Instant::now()),
            tries(ONE)
        );
    }
}
