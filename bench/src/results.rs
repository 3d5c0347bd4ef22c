//! The measurements: which of them are reliable, and how certain they are.

use serde::{Deserialize, Serialize};

use crate::contender::{AGAIN, Contender, DIRECT, OURS};
use spliceway_load::{Done, Estimate, Histogram, bootstrap, lower_half, typical};

/// One run of one contender under one load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) contender: String,
    pub(crate) round: usize,
    /// Seconds of the measured window.
    pub(crate) wall: f64,
    /// Seconds during which the relay's core was busy.
    pub(crate) cpu: f64,
    /// The fraction of the window during which the load's core was busy.
    pub(crate) load_busy: f64,
    /// The fraction of the window that the host took from either core.
    pub(crate) steal: f64,
    pub(crate) offered: u64,
    pub(crate) completed: u64,
    /// Bytes of writes that arrived in the window.
    pub(crate) bytes: u64,
    pub(crate) writes: Histogram,
    pub(crate) exchanges: Histogram,
    pub(crate) lateness: Histogram,
    /// Milliseconds from the end of an overload until its backlog was cleared.
    pub(crate) recovery: f64,
}

impl Run {
    pub(crate) fn new(contender: &Contender, round: usize) -> Self {
        Self {
            contender: contender.name.clone(),
            round,
            ..Self::default()
        }
    }

    pub(crate) fn take(&mut self, done: Done) {
        self.load_busy -= done.spun.as_secs_f64() / self.wall;
        self.offered = done.offered;
        self.completed = done.completed;
        self.bytes = done.bytes;
        self.writes = done.writes;
        self.exchanges = done.exchanges;
        self.lateness = done.lateness;
        self.recovery = done.recovery.as_secs_f64() * 1e3;
    }
}

/// All runs of one load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) load: String,
    pub(crate) profile: String,
    /// Whether CPU time is per GiB. Otherwise, it is per exchange.
    pub(crate) is_bulk: bool,
    pub(crate) is_overload: bool,
    pub(crate) runs: Vec<Run>,
    /// Contenders that failed, each with a description of the failure.
    pub(crate) failed: Vec<(String, String)>,
}

/// The percentiles in the tables.
pub(crate) const PERCENTILES: [(f64, &str); 4] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")];

/// The highest permitted use of the load's core. If the core is busier, the load is measured
/// together with the relay.
pub(crate) const LOAD_BUSY: f64 = 0.70;
/// The fraction of the window that the host may use. Two runs of one relay can differ by this much.
pub(crate) const STEAL: f64 = 0.02;
/// The generator may be late by this fraction of the latency that it reports.
pub(crate) const LATE: f64 = 0.10;
/// The A/A control may differ by this fraction in CPU time and in rates.
pub(crate) const AGAIN_CPU: f64 = 0.10;
/// The A/A control may differ by this fraction in each percentile.
pub(crate) const AGAIN_LATENCY: f64 = 0.25;
/// A contender that completes a smaller fraction of the due messages cannot sustain the load.
pub(crate) const SUSTAINED: f64 = 0.99;

impl Measured {
    /// Returns the contenders' names in the order of measurement.
    pub(crate) fn contenders(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for run in &self.runs {
            if !names.contains(&run.contender.as_str()) {
                names.push(run.contender.as_str());
            }
        }
        names
    }

    pub(crate) fn runs_of<'a>(&'a self, contender: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.contender == contender)
    }

    /// Returns one run's seconds per GiB, or its microseconds per exchange.
    pub(crate) fn unit_cost(&self, run: &Run) -> f64 {
        match self.is_bulk {
            true => run.cpu / (run.bytes as f64 / f64::from(1 << 30)),
            false => run.cpu * 1e6 / run.exchanges.count().max(1) as f64,
        }
    }

    pub(crate) fn cpu(&self, contender: &str) -> Option<Estimate> {
        let costs: Vec<f64> = self.runs_of(contender).map(|run| self.unit_cost(run)).collect();
        bootstrap(costs.len(), |rounds| lower_half(rounds.iter().map(|at| costs[*at])))
    }

    /// Returns one contender's CPU time relative to another contender's, over rounds that had both.
    pub(crate) fn cpu_ratio(&self, contender: &str, to: &str) -> Option<Estimate> {
        let pairs = self.pairs(contender, to);
        bootstrap(pairs.len(), |rounds| {
            let own = lower_half(rounds.iter().map(|at| self.unit_cost(pairs[*at].0)))?;
            Some(own / lower_half(rounds.iter().map(|at| self.unit_cost(pairs[*at].1)))?)
        })
    }

    /// Returns the microseconds that a contender adds to the direct connection at a quantile.
    pub(crate) fn added(&self, contender: &str, part: f64) -> Option<Estimate> {
        let pairs = self.pairs(contender, DIRECT);
        bootstrap(pairs.len(), |rounds| {
            let own = typical(rounds.iter().map(|at| self.times(pairs[*at].0)), part)?;
            Some(own - typical(rounds.iter().map(|at| self.times(pairs[*at].1)), part)?)
        })
    }

    /// Returns the durations of the exchanges if there are any. Otherwise returns the durations of
    /// the writes.
    fn times<'a>(&self, run: &'a Run) -> &'a Histogram {
        match run.exchanges.count() {
            0 => &run.writes,
            _ => &run.exchanges,
        }
    }

    pub(crate) fn quantile(&self, contender: &str, part: f64) -> Option<f64> {
        typical(self.runs_of(contender).map(|run| self.times(run)), part)
    }

    /// Returns one contender's quantile relative to another contender's, over rounds that had both.
    pub(crate) fn quantile_ratio(&self, contender: &str, to: &str, part: f64) -> Option<Estimate> {
        let pairs = self.pairs(contender, to);
        bootstrap(pairs.len(), |rounds| {
            let own = typical(rounds.iter().map(|at| self.times(pairs[*at].0)), part)?;
            Some(own / typical(rounds.iter().map(|at| self.times(pairs[*at].1)), part)?)
        })
    }

    fn pairs<'a>(&'a self, contender: &str, other: &str) -> Vec<(&'a Run, &'a Run)> {
        let pair = |run: &'a Run| {
            Some((
                run,
                self.runs
                    .iter()
                    .find(|one: &&Run| one.contender == other && one.round == run.round)?,
            ))
        };
        self.runs
            .iter()
            .filter(|run| run.contender == contender)
            .filter_map(pair)
            .collect()
    }

    fn mean(&self, contender: &str, of: impl Fn(&Run) -> f64) -> f64 {
        let values: Vec<f64> = self.runs_of(contender).map(of).collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    }

    /// Returns the fraction of the due messages that were completed, if it is too small.
    pub(crate) fn not_sustained(&self, contender: &str) -> Option<f64> {
        let done = self.mean(contender, |run| run.completed as f64 / run.offered.max(1) as f64);
        (done < SUSTAINED).then_some(done)
    }

    /// Returns the reason why none of a contender's figures can be shown, namely a fault in the
    /// set-up.
    pub(crate) fn omitted(&self, contender: &str) -> Option<String> {
        let busy = self.mean(contender, |run| run.load_busy);
        let steal = self.mean(contender, |run| run.steal);
        if busy > LOAD_BUSY {
            return Some(format!("the load's core is {:.0} % busy", busy * 100.0));
        }
        (steal > STEAL).then(|| format!("the host took {:.1} % of the time", steal * 100.0))
    }

    /// Returns the reason why one contender's percentile cannot be shown.
    pub(crate) fn late(&self, contender: &str, part: f64) -> Option<String> {
        let late = typical(self.runs_of(contender).map(|run| &run.lateness), part);
        let (late, latency) = (late?, self.quantile(contender, part)?);
        (late > LATE * latency).then(|| format!("the generator is late: {late:.0} of {latency:.0} µs"))
    }

    /// Returns the reason why CPU time cannot be shown under this load.
    pub(crate) fn noisy_cpu(&self) -> Option<String> {
        let again = self.cpu_ratio(AGAIN, OURS)?.value;
        ((again - 1.0).abs() > AGAIN_CPU).then(|| format!("the A/A control has {again:.2} times the CPU time"))
    }

    /// Returns the reason why a percentile cannot be shown for any contender.
    pub(crate) fn noisy_latency(&self, part: f64) -> Option<String> {
        let again = self.quantile(AGAIN, part)? / self.quantile(OURS, part)?;
        ((again - 1.0).abs() > AGAIN_LATENCY).then(|| format!("the A/A control has {again:.2} times the latency"))
    }

    /// Returns any reason why one contender's percentile cannot be shown.
    pub(crate) fn omitted_latency(&self, contender: &str, part: f64) -> Option<String> {
        self.omitted(contender)
            .or_else(|| self.noisy_latency(part))
            .or_else(|| self.late(contender, part))
    }

    /// Returns any reason why one contender's CPU time cannot be shown.
    pub(crate) fn omitted_cpu(&self, contender: &str) -> Option<String> {
        self.omitted(contender).or_else(|| self.noisy_cpu())
    }

    /// Returns the number of contenders with a CPU time or a median latency that can be shown.
    pub(crate) fn survivors(&self) -> usize {
        let survives = |name: &&str| self.omitted_cpu(name).is_none() || self.omitted_latency(name, 0.5).is_none();
        self.contenders().into_iter().filter(survives).count()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::contender::REFERENCE;

    fn run(contender: &str, round: usize, cpu: f64) -> Run {
        let mut run = Run {
            contender: contender.into(),
            round,
            wall: 1.0,
            cpu,
            load_busy: 0.5,
            offered: 2_000,
            completed: 2_000,
            ..Run::default()
        };
        for micros in 0..2_000 {
            run.exchanges.record(Duration::from_micros(100 + micros));
            run.lateness.record(Duration::from_micros(3));
        }
        run
    }

    fn measured(costs: &[(&str, f64)]) -> Measured {
        let runs = (0..5).flat_map(|round| {
            // Each round is slower than the previous one. Ratios within a round do not change.
            costs
                .iter()
                .map(move |(name, cpu)| run(name, round, cpu * (1.0 + round as f64)))
        });
        Measured {
            runs: runs.collect(),
            ..Measured::default()
        }
    }

    #[test]
    fn ratios_compare_the_same_rounds() {
        let measured = measured(&[(REFERENCE, 0.4), (OURS, 0.1), (AGAIN, 0.1)]);
        let ratio = measured.cpu_ratio(OURS, REFERENCE).unwrap();
        for bound in [ratio.value, ratio.low, ratio.high] {
            assert!((bound - 0.25).abs() < 1e-9, "{ratio:?}");
        }
        let cpu = measured.cpu(OURS).unwrap();
        assert!(
            (cpu.value - 100.0).abs() < 1e-9 && cpu.low < cpu.value && cpu.value < cpu.high,
            "{cpu:?}"
        );
    }

    #[test]
    fn only_faults_in_the_set_up_omit_a_point() {
        let fine = measured(&[(DIRECT, 0.1), (OURS, 0.1), (AGAIN, 0.1)]);
        assert_eq!((fine.omitted_cpu(OURS), fine.omitted_latency(OURS, 0.99)), (None, None));
        assert_eq!(fine.survivors(), 3);
        let with = |fault: fn(&mut Run)| {
            let mut faulty = fine.clone();
            faulty.runs.iter_mut().for_each(fault);
            faulty
        };
        let busy = with(|run| run.load_busy = 0.8);
        assert_eq!(busy.omitted(OURS).as_deref(), Some("the load's core is 80 % busy"));

        let stolen = with(|run| run.steal = 0.05);
        assert_eq!(stolen.omitted(OURS).as_deref(), Some("the host took 5.0 % of the time"));
        assert_eq!(stolen.survivors(), 0);

        let late = with(|run| (0..100).for_each(|_| run.lateness.record(Duration::from_millis(1))));
        assert!(late.omitted_latency(OURS, 0.99).is_some());
        assert!(
            late.omitted_latency(OURS, 0.5).is_none(),
            "half of the messages were on time"
        );

        let slow = with(|run| run.completed = 1_500);
        assert_eq!(slow.not_sustained(OURS), Some(0.75));
        assert_eq!(slow.omitted(OURS), None, "it stays in the table");

        assert!(measured(&[(OURS, 0.1), (AGAIN, 0.12)]).omitted_cpu(OURS).is_some());
    }

    #[test]
    fn added_latency_is_relative_to_the_direct_connection() {
        let mut measured = measured(&[(DIRECT, 0.1), (OURS, 0.1)]);
        for run in measured.runs.iter_mut().filter(|run| run.contender == OURS) {
            run.exchanges = Histogram::default();
            (0..2_000).for_each(|micros| run.exchanges.record(Duration::from_micros(200 + micros)));
        }
        let added = measured.added(OURS, 0.5).unwrap();
        assert!((added.value - 100.0).abs() < 15.0, "{added:?}");
        assert!(measured.added(OURS, 0.9995).is_none(), "5 of 10,000 are beyond");
    }
}
