//! The traffic of services: their sessions, relays and datagrams.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::mirrors::MirrorCounts;
use slab::Slab;
use spliceway::{CancelHandle, DirectionSummary, Reason, RelayStats, RelaySummary};

use crate::access::datagram_counts::{DatagramStats, DatagramSummary, Dropped};
use crate::kit::outcome::{FailureOf, SessionEnd};
use crate::kit::refusal::Refusal;

/// The traffic of one service: the counts of its running relays and of the relays that have ended.
pub(crate) struct Traffic {
    service: Arc<str>,
    /// The number of sessions that began in this process.
    sessions: AtomicU64,
    /// The number of sessions that are open.
    active: AtomicU64,
    ledger: Mutex<Ledger>,
    /// Counts the dropped datagrams that belong to no session.
    strays: DatagramStats,
    /// The copies for observers, if there is one.
    mirrors: OnceLock<Arc<MirrorCounts>>,
    /// The queries of DNS clients by result, if the service answers them.
    dns: OnceLock<[AtomicU64; DnsResult::ALL.len()]>,
    /// Held while totals are taken.
    scanning: tokio::sync::Mutex<()>,
}

/// What has become of the query of a DNS client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnsResult {
    /// The client knows the addresses now, or that there are none.
    Answered,
    /// No rule allows the name.
    Refused,
    /// No rule allows the name, and the service learns.
    WouldRefuse,
    /// The addresses of an allowed name are refused, such as private ones.
    Filtered,
    /// The lookup has failed.
    Failed,
    Malformed,
    /// The client has no answer, because it is not admitted, or because a limit is reached.
    Dropped,
}

impl DnsResult {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Answered, "answered"),
        (Self::Refused, "refused"),
        (Self::WouldRefuse, "would_refuse"),
        (Self::Filtered, "filtered"),
        (Self::Failed, "failed"),
        (Self::Malformed, "malformed"),
        (Self::Dropped, "dropped"),
    ];
}

/// The relays, and the associations, that one slice of [`Traffic::totals`] reads. A slice holds the
/// lock for about 20 µs.
const SLICE: usize = 128;

/// The counts of one service. A relay's bytes are either in `running` or in `ended`. They change
/// sides under the lock. So a reader that holds the lock counts each byte once, and never counts
/// fewer bytes than before.
#[derive(Default)]
struct Ledger {
    running: Slab<Running>,
    ended: Bytes,
    fallbacks: [u64; Reason::ALL.len()],
    /// The sum that is being taken in slices.
    scan: Option<Scan>,
    associations: Slab<DatagramStats>,
    /// The datagrams of associations that have ended.
    datagrams: DatagramSummary,
    outcomes: Outcomes,
}

/// How often each thing happened, in the order of the first time.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcomes {
    pub(super) ended: Vec<(SessionEnd, u64)>,
    pub(super) refused: Vec<(Refusal, u64)>,
}

struct Running {
    stats: RelayStats,
    /// The counts with which the relay arrived from elsewhere. They are counted there.
    before: Option<Box<RelaySummary>>,
    cancel: CancelHandle,
    /// For each direction, the reason that `fallbacks` already includes.
    counted: [Option<Reason>; 2],
}

/// A sum over the running relays and associations that is taken in slices.
struct Scan {
    /// The first key of either that has not been read yet.
    next: usize,
    /// The bytes of relays that have ended, or were read.
    bytes: Bytes,
    /// The datagrams of associations that have ended, or were read.
    datagrams: DatagramSummary,
}

/// The counts of a service at about one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) sessions: u64,
    pub(crate) bytes: Bytes,
    pub(crate) datagrams: DatagramSummary,
    /// For each reason in [`Reason::ALL`], how often it made a direction copy. A fallback that
    /// begins and ends between two calls of [`Traffic::totals`] may be missed.
    pub(crate) fallbacks: [u64; Reason::ALL.len()],
    /// The sessions that failed, and those that were refused.
    pub(crate) failed: u64,
    pub(crate) refused: u64,
}

/// Bytes by direction and path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) up: Paths,
    pub(crate) down: Paths,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paths {
    pub(crate) splice: u64,
    pub(crate) copy: u64,
    /// Bytes that were read but not delivered.
    pub(crate) lost: u64,
}

impl Traffic {
    pub(crate) fn new(service: &str) -> Self {
        Self {
            service: service.into(),
            sessions: AtomicU64::new(0),
            active: AtomicU64::new(0),
            ledger: Mutex::default(),
            strays: DatagramStats::default(),
            mirrors: OnceLock::new(),
            dns: OnceLock::new(),
            scanning: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    /// Returns the name of the service, for a reader that keeps it.
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.service)
    }

    /// Creates the series for this reason, so that it is 0 before the first refusal.
    pub(crate) fn may_refuse(&self, reason: Refusal) {
        add_to(&mut self.ledger().outcomes.refused, reason, 0);
    }

    /// Returns the counts of copies. The first call creates their series.
    pub(crate) fn mirrors(&self) -> &Arc<MirrorCounts> {
        self.mirrors.get_or_init(Arc::default)
    }

    pub(super) fn known_mirrors(&self) -> Option<&MirrorCounts> {
        self.mirrors.get().map(|mirrors| &**mirrors)
    }

    /// Creates the series for queries of DNS clients.
    pub(crate) fn may_answer_dns(&self) {
        self.dns.get_or_init(Default::default);
    }

    /// Counts a query of a DNS client.
    pub(crate) fn dns(&self, result: DnsResult) {
        self.dns.get_or_init(Default::default)[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of queries by result, if the service answers them.
    pub(super) fn dns_queries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.dns.get().into_iter().flatten();
        let names = DnsResult::ALL.iter().map(|(_, name)| *name);
        names.zip(counts.map(|count| count.load(Ordering::Relaxed)))
    }

    /// Records that a session starts.
    pub(crate) fn session_began(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn session_ended(&self, end: SessionEnd) {
        self.active.fetch_sub(1, Ordering::Relaxed);
        let outcomes = &mut self.ledger().outcomes;
        add_to(&mut outcomes.ended, end, 1);
        if let SessionEnd::Denied(reason) = end {
            add_to(&mut outcomes.refused, reason, 1);
        }
    }

    /// Records that a session arrives from another process.
    pub(crate) fn session_taken_over(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a session continues in another process, which counts its end.
    pub(crate) fn session_handed_over(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of open sessions.
    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::Relaxed)
    }

    pub(super) fn outcomes(&self) -> Outcomes {
        self.ledger().outcomes.clone()
    }

    /// Returns how often sessions failed or were refused, by the end.
    pub(crate) fn failures(&self) -> Vec<(SessionEnd, u64)> {
        let ledger = self.ledger();
        let ended = ledger.outcomes.ended.iter();
        ended.filter(|(end, _)| end.failure().is_some()).copied().collect()
    }

    /// Returns the number of sessions that have begun in this process.
    pub(crate) fn begun(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Returns how many sessions have ended in this way.
    pub(super) fn ended(&self, end: SessionEnd) -> u64 {
        let ledger = self.ledger();
        let mut ended = ledger.outcomes.ended.iter();
        ended.find(|(one, _)| *one == end).map_or(0, |(_, count)| *count)
    }

    /// Returns the fallbacks of relays that have ended.
    pub(super) fn fallbacks(&self) -> [u64; Reason::ALL.len()] {
        self.ledger().fallbacks
    }

    /// Records that a relay starts. Returns its key for [`Self::leave`].
    pub(crate) fn enter(&self, stats: RelayStats, cancel: CancelHandle) -> usize {
        self.insert(stats, cancel, None)
    }

    /// Records that a relay resumes. Its counts so far are counted where it was suspended.
    pub(crate) fn resume(&self, stats: RelayStats, cancel: CancelHandle) -> usize {
        let before = Box::new(stats.snapshot());
        self.insert(stats, cancel, Some(before))
    }

    fn insert(&self, stats: RelayStats, cancel: CancelHandle, before: Option<Box<RelaySummary>>) -> usize {
        let counted = before
            .as_ref()
            .map_or([None; 2], |before| [before.a_to_b.fallback, before.b_to_a.fallback]);
        self.ledger().running.insert(Running {
            stats,
            before,
            cancel,
            counted,
        })
    }

    /// Records that the relay with this key has ended and passes no more bytes. Returns its
    /// summary, with the counts that it arrived with.
    pub(crate) fn leave(&self, key: usize) -> RelaySummary {
        let mut ledger = self.ledger();
        let mut relay = ledger.running.remove(key);
        let summary = relay.stats.snapshot();
        relay.count_fallbacks(&summary, &mut ledger.fallbacks);
        let passed = relay.passed(&summary);
        ledger.ended.add(&passed);
        if let Some(scan) = ledger.scan.as_mut().filter(|scan| key >= scan.next) {
            scan.bytes.add(&passed);
        }
        summary
    }

    /// Returns the totals. A byte that passes meanwhile may be missing. No later call returns less.
    ///
    /// The lock of the ledger is held for one slice at a time, because every session that begins or
    /// ends waits for it. A sum of 50,000 relays takes several milliseconds.
    pub(crate) async fn totals(&self) -> Totals {
        let _scanning = self.scanning.lock().await;
        let mut next = 0;
        {
            let mut ledger = self.ledger();
            ledger.scan = Some(Scan {
                next,
                bytes: ledger.ended,
                datagrams: ledger.datagrams,
            });
        }
        loop {
            if let Some(totals) = self.read_slice(next) {
                return totals;
            }
            next += SLICE;
            tokio::task::yield_now().await;
        }
    }

    /// Reads what runs and has a key from `next` on. Returns the totals after the last slice.
    fn read_slice(&self, next: usize) -> Option<Totals> {
        let ledger = &mut *self.ledger();
        let scan = ledger.scan.as_mut()?;
        scan.next = next + SLICE;
        for key in next..scan.next {
            if let Some(association) = ledger.associations.get(key) {
                scan.datagrams.add(&association.snapshot());
            }
            let Some(relay) = ledger.running.get_mut(key) else {
                continue;
            };
            let summary = relay.stats.snapshot();
            relay.count_fallbacks(&summary, &mut ledger.fallbacks);
            scan.bytes.add(&relay.passed(&summary));
        }
        let is_last = scan.next >= ledger.running.capacity().max(ledger.associations.capacity());
        let Scan {
            bytes, mut datagrams, ..
        } = ledger.scan.take_if(|_| is_last)?;
        datagrams.add(&self.strays.snapshot());
        let of = |whose| {
            let ended = ledger.outcomes.ended.iter();
            let failed = ended.filter(|(end, _)| end.failure() == Some(whose));
            failed.map(|(_, count)| count).sum()
        };
        Some(Totals {
            failed: of(FailureOf::Service),
            refused: of(FailureOf::Client),
            sessions: self.sessions.load(Ordering::Relaxed),
            bytes,
            datagrams,
            fallbacks: ledger.fallbacks,
        })
    }

    /// Counts bytes that a session's target received before the relay started.
    pub(crate) fn sent_ahead(&self, bytes: u64) {
        self.ledger().ended.up.copy += bytes;
    }

    /// Counts bytes that a session's client received before the relay started.
    pub(crate) fn received_ahead(&self, bytes: u64) {
        self.ledger().ended.down.copy += bytes;
    }

    /// Counts a dropped datagram that belongs to no session.
    pub(crate) fn datagram_dropped(&self, reason: Dropped) {
        self.strays.dropped(reason);
    }

    /// Records that an association starts. Returns its key for [`Self::dissociate`].
    pub(crate) fn associate(&self, stats: DatagramStats) -> usize {
        self.ledger().associations.insert(stats)
    }

    /// Records that the association with this key has ended. Returns its summary.
    pub(crate) fn dissociate(&self, key: usize) -> DatagramSummary {
        let mut ledger = self.ledger();
        let summary = ledger.associations.remove(key).snapshot();
        ledger.datagrams.add(&summary);
        if let Some(scan) = ledger.scan.as_mut().filter(|scan| key >= scan.next) {
            scan.datagrams.add(&summary);
        }
        summary
    }

    /// Cancels all running relays and associations and returns their number. Each relay stops
    /// reading. It ends when it has delivered the bytes that it holds, or after `deadline`.
    /// Associations hold no data and end immediately.
    pub(super) fn cancel(&self, deadline: Duration) -> usize {
        let ledger = self.ledger();
        let Ledger {
            running, associations, ..
        } = &*ledger;
        running.iter().for_each(|(_, relay)| relay.cancel.cancel(deadline));
        associations.iter().for_each(|(_, association)| association.stop());
        running.len() + associations.len()
    }

    /// Locks the ledger.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }
}

fn add_to<T: PartialEq>(counts: &mut Vec<(T, u64)>, what: T, count: u64) {
    match counts.iter_mut().find(|(one, _)| *one == what) {
        Some((_, sum)) => *sum += count,
        None => counts.push((what, count)),
    }
}

impl Running {
    /// Returns the part of the counts that belongs to this process.
    fn passed(&self, summary: &RelaySummary) -> RelaySummary {
        let mut passed = *summary;
        if let Some(before) = &self.before {
            let ways = [(&mut passed.a_to_b, before.a_to_b), (&mut passed.b_to_a, before.b_to_a)];
            for (way, before) in ways {
                way.spliced -= before.spliced;
                way.copied -= before.copied;
                way.lost -= before.lost.min(way.lost);
            }
        }
        passed
    }

    fn count_fallbacks(&mut self, summary: &RelaySummary, fallbacks: &mut [u64; Reason::ALL.len()]) {
        for (counted, direction) in self.counted.iter_mut().zip([summary.a_to_b, summary.b_to_a]) {
            if *counted == direction.fallback {
                continue;
            }
            *counted = direction.fallback;
            if let Some(index) = direction
                .fallback
                .and_then(|reason| Reason::ALL.iter().position(|one| *one == reason))
            {
                fallbacks[index] += 1;
            }
        }
    }
}

impl Bytes {
    fn add(&mut self, relay: &RelaySummary) {
        self.up.add(&relay.a_to_b);
        self.down.add(&relay.b_to_a);
    }
}

impl Paths {
    fn add(&mut self, direction: &DirectionSummary) {
        self.splice += direction.spliced;
        self.copy += direction.copied;
        self.lost += direction.lost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spliceway::{Engine, Relay, RelayOptions};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn sum(bytes: Bytes) -> u64 {
        bytes.up.splice + bytes.up.copy + bytes.down.splice + bytes.down.copy
    }

    #[tokio::test]
    async fn a_relay_is_counted_once_both_while_it_runs_and_after_it_has_ended() {
        let traffic = Traffic::new("forward");
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut target) = tokio::io::duplex(64);
        let mut relay = Relay::with_options(near, far, RelayOptions::new().engine(Engine::Copy));
        let key = traffic.enter(relay.stats(), relay.cancel_handle());
        let relay = tokio::spawn(relay);
        client.write_all(b"12345").await.unwrap();
        target.read_exact(&mut [0; 5]).await.unwrap();
        // The relay counts bytes after it has written them, so this loop yields until the relay has
        // run.
        while sum(traffic.totals().await.bytes) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(sum(traffic.totals().await.bytes), 5);
        drop((client, target));
        relay.await.unwrap().unwrap();
        let totals = traffic.totals().await;
        assert_eq!(sum(totals.bytes), 5);
        let fallbacks = totals.fallbacks.iter().sum::<u64>();
        assert_eq!(fallbacks, 2, "both directions, seen while they run");
        assert_eq!(traffic.leave(key).a_to_b.bytes, 5);
        let totals = traffic.totals().await;
        assert_eq!(sum(totals.bytes), 5);
        let fallbacks = totals.fallbacks.iter().sum::<u64>();
        assert_eq!(fallbacks, 2, "and not again at the end");
    }

    #[tokio::test]
    async fn totals_in_slices_count_each_association_once() {
        let traffic = Traffic::new("udp");
        let begin = || {
            let stats = DatagramStats::default();
            stats.up(3, Ok::<_, Dropped>(()));
            traffic.associate(stats)
        };
        let keys: Vec<_> = (0..3 * SLICE).map(|_| begin()).collect();
        let mut totals = Box::pin(traffic.totals());
        // The first poll reads the first slice, and then yields.
        let first = std::future::poll_fn(|cx| std::task::Poll::Ready(totals.as_mut().poll(cx)));
        assert!(first.await.is_pending());
        for key in [keys[0], keys[SLICE]] {
            assert_eq!(traffic.dissociate(key).up.bytes, 3);
        }
        let expected = 9 * SLICE as u64;
        assert_eq!(totals.await.datagrams.up.bytes, expected);
        assert_eq!(traffic.totals().await.datagrams.up.bytes, expected);
    }

    #[tokio::test]
    async fn totals_in_slices_include_relays_that_end_meanwhile() {
        let traffic = Traffic::new("forward");
        let mut keys = Vec::new();
        for _ in 0..2 * SLICE {
            let (near, mut far) = (&b"12"[..], tokio::io::empty());
            let near = tokio::io::join(near, tokio::io::sink());
            let options = RelayOptions::new().engine(Engine::Copy);
            let mut relay = Relay::with_options(near, &mut far, options);
            keys.push(traffic.enter(relay.stats(), relay.cancel_handle()));
            relay.await.unwrap();
        }
        let expected = 4 * SLICE as u64;
        assert_eq!(sum(traffic.totals().await.bytes), expected);
        let mut totals = Box::pin(traffic.totals());
        // The first poll reads the first slice, and then yields.
        assert!(
            std::future::poll_fn(|cx| std::task::Poll::Ready(totals.as_mut().poll(cx)))
                .await
                .is_pending()
        );
        // One relay of the first slice ends, and one of the second.
        traffic.leave(keys[0]);
        traffic.leave(keys[SLICE]);
        assert_eq!(sum(totals.await.bytes), expected);
        assert_eq!(sum(traffic.totals().await.bytes), expected);
    }
}
