//! `bulk` of one flow over segments of 1,448 bytes: client, relay and server each in a network namespace of its own.
//!
//! A veth has no hardware: what one end sends, the other end's protocols receive in a softirq on the sender's core. So the relay's CPU
//! time has in it what the relay sends, what the server's TCP does to receive that and to acknowledge it, and what the relay's TCP does
//! with those acknowledgements. It lacks the receipt of what the client sends, up to the relay's receive queue: that runs on the load's
//! core. Softirqs that run while the relay does are in its own time, those left to ksoftirqd in that of its core's. Nothing is moved
//! between cores (no RPS, no threaded NAPI).

use std::io;
use std::thread;
use std::time::Instant;

use spliceway_net::{Family, Net, Offloads, address};

use crate::arms::Arm;
use crate::load::{Load, Receiver};
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::{self, GIB};

pub(crate) struct Veth {
    pub(crate) offloads: Offloads,
    pub(crate) bytes: u64,
}

impl Veth {
    /// All there are.
    pub(crate) fn variants(bytes: u64) -> [Self; 3] {
        Offloads::ALL.map(|offloads| Self { offloads, bytes })
    }
}

impl Scenario for Veth {
    fn id(&self) -> String {
        let variant = match self.offloads {
            Offloads::On => "offloads",
            Offloads::Off => "plain",
            Offloads::Gro => "gro",
        };
        format!("veth-{variant}")
    }

    fn title(&self) -> String {
        let offloads = match self.offloads {
            Offloads::On => "offloads on",
            Offloads::Off => "offloads off",
            Offloads::Gro => "offloads off but GRO",
        };
        format!(
            "bulk between namespaces, MTU 1500, {offloads}, 1 flow, {:.1} GiB",
            self.bytes as f64 / GIB
        )
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::lower("CPU", "s/GiB", 3), Figure::higher("rate", "GiB/s", 2)] }
    }

    /// In namespaces made for this one run, so that no arm finds what another has left (TCP's metrics, queues). The middle one forwards
    /// what goes directly.
    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        let net = Net::new(3, self.offloads)?.with_forwarding()?;
        // The host's own choice of congestion control may be one that paces, and would be all one measures.
        net.connect(0, 1, Family::V4)?;
        net.connect(1, 2, Family::V4)?;
        let [client, middle, server] = [0, 1, 2].map(|index| net.node(index));
        let at = address(1, true, Family::V4);
        let mut load = server.inside(|| Load::new(at, || Box::new(Receiver::new())))?;
        let upstream = load.address()?;
        let relay = middle.inside(|| Relay::start_at(arm, address(0, true, Family::V4), upstream))?;
        let before = relay.cpu_time()?;
        let started = Instant::now();
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                client.enter()?;
                bulk::send(relay.address, 1, self.bytes)
            });
            load.run_until(|tally| tally.ended == 1)?;
            sender.join().expect("sending does not panic")
        })?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu = (relay.cpu_time()? - before).as_secs_f64();
        let gib = self.bytes as f64 / GIB;
        Ok(vec![cpu / gib, gib / elapsed])
    }
}
