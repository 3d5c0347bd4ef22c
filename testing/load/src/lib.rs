//! An open-loop load generator for TCP relays.
//!
//! ```text
//!   Offer ─▶ Schedule ─▶ Generator ══ connections through the relay ══▶ Done
//!            when each   holds both endpoints                        counts and
//!            is due      of every connection                         histograms
//! ```
//!
//! Messages are due at times that depend on the offer and a seed alone, so they are the same for
//! every relay. Latency counts from the time a message was due, whether or not the relay keeps up.
//! A closed loop, where each connection continues as soon as it can, is an option for saturation
//! tests.
#![forbid(unsafe_code)]

mod endpoint;
mod generator;
mod histogram;
mod schedule;

pub use endpoint::Done;
pub use generator::Generator;
pub use histogram::Histogram;
pub use schedule::{Schedule, What, schedule};

/// The load that a relay is offered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// Flows that send at a fixed rate.
    pub streams: Option<Streams>,
    /// Requests at random times.
    pub requests: Option<Requests>,
    /// New connections per second, each for one exchange of 1 KiB each way. In a closed loop, this
    /// many are open at once.
    pub connects: Option<f64>,
    /// A saturation test: every connection continues as soon as it can, and nothing is ever due.
    pub is_closed: bool,
}

/// Flows that send at a fixed rate, in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// Flows at once.
    pub flows: usize,
    /// Bytes of each write.
    pub size: usize,
    /// Bytes per second, of all flows together.
    pub rate: f64,
    /// From client to server.
    pub up: bool,
}

/// Requests at random times (Poisson), each on a connection chosen at random.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Connections, which stay open.
    pub connections: usize,
    /// Bytes of a request, and of its response.
    pub size: usize,
    /// Requests per second, on all connections together.
    pub rate: f64,
}
