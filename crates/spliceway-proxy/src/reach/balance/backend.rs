//! A backend, as all sessions and all balancers of its service share it.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::check::{CheckSettings, Checked};
use super::ejection::{Availability, Ejection};
use super::trouble::{Trouble, Troubles};

/// What a weight of 1 is for a policy, so that a backend that starts slowly can have less.
pub(super) const WEIGHT_UNIT: u32 = 16;
/// No weight of a backend.
const NOT_SET: u32 = u32::MAX;

/// What the sessions of a backend share. A reload keeps it.
#[derive(Debug)]
pub(super) struct Backend {
    name: Box<str>,
    /// The number of sessions, including those that are connecting.
    pub(super) active: AtomicU32,
    pub(super) ejection: Mutex<Ejection>,
    pub(super) checked: Mutex<Checked>,
    pub(super) troubles: Mutex<Troubles>,
    /// The weight that the operator has set, or [`NOT_SET`].
    set_weight: AtomicU32,
    pub(super) connections: AtomicU64,
    pub(super) failures: [AtomicU64; Failure::ALL.len()],
    ejections: AtomicU64,
    /// Good and failed checks.
    checks: [AtomicU64; 2],
}

/// How a backend fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It cannot be reached.
    Connect,
    /// Connecting took too long, but succeeded.
    SlowConnect,
    /// It ended a session soon after it began, without an answer.
    EarlyEnd,
}

/// What the operator sees of a backend.
#[derive(Debug, Clone)]
pub(crate) struct BackendStatus {
    pub(crate) name: Box<str>,
    pub(crate) state: BackendState,
    pub(crate) is_backup: bool,
    pub(crate) weight: u32,
    pub(crate) sessions: u32,
    /// The number of connections so far.
    pub(crate) connections: u64,
    /// The number of failures so far, in the order of [`Failure::ALL`].
    pub(crate) failures: [u64; Failure::ALL.len()],
    pub(crate) ejections: u64,
    /// The number of good and of failed checks so far.
    pub(crate) checks: [u64; 2],
    /// Why and since when it is down or ejected.
    pub(crate) trouble: Option<Trouble>,
}

/// Whether a backend gets clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendState {
    Up,
    /// The operator has set its weight to 0.
    Draining,
    /// It fails, and gets no clients for a while.
    Ejected,
    /// Its checks fail.
    Down,
}

/// The backends that have been tried for one client.
#[derive(Debug, Default, Clone)]
pub(super) struct Tried(pub(super) Vec<Arc<Backend>>);

impl Failure {
    pub(crate) const ALL: [Self; 3] = [Self::Connect, Self::SlowConnect, Self::EarlyEnd];

    /// Returns the reason for metrics and the log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::SlowConnect => "slow_connect",
            Self::EarlyEnd => "early_end",
        }
    }

    /// Returns the reason for the operator.
    fn sentence(self) -> &'static str {
        match self {
            Self::Connect => "it could not be reached",
            Self::SlowConnect => "connecting took too long",
            Self::EarlyEnd => "it ended sessions without an answer",
        }
    }
}

impl Backend {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            active: AtomicU32::new(0),
            ejection: Mutex::default(),
            checked: Mutex::default(),
            troubles: Mutex::default(),
            set_weight: AtomicU32::new(NOT_SET),
            connections: AtomicU64::new(0),
            failures: Default::default(),
            ejections: AtomicU64::new(0),
            checks: Default::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn active(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    pub(super) fn availability(&self, now: Instant) -> Availability {
        self.ejection.lock().availability(now)
    }

    pub(super) fn status(&self, state: BackendState, weight: u32, is_backup: bool) -> BackendStatus {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        BackendStatus {
            name: self.name.clone(),
            state,
            is_backup,
            weight,
            sessions: self.active(),
            connections: count(&self.connections),
            failures: self.failures.each_ref().map(count),
            ejections: count(&self.ejections),
            checks: self.checks.each_ref().map(count),
            trouble: match state {
                BackendState::Down => self.troubles.lock().down.clone(),
                BackendState::Ejected => self.troubles.lock().ejected.clone(),
                BackendState::Up | BackendState::Draining => None,
            },
        }
    }

    /// Returns the weight that the operator has set while the program runs.
    pub(super) fn weight(&self) -> Option<u32> {
        Some(self.set_weight.load(Ordering::Relaxed)).filter(|weight| *weight != NOT_SET)
    }

    pub(super) fn set_weight(&self, weight: Option<u32>) {
        self.set_weight.store(weight.unwrap_or(NOT_SET), Ordering::Relaxed);
    }

    pub(super) fn is_down(&self) -> bool {
        self.checked.lock().is_down()
    }

    /// Records the result of a check. Returns whether the backend is up, if that has changed.
    pub(super) fn record_check<E: fmt::Display>(
        &self,
        result: &Result<(), E>,
        settings: &CheckSettings,
    ) -> Option<bool> {
        let is_good = result.is_ok();
        self.checks[usize::from(!is_good)].fetch_add(1, Ordering::Relaxed);
        let changed = self.checked.lock().record(is_good, settings);
        let down = &mut self.troubles.lock().down;
        match result {
            Err(error) if self.is_down() => *down = Some(Trouble::continued(down.take(), error)),
            Ok(()) if !self.is_down() => *down = None,
            _ => {}
        }
        if changed == Some(true) {
            self.ejection.lock().is_up_again(Instant::now());
        }
        changed
    }

    /// Records why the backend is ejected. A trial that fails continues the ejection.
    pub(super) fn ejected(&self, failure: Failure, is_trial: bool) {
        self.ejections.fetch_add(1, Ordering::Relaxed);
        let ejected = &mut self.troubles.lock().ejected;
        let before = ejected.take().filter(|_| is_trial);
        *ejected = Some(Trouble::continued(before, &failure.sentence()));
    }

    /// Takes over why another process gave the backend no clients.
    pub(super) fn take_over_troubles(&self, earlier: Troubles) {
        let is_down = self.is_down();
        let mut troubles = self.troubles.lock();
        troubles.ejected = earlier.ejected;
        troubles.down = earlier.down.or(troubles.down.take()).filter(|_| is_down);
    }

    /// Returns the part of its weight that the backend has now: less than 1 if it is up again for
    /// less than `slow_start`.
    pub(super) fn share(&self, slow_start: Duration, now: Instant) -> f64 {
        let since = self.ejection.lock().up_since();
        let up = since.map(|since| now.saturating_duration_since(since));
        match up.filter(|up| *up < slow_start) {
            Some(up) => (up.as_secs_f64() / slow_start.as_secs_f64()).max(1.0 / f64::from(WEIGHT_UNIT)),
            None => 1.0,
        }
    }
}

impl Tried {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns whether both are the same backends.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.count() == other.count() && self.0.iter().all(|tried| other.has(tried))
    }

    pub(super) fn has(&self, backend: &Arc<Backend>) -> bool {
        self.0.iter().any(|tried| Arc::ptr_eq(tried, backend))
    }
}
