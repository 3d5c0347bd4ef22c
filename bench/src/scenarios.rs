//! The kinds of load.

pub(crate) mod bulk;
pub(crate) mod rr;
pub(crate) mod veth;
