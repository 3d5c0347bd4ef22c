//! Decides when a certificate is ordered. This module does no I/O, and time is an argument.
//!
//! ```text
//!   no certificate, or the last try failed ─▶ at once                 ┐
//!   a certificate ──────────────────────────▶ at 2/3 of its lifetime, ├─ but not before the next
//!                                             later by up to 1/30     │  try is allowed
//!   an old certificate to revoke ───────────▶ at once                 ┘
//! ```
//!
//! Orders and revocations wait apart: a revocation that fails delays no order.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::tls::certificate::Validity;

/// The wait after the first failure. Each further failure doubles the wait.
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// The longest wait, before its jitter. Let's Encrypt allows five failures of a name per hour.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);
/// The longest wait that a server may ask for. A wrong answer must not stop renewals for good.
const LONGEST_REQUEST: Duration = Duration::from_secs(7 * 86_400);
/// The limits of the wait after a success: a server that issues expired certificates is not asked
/// in a loop.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), FIRST_WAIT);

/// What is known about a name. It is written before each try, so that a program that restarts in a
/// loop does not try more often.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Known {
    pub(super) order: Tries,
    pub(super) revocation: Tries,
}

/// What to do for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Order a certificate.
    Order,
    /// Revoke the certificate before this one.
    Revoke,
}

/// What is known about the tries of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Tries {
    /// The failures since the last success.
    pub(super) failures: u32,
    /// The earliest time of the next try, in seconds since 1970.
    pub(super) not_before: u64,
    /// Why the last try failed.
    pub(super) why: Option<String>,
}

impl Known {
    /// Returns the next task, and its time. `valid` is the validity of the certificate, if there is
    /// one that need not be replaced. `revokes` says whether there is an old one to revoke.
    pub(super) fn next(&self, valid: Option<Validity>, revokes: bool, now: SystemTime) -> (Task, SystemTime) {
        let order = self.order.next(valid, now);
        let revocation = revokes.then(|| self.revocation.next(None, now));
        match revocation.filter(|at| *at < order) {
            Some(at) => (Task::Revoke, at),
            None => (Task::Order, order),
        }
    }

    /// Returns why the last try failed.
    pub(super) fn why(self) -> Option<String> {
        self.order.why.or(self.revocation.why)
    }

    pub(super) fn tries(&mut self, task: Task) -> &mut Tries {
        match task {
            Task::Order => &mut self.order,
            Task::Revoke => &mut self.revocation,
        }
    }
}

impl Tries {
    /// Begins a try, which counts as a failure until it has succeeded. `random` is below 1.
    pub(super) fn begin(&mut self, now: SystemTime, random: f64) {
        self.failures = self.failures.saturating_add(1);
        let doubled = 1_u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
        let wait = FIRST_WAIT.saturating_mul(doubled).min(LONGEST_WAIT);
        self.not_before = seconds(now + wait + wait.mul_f64(random / 4.0));
    }

    /// Delays the next try if the server asks for it.
    pub(super) fn wait_until(&mut self, asked: SystemTime, now: SystemTime) {
        self.not_before = self.not_before.max(seconds(asked.min(now + LONGEST_REQUEST)));
    }

    pub(super) fn succeed(&mut self, valid: Validity, now: SystemTime) {
        self.failures = 0;
        self.why = None;
        let pause = (lifetime(valid) / 3).clamp(PAUSE.0, PAUSE.1);
        self.not_before = seconds(now + pause);
    }

    /// Returns when to try next. `valid` is the validity of the certificate, if there is one.
    pub(super) fn next(&self, valid: Option<Validity>, now: SystemTime) -> SystemTime {
        // A longer wait than any of this module comes from a clock that was wrong.
        if self.not_before > seconds(now + LONGEST_REQUEST) {
            return SystemTime::UNIX_EPOCH;
        }
        // What was due before a failure is still due.
        let renewal = valid.filter(|_| self.failures == 0).map(renewal);
        renewal.unwrap_or(SystemTime::UNIX_EPOCH).max(self.not_before())
    }

    pub(super) fn not_before(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.not_before)
    }
}

/// Returns when to renew a certificate. Certificates that were issued together are not renewed at
/// the same moment. The jitter depends on the certificate alone, so a restart does not change it.
fn renewal(valid: Validity) -> SystemTime {
    let lifetime = lifetime(valid);
    let share = f64::from(seconds(valid.to).wrapping_mul(0x9e37_79b1) as u16) / f64::from(u16::MAX);
    valid.from + lifetime * 2 / 3 + (lifetime / 30).mul_f64(share)
}

fn lifetime(valid: Validity) -> Duration {
    valid.to.duration_since(valid.from).unwrap_or_default()
}

/// Returns the seconds since 1970, rounded up.
fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() + u64::from(since.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn valid(from: u64, to: u64) -> Validity {
        Validity {
            from: at(from),
            to: at(to),
        }
    }

    #[test]
    fn a_missing_certificate_is_ordered_at_once() {
        assert!(Tries::default().next(None, at(0)) <= at(0));
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_with_jitter() {
        let mut tries = Tries::default();
        tries.begin(at(0), 0.0);
        let mut different = std::collections::HashSet::new();
        for end in 90_000..90_100 {
            tries.succeed(valid(0, end), at(0));
            let next = tries.next(Some(valid(0, end)), at(0));
            assert!(
                next >= at(end * 2 / 3) && next <= at(end * 2 / 3 + end / 30 + 1),
                "{next:?}"
            );
            different.insert(next);
        }
        assert!(different.len() > 50);
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_day() {
        for random in [0.0, 0.999] {
            let (mut tries, mut now) = (Tries::default(), 1000);
            for expected in [
                60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, 30720, 61440, 86400, 86400,
            ] {
                tries.begin(at(now), random);
                let next = seconds(tries.next(None, at(now)));
                assert!(next >= now + expected && next <= now + expected * 5 / 4 + 1);
                now = next;
            }
            tries.failures = u32::MAX;
            tries.begin(at(now), random);
            assert!(tries.next(None, at(now)) >= at(now + 86_400));
        }
    }

    #[test]
    fn a_failed_renewal_waits_although_the_certificate_is_old() {
        let mut tries = Tries::default();
        tries.begin(at(900), 0.0);
        assert_eq!(tries.next(Some(valid(0, 100)), at(900)), at(960));
    }

    #[test]
    fn a_server_may_delay_the_next_try_but_not_for_good() {
        let mut tries = Tries::default();
        tries.begin(at(0), 0.0);
        tries.wait_until(at(30), at(0));
        assert_eq!(tries.next(None, at(0)), at(60));
        tries.wait_until(at(5000), at(0));
        assert_eq!(tries.next(None, at(0)), at(5000));
        tries.wait_until(at(1 << 40), at(0));
        assert_eq!(tries.next(None, at(0)), at(7 * 86_400));
    }

    #[test]
    fn a_server_that_issues_expired_certificates_is_not_asked_in_a_loop() {
        let mut tries = Tries::default();
        tries.begin(at(1000), 0.0);
        for (issued, pause) in [(valid(0, 900), 60), (valid(10, 5), 5), (valid(0, 30), 10)] {
            tries.succeed(issued, at(1000));
            assert_eq!(tries.next(Some(issued), at(1000)), at(1000 + pause));
        }
    }

    #[test]
    fn a_clock_that_was_wrong_does_not_stop_renewals() {
        let mut tries = Tries::default();
        tries.begin(at(1 << 40), 0.0);
        assert!(tries.next(None, at(1000)) <= at(0));
        assert!(tries.next(None, at(1 << 40)) > at(1 << 40));
    }

    #[test]
    fn a_failed_try_is_repeated_although_the_certificate_is_new() {
        let mut tries = Tries::default();
        tries.begin(at(0), 0.0);
        assert_eq!(tries.next(Some(valid(0, 1 << 30)), at(0)), at(60));
    }

    #[test]
    fn a_revocation_that_fails_delays_no_order_and_the_reverse() {
        let (mut known, certificate) = (Known::default(), Some(valid(0, 300)));
        known.order.succeed(valid(0, 300), at(0));
        assert_eq!(known.next(certificate, true, at(0)), (Task::Revoke, at(0)));
        known.tries(Task::Revoke).begin(at(0), 0.0);
        assert_eq!(known.next(certificate, true, at(0)), (Task::Revoke, at(60)));
        for _ in 0..9 {
            known.tries(Task::Revoke).begin(at(60), 0.0);
        }
        let (task, time) = known.next(certificate, true, at(60));
        assert!(task == Task::Order && time <= at(211), "{time:?}");
        assert_eq!(known.next(None, true, at(60)), (Task::Order, at(60)));
        known.tries(Task::Order).begin(at(40_000), 0.0);
        let (task, time) = known.next(certificate, true, at(40_000));
        assert!(task == Task::Revoke && time < at(40_000), "{time:?}");
        assert_eq!(known.next(certificate, false, at(40_000)), (Task::Order, at(40_060)));
    }
}
