//! Connections that have carried something and then rest: what each of them holds on to.

use std::io;
use std::time::Duration;

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
/// Standard streams, listeners and the like.
const BESIDE: u64 = 64;

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
                Figure::lower("descriptors", "", 2),
                Figure::lower("pipes", "", 2),
                Figure::lower("RSS", "KiB", 1),
                // The load's own two sockets are in it: what direct shows.
                Figure::lower("slab", "KiB", 1),
            ]
        }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        machine::raise_descriptor_limit(2 * self.connections as u64 + BESIDE)?;
        let mut load = Load::new(LOOPBACK, || Box::new(Answerer::new(SIZE)))?;
        let relay = Relay::start(arm, load.address()?)?;
        load.run_for(SETTLING)?;
        let (before, slab_before) = (relay.resources()?, machine::slab_kib()?);
        load.connect_in_turn(self.connections, relay.address, || {
            Box::new(Asker::new(SIZE, Trips::ThenRest(1)))
        })?;
        load.run_for(SETTLING)?;
        let (after, slab_after) = (relay.resources()?, machine::slab_kib()?);
        // Sockets in TIME_WAIT would be kernel memory that goes away while the next relay is measured.
        load.abort()?;
        let each = |before: u64, after: u64| (after as f64 - before as f64) / self.connections as f64;
        Ok(vec![
            each(before.descriptors, after.descriptors),
            // Two descriptors a pipe.
            each(before.pipes, after.pipes) / 2.0,
            each(before.rss_kib, after.rss_kib),
            each(slab_before, slab_after),
        ])
    }
}
