//! What operators see of accounts: metrics of the users that the configuration names, and the state
//! of any user.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use spliceway_operator::api::{PeriodStatus, UserStatus};

use super::calendar::Date;
use super::{Account, Accounts, Usage, UserLimits};
use crate::access::rates::ByteRate;

/// The users with a label of their own in metrics, in the order of their names. All others share
/// one series, so that many users do not become many series.
const LABELS_MAX: usize = 100;

impl Accounts {
    /// Returns up to `most` users with accounts whose names are after `after`, in order.
    pub(crate) fn statuses(&self, after: &str, most: usize) -> Vec<UserStatus> {
        let all = self.all();
        let known = all.known.iter().filter(|(user, _)| !all.limits.of(user).are_none());
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
            (None, usage) => status(user, 0, &all.limits.of(user), usage.cloned().unwrap_or_default(), date),
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
                bytes: usage.of(period),
                quota: quota.map(Into::into),
                resets: usage.date().end_of(period),
            })
            .into(),
    }
}

/// The metrics of accounts.
#[derive(Debug)]
pub(crate) struct UserSeries(pub(crate) Arc<Accounts>);

/// The sums of the users with one label. No user has an empty name, so that is the label of others.
#[derive(Default)]
struct Sums {
    user: String,
    sessions: u64,
    counted: u64,
    usage: Option<(Usage, UserLimits)>,
}

impl UserSeries {
    /// Returns the sums of each label, and the bytes that are not in the quota file.
    fn sums(&self) -> (Vec<Sums>, u64) {
        let (all, date) = (self.0.all(), Date::now());
        let labels = all.limits.named.keys().take(LABELS_MAX);
        let mut sums: Vec<Sums> = labels
            .map(|user| Sums {
                user: user.to_string(),
                usage: Some((all.usage_of(user, date), all.limits.of(user))),
                ..Sums::default()
            })
            .collect();
        let (mut others, mut unsaved) = (Sums::default(), 0);
        for (user, account) in &all.accounts {
            let mut state = account.state();
            account.settle(&mut state, date);
            unsaved += state.unsaved;
            let sums = match sums.binary_search_by(|sums| (*sums.user).cmp(user)) {
                Ok(place) => &mut sums[place],
                Err(_) => &mut others,
            };
            sums.sessions += state.sessions;
            sums.counted += state.settled;
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

impl Collector for UserSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (sums, unsaved) = self.sums();
        if self.0.file.get().is_some() {
            let help = "Updates of the quota file, by result";
            let mut family = encoder.encode_descriptor("quota_writes", help, None, MetricType::Counter)?;
            for (result, count) in self.0.saving.updates() {
                ConstCounter::new(count).encode(family.encode_family(&[("result", result)])?)?;
            }
            let help = "Bytes that count for quotas and are not in the quota file";
            let family = encoder.encode_descriptor("quota_unsaved_bytes", help, None, MetricType::Gauge)?;
            ConstGauge::new(unsaved).encode(family)?;
        }
        if sums.is_empty() {
            return Ok(());
        }
        let help = "Sessions of users with limits; users without a label of their own share an empty one";
        let mut family = encoder.encode_descriptor("user_sessions", help, None, MetricType::Gauge)?;
        for sums in &sums {
            let labels = [("user", sums.user.as_str())];
            ConstGauge::new(sums.sessions).encode(family.encode_family(&labels)?)?;
        }
        let help = "Bytes of users with limits, in both directions";
        let mut family = encoder.encode_descriptor("user_bytes", help, None, MetricType::Counter)?;
        for sums in &sums {
            let labels = [("user", sums.user.as_str())];
            ConstCounter::new(sums.counted).encode(family.encode_family(&labels)?)?;
        }
        let quotas = || sums.iter().filter_map(|sums| Some((&sums.user, sums.usage.as_ref()?)));
        let help = "Bytes that a named user has used of a quota, by period";
        let mut family = encoder.encode_descriptor("user_quota_used_bytes", help, None, MetricType::Gauge)?;
        for (user, (usage, limits)) in quotas() {
            for (period, _) in limits.quotas.iter() {
                let labels = [("user", user.as_str()), ("period", period.as_str())];
                ConstGauge::new(usage.of(period)).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "The quota of a named user, by period";
        let mut family = encoder.encode_descriptor("user_quota_bytes", help, None, MetricType::Gauge)?;
        for (user, (_, limits)) in quotas() {
            for (period, quota) in limits.quotas.iter() {
                let labels = [("user", user.as_str()), ("period", period.as_str())];
                ConstGauge::new(quota.get()).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_users_have_a_label_and_the_others_share_one() {
        let (accounts, mut limits) = (Arc::new(Accounts::default()), super::super::AllLimits::default());
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
        let (sums, unsaved) = UserSeries(accounts).sums();
        let of = |place: usize| {
            let sums: &Sums = &sums[place];
            (&*sums.user, sums.sessions, sums.counted)
        };
        assert_eq!((sums.len(), unsaved), (LABELS_MAX + 1, 28));
        assert_eq!((of(0), of(1)), (("user-000", 1, 7), ("user-001", 0, 0)));
        assert_eq!((of(99), of(100)), (("user-099", 1, 7), ("", 2, 14)));
    }
}
