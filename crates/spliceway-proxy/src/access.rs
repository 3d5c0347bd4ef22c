//! Clients and their rights: admission, logins, rules, rates, accounts, and how much each may use.

pub(crate) mod accept;
pub(crate) mod accounts;
pub(crate) mod admission;
pub(crate) mod auth;
pub(crate) mod datagram_counts;
pub(crate) mod gate;
pub(crate) mod policy;
pub(crate) mod rates;
