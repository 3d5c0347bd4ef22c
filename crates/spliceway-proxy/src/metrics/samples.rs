//! Numbers with a name and labels: the counters and gauges of a process.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use serde::{Deserialize, Serialize};

/// The names and the values of labels.
pub(super) type Labels = Vec<(Cow<'static, str>, String)>;

/// The samples of each name. Their JSON is a part of the format between versions of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Samples(BTreeMap<Cow<'static, str>, Series>);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Series(#[serde(with = "pairs")] BTreeMap<Labels, u64>);

/// JSON has no maps whose keys are lists.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::Labels;

    pub(super) fn serialize<S: Serializer>(series: &BTreeMap<Labels, u64>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(series)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<Labels, u64>, D::Error> {
        Vec::deserialize(from).map(|pairs| pairs.into_iter().collect())
    }
}

impl Samples {
    /// Makes a name known that may have no samples yet.
    pub(super) fn declare(&mut self, name: &'static str) {
        self.0.entry(name.into()).or_default();
    }

    /// Returns whether this name is known.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Adds to a sample. The first call creates it.
    pub(super) fn add(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: u64) {
        let series = self.0.entry(name.into()).or_default();
        let sample = series.0.entry(owned(labels)).or_default();
        *sample = sample.saturating_add(value);
    }

    /// Returns a sample, or 0 if there is none.
    pub(crate) fn get(&self, name: &str, labels: &[(&'static str, &str)]) -> u64 {
        let sample = self.0.get(name).and_then(|series| series.0.get(&owned(labels)));
        sample.copied().unwrap_or(0)
    }

    /// Adds all samples of an earlier process. A sample that only the earlier process has is left
    /// out if it `is_gone`.
    pub(super) fn add_earlier(&mut self, earlier: &Self, is_gone: impl Fn(&Labels) -> bool) {
        for (name, series) in &earlier.0 {
            let own = self.0.entry(name.clone()).or_default();
            for (labels, value) in &series.0 {
                match own.0.get_mut(labels) {
                    Some(sample) => *sample = sample.saturating_add(*value),
                    None if is_gone(labels) => {}
                    None => drop(own.0.insert(labels.clone(), *value)),
                }
            }
        }
    }

    /// Writes the samples that have one of these names, each with its help text.
    pub(super) fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        kind: MetricType,
        shown: &[(&str, &str)],
    ) -> fmt::Result {
        for (name, help) in shown {
            let Some(series) = self.0.get(*name) else { continue };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in &series.0 {
                let write = |sample: &mut MetricEncoder<'_>| match kind {
                    MetricType::Gauge => sample.encode_gauge(value),
                    _ => sample.encode_counter::<NoLabelSet, u64, u64>(value, None),
                };
                if labels.is_empty() {
                    write(&mut family)?;
                } else {
                    write(&mut family.encode_family(labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    let labels = labels.iter();
    labels
        .map(|(name, value)| ((*name).into(), (*value).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(earlier: &Samples, now: &Samples) -> Samples {
        // Counters travel as JSON.
        let earlier = serde_json::from_str(&serde_json::to_string(earlier).unwrap()).unwrap();
        let mut sums = now.clone();
        sums.add_earlier(&earlier, |labels| labels.iter().any(|(name, _)| name == "user"));
        sums
    }

    #[test]
    fn counters_continue_and_what_is_gone_does_not() {
        let (mut before, mut now, mut expected) = (Samples::default(), Samples::default(), Samples::default());
        let labels = |value| [("service", value), ("direction", "up")];
        before.add("bytes", &labels("x \"y\""), 5);
        before.add("bytes", &labels("old"), 2);
        before.add("bytes", &[("user", "gone")], 3);
        before.add("waits", &[], u64::MAX);
        assert_eq!(sums(&before, &Samples::default()).get("bytes", &labels("old")), 2);
        now.add("bytes", &labels("new"), 1);
        now.add("bytes", &labels("x \"y\""), 10);
        now.add("waits", &[], 1);
        assert_eq!(sums(&Samples::default(), &now), now);
        for (value, count) in [("new", 1), ("x \"y\"", 15), ("old", 2)] {
            expected.add("bytes", &labels(value), count);
        }
        expected.add("waits", &[], u64::MAX);
        assert_eq!(sums(&before, &now), expected);
        assert_eq!((expected.get("bytes", &[]), expected.get("none", &[])), (0, 0));
    }
}
