//! Whether a service needs the operator. The commands and the status page show the same answer.

use std::time::Duration;

use crate::api::{Backend, BackendCounts, Health, Recent};
use crate::text::{percent, time};

/// From this share of failed sessions on, a service is degraded, in per cent. Some targets of a
/// proxy always fail.
const DEGRADED_PERCENT: u64 = 5;
/// From this share on, a service is failing. A service that refuses this share is degraded.
const FAILING_PERCENT: u64 = 50;

impl Health {
    /// Returns the health of a service.
    pub fn of(recent: &Recent, backends: Option<BackendCounts>) -> Self {
        let has_none = backends.is_some_and(|counts| counts.up == 0);
        let has_lost = backends.is_some_and(|counts| counts.up + counts.draining < counts.all);
        if has_none || is_share(recent.failed, recent, FAILING_PERCENT) {
            Self::Failing
        } else if has_lost
            || is_share(recent.failed, recent, DEGRADED_PERCENT)
            || is_share(recent.refused, recent, FAILING_PERCENT)
        {
            Self::Degraded
        } else {
            Self::Ok
        }
    }
}

impl Recent {
    /// Returns the sessions of which some have failed. One that failed may have begun before them.
    pub fn whole(&self) -> u64 {
        self.sessions.max(self.failed.saturating_add(self.refused))
    }

    /// Returns the share of the sessions that failed.
    pub(crate) fn failing(&self) -> String {
        match self.failed {
            0 if self.sessions > 0 => "0 %".to_owned(),
            failed => percent(failed as f64, self.whole() as f64),
        }
    }

    /// Returns the reasons and how often each occurred.
    pub(crate) fn why(&self) -> String {
        let reasons: Vec<_> = self
            .reasons
            .iter()
            .map(|one| format!("{} {}", one.count, one.reason))
            .collect();
        reasons.join(", ")
    }
}

impl Backend {
    /// Returns for how long the backend gets no clients, and why, without its name.
    pub(crate) fn trouble(&self) -> Option<(String, &str)> {
        let trouble = self.trouble.as_ref()?;
        let prefix = format!("cannot connect to {}: ", self.name);
        let why = trouble.why.strip_prefix(&prefix).unwrap_or(&trouble.why);
        Some((time(Duration::from_secs(trouble.for_seconds)), why))
    }
}

/// Returns whether `part` is at least this share of the sessions. No session is no share.
fn is_share(part: u64, recent: &Recent, least: u64) -> bool {
    part > 0 && part.saturating_mul(100) >= recent.whole().saturating_mul(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_backends_and_failed_sessions_decide() {
        let recent = |sessions, failed, refused| Recent {
            sessions,
            failed,
            refused,
            ..Recent::default()
        };
        let counts = |up, draining, all| Some(BackendCounts { up, draining, all });
        for (recent, backends, expected) in [
            (recent(0, 0, 0), None, Health::Ok),
            (recent(0, 0, 0), counts(2, 0, 2), Health::Ok),
            (recent(9, 0, 0), counts(1, 1, 2), Health::Ok),
            (recent(9, 0, 0), counts(1, 0, 2), Health::Degraded),
            (recent(9, 0, 0), counts(0, 0, 2), Health::Failing),
            (recent(0, 0, 0), counts(0, 2, 2), Health::Failing),
            (recent(100, 4, 49), None, Health::Ok),
            (recent(100, 5, 0), None, Health::Degraded),
            (recent(100, 0, 50), None, Health::Degraded),
            (recent(100, 50, 0), None, Health::Failing),
            // They began before the minute.
            (recent(0, 1, 0), None, Health::Failing),
        ] {
            assert_eq!(Health::of(&recent, backends), expected, "{recent:?} {backends:?}");
        }
        let unknown: Health = serde_json::from_str("\"new\"").unwrap();
        assert_eq!(unknown, Health::Ok);
    }
}
