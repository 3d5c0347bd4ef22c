//! Clients that wait for a backend, and the balancers that one service has over time.
//!
//! ```text
//!   balancer ── reload ──▶ balancer ── reload ──▶ balancer in force
//!       ▲                     ▲                        ▲
//!       │ a session ends      │ wait ─── moved ───────▶│ wait
//! ```
//!
//! A session keeps the balancer that it began with. Clients that still need a backend ask the
//! balancer in force.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot::{self, error::RecvError};
use tokio::time::timeout;

use super::{Balancer, Choice, Lease, TRIES_MAX, Tried, hash_of_client};
use crate::admission::ClientKey;

/// The time after which a client that waits looks for a backend by itself.
const AGAIN: Duration = Duration::from_secs(1);

/// The balancer of a service that is in force. All balancers of the service share it.
#[derive(Debug, Default)]
pub(super) struct InForce(Mutex<Weak<Balancer>>);

/// A client that waits for a backend.
#[derive(Debug)]
pub(super) struct Waiter {
    client: Option<u64>,
    tried: Tried,
    answer: oneshot::Sender<Lease>,
}

/// Why a client gets no backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoLease {
    /// All are ejected, or were tried.
    NoneAvailable,
    /// All are full, and too many clients wait.
    QueueFull,
    /// All are full, and no session ended in time.
    QueueTimeout,
}

impl NoLease {
    pub(crate) const ALL: [Self; 3] = [Self::NoneAvailable, Self::QueueFull, Self::QueueTimeout];

    /// Returns the reason for records and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoneAvailable => "no_backend",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout => "queue_timeout",
        }
    }
}

impl Balancer {
    /// Puts this balancer into force. Clients that wait at the balancer before it now wait here.
    pub(crate) fn takes_over(self: &Arc<Self>) {
        let before = std::mem::replace(&mut *self.in_force.lock(), Arc::downgrade(self));
        if let Some(before) = before.upgrade().filter(|before| !Arc::ptr_eq(before, self)) {
            let mut replaced = before.inner();
            replaced.is_replaced = true;
            let waiting = std::mem::take(&mut replaced.queue);
            drop(replaced);
            // Clients that have come since the change have waited for a shorter time.
            let mut inner = self.inner();
            let since = std::mem::replace(&mut inner.queue, waiting);
            inner.queue.extend(since);
        }
        self.serve_queue();
    }

    /// Returns the balancer in force. That is this one if its service is gone.
    pub(super) fn in_force(self: &Arc<Self>) -> Arc<Self> {
        let in_force = self.in_force.lock().upgrade();
        in_force.unwrap_or_else(|| Arc::clone(self))
    }

    /// Returns a place with a backend that was not tried before. If all backends are full, the
    /// client waits for up to `limit`, in the order of arrival. Cancel safe: a client that leaves
    /// gives its place to the next one.
    ///
    /// # Errors
    /// Returns the reason if there is no backend, or after [`TRIES_MAX`] tries.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        client: Option<ClientKey>,
        tried: &Tried,
        limit: Duration,
    ) -> Result<Lease, NoLease> {
        if tried.count() >= TRIES_MAX {
            return Err(NoLease::NoneAvailable);
        }
        let client = client.map(hash_of_client);
        let answer = loop {
            let balancer = self.in_force();
            let mut inner = balancer.inner();
            if inner.is_replaced && !Arc::ptr_eq(&balancer, &self.in_force()) {
                continue;
            }
            match balancer.choose(&mut inner, client, tried) {
                Choice::None => return Err(NoLease::NoneAvailable),
                Choice::Place(index) if inner.queue.is_empty() => return Ok(balancer.take(&inner.places[index])),
                Choice::Place(_) | Choice::Full => {}
            }
            if inner.queue.len() >= balancer.settings.queue_max {
                inner.queue.retain(|waiter| !waiter.answer.is_closed());
            }
            if inner.queue.len() >= balancer.settings.queue_max {
                return Err(NoLease::QueueFull);
            }
            let (sender, answer) = oneshot::channel();
            inner.queue.push_back(Waiter {
                client,
                tried: tried.clone(),
                answer: sender,
            });
            drop(inner);
            // The clients before this one may have left.
            balancer.serve_queue();
            break answer;
        };
        match timeout(limit, self.answered(answer)).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(_)) => Err(NoLease::NoneAvailable),
            Err(_) => Err(NoLease::QueueTimeout),
        }
    }

    /// Waits for a lease.
    async fn answered(self: &Arc<Self>, mut answer: oneshot::Receiver<Lease>) -> Result<Lease, RecvError> {
        loop {
            match timeout(AGAIN, &mut answer).await {
                Ok(answered) => return answered,
                // An ejection may be over, which causes no event.
                Err(_) => self.in_force().serve_queue(),
            }
        }
    }

    /// Gives free places to the clients that wait, as long as the first of them can have one.
    pub(super) fn serve_queue(self: &Arc<Self>) {
        let mut served = Vec::new();
        let mut inner = self.inner();
        while let Some(waiter) = inner.queue.pop_front() {
            let choice = match waiter.answer.is_closed() {
                true => Choice::None,
                false => self.choose(&mut inner, waiter.client, &waiter.tried),
            };
            match choice {
                Choice::Full => {
                    inner.queue.push_front(waiter);
                    break;
                }
                Choice::Place(index) => served.push((waiter.answer, self.take(&inner.places[index]))),
                // Without a lease, the client gets an error.
                Choice::None => drop(waiter),
            }
        }
        drop(inner);
        for (answer, lease) in served {
            // If the client has left, its lease is dropped, which serves the next one.
            drop(answer.send(lease));
        }
    }

    /// Returns the number of clients that wait.
    pub(crate) fn waiting(&self) -> usize {
        let inner = self.inner();
        inner.queue.iter().filter(|waiter| !waiter.answer.is_closed()).count()
    }
}

impl InForce {
    /// Locks the balancer and ignores poisoning, because it is valid at every instant.
    fn lock(&self) -> MutexGuard<'_, Weak<Balancer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
