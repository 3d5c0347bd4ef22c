//! The kinds of load.

pub(crate) mod bulk;
pub(crate) mod churn;
pub(crate) mod duplex;
pub(crate) mod fair;
pub(crate) mod idle;
pub(crate) mod k6;
pub(crate) mod mixed;
pub(crate) mod more;
pub(crate) mod rr;
pub(crate) mod sweep;
pub(crate) mod veth;
