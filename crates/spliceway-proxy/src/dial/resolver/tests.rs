use hickory_resolver::proto::rr::RData;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use crate::dial::tests::dns::{Answer, Server};

const TIME: Duration = Duration::from_secs(20);

fn asking(server: &Server) -> Resolver {
    Resolver::new(&ResolverSettings::Servers(vec![server.address]), 64).unwrap()
}

async fn all(resolver: &Resolver, name: &str) -> Result<Vec<IpAddr>, LookupError> {
    all_for(1, resolver, name).await
}

fn client(last: u8) -> Key {
    Some(IpAddr::from([192, 0, 2, last]).into())
}

/// Looks up `name` as [`all`] does, for the client 192.0.2.`client`.
async fn all_for(client: u8, resolver: &Resolver, name: &str) -> Result<Vec<IpAddr>, LookupError> {
    let caller = Caller {
        client: self::client(client),
        ip: None,
        hops: 0,
        deadline: Instant::now() + TIME,
    };
    let found = resolver.all(resolver.readings(name, false), caller, |_| Ok(())).await;
    found.map(|(_, addresses)| addresses)
}

fn ips(texts: &[&str]) -> Result<Vec<IpAddr>, LookupError> {
    Ok(texts.iter().map(|text| text.parse().unwrap()).collect())
}

fn search(domains: &[&str], ndots: usize) -> Search {
    Search {
        domains: domains.iter().map(|domain| (*domain).into()).collect(),
        ndots,
    }
}

#[tokio::test]
async fn both_families_are_queried_and_their_addresses_alternate() {
    let server = Server::start().await;
    let answer = Answer::has(&["192.0.2.1", "192.0.2.2", "2001:db8::1"], 60);
    server.says("a.example.", answer);
    let found = all(&asking(&server), "a.example").await;
    assert_eq!(found, ips(&["2001:db8::1", "192.0.2.1", "192.0.2.2"]));
}

#[tokio::test]
async fn an_answer_is_not_queried_again_within_its_ttl() {
    let server = Server::start().await;
    server.says("a.example.", Answer::has(&["192.0.2.1", "2001:db8::1"], 60));
    let resolver = asking(&server);
    let first = all(&resolver, "a.example").await;
    let asked = server.asked("a.example.");
    server.says("a.example.", Answer::has(&["192.0.2.9"], 60));
    assert_eq!(all(&resolver, "A.Example.").await, first);
    assert_eq!(server.asked("a.example."), asked);
}

#[tokio::test]
async fn a_lookup_waits_for_a_place_and_a_cached_one_does_not() {
    let server = Server::start().await;
    for name in ["known.example.", "new.example."] {
        server.says(name, Answer::has(&["192.0.2.1"], 60));
    }
    let resolver = asking(&server);
    assert_eq!(all(&resolver, "known.example").await, ips(&["192.0.2.1"]));
    let Resolver::Dns(dns) = &resolver else {
        unreachable!("a server was named")
    };
    let mut under_way = Vec::new();
    for other in 2.. {
        let place = dns.asking.take(client(other), Instant::now() + TIME);
        match timeout(Duration::ZERO, place).await {
            Ok(place) => under_way.push(place),
            Err(_) => break,
        }
    }
    tokio::time::pause();
    assert_eq!(all(&resolver, "known.example").await, ips(&["192.0.2.1"]));
    assert_eq!(all(&resolver, "new.example").await, Err(LookupError::TimedOut));
    assert_eq!(server.asked("new.example."), 0);
    tokio::time::resume();
    drop(under_way);
    assert_eq!(all(&resolver, "new.example").await, ips(&["192.0.2.1"]));
}

/// The server is slow for the names of one client only, so another client must not wait for them.
#[tokio::test]
async fn the_slow_names_of_one_client_do_not_delay_another_client() {
    let server = Server::start().await;
    server.says("good.example.", Answer::has(&["192.0.2.1"], 60));
    let resolver = Arc::new(asking(&server));
    let Resolver::Dns(dns) = &*resolver else {
        unreachable!("a server was named")
    };
    let places = dns.asking.free();
    let mut slow = JoinSet::new();
    for number in 0..200 {
        let name = format!("slow{number}.example");
        server.says(&format!("{name}."), Answer::Nothing);
        let resolver = Arc::clone(&resolver);
        slow.spawn(async move { all_for(1, &resolver, &name).await });
    }
    while dns.asking.free() > places / 2 {
        tokio::task::yield_now().await;
    }
    let good = all_for(2, &resolver, "good.example");
    // A query without an answer takes at least 5 s.
    let found = timeout(Duration::from_secs(3), good)
        .await
        .expect("it waits for the slow ones");
    assert_eq!(found, ips(&["192.0.2.1"]));
}

#[tokio::test]
async fn an_answer_with_a_ttl_of_zero_is_queried_again() {
    let server = Server::start().await;
    server.says("a.example.", Answer::has(&["192.0.2.1"], 0));
    let resolver = asking(&server);
    assert_eq!(all(&resolver, "a.example").await, ips(&["192.0.2.1"]));
    server.says("a.example.", Answer::has(&["192.0.2.9"], 0));
    assert_eq!(all(&resolver, "a.example").await, ips(&["192.0.2.9"]));
}

#[tokio::test]
async fn an_alias_is_valid_no_longer_than_its_own_ttl() {
    let server = Server::start().await;
    let v4 = |low| vec![IpAddr::from([192, 0, 2, low])];
    server.says("a.example.", Answer::IsAlias("b.example.", 0, v4(1), 60));
    let resolver = asking(&server);
    assert_eq!(all(&resolver, "a.example").await, Ok(v4(1)));
    server.says("a.example.", Answer::IsAlias("c.example.", 60, v4(2), 60));
    assert_eq!(all(&resolver, "a.example").await, Ok(v4(2)));
    server.says("a.example.", Answer::IsAlias("b.example.", 60, v4(3), 60));
    assert_eq!(all(&resolver, "a.example").await, Ok(v4(2)));
}

#[tokio::test]
async fn a_negative_answer_is_cached_for_its_ttl() {
    let server = Server::start().await;
    let resolver = asking(&server);
    for (seconds, found) in [(Some(60), Err(LookupError::NoAddress)), (None, ips(&["192.0.2.1"]))] {
        let name = format!("{seconds:?}.example.").replace(['(', ')'], "-").to_lowercase();
        server.says(&name, Answer::HasNone(seconds));
        assert_eq!(all(&resolver, &name).await, Err(LookupError::NoAddress));
        server.says(&name, Answer::has(&["192.0.2.1"], 60));
        assert_eq!(all(&resolver, &name).await, found, "{seconds:?}");
    }
}

#[tokio::test]
async fn a_failure_is_not_cached_and_is_not_a_negative_answer() {
    let server = Server::start().await;
    server.says("a.example.", Answer::Fails);
    let resolver = asking(&server);
    assert!(matches!(all(&resolver, "a.example").await, Err(LookupError::Failed(_))));
    server.says("a.example.", Answer::has(&["192.0.2.1"], 60));
    assert_eq!(all(&resolver, "a.example").await, ips(&["192.0.2.1"]));
}

#[tokio::test]
async fn an_answer_too_long_for_a_datagram_is_complete_but_16_are_used() {
    let server = Server::start().await;
    let many: Vec<IpAddr> = (0..200).map(|low| IpAddr::from([192, 0, 2, low])).collect();
    server.says("a.example.", Answer::Has(many.clone(), 60));
    assert_eq!(all(&asking(&server), "a.example").await, Ok(many[..16].to_vec()));
}

#[tokio::test]
async fn an_invalid_dns_name_has_no_address_and_is_not_queried() {
    let server = Server::start().await;
    let long = format!("{}.example", "a".repeat(64));
    for name in [&long, "a..b", "-a.example", "."] {
        assert!(all(&asking(&server), name).await.is_err(), "{name}");
    }
    assert_eq!(server.asked(&format!("{long}.")), 0);
}

#[tokio::test]
async fn localhost_is_resolved_without_a_query() {
    let server = Server::start().await;
    for name in ["LocalHost", "localhost.", "a.localhost"] {
        let found = all(&asking(&server), name).await.unwrap();
        assert!(
            !found.is_empty() && found.iter().all(IpAddr::is_loopback),
            "{name}: {found:?}"
        );
    }
    assert_eq!(server.asked("localhost."), 0);
}

#[tokio::test]
async fn names_in_the_hosts_file_are_not_queried() {
    let server = Server::start().await;
    server.says("a.", Answer::has(&["192.0.2.9", "2001:db8::9"], 60));
    server.says("a.example.", Answer::has(&["192.0.2.8"], 60));
    let name = Name::from_ascii("a.").unwrap();
    let (query, address) = (Query::query(name.clone(), RecordType::A), IpAddr::from([192, 0, 2, 1]));
    let mut hosts = Hosts::default();
    hosts.insert(name, RecordType::A, Answered::from_rdata(query, RData::from(address)));
    let servers = vec![server_config(&server)];
    let config = ResolverConfig::from_parts(None, vec![Name::from_ascii("example.").unwrap()], servers);
    let resolver = Resolver::of(config, ResolverOpts::default(), hosts, 16).unwrap();
    assert_eq!(all(&resolver, "A").await, Ok(vec![address]));
    assert_eq!(all(&resolver, "a.").await, Ok(vec![address]));
    assert_eq!((server.asked("a."), server.asked("a.example.")), (0, 0));
}

fn server_config(server: &Server) -> NameServerConfig {
    super::server(server.address)
}

#[tokio::test]
async fn a_short_name_is_found_in_the_domain_that_has_it() {
    let server = Server::start().await;
    server.says("a.second.example.", Answer::has(&["192.0.2.1"], 60));
    server.says("a.", Answer::has(&["2001:db8::9"], 60));
    let domains = ["first.example.", "second.example."].map(|domain| Name::from_ascii(domain).unwrap());
    let config = ResolverConfig::from_parts(None, domains.into(), vec![server_config(&server)]);
    let resolver = Resolver::of(config, ResolverOpts::default(), Hosts::default(), 16).unwrap();
    assert_eq!(all(&resolver, "a").await, ips(&["192.0.2.1"]));
    assert_eq!(all(&resolver, "a.").await, ips(&["2001:db8::9"]));
}

#[test]
fn names_are_completed_as_resolv_conf_specifies() {
    let search = search(&["one.example.", "two.example."], 1);
    for (host, readings) in [
        ("a", &["a.one.example.", "a.two.example.", "a."][..]),
        ("a.b", &["a.b.", "a.b.one.example.", "a.b.two.example."]),
        ("a.", &["a."]),
        (
            "localhost",
            &["localhost.", "localhost.one.example.", "localhost.two.example."],
        ),
    ] {
        assert_eq!(search.readings(host.into()), readings, "{host}");
    }
}

#[test]
fn search_domains_are_bounded_and_default_to_the_own_domain() {
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let many = (0..20).map(|index| name(&format!("D{index}.example"))).collect();
    let config = ResolverConfig::from_parts(Some(name("own.example")), many, Vec::new());
    let listed = Search::new(&config, 1);
    assert_eq!(listed.domains.len(), SEARCH_MAX);
    assert_eq!(&*listed.domains[0], "d0.example.");
    let config = ResolverConfig::from_parts(Some(name("own.example")), Vec::new(), Vec::new());
    assert_eq!(Search::new(&config, 1).domains, [Box::<str>::from("own.example.")]);
}

#[tokio::test]
async fn the_system_s_resolver_knows_localhost() {
    if !spliceway_net::has_localhost() {
        return;
    }
    let resolver = Resolver::new(&ResolverSettings::System, 64).unwrap();
    let found = all(&resolver, "LOCALHOST").await.unwrap();
    assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
}
