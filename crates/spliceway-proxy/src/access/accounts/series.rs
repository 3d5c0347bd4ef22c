//! What operators see of accounts: metrics of the users that the configuration names, and the state
//! of any user.

use std::sync::atomic::Ordering;

use spliceway_operator::api::{PeriodStatus, UserStatus};

use super::calendar::Date;
use super::{Account, Accounts, Usage, UserLimits};
use crate::access::rates::ByteRate;

/// The users with a label of their own in metrics, in the order of their names, and as many that
/// are known by network. All others share one series, so that many users do not become many series.
const LABELS_MAX: usize = 100;

impl Accounts {
    /// Returns up to `most` users with accounts whose names are after `after`, in order.
    pub(crate) fn statuses(&self, after: &str, most: usize) -> Vec<UserStatus> {
        let all = self.all();
        let known = all
            .known
            .iter()
            .filter(|(user, _)| !all.limits.of_user(user).are_none());
        let known = known.map(|(user, usage)| (&**user, None, Some(usage)));
        let accounts = all
            .accounts
            .iter()
            .map(|(user, account)| (&**user, Some(account), None));
        let mut users: Vec<_> = known.chain(accounts).filter(|(user, ..)| *user > after).collect();
        users.sort_unstable_by_key(|(user, ..)| *user);
        users.truncate(most);
        let date = Date::now();
        let statuses = users.into_iter().map(|(user, account, usage)| match (account, usage) {
            (Some(account), _) => account.status(user, date),
            (None, usage) => status(
                user,
                0,
                &all.limits.of_user(user),
                usage.cloned().unwrap_or_default(),
                date,
            ),
        });
        statuses.collect()
    }
}

impl Account {
    fn status(&self, user: &str, date: Date) -> UserStatus {
        let mut state = self.state();
        self.settle(&mut state, date);
        status(user, state.sessions, &state.limits, state.usage.clone(), date)
    }
}

fn status(user: &str, sessions: u64, limits: &UserLimits, mut usage: Usage, date: Date) -> UserStatus {
    use super::limits::Period::{Day, Month};
    usage.advance(date);
    let quotas = [(Day, limits.quotas.day), (Month, limits.quotas.month)];
    UserStatus {
        user: user.to_owned(),
        sessions,
        max_conns: limits.max_conns.map(Into::into),
        rate_in: limits.rate_in.map(ByteRate::bytes_per_second),
        rate_out: limits.rate_out.map(ByteRate::bytes_per_second),
        used: quotas
            .map(|(period, quota)| PeriodStatus {
                period: period.as_str().to_owned(),
                bytes: usage.in_period(period),
                quota: quota.map(Into::into),
                resets: usage.date().end_of(period),
            })
            .into(),
    }
}

/// The sums of the users with one label. No user has an empty name, so that is the label of others.
#[derive(Default)]
pub(crate) struct Sums {
    pub(crate) user: String,
    pub(crate) sessions: u64,
    /// The bytes that this process has counted.
    pub(crate) counted: u64,
    /// The sessions that were refused.
    pub(crate) refused: u64,
    usage: Option<(Usage, UserLimits)>,
}

impl Sums {
    /// Returns the period, the used bytes and the size of each quota. The label of others has none.
    pub(crate) fn quotas(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        self.usage.iter().flat_map(|(usage, limits)| {
            let quotas = limits.quotas.iter();
            quotas.map(|(period, quota)| (period.as_str(), usage.in_period(period), quota.get()))
        })
    }
}

impl Accounts {
    /// Returns the sums of each label, and the bytes that are not in the quota file.
    pub(crate) fn sums(&self) -> (Vec<Sums>, u64) {
        let (all, date) = (self.all(), Date::now());
        let mut labels = [LABELS_MAX; 2];
        let named = all.limits.named.iter().filter(|(_, limits)| {
            let left = &mut labels[usize::from(limits.is_by_network)];
            let has_label = *left > 0;
            *left = left.saturating_sub(1);
            has_label
        });
        let mut sums: Vec<Sums> = named
            .map(|(user, _)| user)
            .map(|user| Sums {
                user: user.to_string(),
                usage: Some((all.usage_of(user, date), all.limits.of_user(user))),
                ..Sums::default()
            })
            .collect();
        let (mut others, mut unsaved) = (Sums::default(), 0);
        for (user, account) in &all.accounts {
            let mut state = account.state();
            account.settle(&mut state, date);
            unsaved += state.unsaved;
            let sums = match sums.binary_search_by(|sums| (*sums.user).cmp(user)) {
                Ok(index) => &mut sums[index],
                Err(_) => &mut others,
            };
            sums.sessions += state.sessions;
            sums.counted += state.settled;
            sums.refused += account.refused.load(Ordering::Relaxed);
            if let Some((usage, _)) = &mut sums.usage {
                *usage = state.usage.clone();
            }
        }
        if !all.limits.are_none() {
            sums.push(others);
        }
        (sums, unsaved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_users_have_a_label_and_the_others_share_one() {
        let (accounts, mut limits) = (Accounts::default(), super::super::AllLimits::default());
        let one = std::num::NonZeroU32::new(1);
        for number in 0..LABELS_MAX + 2 {
            let own = UserLimits {
                max_conns: one,
                ..UserLimits::default()
            };
            limits.named.insert(format!("user-{number:03}").into(), own);
        }
        accounts.set(&limits);
        let users = ["user-000", "user-099", "user-100", "user-101"];
        let sessions = users.map(|user| accounts.enter(user).unwrap().unwrap());
        for session in &sessions {
            assert!(!session.account().count(7), "there is no quota");
        }
        let (sums, unsaved) = accounts.sums();
        let of = |index: usize| {
            let sums: &Sums = &sums[index];
            (&*sums.user, sums.sessions, sums.counted)
        };
        assert_eq!((sums.len(), unsaved), (LABELS_MAX + 1, 28));
        assert_eq!((of(0), of(1)), (("user-000", 1, 7), ("user-001", 0, 0)));
        assert_eq!((of(99), of(100)), (("user-099", 1, 7), ("", 2, 14)));
    }

    #[test]
    fn users_by_network_take_no_labels_of_others_and_need_no_limits() {
        let (accounts, mut limits) = (Accounts::default(), super::super::AllLimits::default());
        for number in 0..LABELS_MAX + 1 {
            let by_network = UserLimits {
                is_by_network: true,
                ..UserLimits::default()
            };
            limits.named.insert(format!("net-{number:03}").into(), by_network);
        }
        let own = UserLimits {
            max_conns: std::num::NonZeroU32::new(1),
            ..UserLimits::default()
        };
        limits.named.insert("zoe".into(), own);
        accounts.set(&limits);
        let users = ["net-000", "net-100", "zoe"];
        let sessions = users.map(|user| accounts.enter(user).unwrap().unwrap());
        for user in ["net-000", "net-100", "zoe", "zoe", "invented"] {
            accounts.count_refusal(user);
        }
        let (sums, _) = accounts.sums();
        let sums: Vec<_> = sums.iter().filter(|sums| sums.sessions > 0).collect();
        let shown: Vec<_> = sums
            .iter()
            .map(|sums| (&*sums.user, sums.sessions, sums.refused))
            .collect();
        assert_eq!(shown, [("net-000", 1, 1), ("zoe", 1, 2), ("", 1, 1)]);
        assert_eq!(
            accounts.all().accounts.len(),
            3,
            "a name that clients invent has no account"
        );
        drop(sessions);
    }
}
