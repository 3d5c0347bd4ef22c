//! How a client gets a backend, waits for one, and gives it back; and the balancers that one
//! service has over time.
//!
//! ```text
//!   balancer ── reload ──▶ balancer ── reload ──▶ balancer in force
//!       ▲                     ▲                        ▲
//!       │ a session ends      │ wait ─── requeued ────▶│ wait
//! ```
//!
//! A session keeps the balancer that it began with. Clients that still need a backend ask the
//! balancer in force.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spliceway_protocol::address::Target;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::time::{Instant, timeout};

use super::backend::{Failure, Tried};
use super::balancer::{Balancer, Choice, Entry, Lease};
use super::ejection::{Credit, EARLY};
use super::policy;
use crate::kit::client_key::ClientKey;
use crate::kit::refusal::Refusal;
use crate::reach::dial::Destination;

/// The most backends that are tried for one client. HAProxy has the same default.
pub(super) const TRIES_MAX: usize = 4;
/// The time after which a client that waits looks for a backend by itself.
const AGAIN: Duration = Duration::from_secs(1);

impl Balancer {
    /// Puts this balancer into force. Clients that wait at the balancer before it now wait here.
    pub(crate) fn put_in_force(self: &Arc<Self>) {
        let before = std::mem::replace(&mut *self.in_force.lock(), Arc::downgrade(self));
        if let Some(before) = before.upgrade().filter(|before| !Arc::ptr_eq(before, self)) {
            let mut replaced = before.inner.lock();
            replaced.is_replaced = true;
            let waiting = std::mem::take(&mut replaced.queue);
            drop(replaced);
            // Clients that have come since the change have waited for a shorter time.
            let mut inner = self.inner.lock();
            let since = std::mem::replace(&mut inner.queue, waiting);
            inner.queue.append(since);
        }
        self.serve_queue();
    }

    /// Returns a lease for a session that runs already, if its target is one of the backends.
    pub(crate) fn adopt(self: &Arc<Self>, target: &Target) -> Option<Lease> {
        let inner = self.inner.lock();
        let mut entries = inner.entries.iter();
        let entry = entries.find(|entry| entry.settings.targets.contains(target))?;
        Some(Lease::for_running_session(self, entry))
    }

    /// Returns the balancer in force. That is this one if its service is gone.
    pub(super) fn in_force(self: &Arc<Self>) -> Arc<Self> {
        let in_force = self.in_force.lock().upgrade();
        in_force.unwrap_or_else(|| Arc::clone(self))
    }

    /// Returns a lease of a backend that was not tried before. If all backends are full, the client
    /// waits for up to `limit`. Clients that wait for the same backends get them in the order of
    /// their arrival. Cancel safe: a client that leaves makes way for the next one.
    ///
    /// # Errors
    /// Returns the reason if there is no backend, or after [`TRIES_MAX`] tries.
    pub(super) async fn lease(
        self: &Arc<Self>,
        client: Option<ClientKey>,
        tried: &Tried,
        limit: Duration,
    ) -> Result<Lease, Refusal> {
        if tried.count() >= TRIES_MAX {
            return Err(Refusal::NoBackend);
        }
        let client = client.map(policy::hash_of_client);
        let answer = loop {
            let balancer = self.in_force();
            let mut inner = balancer.inner.lock();
            if inner.is_replaced && !Arc::ptr_eq(&balancer, &self.in_force()) {
                continue;
            }
            match balancer.choose(&mut inner, client, tried) {
                Choice::None => return Err(Refusal::NoBackend),
                Choice::Backend(index) if inner.queue.is_empty() => {
                    return Ok(Lease::new(&balancer, &inner.entries[index]));
                }
                Choice::Backend(_) | Choice::Full => {}
            }
            if inner.queue.len() >= balancer.settings.queue_max {
                inner.queue.forget_left();
            }
            if inner.queue.len() >= balancer.settings.queue_max {
                return Err(Refusal::QueueFull);
            }
            let answer = inner.queue.push(client, tried);
            drop(inner);
            // The clients before this one may have left.
            balancer.serve_queue();
            break answer;
        };
        match timeout(limit, self.wait_for_lease(answer)).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(_)) => Err(Refusal::NoBackend),
            Err(_) => Err(Refusal::QueueTimeout),
        }
    }

    /// Waits for a lease.
    async fn wait_for_lease(self: &Arc<Self>, mut answer: oneshot::Receiver<Lease>) -> Result<Lease, RecvError> {
        loop {
            match timeout(AGAIN, &mut answer).await {
                Ok(answered) => return answered,
                // An ejection may be over, which causes no event.
                Err(_) => self.in_force().serve_queue(),
            }
        }
    }

    /// Gives free permits to the clients that wait. A client that has to go on waiting stops only
    /// its own line.
    pub(super) fn serve_queue(self: &Arc<Self>) {
        let (mut served, mut stopped) = (Vec::new(), Vec::new());
        let mut inner = self.inner.lock();
        let mut queue = std::mem::take(&mut inner.queue);
        while let Some((index, waiter)) = queue.pop(&stopped) {
            let line = &mut queue.lines[index];
            let choice = if waiter.answer.is_closed() {
                Choice::None
            } else {
                self.choose(&mut inner, waiter.client, &line.tried)
            };
            match choice {
                Choice::Full => {
                    line.waiters.push_front(waiter);
                    stopped.push(index);
                }
                Choice::Backend(entry) => served.push((waiter.answer, Lease::new(self, &inner.entries[entry]))),
                // Without a lease, the client gets an error.
                Choice::None => drop(waiter),
            }
        }
        queue.lines.retain(|line| !line.waiters.is_empty());
        inner.queue = queue;
        drop(inner);
        for (answer, lease) in served {
            // If the client has left, its lease is dropped, which serves the next one.
            drop(answer.send(lease));
        }
    }

    /// Returns the number of clients that wait.
    pub(crate) fn waiting(&self) -> usize {
        let inner = self.inner.lock();
        let waiters = inner.queue.waiters();
        waiters.filter(|waiter| !waiter.answer.is_closed()).count()
    }
}

impl Lease {
    fn new(balancer: &Arc<Balancer>, entry: &Entry) -> Self {
        let mut lease = Self::for_running_session(balancer, entry);
        let (mut ejection, now) = (lease.backend.ejection.lock(), Instant::now());
        let is_back = ejection.settle(now);
        let is_trial = ejection.begins(now);
        drop(ejection);
        if is_back {
            tracing::info!(
                service = lease.balancer.service(),
                backend = lease.backend.name(),
                "a backend serves again"
            );
        }
        lease.is_trial = is_trial;
        lease
    }

    /// Returns a lease for a session that runs already. It proves nothing about the backend.
    fn for_running_session(balancer: &Arc<Balancer>, entry: &Entry) -> Self {
        entry.backend.active.fetch_add(1, Ordering::Relaxed);
        Self {
            balancer: Arc::clone(balancer),
            backend: Arc::clone(&entry.backend),
            targets: entry.settings.targets.clone(),
            tls: entry.settings.tls.clone().map(Box::new),
            is_trial: false,
            connected: None,
            retries: 0,
        }
    }

    /// Returns the target for clients of the listener at this offset in its range.
    pub(crate) fn target(&self, port_index: u16) -> Destination {
        Destination {
            target: self.targets.nth(port_index),
            tls: self.tls.as_deref().cloned(),
        }
    }

    /// Records that the session has connected. `slow` is the time that is too long for it.
    pub(super) fn connected(&mut self, time: Duration, slow: Duration) {
        self.backend.connections.fetch_add(1, Ordering::Relaxed);
        if time >= slow {
            return self.failed(Failure::SlowConnect);
        }
        let now = Instant::now();
        let credit = self.backend.ejection.lock().connected(self.is_trial, now);
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
            backend
                .ejection
                .lock()
                .failed(is_trial, credit, settings, may_eject, now)
        });
        if let Some(time) = ejected {
            backend.ejected(failure, is_trial);
            tracing::warn!(
                service = self.balancer.service(),
                backend = backend.name(),
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
            self.backend.ejection.lock().abandoned(Instant::now());
        }
        self.backend.active.fetch_sub(1, Ordering::Relaxed);
        self.balancer.in_force().serve_queue();
    }
}

impl Tried {
    /// Records that this backend cannot be reached, and gives the lease back.
    pub(super) fn add(&mut self, lease: Lease) {
        self.0.push(Arc::clone(&lease.backend));
    }
}
