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

fn daily(bytes: u64) -> AllLimits {
    let mut limits = AllLimits::default();
    limits.every.quotas.day = std::num::NonZeroU64::new(bytes);
    limits
}

/// Returns the bytes of the day that are used and that are not saved.
fn used(accounts: &Accounts, user: &str, date: Date) -> (u64, u64) {
    let all = accounts.all();
    let account = &all.accounts[user];
    let mut state = account.state();
    account.settle(&mut state, date);
    (state.usage.day, state.unsaved)
}

#[test]
fn a_quota_is_used_up_when_its_last_byte_is_counted() {
    let accounts = Accounts::default();
    accounts.set(&daily(100));
    let session = accounts.enter("ann").unwrap().unwrap();
    assert!(!session.account().count(99));
    assert!(accounts.enter("ann").is_ok());
    assert!(session.account().count(1));
    assert_eq!(accounts.enter("ann").unwrap_err(), USED_UP);
    assert!(accounts.enter("bob").is_ok());
    assert!(accounts.reenter("ann").is_some(), "its first poll ends it");
    accounts.set(&daily(101));
    assert!(!session.account().is_used_up());
    accounts.set(&daily(1));
    assert!(session.account().is_used_up() && accounts.are_used_up());
    let tomorrow = Date {
        day: Date::now().day + 1,
        ..Date::now()
    };
    assert_eq!(used(&accounts, "ann", tomorrow).0, 0);
    assert!(!session.account().is_used_up());
}

#[test]
fn each_quota_is_full_again_when_its_own_period_ends() {
    let accounts = Accounts::default();
    let mut limits = daily(100);
    limits.every.quotas.month = std::num::NonZeroU64::new(150);
    accounts.set(&limits);
    let session = accounts.enter("ann").unwrap().unwrap();
    let (account, mut date) = (session.account(), Date::now());
    let is_used_up_at = |date| {
        used(&accounts, "ann", date);
        account.is_used_up()
    };
    assert!(account.count(100) && is_used_up_at(date));
    // A clock that is set back frees nothing.
    let before = Date {
        day: date.day - 40,
        month: date.month - 1,
    };
    assert!(is_used_up_at(before));
    date.day += 1;
    assert!(!is_used_up_at(date));
    assert!(!account.count(49) && account.count(1), "the rest of the month");
    date.day += 1;
    assert!(is_used_up_at(date));
    (date.day, date.month) = (date.day + 30, date.month + 1);
    assert!(!is_used_up_at(date));
    assert_eq!(account.quota_used(), Some(0.0));
    assert!(!account.count(99) && account.count(1), "the whole day");
}

#[test]
fn bytes_that_are_counted_during_an_update_are_saved_by_the_next_one() {
    let (accounts, date) = (Accounts::default(), Date::now());
    accounts.set(&daily(1000));
    let session = accounts.enter("ann").unwrap().unwrap();
    session.account().count(100);
    let changes = accounts.changes(date);
    session.account().count(20);
    assert_eq!(used(&accounts, "ann", date), (120, 120));
    // Another process has added 500 bytes.
    let row = Usage {
        date,
        day: 600,
        month: 600,
    };
    accounts.saved(&changes, vec![("ann".into(), row)], date);
    assert_eq!(used(&accounts, "ann", date), (620, 20));
    assert!(session.account().count(380));
    assert_eq!(accounts.changes(date)[0].bytes, 400);
}

#[test]
fn a_reset_during_an_update_counts_from_0_and_is_saved() {
    let (accounts, date) = (Accounts::default(), Date::now());
    accounts.set(&daily(100));
    let session = accounts.enter("ann").unwrap().unwrap();
    session.account().count(100);
    let changes = accounts.changes(date);
    assert!(accounts.reset("ann") && !accounts.reset("eve"));
    assert!(!session.account().count(7));
    let row = Usage {
        date,
        day: 100,
        month: 100,
    };
    accounts.saved(&changes, vec![("ann".into(), row)], date);
    assert_eq!(used(&accounts, "ann", date), (7, 7));
    let changes = accounts.changes(date);
    assert!(changes[0].is_reset && changes[0].bytes == 7);
    let row = Usage { date, day: 7, month: 7 };
    accounts.saved(&changes, vec![("ann".into(), row)], date);
    assert!(accounts.changes(date).is_empty());
    assert_eq!(used(&accounts, "ann", date), (7, 0));
}

#[test]
fn a_user_without_an_account_has_what_the_file_says() {
    let (accounts, date) = (Accounts::default(), Date::now());
    let row = Usage {
        date,
        day: 100,
        month: 100,
    };
    accounts.saved(&[], vec![("ann".into(), row)], date);
    accounts.set(&daily(100));
    assert_eq!(accounts.statuses("", 9)[0].used[0].bytes, 100);
    assert_eq!(accounts.enter("ann").unwrap_err(), USED_UP);
    assert!(accounts.statuses("ann", 9).is_empty());
}
