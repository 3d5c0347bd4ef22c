//! What was measured, what of it can be trusted, and how certain it is.

use serde::{Deserialize, Serialize};

use crate::contender::{AGAIN, Contender, DIRECT, OURS};
use crate::end::Done;
use crate::histogram::Histogram;
use spliceway_machine::Random;

/// One contender under one load, once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) contender: String,
    pub(crate) round: usize,
    /// Seconds of the measured window.
    pub(crate) wall: f64,
    /// Seconds that the relay's core was not idle.
    pub(crate) cpu: f64,
    /// The part of the window that the load's core was not idle.
    pub(crate) load_busy: f64,
    /// The part of the window that the host took from either core.
    pub(crate) steal: f64,
    pub(crate) offered: u64,
    pub(crate) completed: u64,
    /// Of writes, that arrived in the window.
    pub(crate) bytes: u64,
    pub(crate) writes: Histogram,
    pub(crate) exchanges: Histogram,
    pub(crate) lateness: Histogram,
    /// Milliseconds from the end of an overload to the end of its backlog.
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
    /// Whether CPU time is per GiB; else it is per exchange.
    pub(crate) is_bulk: bool,
    pub(crate) is_overload: bool,
    pub(crate) runs: Vec<Run>,
    /// Contenders that failed, and how.
    pub(crate) failed: Vec<(String, String)>,
}

/// A figure with the interval that has it in 95 of 100 cases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// The value, and its interval in brackets.
    pub(crate) fn show(self, decimals: usize) -> String {
        let Self { value, low, high } = self;
        format!("{value:.decimals$} [{low:.decimals$}, {high:.decimals$}]")
    }
}

/// Part of the load's core beyond which it is not only the relay that is measured.
pub(crate) const LOAD_BUSY: f64 = 0.70;
/// Part of the window that the host may take. A run of one second loses then 20 ms, which is what A/A runs differ by anyhow.
pub(crate) const STEAL: f64 = 0.02;
/// The generator may be late by so much of the p99 that it reports.
pub(crate) const LATE: f64 = 0.10;
/// What the A/A control may differ by: CPU time, and p99.
pub(crate) const AGAIN_CPU: f64 = 0.10;
pub(crate) const AGAIN_P99: f64 = 0.25;
/// Less than this part done is a contender that cannot keep up.
pub(crate) const SUSTAINED: f64 = 0.99;

impl Measured {
    /// Names, in the order they were measured.
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

    /// Seconds per GiB, or microseconds per exchange, of one run.
    pub(crate) fn unit_cost(&self, run: &Run) -> f64 {
        match self.is_bulk {
            true => run.cpu / (run.bytes as f64 / f64::from(1 << 30)),
            false => run.cpu * 1e6 / run.exchanges.count().max(1) as f64,
        }
    }

    pub(crate) fn cpu(&self, contender: &str) -> Option<Estimate> {
        let costs: Vec<f64> = self.runs_of(contender).map(|run| self.unit_cost(run)).collect();
        bootstrap(costs.len(), |rounds| {
            median(rounds.iter().map(|at| costs[*at]).collect())
        })
    }

    /// CPU time of one contender in terms of another's, by rounds that had both.
    pub(crate) fn cpu_ratio(&self, contender: &str, to: &str) -> Option<Estimate> {
        let pairs = self.pairs(contender, to);
        let ratios: Vec<f64> = pairs
            .iter()
            .map(|(a, b)| self.unit_cost(a) / self.unit_cost(b))
            .collect();
        bootstrap(ratios.len(), |rounds| {
            median(rounds.iter().map(|at| ratios[*at]).collect())
        })
    }

    /// Microseconds that a contender adds to what the direct connection takes, at a quantile.
    pub(crate) fn added(&self, contender: &str, part: f64) -> Option<Estimate> {
        let pairs = self.pairs(contender, DIRECT);
        bootstrap(pairs.len(), |rounds| {
            let own = typical(rounds.iter().map(|at| self.times(pairs[*at].0)), part)?;
            Some(own - typical(rounds.iter().map(|at| self.times(pairs[*at].1)), part)?)
        })
    }

    /// Of exchanges where there are some, or else of writes.
    pub(crate) fn times(&self, run: &Run) -> Histogram {
        match run.exchanges.count() {
            0 => run.writes.clone(),
            _ => run.exchanges.clone(),
        }
    }

    pub(crate) fn quantile(&self, contender: &str, part: f64) -> Option<f64> {
        typical(self.runs_of(contender).map(|run| self.times(run)), part)
    }

    /// One contender's quantile in terms of another's, by rounds.
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

    /// The part of what was due that was done, where that is too little.
    pub(crate) fn not_sustained(&self, contender: &str) -> Option<f64> {
        let done = self.mean(contender, |run| run.completed as f64 / run.offered.max(1) as f64);
        (done < SUSTAINED).then_some(done)
    }

    /// Why a contender's figures are not to be shown: a fault of the set-up.
    pub(crate) fn omitted(&self, contender: &str) -> Option<String> {
        let busy = self.mean(contender, |run| run.load_busy);
        let steal = self.mean(contender, |run| run.steal);
        if busy > LOAD_BUSY {
            return Some(format!("the load's core is {:.0} % busy", busy * 100.0));
        }
        (steal > STEAL).then(|| format!("the host took {:.1} % of the time", steal * 100.0))
    }

    /// Why the latency alone is not to be shown.
    pub(crate) fn omitted_latency(&self, contender: &str) -> Option<String> {
        let late = typical(self.runs_of(contender).map(|run| run.lateness.clone()), 0.99);
        let (late, p99) = (late?, self.quantile(contender, 0.99)?);
        (late > LATE * p99).then(|| format!("the generator is late: {late:.0} of {p99:.0} µs"))
    }

    /// Why no contender's CPU time is to be shown under this load.
    pub(crate) fn noisy_cpu(&self) -> Option<String> {
        let again = self.cpu_ratio(AGAIN, OURS)?.value;
        ((again - 1.0).abs() > AGAIN_CPU).then(|| format!("the A/A control has {again:.2} times the CPU time"))
    }

    /// Why no contender's latency is to be shown under this load.
    pub(crate) fn noisy_latency(&self) -> Option<String> {
        let again = self.quantile(AGAIN, 0.99)? / self.quantile(OURS, 0.99)?;
        ((again - 1.0).abs() > AGAIN_P99).then(|| format!("the A/A control has {again:.2} times the p99"))
    }

    /// Contenders whose CPU time or latency can be shown.
    pub(crate) fn survivors(&self) -> usize {
        let survives = |name: &&str| {
            self.omitted(name).is_none()
                && (self.noisy_cpu().is_none()
                    || self.noisy_latency().is_none() && self.omitted_latency(name).is_none())
        };
        self.contenders().iter().filter(|name| survives(name)).count()
    }
}

/// The median of a quantile over rounds, so that a round which the host disturbed does not decide; where a round has too few
/// times for it, the quantile of all rounds together.
fn typical(rounds: impl Iterator<Item = Histogram>, part: f64) -> Option<f64> {
    let rounds: Vec<Histogram> = rounds.collect();
    let each: Option<Vec<f64>> = rounds.iter().map(|round| round.quantile(part)).collect();
    match each {
        Some(each) => median(each),
        None => {
            let mut all = Histogram::default();
            rounds.iter().for_each(|round| all.add(round));
            all.quantile(part)
        }
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    match values.len().is_multiple_of(2) {
        true => Some((values[middle] + values[middle + 1]) / 2.0),
        false => Some(values[middle]),
    }
}

/// A figure of some rounds, and the interval that it has when rounds are drawn again and again from those there are.
pub(crate) fn bootstrap(rounds: usize, figure: impl Fn(&[usize]) -> Option<f64>) -> Option<Estimate> {
    const DRAWS: usize = 400;
    if rounds == 0 {
        return None;
    }
    let all: Vec<usize> = (0..rounds).collect();
    let value = figure(&all)?;
    let mut random = Random::new(7);
    let mut drawn: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            let some: Vec<usize> = all
                .iter()
                .map(|_| random.between(0, rounds as u64 - 1) as usize)
                .collect();
            figure(&some)
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    let at = |part: f64| drawn[((drawn.len() - 1) as f64 * part).round() as usize];
    Some(Estimate {
        value,
        low: at(0.025),
        high: at(0.975),
    })
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
            // Each round is slower than the one before, which ratios within a round do not see.
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
    fn ratios_are_paired_by_round() {
        let measured = measured(&[(REFERENCE, 0.4), (OURS, 0.1), (AGAIN, 0.1)]);
        let ratio = measured.cpu_ratio(OURS, REFERENCE).unwrap();
        for bound in [ratio.value, ratio.low, ratio.high] {
            assert!((bound - 0.25).abs() < 1e-9, "{ratio:?}");
        }
        let cpu = measured.cpu(OURS).unwrap();
        assert!(
            (cpu.value - 150.0).abs() < 1e-9 && cpu.low < cpu.value && cpu.value < cpu.high,
            "{cpu:?}"
        );
    }

    #[test]
    fn only_faults_of_the_set_up_omit_a_point() {
        let fine = measured(&[(DIRECT, 0.1), (OURS, 0.1), (AGAIN, 0.1)]);
        assert_eq!((fine.omitted(OURS), fine.omitted_latency(OURS)), (None, None));
        assert_eq!(
            (fine.noisy_cpu(), fine.noisy_latency(), fine.survivors()),
            (None, None, 3)
        );

        let mut busy = fine.clone();
        busy.runs.iter_mut().for_each(|run| run.load_busy = 0.8);
        assert_eq!(busy.omitted(OURS).as_deref(), Some("the load's core is 80 % busy"));

        let mut stolen = fine.clone();
        stolen.runs.iter_mut().for_each(|run| run.steal = 0.05);
        assert_eq!(stolen.omitted(OURS).as_deref(), Some("the host took 5.0 % of the time"));
        assert_eq!(stolen.survivors(), 0);

        let mut late = fine.clone();
        for run in &mut late.runs {
            (0..100).for_each(|_| run.lateness.record(Duration::from_millis(1)));
        }
        assert!(late.omitted_latency(OURS).is_some());

        let mut slow = fine.clone();
        slow.runs.iter_mut().for_each(|run| run.completed = 1_500);
        assert_eq!(slow.not_sustained(OURS), Some(0.75));
        assert_eq!(slow.omitted(OURS), None, "it stays in the table");

        assert!(measured(&[(OURS, 0.1), (AGAIN, 0.12)]).noisy_cpu().is_some());
    }

    #[test]
    fn added_latency_is_that_over_the_direct_connection() {
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
