//! A session's place with a backend, and what the sessions of a backend share.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use spliceway_protocol::address::{Target, TargetRange};
use tokio::time::Instant;

use super::check::{CheckSettings, Checked, MovedChecks};
use super::ejection::{Availability, Credit, EARLY, Ejection, MovedEjection};
use super::moved::MovedBackend;
use super::probe::Unhealthy;
use super::{BackendState, BackendStatus, Balancer, WEIGHT_MAX, WEIGHT_UNIT};

/// No weight of a backend.
const NOT_SET: u32 = u32::MAX;

/// What the sessions of a backend share. A reload keeps it.
#[derive(Debug)]
pub(super) struct Backend {
    name: Box<str>,
    /// The number of sessions, including those that are connecting.
    active: AtomicU32,
    ejection: Mutex<Ejection>,
    checked: Mutex<Checked>,
    /// The weight that the operator has set, or [`NOT_SET`].
    set_weight: AtomicU32,
    connections: AtomicU64,
    failures: [AtomicU64; Failure::ALL.len()],
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

/// A session's place with a backend, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    balancer: Arc<Balancer>,
    backend: Arc<Backend>,
    targets: TargetRange,
    /// Whether this session tries if an ejected backend works again.
    is_trial: bool,
    connected: Option<(Instant, Credit)>,
    /// The number of backends that were tried before this one.
    pub(crate) retries: usize,
}

/// The backends that have been tried for one client.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tried(Vec<Arc<Backend>>);

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
}

impl Backend {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            active: AtomicU32::new(0),
            ejection: Mutex::default(),
            checked: Mutex::default(),
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
        self.ejection().availability(now)
    }

    pub(super) fn status(&self) -> BackendStatus {
        BackendStatus {
            name: self.name.clone(),
            state: BackendState::Up,
            is_backup: false,
            weight: 1,
            sessions: self.active(),
            connections: self.connections.load(Ordering::Relaxed),
            failures: self.failures.each_ref().map(|count| count.load(Ordering::Relaxed)),
            ejections: self.ejections.load(Ordering::Relaxed),
            checks: self.checks.each_ref().map(|count| count.load(Ordering::Relaxed)),
        }
    }

    /// Returns the weight that the operator has set while the program runs.
    pub(super) fn weight(&self) -> Option<u32> {
        Some(self.set_weight.load(Ordering::Relaxed)).filter(|weight| *weight != NOT_SET)
    }

    pub(super) fn set_weight(&self, weight: Option<u32>) {
        self.set_weight.store(weight.unwrap_or(NOT_SET), Ordering::Relaxed);
    }

    pub(super) fn moved(&self, now: Instant) -> (MovedEjection, MovedChecks) {
        (self.ejection().moved(now), self.state_of_checks().moved())
    }

    /// Takes over the state of this backend in another process.
    pub(super) fn arrived(&self, moved: &MovedBackend, now: Instant) {
        self.set_weight(moved.set_weight.filter(|weight| *weight <= WEIGHT_MAX));
        *self.ejection() = Ejection::arrived(moved.ejection, now);
        self.state_of_checks().arrived(moved.checks);
    }

    pub(super) fn is_down(&self) -> bool {
        self.state_of_checks().is_down()
    }

    /// Records the result of a check.
    pub(super) fn checked(&self, balancer: &Arc<Balancer>, settings: &CheckSettings, result: Result<(), Unhealthy>) {
        self.checks[usize::from(result.is_err())].fetch_add(1, Ordering::Relaxed);
        let changed = self.state_of_checks().record(result.is_ok(), settings);
        let (service, backend) = (balancer.service, &*self.name);
        match (changed, result) {
            (Some(true), _) => {
                self.ejection().is_up_again(Instant::now());
                tracing::info!(service, backend, "a backend is up again");
            }
            (Some(false), Err(error)) => tracing::warn!(service, backend, %error, "a backend is down"),
            _ => return,
        }
        // Clients that wait may get this backend now, or a backup in its place.
        balancer.serve_queue();
    }

    /// Returns the part of its weight that the backend has now: less than 1 if it is up again for
    /// less than `slow_start`.
    pub(super) fn share(&self, slow_start: Duration, now: Instant) -> f64 {
        let since = self.ejection().up_since();
        let up = since.map(|since| now.saturating_duration_since(since));
        match up.filter(|up| *up < slow_start) {
            Some(up) => (up.as_secs_f64() / slow_start.as_secs_f64()).max(1.0 / f64::from(WEIGHT_UNIT)),
            None => 1.0,
        }
    }

    /// Locks the results of checks.
    fn state_of_checks(&self) -> MutexGuard<'_, Checked> {
        self.checked.lock()
    }

    /// Locks the failures.
    fn ejection(&self) -> MutexGuard<'_, Ejection> {
        self.ejection.lock()
    }
}

impl Lease {
    pub(super) fn new(balancer: Arc<Balancer>, backend: Arc<Backend>, targets: TargetRange) -> Self {
        let mut lease = Self::of_running(balancer, backend, targets);
        let (mut ejection, now) = (lease.backend.ejection(), Instant::now());
        let is_back = ejection.settle(now);
        let is_trial = ejection.begins(now);
        drop(ejection);
        if is_back {
            tracing::info!(
                service = lease.balancer.service,
                backend = &*lease.backend.name,
                "a backend serves again"
            );
        }
        lease.is_trial = is_trial;
        lease
    }

    /// Returns a place for a session that runs already. It proves nothing about the backend.
    pub(super) fn of_running(balancer: Arc<Balancer>, backend: Arc<Backend>, targets: TargetRange) -> Self {
        backend.active.fetch_add(1, Ordering::Relaxed);
        Self {
            balancer,
            backend,
            targets,
            is_trial: false,
            connected: None,
            retries: 0,
        }
    }

    /// Returns the target for clients of the listener at this offset in its range.
    pub(crate) fn target(&self, port_index: u16) -> Target {
        self.targets.nth(port_index)
    }

    /// Records that the session has connected. `slow` is the time that is too long for it.
    pub(crate) fn connected(&mut self, time: Duration, slow: Duration) {
        if time >= slow {
            self.backend.connections.fetch_add(1, Ordering::Relaxed);
            return self.failed(Failure::SlowConnect);
        }
        self.begins();
    }

    /// Records that a session begins at the backend.
    pub(crate) fn begins(&mut self) {
        self.backend.connections.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let credit = self.backend.ejection().connected(self.is_trial, now);
        self.connected = Some((now, credit));
    }

    /// Records a failure of the backend.
    pub(crate) fn failed(&mut self, failure: Failure) {
        let backend = &self.backend;
        backend.failures[failure as usize].fetch_add(1, Ordering::Relaxed);
        let (is_trial, now) = (std::mem::take(&mut self.is_trial), Instant::now());
        let credit = self.connected.take().map_or(Credit::default(), |(_, credit)| credit);
        let balancer = self.balancer.in_force();
        let ejected = balancer.with_ejections(now, |may_eject| {
            let settings = &balancer.settings.eject;
            backend.ejection().failed(is_trial, credit, settings, may_eject, now)
        });
        if let Some(time) = ejected {
            backend.ejections.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                service = self.balancer.service,
                backend = &*backend.name,
                reason = failure.as_str(),
                ?time,
                "a backend is ejected"
            );
        }
    }

    /// Records that the backend has ended the session without a byte for the client.
    pub(crate) fn ended_by_backend(&mut self) {
        if self.connected.is_some_and(|(connected, _)| connected.elapsed() < EARLY) {
            self.failed(Failure::EarlyEnd);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_trial && self.connected.is_none() {
            self.backend.ejection().abandoned(Instant::now());
        }
        self.backend.active.fetch_sub(1, Ordering::Relaxed);
        self.balancer.in_force().serve_queue();
    }
}

impl Tried {
    /// Records that this backend cannot be reached, and gives its place back.
    pub(crate) fn add(&mut self, lease: Lease) {
        self.0.push(Arc::clone(&lease.backend));
    }

    pub(crate) fn count(&self) -> usize {
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
