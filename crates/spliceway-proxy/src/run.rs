//! The lifetime of the program: start, reload, hand-over, drain, signals.

mod change;
mod drain;
mod handover;
mod instance;
pub(crate) mod lifetime;
mod notify;
mod orders;
mod serve;
pub(crate) mod startup;
