use std::time::Duration;

use super::super::tests::{any, backend, balancer_of, target};
use super::*;
use crate::reach::balance::{BackendState, CheckSettings, Failure, Policy, Probe};
use crate::reach::dial::{Member, MemberList};

/// Hands over the state of one balancer to another, as a hand-over does.
fn hand_over(from: &Arc<Balancer>, to: &Arc<Balancer>) {
    let json = serde_json::to_string(&from.to_hand_over()).unwrap();
    to.take_over(&serde_json::from_str::<Vec<HandedOverBackend>>(&json).unwrap());
}

fn states(balancer: &Balancer) -> Vec<(String, BackendState)> {
    let states = balancer.status().into_iter();
    states.map(|one| (one.name.into(), one.state)).collect()
}

#[tokio::test(start_paused = true)]
async fn another_process_knows_which_backends_get_no_clients() {
    let names = ["a:1", "b:1", "c:1", "d:1"];
    let new = |names: &[&str]| balancer_of(Policy::First, names.iter().map(|name| backend(name)).collect(), None);
    let (old, new) = (new(&names), new(&["d:1", "c:1", "b:1", "a:1", "e:1"]));
    any(&old).failed(Failure::Connect);
    assert!(old.set_weight("b:1", Some(0)) && old.set_weight("d:1", Some(7)));
    assert!(
        new.set_weight("d:1", Some(0)),
        "the old process is right until it hands over"
    );
    for _ in 0..2 {
        hand_over(&old, &new);
        assert_eq!(new.status()[0].weight, 7);
        assert_eq!(new.status()[3].trouble, old.status()[0].trouble);
        assert!(new.status()[3].trouble.is_some());
        let expected = [
            ("d:1", BackendState::Up),
            ("c:1", BackendState::Up),
            ("b:1", BackendState::Draining),
            ("a:1", BackendState::Ejected),
            ("e:1", BackendState::Up),
        ];
        assert_eq!(states(&new), expected.map(|(name, state)| (name.to_owned(), state)));
    }
    // A session that is handed over is not the one that tries.
    tokio::time::advance(Duration::from_secs(5)).await;
    drop(new.adopt(&"a:1".parse().unwrap()));
    assert_eq!(states(&new)[3].1, BackendState::Ejected);
    let all: Vec<_> = (0..4).map(|_| any(&new)).collect();
    assert!(all.iter().all(|lease| target(lease) == "d:1"));
}

#[test]
fn the_first_check_of_another_process_is_newer_than_what_is_taken_over() {
    let check = CheckSettings {
        probe: Probe::Connect,
        interval: Duration::from_secs(1),
        rise: 2,
        fall: 2,
        introduction: Vec::new(),
    };
    let new = || {
        let mut settings = balancer_of(Policy::First, vec![backend("a:1"), backend("b:1")], None)
            .settings
            .clone();
        settings.check = Some(check.clone());
        Balancer::new("web", &settings, None)
    };
    let (old, new) = (new(), new());
    let record = |balancer: &Arc<Balancer>, index: usize, is_good: bool| {
        let backend = Arc::clone(&balancer.inner.lock().entries[index].backend);
        let result = is_good
            .then_some(())
            .ok_or(crate::reach::balance::probe::Unhealthy::TooSlow);
        balancer.record_check(&backend, &check, result);
    };
    record(&old, 0, false);
    record(&old, 1, true);
    record(&old, 1, false);
    record(&new, 0, true);
    hand_over(&old, &new);
    let is_up = |balancer: &Balancer| states(balancer).into_iter().map(|(_, state)| state == BackendState::Up);
    assert_eq!(is_up(&new).collect::<Vec<_>>(), [true, true]);
    assert!(new.status().iter().all(|one| one.trouble.is_none()));
    record(&new, 1, false);
    assert_eq!(
        is_up(&new).collect::<Vec<_>>(),
        [true, false],
        "two failed checks in a row"
    );
}

#[test]
fn members_of_a_name_move_until_it_is_looked_up() {
    let name = BackendSettings {
        members: Members::Srv,
        ..backend("srv:_http._tcp.web.example")
    };
    let new = || balancer_of(Policy::First, vec![name.clone(), backend("b:1")], None);
    let (old, new) = (new(), new());
    let members = [("192.0.2.1:80", 1, 9), ("[2001:db8::1]:81", 2, 0)];
    let members = members.map(|(address, priority, weight)| Member {
        address: address.parse().unwrap(),
        priority,
        weight: Some(weight),
    });
    let looked_up = |balancer: &Arc<Balancer>, members: &[Member]| {
        let found = MemberList {
            members: members.to_vec(),
            ttl: Duration::from_secs(60),
            ..MemberList::default()
        };
        balancer.looked_up(&name, Ok(found));
    };
    looked_up(&old, &members);
    assert!(old.set_weight("192.0.2.1:80", Some(0)));
    hand_over(&old, &new);
    let facts = |balancer: &Balancer| {
        let status = balancer.status().into_iter();
        status
            .map(|one| (one.name, one.weight, one.is_backup))
            .collect::<Vec<_>>()
    };
    assert_eq!(facts(&new), facts(&old));
    assert_eq!(target(&any(&new)), "b:1", "no client waits for a lookup");
    // What this process has found is newer.
    looked_up(&new, &members[1..]);
    hand_over(&old, &new);
    assert_eq!(facts(&new).len(), 2);
}
