//! An open-loop load generator for TCP relays.
//!
//! ```text
//!   Offer ─▶ Schedule ─▶ Generator ══ connections through the relay ══▶ Done
//!            when each   holds both endpoints                        counts and
//!            is due      of every connection                         histograms
//! ```
//!
//! Messages are due at times that depend only on the offer and a seed, so these times are equal for
//! every relay. Latency counts from a message's due time, whether or not the relay keeps up. In a
//! closed loop, each connection continues as soon as it can. That option is for saturation tests.
#![forbid(unsafe_code)]

mod endpoint;
mod estimate;
mod generator;
mod histogram;
mod random;
mod schedule;

pub use endpoint::Done;
pub use estimate::{Estimate, bootstrap, lower_half, typical, upper_half};
pub use generator::Generator;
pub use histogram::Histogram;
pub use random::Random;
pub use schedule::{Schedule, What, schedule};

/// The load that the generator offers to a relay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// Flows that send at a fixed rate.
    pub streams: Option<Streams>,
    /// Requests at random times.
    pub requests: Option<Requests>,
    /// New connections per second, each for one exchange of 1 KiB in each direction. In a closed
    /// loop, this many are open at the same time.
    pub connects: Option<f64>,
    /// A saturation test: every connection continues as soon as it can, and no message has a due
    /// time.
    pub is_closed: bool,
    /// The congestion control of the connections to the relay, instead of the default. The caller
    /// sets that of the listener.
    pub congestion_control: Option<&'static str>,
}

/// Flows that send at a fixed rate, in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// The number of concurrent flows.
    pub flows: usize,
    /// Bytes of each write.
    pub size: usize,
    /// Bytes per second, all flows together.
    pub rate: f64,
    /// Whether the flows go from client to server.
    pub up: bool,
}

/// Requests at random times (Poisson), each on a connection chosen at random.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// The number of connections. They stay open.
    pub connections: usize,
    /// Bytes of a request and of its response.
    pub size: usize,
    /// Requests per second, all connections together.
    pub rate: f64,
}
