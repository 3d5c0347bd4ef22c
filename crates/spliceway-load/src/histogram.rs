//! Durations in buckets of 1 %. A histogram is small enough to keep one for every run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The ratio between the bounds of two neighbouring buckets.
const STEP: f64 = 1.01;

/// Counts by bucket. Bucket 0 is for durations of up to a nanosecond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram(BTreeMap<u16, u32>);

impl Histogram {
    /// Counts a duration.
    pub fn record(&mut self, time: Duration) {
        let nanos = time.as_nanos().max(1) as f64;
        *self.0.entry((nanos.ln() / STEP.ln()) as u16).or_default() += 1;
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (bucket, count) in &other.0 {
            *self.0.entry(*bucket).or_default() += count;
        }
    }

    /// Returns the number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.values().map(|count| u64::from(*count)).sum()
    }

    /// Returns the quantile in microseconds, or `None` unless at least ten durations exceed it.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let all = self.count();
        if (all as f64 * (1.0 - part)).round() < 10.0 {
            return None;
        }
        let rank = (all as f64 * part).ceil() as u64;
        let mut below = 0;
        let bucket = self.0.iter().find(|(_, count)| {
            below += u64::from(**count);
            below >= rank
        });
        bucket.map(|(bucket, _)| STEP.powf(f64::from(*bucket) + 0.5) / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent_and_need_ten_times_beyond() {
        let mut times = Histogram::default();
        for micros in 1..=1_000 {
            times.record(Duration::from_micros(micros));
        }
        for (part, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let found = times.quantile(part).unwrap();
            assert!((found / expected - 1.0).abs() < 0.01, "{found} for {expected}");
        }
        assert_eq!(times.quantile(0.999), None, "1,000 times have one beyond");
        let mut ten = Histogram::default();
        (0..10).for_each(|_| ten.add(&times));
        assert_eq!(ten.count(), 10_000);
        assert!(ten.quantile(0.999).is_some());
    }
}
