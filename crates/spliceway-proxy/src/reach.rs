//! Targets: names, connections to them, balancing, and routes by name.

pub(crate) mod balance;
pub(crate) mod dial;
pub(crate) mod sni;
