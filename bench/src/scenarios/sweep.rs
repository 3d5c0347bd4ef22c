//! One flow of writes of one size, as a program makes them that sends what it has at hand: from small chunks to large ones.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::thread;
use std::time::Instant;

use crate::arms::Arm;
use crate::load::{Load, Receiver};
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::{GIB, LOOPBACK};

/// Sizes of writes, in bytes, whose flows have two rhythms.
const TWO_RHYTHMS: RangeInclusive<usize> = 2 << 10..=128 << 10;

pub(crate) struct Sweep {
    /// Bytes of each write.
    pub(crate) chunk: usize,
    pub(crate) writes: u64,
}

impl Sweep {
    /// Chunks from 1 KiB to 1 MiB, each twice the last: so many writes each, but no more bytes than that, as the small ones are slow and
    /// the large ones long.
    pub(crate) fn all(writes: u64, most: u64) -> impl Iterator<Item = Self> {
        (10..=20).map(move |power| Self {
            chunk: 1 << power,
            writes: writes.min(most >> power).max(1),
        })
    }

    fn bytes(&self) -> u64 {
        self.chunk as u64 * self.writes
    }

    fn send(&self, to: SocketAddr) -> io::Result<()> {
        let mut socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        let chunk = vec![7; self.chunk];
        // Blocking, so that each chunk is one call, whether or not there is room for all of it at once.
        (0..self.writes).try_for_each(|_| socket.write_all(&chunk))?;
        socket.shutdown(Shutdown::Write)
    }
}

impl Scenario for Sweep {
    fn id(&self) -> String {
        format!("sweep-{}", self.chunk)
    }

    fn title(&self) -> String {
        let gib = self.bytes() as f64 / GIB;
        format!("writes of {} KiB, one flow, {gib:.1} GiB", self.chunk >> 10)
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::lower("CPU", "s/GiB", 3), Figure::higher("rate", "GiB/s", 2)] }
    }

    /// More where a flow keeps to one of two rhythms for much of its run, and rounds differ by two (docs/rhythm.md).
    fn rounds(&self, asked: usize) -> usize {
        if TWO_RHYTHMS.contains(&self.chunk) {
            4 * asked
        } else {
            asked
        }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        let mut load = Load::new(LOOPBACK, || Box::new(Receiver::new()))?;
        let relay = Relay::start(arm, load.address()?)?;
        let before = relay.cpu_time()?;
        let started = Instant::now();
        thread::scope(|scope| {
            let sender = scope.spawn(|| self.send(relay.address));
            load.run_until(|tally| tally.ended == 1)?;
            sender.join().expect("sending does not panic")
        })?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu = (relay.cpu_time()? - before).as_secs_f64();
        load.tally.expect_received(self.bytes())?;
        let gib = self.bytes() as f64 / GIB;
        Ok(vec![cpu / gib, gib / elapsed])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_has_eleven_sizes_and_keeps_both_limits() {
        let sizes: Vec<(usize, u64)> = Sweep::all(1000, 4 << 20)
            .map(|sweep| (sweep.chunk, sweep.writes))
            .collect();
        assert_eq!(sizes.len(), 11);
        assert_eq!(sizes[0], (1 << 10, 1000));
        assert_eq!(sizes[2], (4 << 10, 1000));
        assert_eq!(sizes[3], (8 << 10, 512));
        assert_eq!(sizes[10], (1 << 20, 4));
    }

    #[test]
    fn writes_of_2_to_128_kib_get_four_times_the_rounds() {
        let rounds: Vec<usize> = Sweep::all(1000, 4 << 20).map(|sweep| sweep.rounds(5)).collect();
        assert_eq!(rounds, [5, 20, 20, 20, 20, 20, 20, 20, 5, 5, 5]);
    }
}
