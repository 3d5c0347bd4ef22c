//! Decides when a backend is ejected because of its failures, and when it gets clients again. This
//! module does no I/O and gets the time as an argument.
//!
//! ```text
//!   Up ── too many failures ──▶ Ejected ── its time is over, and a client comes ──▶ Trial
//!   ▲                             ▲                                                   │
//!   │                             └──────────────────── failure ──────────────────────┤
//!   └──────────────────────── EARLY after the connection ─────────────────────────────┘
//! ```
//!
//! Failures are counted against connections: a failure adds 1, and a connection that does not fail
//! later subtracts 1. So a backend is ejected only if it fails more often than it serves, and a
//! client that provokes failures must make more sessions than all others together.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A session that the backend ends within this time without an answer counts as a failure. A
/// session that lasts longer shows that the backend serves.
pub(super) const EARLY: Duration = Duration::from_secs(1);
/// The longest ejection. A backend that has been up for so long begins again with the shortest.
const LONGEST: Duration = Duration::from_secs(120);

/// When a backend is ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EjectSettings {
    /// The number of failures. `None` means that no backend is ejected.
    pub(crate) after: Option<NonZeroU32>,
    /// The time of the first ejection. Each further one doubles it.
    pub(crate) time: Duration,
    /// The most backends that are ejected at the same time, in per cent.
    pub(crate) max_percent: u32,
}

/// The failures of one backend.
#[derive(Debug, Default)]
pub(super) struct Ejection {
    state: State,
    /// The failures, less the connections since. At least 0.
    failures: u32,
    /// How often the backend was ejected since it was last up for long.
    ejections: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Up,
    /// The backend has been up again since this time.
    UpAgain(Instant),
    /// It gets no clients until this time.
    Ejected(Instant),
    /// One session tries whether it works again. It has connected at this time.
    Trial(Option<Instant>),
}

/// The failures of one backend, for another process.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HandedOverEjection {
    failures: u32,
    ejections: u32,
    /// The time for which the backend still gets no clients, if it is ejected.
    ejected: Option<Duration>,
    /// The time since when it is up again, if it was not up all the time.
    up_again: Option<Duration>,
}

/// Whether a backend may get the next client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Availability {
    Up,
    /// This client alone may try.
    Trial,
    Ejected,
}

/// What became of a connection, so that a later failure of its session counts in full.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credit(bool);

impl Ejection {
    pub(super) fn availability(&self, now: Instant) -> Availability {
        match self.state {
            State::Up | State::UpAgain(_) => Availability::Up,
            State::Ejected(until) if now >= until => Availability::Trial,
            State::Trial(Some(connected)) if now >= connected + EARLY => Availability::Up,
            State::Ejected(_) | State::Trial(_) => Availability::Ejected,
        }
    }

    /// Records that a client gets this backend, which must be available. Returns whether it tries.
    pub(super) fn begins(&mut self, now: Instant) -> bool {
        self.settle(now);
        let is_trial = matches!(self.state, State::Ejected(_));
        if is_trial {
            self.state = State::Trial(None);
        }
        is_trial
    }

    /// Records that a session has connected.
    pub(super) fn connected(&mut self, is_trial: bool, now: Instant) -> Credit {
        if is_trial && self.state == State::Trial(None) {
            self.state = State::Trial(Some(now));
        }
        let is_owed = self.failures > 0;
        self.failures = self.failures.saturating_sub(1);
        Credit(is_owed)
    }

    /// Records a failure: of an attempt, or of a session with the credit of its connection. Returns
    /// the time for which the backend is ejected, if this is the failure that ejects it.
    pub(super) fn failed(
        &mut self,
        is_trial: bool,
        credit: Credit,
        settings: &EjectSettings,
        may_eject: bool,
        now: Instant,
    ) -> Option<Duration> {
        self.settle(now);
        match self.state {
            State::Trial(_) if is_trial => {}
            // Sessions from before the ejection prove nothing new.
            State::Trial(_) | State::Ejected(_) => return None,
            State::Up | State::UpAgain(_) => {
                self.failures = self.failures.saturating_add(1 + u32::from(credit.0));
                let is_enough = settings.after.is_some_and(|after| self.failures >= after.get());
                if !is_enough || !may_eject {
                    return None;
                }
            }
        }
        if matches!(self.state, State::UpAgain(since) if now >= since + LONGEST) {
            self.ejections = 0;
        }
        let time = settings
            .time
            .saturating_mul(1 << self.ejections.min(16))
            .min(LONGEST.max(settings.time));
        self.ejections = self.ejections.saturating_add(1);
        self.failures = 0;
        self.state = State::Ejected(now + time);
        Some(time)
    }

    /// Records that a trial ended before its connection, for a reason of its client.
    pub(super) fn abandoned(&mut self, now: Instant) {
        if self.state == State::Trial(None) {
            self.state = State::Ejected(now);
        }
    }

    /// Returns since when the backend is up again, if it was not up all the time.
    pub(super) fn up_since(&self) -> Option<Instant> {
        match self.state {
            State::UpAgain(since) => Some(since),
            State::Trial(connected) => connected,
            State::Up | State::Ejected(_) => None,
        }
    }

    /// Returns the state for another process. The session that tries may be handed over, too, but
    /// its end proves nothing there. So another one tries, when the time of this one is over.
    pub(super) fn to_hand_over(&self, now: Instant) -> HandedOverEjection {
        let (ejected, up_again) = match self.state {
            State::Up => (None, None),
            State::UpAgain(since) => (None, Some(now.saturating_duration_since(since))),
            State::Ejected(until) => (Some(until.saturating_duration_since(now)), None),
            State::Trial(None) => (Some(Duration::ZERO), None),
            State::Trial(Some(connected)) => (Some((connected + EARLY).saturating_duration_since(now)), None),
        };
        HandedOverEjection {
            failures: self.failures,
            ejections: self.ejections,
            ejected,
            up_again,
        }
    }

    /// Returns the state that another process had, at most a moment ago.
    pub(super) fn take_over(earlier: HandedOverEjection, now: Instant) -> Self {
        let state = match (earlier.ejected, earlier.up_again) {
            (Some(left), _) => State::Ejected(now.checked_add(left).unwrap_or(now)),
            (None, Some(up)) => State::UpAgain(now.checked_sub(up).unwrap_or(now)),
            (None, None) => State::Up,
        };
        Self {
            state,
            failures: earlier.failures,
            ejections: earlier.ejections,
        }
    }

    /// Records that checks have found the backend up again. They do not end an ejection, because a
    /// backend may pass checks and fail its clients.
    pub(super) fn is_up_again(&mut self, now: Instant) {
        if matches!(self.state, State::Up | State::UpAgain(_)) {
            self.state = State::UpAgain(now);
        }
    }

    /// Ends a trial that has succeeded. Returns whether there was one.
    pub(super) fn settle(&mut self, now: Instant) -> bool {
        let State::Trial(Some(connected)) = self.state else {
            return false;
        };
        let is_over = now >= connected + EARLY;
        if is_over {
            self.state = State::UpAgain(now);
        }
        is_over
    }
}

impl EjectSettings {
    /// Returns whether one more of so many backends may be ejected.
    pub(super) fn allows(&self, ejected: usize, all: usize) -> bool {
        (ejected + 1) * 100 <= all * self.max_percent as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: EjectSettings = EjectSettings {
        after: NonZeroU32::new(3),
        time: Duration::from_secs(5),
        max_percent: 75,
    };
    const SECOND: Duration = Duration::from_secs(1);

    fn refused(ejection: &mut Ejection, now: Instant) -> Option<Duration> {
        let is_trial = ejection.begins(now);
        ejection.failed(is_trial, Credit::default(), &SETTINGS, true, now)
    }

    /// Connects, and fails within [`EARLY`].
    fn reset(ejection: &mut Ejection, now: Instant) -> Option<Duration> {
        let is_trial = ejection.begins(now);
        let credit = ejection.connected(is_trial, now);
        ejection.failed(is_trial, credit, &SETTINGS, true, now)
    }

    fn served(ejection: &mut Ejection, now: Instant) {
        let is_trial = ejection.begins(now);
        ejection.connected(is_trial, now);
    }

    #[test]
    fn three_failures_eject_and_each_ejection_is_longer() {
        let (mut ejection, mut now) = (Ejection::default(), Instant::now());
        for fails in [refused, reset] {
            ejection = Ejection::default();
            assert_eq!(fails(&mut ejection, now), None);
            assert_eq!(fails(&mut ejection, now), None);
            assert_eq!(fails(&mut ejection, now), Some(5 * SECOND));
        }
        for seconds in [5, 10, 20, 40, 80, 120, 120] {
            let last = now + seconds * SECOND - Duration::from_nanos(1);
            assert_eq!(ejection.availability(last), Availability::Ejected);
            now += seconds * SECOND;
            assert_eq!(ejection.availability(now), Availability::Trial);
            assert!(reset(&mut ejection, now).is_some_and(|time| time <= LONGEST));
        }
    }

    #[test]
    fn a_backend_that_serves_more_often_than_it_fails_stays() {
        let (mut ejection, now) = (Ejection::default(), Instant::now());
        for _ in 0..100 {
            for fails in [refused, reset] {
                assert_eq!(fails(&mut ejection, now), None);
                served(&mut ejection, now);
            }
        }
        assert!((0..3).any(|_| reset(&mut ejection, now).is_some()));
    }

    #[test]
    fn one_client_tries_and_the_others_wait_for_its_result() {
        let (mut ejection, mut now) = (Ejection::default(), Instant::now());
        assert!((0..3).any(|_| refused(&mut ejection, now).is_some()));
        now += 5 * SECOND;
        assert!(ejection.begins(now));
        assert_eq!(
            ejection.availability(now),
            Availability::Ejected,
            "it has not connected"
        );
        ejection.connected(true, now);
        assert_eq!(ejection.availability(now), Availability::Ejected, "it may still fail");
        assert_eq!(ejection.availability(now + EARLY), Availability::Up);
        assert!(!ejection.begins(now + EARLY));
        assert_eq!(refused(&mut ejection, now + EARLY), None, "failures count anew");
    }

    #[test]
    fn a_trial_whose_client_leaves_is_repeated() {
        let (mut ejection, mut now) = (Ejection::default(), Instant::now());
        assert!((0..3).any(|_| refused(&mut ejection, now).is_some()));
        now += 5 * SECOND;
        assert!(ejection.begins(now));
        ejection.abandoned(now);
        assert_eq!(ejection.availability(now), Availability::Trial);
    }

    #[test]
    fn sessions_from_before_an_ejection_do_not_prolong_it() {
        let (mut ejection, now) = (Ejection::default(), Instant::now());
        let credit = ejection.connected(false, now);
        assert!((0..3).any(|_| refused(&mut ejection, now).is_some()));
        assert_eq!(ejection.failed(false, credit, &SETTINGS, true, now), None);
        let until = now + 5 * SECOND;
        assert!(ejection.begins(until));
        assert_eq!(
            ejection.failed(false, credit, &SETTINGS, true, until),
            None,
            "not the trial"
        );
    }

    #[test]
    fn after_a_long_time_up_the_first_ejection_is_short_again() {
        let (mut ejection, mut now) = (Ejection::default(), Instant::now());
        assert!((0..3).any(|_| refused(&mut ejection, now).is_some()));
        for (up, expected) in [(SECOND, 10 * SECOND), (LONGEST, 5 * SECOND)] {
            now += LONGEST;
            served(&mut ejection, now);
            now += EARLY;
            served(&mut ejection, now);
            now += up;
            let ejected = (0..9).find_map(|_| refused(&mut ejection, now));
            assert_eq!(ejected, Some(expected));
        }
    }

    #[test]
    fn an_ejection_continues_in_another_process() {
        let (mut ejection, mut now) = (Ejection::default(), Instant::now());
        let moved = |ejection: &Ejection, now| {
            let json = serde_json::to_string(&ejection.to_hand_over(now)).unwrap();
            Ejection::take_over(serde_json::from_str(&json).unwrap(), now)
        };
        assert_eq!(refused(&mut ejection, now), None);
        ejection = moved(&ejection, now);
        assert!(
            (0..2).any(|_| refused(&mut ejection, now).is_some()),
            "failures count on"
        );
        now += 4 * SECOND;
        ejection = moved(&ejection, now);
        assert_eq!(ejection.availability(now), Availability::Ejected);
        now += SECOND;
        assert!(ejection.begins(now));
        assert_eq!(moved(&ejection, now).availability(now), Availability::Trial);
        ejection.connected(true, now);
        let mut tried = moved(&ejection, now);
        assert_eq!(tried.availability(now), Availability::Ejected);
        assert_eq!(tried.availability(now + EARLY), Availability::Trial);
        assert!(
            refused(&mut tried, now + EARLY) == Some(10 * SECOND),
            "the time doubles"
        );
        ejection.settle(now + EARLY);
        assert_eq!(moved(&ejection, now + EARLY).up_since(), Some(now + EARLY));
        let endless = br#"{"ejected":{"secs":18446744073709551615,"nanos":0}}"#;
        let endless = Ejection::take_over(serde_json::from_slice(endless).unwrap(), now);
        assert_eq!(endless.availability(now), Availability::Trial);
    }

    #[test]
    fn a_share_is_never_ejected() {
        for (backends, most) in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (8, 6), (100, 75)] {
            let ejected = (0..=backends).find(|ejected| !SETTINGS.allows(*ejected, backends));
            assert_eq!(ejected, Some(most));
        }
        let (mut ejection, now) = (Ejection::default(), Instant::now());
        for _ in 0..10 {
            assert_eq!(ejection.failed(false, Credit::default(), &SETTINGS, false, now), None);
        }
        assert_eq!(
            refused(&mut ejection, now),
            Some(5 * SECOND),
            "as soon as another one is back"
        );
    }
}
