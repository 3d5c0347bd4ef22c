//! One direction of bulk data: `sendfile` from memory on one side, a receive that throws away on the other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::arms::Arm;
use crate::load::{Load, Receiver, Sender, Source};
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};

pub(crate) const GIB: f64 = (1 << 30) as f64;
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(crate) struct Bulk {
    /// Connections at once.
    pub(crate) flows: usize,
    /// In all.
    pub(crate) bytes: u64,
}

impl Scenario for Bulk {
    fn id(&self) -> String {
        format!("bulk-{}", self.flows)
    }

    fn title(&self) -> String {
        format!("bulk, {} flows, {:.1} GiB", self.flows, self.bytes as f64 / GIB)
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::lower("CPU", "s/GiB", 3), Figure::higher("rate", "GiB/s", 2)] }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        self.carry(|upstream| Relay::start(arm, upstream))
    }
}

impl Bulk {
    pub(crate) fn measure_program(&self, program: &Path) -> io::Result<Vec<f64>> {
        self.carry(|upstream| Relay::start_program(program, upstream))
    }

    fn carry(&self, start: impl FnOnce(SocketAddr) -> io::Result<Relay>) -> io::Result<Vec<f64>> {
        let mut load = Load::new(LOOPBACK, || Box::new(Receiver::new()))?;
        let relay = start(load.address()?)?;
        let each = self.bytes / self.flows as u64;
        let all = each * self.flows as u64;
        let before = relay.cpu_time()?;
        let started = Instant::now();
        // A thread for all that send and one for all that receive, as they are two hosts elsewhere: the one need not wait until the
        // other has had its turn.
        thread::scope(|scope| {
            let senders = scope.spawn(|| send(relay.address, self.flows, each));
            load.run_until(|tally| tally.ended == self.flows as u64)?;
            senders.join().expect("sending does not panic")
        })?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu = (relay.cpu_time()? - before).as_secs_f64();
        load.tally.expect_received(all)?;
        let gib = all as f64 / GIB;
        Ok(vec![cpu / gib, gib / elapsed])
    }
}

pub(crate) fn send(to: SocketAddr, flows: usize, each: u64) -> io::Result<()> {
    let mut load = Load::new(LOOPBACK, || Box::new(Receiver::new()))?;
    let source = Source::file()?;
    for _ in 0..flows {
        load.connect(to, Box::new(Sender::new(source.clone(), each)))?;
    }
    load.run_until(|tally| tally.ended == flows as u64)
}
