//! The lifetime of the program: start, reload, hand-over, drain, signals.

pub(crate) mod drain;
pub(crate) mod handover;
mod instance;
mod notify;
mod orders;
pub(crate) mod process;
pub(crate) mod serve;
pub(crate) mod startup;
