//! The limits of users, as the operator has configured them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use spliceway::RateLimit;

use crate::rates::ByteRate;

/// What one user may use. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UserLimits {
    pub(crate) max_conns: Option<NonZeroU32>,
    /// For bytes from the clients of the user.
    pub(crate) rate_in: Option<ByteRate>,
    pub(crate) rate_out: Option<ByteRate>,
}

/// The limits of all users.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllLimits {
    /// The limits of users who have no own ones.
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
    pub(super) fn of(&self, user: &str) -> UserLimits {
        self.named.get(user).copied().unwrap_or(self.every)
    }

    /// Returns whether no user has a limit.
    pub(super) fn are_none(&self) -> bool {
        self.every.are_none() && self.named.values().all(UserLimits::are_none)
    }
}
