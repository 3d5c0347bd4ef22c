use super::super::tests::{any, backend, balancer_of, target};
use super::*;
use crate::kit::refusal::Refusal;
use crate::reach::balance::Policy;
use crate::reach::balance::backend::Tried;
use crate::reach::dial::Families;

const TTL: Duration = Duration::from_secs(60);

fn name(text: &str) -> BackendSettings {
    BackendSettings {
        members: Members::EachAddress,
        ..backend(text)
    }
}

fn addresses(texts: &[&str]) -> Vec<Member> {
    let member = |text: &&str| Member {
        address: text.parse().unwrap(),
        priority: 0,
        weight: None,
    };
    texts.iter().map(member).collect()
}

/// Returns the answer of a lookup.
pub(in crate::reach::balance) fn answer(members: Vec<Member>, ttl: Duration) -> Result<MemberList, LookupError> {
    Ok(MemberList {
        members,
        ttl,
        ..MemberList::default()
    })
}

fn list(members: &[Member]) -> MemberList {
    answer(members.to_vec(), TTL).unwrap()
}

fn names(balancer: &Balancer) -> Vec<String> {
    balancer
        .status()
        .into_iter()
        .map(|backend| backend.name.into())
        .collect()
}

#[test]
fn members_are_replaced_and_those_that_stay_keep_their_sessions() {
    let (web, other) = (name("web:80,weight=3"), backend("other:80"));
    let balancer = balancer_of(Policy::LeastConn, vec![web.clone(), other], None);
    let found = answer(addresses(&["192.0.2.1:80", "[2001:db8::1]:80"]), TTL);
    assert_eq!(balancer.looked_up(&web, found), TTL);
    assert_eq!(names(&balancer), ["192.0.2.1:80", "[2001:db8::1]:80", "other:80"]);
    let leases: Vec<_> = (0..7).map(|_| any(&balancer)).collect();
    balancer.update(
        &web,
        &list(&addresses(&["[2001:db8::1]:80", "192.0.2.9:80", "192.0.2.9:80"])),
    );
    let sessions: Vec<_> = balancer.status().iter().map(|one| one.sessions).collect();
    assert_eq!(names(&balancer), ["[2001:db8::1]:80", "192.0.2.9:80", "other:80"]);
    assert_eq!(sessions, [3, 0, 1]);
    drop(leases);
    assert!(balancer.status().iter().all(|one| one.sessions == 0));
}

#[test]
fn every_address_of_a_name_needs_a_certificate_for_the_name() {
    let web = BackendSettings {
        members: Members::EachAddress,
        ..backend("tls://web.example:443")
    };
    let balancer = balancer_of(Policy::First, vec![web.clone()], None);
    balancer.update(&web, &list(&addresses(&["192.0.2.1:443"])));
    let [(_, to, _)] = &balancer.targets()[..] else {
        panic!("one member");
    };
    assert_eq!(to.to_string(), "tls://192.0.2.1:443");
    assert_eq!(to.tls, Some("web.example".parse().unwrap()));
    assert_eq!(any(&balancer).target(0), *to);
}

/// A server may serve several names at one address.
#[test]
fn checks_of_http_ask_an_address_for_its_name() {
    let (web, other) = (name("web.example:80"), backend("192.0.2.9:80"));
    let balancer = balancer_of(Policy::First, vec![web.clone(), other], None);
    balancer.update(&web, &list(&addresses(&["192.0.2.1:80"])));
    let asked: Vec<_> = balancer
        .targets()
        .iter()
        .map(|(_, target, host)| (target.to_string(), host.to_string()))
        .collect();
    let expected = [("192.0.2.1:80", "web.example:80"), ("192.0.2.9:80", "192.0.2.9:80")];
    assert_eq!(
        asked,
        expected.map(|(target, host)| (target.to_owned(), host.to_owned()))
    );
}

#[test]
fn a_failed_lookup_keeps_the_members() {
    let web = name("web:80");
    let balancer = balancer_of(Policy::First, vec![web.clone()], None);
    balancer.update(&web, &list(&addresses(&["192.0.2.1:80"])));
    assert_eq!(balancer.looked_up(&web, Err(LookupError::TimedOut)), AGAIN);
    assert_eq!(target(&any(&balancer)), "192.0.2.1:80");
}

#[test]
fn answers_are_used_for_their_ttl_within_bounds() {
    let web = name("web:80");
    let balancer = balancer_of(Policy::First, vec![web.clone()], None);
    for (ttl, expected) in [(Duration::ZERO, SHORTEST), (TTL, TTL), (Duration::MAX, LONGEST)] {
        assert_eq!(
            balancer.looked_up(&web, answer(addresses(&["192.0.2.1:80"]), ttl)),
            expected
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_for_the_first_lookup_and_no_longer() {
    for (found, expected) in [
        (answer(addresses(&["192.0.2.1:80"]), TTL), Ok("192.0.2.1:80".to_owned())),
        (Err(LookupError::NoAddress), Err(Refusal::NoBackend)),
    ] {
        let web = name("web:80");
        let balancer = balancer_of(Policy::First, vec![web.clone()], None);
        let client = tokio::spawn({
            let balancer = Arc::clone(&balancer);
            async move { balancer.lease(None, &Tried::default(), TTL).await }
        });
        while balancer.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        balancer.looked_up(&web, found);
        assert_eq!(client.await.unwrap().map(|lease| target(&lease)), expected);
    }
}

#[test]
fn a_reload_keeps_members_until_the_next_lookup() {
    let web = name("web:80");
    let before = balancer_of(Policy::First, vec![web.clone()], None);
    before.update(&web, &list(&addresses(&["192.0.2.1:80"])));
    let lease = any(&before);
    let after = balancer_of(Policy::RoundRobin, vec![backend("other:80"), web], Some(&before));
    assert_eq!(names(&after), ["other:80", "192.0.2.1:80"]);
    assert_eq!(after.status()[1].sessions, 1);
    drop(lease);
}

#[test]
fn records_of_a_service_have_weights_and_priorities() {
    let web = BackendSettings {
        members: Members::Srv,
        ..backend("srv:_http._tcp.web.example")
    };
    let balancer = balancer_of(Policy::RoundRobin, vec![web.clone()], None);
    for (weights, expected) in [([10, 0], [10, 1]), ([60_000, 6000], [256, 25])] {
        let mut members = addresses(&["192.0.2.1:81", "192.0.2.2:82", "192.0.2.3:83"]);
        for (member, weight) in members.iter_mut().zip(weights) {
            (member.priority, member.weight) = (10, Some(weight));
        }
        (members[2].priority, members[2].weight) = (20, Some(1));
        balancer.update(&web, &list(&members));
        let status = balancer.status();
        assert_eq!([status[0].weight, status[1].weight], expected);
        let backups: Vec<_> = status.iter().map(|one| one.is_backup).collect();
        assert_eq!(backups, [false, false, true]);
    }
}

#[test]
fn a_name_has_at_most_so_many_members() {
    let web = name("web:80");
    let balancer = balancer_of(Policy::First, vec![web.clone()], None);
    let many: Vec<String> = (0..300)
        .map(|number| format!("192.0.{}.{}:80", number / 256, number % 256))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    balancer.update(&web, &list(&addresses(&many)));
    assert_eq!(balancer.status().len(), BACKENDS_MAX);
}

#[tokio::test(start_paused = true)]
async fn members_leave_when_their_name_has_had_no_address_for_long() {
    let web = name("web:80");
    let balancer = balancer_of(Policy::First, vec![web.clone()], None);
    let since = Instant::now();
    assert_eq!(balancer.has_no_address(&web, &since), AGAIN);
    balancer.update(&web, &list(&addresses(&["192.0.2.1:80"])));
    for (seconds, expected) in [(0, 1), (29, 1), (1, 0), (5, 0)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        assert_eq!(balancer.has_no_address(&web, &since), AGAIN);
        assert_eq!(names(&balancer).len(), expected);
    }
    let none = balancer.lease(None, &Tried::default(), TTL).await;
    assert_eq!(none.unwrap_err(), Refusal::NoBackend, "and no client waits");
}

#[test]
fn members_of_a_family_that_is_not_known_stay() {
    let web = name("web:80");
    let balancer = balancer_of(Policy::First, vec![web.clone()], None);
    balancer.update(&web, &list(&addresses(&["192.0.2.1:80", "[2001:db8::1]:80"])));
    let found = MemberList {
        failed: Some(LookupError::TimedOut),
        unknown: Families::V4,
        ..list(&addresses(&["[2001:db8::3]:80"]))
    };
    assert_eq!(balancer.looked_up(&web, Ok(found)), AGAIN, "sooner than its TTL");
    assert_eq!(names(&balancer), ["192.0.2.1:80", "[2001:db8::3]:80"]);
}

#[test]
fn a_member_that_returns_keeps_its_state() {
    let web = name("web:80,max-conns=1");
    let before = balancer_of(Policy::First, vec![web.clone()], None);
    let all = addresses(&["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"]);
    before.update(&web, &list(&all));
    assert!(before.set_weight("192.0.2.1:80", Some(0)));
    let session = any(&before);
    before.update(&web, &list(&all[2..]));
    let after = balancer_of(Policy::First, vec![web.clone()], Some(&before));
    after.update(&web, &list(&all));
    let status = after.status();
    assert_eq!(
        [0, 1, 2].map(|index| (status[index].weight, status[index].sessions)),
        [(0, 0), (1, 1), (1, 0)]
    );
    assert_eq!(
        (target(&session), target(&any(&after))),
        ("192.0.2.2:80".into(), "192.0.2.3:80".into())
    );
    // Only the last ones are remembered.
    let other = |number: usize| addresses(&[&format!("198.51.{}.{}:80", number / 256, number % 256)]);
    (0..=BACKENDS_MAX + 3).for_each(|number| after.update(&web, &list(&other(number))));
    after.update(&web, &list(&all));
    assert_eq!(after.status()[0].weight, 1);
    assert_eq!(after.inner.lock().left.len(), BACKENDS_MAX);
}
