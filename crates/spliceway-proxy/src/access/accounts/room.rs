//! The bound on the accounts of users whose names a CA chooses.

use super::limits::Period;
use super::{Account, Accounts, Date};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most accounts while names come from certificates. An account has a few hundred bytes.
const ACCOUNTS_MAX: usize = 1 << 16;

impl Accounts {
    /// Returns whether this user has an account or may get one. If there are too many accounts,
    /// those that nobody uses and that have no bytes in a quota are removed.
    pub(crate) fn have_room_for(&self, user: &str) -> bool {
        if !self.are_used.load(Ordering::Relaxed) {
            return true;
        }
        let mut all = self.all();
        if all.accounts.len() < ACCOUNTS_MAX || all.accounts.contains_key(user) {
            return true;
        }
        let date = Date::now();
        // A session, or one that is about to enter, holds its account.
        all.accounts
            .retain(|_, account| Arc::strong_count(account) > 1 || account.has_used_quota(date));
        all.accounts.len() < ACCOUNTS_MAX
    }
}

impl Account {
    /// Returns whether the account has bytes that count for a quota, or that the file must have.
    fn has_used_quota(&self, date: Date) -> bool {
        let mut state = self.state();
        self.settle(&mut state, date);
        let used = [Period::Day, Period::Month].map(|period| state.usage.in_period(period));
        let has_bytes = used != [0, 0] || state.unsaved > 0 || state.reserved > 0;
        state.is_reset || has_bytes && !state.limits.quotas.are_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AllLimits, Quota, UserLimits};
    use super::*;

    fn every(quota: &str) -> AllLimits {
        let mut limits = UserLimits {
            max_conns: std::num::NonZeroU32::new(1),
            ..UserLimits::default()
        };
        if let Ok(quota) = quota.parse::<Quota>() {
            limits.quotas.add(quota);
        }
        AllLimits {
            every: limits,
            ..AllLimits::default()
        }
    }

    #[test]
    fn unused_accounts_make_room_and_used_ones_stay() {
        let accounts = Accounts::default();
        accounts.set(&every(""));
        let ann = accounts.enter("ann").unwrap();
        for number in 1..ACCOUNTS_MAX {
            assert!(accounts.have_room_for("bob"), "{number}");
            accounts.enter(&number.to_string()).unwrap();
        }
        assert_eq!(accounts.all().accounts.len(), ACCOUNTS_MAX);
        assert!(accounts.have_room_for("ann") && accounts.have_room_for("bob"));
        assert_eq!(accounts.all().accounts.len(), 1);
        assert!(accounts.enter("ann").is_err(), "the session still counts");
        drop(ann);
    }

    #[test]
    fn an_account_with_bytes_in_a_quota_is_not_forgotten() {
        let accounts = Accounts::default();
        accounts.set(&every("1GB/day"));
        for number in 0..ACCOUNTS_MAX {
            let session = accounts.enter(&number.to_string()).unwrap();
            session.unwrap().account().count(1);
        }
        assert!(!accounts.have_room_for("bob") && accounts.have_room_for("7"));
    }
}
