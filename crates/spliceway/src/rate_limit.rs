//! A limit in bytes per second that any number of relays share.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A limit in bytes per second, with bursts of a limited size: a token bucket. Clones share one
/// bucket.
///
/// ```
/// use spliceway::{RateLimit, RelayOptions};
///
/// // 10 MB/s for all relays of a client together.
/// let limit = RateLimit::new(10_000_000);
/// let options = RelayOptions::new().rate_limit(&limit);
/// ```
///
/// The limit decides when a relay reads from its source, and how many bytes one read may take.
/// Limited bytes are therefore still spliced, and TCP itself slows the sender down. A relay that
/// waits for its limit holds no pipe and no bytes.
///
/// Relays that share a limit are served in the order in which they asked. Each grant is what the
/// limit allows in 20 ms, or what is left of a burst. A grant is at most 256 KiB, or 32 KiB while
/// other relays wait. A new limit starts with a full burst.
///
/// A limit may be [within](Self::within) another, for example the limit of a connection within the
/// limit of its client.
#[derive(Clone, Debug)]
pub struct RateLimit(Arc<Level>);

/// A bucket, and the limit around it. A grant is subtracted from this bucket and from every bucket
/// around it.
#[derive(Debug)]
struct Level {
    bucket: Arc<Bucket>,
    outer: Option<RateLimit>,
}

#[derive(Debug)]
struct Bucket {
    bytes_per_second: u64,
    burst: u64,
    /// The fill level of the bucket, as a point in time. If it is in the past, the bucket holds the
    /// bytes that the rate allows from then until now. If it is in the future, the bucket owes the
    /// bytes that the rate allows from now until then.
    empty_at: Mutex<Instant>,
    /// The time from which bytes that may be dropped have not used up half of the rate.
    share_at: Mutex<Instant>,
}

/// One grant is what the rate allows in 1/50 s. A receiver does not notice such a burst. A splice
/// pays off from 16 KiB. At 50 grants per second, a rate below 800 kB/s grants less than that.
const GRANTS_PER_SECOND: u64 = 50;
/// The largest grant, in bytes: the contents of a pipe of 256 KiB. Larger grants would be bursts.
const GRANT_MOST: u64 = 256 << 10;
/// The largest grant while other relays wait, in bytes. It is still worth a splice.
const GRANT_IN_TURN: u64 = 32 << 10;
/// The default burst is what the rate allows in 1/10 s. This is 1 % of what it allows in 10 s.
const BURSTS_PER_SECOND: u64 = 10;

impl RateLimit {
    /// Creates a limit of this many bytes per second. Its burst is 1/10 of that number.
    ///
    /// # Panics
    /// If `bytes_per_second` is 0.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        Self::with_burst(bytes_per_second, (bytes_per_second / BURSTS_PER_SECOND).max(1))
    }

    /// Creates a limit of this many bytes per second, with bursts of up to `burst` bytes after idle
    /// time.
    ///
    /// # Panics
    /// If either argument is 0.
    #[must_use]
    pub fn with_burst(bytes_per_second: u64, burst: u64) -> Self {
        assert!(
            bytes_per_second > 0 && burst > 0,
            "a limit of nothing lets nothing through"
        );
        let bucket = Bucket {
            bytes_per_second,
            burst,
            empty_at: Mutex::new(full_at(Instant::now(), burst, bytes_per_second)),
            share_at: Mutex::new(Instant::now()),
        };
        Self(Arc::new(Level {
            bucket: Arc::new(bucket),
            outer: None,
        }))
    }

    /// Returns this limit for relays that must respect `outer` as well. Such a relay reads only
    /// when both limits allow it, and both limits count its bytes. If this limit is already within
    /// other limits, `outer` applies around all of them.
    ///
    /// The bucket stays the same, so relays that use this limit without `outer` still share it.
    ///
    /// ```
    /// use spliceway::{RateLimit, RelayOptions};
    ///
    /// // 1 MB/s for each relay, and 10 MB/s for all of them.
    /// let all = RateLimit::new(10_000_000);
    /// let one = RateLimit::new(1_000_000).within(&all);
    /// let options = RelayOptions::new().rate_limit(&one);
    /// ```
    #[must_use]
    pub fn within(&self, outer: &RateLimit) -> Self {
        Self(Arc::new(Level {
            bucket: Arc::clone(&self.0.bucket),
            outer: Some(match &self.0.outer {
                Some(nearer) => nearer.within(outer),
                None => outer.clone(),
            }),
        }))
    }

    /// Returns the rate of this limit alone, without the limits around it.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        self.0.bucket.bytes_per_second
    }

    /// Returns the largest burst in bytes, for this limit alone.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.0.bucket.burst
    }

    /// Returns the bytes that this limit allows now without a wait, or the bytes that it owes as a
    /// negative number. The limits around it do not count.
    ///
    /// With [`set_balance`](Self::set_balance), a limit of another process can continue from here.
    #[must_use]
    pub fn balance(&self) -> i64 {
        let Bucket {
            bytes_per_second,
            burst,
            ..
        } = *self.0.bucket;
        let (empty_at, now) = (*self.0.bucket.empty_at(), Instant::now());
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        match now.checked_duration_since(empty_at) {
            Some(time) => signed(bytes_in(time, bytes_per_second).min(burst)),
            None => -signed(bytes_in(empty_at - now, bytes_per_second)),
        }
    }

    /// Sets what this limit allows or owes: see [`balance`](Self::balance). It allows at most its
    /// burst.
    pub fn set_balance(&self, bytes: i64) {
        let Bucket {
            bytes_per_second,
            burst,
            ..
        } = *self.0.bucket;
        let now = Instant::now();
        let time = |bytes| time_for(bytes, bytes_per_second);
        *self.0.bucket.empty_at() = match u64::try_from(bytes) {
            Ok(bytes) => full_at(now, bytes.min(burst), bytes_per_second),
            Err(_) => now + time(bytes.unsigned_abs()),
        };
    }

    /// Counts bytes that did not pass through a relay, for example the bytes of a handshake. The
    /// next relay waits until the limit no longer owes them.
    pub fn charge(&self, bytes: u64) {
        let now = Instant::now();
        self.buckets().for_each(|bucket| {
            bucket.take(bytes, now);
        });
    }

    /// Counts bytes that do not pass through a relay, and waits until they may pass: until the
    /// limit, and each limit around it, owes nothing of what it has counted before. Relays and
    /// calls that share a limit take turns in the order in which they asked.
    ///
    /// ```
    /// use spliceway::RateLimit;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let limit = RateLimit::with_burst(1_000_000, 1_000);
    /// // These bytes may pass immediately. The limit owes most of them.
    /// limit.charge_and_wait(11_000).await;
    /// // These bytes wait for 10 ms.
    /// limit.charge_and_wait(500).await;
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// The bytes count from the first poll. If the future is dropped before it is ready, they do
    /// not count.
    pub async fn charge_and_wait(&self, bytes: u64) {
        let now = Instant::now();
        let turns = self.buckets().map(|bucket| bucket.take_turn(bytes, now));
        let turn = turns.max().expect("its own bucket");
        if turn > now {
            let mut waiter = RateWaiter {
                limit: self.clone(),
                reserved: bytes,
                wait: None,
            };
            tokio::time::sleep_until(turn).await;
            waiter.reserved = 0;
        }
    }

    /// Counts bytes that did not pass through a relay and that may be dropped, such as a datagram.
    /// Returns `false` and counts nothing if this limit, or a limit around it, owes more than a
    /// burst. Relays that wait for a limit make it owe their bytes. Such bytes therefore get up to
    /// half of the rate, whatever the limit owes.
    #[must_use = "bytes that were not counted must not pass"]
    pub fn try_charge(&self, bytes: u64) -> bool {
        let now = Instant::now();
        let is_allowed = self.buckets().all(|bucket| bucket.admits_droppable(now));
        if is_allowed {
            self.buckets().for_each(|bucket| bucket.take_droppable(bytes, now));
        }
        is_allowed
    }

    /// Reserves up to `most` bytes in every bucket, and at least 1 byte unless `most` is 0. A
    /// bucket may then owe bytes. Returns the number of bytes, and the time from which no bucket
    /// owes them.
    fn reserve(&self, most: u64, now: Instant) -> (u64, Instant) {
        // Other relays may reserve bytes between these two passes. The grant is then larger than it
        // would have been, and no byte is counted twice.
        let bytes = self.buckets().fold(most, |most, bucket| bucket.grant(most, now));
        let allowed_at = self.buckets().map(|bucket| bucket.take(bytes, now)).max();
        (bytes, allowed_at.expect("its own bucket"))
    }

    /// Puts back bytes that were reserved and not read.
    fn put_back(&self, bytes: u64) {
        if bytes > 0 {
            self.buckets().for_each(|bucket| bucket.put_back(bytes));
        }
    }

    /// Counts bytes that were read and not reserved. A record is read whole, so it may exceed its
    /// reservation.
    fn owe(&self, bytes: u64) {
        if bytes > 0 {
            self.buckets().for_each(|bucket| bucket.owe(bytes));
        }
    }

    /// Returns this limit's own bucket, then the buckets of the limits around it.
    fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        std::iter::successors(Some(self), |limit| limit.0.outer.as_ref()).map(|limit| &*limit.0.bucket)
    }
}

impl Bucket {
    /// Returns how many bytes, up to `most`, may be read next. The caller may have to wait before
    /// it reads them.
    fn grant(&self, most: u64, now: Instant) -> u64 {
        let empty_at = *self.empty_at();
        // While other relays wait, grants are small. All reservations together should only cover a
        // short time.
        let grant = if empty_at > now { GRANT_IN_TURN } else { GRANT_MOST };
        let empty_at = empty_at.max(full_at(now, self.burst, self.bytes_per_second));
        // Bytes that are in the bucket need not be granted in parts.
        let there = bytes_in(now.saturating_duration_since(empty_at), self.bytes_per_second);
        (self.bytes_per_second / GRANTS_PER_SECOND)
            .max(there)
            .clamp(1, grant)
            .min(self.burst)
            .min(most)
    }

    /// Subtracts `bytes`, and returns the time from which the bucket no longer owes them.
    fn take(&self, bytes: u64, now: Instant) -> Instant {
        let mut empty_at = self.empty_at();
        *empty_at = (*empty_at).max(full_at(now, self.burst, self.bytes_per_second)) + self.time_for(bytes);
        *empty_at
    }

    /// Subtracts `bytes`, and returns the time from which the bucket no longer owes what was
    /// subtracted before them.
    fn take_turn(&self, bytes: u64, now: Instant) -> Instant {
        self.take(bytes, now) - self.time_for(bytes)
    }

    fn admits_droppable(&self, now: Instant) -> bool {
        *self.empty_at() <= now + self.time_for(self.burst) || *self.share_at() <= now
    }

    fn take_droppable(&self, bytes: u64, now: Instant) {
        self.take(bytes, now);
        let mut share_at = self.share_at();
        let time = 2 * self.time_for(bytes);
        *share_at = (*share_at).max(now).checked_add(time).unwrap_or(*share_at);
    }

    fn put_back(&self, bytes: u64) {
        let mut empty_at = self.empty_at();
        *empty_at = empty_at.checked_sub(self.time_for(bytes)).unwrap_or(*empty_at);
    }

    fn owe(&self, bytes: u64) {
        *self.empty_at() += self.time_for(bytes);
    }

    fn time_for(&self, bytes: u64) -> Duration {
        time_for(bytes, self.bytes_per_second)
    }

    fn empty_at(&self) -> MutexGuard<'_, Instant> {
        // A panic cannot leave the value half-written, because it is a single point in time.
        self.empty_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn share_at(&self) -> MutexGuard<'_, Instant> {
        self.share_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the time at which a bucket that is full now would have been empty.
fn full_at(now: Instant, burst: u64, bytes_per_second: u64) -> Instant {
    now.checked_sub(time_for(burst, bytes_per_second)).unwrap_or(now)
}

/// Returns the time in which the rate allows `bytes`. A time above `u64::MAX` ns (584 years) is
/// replaced by 1/4 of that value, because the exact length does not matter.
fn time_for(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4))
}

/// Returns how many bytes the rate allows in `time`.
fn bytes_in(time: Duration, bytes_per_second: u64) -> u64 {
    let bytes = time.as_nanos() * u128::from(bytes_per_second) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Makes one direction wait until its limit allows the next bytes.
#[derive(Debug)]
pub(crate) struct RateWaiter {
    limit: RateLimit,
    /// Bytes that were reserved and not yet read. They may be read when there is no timer left to
    /// wait for.
    reserved: u64,
    wait: Option<Pin<Box<Sleep>>>,
}

impl RateWaiter {
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self {
            limit,
            reserved: 0,
            wait: None,
        }
    }

    /// When ready, returns how many bytes may be read now: more than 0, and usually at most `most`.
    /// After a wait, the number may exceed `most`, because the bytes were reserved earlier.
    pub(crate) fn poll_grant(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<usize> {
        if self.reserved == 0 {
            let now = Instant::now();
            let (bytes, allowed_at) = self.limit.reserve(most as u64, now);
            self.reserved = bytes;
            self.wait = (allowed_at > now).then(|| Box::pin(tokio::time::sleep_until(allowed_at)));
        }
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        Poll::Ready(usize::try_from(self.reserved).unwrap_or(usize::MAX))
    }

    /// Returns whether the direction waits for a grant.
    pub(crate) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Records that `bytes` were read. The rest of the grant goes back to the limit. Bytes beyond
    /// the grant are owed.
    pub(crate) fn spent(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.limit.put_back(self.reserved.saturating_sub(bytes));
        self.limit.owe(bytes.saturating_sub(self.reserved));
        self.reserved = 0;
    }
}

impl Drop for RateWaiter {
    fn drop(&mut self) {
        self.limit.put_back(self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reserves `bytes`, and returns the time from which the last of them may pass.
    fn reserve_all(limit: &RateLimit, mut bytes: u64, now: Instant) -> Instant {
        let mut last = now;
        while bytes > 0 {
            let (reserved, at) = limit.reserve(bytes, now);
            (bytes, last) = (bytes - reserved, at);
        }
        last
    }

    #[test]
    fn a_burst_passes_immediately_and_then_the_rate_applies() {
        let limit = RateLimit::with_burst(1_000, 100);
        let start = Instant::now() + Duration::from_secs(3600);
        assert_eq!(reserve_all(&limit, 100, start), start);
        for second in 1..=10 {
            assert_eq!(reserve_all(&limit, 1_000, start), start + Duration::from_secs(second));
        }
    }

    #[test]
    fn idle_time_earns_one_burst_and_no_more() {
        let limit = RateLimit::with_burst(1_000, 100);
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(reserve_all(&limit, 100, later), later);
        assert_eq!(reserve_all(&limit, 100, later), later + Duration::from_millis(100));
    }

    #[test]
    fn a_burst_is_granted_in_large_parts_however_low_the_rate() {
        let limit = RateLimit::with_burst(1_000, 300 << 10);
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(
            limit.reserve(u64::MAX, later),
            (GRANT_MOST, later - Duration::from_nanos(45_056_000_000))
        );
        assert_eq!(limit.reserve(u64::MAX, later), (44 << 10, later));
        assert_eq!(limit.reserve(u64::MAX, later).0, 20);
    }

    #[test]
    fn bytes_that_are_put_back_are_granted_again() {
        let limit = RateLimit::with_burst(1_000, 100);
        let later = Instant::now() + Duration::from_secs(3600);
        reserve_all(&limit, 100, later);
        limit.put_back(60);
        assert_eq!(reserve_all(&limit, 60, later), later);
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_continues_from_the_balance_of_another() {
        let limit = RateLimit::with_burst(1_000, 100);
        assert_eq!(limit.balance(), 100);
        limit.charge(40);
        assert_eq!(limit.balance(), 60);
        limit.charge(160);
        assert_eq!(limit.balance(), -100);
        let other = RateLimit::with_burst(1_000, 100).within(&RateLimit::new(5));
        for balance in [-100, 0, 60, 100] {
            other.set_balance(balance);
            assert_eq!(other.balance(), balance);
        }
        other.set_balance(1_000);
        assert_eq!(other.balance(), 100, "the burst is the most");
    }

    #[test]
    fn grants_are_small_while_other_relays_wait() {
        let limit = RateLimit::with_burst(1 << 30, 1 << 20);
        let later = Instant::now() + Duration::from_secs(3600);
        for _ in 0..4 {
            assert_eq!(limit.reserve(u64::MAX, later).0, GRANT_MOST);
        }
        assert_eq!(limit.reserve(u64::MAX, later).0, GRANT_MOST);
        assert_eq!(limit.reserve(u64::MAX, later).0, GRANT_IN_TURN);
    }

    #[test]
    fn a_nested_limit_grants_only_what_both_limits_allow() {
        let later = Instant::now() + Duration::from_secs(3600);
        let (outer, inner) = (RateLimit::with_burst(1_000, 100), RateLimit::with_burst(100, 50));
        let both = inner.within(&outer);
        assert_eq!(both.reserve(u64::MAX, later).0, 50, "the lesser burst");
        // The outer limit has 50 bytes left, and the inner limit owes bytes.
        assert_eq!(reserve_all(&both, 10, later), later + Duration::from_millis(100));
        // Now the outer limit owes bytes, because they are reserved from it directly.
        assert_eq!(reserve_all(&outer, 1_040, later), later + Duration::from_secs(1));
        assert_eq!(reserve_all(&both, 1, later), later + Duration::from_millis(1_001));
    }

    #[test]
    fn bytes_of_an_inner_limit_count_in_the_outer_even_if_corrected() {
        let later = Instant::now() + Duration::from_secs(3600);
        let outer = RateLimit::with_burst(1_000, 100);
        let both = RateLimit::with_burst(1_000, 100).within(&outer);
        reserve_all(&both, 100, later);
        both.put_back(60);
        assert_eq!(reserve_all(&outer, 60, later), later, "put back in both");
        assert_eq!(reserve_all(&outer, 1, later), later + Duration::from_millis(1));
        let other = RateLimit::with_burst(1_000, 100).within(&outer);
        other.owe(99);
        assert_eq!(reserve_all(&outer, 1, later), later + Duration::from_millis(101));
    }

    #[test]
    fn nested_limits_form_a_chain_in_any_order_of_nesting() {
        let later = Instant::now() + Duration::from_secs(3600);
        let burst = |burst| RateLimit::with_burst(1_000, burst);
        for chain in [
            burst(100).within(&burst(100).within(&burst(7))),
            burst(100).within(&burst(100)).within(&burst(7)),
            burst(7).within(&burst(100)).within(&burst(100)),
        ] {
            assert_eq!(chain.reserve(u64::MAX, later), (7, later));
            assert_eq!(chain.buckets().count(), 3);
        }
    }

    #[test]
    fn charged_bytes_delay_the_next_grant_of_the_outer_limit_too() {
        let outer = RateLimit::with_burst(1_000, 100);
        let limit = RateLimit::with_burst(10_000, 1_000).within(&outer);
        limit.charge(1_100);
        let now = Instant::now();
        let (_, at) = outer.reserve(1, now);
        assert!(at > now + Duration::from_millis(900), "{:?}", at - now);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_wait_for_those_before_them_in_the_slowest_limit() {
        let outer = RateLimit::with_burst(1_000, 100);
        let limits = [1, 2].map(|_| RateLimit::with_burst(10_000, 1_000).within(&outer));
        let start = Instant::now();
        for (number, limit) in (0..10).zip(limits.iter().cycle()) {
            limit.charge_and_wait(500).await;
            // The first bytes find a burst, and the limit owes most of them.
            let expected = Duration::from_millis((number * 500_u64).saturating_sub(100));
            let difference = start.elapsed().abs_diff(expected);
            assert!(difference <= Duration::from_millis(1), "{number}");
        }
        limits[0].charge_and_wait(0).await;
        assert!(start.elapsed() >= Duration::from_millis(4_900), "nothing waits as well");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_of_a_cancelled_wait_do_not_count_in_any_limit() {
        let outer = RateLimit::with_burst(1_000, 100);
        let limit = RateLimit::with_burst(1_000, 100).within(&outer);
        limit.charge(300);
        let waits = limit.charge_and_wait(5_000);
        assert!(tokio::time::timeout(Duration::from_millis(100), waits).await.is_err());
        assert_eq!([limit.balance(), outer.balance()], [-100; 2]);
        drop(limit.charge_and_wait(5_000));
        assert_eq!(limit.balance(), -100, "a future that was not polled");
        tokio::time::advance(Duration::from_millis(100)).await;
        limit.charge_and_wait(5_000).await;
        assert_eq!([limit.balance(), outer.balance()], [-5_000; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_dropped_passes_until_a_limit_owes_a_burst() {
        let outer = RateLimit::with_burst(1_000, 100);
        let limit = RateLimit::with_burst(10_000, 1_000).within(&outer);
        let sent = |count| (0..count).filter(|_| limit.try_charge(50)).count();
        assert_eq!(sent(20), 5, "a burst is there, a burst is owed, and one more");
        assert_eq!(outer.balance(), -150, "what was refused does not count");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(sent(20), 5, "idle time earns one burst");
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(100)).await;
            assert_eq!(sent(20), 2, "the rate");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_dropped_gets_half_of_a_rate_for_which_relays_wait() {
        let limit = RateLimit::with_burst(1_000, 100);
        limit.charge(100_000);
        let mut passed = 0;
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(100)).await;
            passed += (0..20).filter(|_| limit.try_charge(50)).count();
        }
        assert_eq!(passed, 100, "500 bytes in each second");
    }

    #[test]
    fn extreme_rates_and_byte_counts_do_not_overflow() {
        let now = Instant::now();
        assert!(RateLimit::new(1).try_charge(u64::MAX) && RateLimit::with_burst(1, u64::MAX).try_charge(1));
        assert_eq!(RateLimit::new(u64::MAX).reserve(u64::MAX, now).0, GRANT_MOST);
        assert_eq!(RateLimit::new(1).reserve(u64::MAX, now).0, 1);
        let limit = RateLimit::with_burst(1, u64::MAX);
        limit.reserve(u64::MAX, now);
        limit.put_back(u64::MAX);
    }
}
