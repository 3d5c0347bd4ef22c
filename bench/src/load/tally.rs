//! What the ends of a scenario count together.

use std::io;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Counts since the last reset, but for one.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Bytes that arrived, at either side.
    pub(crate) received: u64,
    /// Ends of connections that have received all and sent all.
    pub(crate) ended: u64,
    /// Round trips, or transfers, that were done.
    pub(crate) done: u64,
    /// How long each of these took, ns.
    pub(crate) times: Histogram<u64>,
    /// Connections that have had an answer, ever.
    pub(crate) answered: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            received: 0,
            ended: 0,
            done: 0,
            answered: 0,
            // To a minute, to 0.1 %.
            times: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order"),
        }
    }
}

impl Tally {
    pub(crate) fn done_in(&mut self, time: Duration) {
        self.done += 1;
        self.times.saturating_record(time.as_nanos() as u64);
    }

    /// An error unless so many bytes have arrived: a relay that loses some is not fast.
    pub(crate) fn expect_received(&self, bytes: u64) -> io::Result<()> {
        match self.received {
            received if received == bytes => Ok(()),
            received => Err(io::Error::other(format!("{received} of {bytes} bytes arrived"))),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.received = 0;
        self.done = 0;
        self.ended = 0;
        self.times.reset();
    }

    /// Microseconds that so many of a hundred stayed within.
    pub(crate) fn percentile(&self, percentile: f64) -> f64 {
        self.times.value_at_percentile(percentile) as f64 / 1e3
    }
}
