//! Requests and responses of one size, each connection with one under way: what the relay spends on a round trip, and how long one takes.

use std::io;
use std::time::{Duration, Instant};

use crate::arms::Arm;
use crate::load::{Answerer, Asker, Load, Trips};
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::LOOPBACK;

/// For all to be connected, where a connection that found no room is tried again after a second.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct RequestResponse {
    /// At once.
    pub(crate) connections: usize,
    /// Bytes of each request, and of each response.
    pub(crate) size: usize,
    /// Round trips in all.
    pub(crate) trips: u64,
}

impl Scenario for RequestResponse {
    fn id(&self) -> String {
        format!("rr-{}-{}", self.size, self.connections)
    }

    fn title(&self) -> String {
        format!(
            "requests and responses of {} bytes, {} connections",
            self.size, self.connections
        )
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::lower("CPU", "µs/trip", 2),
                Figure::higher("rate", "trips/s", 0),
                Figure::lower("p50", "µs", 0),
                Figure::lower("p99", "µs", 0),
                Figure::lower("p99.9", "µs", 0),
            ]
        }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        let size = self.size;
        let mut load = Load::new(LOOPBACK, move || Box::new(Answerer::new(size)))?;
        let relay = Relay::start(arm, load.address()?)?;
        for _ in 0..self.connections {
            load.connect(relay.address, Box::new(Asker::new(size, Trips::Endless)))?;
        }
        // Until all are connected, and what is allocated once is there.
        let connections = self.connections as u64;
        let at_last = Instant::now() + PATIENCE;
        load.run_until(|tally| {
            let is_warm = tally.answered == connections && tally.done >= 4 * connections;
            is_warm || Instant::now() > at_last
        })?;
        if load.tally.answered < connections {
            let answered = load.tally.answered;
            return Err(io::Error::other(format!(
                "{answered} of {connections} clients had an answer"
            )));
        }
        load.tally.reset();
        let before = relay.cpu_time()?;
        let started = Instant::now();
        load.run_until(|tally| tally.done >= self.trips)?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu = (relay.cpu_time()? - before).as_secs_f64();
        let tally = &load.tally;
        let done = tally.done as f64;
        Ok(vec![
            cpu * 1e6 / done,
            done / elapsed,
            tally.percentile(50.0),
            tally.percentile(99.0),
            tally.percentile(99.9),
        ])
    }
}
