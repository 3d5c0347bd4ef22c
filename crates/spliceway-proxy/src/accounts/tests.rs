//! Tests of accounts.

use super::*;

fn limits(max_conns: u32, rate: &str) -> UserLimits {
    UserLimits {
        max_conns: std::num::NonZeroU32::new(max_conns),
        rate_out: rate.parse().ok(),
        ..UserLimits::default()
    }
}

fn every(limits: UserLimits) -> AllLimits {
    AllLimits {
        every: limits,
        ..AllLimits::default()
    }
}

#[test]
fn a_user_without_limits_has_no_account() {
    let accounts = Accounts::default();
    assert!(accounts.enter("ann").unwrap().is_none());
    let mut limits = every(limits(1, ""));
    limits.named.insert("bob".into(), UserLimits::default());
    accounts.set(&limits);
    assert!(accounts.enter("bob").unwrap().is_none());
    assert!(accounts.enter("ann").unwrap().is_some());
    assert_eq!(accounts.all().accounts.len(), 1);
}

#[test]
fn each_user_has_its_own_limit_on_sessions() {
    let accounts = Accounts::default();
    let mut all = every(limits(1, ""));
    all.named.insert("bob".into(), limits(2, ""));
    accounts.set(&all);
    let ann = accounts.enter("ann").unwrap();
    let bob = [accounts.enter("bob").unwrap(), accounts.enter("bob").unwrap()];
    assert_eq!(accounts.enter("ann").unwrap_err(), TOO_MANY_OF_USER);
    assert_eq!(accounts.enter("bob").unwrap_err(), TOO_MANY_OF_USER);
    let arrived = accounts.reenter("ann");
    assert!(arrived.is_some(), "a session from another process continues");
    drop((ann, bob));
    assert!(accounts.enter("ann").is_err());
    drop(arrived);
    assert!(accounts.enter("ann").is_ok());
}

#[test]
fn the_sessions_of_a_user_share_a_bucket_and_a_reload_keeps_it() {
    let accounts = Accounts::default();
    accounts.set(&every(limits(0, "1MB")));
    let (one, two) = (accounts.enter("ann").unwrap(), accounts.enter("ann").unwrap());
    let out = |session: &Option<Entered>| session.as_ref().unwrap().rates()[1].clone().unwrap();
    out(&one).charge(1_000_000);
    assert!(out(&two).balance() < 0);
    accounts.set(&every(limits(9, "1MB")));
    assert!(out(&two).balance() < 0, "the rate is unchanged");
    accounts.set(&every(limits(9, "2MB")));
    assert_eq!(out(&two).bytes_per_second(), 2_000_000);
    assert!(out(&two).balance() > 0);
    let other = accounts.enter("bob").unwrap();
    assert!(out(&other).balance() > 0);
}
