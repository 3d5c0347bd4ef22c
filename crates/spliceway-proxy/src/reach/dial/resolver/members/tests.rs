use super::super::lookup::ResolverSettings;
use super::*;
use crate::reach::dial::tests::dns::{Answer, Server};
use tokio::time::Instant;

fn asking(server: &Server) -> Resolver {
    Resolver::new(&ResolverSettings::Servers(vec![server.address]), 64)
}

fn caller() -> Caller {
    Caller {
        ip: None,
        hops: crate::net::hops::Hops::default(),
        client: None,
        deadline: Instant::now() + Duration::from_secs(20),
    }
}

fn shown(found: &MemberList) -> Vec<String> {
    found.members.iter().map(|member| member.address.to_string()).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn a_name_has_all_of_its_addresses_and_their_ttl() {
    let server = Server::start().await;
    let many = (1..=100).map(|last| IpAddr::from([192, 0, 2, last])).collect();
    server.says("many.example.", Answer::Has(many, 7));
    server.says("both.example.", Answer::has(&["2001:db8::1", "192.0.2.1"], 9));
    let resolver = asking(&server);
    let found = resolver
        .members("many.example", 80, &mut Memory::default(), caller())
        .await
        .unwrap();
    assert_eq!((found.members.len(), found.ttl), (100, seconds(7)), "over TCP");
    let found = resolver
        .members("both.example", 80, &mut Memory::default(), caller())
        .await
        .unwrap();
    assert_eq!(shown(&found), ["192.0.2.1:80", "[2001:db8::1]:80"]);
    server.says("both.example.", Answer::has(&["192.0.2.2"], 0));
    let found = resolver
        .members("both.example", 80, &mut Memory::default(), caller())
        .await
        .unwrap();
    assert_eq!(
        (shown(&found), found.ttl),
        (vec!["192.0.2.2:80".to_owned()], seconds(0)),
        "not cached"
    );
}

#[tokio::test]
async fn a_name_without_an_address_is_an_error() {
    let server = Server::start().await;
    server.says("none.example.", Answer::HasNone(Some(60)));
    server.says("fails.example.", Answer::Fails);
    let resolver = asking(&server);
    let none = resolver
        .members("none.example", 80, &mut Memory::default(), caller())
        .await;
    assert_eq!(none.unwrap_err(), LookupError::NoAddress);
    let fails = resolver
        .members("fails.example", 80, &mut Memory::default(), caller())
        .await;
    assert!(matches!(fails.unwrap_err(), LookupError::Failed(_)));
}

#[tokio::test]
async fn a_service_has_the_addresses_of_all_its_targets() {
    let server = Server::start().await;
    let records = vec![
        (10, 5, 81, "a.example."),
        (20, 0, 82, "b.example."),
        (10, 1, 83, "gone.example."),
    ];
    server.says("_http._tcp.web.example.", Answer::HasServices(records, 60));
    server.says("a.example.", Answer::has(&["192.0.2.1", "192.0.2.2"], 7));
    server.says("b.example.", Answer::has(&["192.0.2.3"], 60));
    let resolver = asking(&server);
    let found = resolver
        .services("_http._tcp.web.example", &mut Memory::default(), caller())
        .await
        .unwrap();
    assert_eq!(shown(&found), ["192.0.2.1:81", "192.0.2.2:81", "192.0.2.3:82"]);
    assert_eq!(found.ttl, seconds(7), "the shortest of all");
    let ranks: Vec<_> = found
        .members
        .iter()
        .map(|member| (member.priority, member.weight))
        .collect();
    assert_eq!(ranks, [(10, Some(5)), (10, Some(5)), (20, Some(0))]);
}

/// A server may fail for one of several names. That must not look as if its members had left.
#[tokio::test]
async fn an_answer_says_whether_members_may_be_missing() {
    let server = Server::start().await;
    let records = |second| vec![(10, 5, 81, "a.example."), (10, 5, 82, second)];
    server.says("a.example.", Answer::has(&["192.0.2.1"], 60));
    server.says("gone.example.", Answer::HasNone(Some(60)));
    server.says("fails.example.", Answer::Fails);
    let resolver = asking(&server);
    for (second, has_failed) in [("gone.example.", false), ("fails.example.", true)] {
        server.says("_http._tcp.web.example.", Answer::HasServices(records(second), 60));
        let found = resolver
            .services("_http._tcp.web.example", &mut Memory::default(), caller())
            .await
            .unwrap();
        assert_eq!(
            (shown(&found), found.failed.is_some()),
            (vec!["192.0.2.1:81".to_owned()], has_failed)
        );
    }
    for order in [["gone.example.", "fails.example."], ["fails.example.", "gone.example."]] {
        let records = order.map(|target| (10, 5, 81, target)).to_vec();
        server.says("_http._tcp.web.example.", Answer::HasServices(records, 60));
        let failed = resolver
            .services("_http._tcp.web.example", &mut Memory::default(), caller())
            .await;
        assert!(matches!(failed, Err(LookupError::Failed(_))), "{failed:?}");
    }
}

#[tokio::test]
async fn a_service_that_does_not_exist_has_no_address() {
    let server = Server::start().await;
    server.says("_none._tcp.web.example.", Answer::HasServices(vec![(0, 0, 0, ".")], 60));
    let resolver = asking(&server);
    for name in ["_none._tcp.web.example", "_other._tcp.web.example"] {
        let none = resolver.services(name, &mut Memory::default(), caller()).await;
        assert_eq!(none.unwrap_err(), LookupError::NoAddress);
    }
    let system = Resolver::new(&ResolverSettings::System, 64);
    let none = system
        .services("_http._tcp.web.example", &mut Memory::default(), caller())
        .await;
    assert!(none.unwrap_err().to_string().contains("--dns"));
}

/// Some servers fail for ever for AAAA.
#[tokio::test]
async fn a_family_that_fails_keeps_only_its_own_addresses() {
    let server = Server::start().await;
    let (resolver, mut memory) = (asking(&server), Memory::default());
    let v4 = |last| vec![IpAddr::from([192, 0, 2, last])];
    server.says("a.example.", Answer::FailsForV6(v4(1), 60));
    let found = resolver.members("a.example", 80, &mut memory, caller()).await.unwrap();
    assert_eq!(shown(&found), ["192.0.2.1:80"]);
    assert!(found.unknown.has(IpAddr::from([0; 16])) && !found.unknown.has(v4(1)[0]));
    server.says("a.example.", Answer::has(&["2001:db8::1", "192.0.2.1"], 60));
    resolver.members("a.example", 80, &mut memory, caller()).await.unwrap();
    server.says("a.example.", Answer::FailsForV6(v4(2), 60));
    let found = resolver.members("a.example", 80, &mut memory, caller()).await.unwrap();
    assert_eq!(shown(&found), ["192.0.2.2:80", "[2001:db8::1]:80"]);
    assert_eq!(found.unknown, Families::default(), "the last answer is known");
    server.says(
        "_a._tcp.example.",
        Answer::HasServices(vec![(1, 1, 81, "a.example.")], 60),
    );
    server.says("a.example.", Answer::FailsForV6(v4(3), 60));
    let mut memory = Memory::default();
    let found = resolver
        .services("_a._tcp.example", &mut memory, caller())
        .await
        .unwrap();
    assert_eq!(
        (shown(&found), found.failed.is_some()),
        (vec!["192.0.2.3:81".to_owned()], true)
    );
}

#[tokio::test(start_paused = true)]
async fn a_family_that_is_silent_is_awaited_for_seconds_only() {
    let server = Server::start().await;
    server.says("a.example.", Answer::OneFamily([192, 0, 2, 1].into(), 60));
    let targets: Vec<String> = (0..100).map(|number| format!("t{number}.example.")).collect();
    let names: Vec<&'static str> = targets.iter().map(|name| &*name.clone().leak()).collect();
    let records = names.iter().zip(1..).map(|(name, port)| (1, 1, port, *name)).collect();
    server.says("_a._tcp.example.", Answer::HasServices(records, 60));
    for name in names {
        server.says(name, Answer::OneFamily([192, 0, 2, 9].into(), 60));
    }
    let resolver = asking(&server);
    let start = Instant::now();
    let found = resolver
        .members("a.example", 80, &mut Memory::default(), caller())
        .await
        .unwrap();
    assert_eq!(
        (shown(&found), found.failed),
        (vec!["192.0.2.1:80".to_owned()], Some(LookupError::TimedOut))
    );
    let found = resolver
        .services("_a._tcp.example", &mut Memory::default(), caller())
        .await
        .unwrap();
    assert_eq!(found.members.len(), 100);
    assert!(start.elapsed() < seconds(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn of_too_many_records_the_same_ones_count_each_time() {
    let server = Server::start().await;
    server.says("a.example.", Answer::has(&["192.0.2.1"], 60));
    let resolver = asking(&server);
    let mut members = Vec::new();
    for turn in 0..3_usize {
        let mut records: Vec<_> = (1..=300).map(|port| (1, 1, port, "a.example.")).collect();
        records.rotate_left(turn * 100);
        server.says("_a._tcp.example.", Answer::HasServices(records, 60));
        let found = resolver
            .services("_a._tcp.example", &mut Memory::default(), caller())
            .await
            .unwrap();
        assert_eq!((found.members.len(), found.left_out), (MEMBERS_MAX, 44));
        members.push(found.members);
    }
    assert!(members[0] == members[1] && members[1] == members[2]);
}
