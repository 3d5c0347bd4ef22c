//! One figure for several contenders, by rounds, and its table.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use spliceway_load::{Estimate, bootstrap, lower_half, upper_half};

use crate::contender::{AGAIN, OURS, REFERENCE};
use crate::results::AGAIN_CPU;

/// One figure for all contenders.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// For example, "pgbench -S, 4 clients".
    pub(crate) title: String,
    /// For example, "transactions/s".
    pub(crate) unit: String,
    pub(crate) decimals: usize,
    /// By contender, then by round.
    pub(crate) rows: Vec<(String, Vec<f64>)>,
    /// Contenders that were not measured, and the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

impl Figures {
    pub(crate) fn new(title: impl Into<String>, unit: &str, decimals: usize) -> Self {
        Self {
            title: title.into(),
            unit: unit.into(),
            decimals,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, contender: &str, value: f64) {
        match self.rows.iter_mut().find(|(name, _)| name == contender) {
            Some((_, values)) => values.push(value),
            None => self.rows.push((contender.into(), vec![value])),
        }
    }

    pub(crate) fn skip(&mut self, contender: &str, why: String) {
        if self.skipped.iter().all(|(name, _)| name != contender) {
            self.skipped.push((contender.into(), why));
        }
    }

    pub(crate) fn of(&self, contender: &str) -> Option<&[f64]> {
        let row = self.rows.iter().find(|(name, _)| name == contender);
        row.map(|(_, values)| values.as_slice())
    }

    pub(crate) fn estimate(&self, contender: &str) -> Option<Estimate> {
        let values = self.of(contender)?;
        bootstrap(values.len(), |rounds| self.undisturbed(values, rounds))
    }

    /// Returns one contender's figure relative to another contender's.
    pub(crate) fn ratio(&self, contender: &str, to: &str) -> Option<Estimate> {
        let (own, others) = (self.of(contender)?, self.of(to)?);
        bootstrap(own.len().min(others.len()), |rounds| {
            Some(self.undisturbed(own, rounds)? / self.undisturbed(others, rounds)?)
        })
    }

    /// Returns the mean of the better half of these rounds.
    fn undisturbed(&self, values: &[f64], rounds: &[usize]) -> Option<f64> {
        let values = rounds.iter().map(|at| values[*at]);
        // For rates, more is better.
        match self.unit.ends_with("/s") {
            true => upper_half(values),
            false => lower_half(values),
        }
    }

    /// Returns the reason why the figure cannot be shown for any contender, if there is one.
    pub(crate) fn noisy(&self) -> Option<String> {
        let again = self.ratio(AGAIN, OURS)?.value;
        ((again - 1.0).abs() > AGAIN_CPU).then(|| format!("the A/A control has {again:.2} times the figure"))
    }

    /// Returns a Markdown table. Ratios are relative to tokio, or to the first contender if the
    /// table does not include tokio.
    pub(crate) fn table(&self) -> String {
        let names = || self.rows.iter().map(|(name, _)| name.as_str());
        let reference = names()
            .find(|name| *name == REFERENCE)
            .or(names().next())
            .unwrap_or_default();
        let mut table = format!(
            "\n**{}**\n\n| contender | {} | ratio to {reference} |\n|---|---|---|\n",
            self.title, self.unit
        );
        for (name, _) in &self.rows {
            let cell = |estimate: Option<Estimate>, decimals| {
                estimate
                    .filter(|one| one.value.is_finite())
                    .map_or("–".into(), |one| one.show(decimals))
            };
            let (own, ratio) = (self.estimate(name), self.ratio(name, reference));
            let _ = writeln!(table, "| {name} | {} | {} |", cell(own, self.decimals), cell(ratio, 2));
        }
        for (name, why) in &self.skipped {
            let _ = writeln!(table, "| {name} | – | omitted: {why} |");
        }
        table
    }
}
