//! The limits of users, as the operator has configured them.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

use spliceway::RateLimit;

use crate::access::rates::{ByteRate, bytes};

/// What one user may use. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UserLimits {
    pub(crate) max_conns: Option<NonZeroU32>,
    /// For bytes from the clients of the user.
    pub(crate) rate_in: Option<ByteRate>,
    pub(crate) rate_out: Option<ByteRate>,
    pub(crate) quotas: Quotas,
    /// Whether services know the user by network. Such a user has an account even without a limit,
    /// because operators count the sessions of networks.
    pub(crate) is_by_network: bool,
}

/// The bytes that a user may use in a day and in a month, in both directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Quotas {
    pub(super) day: Option<NonZeroU64>,
    pub(super) month: Option<NonZeroU64>,
}

/// The time after which a quota is full again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Period {
    Day,
    Month,
}

/// One quota, such as `100GB/month`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(super) period: Period,
    pub(super) bytes: NonZeroU64,
}

/// The limits of all users.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllLimits {
    /// The limits of users without a table of their own.
    pub(crate) every: UserLimits,
    /// The complete limits of the users that the configuration names, by the name in records.
    pub(crate) named: BTreeMap<Box<str>, UserLimits>,
}

impl UserLimits {
    pub(super) fn are_none(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn has_rates_of(&self, other: &Self) -> bool {
        (self.rate_in, self.rate_out) == (other.rate_in, other.rate_out)
    }

    /// Returns new buckets, for bytes from and to clients.
    pub(super) fn buckets(&self) -> [Option<RateLimit>; 2] {
        [self.rate_in, self.rate_out].map(|rate| rate.map(ByteRate::bucket))
    }
}

impl AllLimits {
    pub(super) fn of_user(&self, user: &str) -> UserLimits {
        self.named.get(user).copied().unwrap_or(self.every)
    }

    pub(super) fn have_quotas(&self) -> bool {
        let mut all = std::iter::once(&self.every).chain(self.named.values());
        all.any(|limits| !limits.quotas.are_none())
    }

    /// Returns whether this user has a quota.
    pub(crate) fn has_quota(&self, user: &str) -> bool {
        !self.of_user(user).quotas.are_none()
    }

    /// Returns whether no user has a limit.
    pub(super) fn are_none(&self) -> bool {
        self.every.are_none() && self.named.values().all(UserLimits::are_none)
    }
}

impl Quotas {
    pub(super) fn iter(&self) -> impl Iterator<Item = (Period, NonZeroU64)> {
        let day = self.day.map(|bytes| (Period::Day, bytes));
        day.into_iter().chain(self.month.map(|bytes| (Period::Month, bytes)))
    }

    pub(super) fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a quota. Returns `false` if there is one of its period.
    pub(crate) fn add(&mut self, quota: Quota) -> bool {
        let of_period = match quota.period {
            Period::Day => &mut self.day,
            Period::Month => &mut self.month,
        };
        of_period.replace(quota.bytes).is_none()
    }
}

impl Period {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }
}

impl FromStr for Quota {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected bytes per day or month such as 10GB/day or 1.5TB/month, in B to TB or KiB to TiB";
        let (size, period) = text.split_once('/').ok_or(expected)?;
        let period = match period {
            "day" => Period::Day,
            "month" => Period::Month,
            _ => return Err(expected),
        };
        let bytes = bytes(size).ok_or(expected)?;
        let bytes = NonZeroU64::new(bytes).ok_or("expected at least 1 byte, or no quota")?;
        Ok(Self { period, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_has_bytes_and_a_period() {
        for (text, period, bytes) in [
            ("10GB/day", Period::Day, 10_000_000_000),
            ("1.5TiB/month", Period::Month, 3 << 39),
            ("1B/month", Period::Month, 1),
        ] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!((quota.period, quota.bytes.get()), (period, bytes));
        }
        for text in [
            "",
            "10GB",
            "10GB/",
            "10GB/week",
            "/day",
            "10/day",
            "0B/day",
            "10GB/day/day",
        ] {
            assert!(text.parse::<Quota>().unwrap_err().starts_with("expected"), "{text}");
        }
    }
}
