use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::answer::*;
use super::files::Files;
use super::lookup::*;
use super::reading::*;
use super::resolv_conf::{self, ResolvConf};
use crate::kit::client_key::ClientKey;
use crate::reach::dial::request::Caller;
use crate::reach::dial::tests::dns::{Answer, Server};

const TIME: Duration = Duration::from_secs(20);

fn asking(server: &Server) -> Resolver {
    Resolver::new(&ResolverSettings::Servers(vec![server.address]), 64)
}

async fn all(resolver: &Resolver, name: &str) -> Result<Vec<IpAddr>, LookupError> {
    all_for(1, resolver, name).await
}

fn client(last: u8) -> Option<ClientKey> {
    Some(IpAddr::from([192, 0, 2, last]).into())
}

/// Looks up `name` as [`all`] does, for the client 192.0.2.`client`.
async fn all_for(client: u8, resolver: &Resolver, name: &str) -> Result<Vec<IpAddr>, LookupError> {
    let caller = Caller {
        client: self::client(client),
        ip: None,
        hops: crate::net::hops::Hops::default(),
        deadline: Instant::now() + TIME,
    };
    let found = resolver
        .first_with_addresses(resolver.readings(name, false), caller, |_| Ok(()))
        .await;
    found.map(|(_, addresses)| addresses)
}

fn ips(texts: &[&str]) -> Result<Vec<IpAddr>, LookupError> {
    Ok(texts.iter().map(|text| text.parse().unwrap()).collect())
}

/// A folder with the files of a machine.
struct Etc(std::path::PathBuf);

impl Etc {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("spliceway-names-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, file: &str, text: &[u8]) {
        std::fs::write(self.0.join(file), text).unwrap();
    }

    /// Returns a resolver for these files.
    fn resolver(&self) -> Resolver {
        let around = resolv_conf::Surroundings::default();
        Resolver::with_files(Servers::Configured, Arc::new(Files::new(&self.0, around)), 64)
    }
}

impl Drop for Etc {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a resolver that asks these servers, as if resolv.conf(5) named them, with these options.
fn asking_all(servers: &[&Server], options: impl Fn(&mut resolv_conf::Options)) -> Resolver {
    let mut conf = ResolvConf::with_servers(servers.iter().map(|server| server.address).collect());
    options(&mut conf.options);
    Resolver::with_files(Servers::These(Arc::new(conf)), Files::system(), 64)
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
async fn a_lookup_waits_for_a_permit_and_a_cached_one_does_not() {
    let server = Server::start().await;
    for name in ["known.example.", "new.example."] {
        server.says(name, Answer::has(&["192.0.2.1"], 60));
    }
    let resolver = asking(&server);
    assert_eq!(all(&resolver, "known.example").await, ips(&["192.0.2.1"]));
    let mut under_way = Vec::new();
    for other in 2.. {
        let permit = resolver.query_permits.take(client(other), Instant::now() + TIME);
        match timeout(Duration::ZERO, permit).await {
            Ok(permit) => under_way.push(permit),
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
    let permits = resolver.query_permits.free();
    let mut slow = JoinSet::new();
    for number in 0..200 {
        let name = format!("slow{number}.example");
        server.says(&format!("{name}."), Answer::Nothing);
        let resolver = Arc::clone(&resolver);
        slow.spawn(async move { all_for(1, &resolver, &name).await });
    }
    while resolver.query_permits.free() > permits / 2 {
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
    let etc = Etc::new("hosts");
    etc.write("hosts", b"192.0.2.1 A");
    let mut resolver = etc.resolver();
    resolver.from = Servers::These(Arc::new(ResolvConf::with_servers(vec![server.address])));
    let resolver = resolver.with_search("example.");
    assert_eq!(all(&resolver, "A").await, ips(&["192.0.2.1"]));
    assert_eq!((server.asked("a."), server.asked("a.example.")), (0, 0));
    // A final dot makes it another name for glibc, too.
    assert_eq!(all(&resolver, "a.").await, ips(&["2001:db8::9", "192.0.2.9"]));
}

#[tokio::test]
async fn a_short_name_is_found_in_the_domain_that_has_it() {
    let server = Server::start().await;
    server.says("a.second.example.", Answer::has(&["192.0.2.1"], 60));
    server.says("a.", Answer::has(&["2001:db8::9"], 60));
    let mut conf = ResolvConf::with_servers(vec![server.address]);
    conf.search = ["first.example.", "second.example."].map(Into::into).into();
    let resolver = Resolver::with_files(Servers::These(Arc::new(conf)), Files::system(), 16);
    assert_eq!(all(&resolver, "a").await, ips(&["192.0.2.1"]));
    assert_eq!(all(&resolver, "a.").await, ips(&["2001:db8::9"]));
}

#[tokio::test]
async fn servers_are_asked_in_order_and_the_next_one_only_after_a_failure() {
    let [inner, outer] = [Server::start().await, Server::start().await];
    outer.says("a.example.", Answer::has(&["192.0.2.2"], 60));
    let resolver = asking_all(&[&inner, &outer], |_| ());
    inner.says("a.example.", Answer::has(&["192.0.2.1"], 0));
    assert_eq!(all(&resolver, "a.example").await, ips(&["192.0.2.1"]));
    inner.says("a.example.", Answer::HasNone(None));
    assert_eq!(all(&resolver, "a.example").await, Err(LookupError::NoAddress));
    assert_eq!(outer.asked("a.example."), 0, "the second server sees nothing");
    inner.says("a.example.", Answer::Fails);
    assert_eq!(all(&resolver, "a.example").await, ips(&["192.0.2.2"]));
    // Both families, once each.
    assert_eq!(outer.asked("a.example."), 2);
}

#[tokio::test]
async fn a_server_that_is_silent_or_gone_makes_room_for_the_next() {
    let [silent, next] = [Server::start().await, Server::start().await];
    silent.says("a.example.", Answer::Nothing);
    next.says("a.example.", Answer::has(&["192.0.2.2"], 60));
    let short = |options: &mut resolv_conf::Options| options.timeout = Duration::ZERO;
    assert_eq!(
        all(&asking_all(&[&silent, &next], short), "a.example").await,
        ips(&["192.0.2.2"])
    );
    let resolver = asking_all(&[&silent, &next], |_| ());
    drop(silent);
    // The kernel says at once that nothing listens.
    let found = timeout(Duration::from_secs(3), all(&resolver, "a.example")).await;
    assert_eq!(found.unwrap(), ips(&["192.0.2.2"]));
}

#[tokio::test]
async fn rotate_begins_with_the_next_server_each_time() {
    let [first, second] = [Server::start().await, Server::start().await];
    let resolver = asking_all(&[&first, &second], |options| options.rotate = true);
    for server in [&first, &second] {
        server.says("a.example.", Answer::has(&["192.0.2.1"], 0));
    }
    for expected in [(2, 0), (2, 2), (4, 2)] {
        all(&resolver, "a.example").await.unwrap();
        assert_eq!((first.asked("a.example."), second.asked("a.example.")), expected);
    }
}

/// Old firewalls drop queries for AAAA. A query without an answer takes at least 5 s.
#[tokio::test]
async fn the_silence_of_one_family_does_not_cost_the_answer_of_the_other() {
    let server = Server::start().await;
    let resolver = asking(&server);
    for address in ["192.0.2.1", "2001:db8::1"] {
        server.says("a.example.", Answer::OneFamily(address.parse().unwrap(), 0));
        let found = timeout(Duration::from_secs(3), all(&resolver, "a.example")).await;
        assert_eq!(found.expect("it waits for the silent one"), ips(&[address]));
    }
}

#[tokio::test]
async fn a_search_goes_on_if_one_family_says_that_there_is_no_such_name() {
    let server = Server::start().await;
    server.says("a.first.example.", Answer::OnlyV4(Box::new(Answer::HasNone(Some(60)))));
    server.says("a.", Answer::has(&["192.0.2.1"], 60));
    let resolver = asking(&server).with_search("first.example.");
    let found = timeout(Duration::from_secs(3), all(&resolver, "a")).await;
    assert_eq!(found.expect("it waits for the silent one"), ips(&["192.0.2.1"]));
}

/// Another host may have the next name.
#[tokio::test]
async fn a_search_ends_at_a_name_about_which_no_server_answers() {
    let server = Server::start().await;
    server.says("a.first.example.", Answer::Nothing);
    server.says("a.second.example.", Answer::has(&["192.0.2.1"], 60));
    let mut conf = ResolvConf::with_servers(vec![server.address]);
    conf.search = ["first.example.", "second.example."].map(Into::into).into();
    (conf.options.timeout, conf.options.attempts) = (Duration::ZERO, 1);
    let resolver = Resolver::with_files(Servers::These(Arc::new(conf)), Files::system(), 16);
    assert_eq!(all(&resolver, "a").await, Err(LookupError::TimedOut));
    assert_eq!(server.asked("a.second.example."), 0);
    server.says("a.", Answer::has(&["192.0.2.2"], 60));
    assert_eq!(all(&resolver, "a").await, ips(&["192.0.2.2"]), "as glibc");
}

#[tokio::test]
async fn options_change_the_queries() {
    let server = Server::start().await;
    server.says("a.example.", Answer::has(&["192.0.2.1", "2001:db8::1"], 60));
    let no_aaaa = asking_all(&[&server], |options| options.no_aaaa = true);
    assert_eq!(all(&no_aaaa, "a.example").await, ips(&["192.0.2.1"]));
    assert_eq!(server.asked("a.example."), 1);
    for (use_vc, edns0, single_request) in [(true, false, false), (false, true, false), (false, false, true)] {
        let resolver = asking_all(&[&server], |options| {
            (options.use_vc, options.edns0, options.single_request) = (use_vc, edns0, single_request);
        });
        assert_eq!(all(&resolver, "a.example").await, ips(&["2001:db8::1", "192.0.2.1"]));
    }
}

#[tokio::test]
async fn changes_of_the_files_count_without_a_restart() {
    let server = Server::start().await;
    server.says("a.example.", Answer::has(&["192.0.2.1"], 60));
    let etc = Etc::new("changes");
    etc.write("hosts", b"192.0.2.7 a.example");
    let resolver = etc.resolver();
    assert_eq!(all(&resolver, "a.example").await, ips(&["192.0.2.7"]));
    etc.write("hosts", b"192.0.2.8 a.example\n\xff\n");
    assert_eq!(
        all(&resolver, "a.example").await,
        ips(&["192.0.2.7"]),
        "once a second at most"
    );
    resolver.files.expire();
    assert_eq!(all(&resolver, "a.example").await, ips(&["192.0.2.8"]));
    // A file that is gone or no file keeps its last meaning.
    std::fs::remove_file(etc.0.join("hosts")).unwrap();
    resolver.files.expire();
    assert_eq!(all(&resolver, "a.example").await, ips(&["192.0.2.8"]));
    etc.write("nsswitch.conf", b"hosts: nis");
    resolver.files.expire();
    assert!(resolver.current().is_none(), "the C library looks up names");
    etc.write("nsswitch.conf", b"hosts: files");
    etc.write("resolv.conf", b"search example\n");
    resolver.files.expire();
    assert_eq!(resolver.readings("b", false), [known("b".into(), Vec::new())]);
}

#[test]
fn each_name_is_given_to_the_module_that_may_know_it() {
    let etc = Etc::new("modules");
    etc.write(
        "nsswitch.conf",
        b"hosts: files mdns4_minimal [NOTFOUND=return] dns myhostname",
    );
    etc.write("hosts", b"192.0.2.1 known.local known.onion\n::2 localhost");
    let around = resolv_conf::Surroundings {
        hostname: "Own".into(),
        ..Default::default()
    };
    let resolver = Resolver::with_files(Servers::Configured, Arc::new(Files::new(&etc.0, around)), 16);
    let origins = |host: &str| {
        resolver
            .readings(host, false)
            .into_iter()
            .map(|reading| reading.origin)
            .collect::<Vec<_>>()
    };
    let address = |text: &str| Origin::Known(vec![text.parse().unwrap()]);
    for (host, expected) in [
        ("printer.local", Origin::System),
        ("known.LOCAL", address("192.0.2.1")),
        ("own", Origin::System),
        ("_gateway", Origin::System),
        ("other", Origin::Dns { is_searched: false }),
        ("known.onion", address("192.0.2.1")),
        ("other.onion", Origin::Known(Vec::new())),
        ("localhost", address("::2")),
        ("LocalHost.", address("::2")),
        ("a.localhost", Origin::Known(loopback_of("localhost").unwrap())),
        ("127.1", Origin::Dns { is_searched: false }),
    ] {
        assert_eq!(origins(host), [expected], "{host}");
    }
}

#[tokio::test]
async fn the_system_s_resolver_knows_localhost() {
    if !spliceway_net::has_localhost() {
        return;
    }
    let resolver = Resolver::new(&ResolverSettings::System, 64);
    let found = all(&resolver, "LOCALHOST").await.unwrap();
    assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
}
