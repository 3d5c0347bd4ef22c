//! Whether a service needs the operator. The commands and the status page show the same answer.

use std::time::Duration;

use crate::api::{Backend, BackendCounts, Health, Recent, ServiceStatus};
use crate::text::{percent, time};

/// From this share of failed sessions on, a service is degraded, in per cent. Some targets of a
/// proxy always fail.
const DEGRADED_PERCENT: u64 = 5;
/// From this share on, a service is failing. A service that refuses this share is degraded.
const FAILING_PERCENT: u64 = 50;
/// The characters of a line about services, which leaves room for how many more there are.
const LINE_MAX: usize = 64;

/// Returns a line about the services with the worst health, and that health. `None` if all are ok.
pub(crate) fn summary(services: &[ServiceStatus]) -> Option<(String, Health)> {
    let worst = services.iter().map(|service| service.health).min()?;
    let mut line = match worst {
        Health::Failing => "failing: ",
        Health::Degraded => "degraded: ",
        Health::Ok => return None,
    }
    .to_owned();
    let concerned: Vec<_> = services.iter().filter(|service| service.health == worst).collect();
    for (at, service) in concerned.iter().enumerate() {
        let next = format!("{} ({})", service.name, service.trouble());
        if at > 0 && line.chars().count() + next.chars().count() > LINE_MAX {
            line.push_str(&format!(" and {} more", concerned.len() - at));
            break;
        }
        line.push_str(if at > 0 { ", " } else { "" });
        line.push_str(&next);
    }
    Some((line, worst))
}

impl ServiceStatus {
    /// Returns what is wrong with a service that needs the operator, in a few words.
    fn trouble(&self) -> String {
        let recent = &self.recent;
        match self.backend_counts {
            Some(counts) if counts.up + counts.draining < counts.all || counts.up == 0 => {
                format!("{} of {} backends up", counts.up, counts.all)
            }
            _ if !is_share(recent.failed, recent, DEGRADED_PERCENT) => {
                format!("{} refused", percent(recent.refused as f64, recent.whole() as f64))
            }
            _ => format!("{} failed", recent.failing()),
        }
    }
}

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
    /// Returns for how long the backend gets no clients, and why, without its name and the number
    /// of an error.
    pub(crate) fn trouble(&self) -> Option<(String, &str)> {
        let trouble = self.trouble.as_ref()?;
        let prefix = format!("cannot connect to {}: ", self.name);
        let why = trouble.why.strip_prefix(&prefix).unwrap_or(&trouble.why);
        let why = why.split(" (os error ").next().unwrap_or(why);
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
    fn a_line_names_the_services_with_the_worst_health_and_why() {
        let service = |name: &str, health, failed, counts: Option<(u64, u64)>| ServiceStatus {
            name: name.to_owned(),
            health,
            recent: Recent {
                sessions: 10,
                failed,
                refused: 6,
                ..Recent::default()
            },
            backend_counts: counts.map(|(up, all)| BackendCounts { up, draining: 0, all }),
            ..ServiceStatus::default()
        };
        let ok = service("ok", Health::Ok, 0, None);
        let refusing = service("proxy", Health::Degraded, 0, Some((2, 2)));
        // Only the failed sessions are too many.
        let mut both = service("mixed", Health::Degraded, 6, None);
        both.recent.sessions = 50;
        both.recent.refused = 20;
        let dead = service("web", Health::Failing, 0, Some((0, 3)));
        let failing = service("socks5", Health::Failing, 7, None);
        let long = service(&"x".repeat(60), Health::Failing, 7, None);
        for (services, expected) in [
            (vec![&ok], None),
            (vec![], None),
            (vec![&ok, &refusing], Some("degraded: proxy (60 % refused)")),
            (vec![&both], Some("degraded: mixed (12 % failed)")),
            (vec![&refusing, &dead], Some("failing: web (0 of 3 backends up)")),
            (
                vec![&dead, &failing],
                Some("failing: web (0 of 3 backends up), socks5 (54 % failed)"),
            ),
            (
                vec![&dead, &long, &failing],
                Some("failing: web (0 of 3 backends up) and 2 more"),
            ),
        ] {
            let services: Vec<_> = services.into_iter().cloned().collect();
            assert_eq!(summary(&services).map(|(line, _)| line).as_deref(), expected);
        }
    }

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
