//! Decides when a relay has been silent for too long. Time and counts are arguments; nothing here waits.
//!
//! ```text
//!                     first EOF
//!   both sides open ─────────────▶ one side open
//!   limit: idle                    limit: the shorter of idle and half-close
//! ```
//!
//! Silence is measured by looking at the relay's counters now and then, not by a timer that every read resets: a look costs
//! nothing while bytes flow. Eight looks fit the limit, so the end comes up to 1/8 of the limit late; it never comes early.

use std::time::Duration;

use spliceway::RelaySummary;
use tokio::time::Instant;

use crate::record::End;
use crate::settings::Timeouts;

const LOOKS_PER_LIMIT: u32 = 8;

/// The watch over one relay.
#[derive(Debug)]
pub(crate) struct Watch {
    idle: Option<Duration>,
    half_close: Option<Duration>,
    /// Bytes of both directions at the last look.
    seen_bytes: u64,
    /// When they were last seen to have grown: silence counts from here.
    moved: Instant,
    first_eof: Option<Side>,
}

/// Whose EOF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Upstream,
}

impl Watch {
    pub(crate) fn new(timeouts: &Timeouts, now: Instant) -> Self {
        Self {
            idle: timeouts.idle,
            half_close: timeouts.half_close,
            seen_bytes: 0,
            moved: now,
            first_eof: None,
        }
    }

    /// Takes note of the first EOF, from which the half-close limit counts: whether it is news.
    ///
    /// Two at once pass for the client's, whose direction is looked at first.
    pub(crate) fn note_eof(&mut self, relay: &RelaySummary, now: Instant) -> bool {
        if self.first_eof.is_some() {
            return false;
        }
        self.first_eof = match (relay.a_to_b.eof, relay.b_to_a.eof) {
            (true, _) => Some(Side::Client),
            (false, true) => Some(Side::Upstream),
            (false, false) => return false,
        };
        self.moved = now;
        true
    }

    pub(crate) fn first_eof(&self) -> Option<Side> {
        self.first_eof
    }

    /// How this relay ends if it has been silent for too long.
    pub(crate) fn look(&mut self, relay: &RelaySummary, now: Instant) -> Option<End> {
        let bytes = relay.a_to_b.bytes + relay.b_to_a.bytes;
        if bytes != self.seen_bytes {
            (self.seen_bytes, self.moved) = (bytes, now);
        }
        let (limit, end) = self.limit()?;
        (now.saturating_duration_since(self.moved) >= limit).then_some(end)
    }

    /// When to look again; never, while no limit is in force.
    pub(crate) fn next_look(&self, now: Instant) -> Option<Instant> {
        let (limit, _) = self.limit()?;
        Some((now + limit / LOOKS_PER_LIMIT).min(self.moved + limit).max(now))
    }

    /// The limit in force.
    fn limit(&self) -> Option<(Duration, End)> {
        let idle = self.idle.map(|limit| (limit, End::Idle));
        let half_close = self
            .half_close
            .filter(|_| self.first_eof.is_some())
            .map(|limit| (limit, End::HalfCloseTimeout));
        [half_close, idle].into_iter().flatten().min_by_key(|(limit, _)| *limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn watch(idle: u64, half_close: u64, now: Instant) -> Watch {
        let limit = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
        let (idle, half_close) = (limit(idle), limit(half_close));
        let timeouts = Timeouts {
            handshake: SECOND,
            connect: SECOND,
            idle,
            half_close,
            drain: SECOND,
        };
        Watch::new(&timeouts, now)
    }

    fn moved(up: u64, down: u64) -> RelaySummary {
        let mut relay = RelaySummary::default();
        (relay.a_to_b.bytes, relay.b_to_a.bytes) = (up, down);
        relay
    }

    /// Looks as often as the watch asks until it ends the relay; `bytes` tells what has come down by then.
    fn run(watch: &mut Watch, start: Instant, mut now: Instant, bytes: impl Fn(Duration) -> u64) -> (Duration, End) {
        while let Some(next) = watch.next_look(now) {
            now = next;
            if let Some(end) = watch.look(&moved(0, bytes(now - start)), now) {
                return (now - start, end);
            }
            assert!(now - start < 1000 * SECOND, "it never ends");
        }
        panic!("nothing is watched")
    }

    #[test]
    fn silence_from_the_start_ends_at_the_limit() {
        let start = Instant::now();
        assert_eq!(
            run(&mut watch(80, 10, start), start, start, |_| 0),
            (80 * SECOND, End::Idle)
        );
    }

    #[test]
    fn silence_ends_a_relay_never_early_and_at_most_an_eighth_late() {
        let start = Instant::now();
        for last_byte in 1..300 {
            let (ended, end) = run(&mut watch(80, 0, start), start, start, |t| t.as_secs().min(last_byte));
            let silence = ended - Duration::from_secs(last_byte);
            assert_eq!(end, End::Idle);
            assert!(
                silence >= 80 * SECOND && silence <= 90 * SECOND,
                "{silence:?} after a byte at {last_byte}"
            );
        }
    }

    #[test]
    fn a_live_one_way_download_outlives_both_limits() {
        let start = Instant::now();
        let mut watch = watch(80, 16, start);
        let mut relay = moved(1, 1);
        relay.a_to_b.eof = true;
        assert!(watch.note_eof(&relay, start));
        let (ended, end) = run(&mut watch, start, start, |t| t.as_secs().min(500));
        assert_eq!(end, End::HalfCloseTimeout);
        assert!(ended >= 516 * SECOND && ended <= 518 * SECOND, "{ended:?}");
    }

    #[test]
    fn the_half_close_limit_starts_at_the_first_eof() {
        let start = Instant::now();
        let mut watch = watch(0, 16, start);
        assert_eq!(watch.next_look(start), None);
        let mut relay = moved(0, 0);
        assert!(!watch.note_eof(&relay, start));
        relay.b_to_a.eof = true;
        let eof = start + 100 * SECOND;
        assert!(watch.note_eof(&relay, eof));
        assert!(!watch.note_eof(&relay, eof), "only the first is news");
        assert_eq!(watch.first_eof(), Some(Side::Upstream));
        assert_eq!(
            run(&mut watch, start, eof, |_| 0),
            (116 * SECOND, End::HalfCloseTimeout)
        );
    }

    #[test]
    fn with_both_off_nothing_is_ever_looked_at() {
        let start = Instant::now();
        let mut watch = watch(0, 0, start);
        let mut relay = moved(0, 0);
        relay.a_to_b.eof = true;
        watch.note_eof(&relay, start);
        assert_eq!(watch.next_look(start), None);
        assert_eq!(watch.look(&relay, start + 1_000_000 * SECOND), None);
    }
}
