//! The lifetime of the program: start, reload, hand-over, drain, signals.

pub(crate) mod drain;
pub(crate) mod handover;
pub(crate) mod instance;
pub(crate) mod monitoring;
pub(crate) mod notify;
pub(crate) mod orders;
pub(crate) mod serve;
pub(crate) mod startup;
