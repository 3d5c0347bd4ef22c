//! One figure for several contenders, by rounds, and its table.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use spliceway_load::{Estimate, bootstrap, lower_half, upper_half};

use crate::contender::{AGAIN, OURS, REFERENCE, is_peer};
use crate::environment::Origin;
use crate::page;
use crate::results::best;

/// One figure for all contenders.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// For example, "pgbench -S, 4 clients".
    pub(crate) title: String,
    /// For example, "transactions/s".
    pub(crate) unit: String,
    pub(crate) decimals: usize,
    #[serde(default)]
    pub(crate) origin: Origin,
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

    /// Returns one contender's figure relative to another contender's, over rounds that had both.
    /// The interval allows for the number of rounds.
    pub(crate) fn sampled(&self, contender: &str, to: &str) -> Option<Estimate> {
        let (own, others) = (self.of(contender)?, self.of(to)?);
        let rounds = own.len().min(others.len());
        let ratio = bootstrap(rounds, |rounds| {
            let ratio = self.undisturbed(own, rounds)? / self.undisturbed(others, rounds)?;
            ratio.is_finite().then_some(ratio)
        })?;
        Some(ratio.for_rounds(rounds))
    }

    /// Returns the A/A control relative to spliceway.
    pub(crate) fn control(&self) -> Option<Estimate> {
        self.sampled(AGAIN, OURS)
    }

    /// Returns one contender's figure relative to another contender's. The interval allows for the
    /// number of rounds and for the difference of the A/A control.
    pub(crate) fn ratio(&self, contender: &str, to: &str) -> Option<Estimate> {
        let control = self.control().map_or(1.0, |control| control.value);
        let ratio = self.sampled(contender, to)?;
        Some(if contender == to {
            ratio
        } else {
            ratio.widened_by(control)
        })
    }

    pub(crate) fn is_more_better(&self) -> bool {
        self.unit.ends_with("/s")
    }

    /// Returns the relays that users may choose instead of spliceway, with their figures from the
    /// rounds in which every contender ran.
    pub(crate) fn peers(&self) -> Vec<(&str, f64)> {
        let failed = |name: &String| self.skipped.iter().any(|(one, _)| one == name);
        let peers = self.rows.iter().filter(|(name, _)| is_peer(name) && !failed(name));
        let full = peers.clone().map(|(_, values)| values.len()).min().unwrap_or(0);
        let all: Vec<usize> = (0..full).collect();
        peers
            .filter_map(|(name, values)| Some((name.as_str(), self.undisturbed(values, &all)?)))
            .collect()
    }

    /// Returns the best of the [peers](Self::peers).
    pub(crate) fn best_peer(&self) -> Option<&str> {
        best(&self.peers(), self.is_more_better())
    }

    /// Returns the mean of the better half of these rounds.
    fn undisturbed(&self, values: &[f64], rounds: &[usize]) -> Option<f64> {
        let values = rounds.iter().map(|at| values[*at]);
        // For rates, more is better.
        match self.is_more_better() {
            true => upper_half(values),
            false => lower_half(values),
        }
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
        if let Some(control) = self.control() {
            let _ = writeln!(table, "\nA/A control: {}.", page::control(control));
        }
        table
    }
}
