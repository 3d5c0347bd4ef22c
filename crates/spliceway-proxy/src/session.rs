//! The session of one client, from accept to record. `story.rs` has its steps.

mod admit;
mod bind;
mod byte_counter;
mod client;
mod connect;
mod destinations;
pub(crate) mod dns;
mod facts;
mod guard;
mod handover;
mod handshake;
mod kept;
mod linger;
mod names;
mod next_request;
mod process;
mod record;
mod refusals;
mod registry;
mod relay;
mod request;
mod service;
mod step;
mod story;
mod tls;
mod tls_facts;
pub(crate) mod udp;

pub(crate) use facts::{Facts, Phase, Session};
pub(crate) use handover::{Offer, Suspended};
pub(crate) use process::Process;
pub(crate) use record::{Record, write_open};
pub(crate) use refusals::refusals;
pub(crate) use registry::Sessions;
pub(crate) use service::Service;
pub(crate) use step::run;
pub(crate) use story::{Arrival, begin, resume};
