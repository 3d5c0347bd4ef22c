//! The measurements: which of them are reliable, and how certain they are.

use serde::{Deserialize, Serialize};

use crate::contender::{AGAIN, Contender, DIRECT, OURS, is_peer};
use crate::environment::Origin;
use spliceway_load::{Done, Estimate, Histogram, bootstrap, lower_half, typical, upper_half};

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
    /// The fraction of the run's time that the host and other processes used.
    #[serde(default)]
    pub(crate) disturbed: f64,
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
    #[serde(default)]
    pub(crate) origin: Origin,
    /// The rounds in which every contender ran. Zero stands for all rounds.
    #[serde(default)]
    pub(crate) full_rounds: usize,
    pub(crate) runs: Vec<Run>,
    /// Contenders that failed, each with a description of the failure.
    pub(crate) failed: Vec<(String, String)>,
}

/// The percentiles in the tables.
pub(crate) const PERCENTILES: [(f64, &str); 4] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")];

/// The figure that a row compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figure {
    /// CPU time of the relay's core, for each GiB or exchange.
    Cpu,
    /// Exchanges per second.
    Rate,
    /// The latency itself, at a percentile.
    Latency(f64),
}

impl Figure {
    pub(crate) fn is_more_better(self) -> bool {
        self == Self::Rate
    }
}

/// The highest permitted use of the load's core. If the core is busier, the load is measured
/// together with the relay.
pub(crate) const LOAD_BUSY: f64 = 0.70;
/// If the load's core is busier, it limits the rate. The relay could do more.
pub(crate) const LOAD_LIMITS: f64 = 0.95;
/// The generator may be late by this fraction of the latency that it reports.
pub(crate) const LATE: f64 = 0.10;
/// A contender that completes a smaller fraction of the due messages cannot sustain the load.
pub(crate) const SUSTAINED: f64 = 0.99;
/// Why an added latency is left out if the contender's own latency is reliable.
pub(crate) const DIRECT_OMITTED: &str = "that of the direct connection is left out";

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

    pub(crate) fn rounds(&self) -> usize {
        self.runs.iter().map(|run| run.round + 1).max().unwrap_or(0)
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

    /// Returns a figure over these runs.
    fn over<'a>(&self, figure: Figure, runs: impl Iterator<Item = &'a Run>) -> Option<f64> {
        match figure {
            Figure::Cpu => lower_half(runs.map(|run| self.unit_cost(run))),
            Figure::Rate => upper_half(runs.map(|run| run.completed as f64 / run.wall)),
            Figure::Latency(part) => typical(runs.map(times), part),
        }
    }

    pub(crate) fn value(&self, figure: Figure, contender: &str) -> Option<f64> {
        self.over(figure, self.runs_of(contender))
    }

    /// Returns one contender's figure relative to another contender's, over rounds that had both.
    /// The interval allows for the number of rounds.
    pub(crate) fn sampled(&self, figure: Figure, contender: &str, to: &str) -> Option<Estimate> {
        let pairs = self.pairs(contender, to);
        let ratio = bootstrap(pairs.len(), |rounds| {
            let own = self.over(figure, rounds.iter().map(|at| pairs[*at].0))?;
            let ratio = own / self.over(figure, rounds.iter().map(|at| pairs[*at].1))?;
            ratio.is_finite().then_some(ratio)
        })?;
        Some(ratio.for_rounds(pairs.len()))
    }

    /// Returns the A/A control relative to spliceway.
    pub(crate) fn control(&self, figure: Figure) -> Option<Estimate> {
        self.sampled(figure, AGAIN, OURS)
    }

    /// Returns one contender's figure relative to another contender's. The interval allows for the
    /// number of rounds and for the difference of the A/A control.
    pub(crate) fn ratio(&self, figure: Figure, contender: &str, to: &str) -> Option<Estimate> {
        let control = self.control(figure).map_or(1.0, |control| control.value);
        let ratio = self.sampled(figure, contender, to)?;
        Some(if contender == to {
            ratio
        } else {
            ratio.widened_by(control)
        })
    }

    /// Returns the relays that users may choose instead of spliceway, with their figures from the
    /// rounds in which every contender ran.
    pub(crate) fn peers(&self, figure: Figure) -> Vec<(&str, f64)> {
        let is_full = |run: &&Run| self.full_rounds == 0 || run.round < self.full_rounds;
        let value = |name: &str| self.over(figure, self.runs_of(name).filter(is_full));
        let is_reliable = |name: &str| figure == Figure::Rate || self.unreliable(figure, name).is_none();
        let shown = |name: &&str| self.not_sustained(name).is_none() && is_reliable(name);
        let peers = self.contenders().into_iter().filter(|name| is_peer(name)).filter(shown);
        peers.filter_map(|name| Some((name, value(name)?))).collect()
    }

    /// Returns the best of the [peers](Self::peers).
    pub(crate) fn best_peer(&self, figure: Figure) -> Option<&str> {
        best(&self.peers(figure), figure.is_more_better())
    }

    /// Returns the microseconds that a contender adds to the direct connection at a quantile.
    pub(crate) fn added(&self, contender: &str, part: f64) -> Option<Estimate> {
        let pairs = self.pairs(contender, DIRECT);
        bootstrap(pairs.len(), |rounds| {
            let own = typical(rounds.iter().map(|at| times(pairs[*at].0)), part)?;
            Some(own - typical(rounds.iter().map(|at| times(pairs[*at].1)), part)?)
        })
    }

    pub(crate) fn quantile(&self, contender: &str, part: f64) -> Option<f64> {
        self.value(Figure::Latency(part), contender)
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

    /// Returns the reason why a figure measures the load more than the relay, if it does. CPU time
    /// never does, because the relay has its own core.
    pub(crate) fn unreliable(&self, figure: Figure, contender: &str) -> Option<String> {
        let busy = self.mean(contender, |run| run.load_busy);
        let most = match figure {
            Figure::Cpu => return None,
            Figure::Rate => LOAD_LIMITS,
            Figure::Latency(_) => LOAD_BUSY,
        };
        match figure {
            _ if busy > most => Some(format!("the load's core is {:.0} % busy", busy * 100.0)),
            Figure::Latency(part) => self.late(contender, part),
            _ => None,
        }
    }

    /// Returns the reason why the latency that a contender adds cannot be shown: its own, or that
    /// of the direct connection.
    pub(crate) fn added_fault(&self, contender: &str, part: f64) -> Option<String> {
        let figure = Figure::Latency(part);
        self.unreliable(figure, contender)
            .or_else(|| self.unreliable(figure, DIRECT).map(|_| DIRECT_OMITTED.into()))
    }

    /// Returns the reason why one contender's percentile cannot be shown.
    fn late(&self, contender: &str, part: f64) -> Option<String> {
        let late = typical(self.runs_of(contender).map(|run| &run.lateness), part);
        let (late, latency) = (late?, self.quantile(contender, part)?);
        (late > LATE * latency).then(|| format!("the generator is late: {late:.0} of {latency:.0} µs"))
    }
}

/// Returns the contender with the best figure.
pub(crate) fn best<'a>(all: &[(&'a str, f64)], is_more_better: bool) -> Option<&'a str> {
    let order = |a: &&(&str, f64), b: &&(&str, f64)| a.1.total_cmp(&b.1);
    let best = match is_more_better {
        true => all.iter().max_by(order),
        false => all.iter().min_by(order),
    };
    best.map(|(name, _)| *name)
}

/// Returns the durations of the exchanges if there are any. Otherwise returns the durations of the
/// writes.
fn times(run: &Run) -> &Histogram {
    match run.exchanges.count() {
        0 => &run.writes,
        _ => &run.exchanges,
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
        let ratio = measured.ratio(Figure::Cpu, OURS, REFERENCE).unwrap();
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
    fn a_control_that_differs_widens_the_interval() {
        let ratio = |again: f64| {
            let measured = measured(&[(REFERENCE, 0.4), (OURS, 0.1), (AGAIN, again)]);
            measured.ratio(Figure::Cpu, OURS, REFERENCE).unwrap()
        };
        for again in [0.125, 0.08] {
            let wide = ratio(again);
            assert!(
                (wide.low - 0.2).abs() < 1e-9 && (wide.high - 0.3125).abs() < 1e-9,
                "{wide:?}"
            );
        }
    }

    #[test]
    fn only_a_latency_depends_on_the_load() {
        let fine = measured(&[(DIRECT, 0.1), (OURS, 0.1), (AGAIN, 0.1)]);
        let with = |fault: fn(&mut Run)| {
            let mut faulty = fine.clone();
            faulty.runs.iter_mut().for_each(fault);
            faulty
        };
        let unreliable = |measured: &Measured, part| measured.unreliable(Figure::Latency(part), OURS);
        assert_eq!(unreliable(&fine, 0.99), None);
        let busy = with(|run| run.load_busy = 0.8);
        assert_eq!(unreliable(&busy, 0.5).as_deref(), Some("the load's core is 80 % busy"));
        assert_eq!(busy.unreliable(Figure::Cpu, OURS), None);

        let late = with(|run| (0..100).for_each(|_| run.lateness.record(Duration::from_millis(1))));
        assert!(unreliable(&late, 0.99).is_some());
        assert!(unreliable(&late, 0.5).is_none(), "half of the messages were on time");

        // What a relay adds is unknown if the latency of the direct connection is.
        let mut unknown = fine.clone();
        let of_direct = unknown.runs.iter_mut().filter(|run| run.contender == DIRECT);
        of_direct.for_each(|run| run.load_busy = 0.8);
        assert_eq!(unreliable(&unknown, 0.5), None);
        assert_eq!(unknown.added_fault(OURS, 0.5).as_deref(), Some(DIRECT_OMITTED));
        assert_eq!(fine.added_fault(OURS, 0.5), None);

        let slow = with(|run| run.completed = 1_500);
        assert_eq!(slow.not_sustained(OURS), Some(0.75));
    }

    #[test]
    fn the_best_peer_comes_from_the_rounds_that_all_contenders_have() {
        let mut measured = measured(&[(OURS, 0.1), ("Go", 0.2), ("nginx", 0.3)]);
        measured.full_rounds = 5;
        // Later rounds without nginx must not change the choice.
        measured.runs.extend((5..50).map(|round| run("Go", round, 9.0)));
        assert_eq!(measured.best_peer(Figure::Cpu), Some("Go"));
        measured
            .runs
            .iter_mut()
            .for_each(|run| run.completed = 100 * run.round as u64);
        measured.runs.retain(|run| run.contender != "Go");
        assert_eq!(measured.best_peer(Figure::Cpu), None, "it did not sustain the load");
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
