//! The kinds of load.

pub(crate) mod bulk;
pub(crate) mod k6;
pub(crate) mod more;
pub(crate) mod rr;
