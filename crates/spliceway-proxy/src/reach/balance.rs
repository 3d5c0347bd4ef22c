//! Chooses one of several backends for each client of a forwarder.
//!
//! ```text
//!                 all are full
//!             ┌─▶ queue ─┐
//!   client ─▶ Balancer ─ policy ─▶ Lease ─ connect ─▶ relay ─ end of the session ─▶ given back
//!                ▲                           │ failed
//!                └───── another backend ─────┘
//! ```
//!
//! A forwarder with one target has no balancer.

mod backend;
mod balancer;
mod check;
mod ejection;
mod handover;
mod lease;
mod members;
mod policy;
mod probe;
mod queue;
mod settings;
mod tries;
mod trouble;
mod watch;

pub(crate) use backend::{BackendState, BackendStatus, Failure};
pub(crate) use balancer::{Balancer, Lease};
pub(crate) use check::CheckSettings;
pub(crate) use ejection::EjectSettings;
pub(crate) use handover::HandedOverBackend;
pub(crate) use policy::Policy;
pub(crate) use probe::Probe;
pub(crate) use settings::{BACKENDS_MAX, BackendSettings, BalanceSettings, Members, WEIGHT_MAX};
pub(crate) use tries::{NotConnected, Tries};

#[cfg(test)]
mod tests;
