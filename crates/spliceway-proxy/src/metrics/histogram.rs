//! How long something takes: histograms that continue in the next process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::samples::Samples;

/// The upper bounds of the buckets, in seconds. They range from a neighbour in the same rack to the
/// default timeouts of a connect and of a handshake.
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

/// The names of a histogram.
pub(super) struct Names {
    metric: &'static str,
    help: &'static str,
    /// The counters that a hand-over carries.
    buckets: &'static str,
    sum: &'static str,
}

pub(super) const CONNECT: Names = Names {
    metric: "connect",
    help: "Time to look up and connect to a target, for successful attempts",
    buckets: "connects",
    sum: "connect_nanoseconds",
};

pub(super) const TLS_HANDSHAKE: Names = Names {
    metric: "tls_handshake",
    help: "Time of the TLS handshake with a client, for handshakes that succeeded",
    buckets: "tls_handshake_times",
    sum: "tls_handshake_nanoseconds",
};

/// The counts of a histogram at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    buckets: [u64; BOUNDS.len()],
    nanos: u64,
}

/// What took how long, between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TimesBetween {
    pub(crate) mean: f64,
    /// 99 % took at most these seconds: the bound of a bucket.
    pub(crate) most: f64,
}

impl Times {
    /// Returns what took how long since `before`, in seconds. `None` if nothing happened.
    pub(crate) fn since(&self, before: &Self) -> Option<TimesBetween> {
        let mut counts = self.buckets;
        for (count, before) in counts.iter_mut().zip(before.buckets) {
            *count = count.saturating_sub(before);
        }
        let all: u64 = counts.iter().sum();
        let nanos = self.nanos.saturating_sub(before.nanos);
        let mut seen = 0;
        let reached = counts.iter().position(|count| {
            seen += count;
            seen > 0 && seen * 100 >= all * 99
        });
        // Times beyond the last bound are shown as that bound.
        let most = BOUNDS[reached?.min(BOUNDS.len() - 2)];
        Some(TimesBetween {
            mean: nanos as f64 / 1e9 / all as f64,
            most,
        })
    }
}

#[derive(Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    nanos: AtomicU64,
}

impl Histogram {
    pub(super) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound);
        self.buckets[bucket.unwrap_or(BOUNDS.len() - 1)].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub(super) fn times(&self) -> Times {
        Times {
            buckets: self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed)),
            nanos: self.nanos.load(Ordering::Relaxed),
        }
    }

    pub(super) fn count(&self, names: &Names, counters: &mut Samples) {
        for (bound, count) in BOUNDS.into_iter().zip(&self.buckets) {
            let labels = [("le", &*bound.to_string())];
            counters.add(names.buckets, &labels, count.load(Ordering::Relaxed));
        }
        counters.add(names.sum, &[], self.nanos.load(Ordering::Relaxed));
    }
}

/// Writes the histogram of these counters, if they have it.
pub(super) fn encode(names: &Names, counters: &Samples, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if !counters.has(names.buckets) {
        return Ok(());
    }
    let buckets = BOUNDS.map(|bound| {
        let count = counters.get(names.buckets, &[("le", &bound.to_string())]);
        (bound, count)
    });
    let count = buckets.iter().map(|(_, count)| count).sum();
    let sum = Duration::from_nanos(counters.get(names.sum, &[])).as_secs_f64();
    encoder
        .encode_descriptor(names.metric, names.help, Some(&Unit::Seconds), MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_two_moments_have_a_mean_and_a_bound() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_secs(9));
        let before = histogram.times();
        assert_eq!(histogram.times().since(&before), None);
        (0..99).for_each(|_| histogram.observe(Duration::from_millis(2)));
        histogram.observe(Duration::from_millis(802));
        let between = histogram.times().since(&before).unwrap();
        assert_eq!((between.mean, between.most), (0.01, 0.0025));
        let before = histogram.times();
        histogram.observe(Duration::from_secs(60));
        let between = histogram.times().since(&before).unwrap();
        assert_eq!((between.mean, between.most), (60.0, 10.0));
    }
}
