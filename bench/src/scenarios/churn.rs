//! Connections that live for one small request and its response.

use std::io;
use std::time::Instant;

use crate::arms::Arm;
use crate::load::{Answerer, Asker, Load, Trips};
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::LOOPBACK;

/// Bytes of the request, and of the response.
const SIZE: usize = 1024;

pub(crate) struct Churn {
    /// At once.
    pub(crate) connections: usize,
    /// In all.
    pub(crate) count: u64,
}

impl Scenario for Churn {
    fn id(&self) -> String {
        format!("churn-{}", self.connections)
    }

    fn title(&self) -> String {
        format!(
            "{} connections of 1 KiB there and back, {} at once",
            self.count, self.connections
        )
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::lower("CPU", "µs/connection", 1),
                Figure::higher("rate", "connections/s", 0),
                Figure::lower("p99", "µs", 0),
            ]
        }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        let mut load = Load::new(LOOPBACK, || Box::new(Answerer::new(SIZE)))?;
        let relay = Relay::start(arm, load.address()?)?;
        // One after the other without end, so that as many are under way when the measurement ends as when it begins.
        let client = || -> Option<Box<dyn crate::load::Peer>> { Some(Box::new(Asker::new(SIZE, Trips::ThenClose(1)))) };
        load.keep_connected(self.connections, relay.address, Box::new(client))?;
        let warm = (self.connections * 4) as u64;
        load.run_until(|tally| tally.done >= warm)?;
        load.tally.reset();
        let before = relay.cpu_time()?;
        let started = Instant::now();
        load.run_until(|tally| tally.done >= self.count)?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu = (relay.cpu_time()? - before).as_secs_f64();
        let done = load.tally.done as f64;
        Ok(vec![cpu * 1e6 / done, done / elapsed, load.tally.percentile(99.0)])
    }
}
