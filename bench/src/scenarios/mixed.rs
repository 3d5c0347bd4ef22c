//! Transfers of sizes as the web has them: most are small, most bytes are in few.

use std::f64::consts::TAU;
use std::io;
use std::time::Instant;

use crate::arms::Arm;
use crate::load::{Fetcher, Load, Peer, REQUEST, Responder, Source};
use crate::random::Random;
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::{GIB, LOOPBACK};

/// Bytes that half of the transfers stay within.
const MEDIAN: f64 = 16.0 * 1024.0;
/// Of the logarithm of a size. The mean of a log-normal distribution is its median times e^(σ²/2): 205 KiB here.
const SIGMA: f64 = 2.26;
/// No transfer is longer: 100 MiB.
const LONGEST: f64 = 100.0 * 1024.0 * 1024.0;

pub(crate) struct Mixed {
    /// At once.
    pub(crate) connections: usize,
    /// Transfers in all, a connection each.
    pub(crate) transfers: usize,
    /// What the sizes are made from: the same for all relays.
    pub(crate) seed: u64,
}

impl Mixed {
    fn sizes(&self) -> impl Iterator<Item = u64> {
        let mut random = Random::new(self.seed);
        (0..self.transfers).map(move |_| size(&mut random))
    }
}

/// Log-normal, by Box and Muller's transform of two even numbers to a normal one.
fn size(random: &mut Random) -> u64 {
    let normal = (-2.0 * (1.0 - random.fraction()).ln()).sqrt() * (TAU * random.fraction()).cos();
    (MEDIAN * (SIGMA * normal).exp()).clamp(1.0, LONGEST) as u64
}

impl Scenario for Mixed {
    fn id(&self) -> String {
        format!("mixed-{}", self.connections)
    }

    fn title(&self) -> String {
        let gib = self.sizes().sum::<u64>() as f64 / GIB;
        format!(
            "{} transfers of mixed sizes, {gib:.2} GiB, {} at once, seed {}",
            self.transfers, self.connections, self.seed
        )
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::lower("CPU", "s/GiB", 3),
                Figure::higher("rate", "GiB/s", 2),
                Figure::lower("p50", "µs", 0),
                Figure::lower("p99", "µs", 0),
            ]
        }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        let bytes = self.sizes().sum::<u64>();
        let source = Source::file()?;
        let sizes: Vec<u64> = self.sizes().collect();
        let mut sizes = sizes.into_iter();
        let server = move || -> Box<dyn Peer> {
            // More connections than there are transfers find nothing; the count of bytes is wrong then.
            Box::new(Responder::new(source.clone(), sizes.next().unwrap_or(1)))
        };
        let mut load = Load::new(LOOPBACK, server)?;
        let relay = Relay::start(arm, load.address()?)?;
        let mut left = self.transfers;
        let client = move || -> Option<Box<dyn Peer>> {
            left = left.checked_sub(1)?;
            Some(Box::new(Fetcher::new()))
        };
        let before = relay.cpu_time()?;
        let started = Instant::now();
        load.keep_connected(self.connections, relay.address, Box::new(client))?;
        load.run_until(|tally| tally.done == self.transfers as u64)?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu = (relay.cpu_time()? - before).as_secs_f64();
        let requests = (self.transfers * REQUEST) as u64;
        load.tally.expect_received(bytes + requests)?;
        let gib = bytes as f64 / GIB;
        let percentile = |percentile| load.tally.percentile(percentile);
        Ok(vec![cpu / gib, gib / elapsed, percentile(50.0), percentile(99.0)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_median_and_the_tail_that_are_claimed() {
        let mixed = Mixed {
            connections: 1,
            transfers: 200_000,
            seed: 1,
        };
        let mut sizes: Vec<u64> = mixed.sizes().collect();
        sizes.sort_unstable();
        let kib = |bytes: u64| bytes >> 10;
        assert!((15..=17).contains(&kib(sizes[sizes.len() / 2])), "median");
        let sum = sizes.iter().sum::<u64>();
        let mean = sum / sizes.len() as u64;
        assert!((180..=210).contains(&kib(mean)), "mean {} KiB", kib(mean));
        assert!(sizes[0] >= 1 && sizes[sizes.len() - 1] <= 100 << 20);
        let largest: u64 = sizes.iter().rev().take(sizes.len() / 100).sum();
        assert!(3 * largest > sum, "one in a hundred carries a third of all bytes");
    }

    #[test]
    fn the_same_seed_makes_the_same_sizes() {
        let sizes = |seed| {
            let mixed = Mixed {
                connections: 1,
                transfers: 100,
                seed,
            };
            mixed.sizes().collect::<Vec<_>>()
        };
        assert_eq!(sizes(7), sizes(7));
        assert_ne!(sizes(7), sizes(8));
    }
}
