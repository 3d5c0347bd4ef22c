//! Slows down guessing: a client that fails has to wait, and each further failure makes the wait
//! longer.

use parking_lot::{Mutex, MutexGuard};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::turns::{Turn, Turns};
use crate::kit::client_key::ClientKey;

/// The number of failures without a penalty, for a mistyped name or password.
const FREE: u32 = 3;
/// The penalty for the first failure after the free ones. Each further failure doubles it.
const FIRST: Duration = Duration::from_secs(1);
/// After this time without a failure, the count of an address is reset.
const FORGET: Duration = Duration::from_secs(600);
/// The maximum number of addresses. Each of them uses about 200 bytes.
pub(crate) const CLIENTS_MAX: usize = 10_000;
/// The number of failed clients of an IPv6 network of 48 bits from which all its clients count as
/// failed. Many providers assign such a network to one customer, who then has 65,536 clients.
const FAILED_IN_NETWORK: usize = 16;
/// The most expired clients that one change drops.
const EXPIRED_MAX: usize = 8;

/// The addresses from which authentication failed recently. An IPv6 address counts as its /64
/// network, because a client with one address of the network has all of them.
pub(crate) struct Penalties {
    /// The longest penalty. Zero turns penalties off, but failures are still counted.
    longest: Duration,
    turns: Turns,
    table: Mutex<Table>,
}

/// The failures of clients, in three orders. A change searches a few nodes of a tree, however many
/// addresses there are.
#[derive(Default)]
struct Table {
    clients: HashMap<ClientKey, Failures>,
    /// The same clients, ordered by the time of their last failure. The first ones expire first.
    by_time: BTreeSet<(Instant, ClientKey)>,
    /// The same clients, ordered by the number of their failures. Clients with the fewest failures
    /// come first.
    by_count: BTreeSet<(u32, Instant, ClientKey)>,
    /// The number of these clients in each IPv6 network of 48 bits.
    networks: HashMap<u128, usize>,
}

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Penalties {
    /// Creates penalties of at most `longest`. Zero turns them off.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            longest,
            turns: Turns::default(),
            table: Mutex::default(),
        }
    }

    /// Waits until no other password from this client is being checked. The result of
    /// [`Self::wait`] then stays valid until the turn is dropped. Returns `None` if too many
    /// passwords from this client are already waiting. `client` is `None` for a client of a Unix
    /// socket.
    pub(crate) async fn turn(&self, client: Option<IpAddr>) -> Option<Turn<'_>> {
        self.turns.wait(client.map(ClientKey::from)).await
    }

    /// Records that this client's password was not checked, because too many other checks were
    /// waiting. If the client retries, it does not get ahead of clients that try for the first
    /// time. This event is not a failure and has no penalty.
    pub(crate) fn turned_away(&self, client: IpAddr, now: Instant) {
        self.table().turned_away(client.into(), now, self.forget());
    }

    /// Returns how long this client has to wait. During the wait, this client can only use a
    /// password that was accepted before.
    pub(crate) fn wait(&self, client: IpAddr, now: Instant) -> Option<Duration> {
        let failures = *self.table().clients.get(&client.into())?;
        let until = failures.last + failures.penalty(self.longest);
        (now < until).then(|| until - now)
    }

    /// Returns whether a password from this client was wrong recently, or the client was turned
    /// away. If that holds for many clients of an IPv6 network, it holds for all of them.
    /// Otherwise, a flood from there would always look like first logins.
    pub(crate) fn has_failed(&self, client: IpAddr, now: Instant) -> bool {
        let (table, client) = (self.table(), ClientKey::from(client));
        let failures = table.clients.get(&client);
        let of_network = network(client).and_then(|network| table.networks.get(&network));
        failures.is_some_and(|failures| now <= failures.last + self.forget())
            || of_network.is_some_and(|failed| *failed >= FAILED_IN_NETWORK)
    }

    /// Records that a password from this client was wrong.
    pub(crate) fn failed(&self, client: IpAddr, now: Instant) {
        self.table().failed(client.into(), now, self.forget());
    }

    /// Returns the clients from which authentication failed recently, with the number of failures
    /// and the time since the last one. Another process can [add](Self::add) them to its own.
    pub(crate) fn known(&self, now: Instant) -> Vec<(IpAddr, u32, Duration)> {
        let table = self.table();
        let since = |failures: &Failures| now.saturating_duration_since(failures.last);
        let known = table
            .clients
            .iter()
            .filter(|(_, failures)| since(failures) <= self.forget());
        known
            .map(|(client, failures)| (client.ip(), failures.count, since(failures)))
            .collect()
    }

    /// Adds what another process knows about a client. Its failures are those of this process if
    /// this process has counted more of them.
    pub(crate) fn add(&self, client: IpAddr, count: u32, since: Duration, now: Instant) {
        let last = now.checked_sub(since).unwrap_or(now);
        self.table()
            .add(client.into(), Failures { count, last }, now, self.forget());
    }

    /// Returns the time without a failure after which the count of an address is reset. No penalty
    /// is longer.
    fn forget(&self) -> Duration {
        FORGET.max(self.longest)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A change that stopped halfway would leave an address in only some of the orders. However,
        // no change can panic.
        self.table.lock()
    }
}

impl Table {
    fn failed(&mut self, client: ClientKey, now: Instant, forget: Duration) {
        let before = self.take(client).filter(|failures| now <= failures.last + forget);
        let count = before.map_or(0, |failures| failures.count).saturating_add(1);
        self.insert(client, count, now, forget);
    }

    fn turned_away(&mut self, client: ClientKey, now: Instant, forget: Duration) {
        // An existing entry does not change.
        if !self.clients.contains_key(&client) {
            self.insert(client, 0, now, forget);
        }
    }

    fn add(&mut self, client: ClientKey, mut failures: Failures, now: Instant, forget: Duration) {
        if now > failures.last + forget {
            return;
        }
        if let Some(own) = self.take(client).filter(|own| now <= own.last + forget) {
            failures.count = failures.count.max(own.count);
            failures.last = failures.last.max(own.last);
        }
        self.make_room(now, forget);
        self.put(client, failures);
    }

    /// Adds `client`, which must not be in the table.
    fn insert(&mut self, client: ClientKey, count: u32, now: Instant, forget: Duration) {
        self.make_room(now, forget);
        self.put(client, Failures { count, last: now });
    }

    fn put(&mut self, client: ClientKey, failures: Failures) {
        if let Some(network) = network(client) {
            *self.networks.entry(network).or_insert(0) += 1;
        }
        self.clients.insert(client, failures);
        self.by_time.insert((failures.last, client));
        self.by_count.insert((failures.count, failures.last, client));
    }

    fn take(&mut self, client: ClientKey) -> Option<Failures> {
        let failures = self.clients.remove(&client)?;
        self.by_time.remove(&(failures.last, client));
        self.by_count.remove(&(failures.count, failures.last, client));
        if let Some(network) = network(client)
            && let Entry::Occupied(mut failed) = self.networks.entry(network)
        {
            *failed.get_mut() -= 1;
            if *failed.get() == 0 {
                failed.remove();
            }
        }
        Some(failures)
    }

    /// Drops expired clients. If the table is full, it also drops the one with the fewest failures:
    /// addresses that try only once are not worth remembering.
    fn make_room(&mut self, now: Instant, forget: Duration) {
        let is_expired = |(last, _): &(Instant, ClientKey)| now > *last + forget;
        for _ in 0..EXPIRED_MAX {
            let Some((_, client)) = self.by_time.first().copied().filter(is_expired) else {
                break;
            };
            self.take(client);
        }
        if self.clients.len() >= CLIENTS_MAX
            && let Some((_, _, client)) = self.by_count.first().copied()
        {
            self.take(client);
        }
    }
}

/// Returns the IPv6 network of 48 bits that a client is in.
fn network(client: ClientKey) -> Option<u128> {
    match client.ip() {
        IpAddr::V6(ip) => Some(ip.to_bits() >> 80),
        IpAddr::V4(_) => None,
    }
}

impl Failures {
    fn penalty(self, longest: Duration) -> Duration {
        match self.count.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doublings) => FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);
    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// Returns how long a client must wait after its next failure.
    fn wait_after(penalties: &Penalties, now: Instant) -> Duration {
        penalties.failed(CLIENT, now);
        let mut waits = (0..=LONGEST.as_secs() + 1).map(Duration::from_secs);
        waits
            .find(|wait| penalties.wait(CLIENT, now + *wait).is_none())
            .unwrap()
    }

    #[test]
    fn three_failures_are_free_and_each_further_one_costs_twice_as_much() {
        let (penalties, mut now) = (Penalties::new(LONGEST), Instant::now());
        let waits: Vec<u64> = (0..12)
            .map(|_| {
                let wait = wait_after(&penalties, now);
                now += wait;
                wait.as_secs()
            })
            .collect();
        assert_eq!(waits, [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn a_while_without_failure_resets_the_count() {
        let (penalties, now) = (Penalties::new(LONGEST), Instant::now());
        (0..20).for_each(|_| penalties.failed(CLIENT, now));
        let later = now + FORGET + Duration::from_secs(1);
        assert_eq!(wait_after(&penalties, later), Duration::ZERO);
    }

    #[test]
    fn a_penalty_applies_to_one_ipv4_address_or_one_ipv6_network() {
        let (penalties, now) = (Penalties::new(LONGEST), Instant::now());
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        for client in [CLIENT, v6] {
            (0..4).for_each(|_| penalties.failed(client, now));
        }
        let holds = |client: &str| penalties.wait(client.parse().unwrap(), now).is_some();
        assert!(holds("192.0.2.1") && holds("::ffff:192.0.2.1") && holds("2001:db8::2"));
        assert!(!holds("192.0.2.2") && !holds("2001:db8:0:1::1"));
    }

    #[test]
    fn many_failed_clients_of_an_ipv6_network_make_the_others_failed_ones() {
        let (penalties, now) = (Penalties::new(LONGEST), Instant::now());
        let client = |net: usize, host: usize| format!("2001:db8:{net:x}:{host:x}::1").parse::<IpAddr>().unwrap();
        for host in 1..FAILED_IN_NETWORK {
            penalties.turned_away(client(1, host), now);
            penalties.failed(client(1, host), now);
        }
        assert!(!penalties.has_failed(client(1, 0), now));
        penalties.turned_away(client(1, FAILED_IN_NETWORK), now);
        assert!(penalties.has_failed(client(1, 0), now) && penalties.wait(client(1, 0), now).is_none());
        assert!(!penalties.has_failed(client(2, 0), now) && !penalties.has_failed(CLIENT, now));
        let later = now + FORGET + Duration::from_secs(1);
        (0..3).for_each(|_| penalties.failed(client(2, 0), later));
        assert!(!penalties.has_failed(client(1, 0), later));
        assert_eq!(penalties.table().networks.len(), 1);
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_client_with_the_most_failures() {
        let (penalties, now) = (Penalties::new(LONGEST), Instant::now());
        (0..10).for_each(|_| penalties.failed(CLIENT, now));
        for host in 0..u32::try_from(CLIENTS_MAX).unwrap() + 100 {
            penalties.failed(std::net::Ipv4Addr::from_bits(0x0a00_0000 + host).into(), now);
        }
        assert_eq!(penalties.table().clients.len(), CLIENTS_MAX);
        assert!(penalties.wait(CLIENT, now).is_some());
    }

    #[test]
    fn an_expired_client_is_dropped_first_and_the_orders_stay_consistent() {
        let (penalties, start) = (Penalties::new(LONGEST), Instant::now());
        let host = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
        (0..50).for_each(|_| penalties.failed(CLIENT, start));
        let later = start + FORGET + Duration::from_secs(1);
        for number in 0..20_000 {
            penalties.failed(host(number % 11_000), later + Duration::from_millis(number.into()));
            let table = penalties.table();
            let sizes = (table.clients.len(), table.by_time.len(), table.by_count.len());
            assert_eq!(sizes, (table.clients.len(), table.clients.len(), table.clients.len()));
            assert!(table.clients.len() <= CLIENTS_MAX);
        }
        assert!(
            !penalties.table().clients.contains_key(&CLIENT.into()),
            "it is forgotten, whatever its count"
        );
    }

    #[test]
    fn a_client_that_was_turned_away_is_known_but_has_no_penalty() {
        let (penalties, now) = (Penalties::new(LONGEST), Instant::now());
        penalties.turned_away(CLIENT, now);
        assert!(penalties.has_failed(CLIENT, now));
        (0..3).for_each(|_| penalties.failed(CLIENT, now));
        assert!(penalties.wait(CLIENT, now).is_none(), "three are free");
        penalties.failed(CLIENT, now);
        let later = now + FIRST / 2;
        penalties.turned_away(CLIENT, later);
        assert_eq!(penalties.wait(CLIENT, later), Some(FIRST / 2));
    }

    #[test]
    fn another_process_continues_the_penalties_and_forgives_nothing() {
        let (old, new, start) = (Penalties::new(LONGEST), Penalties::new(LONGEST), Instant::now());
        (0..6).for_each(|_| old.failed(CLIENT, start));
        old.turned_away("192.0.2.2".parse().unwrap(), start);
        let now = start + Duration::from_secs(1);
        new.failed("192.0.2.2".parse().unwrap(), now);
        // What is sent twice counts once.
        for _ in 0..2 {
            old.known(now)
                .into_iter()
                .for_each(|(client, count, since)| new.add(client, count, since, now));
        }
        assert_eq!(new.wait(CLIENT, now), old.wait(CLIENT, now));
        assert_eq!(new.wait(CLIENT, now), Some(Duration::from_secs(3)));
        new.failed(CLIENT, now);
        assert_eq!(new.wait(CLIENT, now), Some(Duration::from_secs(8)));
        // An older count does not lower it.
        new.add(CLIENT, 4, Duration::from_secs(1), now);
        assert_eq!(new.wait(CLIENT, now), Some(Duration::from_secs(8)));
        new.add("192.0.2.3".parse().unwrap(), 9, FORGET * 2, now);
        assert_eq!(new.known(now).len(), 2, "a forgotten client is not added");
        let later = start + FORGET + Duration::from_millis(1);
        assert!(old.known(later).is_empty());
    }

    #[test]
    fn without_penalties_clients_do_not_wait_but_failures_are_known() {
        let (penalties, now) = (Penalties::new(Duration::ZERO), Instant::now());
        (0..20).for_each(|_| penalties.failed(CLIENT, now));
        assert!(penalties.wait(CLIENT, now).is_none() && penalties.has_failed(CLIENT, now));
    }

    #[test]
    fn the_longest_penalty_is_the_configured_one() {
        let (penalties, now) = (Penalties::new(Duration::from_secs(3600)), Instant::now());
        (0..30).for_each(|_| penalties.failed(CLIENT, now));
        assert_eq!(penalties.wait(CLIENT, now), Some(Duration::from_secs(3600)));
    }
}
