//! Requests and responses of one size, each connection with one under way: what the relay spends on a round trip, and how long one takes.

use std::io;
use std::time::Instant;

use crate::arms::Arm;
use crate::load::{Answerer, Asker, Load, Trips};
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::LOOPBACK;

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
        load.connect_in_turn(self.connections, relay.address, || {
            Box::new(Asker::new(size, Trips::Endless))
        })?;
        // Until what is allocated once is there.
        let warm = 4 * self.connections as u64;
        load.run_until(|tally| tally.done >= warm)?;
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
