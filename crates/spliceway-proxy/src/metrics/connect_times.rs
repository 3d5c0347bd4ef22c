//! How long it takes to connect to targets: a histogram that continues in the next process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::samples::Samples;

/// The upper bounds of the buckets, in seconds. They range from a neighbour in the same rack to the
/// default connect timeout.
const BOUNDS: [f64; 15] = [
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    f64::INFINITY,
];

/// The names of the counters that a hand-over carries.
const BUCKETS: &str = "connects";
const SUM: &str = "connect_nanoseconds";

#[derive(Default)]
pub(super) struct ConnectTimes {
    buckets: [AtomicU64; BOUNDS.len()],
    nanos: AtomicU64,
}

impl ConnectTimes {
    pub(super) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound);
        self.buckets[bucket.unwrap_or(BOUNDS.len() - 1)].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn count(&self, counters: &mut Samples) {
        for (bound, count) in BOUNDS.into_iter().zip(&self.buckets) {
            counters.add(BUCKETS, &[("le", &bound.to_string())], count.load(Ordering::Relaxed));
        }
        counters.add(SUM, &[], self.nanos.load(Ordering::Relaxed));
    }
}

/// Writes the histogram of these counters.
pub(super) fn encode(counters: &Samples, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let buckets = BOUNDS.map(|bound| (bound, counters.get(BUCKETS, &[("le", &bound.to_string())])));
    let count = buckets.iter().map(|(_, count)| count).sum();
    let sum = Duration::from_nanos(counters.get(SUM, &[])).as_secs_f64();
    let help = "Time to look up and connect to a target, for successful attempts";
    encoder
        .encode_descriptor("connect", help, Some(&Unit::Seconds), MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
}
