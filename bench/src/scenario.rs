//! What is measured: a scenario is one kind of load, run through every relay in turn, round after round.

use std::io;

use serde::{Deserialize, Serialize};

use crate::arms::Arm;
use crate::machine;

/// A quantity that a scenario measures of every relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// As the head of a column: "CPU", "p99".
    pub(crate) name: &'static str,
    /// Its unit: "s/GiB", "µs", "GiB/s".
    pub(crate) unit: &'static str,
    /// To print.
    pub(crate) decimals: usize,
    pub(crate) better: Better,
}

/// Which way a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Lower,
    Higher,
}

impl Figure {
    pub(crate) const fn lower(name: &'static str, unit: &'static str, decimals: usize) -> Self {
        Self {
            name,
            unit,
            decimals,
            better: Better::Lower,
        }
    }

    pub(crate) const fn higher(name: &'static str, unit: &'static str, decimals: usize) -> Self {
        Self {
            name,
            unit,
            decimals,
            better: Better::Higher,
        }
    }
}

/// One kind of load.
pub(crate) trait Scenario {
    /// Names it in files: `bulk-64`.
    fn id(&self) -> String;

    /// Names it for readers: "bulk, 64 flows, 2 GiB".
    fn title(&self) -> String;

    fn figures(&self) -> &'static [Figure];

    /// How many of so many rounds are worth their time.
    fn rounds(&self, asked: usize) -> usize {
        asked
    }

    /// A figure each, of one run. An error is a run that did not work: bytes missing, a relay that did not start.
    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>>;
}

/// What came of a scenario.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) figures: &'static [Figure],
    pub(crate) rounds: usize,
    pub(crate) rows: Vec<Row>,
    /// What was not measured, and why not.
    pub(crate) skipped: Vec<(Arm, String)>,
}

/// What one relay showed.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) arm: Arm,
    /// By figure, then by round.
    pub(crate) samples: Vec<Vec<f64>>,
}

/// Measures every arm once a round. Every other round goes backwards, so that what drifts falls on all. An arm that is not there,
/// or that fails, is skipped from then on and said to be.
pub(crate) fn run(scenario: &dyn Scenario, arms: &[Arm], rounds: usize) -> io::Result<Table> {
    match arms.iter().any(|arm| arm.shares_cores()) {
        true => machine::use_all_cores()?,
        false => machine::pin_to(machine::LOAD_CORE)?,
    }
    let (figures, rounds) = (scenario.figures(), scenario.rounds(rounds));
    let mut table = Table {
        id: scenario.id(),
        title: scenario.title(),
        figures,
        rounds,
        rows: Vec::new(),
        skipped: Vec::new(),
    };
    for arm in arms {
        match arm.missing() {
            None => table.rows.push(Row {
                arm: *arm,
                samples: vec![Vec::with_capacity(rounds); figures.len()],
            }),
            Some(why) => table.skipped.push((*arm, why)),
        }
    }
    for round in 0..rounds {
        let mut order: Vec<Arm> = table.rows.iter().map(|row| row.arm).collect();
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        for arm in order {
            match scenario.measure(arm) {
                Ok(measured) => table.add(arm, &measured),
                Err(error) => table.skip(arm, error.to_string()),
            }
        }
    }
    Ok(table)
}

impl Table {
    fn add(&mut self, arm: Arm, measured: &[f64]) {
        assert_eq!(measured.len(), self.figures.len(), "a value for every figure");
        let row = self
            .rows
            .iter_mut()
            .find(|row| row.arm == arm)
            .expect("measured arms have rows");
        for (samples, value) in row.samples.iter_mut().zip(measured) {
            samples.push(*value);
        }
    }

    fn skip(&mut self, arm: Arm, why: String) {
        self.rows.retain(|row| row.arm != arm);
        self.skipped.push((arm, why));
    }
}
