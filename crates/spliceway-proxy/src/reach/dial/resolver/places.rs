//! Divides the concurrent lookups among the clients, so that one client's slow names do not delay
//! another client.
//!
//! A client may start a lookup while it holds fewer places than are free. So one busy client holds
//! half of all places, and two busy clients hold a third each. Further lookups wait in one queue
//! for each client, and the clients take turns.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::access::admission::ClientKey;

/// The client towards whose share a lookup counts. Clients without an address share one key.
pub(in crate::reach::dial) type Key = Option<ClientKey>;

/// The places for lookups. Clones share them.
#[derive(Clone)]
pub(in crate::reach::dial) struct Places(Arc<Mutex<Shares>>);

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

/// A running lookup.
pub(super) struct Place {
    places: Places,
    client: Key,
    since: Instant,
}

/// A waiting lookup.
struct Waiting {
    places: Places,
    client: Key,
    granted: oneshot::Receiver<()>,
}

/// The lookup could not start before its deadline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLate;

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(Shares {
            free: count.max(1),
            clients: HashMap::new(),
            turns: VecDeque::new(),
        })))
    }

    /// Waits for a place. Cancel safe.
    ///
    /// # Errors
    /// Returns [`TooLate`] if the client's lookups take so long that this one would start after
    /// `deadline`.
    pub(super) async fn take(&self, client: Key, deadline: Instant) -> Result<Place, TooLate> {
        let waiting = {
            let mut shares = self.shares();
            let now = Instant::now();
            if shares.take_now(client) {
                return Ok(self.place(client, now));
            }
            Waiting {
                granted: shares.queue(client, now, deadline)?,
                places: self.clone(),
                client,
            }
        };
        Ok(waiting.await_place().await)
    }

    fn place(&self, client: Key, since: Instant) -> Place {
        Place {
            places: self.clone(),
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
        let free = self.free;
        let held = self.clients.get(&client).map_or(0, |client| client.held);
        let waits = self
            .clients
            .get(&client)
            .is_some_and(|client| !client.waiting.is_empty());
        if waits || held >= free {
            return false;
        }
        self.clients.entry(client).or_default().held += 1;
        self.free -= 1;
        true
    }

    fn queue(&mut self, key: Key, now: Instant, deadline: Instant) -> Result<oneshot::Receiver<()>, TooLate> {
        let client = self.clients.entry(key).or_default();
        let rounds = client.waiting.len() / client.held.max(1) + 1;
        let wait = client.usual.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX));
        // The average is unknown until a lookup of the client has ended.
        if client.held > 0 && deadline.saturating_duration_since(now) < wait {
            return Err(TooLate);
        }
        if client.waiting.is_empty() {
            self.turns.push_back(key);
        }
        let (grant, granted) = oneshot::channel();
        client.waiting.push_back(grant);
        Ok(granted)
    }

    /// Gives free places to waiting lookups.
    fn share_out(&mut self) {
        // The number of clients that were skipped since a place was last granted.
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
    async fn await_place(mut self) -> Place {
        // The sender is dropped only together with `self`.
        let _ = (&mut self.granted).await;
        self.places.place(self.client, Instant::now())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut shares = self.places.shares();
        self.granted.close();
        if self.granted.try_recv().is_ok() {
            // A place was granted, but the waiter was dropped before it received the place.
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

impl Drop for Place {
    fn drop(&mut self) {
        let mut shares = self.places.shares();
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

    type Taking<'a> = Pin<Box<dyn Future<Output = Result<Place, TooLate>> + 'a>>;

    fn taking(places: &Places, key: Key) -> Taking<'_> {
        Box::pin(places.take(key, Instant::now() + LONG))
    }

    fn poll(taking: &mut Taking<'_>) -> Option<Place> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place.unwrap()),
            Poll::Pending => None,
        }
    }

    fn taken(places: &Places, key: Key) -> Option<Place> {
        poll(&mut taking(places, key))
    }

    fn is_empty(places: &Places) -> bool {
        let shares = places.shares();
        shares.clients.is_empty() && shares.turns.is_empty()
    }

    #[tokio::test]
    async fn one_client_gets_half_and_the_next_one_gets_half_of_the_rest() {
        let places = Places::new(20);
        let first: Vec<_> = std::iter::from_fn(|| taken(&places, client(1))).collect();
        let second: Vec<_> = std::iter::from_fn(|| taken(&places, client(2))).collect();
        assert_eq!((first.len(), second.len()), (10, 5));
        for newcomer in 3..8 {
            assert!(taken(&places, client(newcomer)).is_some());
        }
        drop((first, second));
        assert!(places.free() == 20 && is_empty(&places));
    }

    #[tokio::test]
    async fn clients_that_wait_take_turns_and_each_is_served_in_its_order() {
        let places = Places::new(1);
        let only = taken(&places, client(1)).unwrap();
        let mut waiting: Vec<_> = [1, 1, 2].map(|key| taking(&places, client(key))).into();
        for taking in &mut waiting {
            assert!(poll(taking).is_none());
        }
        drop(only);
        let place = poll(&mut waiting[0]).unwrap();
        assert!(poll(&mut waiting[1]).is_none() && poll(&mut waiting[2]).is_none());
        drop(place);
        assert!(poll(&mut waiting[1]).is_none());
        let place = poll(&mut waiting[2]).unwrap();
        drop(place);
        drop(poll(&mut waiting[1]).unwrap());
        drop(waiting);
        assert!(places.free() == 1 && is_empty(&places));
    }

    #[tokio::test]
    async fn a_dropped_lookup_frees_its_place() {
        let places = Places::new(1);
        let only = taken(&places, client(1)).unwrap();
        let mut early = taking(&places, client(2));
        let mut late = taking(&places, client(3));
        assert!(poll(&mut early).is_none() && poll(&mut late).is_none());
        drop(early);
        assert!(!places.shares().clients.contains_key(&client(2)));
        drop(only);
        assert_eq!(places.free(), 0, "the place is the other's");
        drop(late);
        assert!(places.free() == 1 && is_empty(&places));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_would_start_too_late_is_refused_immediately() {
        let places = Places::new(4);
        let mut held: Vec<_> = std::iter::from_fn(|| taken(&places, client(1))).collect();
        assert_eq!(held.len(), 2);
        tokio::time::advance(Duration::from_secs(40)).await;
        drop(held.pop());
        // The average of this client is 10 s now.
        held.push(taken(&places, client(1)).unwrap());
        let soon = Instant::now() + Duration::from_secs(5);
        assert_eq!(places.take(client(1), soon).await.err(), Some(TooLate));
        assert!(places.take(client(2), soon).await.is_ok(), "others are not");
        drop(held);
        assert!(places.take(client(1), soon).await.is_ok(), "nor is it later");
        assert!(is_empty(&places));
    }
}
