//! Bulk data both ways at once on every connection.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use crate::arms::Arm;
use crate::load::{Duplex as Both, Load, Source};
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::{GIB, LOOPBACK};

pub(crate) struct Duplex {
    /// Connections at once.
    pub(crate) flows: usize,
    /// In all, both ways together.
    pub(crate) bytes: u64,
}

impl Scenario for Duplex {
    fn id(&self) -> String {
        format!("duplex-{}", self.flows)
    }

    fn title(&self) -> String {
        let gib = self.bytes as f64 / GIB;
        format!("bulk both ways at once, {} flows, {gib:.1} GiB together", self.flows)
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::lower("CPU", "s/GiB", 3), Figure::higher("rate", "GiB/s", 2)] }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        let each = self.bytes / 2 / self.flows as u64;
        let one_way = each * self.flows as u64;
        let source = Source::file()?;
        let mut load = Load::new(LOOPBACK, move || Box::new(Both::new(source.clone(), each)))?;
        let relay = Relay::start(arm, load.address()?)?;
        let before = relay.cpu_time()?;
        let started = Instant::now();
        thread::scope(|scope| {
            let clients = scope.spawn(|| connect(relay.address, self.flows, each));
            load.run_until(|tally| tally.ended == self.flows as u64)?;
            clients.join().expect("clients do not panic")
        })?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu = (relay.cpu_time()? - before).as_secs_f64();
        load.tally.expect_received(one_way)?;
        let gib = 2.0 * one_way as f64 / GIB;
        Ok(vec![cpu / gib, gib / elapsed])
    }
}

fn connect(to: SocketAddr, flows: usize, each: u64) -> io::Result<()> {
    let source = Source::file()?;
    // Nobody connects to this side.
    let mut load = Load::new(LOOPBACK, || unreachable!("clients only"))?;
    for _ in 0..flows {
        load.connect(to, Box::new(Both::new(source.clone(), each)))?;
    }
    load.run_until(|tally| tally.ended == flows as u64)?;
    load.tally.expect_received(each * flows as u64)
}
