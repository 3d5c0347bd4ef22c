//! The sessions of the last minute, by service: how many began, and how many failed and why.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use spliceway_operator::api::{ReasonCount, Recent};
use tokio::time::Instant;

use crate::kit::outcome::{FailureOf, SessionEnd};
use crate::metrics::Traffic;

/// The time between two records.
const EVERY: Duration = Duration::from_secs(10);
/// The records that are kept: those of a minute. Each has about 50 bytes for a service, and 24 more
/// for each of its reasons.
const RECORDS: usize = 6;
/// The reasons that a service shows. There are about a hundred in all.
const REASONS_MAX: usize = 5;

/// What each service has counted at some moments of the last minute.
pub(super) struct LastMinute(VecDeque<(Instant, HashMap<Arc<str>, Counts>)>);

/// What a service has counted so far.
#[derive(Debug, Clone, Default)]
struct Counts {
    begun: u64,
    failures: Vec<(SessionEnd, u64)>,
}

impl Counts {
    fn of(traffic: &Traffic) -> Self {
        Self {
            begun: traffic.begun(),
            failures: traffic.failures(),
        }
    }

    /// Returns what happened since `before`, by reason.
    fn since(&self, before: &Self, time: Duration) -> Recent {
        let mut recent = Recent {
            over_seconds: time.as_secs_f64(),
            sessions: self.begun.saturating_sub(before.begun),
            ..Recent::default()
        };
        for (end, count) in &self.failures {
            let before = before.failures.iter().find(|(one, _)| one == end);
            let count = count.saturating_sub(before.map_or(0, |(_, count)| *count));
            match end.failure() {
                _ if count == 0 => continue,
                Some(FailureOf::Service) => recent.failed += count,
                Some(FailureOf::Client) => recent.refused += count,
                None => continue,
            }
            recent.reasons.push(ReasonCount {
                reason: end.to_string(),
                count,
            });
        }
        shorten(&mut recent.reasons);
        recent
    }
}

impl LastMinute {
    /// Begins when the process does, so that nothing has been counted before.
    pub(super) fn new(start: Instant) -> Self {
        Self([(start, HashMap::new())].into())
    }

    /// Records the counts of these services, if it is time to do so.
    pub(super) fn record(&mut self, all: &[Arc<Traffic>], now: Instant) {
        if self.0.back().is_some_and(|(at, _)| now - *at < EVERY) {
            return;
        }
        if self.0.len() == RECORDS {
            self.0.pop_front();
        }
        let counts = all.iter().map(|traffic| (traffic.name(), Counts::of(traffic)));
        self.0.push_back((now, counts.collect()));
    }

    /// Returns what the service has counted in about the last minute. A service that has come since
    /// has counted everything in this time.
    pub(super) fn of(&self, traffic: &Traffic, now: Instant) -> Recent {
        let (at, before) = self.0.front().expect("the record of the start, or a later one");
        let none = Counts::default();
        let before = before.get(traffic.service()).unwrap_or(&none);
        Counts::of(traffic).since(before, now.saturating_duration_since(*at))
    }
}

/// Returns the sum over services.
pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Recent>) -> Recent {
    let mut sum = Recent::default();
    for recent in all {
        sum.over_seconds = recent.over_seconds;
        sum.sessions += recent.sessions;
        sum.failed += recent.failed;
        sum.refused += recent.refused;
        for one in &recent.reasons {
            match sum.reasons.iter_mut().find(|known| known.reason == one.reason) {
                Some(known) => known.count += one.count,
                None => sum.reasons.push(one.clone()),
            }
        }
    }
    shorten(&mut sum.reasons);
    sum
}

/// Keeps the most frequent reasons.
fn shorten(reasons: &mut Vec<ReasonCount>) {
    reasons.sort_by_key(|one| std::cmp::Reverse(one.count));
    reasons.truncate(REASONS_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::outcome::ConnectFailure;
    use crate::kit::refusal::Refusal;

    #[test]
    fn the_last_minute_forgets_what_was_before_it() {
        let traffic = Arc::new(Traffic::new("web"));
        let end = |end| {
            traffic.session_began();
            traffic.session_ended(end);
        };
        let start = Instant::now();
        let mut minute = LastMinute::new(start);
        let mut at = |seconds| {
            let now = start + Duration::from_secs(seconds);
            minute.record(&[Arc::clone(&traffic)], now);
            minute.of(&traffic, now)
        };
        // Before the first record.
        (0..3).for_each(|_| end(SessionEnd::Denied(Refusal::NoBackend)));
        end(SessionEnd::ClientEof);
        end(SessionEnd::Denied(Refusal::Client));
        let expected = |over_seconds: f64| Recent {
            over_seconds,
            sessions: 5,
            failed: 3,
            refused: 1,
            reasons: [(3, "denied:no_backend"), (1, "denied:client")]
                .map(|(count, reason)| ReasonCount {
                    reason: reason.to_owned(),
                    count,
                })
                .into(),
        };
        for seconds in [0, 5, 10, 20, 30, 40, 50, 59] {
            assert_eq!(at(seconds), expected(seconds as f64));
        }
        assert_eq!(at(60).sessions, 0);
        end(SessionEnd::ConnectFailed(ConnectFailure::Unresolved));
        assert_eq!((at(61).failed, at(61).over_seconds), (1, 51.0));
        assert_eq!(minute.0.len(), RECORDS);
        let twice = sum([&expected(5.0), &expected(5.0)].into_iter());
        assert_eq!((twice.failed, twice.reasons[0].count, twice.reasons.len()), (6, 6, 2));
    }
}
