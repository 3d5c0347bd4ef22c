//! How guessing is slowed down: who fails waits, each time longer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::turns::{Turn, Turns};
use crate::admission::ClientKey;

/// Failures that cost nothing: a name or a secret typed wrong.
const FREE: u32 = 3;
/// What the first failure after those costs. Each further one costs twice as much as the one before.
const FIRST: Duration = Duration::from_secs(1);
/// The most that one costs: a guess a minute, and nobody who shares an address is shut out for longer.
const LONGEST: Duration = Duration::from_secs(60);
/// After so long without a failure an address begins anew.
const FORGET: Duration = Duration::from_secs(600);
/// Addresses to remember. Each takes some 60 bytes.
const CLIENTS_MAX: usize = 10_000;

/// The addresses from which authentication failed of late. An IPv6 address counts as its /64: who has one has them all.
#[derive(Default)]
pub(crate) struct Penalties {
    turns: Turns,
    clients: Mutex<HashMap<ClientKey, Failures>>,
}

struct Failures {
    count: u32,
    last: Instant,
}

impl Penalties {
    /// Waits until no other secret of this client is looked at. What [`Self::holds`] says then is true until the turn is over.
    pub(crate) async fn turn(&self, client: IpAddr) -> Turn<'_> {
        self.turns.wait(client.into()).await
    }

    /// Whether this client has to wait. Until it has, no secret of it is looked at: neither a wrong one nor the right one.
    pub(crate) fn holds(&self, client: IpAddr, now: Instant) -> bool {
        let clients = self.clients();
        clients
            .get(&client.into())
            .is_some_and(|failures| now < failures.last + failures.penalty())
    }

    /// A secret of this client was wrong.
    pub(crate) fn failed(&self, client: IpAddr, now: Instant) {
        let mut clients = self.clients();
        let client = ClientKey::from(client);
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&client) {
            make_room(&mut clients, now);
        }
        let failures = clients.entry(client).or_insert(Failures { count: 0, last: now });
        if now > failures.last + FORGET {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ClientKey, Failures>> {
        // Each change is one number or one entry.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn penalty(&self) -> Duration {
        match self.count.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doublings) => FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST),
        }
    }
}

/// Forgets whom it is time to forget, or else who has failed least: of many addresses that try once each none is worth remembering.
fn make_room(clients: &mut HashMap<ClientKey, Failures>, now: Instant) {
    clients.retain(|_, failures| now <= failures.last + FORGET);
    if clients.len() < CLIENTS_MAX {
        return;
    }
    let least = clients
        .iter()
        .min_by_key(|(_, failures)| (failures.count, failures.last))
        .map(|(client, _)| *client);
    if let Some(least) = least {
        clients.remove(&least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// How long a client waits after its next failure.
    fn wait_after(penalties: &Penalties, now: Instant) -> Duration {
        penalties.failed(CLIENT, now);
        let mut waits = (0..=LONGEST.as_secs() + 1).map(Duration::from_secs);
        waits.find(|wait| !penalties.holds(CLIENT, now + *wait)).unwrap()
    }

    #[test]
    fn three_failures_are_free_and_each_further_one_costs_twice_as_much() {
        let (penalties, mut now) = (Penalties::default(), Instant::now());
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
    fn a_while_without_failure_is_a_new_beginning() {
        let (penalties, now) = (Penalties::default(), Instant::now());
        (0..20).for_each(|_| penalties.failed(CLIENT, now));
        let later = now + FORGET + Duration::from_secs(1);
        assert_eq!(wait_after(&penalties, later), Duration::ZERO);
    }

    #[test]
    fn a_client_pays_for_itself_alone_and_an_ipv6_client_for_its_network() {
        let (penalties, now) = (Penalties::default(), Instant::now());
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        for client in [CLIENT, v6] {
            (0..4).for_each(|_| penalties.failed(client, now));
        }
        let holds = |client: &str| penalties.holds(client.parse().unwrap(), now);
        assert!(holds("192.0.2.1") && holds("::ffff:192.0.2.1") && holds("2001:db8::2"));
        assert!(!holds("192.0.2.2") && !holds("2001:db8:0:1::1"));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_who_failed_most_stays() {
        let (penalties, now) = (Penalties::default(), Instant::now());
        (0..10).for_each(|_| penalties.failed(CLIENT, now));
        for host in 0..u32::try_from(CLIENTS_MAX).unwrap() + 100 {
            penalties.failed(std::net::Ipv4Addr::from_bits(0x0a00_0000 + host).into(), now);
        }
        assert_eq!(penalties.clients().len(), CLIENTS_MAX);
        assert!(penalties.holds(CLIENT, now));
    }
}
