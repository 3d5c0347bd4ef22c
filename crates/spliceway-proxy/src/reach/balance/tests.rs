use super::backend::Tried;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spliceway_protocol::address::Target;

use super::lease::TRIES_MAX;
use super::*;
use crate::kit::client_key::ClientKey;
use crate::kit::refusal::Refusal;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a balancer of these backends, each in the form of the flag.
fn balancer(policy: Policy, backends: &[&str], before: Option<&Balancer>) -> Arc<Balancer> {
    balancer_of(policy, backends.iter().map(|text| backend(text)).collect(), before)
}

pub(super) fn balancer_of(policy: Policy, backends: Vec<BackendSettings>, before: Option<&Balancer>) -> Arc<Balancer> {
    let settings = BalanceSettings {
        policy,
        backends,
        eject: EjectSettings {
            after: NonZeroU32::new(1),
            time: 5 * SECOND,
            max_percent: 75,
        },
        queue_max: 2,
        check: None,
        slow_start: Duration::ZERO,
    };
    Balancer::new("web", &settings, before)
}

pub(super) fn backend(text: &str) -> BackendSettings {
    let value: crate::settings::config::Value<crate::settings::config::Remote> = text.parse().unwrap();
    value.parsed()
}

/// Returns a lease that is there immediately.
fn lease(balancer: &Arc<Balancer>, client: Option<ClientKey>, tried: &Tried) -> Result<Lease, Refusal> {
    match pin!(balancer.lease(client, tried, SECOND)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(lease) => lease,
        Poll::Pending => panic!("the client waits"),
    }
}

pub(super) fn any(balancer: &Arc<Balancer>) -> Lease {
    lease(balancer, None, &Tried::default()).unwrap()
}

pub(super) fn target(lease: &Lease) -> String {
    lease.target(0).to_string()
}

fn client(text: &str) -> Option<ClientKey> {
    Some(text.parse::<IpAddr>().unwrap().into())
}

#[test]
fn a_backup_gets_sessions_only_if_all_others_were_tried() {
    let balancer = balancer(Policy::RoundRobin, &["a:1,backup", "b:1", "c:1", "d:1,backup"], None);
    for _ in 0..10 {
        let (mut tried, mut order) = (Tried::default(), Vec::new());
        while let Ok(lease) = lease(&balancer, None, &tried) {
            order.push(target(&lease));
            tried.add(lease);
        }
        assert_eq!(order.len(), 4);
        assert!(
            order[..2].iter().all(|name| name == "b:1" || name == "c:1"),
            "{order:?}"
        );
    }
}

#[test]
fn no_backend_is_tried_twice_and_at_most_four_are() {
    let names: Vec<String> = (1..=9).map(|port| format!("a:{port}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let balancer = balancer(Policy::SourceHash, &names, None);
    let (mut tried, mut seen) = (Tried::default(), Vec::new());
    while let Ok(lease) = lease(&balancer, client("192.0.2.1"), &tried) {
        assert!(!seen.contains(&target(&lease)));
        seen.push(target(&lease));
        tried.add(lease);
    }
    assert_eq!(seen.len(), TRIES_MAX);
}

#[test]
fn a_range_of_ports_maps_to_the_ports_of_each_backend() {
    let balancer = balancer(Policy::First, &["a:10-12"], None);
    let lease = any(&balancer);
    assert_eq!(
        (lease.target(0).target.port(), lease.target(2).target.port()),
        (Some(10), Some(12))
    );
}

#[test]
fn a_reload_keeps_the_counts_of_backends_that_stay() {
    let before = balancer(Policy::LeastConn, &["a:1", "b:1"], None);
    let leases: Vec<_> = (0..10).map(|_| any(&before)).collect();
    let after = balancer(Policy::LeastConn, &["c:1", "b:1,weight=3"], Some(&before));
    let more: Vec<_> = (0..10).map(|_| any(&after)).collect();
    let of_b = more.iter().filter(|lease| target(lease) == "b:1").count();
    // 5 sessions before and 6 now, for a share of 3/4 of 15.
    assert_eq!(of_b, 6);
    drop((leases, more));
    assert!(after.status().iter().all(|backend| backend.sessions == 0));
}

#[test]
fn a_session_from_another_process_counts_for_its_backend() {
    let balancer = balancer(Policy::LeastConn, &["a:10-12", "b:1"], None);
    let adopted = balancer.adopt(&"a:11".parse().unwrap()).unwrap();
    assert!(balancer.adopt(&"c:1".parse().unwrap()).is_none());
    assert_eq!(target(&any(&balancer)), "b:1");
    drop(adopted);
    assert_eq!(target(&any(&balancer)), "a:10");
}

#[test]
fn clients_of_one_ipv6_network_get_the_same_backend() {
    let names = ["a:1", "b:1", "c:1", "d:1", "e:1", "f:1", "g:1", "h:1"];
    let balancer = balancer(Policy::SourceHash, &names, None);
    let of = |text: &str| target(&lease(&balancer, client(text), &Tried::default()).unwrap());
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
    let networks: Vec<_> = (0..100).map(|net| of(&format!("2001:db8:0:{net}::1"))).collect();
    assert!(
        names.iter().all(|name| networks.iter().any(|have| have == name)),
        "{networks:?}"
    );
}

/// Several instances of several versions should send a client to the same backend.
#[test]
fn the_backend_of_a_client_never_changes() {
    let balancer = balancer(Policy::SourceHash, &["a:1", "b:1", "c:1", "d:1"], None);
    let clients = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1", "2001:db8:1::1"];
    let backends = clients.map(|text| target(&lease(&balancer, client(text), &Tried::default()).unwrap()));
    assert_eq!(backends, ["d:1", "d:1", "d:1", "c:1", "c:1"]);
}

/// The clock is paused. It jumps to the next timer when nothing else can happen.
#[tokio::test(start_paused = true)]
async fn an_ejected_backend_gets_one_client_and_then_all_again() {
    let balancer = balancer(Policy::First, &["a:1", "b:1"], None);
    any(&balancer).failed(Failure::Connect);
    assert_eq!(target(&any(&balancer)), "b:1");
    tokio::time::advance(5 * SECOND).await;
    let mut trial = any(&balancer);
    assert_eq!(
        (target(&trial), target(&any(&balancer))),
        ("a:1".to_owned(), "b:1".to_owned())
    );
    trial.connected(Duration::ZERO, SECOND);
    assert_eq!(target(&any(&balancer)), "b:1");
    tokio::time::advance(ejection::EARLY).await;
    assert_eq!(target(&any(&balancer)), "a:1");
    trial.ended_by_backend();
    assert_eq!(target(&any(&balancer)), "a:1", "the session was not short");
}

#[tokio::test(start_paused = true)]
async fn slow_connects_and_early_ends_eject_and_a_share_stays() {
    let balancer = balancer(Policy::First, &["a:1", "b:1", "c:1"], None);
    any(&balancer).connected(SECOND, SECOND);
    let mut lease = any(&balancer);
    assert_eq!(target(&lease), "b:1");
    lease.connected(Duration::ZERO, SECOND);
    lease.ended_by_backend();
    for _ in 0..9 {
        any(&balancer).failed(Failure::Connect);
    }
    assert_eq!(target(&any(&balancer)), "c:1", "75 % of 3 are 2");
    let failures: Vec<_> = balancer.status().iter().map(|backend| backend.failures).collect();
    assert_eq!(failures, [[0, 1, 0], [0, 0, 1], [9, 0, 0]]);
}

#[tokio::test(start_paused = true)]
async fn clients_wait_in_order_until_a_session_ends() {
    let balancer = balancer(Policy::LeastConn, &["a:1,max-conns=1", "b:1,max-conns=1"], None);
    let [first, second] = [any(&balancer), any(&balancer)];
    let wait = || {
        let balancer = Arc::clone(&balancer);
        tokio::spawn(async move { balancer.lease(None, &Tried::default(), SECOND).await })
    };
    let (leaves, third) = (wait(), wait());
    while balancer.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(wait().await.unwrap().unwrap_err(), Refusal::QueueFull);
    leaves.abort();
    assert!(leaves.await.is_err());
    let fourth = wait();
    while balancer.waiting() < 2 {
        tokio::task::yield_now().await;
    }
    drop(second);
    let third = third.await.unwrap().unwrap();
    assert_eq!(target(&third), "b:1");
    assert_eq!(fourth.await.unwrap().unwrap_err(), Refusal::QueueTimeout);
    let fifth = wait();
    while balancer.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    drop(first);
    assert_eq!(target(&fifth.await.unwrap().unwrap()), "a:1");
    assert_eq!(balancer.waiting(), 0);
}

/// Lets a client wait for a backend.
async fn waiting(balancer: &Arc<Balancer>) -> tokio::task::JoinHandle<Result<Lease, Refusal>> {
    waiting_after(balancer, Tried::default()).await
}

/// Lets a client wait that has tried these backends.
async fn waiting_after(balancer: &Arc<Balancer>, tried: Tried) -> tokio::task::JoinHandle<Result<Lease, Refusal>> {
    let (balancer, before) = (Arc::clone(balancer), balancer.waiting());
    let client = tokio::spawn({
        let balancer = Arc::clone(&balancer);
        async move { balancer.lease(None, &tried, SECOND).await }
    });
    while balancer.waiting() == before {
        tokio::task::yield_now().await;
    }
    client
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_one_backend_keeps_nobody_from_another() {
    let balancer = balancer(Policy::First, &["a:1,max-conns=1", "b:1,max-conns=1"], None);
    let mut tried = Tried::default();
    tried.add(any(&balancer));
    let of_b = lease(&balancer, None, &tried).unwrap();
    let retries = waiting_after(&balancer, tried.clone()).await;
    let of_a = any(&balancer);
    assert_eq!((target(&of_a), target(&of_b)), ("a:1".to_owned(), "b:1".to_owned()));
    let fresh = waiting(&balancer).await;
    drop(of_b);
    let of_b = retries.await.unwrap().unwrap();
    assert_eq!(target(&of_b), "b:1", "it came first");
    drop(of_b);
    assert_eq!(target(&fresh.await.unwrap().unwrap()), "b:1");
    drop(of_a);
    assert_eq!(balancer.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn clients_that_wait_during_a_reload_get_the_backends_after_it() {
    let before = balancer(Policy::First, &["a:1,max-conns=1"], None);
    before.put_in_force();
    let _full = any(&before);
    let [first, second] = [waiting(&before).await, waiting(&before).await];
    let after = balancer(Policy::First, &["a:1,max-conns=1", "b:1,max-conns=1"], Some(&before));
    assert_eq!(before.waiting(), 2, "a reload may still be refused");
    after.put_in_force();
    let of_b = first.await.unwrap().unwrap();
    assert_eq!(
        (target(&of_b), after.waiting(), before.waiting()),
        ("b:1".to_owned(), 1, 0)
    );
    drop(of_b);
    assert_eq!(target(&second.await.unwrap().unwrap()), "b:1");
}

/// A client may still connect, or retry, when its service has been replaced.
#[tokio::test(start_paused = true)]
async fn a_client_from_before_a_reload_gets_a_backend_after_it() {
    let before = balancer(Policy::First, &["a:1"], None);
    before.put_in_force();
    let after = balancer(Policy::First, &["b:1"], Some(&before));
    after.put_in_force();
    assert_eq!(target(&any(&before)), "b:1");
    let ports = balancer(Policy::First, &["c:10-12"], Some(&after));
    ports.put_in_force();
    assert_eq!(target(&any(&before)), "b:1", "its listener may have no port of c");
    drop((after, ports));
    assert_eq!(target(&any(&before)), "a:1", "the service is gone");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_from_before_a_reload_serves_the_next_client() {
    let before = balancer(Policy::First, &["a:1,max-conns=1"], None);
    before.put_in_force();
    let session = any(&before);
    let after = balancer(Policy::RoundRobin, &["a:1,max-conns=1"], Some(&before));
    after.put_in_force();
    let client = waiting(&after).await;
    drop(session);
    assert_eq!(target(&client.await.unwrap().unwrap()), "a:1");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_gets_a_backend_whose_ejection_is_over() {
    let balancer = balancer(Policy::First, &["a:1", "b:1,max-conns=1"], None);
    any(&balancer).failed(Failure::Connect);
    let _full = any(&balancer);
    let client = balancer.lease(None, &Tried::default(), 10 * SECOND).await;
    assert_eq!(target(&client.unwrap()), "a:1");
}

/// Returns settings with which each check decides.
fn one_check() -> CheckSettings {
    CheckSettings {
        probe: Probe::Connect,
        interval: SECOND,
        rise: 1,
        fall: 1,
        introduction: Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_clients_get_a_backup_when_a_check_finds_the_others_down() {
    let check = one_check();
    let settings = BalanceSettings {
        check: Some(check.clone()),
        ..balancer(Policy::First, &["a:1,max-conns=1", "b:1,backup"], None)
            .settings
            .clone()
    };
    let balancer = Balancer::new("web", &settings, None);
    let _full = any(&balancer);
    let client = waiting(&balancer).await;
    let backend = Arc::clone(&balancer.inner.lock().entries[0].backend);
    balancer.record_check(&backend, &check, Err(probe::Unhealthy::TooSlow));
    assert_eq!(target(&client.await.unwrap().unwrap()), "b:1");
}

#[tokio::test(start_paused = true)]
async fn a_backup_does_not_take_the_clients_of_full_backends() {
    let balancer = balancer(Policy::First, &["a:1,max-conns=1", "b:1,backup"], None);
    let mut first = any(&balancer);
    let waited = balancer.lease(None, &Tried::default(), SECOND).await;
    assert_eq!(waited.unwrap_err(), Refusal::QueueTimeout);
    first.failed(Failure::Connect);
    assert_eq!(target(&any(&balancer)), "b:1", "but those of ejected ones");
}

/// A round has 16 turns for each unit of weight, and the share of a backend that is up again grows
/// with the time.
#[tokio::test(start_paused = true)]
async fn a_backend_that_is_up_again_gets_its_share_gradually() {
    let check = one_check();
    let before = balancer(Policy::RoundRobin, &["a:1", "b:1"], None);
    let settings = BalanceSettings {
        check: Some(check.clone()),
        slow_start: 10 * SECOND,
        ..before.settings.clone()
    };
    let balancer = Balancer::new("web", &settings, None);
    let of_a = |picks: usize| (0..picks).filter(|_| target(&any(&balancer)) == "a:1").count();
    let backend = Arc::clone(&balancer.inner.lock().entries[0].backend);
    assert_eq!(of_a(32), 16);
    balancer.record_check(&backend, &check, Err(probe::Unhealthy::TooSlow));
    assert_eq!(of_a(32), 0);
    balancer.record_check(&backend, &check, Ok(()));
    assert_eq!(of_a(17), 1, "one turn for 16 of the other one");
    tokio::time::advance(5 * SECOND).await;
    assert_eq!(of_a(24), 8, "half of its share");
    tokio::time::advance(5 * SECOND).await;
    assert_eq!(of_a(32), 16);
}

#[test]
fn another_backend_is_preferred_only_if_this_one_gets_no_clients() {
    let balancer = balancer(Policy::RoundRobin, &["a:1", "b:1,backup"], None);
    let [a, b, gone] = ["a:1", "b:1", "c:1"].map(|text| text.parse::<Target>().unwrap());
    let preferred = || [&a, &b, &gone].map(|target| balancer.prefers_others(target));
    // A session stays with a backup although the main backend is available again.
    assert_eq!(preferred(), [false, false, true]);
    assert!(balancer.set_weight("a:1", Some(0)));
    assert_eq!(preferred(), [true, false, true]);
    assert!(balancer.set_weight("b:1", Some(0)));
    // No other backend would be better.
    assert_eq!(preferred(), [false, false, false]);
}

#[tokio::test(start_paused = true)]
async fn a_backend_says_why_and_since_when_it_gets_no_clients() {
    let check = one_check();
    let settings = BalanceSettings {
        check: Some(check.clone()),
        ..balancer(Policy::First, &["a:1", "b:1"], None).settings.clone()
    };
    let balancer = Balancer::new("web", &settings, None);
    let trouble = |index: usize| balancer.status()[index].trouble.clone();
    let backend = Arc::clone(&balancer.inner.lock().entries[0].backend);
    assert_eq!(trouble(0), None);
    balancer.record_check(&backend, &check, Err(probe::Unhealthy::TooSlow));
    let first = trouble(0).unwrap();
    assert_eq!(&*first.why, "no answer in time");
    balancer.record_check(&backend, &check, Err(probe::Unhealthy::Unexpected(b"no".to_vec())));
    let second = trouble(0).unwrap();
    assert_eq!((&*second.why, second.since), ("unexpected answer \"no\"", first.since));
    balancer.record_check(&backend, &check, Ok(()));
    assert_eq!(trouble(0), None);
    any(&balancer).failed(Failure::Connect);
    let ejected = trouble(0).unwrap();
    assert_eq!(&*ejected.why, "it could not be reached");
    // The client that tries again fails, too.
    tokio::time::advance(5 * SECOND).await;
    any(&balancer).failed(Failure::SlowConnect);
    let again = trouble(0).unwrap();
    assert_eq!((&*again.why, again.since), ("connecting took too long", ejected.since));
    assert_eq!(trouble(1), None);
}
