//! Dials and lookups under target rules.

use std::sync::Arc;

use super::*;
use crate::access::policy::{Denied, RuleList, RuleLists, TargetRules};
use crate::kit::refusal::Refusal;
use crate::reach::dial::resolver::Resolver;

const REFUSED: (&str, Option<&str>) = ("target_rule", Some("target_rule"));

fn list(rules: &[String]) -> Option<RuleLists> {
    let mut list = RuleList::default();
    for rule in rules {
        list.add(rule.parse().unwrap()).unwrap();
    }
    let list = Arc::new(list.complete(crate::access::auth::fingerprint(&rules.join(" "))));
    (!rules.is_empty()).then(|| RuleLists::new(vec![list]))
}

/// Returns a dialer that asks `server`, for clients that may reach `allow` and not `deny`.
fn ruled(server: &Server, allow: &[&str], deny: &[&str], upstreams: &[&str]) -> Dialer {
    let texts = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>();
    let rules = TargetRules {
        allow: list(&texts(allow)),
        deny: list(&texts(deny)),
        ..TargetRules::default()
    };
    let policy = TargetPolicy::new(Targets::Everything, OwnListeners::default()).with_rules(rules);
    let settings = DialSettings {
        resolver: ResolverSettings::Servers(vec![server.address]),
        sockets: SocketSettings::default(),
        upstreams: upstreams.iter().map(|url| url.parse().unwrap()).collect(),
        timeout: TIME,
    };
    let mut dialer = Dialer::new(settings, policy, TRANSIENT).unwrap();
    let resolver = Arc::into_inner(dialer.resolver).unwrap();
    dialer.resolver = Arc::new(resolver.with_search("corp.example."));
    dialer
}

#[tokio::test]
async fn an_allowed_name_reaches_no_refused_address() {
    let server = Server::start().await;
    let (first, second, port) = two_on_one_port().await;
    let dialer = ruled(&server, &["ok.example"], &["127.0.0.1"], &[]);
    server.says("ok.example.", Answer::has(&["127.0.0.1", "127.0.0.2"], 0));
    let dialed = dial(&dialer, &format!("ok.example:{port}")).await.unwrap();
    assert_eq!(dialed.address, Some(([127, 0, 0, 2], port).into()));
    second.accept().await.unwrap();
    for ip in ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "64:ff9b::7f00:1"] {
        server.says("ok.example.", Answer::has(&[ip], 0));
        assert_eq!(fails(&dialer, &format!("OK.example.:{port}")).await, REFUSED, "{ip}");
    }
    server.says("ok.example.", Answer::has(&["127.0.0.1"], 0));
    let error = dial(&dialer, &format!("ok.example:{port}")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "not allowed: 127.0.0.1 is refused by --to-deny 127.0.0.1/32"
    );
    assert!(was_left_alone(first) && was_left_alone(second));
}

#[tokio::test]
async fn a_short_name_is_checked_with_its_search_domain() {
    let server = Server::start().await;
    let (listener, _second, port) = two_on_one_port().await;
    server.says("db.corp.example.", Answer::has(&["127.0.0.1"], 0));
    let deny = ruled(&server, &[], &["db.corp.example"], &[]);
    for name in ["db", "DB", "db.corp.example", "db.corp.example."] {
        assert_eq!(fails(&deny, &format!("{name}:{port}")).await, REFUSED, "{name}");
        let target = format!("{name}:{port}").parse().unwrap();
        let error = deny.addresses(&target, None).await.unwrap_err();
        assert_eq!(error.denied().map(Refusal::as_str), Some("target_rule"), "{name}");
    }
    assert_eq!(server.asked("db.corp.example."), 0);
    let allow = ruled(&server, &["db.corp.example"], &[], &[]);
    dial(&allow, &format!("db:{port}")).await.unwrap();
    listener.accept().await.unwrap();
    let found = allow
        .addresses(&format!("db:{port}").parse().unwrap(), None)
        .await
        .unwrap();
    assert_eq!(allow.check(Some("db"), found[0]), Ok(()), "datagrams");
    for other in [Some("other"), None] {
        assert!(
            matches!(allow.check(other, found[0]), Err(Denied::Rule(_))),
            "{other:?}"
        );
    }
}

#[tokio::test]
async fn a_name_outside_the_allow_list_is_not_even_looked_up() {
    let server = Server::start().await;
    server.says("secret.example.", Answer::has(&["127.0.0.1"], 0));
    let dialer = ruled(&server, &["*.ok.example"], &[], &[]);
    assert_eq!(fails(&dialer, "secret.example:80").await, REFUSED);
    assert!(
        dialer
            .addresses(&"secret.example:80".parse().unwrap(), None)
            .await
            .is_err()
    );
    assert_eq!(server.asked("secret.example."), 0);
    let networks = ruled(&server, &["127.0.0.0/8:80"], &[], &[]);
    assert_eq!(fails(&networks, "secret.example:81").await, REFUSED);
    assert_eq!(server.asked("secret.example."), 0);
    let found = networks.addresses(&"secret.example:80".parse().unwrap(), None).await;
    assert_eq!(found.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
}

#[tokio::test]
async fn a_name_for_an_upstream_proxy_is_refused_if_a_network_is() {
    let server = Server::start().await;
    server.says("far.example.", Answer::has(&["192.0.2.1", "198.51.100.1"], 0));
    let (_held, proxy) = held();
    let remote = [format!("socks5h://{proxy}"), format!("http://{proxy}")];
    let unreachable = ("upstream_unreachable", None);
    for proxy in &remote {
        for (allow, deny, target, expected) in [
            (&[][..], &["192.0.2.0/24"][..], "far.example:80", REFUSED),
            (&["far.example"], &["192.0.2.0/24"], "far.example:80", REFUSED),
            (&["192.0.2.0/24"], &[], "far.example:80", REFUSED),
            (&["far.example"], &[], "far.example:80", unreachable),
            (&["far.example"], &[], "FAR.example.:80", unreachable),
            (&["far.example"], &[], "near.example:80", REFUSED),
            (&[], &["far.example"], "Far.Example.:80", REFUSED),
            (&[], &["192.0.2.0/24"], "192.0.2.1:80", REFUSED),
            (&[], &["192.0.2.0/24"], "198.51.100.1:80", unreachable),
        ] {
            let dialer = ruled(&server, allow, deny, &[proxy]);
            assert_eq!(fails(&dialer, target).await, expected, "{target} {allow:?} {deny:?}");
        }
    }
    assert_eq!(server.asked("far.example."), 0);
    // With socks5, this program looks up the name, and knows the addresses.
    let local = format!("socks5://{proxy}");
    let dialer = ruled(&server, &["far.example"], &["192.0.2.0/24"], &[&local]);
    assert_eq!(fails(&dialer, "far.example:80").await, unreachable);
    let dialer = ruled(
        &server,
        &["far.example"],
        &["192.0.2.0/24", "198.51.100.0/24"],
        &[&local],
    );
    assert_eq!(fails(&dialer, "far.example:80").await, REFUSED);
}

#[test]
fn the_search_list_of_the_system_is_not_used_with_rules_for_names() {
    let system = Resolver::new(&ResolverSettings::System, 1);
    assert_eq!(system.readings("Db", true)[0].name, "db.");
    assert_eq!(system.readings("db.", true)[0].name, "db.");
    assert_eq!(system.readings("db", false)[0].name, "db");
}
