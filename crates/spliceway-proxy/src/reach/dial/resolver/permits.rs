//! Divides the concurrent lookups among the clients, so that one client's slow names do not delay
//! another client.
//!
//! A client may start a lookup while it holds fewer permits than are free. So one busy client holds
//! half of all permits, and two busy clients hold a third each. Further lookups wait in one queue
//! for each client, and the clients take turns.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::answer::LookupError;
use crate::kit::client_key::ClientKey;

/// The client towards whose share a lookup counts. Clients without an address share one key.
type Key = Option<ClientKey>;

/// The permits for lookups. Clones share them.
#[derive(Clone)]
pub(super) struct LookupPermits(Arc<Mutex<Shares>>);

struct Shares {
    free: usize,
    /// Only clients with running or waiting lookups.
    clients: HashMap<Key, Client>,
    /// Clients with waiting lookups, in the order of their turns.
    turns: VecDeque<Key>,
}

#[derive(Default)]
struct Client {
    /// The number of running lookups.
    held: usize,
    waiting: VecDeque<oneshot::Sender<()>>,
    /// The moving average of the time that the client's lookups take.
    usual: Duration,
}

/// The permit of a running lookup.
pub(super) struct LookupPermit {
    permits: LookupPermits,
    client: Key,
    since: Instant,
}

/// A waiting lookup.
struct Waiting {
    permits: LookupPermits,
    client: Key,
    granted: oneshot::Receiver<()>,
}

impl LookupPermits {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(Shares {
            free: count.max(1),
            clients: HashMap::new(),
            turns: VecDeque::new(),
        })))
    }

    /// Waits for a permit. Cancel safe.
    ///
    /// # Errors
    /// Returns [`LookupError::TooMany`] if the client's lookups take so long that this one would
    /// start after `deadline`.
    pub(super) async fn take(&self, client: Key, deadline: Instant) -> Result<LookupPermit, LookupError> {
        let waiting = {
            let mut shares = self.shares();
            let now = Instant::now();
            if shares.take_now(client) {
                return Ok(self.permit(client, now));
            }
            Waiting {
                granted: shares.queue(client, now, deadline)?,
                permits: self.clone(),
                client,
            }
        };
        Ok(waiting.await_permit().await)
    }

    fn permit(&self, client: Key, since: Instant) -> LookupPermit {
        LookupPermit {
            permits: self.clone(),
            client,
            since,
        }
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.0.lock()
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.shares().free
    }
}

impl Shares {
    fn take_now(&mut self, client: Key) -> bool {
        let known = self.clients.get(&client);
        let (held, waits) = known.map_or((0, false), |known| (known.held, !known.waiting.is_empty()));
        if waits || held >= self.free {
            return false;
        }
        self.clients.entry(client).or_default().held += 1;
        self.free -= 1;
        true
    }

    fn queue(&mut self, key: Key, now: Instant, deadline: Instant) -> Result<oneshot::Receiver<()>, LookupError> {
        let client = self.clients.entry(key).or_default();
        let rounds = client.waiting.len() / client.held.max(1) + 1;
        let wait = client.usual.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX));
        // The average is unknown until a lookup of the client has ended.
        if client.held > 0 && deadline.saturating_duration_since(now) < wait {
            return Err(LookupError::TooMany);
        }
        if client.waiting.is_empty() {
            self.turns.push_back(key);
        }
        let (grant, granted) = oneshot::channel();
        client.waiting.push_back(grant);
        Ok(granted)
    }

    /// Gives free permits to waiting lookups.
    fn share_out(&mut self) {
        // The number of clients that were skipped since a permit was last granted.
        let mut passed = 0;
        while self.free > 0 && passed < self.turns.len() {
            let Some(key) = self.turns.pop_front() else { return };
            let Some(client) = self.clients.get_mut(&key) else {
                continue;
            };
            if client.held >= self.free {
                passed += 1;
            } else if client.waiting.pop_front().is_some_and(|grant| grant.send(()).is_ok()) {
                client.held += 1;
                self.free -= 1;
                passed = 0;
            }
            if client.waiting.is_empty() {
                self.forget_idle(key);
            } else {
                self.turns.push_back(key);
            }
        }
    }

    fn give_back(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(&key) {
            client.held -= 1;
        }
        self.free += 1;
        self.forget_idle(key);
        self.share_out();
    }

    fn forget_idle(&mut self, key: Key) {
        if self
            .clients
            .get(&key)
            .is_some_and(|client| client.held == 0 && client.waiting.is_empty())
        {
            self.clients.remove(&key);
        }
    }
}

impl Waiting {
    async fn await_permit(mut self) -> LookupPermit {
        // The sender is dropped only together with `self`.
        let _ = (&mut self.granted).await;
        self.permits.permit(self.client, Instant::now())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut shares = self.permits.shares();
        self.granted.close();
        if self.granted.try_recv().is_ok() {
            // A permit was granted, but the waiter was dropped before it received the permit.
            shares.give_back(self.client);
        } else if let Some(client) = shares.clients.get_mut(&self.client) {
            client.waiting.retain(|grant| !grant.is_closed());
            if client.waiting.is_empty() {
                shares.turns.retain(|key| *key != self.client);
                shares.forget_idle(self.client);
            }
        }
    }
}

impl Drop for LookupPermit {
    fn drop(&mut self) {
        let mut shares = self.permits.shares();
        if let Some(client) = shares.clients.get_mut(&self.client) {
            client.usual = (3 * client.usual + self.since.elapsed()) / 4;
        }
        shares.give_back(self.client);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::net::{IpAddr, Ipv4Addr};
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn client(last: u8) -> Key {
        Some(IpAddr::from(Ipv4Addr::new(192, 0, 2, last)).into())
    }

    type Taking<'a> = Pin<Box<dyn Future<Output = Result<LookupPermit, LookupError>> + 'a>>;

    fn taking(permits: &LookupPermits, key: Key) -> Taking<'_> {
        Box::pin(permits.take(key, Instant::now() + LONG))
    }

    fn poll(taking: &mut Taking<'_>) -> Option<LookupPermit> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit.unwrap()),
            Poll::Pending => None,
        }
    }

    fn taken(permits: &LookupPermits, key: Key) -> Option<LookupPermit> {
        poll(&mut taking(permits, key))
    }

    fn is_empty(permits: &LookupPermits) -> bool {
        let shares = permits.shares();
        shares.clients.is_empty() && shares.turns.is_empty()
    }

    #[tokio::test]
    async fn one_client_gets_half_and_the_next_one_gets_half_of_the_rest() {
        let permits = LookupPermits::new(20);
        let first: Vec<_> = std::iter::from_fn(|| taken(&permits, client(1))).collect();
        let second: Vec<_> = std::iter::from_fn(|| taken(&permits, client(2))).collect();
        assert_eq!((first.len(), second.len()), (10, 5));
        for newcomer in 3..8 {
            assert!(taken(&permits, client(newcomer)).is_some());
        }
        drop((first, second));
        assert!(permits.free() == 20 && is_empty(&permits));
    }

    #[tokio::test]
    async fn clients_that_wait_take_turns_and_each_is_served_in_its_order() {
        let permits = LookupPermits::new(1);
        let only = taken(&permits, client(1)).unwrap();
        let mut waiting: Vec<_> = [1, 1, 2].map(|key| taking(&permits, client(key))).into();
        for taking in &mut waiting {
            assert!(poll(taking).is_none());
        }
        drop(only);
        let permit = poll(&mut waiting[0]).unwrap();
        assert!(poll(&mut waiting[1]).is_none() && poll(&mut waiting[2]).is_none());
        drop(permit);
        assert!(poll(&mut waiting[1]).is_none());
        let permit = poll(&mut waiting[2]).unwrap();
        drop(permit);
        drop(poll(&mut waiting[1]).unwrap());
        drop(waiting);
        assert!(permits.free() == 1 && is_empty(&permits));
    }

    #[tokio::test]
    async fn a_dropped_lookup_frees_its_permit() {
        let permits = LookupPermits::new(1);
        let only = taken(&permits, client(1)).unwrap();
        let mut early = taking(&permits, client(2));
        let mut late = taking(&permits, client(3));
        assert!(poll(&mut early).is_none() && poll(&mut late).is_none());
        drop(early);
        assert!(!permits.shares().clients.contains_key(&client(2)));
        drop(only);
        assert_eq!(permits.free(), 0, "the permit is the other's");
        drop(late);
        assert!(permits.free() == 1 && is_empty(&permits));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_would_start_too_late_is_refused_immediately() {
        let permits = LookupPermits::new(4);
        let mut held: Vec<_> = std::iter::from_fn(|| taken(&permits, client(1))).collect();
        assert_eq!(held.len(), 2);
        tokio::time::advance(Duration::from_secs(40)).await;
        drop(held.pop());
        // The average of this client is 10 s now.
        held.push(taken(&permits, client(1)).unwrap());
        let soon = Instant::now() + Duration::from_secs(5);
        assert_eq!(permits.take(client(1), soon).await.err(), Some(LookupError::TooMany));
        assert!(permits.take(client(2), soon).await.is_ok(), "others are not");
        drop(held);
        assert!(permits.take(client(1), soon).await.is_ok(), "nor is it later");
        assert!(is_empty(&permits));
    }
}
