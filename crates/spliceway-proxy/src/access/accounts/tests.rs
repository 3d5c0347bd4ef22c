//! Tests of accounts.

use super::limits::Period;
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
    assert_eq!(accounts.enter("ann").unwrap_err(), Refusal::SessionsOfUser);
    assert_eq!(accounts.enter("bob").unwrap_err(), Refusal::SessionsOfUser);
    let taken_over = accounts.reenter("ann");
    assert!(taken_over.is_some(), "a session from another process continues");
    drop((ann, bob));
    assert!(accounts.enter("ann").is_err());
    drop(taken_over);
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
    (state.usage.in_period(Period::Day), state.unsaved)
}

/// A file in which a user has used these bytes.
fn row(user: &str, bytes: u64, date: Date) -> Updated {
    let mut usage = Usage::new(date);
    usage.add(bytes);
    Updated {
        rows: vec![(user.into(), usage)],
        ..Updated::default()
    }
}

#[test]
fn a_quota_is_used_up_when_its_last_byte_is_counted() {
    let accounts = Accounts::default();
    accounts.set(&daily(100));
    let session = accounts.enter("ann").unwrap().unwrap();
    assert!(!session.account().count(99));
    assert!(accounts.enter("ann").is_ok());
    assert!(session.account().count(1));
    assert_eq!(accounts.enter("ann").unwrap_err(), Refusal::Quota);
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
    accounts.saved(&changes, row("ann", 600, date), date);
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
    assert!(accounts.reset("ann").is_some() && accounts.reset("eve").is_none());
    assert!(!session.account().count(7));
    accounts.saved(&changes, row("ann", 100, date), date);
    assert_eq!(used(&accounts, "ann", date), (7, 7));
    let changes = accounts.changes(date);
    assert!(changes[0].is_reset && changes[0].bytes == 7);
    accounts.saved(&changes, row("ann", 7, date), date);
    assert!(accounts.changes(date).is_empty());
    assert_eq!(used(&accounts, "ann", date), (7, 0));
}

#[test]
fn a_user_without_an_account_has_what_the_file_says() {
    let (accounts, date) = (Accounts::default(), Date::now());
    accounts.saved(&[], row("ann", 100, date), date);
    accounts.set(&daily(100));
    assert_eq!(accounts.statuses("", 9)[0].used[0].bytes, 100);
    assert_eq!(accounts.enter("ann").unwrap_err(), Refusal::Quota);
    assert!(accounts.statuses("ann", 9).is_empty());
}

/// The accounts of one process in a hand-over, and its file.
struct TestProcess {
    accounts: Arc<Accounts>,
    session: Entered,
}

const MIB: u64 = 1 << 20;

impl TestProcess {
    fn new(path: &std::path::Path, id: u32, is_shared: bool, quota: u64) -> Self {
        let accounts = Arc::<Accounts>::default();
        accounts.set(&daily(quota));
        accounts.load(path, is_shared).unwrap();
        accounts.file.get().unwrap().lock().become_process(id);
        let session = accounts.enter("ann").unwrap().unwrap();
        Self { accounts, session }
    }

    fn share(&self, with_one_more: bool) {
        let saved = self.accounts.share_file(with_one_more);
        assert!(saved.is_none_or(|saved| saved.is_ok()));
        if !with_one_more {
            self.update();
        }
    }

    fn update(&self) {
        let saved = self.accounts.save();
        assert!(saved.is_none_or(|saved| saved.is_ok()));
    }

    /// Passes bytes as a session does, in polls of at most 1 MiB. Returns how many, and whether the
    /// quota is used up.
    fn pass(&self, most: u64) -> (u64, bool) {
        let (account, mut passed) = (self.session.account(), 0);
        while passed < most && !account.is_used_up() {
            if !account.has_share() {
                drop(account.next_share());
                break;
            }
            account.count(MIB.min(most - passed));
            passed += MIB.min(most - passed);
        }
        (passed, account.is_used_up())
    }
}

/// Both processes of a hand-over pass bytes until their sessions are cut. Returns the sum.
fn used_by_both(name: &str, quota: u64, rates: [u64; 2]) -> u64 {
    let path = std::env::temp_dir().join(format!("spliceway-shares-{name}-{}", std::process::id()));
    let old = TestProcess::new(&path, std::process::id(), false, quota);
    let (mut passed, _) = old.pass(5 * MIB);
    old.share(true);
    // Process 1 always lives.
    let new = TestProcess::new(&path, 1, true, quota);
    let mut are_used_up = [false; 2];
    for round in 0.. {
        assert!(round < 2000, "{passed} of {quota}: {are_used_up:?}");
        for (index, process) in [&old, &new].into_iter().enumerate() {
            let (bytes, is_used_up) = process.pass(rates[index]);
            passed += bytes;
            are_used_up[index] = is_used_up;
            process.update();
        }
        if are_used_up == [true; 2] {
            break;
        }
    }
    assert_eq!(new.accounts.enter("ann").unwrap_err(), Refusal::Quota);
    drop(std::fs::remove_file(&path));
    passed
}

#[test]
fn both_processes_of_a_hand_over_use_one_quota_together() {
    let quota = 300 * MIB;
    for (name, rates) in [
        ("both", [20 * MIB, 20 * MIB]),
        ("old", [20 * MIB, 0]),
        ("new", [0, 300 * MIB]),
        ("slow", [7_000, 90 * MIB]),
    ] {
        let passed = used_by_both(name, quota, rates);
        let bounds = quota - (64 << 10)..quota + 2 * 2 * MIB;
        assert!(bounds.contains(&passed), "{name}: {passed}");
    }
}

#[test]
fn a_process_with_nothing_to_save_uses_no_more_than_its_share() {
    let path = std::env::temp_dir().join(format!("spliceway-shares-saved-{}", std::process::id()));
    let quota = 300 * MIB;
    let old = TestProcess::new(&path, std::process::id(), false, quota);
    old.pass(5 * MIB);
    old.update();
    assert!(old.accounts.share_file(true).unwrap().is_ok());
    assert_eq!(old.pass(quota).0, 0, "it has no share yet");
    drop(std::fs::remove_file(&path));
}

#[test]
fn without_a_quota_no_session_waits_for_another_process() {
    let path = std::env::temp_dir().join(format!("spliceway-shares-none-{}", std::process::id()));
    let old = TestProcess::new(&path, std::process::id(), false, MIB);
    old.share(true);
    let new = TestProcess::new(&path, 1, true, MIB);
    assert_eq!(new.pass(9 * MIB), (0, false));
    // A reload removes the quota, and the keeper then does nothing.
    new.accounts.set(&every(limits(9, "")));
    assert_eq!(new.pass(9 * MIB), (9 * MIB, false));
    drop(std::fs::remove_file(&path));
}

#[test]
fn a_reset_during_a_hand_over_leaves_the_share_of_the_other_process() {
    let path = std::env::temp_dir().join(format!("spliceway-shares-reset-{}", std::process::id()));
    let old = TestProcess::new(&path, std::process::id(), false, 100 * MIB);
    old.share(true);
    let new = TestProcess::new(&path, 1, true, 100 * MIB);
    for _ in 0..3 {
        let (_, is_used_up) = new.pass(100 * MIB);
        new.update();
        assert!(!is_used_up);
    }
    assert!(old.accounts.reset("ann").is_some());
    old.update();
    let mut passed = 0;
    for _ in 0..99 {
        passed += old.pass(200 * MIB).0;
        old.update();
    }
    passed += new.pass(200 * MIB).0;
    assert!((100 * MIB - (64 << 10)..102 * MIB).contains(&passed), "{passed}");
    drop(std::fs::remove_file(&path));
}

#[test]
fn a_process_uses_the_whole_rest_when_the_other_one_has_ended() {
    let path = std::env::temp_dir().join(format!("spliceway-shares-alone-{}", std::process::id()));
    let quota = 100 * MIB;
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let old = TestProcess::new(&path, child.id(), false, quota);
    assert_eq!(old.pass(30 * MIB), (30 * MIB, false));
    old.share(true);
    let new = TestProcess::new(&path, std::process::id(), true, quota);
    assert_eq!(new.pass(MIB).0, 0, "it has no share yet");
    new.update();
    assert_eq!(new.pass(30 * MIB).0, MIB);
    // The old process is killed, with a share.
    drop(old);
    drop(child.stdin.take());
    child.wait().unwrap();
    new.share(false);
    assert!(!new.accounts.are_shared());
    assert_eq!(new.pass(quota), (69 * MIB, true));
    drop(std::fs::remove_file(&path));
}
