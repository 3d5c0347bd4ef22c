//! Limits the number of sessions: in total, and for each client.
//!
//! At the total limit, the program stops accepting clients. New clients wait in the kernel's
//! backlog, and the running sessions keep their resources. At the limit for a client, the program
//! refuses that client's new sessions. Otherwise, one client could use up the total limit alone.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::kit::client_key::ClientKey;
use crate::log::LogThrottle;

/// The ports of an association in each address family: one towards its client, and one towards its
/// targets. The same port of the other family is another one.
const PORTS_OF_ASSOCIATION: usize = 2;

/// The limits, and the sessions that count towards them.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The plural noun for the counted items in log lines, such as `sessions`.
    what: &'static str,
    max: AtomicUsize,
    free: Semaphore,
    /// The permits above the limit that sessions still hold, after the limit was lowered.
    owed: AtomicUsize,
    waits: AtomicU64,
    /// Tells one of the sessions that can give their permits to new clients.
    wanted: Notify,
    throttle: Mutex<LogThrottle>,
    /// The limit for each client. 0 means no limit.
    max_per_client: AtomicU32,
    clients: PerClient,
    /// The limit on sessions of `forward --udp`, whose clients may be forged.
    max_datagrams: AtomicUsize,
    /// The number of these sessions.
    datagrams: AtomicUsize,
    /// The limit on ports of sessions of datagrams, which no other program can use meanwhile.
    max_ports: AtomicUsize,
    /// The number of these ports.
    ports: AtomicUsize,
}

/// What a session holds of the limits. Dropping it gives everything back.
#[derive(Debug)]
pub(crate) struct SessionPermit {
    admission: Arc<Admission>,
    permits: u32,
    /// Whether the session is one of `forward --udp`.
    is_of_datagrams: bool,
    /// The ports of its sockets for datagrams.
    ports: usize,
    /// The client that the session counts towards, if there is a limit for each client.
    client: Option<ClientKey>,
}

/// Counts, for each client, the sessions that are dialling their target.
///
/// Without this limit, two SOCKS proxies that name each other would open sessions for one client
/// without end.
#[derive(Debug)]
pub(crate) struct Dials {
    max_per_client: NonZeroU32,
    clients: PerClient,
}

/// A number for each client. Clients with a count of 0 are removed, so there are never more entries
/// than there are sessions.
#[derive(Debug, Default)]
struct PerClient(Mutex<HashMap<ClientKey, u32>>);

/// A dial, which counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Dial<'a> {
    dials: &'a Dials,
    client: ClientKey,
}

impl Dials {
    pub(crate) fn new(max_per_client: NonZeroU32) -> Self {
        Self {
            max_per_client,
            clients: PerClient::default(),
        }
    }

    /// Counts one more dial for `client`. Returns `None` if the client has reached its limit.
    pub(crate) fn begin(&self, client: IpAddr) -> Option<Dial<'_>> {
        let client = ClientKey::from(client);
        let is_counted = self.clients.add(client, self.max_per_client);
        is_counted.then(|| Dial { dials: self, client })
    }
}

impl Drop for Dial<'_> {
    fn drop(&mut self) {
        self.dials.clients.remove(self.client);
    }
}

impl PerClient {
    /// Counts one more. Returns `false` if the client has reached `max`.
    fn add(&self, client: ClientKey, max: NonZeroU32) -> bool {
        let mut clients = self.0.lock();
        // The limit is at least 1, so a new entry is always counted.
        let count = clients.entry(client).or_insert(0);
        let is_below = *count < max.get();
        *count += u32::from(is_below);
        is_below
    }

    fn remove(&self, client: ClientKey) {
        if let Entry::Occupied(mut count) = self.0.lock().entry(client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Adds to a count. Returns `false` if it would exceed `max`, and does not change then.
fn count(counted: &AtomicUsize, more: usize, max: usize) -> bool {
    let add = |before: usize| before.checked_add(more).filter(|sum| *sum <= max);
    counted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

impl Admission {
    /// Creates the limits: `max` sessions in total (at least 1), and `max_per_client` sessions for
    /// each client.
    pub(crate) fn new(what: &'static str, max: usize, max_per_client: Option<NonZeroU32>) -> Arc<Self> {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            what,
            max: max.into(),
            free: Semaphore::new(max),
            owed: AtomicUsize::new(0),
            waits: AtomicU64::new(0),
            wanted: Notify::new(),
            throttle: Mutex::default(),
            max_per_client: max_per_client.map_or(0, NonZeroU32::get).into(),
            clients: PerClient::default(),
            max_datagrams: usize::MAX.into(),
            datagrams: AtomicUsize::new(0),
            max_ports: usize::MAX.into(),
            ports: AtomicUsize::new(0),
        })
    }

    /// Changes the limits. Sessions above a lower limit continue. Only one caller at a time may
    /// change them.
    ///
    /// A session counts towards its client only if there was a limit for each client at its start.
    pub(crate) fn set(&self, max: usize, max_per_client: Option<NonZeroU32>) {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        let before = self.max.swap(max, Ordering::Relaxed);
        if max >= before {
            self.free_permits(max - before);
        } else {
            let missing = before - max;
            let taken = self.free.forget_permits(missing);
            self.owed.fetch_add(missing - taken, Ordering::Relaxed);
        }
        let max_per_client = max_per_client.map_or(0, NonZeroU32::get);
        self.max_per_client.store(max_per_client, Ordering::Relaxed);
    }

    /// Changes the limit on sessions of `forward --udp`, and the limit on ports of all sessions of
    /// datagrams. Anybody can forge clients of `forward --udp`, so they must not take the permits
    /// of other services.
    pub(crate) fn limit_datagrams(&self, max: usize, max_ports: usize) {
        self.max_datagrams.store(max, Ordering::Relaxed);
        self.max_ports.store(max_ports, Ordering::Relaxed);
    }

    /// Gives permits back, first those that are above the limit.
    fn free_permits(&self, permits: usize) {
        let pay = |owed: usize| Some(owed.saturating_sub(permits));
        let owed = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        let paid = owed.unwrap_or(0).min(permits);
        self.free.add_permits(permits - paid);
    }

    /// Waits for a permit. Waiters get their permits in order.
    ///
    /// Cancel safe: a dropped waiter does not hold a permit.
    pub(super) async fn admit(self: &Arc<Self>) -> SessionPermit {
        let permit = match self.free.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                self.full(Instant::now());
                self.wanted.notify_one();
                self.free.acquire().await.expect("the semaphore is never closed")
            }
        };
        // `SessionPermit` gives it back when it is dropped.
        permit.forget();
        self.permit()
    }

    /// Returns a permit for a session of `forward --udp`, if one is free. Nobody waits for it, so
    /// this is no wait.
    ///
    /// # Errors
    /// Returns the limit that is reached.
    pub(crate) fn try_admit_datagrams(self: &Arc<Self>) -> Result<SessionPermit, usize> {
        let max = self.max_datagrams.load(Ordering::Relaxed);
        if !count(&self.datagrams, 1, max) {
            return Err(max);
        }
        let mut permit = self.empty_permit();
        permit.is_of_datagrams = true;
        permit.takes_ports(1)?;
        self.free.try_acquire().map_err(|_| self.max())?.forget();
        permit.permits = 1;
        Ok(permit)
    }

    /// Returns a permit for a session that runs already, even above the limit.
    pub(crate) fn readmit(self: &Arc<Self>) -> SessionPermit {
        match self.free.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(_) => {
                self.owed.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.permit()
    }

    /// Returns what a session holds that has taken one permit of the semaphore.
    fn permit(self: &Arc<Self>) -> SessionPermit {
        let mut permit = self.empty_permit();
        permit.permits = 1;
        permit
    }

    /// Returns what a session holds before it has taken a permit of the semaphore.
    fn empty_permit(self: &Arc<Self>) -> SessionPermit {
        SessionPermit {
            admission: Arc::clone(self),
            permits: 0,
            is_of_datagrams: false,
            ports: 0,
            client: None,
        }
    }

    /// Counts a wait. Logs that the limit is reached, at most once per [`LogThrottle::EVERY`].
    fn full(&self, now: Instant) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        if self.throttle.lock().admits(now) {
            tracing::warn!(
                max = self.max(),
                "the limit on {} is reached: new clients wait",
                self.what
            );
        }
    }

    /// Returns the limit on the total number of sessions.
    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns the number of permits that sessions hold.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.max() + self.owed.load(Ordering::Relaxed) - self.free.available_permits()
    }

    /// Returns how many times a listener has had to wait for a permit.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

impl SessionPermit {
    /// Returns whether the limit is reached, so that new clients wait.
    pub(crate) fn is_last(&self) -> bool {
        self.admission.free.available_permits() == 0
    }

    /// Waits until the limit is reached, and this session has waited here for longer than others.
    /// Cancel safe: another session is told then.
    pub(crate) async fn wanted(&self) {
        loop {
            self.admission.wanted.notified().await;
            // No session may have waited here when the limit was reached.
            if self.is_last() {
                return;
            }
        }
    }

    /// Acquires what an association needs: one more permit, for twice the descriptors of a session,
    /// and ports. Returns `false` if no permit or no port is left.
    pub(crate) fn widen(&mut self) -> bool {
        if self.takes_ports(PORTS_OF_ASSOCIATION).is_err() {
            return false;
        }
        let Ok(permit) = self.admission.free.try_acquire() else {
            return false;
        };
        permit.forget();
        self.permits += 1;
        true
    }

    /// Counts ports for this session.
    ///
    /// # Errors
    /// Returns the limit that is reached.
    fn takes_ports(&mut self, ports: usize) -> Result<(), usize> {
        let max = self.admission.max_ports.load(Ordering::Relaxed);
        if !count(&self.admission.ports, ports, max) {
            return Err(max);
        }
        self.ports += ports;
        Ok(())
    }

    /// Counts this session towards `client` from now on. Returns `false` if `client` has reached
    /// its limit. The session then does not count towards any client.
    ///
    /// This step is separate from [`Admission::admit`], because the client may be behind another
    /// proxy. The client's address is known only after that proxy has sent it.
    pub(crate) fn count(&mut self, client: IpAddr) -> bool {
        let Some(max) = NonZeroU32::new(self.admission.max_per_client.load(Ordering::Relaxed)) else {
            return true;
        };
        self.uncount();
        let client = ClientKey::from(client);
        let is_counted = self.admission.clients.add(client, max);
        self.client = is_counted.then_some(client);
        is_counted
    }

    fn uncount(&mut self) {
        if let Some(client) = self.client.take() {
            self.admission.clients.remove(client);
        }
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        self.uncount();
        if self.is_of_datagrams {
            self.admission.datagrams.fetch_sub(1, Ordering::Relaxed);
        }
        self.admission.ports.fetch_sub(self.ports, Ordering::Relaxed);
        self.admission.free_permits(self.permits as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Returns a permit, which must be free.
    fn admitted(admission: &Arc<Admission>) -> SessionPermit {
        match poll(pin!(admission.admit())) {
            Poll::Ready(permit) => permit,
            Poll::Pending => panic!("no permit: {admission:?}"),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn at_the_limit_a_new_session_waits_until_another_one_ends() {
        let admission = Admission::new("sessions", 2, None);
        let (first, _second) = (admitted(&admission), admitted(&admission));
        let mut third = pin!(admission.admit());
        assert!(poll(third.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
        assert_eq!((admission.taken(), admission.waits()), (2, 1), "a wait counts once");
        drop(first);
        assert!(poll(third.as_mut()).is_ready());
    }

    #[test]
    fn a_dropped_waiter_does_not_hold_a_permit() {
        let admission = Admission::new("sessions", 1, None);
        let first = admitted(&admission);
        {
            let mut second = pin!(admission.admit());
            assert!(poll(second.as_mut()).is_pending());
            drop(first);
            // The second waiter has received the permit and is dropped here.
        }
        assert_eq!(admission.taken(), 0);
        drop(admitted(&admission));
        assert_eq!(admission.taken(), 0);
    }

    #[test]
    fn a_session_may_take_a_second_permit_and_returns_both() {
        let admission = Admission::new("sessions", 3, None);
        let (mut first, mut second) = (admitted(&admission), admitted(&admission));
        assert!(first.widen() && !second.widen());
        assert_eq!(admission.taken(), 3);
        drop(second);
        drop(first);
        assert_eq!(admission.taken(), 0);
    }

    #[test]
    fn datagrams_have_a_limit_of_their_own_within_that_of_all_sessions() {
        let admission = Admission::new("sessions", 3, None);
        admission.limit_datagrams(2, usize::MAX);
        let datagrams = [(); 2].map(|()| admission.try_admit_datagrams().unwrap());
        assert_eq!(admission.try_admit_datagrams().unwrap_err(), 2);
        let third = admitted(&admission);
        drop(datagrams);
        let others = [(); 2].map(|()| admitted(&admission));
        assert_eq!(admission.try_admit_datagrams().unwrap_err(), 3, "no permit is left");
        drop((third, others));
        let datagrams = [(); 2].map(|()| admission.try_admit_datagrams().unwrap());
        assert_eq!(admission.taken(), datagrams.len());
    }

    #[test]
    fn sessions_of_datagrams_and_associations_share_the_ports() {
        let admission = Admission::new("sessions", 100, None);
        admission.limit_datagrams(usize::MAX, 4);
        let mut associations = [(); 2].map(|()| admitted(&admission));
        assert!(associations[0].widen());
        let datagrams = [(); 2].map(|()| admission.try_admit_datagrams().unwrap());
        assert_eq!(admission.try_admit_datagrams().unwrap_err(), 4);
        assert!(!associations[1].widen());
        assert_eq!(admission.taken(), 5, "a refusal takes nothing");
        drop(datagrams);
        assert!(associations[1].widen() && admission.try_admit_datagrams().is_err());
        drop(associations);
        assert_eq!((admission.taken(), admission.ports.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_changed_limit_counts_the_sessions_that_were_there_before() {
        let admission = Admission::new("sessions", 3, None);
        let mut permits: Vec<_> = (0..3).map(|_| admitted(&admission)).collect();
        admission.set(1, None);
        assert_eq!((admission.max(), admission.taken()), (1, 3));
        let mut next = pin!(admission.admit());
        for _ in 0..2 {
            permits.pop();
            assert!(poll(next.as_mut()).is_pending(), "one session may run");
        }
        permits.pop();
        assert!(poll(next.as_mut()).is_ready());
        admission.set(4, None);
        let permits: Vec<_> = (0..4).map(|_| admitted(&admission)).collect();
        admission.set(2, None);
        admission.set(4, None);
        let mut fifth = pin!(admission.admit());
        assert!(poll(fifth.as_mut()).is_pending());
        drop(permits);
        assert_eq!(admission.taken(), 1, "the waiter has its permit");
    }

    #[test]
    fn a_limit_of_zero_admits_one_session() {
        assert_eq!(Admission::new("sessions", 0, None).max(), 1);
    }

    #[test]
    fn each_client_has_its_own_limit_on_sessions() {
        let admission = Admission::new("sessions", 100, NonZeroU32::new(2));
        let mut permits: Vec<_> = (0..5).map(|_| admitted(&admission)).collect();
        assert!(permits[0].count(ip("192.0.2.1")) && permits[1].count(ip("::ffff:192.0.2.1")));
        assert!(!permits[2].count(ip("192.0.2.1")));
        assert!(permits[3].count(ip("192.0.2.2")));
        permits.remove(0);
        assert!(permits[1].count(ip("192.0.2.1")), "one has gone");
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_client() {
        let admission = Admission::new("sessions", 100, NonZeroU32::new(1));
        let mut permits: Vec<_> = (0..3).map(|_| admitted(&admission)).collect();
        assert!(permits[0].count(ip("2001:db8:0:1::1")));
        assert!(!permits[1].count(ip("2001:db8:0:1:ffff::2")));
        assert!(permits[2].count(ip("2001:db8:0:2::1")));
    }

    #[test]
    fn a_session_counts_for_one_client_and_leaves_no_entry() {
        let admission = Admission::new("sessions", 100, NonZeroU32::new(1));
        let mut permit = admitted(&admission);
        assert!(permit.count(ip("192.0.2.1")) && permit.count(ip("192.0.2.1")));
        assert!(permit.count(ip("192.0.2.2")), "the client behind the proxy");
        assert_eq!(admission.clients.0.lock().len(), 1);
        let mut refused = admitted(&admission);
        assert!(!refused.count(ip("192.0.2.2")));
        drop((permit, refused));
        assert_eq!((admission.clients.0.lock().len(), admission.taken()), (0, 0));
    }

    #[test]
    fn a_refused_dial_does_not_uncount_another() {
        let dials = Dials::new(NonZeroU32::new(2).unwrap());
        let client = IpAddr::from([192, 0, 2, 1]);
        let held = [dials.begin(client), dials.begin(client)];
        assert!(held.iter().all(Option::is_some));
        for _ in 0..3 {
            assert!(dials.begin(client).is_none());
        }
        drop(held);
        assert!(dials.begin(client).is_some());
    }
}
