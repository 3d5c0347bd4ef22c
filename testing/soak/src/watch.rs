//! Samples of the program over time, and checks that it can keep running.

use std::time::Duration;

use super::program::{Metrics, Usage};
use super::stuck::{HELD_MAX, Stuck};
use super::tally::Tally;

const GIB: f64 = (1 << 30) as f64;

/// One check and its result.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) weight: Weight,
    pub(super) text: String,
}

/// One sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) elapsed: Duration,
    /// The number of sessions that ended, and the bytes that the load verified.
    pub(super) sessions: u64,
    pub(super) bytes: u64,
    pub(super) usage: Usage,
    pub(super) metrics: Metrics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Good,
    /// The machine may be the cause.
    Warning,
    Bad,
}

pub(super) const COLUMNS: &str =
    "      s  active  sessions       GiB  GiB/s  RSS KiB  anon KiB   fds  pipes   pages    CPU s  s/GiB  spliced";

impl Sample {
    /// Returns a line that goes below [`COLUMNS`]. The rate is the rate since `before`.
    pub(super) fn line(&self, before: &Self, baseline: &Usage) -> String {
        let gib = self.bytes as f64 / GIB;
        let rate = (self.bytes - before.bytes) as f64 / GIB / (self.elapsed - before.elapsed).as_secs_f64().max(1e-9);
        let cpu = self.usage.cpu.saturating_sub(baseline.cpu).as_secs_f64();
        format!(
            "{:7.1}  {:6}  {:8}  {gib:8.2}  {rate:5.2}  {:7}  {:8}  {:4}  {:5}  {:6}  {cpu:7.1}  {:5.3}  {:6.2} %",
            self.elapsed.as_secs_f64(),
            self.metrics.active,
            self.sessions,
            self.usage.rss_kib,
            self.usage.anon_kib,
            self.usage.descriptors,
            self.usage.pipe_ends.saturating_sub(baseline.pipe_ends) / 2,
            self.metrics.pages,
            if gib > 0.0 { cpu / gib } else { 0.0 },
            100.0 * spliced_share(&self.metrics),
        )
    }
}

fn spliced_share(metrics: &Metrics) -> f64 {
    metrics.spliced as f64 / (metrics.spliced + metrics.copied).max(1) as f64
}

pub(super) fn finding(good: bool, text: String) -> Finding {
    let weight = if good { Weight::Good } else { Weight::Bad };
    Finding { weight, text }
}

/// Judges the phase with readers that never read.
pub(super) fn judge_stuck(stuck: &Stuck) -> Vec<Finding> {
    let most = stuck.held.iter().copied().max().unwrap_or(0);
    let directions = stuck.held.len();
    vec![
        finding(
            (1..=HELD_MAX).contains(&most),
            format!(
                "readers that never read: {most} bytes at most held per direction ({directions} full), limit {HELD_MAX}"
            ),
        ),
        finding(
            stuck.lent <= directions as u64,
            format!(
                "readers that never read: {} pipes lent, limit {directions}; {} ms of CPU in a second of it",
                stuck.lent,
                stuck.cpu.as_millis()
            ),
        ),
    ]
}

/// Judges the bytes that the load verified.
pub(super) fn judge_content(tally: &Tally) -> Finding {
    let (faults, bytes) = (tally.faults(), tally.bytes());
    finding(
        faults.is_empty() && bytes > 0,
        format!(
            "{bytes} bytes ({:.2} GiB) of {} sessions verified; faults: {faults:?}",
            bytes as f64 / GIB,
            tally.sessions()
        ),
    )
}

/// Judges how the program changed over time under the load.
pub(super) fn judge_drift(samples: &[Sample], connections: u64) -> Vec<Finding> {
    if samples.len() < SAMPLES_MIN {
        let text = format!(
            "{} samples; {SAMPLES_MIN} are needed to see memory drift: run longer",
            samples.len()
        );
        return vec![finding(false, text)];
    }
    let after_warm_up = &samples[samples.len() / 3..];
    let memory = match connections {
        1 => memory_of_one(after_warm_up),
        _ => memory_of_many(after_warm_up, connections),
    };
    // At the start some connections may be missing. At the end only the slow ones are left, which
    // cost more per byte.
    let busy = samples.iter().filter(|sample| 2 * sample.metrics.active >= connections);
    let mut findings = vec![memory, cpu_drift(&busy.cloned().collect::<Vec<_>>())];
    if connections == 1 {
        let share = samples.last().map_or(0.0, |last| spliced_share(&last.metrics));
        let text = format!(
            "spliced: {:.4} % of the bytes, must be {:.0} %",
            100.0 * share,
            100.0 * SPLICED_MIN
        );
        findings.push(finding(share >= SPLICED_MIN, text));
    }
    findings
}

/// The fewest samples that can show drift. A third of them is warm-up.
const SAMPLES_MIN: usize = 20;
/// A flow that is bulk from end to end is copied only at its ends and where it pauses.
const SPLICED_MIN: f64 = 0.99;
const RSS_DRIFT_MAX_KIB: u64 = 1024;
/// One session's state is 2 to 3 KiB. With more sessions, it takes longer until all of them are in
/// their largest state at the same time. The allocator keeps that memory.
const RSS_DRIFT_MAX_PER_CONNECTION_KIB: u64 = 1;
/// Other load on the machine can cause this much drift.
const CPU_DRIFT_SHOWN: f64 = 0.3;

fn memory_of_one(samples: &[Sample]) -> Finding {
    let rss = || samples.iter().map(|sample| sample.usage.rss_kib);
    let (low, high) = (rss().min().unwrap_or(0), rss().max().unwrap_or(0));
    finding(
        high - low <= RSS_DRIFT_MAX_KIB,
        format!("RSS after the first third: {low} to {high} KiB, may differ by {RSS_DRIFT_MAX_KIB}"),
    )
}

/// Compares the medians of windows, because sessions come and go, and their memory with them.
fn memory_of_many(samples: &[Sample], connections: u64) -> Finding {
    let median = |window: &[Sample]| {
        let mut rss: Vec<u64> = window.iter().map(|sample| sample.usage.rss_kib).collect();
        rss.sort_unstable();
        rss[rss.len() / 2]
    };
    let (first, last) = samples.split_at(samples.len() / 2);
    let (before, after) = (median(first), median(last));
    let grown = after.saturating_sub(before);
    let most = RSS_DRIFT_MAX_KIB + RSS_DRIFT_MAX_PER_CONNECTION_KIB * connections;
    let sessions = last[last.len() / 2].sessions - first[first.len() / 2].sessions;
    finding(
        grown <= most,
        format!(
            "RSS, medians of the second and the last third: {before} and {after} KiB, may grow by {most} \
             ({:.0} bytes per session, {sessions} between)",
            grown as f64 * 1024.0 / sessions.max(1) as f64
        ),
    )
}

fn cpu_drift(samples: &[Sample]) -> Finding {
    let cost = |window: &[Sample]| match window {
        [first, .., last] if last.bytes > first.bytes => {
            (last.usage.cpu - first.usage.cpu).as_secs_f64() * GIB / (last.bytes - first.bytes) as f64
        }
        _ => 0.0,
    };
    let third = samples.len() / 3;
    let costs = [0, 1, 2].map(|nth| cost(&samples[nth * third..(nth + 1) * third]));
    let drifts = costs.iter().any(|cost| (cost / costs[0] - 1.0).abs() > CPU_DRIFT_SHOWN);
    Finding {
        weight: if drifts { Weight::Warning } else { Weight::Good },
        text: format!(
            "CPU s/GiB by thirds of the samples: {:.3}, {:.3}, {:.3}",
            costs[0], costs[1], costs[2]
        ),
    }
}

/// Judges the resources that are left when there is no more work.
pub(super) fn judge_rest(baseline: &Usage, after: &Usage, metrics: &Metrics, sessions: u64) -> Vec<Finding> {
    vec![
        finding(
            after.descriptors <= baseline.descriptors,
            format!(
                "descriptors: {} before, {} after",
                baseline.descriptors, after.descriptors
            ),
        ),
        finding(
            after.pipe_ends <= baseline.pipe_ends && metrics.pages == 0,
            format!(
                "ends of pipes: {} before, {} after; {} pages in the pool",
                baseline.pipe_ends, after.pipe_ends, metrics.pages
            ),
        ),
        finding(
            metrics.active == 0 && metrics.ended == sessions,
            format!(
                "sessions: {} left; the program counted {}, the load {sessions}",
                metrics.active, metrics.ended
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a minute of samples of a program. For sample n, the closures return its memory in
    /// KiB and its CPU time in milliseconds.
    fn looks(rss_kib: impl Fn(u64) -> u64, cpu: impl Fn(u64) -> u64) -> Vec<Sample> {
        let look = |nth| Sample {
            elapsed: Duration::from_secs(nth),
            sessions: 100 * nth,
            bytes: nth << 30,
            usage: Usage {
                rss_kib: rss_kib(nth),
                cpu: Duration::from_millis(cpu(nth)),
                ..Usage::default()
            },
            metrics: Metrics {
                active: if nth == 0 { 0 } else { 64 },
                spliced: nth << 30,
                ..Metrics::default()
            },
        };
        (0..60).map(look).collect()
    }

    fn weights(samples: &[Sample], connections: u64) -> Vec<Weight> {
        let findings = judge_drift(samples, connections);
        findings.iter().map(|finding| finding.weight).collect()
    }

    #[test]
    fn memory_that_is_constant_or_grows_only_at_the_start_is_good() {
        let flat = looks(|nth| 4000 + 5000 * nth.min(15) + nth % 7 * 30, |nth| 100 * nth);
        assert_eq!(weights(&flat, 64), [Weight::Good; 2]);
        assert_eq!(weights(&flat, 1), [Weight::Good; 3]);
    }

    #[test]
    fn a_leak_of_a_kibibyte_per_session_is_bad_within_a_minute() {
        let leaks = looks(|nth| 4000 + 100 * nth, |nth| 100 * nth);
        assert_eq!(weights(&leaks, 64)[0], Weight::Bad);
        assert_eq!(weights(&leaks, 1)[0], Weight::Bad);
    }

    #[test]
    fn memory_that_swings_is_bad_with_one_connection_only() {
        let swings = looks(|nth| 4000 + nth % 2 * 2000, |nth| 100 * nth);
        assert_eq!(weights(&swings, 64)[0], Weight::Good);
        assert_eq!(weights(&swings, 1)[0], Weight::Bad);
    }

    #[test]
    fn cpu_that_grows_with_time_is_a_warning() {
        let dearer = looks(|_| 4000, |nth| 100 * nth + nth * nth);
        assert_eq!(weights(&dearer, 64)[1], Weight::Warning);
    }

    #[test]
    fn a_single_flow_that_is_copied_in_part_is_bad() {
        let mut copied = looks(|_| 4000, |nth| 100 * nth);
        copied.last_mut().unwrap().metrics.copied = 1 << 30;
        assert_eq!(weights(&copied, 1)[2], Weight::Bad);
    }

    #[test]
    fn too_few_samples_prove_nothing() {
        assert_eq!(weights(&looks(|_| 4000, |nth| nth)[..19], 64), [Weight::Bad]);
    }

    #[test]
    fn a_descriptor_a_page_or_a_session_that_is_left_is_bad() {
        let usage = |descriptors, pipe_ends| Usage {
            descriptors,
            pipe_ends,
            ..Usage::default()
        };
        let bad = |after: Usage, metrics: Metrics| {
            let findings = judge_rest(&usage(13, 2), &after, &metrics, 0);
            findings.iter().filter(|finding| finding.weight == Weight::Bad).count()
        };
        let none = Metrics::default;
        assert_eq!(bad(usage(13, 2), none()), 0);
        assert_eq!(bad(usage(14, 2), none()), 1);
        assert_eq!(bad(usage(13, 3), none()), 1);
        assert_eq!(bad(usage(13, 2), Metrics { pages: 16, ..none() }), 1);
        assert_eq!(bad(usage(13, 2), Metrics { active: 1, ..none() }), 1);
        assert_eq!(bad(usage(13, 2), Metrics { ended: 1, ..none() }), 1);
    }

    #[test]
    fn a_direction_that_holds_more_than_a_pipe_is_bad() {
        let weight = |held| {
            let stuck = Stuck {
                held: vec![1000, held],
                lent: 2,
                cpu: Duration::ZERO,
            };
            judge_stuck(&stuck)[0].weight
        };
        assert_eq!(weight(HELD_MAX), Weight::Good);
        assert_eq!(weight(HELD_MAX + 1), Weight::Bad);
    }
}
