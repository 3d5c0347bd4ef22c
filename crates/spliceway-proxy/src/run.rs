//! The lifetime of the program: start, reload, hand-over, drain, signals.

pub(crate) mod drain;
pub(crate) mod handover;
mod instance;
pub(crate) mod lifetime;
mod notify;
mod orders;
pub(crate) mod serve;
pub(crate) mod startup;
