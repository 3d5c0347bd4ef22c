//! A figure of several contenders, round by round, and the table of it.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::contender::REFERENCE;
use crate::results::{Estimate, bootstrap, median};

/// One figure, of all contenders.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// "pgbench -S, 4 clients".
    pub(crate) title: String,
    /// "transactions/s".
    pub(crate) unit: String,
    pub(crate) decimals: usize,
    /// By contender, then by round. Ratios are to tokio, or to the first where it is not among them.
    pub(crate) rows: Vec<(String, Vec<f64>)>,
    /// What was not measured, and why not.
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
        bootstrap(values.len(), |rounds| {
            median(rounds.iter().map(|at| values[*at]).collect())
        })
    }

    /// One contender's figure in terms of another's, by rounds.
    pub(crate) fn ratio(&self, contender: &str, to: &str) -> Option<Estimate> {
        let ratios: Vec<f64> = self
            .of(contender)?
            .iter()
            .zip(self.of(to)?)
            .map(|(a, b)| a / b)
            .collect();
        bootstrap(ratios.len(), |rounds| {
            median(rounds.iter().map(|at| ratios[*at]).collect())
        })
    }

    /// As a table in Markdown.
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
