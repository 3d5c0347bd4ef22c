//! The clock is paused in these tests. It jumps to the next deadline when nothing else can happen.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::sleep;

use super::super::happy_eyeballs::{ATTEMPT_DELAY, Family, RESOLUTION_DELAY};
use super::super::socket::Call;
use super::*;
use crate::access::policy::Denied;

const TIME: Duration = Duration::from_secs(10);
const FAST: Duration = Duration::from_millis(5);
const PORT: u16 = 80;
const MODEL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT);
const NEVER: Duration = Duration::from_secs(1_000_000);

/// The result of an attempt, and the time that it takes.
#[derive(Clone, Copy)]
enum Fate {
    Connects(Duration),
    Refused(Duration),
    Denied,
}

/// A fake network: addresses and the results of attempts to reach them. The references to `held`
/// count the attempts and connections that exist.
struct Network {
    fates: Vec<(&'static str, Fate)>,
    held: Arc<()>,
}

impl Network {
    fn new(fates: &[(&'static str, Fate)]) -> Self {
        Self {
            fates: fates.to_vec(),
            held: Arc::new(()),
        }
    }

    fn all(&self) -> HappyEyeballs {
        HappyEyeballs::with_addresses(self.fates.iter().map(|(ip, _)| ip.parse().unwrap()))
    }

    fn attempt(&self, address: SocketAddr) -> Pending<'static, Result<(IpAddr, Arc<()>), DialError>> {
        let ip = address.ip();
        let fate = self.fates.iter().find(|(known, _)| known.parse() == Ok(ip));
        let fate = fate.unwrap_or_else(|| panic!("{ip} is tried")).1;
        let held = Arc::clone(&self.held);
        Box::pin(async move {
            let (after, outcome) = match fate {
                Fate::Connects(after) => (after, Ok((ip, held))),
                Fate::Refused(after) => (after, Err(DialError::Unreachable(Target::Ip(address), refused()))),
                Fate::Denied => (Duration::ZERO, Err(DialError::Denied(Denied::Private, Some(ip)))),
            };
            // Sleeps because an attempt does nothing else here. The clock is paused.
            sleep(after).await;
            outcome
        })
    }

    /// Returns the winner or the error, and the time that it took.
    async fn run(
        &self,
        eyeballs: HappyEyeballs,
        lookups: Vec<Pending<'_, Found>>,
    ) -> (Result<String, DialError>, Duration) {
        let start = Instant::now();
        let won = first_to_connect(eyeballs, lookups, MODEL, |address| self.attempt(address), start + TIME).await;
        let took = start.elapsed();
        if let Ok((_, held)) = &won {
            assert_eq!(Arc::strong_count(held), 2, "whoever lost is gone when somebody has won");
        }
        (won.map(|(ip, _)| ip.to_string()), took)
    }
}

fn refused() -> SocketError {
    SocketError {
        call: Call::Connect,
        error: Errno::CONNREFUSED.into(),
    }
}

fn answer(family: Family, addresses: &[&str], after: Duration) -> Pending<'static, Found> {
    let addresses = Ok(addresses.iter().map(|ip| ip.parse().unwrap()).collect());
    Box::pin(async move {
        // Sleeps because a lookup does nothing else here. The clock is paused.
        sleep(after).await;
        Found {
            family,
            addresses,
            no_such_name: false,
        }
    })
}

fn failure(family: Family, error: LookupError) -> Pending<'static, Found> {
    Box::pin(async move {
        Found {
            family,
            addresses: Err(error),
            no_such_name: false,
        }
    })
}

#[tokio::test(start_paused = true)]
async fn an_address_that_does_not_answer_costs_a_quarter_of_a_second() {
    let network = Network::new(&[
        ("2001:db8::1", Fate::Connects(NEVER)),
        ("192.0.2.1", Fate::Connects(FAST)),
    ]);
    let (won, took) = network.run(network.all(), Vec::new()).await;
    assert_eq!((won.unwrap().as_str(), took), ("192.0.2.1", ATTEMPT_DELAY + FAST));
}

#[tokio::test(start_paused = true)]
async fn the_first_connection_wins_even_if_it_was_not_tried_first() {
    let slow = ATTEMPT_DELAY + 10 * FAST;
    let network = Network::new(&[
        ("2001:db8::1", Fate::Connects(slow)),
        ("192.0.2.1", Fate::Connects(FAST)),
    ]);
    let (won, took) = network.run(network.all(), Vec::new()).await;
    assert_eq!((won.unwrap().as_str(), took), ("192.0.2.1", ATTEMPT_DELAY + FAST));
    let network = Network::new(&[
        ("2001:db8::1", Fate::Connects(slow)),
        ("192.0.2.1", Fate::Connects(NEVER)),
    ]);
    let (won, took) = network.run(network.all(), Vec::new()).await;
    assert_eq!((won.unwrap().as_str(), took), ("2001:db8::1", slow));
}

#[tokio::test(start_paused = true)]
async fn after_a_refusal_the_next_address_is_tried_immediately() {
    let network = Network::new(&[
        ("2001:db8::1", Fate::Refused(FAST)),
        ("192.0.2.1", Fate::Refused(FAST)),
        ("192.0.2.2", Fate::Connects(FAST)),
    ]);
    let (won, took) = network.run(network.all(), Vec::new()).await;
    assert_eq!((won.unwrap().as_str(), took), ("192.0.2.2", 3 * FAST));
}

#[tokio::test(start_paused = true)]
async fn a_denied_address_is_skipped() {
    let network = Network::new(&[("2001:db8::1", Fate::Denied), ("192.0.2.1", Fate::Connects(FAST))]);
    let (won, took) = network.run(network.all(), Vec::new()).await;
    assert_eq!((won.unwrap().as_str(), took), ("192.0.2.1", FAST));
}

#[tokio::test(start_paused = true)]
async fn if_all_attempts_fail_a_denial_or_the_last_failure_is_reported() {
    let network = Network::new(&[("192.0.2.1", Fate::Refused(FAST)), ("192.0.2.2", Fate::Refused(FAST))]);
    let (lost, took) = network.run(network.all(), Vec::new()).await;
    assert!(
        matches!(lost, Err(DialError::Unreachable(Target::Ip(address), _)) if address == ([192, 0, 2, 2], PORT).into())
    );
    assert_eq!(took, 2 * FAST);
    for fates in [
        [("192.0.2.1", Fate::Denied), ("192.0.2.2", Fate::Refused(FAST))],
        [("192.0.2.1", Fate::Refused(FAST)), ("192.0.2.2", Fate::Denied)],
        [("192.0.2.1", Fate::Denied), ("192.0.2.2", Fate::Connects(NEVER))],
    ] {
        let network = Network::new(&fates);
        let (lost, _) = network.run(network.all(), Vec::new()).await;
        assert!(matches!(lost, Err(DialError::Denied(Denied::Private, Some(_)))));
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_running_attempts() {
    let network = Network::new(&[
        ("192.0.2.1", Fate::Connects(NEVER)),
        ("192.0.2.2", Fate::Connects(NEVER)),
    ]);
    let (lost, took) = network.run(network.all(), Vec::new()).await;
    let Err(DialError::Unreachable(Target::Ip(address), failed)) = lost else {
        panic!("{lost:?}")
    };
    assert_eq!(
        (address, failed.error.kind()),
        (([192, 0, 2, 2], PORT).into(), std::io::ErrorKind::TimedOut)
    );
    assert_eq!(took, TIME);
    assert_eq!(Arc::strong_count(&network.held), 1);
}

#[tokio::test(start_paused = true)]
async fn a_missing_answer_delays_the_other_family_by_50_ms() {
    let network = Network::new(&[("192.0.2.1", Fate::Connects(FAST))]);
    let lookups = vec![answer(Family::V6, &[], NEVER), answer(Family::V4, &["192.0.2.1"], FAST)];
    let (won, took) = network.run(HappyEyeballs::looking_up(), lookups).await;
    assert_eq!(
        (won.unwrap().as_str(), took),
        ("192.0.2.1", FAST + RESOLUTION_DELAY + FAST)
    );
}

#[tokio::test(start_paused = true)]
async fn ipv6_does_not_wait_for_ipv4_s_answer() {
    let network = Network::new(&[("2001:db8::1", Fate::Connects(FAST))]);
    let lookups = vec![
        answer(Family::V6, &["2001:db8::1"], FAST),
        answer(Family::V4, &["192.0.2.1"], NEVER),
    ];
    let (won, took) = network.run(HappyEyeballs::looking_up(), lookups).await;
    assert_eq!((won.unwrap().as_str(), took), ("2001:db8::1", 2 * FAST));
}

#[tokio::test(start_paused = true)]
async fn late_addresses_are_tried_too() {
    let network = Network::new(&[
        ("2001:db8::1", Fate::Connects(FAST)),
        ("192.0.2.1", Fate::Refused(FAST)),
    ]);
    let late = Duration::from_secs(3);
    let lookups = vec![
        answer(Family::V6, &["2001:db8::1"], late),
        answer(Family::V4, &["192.0.2.1"], FAST),
    ];
    let (won, took) = network.run(HappyEyeballs::looking_up(), lookups).await;
    assert_eq!((won.unwrap().as_str(), took), ("2001:db8::1", late + FAST));
}

#[tokio::test(start_paused = true)]
async fn a_missing_answer_delays_a_failure_by_seconds_only() {
    let network = Network::new(&[("192.0.2.1", Fate::Refused(FAST))]);
    let lookups = vec![answer(Family::V6, &[], NEVER), answer(Family::V4, &["192.0.2.1"], FAST)];
    let (lost, took) = network.run(HappyEyeballs::looking_up(), lookups).await;
    assert!(matches!(lost, Err(DialError::Unreachable(..))));
    assert_eq!(took, 2 * FAST + RESOLUTION_DELAY + LATE_ANSWER_DELAY);
    let no_such_name: Pending<'_, Found> = Box::pin(async {
        Found {
            family: Family::V4,
            addresses: Ok(Vec::new()),
            no_such_name: true,
        }
    });
    let lookups = vec![answer(Family::V6, &[], NEVER), no_such_name];
    let (lost, took) = network.run(HappyEyeballs::looking_up(), lookups).await;
    assert!(matches!(lost, Err(DialError::Unresolved(LookupError::NoAddress))));
    assert_eq!(took, NO_NAME_DELAY);
}

#[tokio::test(start_paused = true)]
async fn without_an_address_the_error_of_the_lookup_is_reported() {
    let network = Network::new(&[]);
    let failed = LookupError::Failed("broken".into());
    for lookups in [
        vec![failure(Family::V6, failed.clone()), answer(Family::V4, &[], FAST)],
        vec![answer(Family::V6, &[], FAST), failure(Family::V4, failed.clone())],
    ] {
        let (lost, _) = network.run(HappyEyeballs::looking_up(), lookups).await;
        assert!(matches!(lost, Err(DialError::Unresolved(error)) if error == failed));
    }
    let lookups = vec![answer(Family::V6, &[], FAST), answer(Family::V4, &[], NEVER)];
    let (lost, took) = network.run(HappyEyeballs::looking_up(), lookups).await;
    assert!(matches!(lost, Err(DialError::Unresolved(LookupError::TimedOut))));
    assert_eq!(took, TIME);
}
