//! Connections that have carried something and then rest: what each of them holds on to, and how many a relay can hold.

use std::io;
use std::time::{Duration, Instant};

use crate::arms::Arm;
use crate::load::{Answerer, Asker, Load, Trips};
use crate::machine;
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::LOOPBACK;

/// Bytes that each connection carries, each way.
const SIZE: usize = 256 << 10;
/// For the kernel to free what was closed, and for relays to notice that nothing comes.
const SETTLING: Duration = Duration::from_millis(500);
/// It frees what ten thousand connections took within a second or two.
const SETTLED_AFTER: u32 = 20;
/// What is freed of the kernel's memory in [`SETTLING`] while nothing is, KiB.
const UNSETTLED: u64 = 1024;
/// Standard streams, listeners and the like.
const BESIDE: u64 = 64;
/// Connections from which one round takes as long as five of other scenarios; what it counts is the same in every round.
const MANY: usize = 5_000;

pub(crate) struct Idle {
    pub(crate) connections: usize,
}

impl Scenario for Idle {
    fn id(&self) -> String {
        format!("idle-{}", self.connections)
    }

    fn title(&self) -> String {
        format!(
            "{} idle connections after 256 KiB each way, per connection",
            self.connections
        )
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::higher("held", "", 0),
                Figure::lower("descriptors", "", 2),
                Figure::lower("pipes", "", 2),
                Figure::lower("RSS", "KiB", 1),
                // The load's own two sockets are in it: what direct shows.
                Figure::lower("slab", "KiB", 1),
            ]
        }
    }

    fn rounds(&self, asked: usize) -> usize {
        if self.connections < MANY { asked } else { 1 }
    }

    /// A relay that runs out of what it needs is measured with as many as it held.
    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        machine::raise_descriptor_limit(2 * self.connections as u64 + BESIDE)?;
        let mut load = Load::new(LOOPBACK, || Box::new(Answerer::new(SIZE)))?;
        let relay = Relay::start(arm, load.address()?)?;
        settle(&mut load)?;
        let (before, slab_before) = (relay.resources()?, machine::slab_kib()?);
        let connected = load.connect_in_turn(self.connections, relay.address, || {
            Box::new(Asker::new(SIZE, Trips::ThenRest(1)))
        });
        match &connected {
            Ok(_) => load.run_for(SETTLING)?,
            // Others are under way, and may fail or not.
            Err(_) => run_on(&mut load),
        }
        let held = load.tally.done;
        // One that has ended holds nothing.
        let (after, slab_after) = (relay.resources().unwrap_or_default(), machine::slab_kib()?);
        // Sockets in TIME_WAIT would be kernel memory that goes away while the next relay is measured.
        load.abort()?;
        if arm != Arm::Direct && after.descriptors < held {
            let why = connected.err().map_or_else(String::new, |error| format!(": {error}"));
            return Err(io::Error::other(format!("it gave up at {held} connections{why}")));
        }
        let each = |before: u64, after: u64| (after as f64 - before as f64) / held as f64;
        Ok(vec![
            held as f64,
            each(before.descriptors, after.descriptors),
            // Two descriptors a pipe.
            each(before.pipes, after.pipes) / 2.0,
            each(before.rss_kib, after.rss_kib),
            each(slab_before, slab_after),
        ])
    }
}

/// Waits until the kernel has freed what the relay before took.
fn settle(load: &mut Load) -> io::Result<()> {
    for _ in 0..SETTLED_AFTER {
        let before = machine::slab_kib()?;
        load.run_for(SETTLING)?;
        if machine::slab_kib()? + UNSETTLED >= before {
            break;
        }
    }
    Ok(())
}

/// For a while, whatever fails.
fn run_on(load: &mut Load) {
    let until = Instant::now() + SETTLING;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let _ = load.run_for(left);
    }
}
