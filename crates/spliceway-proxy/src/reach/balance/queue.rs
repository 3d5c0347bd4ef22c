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
//!
//! A client never waits for another client that waits for other backends. So clients that have
//! tried the same backends form a line, and each free place goes to the first client of a line who
//! can use it.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot::{self, error::RecvError};
use tokio::time::timeout;

use super::{Balancer, Choice, Lease, TRIES_MAX, Tried, hash_of_client};
use crate::access::admission::ClientKey;

/// The time after which a client that waits looks for a backend by itself.
const AGAIN: Duration = Duration::from_secs(1);

/// The balancer of a service that is in force. All balancers of the service share it.
#[derive(Debug, Default)]
pub(super) struct InForce(Mutex<Weak<Balancer>>);

/// The clients that wait for a backend.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// No line is empty.
    lines: Vec<Line>,
    /// The number of the next client.
    next: u64,
}

/// Clients that have tried the same backends, in the order of their arrival.
#[derive(Debug)]
struct Line {
    tried: Tried,
    waiters: VecDeque<Waiter>,
}

/// A client that waits for a backend.
#[derive(Debug)]
struct Waiter {
    /// The clients are numbered in the order of their arrival.
    number: u64,
    client: Option<u64>,
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

impl Queue {
    fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn len(&self) -> usize {
        self.lines.iter().map(|line| line.waiters.len()).sum()
    }

    fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.lines.iter().flat_map(|line| &line.waiters)
    }

    /// Adds a client after all others. The result is where it gets its lease.
    fn push(&mut self, client: Option<u64>, tried: &Tried) -> oneshot::Receiver<Lease> {
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter {
            number: self.next,
            client,
            answer: sender,
        };
        self.next += 1;
        self.line(tried).push_back(waiter);
        answer
    }

    /// Returns the clients that have tried these backends.
    fn line(&mut self, tried: &Tried) -> &mut VecDeque<Waiter> {
        let known = self.lines.iter().position(|line| line.tried.is_same(tried));
        let index = known.unwrap_or_else(|| {
            self.lines.push(Line {
                tried: tried.clone(),
                waiters: VecDeque::new(),
            });
            self.lines.len() - 1
        });
        &mut self.lines[index].waiters
    }

    /// Adds clients that have come after those of this queue.
    fn append(&mut self, since: Self) {
        let before = self.next;
        self.next += since.next;
        for Line { tried, waiters } in since.lines {
            let numbered = waiters.into_iter().map(|waiter| Waiter {
                number: before + waiter.number,
                ..waiter
            });
            self.line(&tried).extend(numbered);
        }
    }

    /// Removes clients that have left.
    fn forget_left(&mut self) {
        for line in &mut self.lines {
            line.waiters.retain(|waiter| !waiter.answer.is_closed());
        }
        self.lines.retain(|line| !line.waiters.is_empty());
    }

    /// Takes out the client that has waited for the longest time, among the lines that are not
    /// `stopped`. Returns it with the index of its line.
    fn pop(&mut self, stopped: &[usize]) -> Option<(usize, Waiter)> {
        let lines = self.lines.iter().enumerate();
        let fronts = lines.filter_map(|(index, line)| Some((line.waiters.front()?.number, index)));
        let (_, index) = fronts.filter(|(_, index)| !stopped.contains(index)).min()?;
        Some((index, self.lines[index].waiters.pop_front()?))
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
            inner.queue.append(since);
        }
        self.serve_queue();
    }

    /// Returns the balancer in force. That is this one if its service is gone.
    pub(super) fn in_force(self: &Arc<Self>) -> Arc<Self> {
        let in_force = self.in_force.lock().upgrade();
        in_force.unwrap_or_else(|| Arc::clone(self))
    }

    /// Returns a place with a backend that was not tried before. If all backends are full, the
    /// client waits for up to `limit`. Clients that wait for the same backends get them in the
    /// order of their arrival. Cancel safe: a client that leaves
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
                inner.queue.forget_left();
            }
            if inner.queue.len() >= balancer.settings.queue_max {
                return Err(NoLease::QueueFull);
            }
            let answer = inner.queue.push(client, tried);
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

    /// Gives free places to the clients that wait. A client that has to go on waiting stops only
    /// its own line.
    pub(super) fn serve_queue(self: &Arc<Self>) {
        let (mut served, mut stopped) = (Vec::new(), Vec::new());
        let mut inner = self.inner();
        let mut queue = std::mem::take(&mut inner.queue);
        while let Some((index, waiter)) = queue.pop(&stopped) {
            let line = &mut queue.lines[index];
            let choice = match waiter.answer.is_closed() {
                true => Choice::None,
                false => self.choose(&mut inner, waiter.client, &line.tried),
            };
            match choice {
                Choice::Full => {
                    line.waiters.push_front(waiter);
                    stopped.push(index);
                }
                Choice::Place(place) => served.push((waiter.answer, self.take(&inner.places[place]))),
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
        let inner = self.inner();
        let waiters = inner.queue.waiters();
        waiters.filter(|waiter| !waiter.answer.is_closed()).count()
    }
}

impl InForce {
    /// Locks the balancer.
    fn lock(&self) -> MutexGuard<'_, Weak<Balancer>> {
        self.0.lock()
    }
}
