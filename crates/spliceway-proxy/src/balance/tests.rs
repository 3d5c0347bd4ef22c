use super::*;

/// Returns a balancer of these backends, each in the form of the flag.
fn balancer(policy: Policy, backends: &[&str], before: Option<&Balancer>) -> Balancer {
    let backends = backends.iter().map(|text| backend(text)).collect();
    Balancer::new(&BalanceSettings { policy, backends }, before)
}

fn backend(text: &str) -> BackendSettings {
    let value: crate::config::Value<crate::config::Remote> = text.parse().unwrap();
    value.parsed()
}

fn target(lease: &Lease) -> String {
    lease.target(0).to_string()
}

fn client(text: &str) -> Option<ClientKey> {
    Some(text.parse::<IpAddr>().unwrap().into())
}

#[test]
fn a_backup_gets_sessions_only_if_all_others_were_tried() {
    let balancer = balancer(Policy::RoundRobin, &["a:1,backup", "b:1", "c:1", "d:1,backup"], None);
    for _ in 0..10 {
        let mut tried = Tried::default();
        let mut order = Vec::new();
        while let Some(lease) = balancer.lease(None, &tried) {
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
    while let Some(lease) = balancer.lease(client("192.0.2.1"), &tried) {
        assert!(!seen.contains(&target(&lease)));
        seen.push(target(&lease));
        tried.add(lease);
    }
    assert_eq!(seen.len(), TRIES_MAX);
}

#[test]
fn a_range_of_ports_maps_to_the_ports_of_each_backend() {
    let balancer = balancer(Policy::First, &["a:10-12"], None);
    let lease = balancer.lease(None, &Tried::default()).unwrap();
    assert_eq!((lease.target(0).port(), lease.target(2).port()), (Some(10), Some(12)));
}

#[test]
fn a_reload_keeps_the_counts_of_backends_that_stay() {
    let before = balancer(Policy::LeastConn, &["a:1", "b:1"], None);
    let leases: Vec<_> = (0..10)
        .map(|_| before.lease(None, &Tried::default()).unwrap())
        .collect();
    let after = balancer(Policy::LeastConn, &["c:1", "b:1,weight=3"], Some(&before));
    let more: Vec<_> = (0..10).map(|_| after.lease(None, &Tried::default()).unwrap()).collect();
    let of_b = more.iter().filter(|lease| target(lease) == "b:1").count();
    // 5 sessions before and 6 now, for a share of 3/4 of 15.
    assert_eq!(of_b, 6);
    drop((leases, more));
    let active: Vec<_> = after.places().iter().map(|place| place.candidate().active).collect();
    assert_eq!(active, [0, 0]);
}

#[test]
fn clients_of_one_ipv6_network_get_the_same_backend() {
    let names = ["a:1", "b:1", "c:1", "d:1", "e:1", "f:1", "g:1", "h:1"];
    let balancer = balancer(Policy::SourceHash, &names, None);
    let of = |text: &str| target(&balancer.lease(client(text), &Tried::default()).unwrap());
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
    let backends = clients.map(|text| target(&balancer.lease(client(text), &Tried::default()).unwrap()));
    assert_eq!(backends, ["d:1", "d:1", "d:1", "c:1", "c:1"]);
}
