//! Limits on sessions: on all sessions at once, and on the sessions of one client.
//!
//! At the first limit, the program accepts no further client. New clients wait in the kernel's
//! backlog, and the running sessions keep all that they need. At the second limit, the program
//! refuses the client, because one client could otherwise use up the first limit alone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::log::LogThrottle;

/// The reason to refuse a session when its client has as many sessions as it may have.
pub(crate) const TOO_MANY_OF_CLIENT: &str = "max_conns_per_ip";
/// The reason to refuse a session that needs another place when none is left.
pub(crate) const NO_PLACE_LEFT: &str = "max_conns";
/// The reason to refuse a session when its client is dialling as many targets as it may dial.
pub(crate) const TOO_MANY_DIALS: &str = "max_dials_per_ip";

/// The limits, and the sessions that count towards them.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The name of the things that the limit counts, for the log.
    what: &'static str,
    max: usize,
    free: Semaphore,
    waits: AtomicU64,
    throttle: Mutex<LogThrottle>,
    max_per_client: Option<NonZeroU32>,
    /// The number of sessions of each client. Clients without a session are removed, so the map
    /// never has more than `max` entries.
    clients: Mutex<HashMap<ClientKey, u32>>,
}

/// The place of one session. Dropping the permit returns the place.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    places: u32,
    /// The client that the session counts for, if there is a limit for each client.
    client: Option<ClientKey>,
}

/// The unit that counts as one client: an IPv4 address, or a /64 network of IPv6. A customer gets
/// at least a /64 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientKey(IpAddr);

/// The number of sessions of each client that are dialling their target.
///
/// Two SOCKS proxies that name each other would open sessions of one client without end. This limit
/// stops them.
#[derive(Debug)]
pub(crate) struct Dials {
    max_per_client: NonZeroU32,
    /// Clients without a dial are removed, so the map never has more entries than there are
    /// sessions.
    clients: Mutex<HashMap<ClientKey, u32>>,
}

/// One dial, which counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Dial<'a> {
    dials: &'a Dials,
    client: ClientKey,
}

impl Dials {
    pub(crate) fn new(max_per_client: NonZeroU32) -> Self {
        Self {
            max_per_client,
            clients: Mutex::default(),
        }
    }

    /// Counts one more dial for `client`. Returns `None` if the client has reached its limit.
    pub(crate) fn begin(&self, client: IpAddr) -> Option<Dial<'_>> {
        let client = ClientKey::from(client);
        let mut clients = unpoisoned(&self.clients);
        let dials = clients.entry(client).or_insert(0);
        // A new entry always has room, because the limit is at least 1. So no entry with a count of
        // 0 stays.
        (*dials < self.max_per_client.get()).then(|| {
            *dials += 1;
            Dial { dials: self, client }
        })
    }
}

impl Drop for Dial<'_> {
    fn drop(&mut self) {
        uncount(&mut unpoisoned(&self.dials.clients), self.client);
    }
}

fn uncount(clients: &mut HashMap<ClientKey, u32>, client: ClientKey) {
    if let Entry::Occupied(mut count) = clients.entry(client) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

impl Admission {
    /// Creates the limits: `max` sessions at once (at least 1), and `max_per_client` sessions of
    /// one client.
    pub(crate) fn new(what: &'static str, max: usize, max_per_client: Option<NonZeroU32>) -> Arc<Self> {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            what,
            max,
            free: Semaphore::new(max),
            waits: AtomicU64::new(0),
            throttle: Mutex::default(),
            max_per_client,
            clients: Mutex::default(),
        })
    }

    /// Waits for a place. Waiters get their places in order.
    ///
    /// Cancel safe: a waiter that is dropped takes no place.
    pub(crate) async fn admit(self: &Arc<Self>) -> Permit {
        let place = match self.free.try_acquire() {
            Ok(place) => place,
            Err(_) => {
                self.full(Instant::now());
                self.free.acquire().await.expect("the semaphore is never closed")
            }
        };
        // The permit returns the place when it is dropped.
        place.forget();
        Permit {
            admission: Arc::clone(self),
            places: 1,
            client: None,
        }
    }

    /// Counts a wait. Logs the reached limit at most once in [`LogThrottle::EVERY`].
    fn full(&self, now: Instant) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        if unpoisoned(&self.throttle).admits(now) {
            tracing::warn!(
                max = self.max,
                "the limit on {} is reached: new clients wait",
                self.what
            );
        }
    }

    /// Returns the limit on sessions at once.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of places that are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.max - self.free.available_permits()
    }

    /// Returns how many times a listener has had to wait for a place.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ClientKey, u32>> {
        unpoisoned(&self.clients)
    }
}

impl Permit {
    /// Takes one more place, for a session that needs more than the two descriptors of one place.
    /// Returns `false` if no place is left.
    pub(crate) fn widen(&mut self) -> bool {
        let Ok(place) = self.admission.free.try_acquire() else {
            return false;
        };
        place.forget();
        self.places += 1;
        true
    }

    /// Counts this session for `client` from now on. Returns `false` if `client` has reached its
    /// limit. The session then counts for no client.
    ///
    /// This is not a part of [`Admission::admit`], because the client may be behind another proxy.
    /// Its address is known only after that proxy has sent it.
    pub(crate) fn count(&mut self, client: IpAddr) -> bool {
        let Some(max) = self.admission.max_per_client else {
            return true;
        };
        self.uncount();
        let client = ClientKey::from(client);
        let mut clients = self.admission.clients();
        let sessions = clients.entry(client).or_insert(0);
        // A new entry always has room, because the limit is at least 1. So no entry with a count of
        // 0 stays.
        if *sessions >= max.get() {
            return false;
        }
        *sessions += 1;
        drop(clients);
        self.client = Some(client);
        true
    }

    fn uncount(&mut self) {
        let Some(client) = self.client.take() else { return };
        uncount(&mut self.admission.clients(), client);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.uncount();
        self.admission.free.add_permits(self.places as usize);
    }
}

impl From<IpAddr> for ClientKey {
    fn from(client: IpAddr) -> Self {
        const NETWORK: u128 = u128::MAX << 64;
        Self(match client.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
            ipv4 => ipv4,
        })
    }
}

/// Locks, and ignores poisoning: the data behind these locks is valid at every instant.
fn unpoisoned<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Returns a permit for a place that must be free.
    fn admitted(admission: &Arc<Admission>) -> Permit {
        match poll(pin!(admission.admit())) {
            Poll::Ready(permit) => permit,
            Poll::Pending => panic!("no place: {admission:?}"),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_comes_at_the_limit_waits_until_somebody_goes() {
        let admission = Admission::new("sessions", 2, None);
        let (first, _second) = (admitted(&admission), admitted(&admission));
        let mut third = pin!(admission.admit());
        assert!(poll(third.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
        assert_eq!((admission.taken(), admission.waits()), (2, 1), "a wait counts once");
        drop(first);
        assert!(poll(third.as_mut()).is_ready());
    }

    #[test]
    fn who_no_longer_waits_takes_no_place() {
        let admission = Admission::new("sessions", 1, None);
        let first = admitted(&admission);
        {
            let mut second = pin!(admission.admit());
            assert!(poll(second.as_mut()).is_pending());
            drop(first);
            // The second waiter has been woken with the place, and is dropped here.
        }
        assert_eq!(admission.taken(), 0);
        drop(admitted(&admission));
        assert_eq!(admission.taken(), 0);
    }

    #[test]
    fn a_session_may_take_a_second_place_and_returns_both() {
        let admission = Admission::new("sessions", 3, None);
        let (mut first, mut second) = (admitted(&admission), admitted(&admission));
        assert!(first.widen() && !second.widen());
        assert_eq!(admission.taken(), 3);
        drop(second);
        drop(first);
        assert_eq!(admission.taken(), 0);
    }

    #[test]
    fn a_limit_of_nobody_is_a_limit_of_one() {
        assert_eq!(Admission::new("sessions", 0, None).max(), 1);
    }

    #[test]
    fn one_client_has_so_many_sessions_and_others_have_theirs() {
        let admission = Admission::new("sessions", 100, NonZeroU32::new(2));
        let mut permits: Vec<_> = (0..5).map(|_| admitted(&admission)).collect();
        assert!(permits[0].count(ip("192.0.2.1")) && permits[1].count(ip("::ffff:192.0.2.1")));
        assert!(!permits[2].count(ip("192.0.2.1")));
        assert!(permits[3].count(ip("192.0.2.2")));
        permits.remove(0);
        assert!(permits[1].count(ip("192.0.2.1")), "one has gone");
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let admission = Admission::new("sessions", 100, NonZeroU32::new(1));
        let mut permits: Vec<_> = (0..3).map(|_| admitted(&admission)).collect();
        assert!(permits[0].count(ip("2001:db8:0:1::1")));
        assert!(!permits[1].count(ip("2001:db8:0:1:ffff::2")));
        assert!(permits[2].count(ip("2001:db8:0:2::1")));
    }

    #[test]
    fn a_session_counts_once_whatever_it_is_told_and_nobody_is_remembered() {
        let admission = Admission::new("sessions", 100, NonZeroU32::new(1));
        let mut permit = admitted(&admission);
        assert!(permit.count(ip("192.0.2.1")) && permit.count(ip("192.0.2.1")));
        assert!(permit.count(ip("192.0.2.2")), "the client behind the proxy");
        assert_eq!(admission.clients().len(), 1);
        let mut refused = admitted(&admission);
        assert!(!refused.count(ip("192.0.2.2")));
        drop((permit, refused));
        assert_eq!((admission.clients().len(), admission.taken()), (0, 0));
    }
}
