//! Checks backends at intervals, so that a backend that is down gets no clients.
//!
//! ```text
//!   Up ── `fall` failed checks in a row ──▶ Down
//!   ▲                                         │
//!   └──── `rise` good checks in a row ────────┘
//! ```
//!
//! The first check of a backend decides at once.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spliceway_protocol::address::Target;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::lease::Backend;
use super::probe::{Probe, Unhealthy};
use super::{Balancer, Members, Place};
use crate::reach::dial::{DialRequest, Dialer};

/// The most checks of a service that run at the same time. Each needs a descriptor.
const RUNNING_MAX: usize = 32;

/// How backends are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckSettings {
    pub(crate) probe: Probe,
    /// The time between two checks of a backend, and the time limit for a check.
    pub(crate) interval: Duration,
    /// The number of good checks after which a backend is up.
    pub(crate) rise: u32,
    /// The number of failed checks after which a backend is down.
    pub(crate) fall: u32,
    /// What a target receives before anything else.
    pub(crate) introduction: Vec<u8>,
}

/// What the checks of a backend have shown.
#[derive(Debug, Default)]
pub(super) struct Checked {
    state: State,
    /// The checks in a row that contradict the state.
    contrary: u32,
}

/// The same, for another process.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MovedChecks {
    /// Whether the backend is up. `None` before its first check.
    is_up: Option<bool>,
    contrary: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There was no check yet.
    #[default]
    Unknown,
    Up,
    Down,
}

impl Checked {
    pub(super) fn is_down(&self) -> bool {
        self.state == State::Down
    }

    pub(super) fn moved(&self) -> MovedChecks {
        MovedChecks {
            is_up: match self.state {
                State::Unknown => None,
                State::Up => Some(true),
                State::Down => Some(false),
            },
            contrary: self.contrary,
        }
    }

    /// Takes over the results of another process. Those of this process are newer.
    pub(super) fn arrived(&mut self, moved: MovedChecks) {
        if let (State::Unknown, Some(is_up)) = (self.state, moved.is_up) {
            self.state = if is_up { State::Up } else { State::Down };
            self.contrary = moved.contrary;
        }
    }

    /// Records the result of a check. Returns whether the backend is up, if that has changed.
    pub(super) fn record(&mut self, is_good: bool, settings: &CheckSettings) -> Option<bool> {
        let needed = match (self.state, is_good) {
            (State::Up, true) | (State::Down, false) => {
                self.contrary = 0;
                return None;
            }
            (State::Unknown, _) => 1,
            (State::Up, false) => settings.fall,
            (State::Down, true) => settings.rise,
        };
        self.contrary = self.contrary.saturating_add(1);
        if self.contrary < needed {
            return None;
        }
        let was_unknown = self.state == State::Unknown;
        self.state = if is_good { State::Up } else { State::Down };
        self.contrary = 0;
        // Nobody was told that an unknown backend was not up.
        (!(was_unknown && is_good)).then_some(is_good)
    }
}

/// Checks the backends of a balancer, and follows changes of its members. Never returns.
pub(super) async fn watch(balancer: Arc<Balancer>, settings: CheckSettings, dialer: Dialer) {
    let (settings, places) = (Arc::new(settings), Arc::new(Semaphore::new(RUNNING_MAX)));
    let mut running: Vec<(Arc<Backend>, AbortHandle)> = Vec::new();
    let mut tasks = JoinSet::new();
    loop {
        let current = balancer.targets();
        running.retain(|(backend, task)| {
            let stays = current.iter().any(|(one, ..)| Arc::ptr_eq(one, backend));
            if !stays {
                task.abort();
            }
            stays
        });
        for (backend, target, host) in current {
            if running.iter().any(|(one, _)| Arc::ptr_eq(one, &backend)) {
                continue;
            }
            let task = Task {
                balancer: Arc::clone(&balancer),
                settings: Arc::clone(&settings),
                backend: Arc::clone(&backend),
                target,
                host,
                dialer: dialer.clone(),
                places: Arc::clone(&places),
            };
            running.push((backend, tasks.spawn(task.run())));
        }
        tokio::select! {
            () = balancer.members_changed.notified() => {}
            Some(Err(error)) = tasks.join_next() => if error.is_panic() {
                std::panic::resume_unwind(error.into_panic());
            },
        }
    }
}

/// The checks of one backend.
struct Task {
    balancer: Arc<Balancer>,
    settings: Arc<CheckSettings>,
    backend: Arc<Backend>,
    target: Target,
    /// What a check of HTTP asks for.
    host: Target,
    dialer: Dialer,
    places: Arc<Semaphore>,
}

impl Task {
    async fn run(self) {
        // The first check comes soon. After it, the checks of many backends are spread over the
        // whole interval.
        let mut wait = self.settings.interval.mul_f64(rand::random_range(0.0..0.1));
        let mut shortest = 0.1;
        loop {
            sleep(wait).await;
            match self.check().await {
                // With this, all backends would be down, and none of them is at fault.
                Err(Unhealthy::Unreachable(error)) if error.is_of_this_machine() => {
                    let (service, target) = (self.balancer.service, &self.target);
                    tracing::debug!(service, %target, %error, "a check cannot run");
                }
                checked => self.backend.checked(&self.balancer, &self.settings, checked),
            }
            wait = self.settings.interval.mul_f64(rand::random_range(shortest..1.1));
            shortest = 0.9;
        }
    }

    async fn check(&self) -> Result<(), Unhealthy> {
        let _place = self.places.acquire().await;
        let check = async {
            let dialed = self
                .dialer
                .dial_for(&self.target, DialRequest::default())
                .await
                .map_err(Unhealthy::Unreachable)?;
            self.settings
                .probe
                .run(dialed, &self.settings.introduction, &self.host)
                .await
        };
        let checked = timeout(self.settings.interval, check).await;
        checked.unwrap_or(Err(Unhealthy::TooSlow))
    }
}

impl Balancer {
    /// Returns the backends with their targets, and with the hosts that their checks ask for. The
    /// first port of a range stands for all.
    pub(super) fn targets(&self) -> Vec<(Arc<Backend>, Target, Target)> {
        // A server may serve several names, so an address of a name is asked for the name.
        let of_names = |place: &Place| self.names().find(|name| name.name == place.group);
        let of = |place: &Place| {
            let target = place.settings.targets.nth(0);
            let name = of_names(place).filter(|name| name.members == Members::EachAddress);
            let host = name.map_or_else(|| target.clone(), |name| name.targets.nth(0));
            (Arc::clone(&place.backend), target, host)
        };
        self.inner().places.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: CheckSettings = CheckSettings {
        probe: Probe::Connect,
        interval: Duration::from_secs(2),
        rise: 2,
        fall: 3,
        introduction: Vec::new(),
    };

    #[test]
    fn a_backend_falls_and_rises_after_checks_in_a_row() {
        for (checks, expected) in [
            // The first check decides.
            ("+", "u"),
            ("-", "D"),
            // Three bad ones in a row.
            ("+---", "uuuD"),
            ("+--+--+---", "uuuuuuuuuD"),
            // Two good ones in a row.
            ("-+-+-++", "DdddddU"),
        ] {
            let mut checked = Checked::default();
            let state = |check| {
                let changed = checked.record(check == '+', &SETTINGS);
                match (changed, checked.is_down()) {
                    (Some(true), false) => 'U',
                    (None, false) => 'u',
                    (Some(false), true) => 'D',
                    (None, true) => 'd',
                    _ => '?',
                }
            };
            assert_eq!(checks.chars().map(state).collect::<String>(), expected, "{checks}");
        }
    }
}
