//! What is measured apart from the relays: two things against each other, in a table of their own.

use serde::{Deserialize, Serialize};

use super::json::{Quantity, six_digits};
use super::markdown::{median_and_spread, table, title};
use super::{Row, median, paired};
use crate::scenario::Figure;

/// What came of such a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Apart {
    /// Names it in files and on the command line: `pool`.
    pub(crate) id: String,
    /// Names it for readers.
    pub(crate) title: String,
    pub(crate) rounds: usize,
    pub(crate) figures: Vec<Quantity>,
    /// The ratio is that of the second to the first, round by round.
    pub(crate) rows: [Row; 2],
}

impl Apart {
    /// As if nothing had been measured yet.
    pub(crate) fn new(id: &str, title: String, rounds: usize, figures: &[Figure], names: [&str; 2]) -> Self {
        Self {
            id: id.into(),
            title,
            rounds,
            figures: figures.iter().map(Quantity::from).collect(),
            rows: names.map(|name| Row {
                name: name.into(),
                figures: vec![Vec::with_capacity(rounds); figures.len()],
            }),
        }
    }

    /// A sample of a row's figure.
    pub(crate) fn add(&mut self, row: usize, figure: usize, sample: f64) {
        self.rows[row].figures[figure].push(six_digits(sample));
    }

    pub(super) fn block(&self) -> String {
        let mut text = format!(
            "**{}**: median of {} rounds (lowest–highest)\n\n",
            self.title, self.rounds
        );
        let titles: Vec<String> = self.figures.iter().map(title).collect();
        let mut head = vec![""];
        head.extend(titles.iter().map(String::as_str));
        let mut rows: Vec<Vec<String>> = self.rows.iter().map(|row| self.cells(row)).collect();
        rows.push(self.ratios());
        text += &table(&head, &rows);
        text
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let mut cells = vec![row.name.clone()];
        let samples = row.figures.iter().zip(&self.figures);
        cells.extend(samples.map(|(samples, figure)| median_and_spread(samples, figure.decimals)));
        cells
    }

    fn ratios(&self) -> Vec<String> {
        let [first, second] = &self.rows;
        let mut cells = vec!["ratio".into()];
        for (over, under) in second.figures.iter().zip(&first.figures) {
            let ratios = paired(over, under);
            let decimals = if median(ratios.clone()) < 10.0 { 2 } else { 0 };
            cells.push(median_and_spread(&ratios, decimals));
        }
        cells
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Of a thing that takes 2 and one that takes 100.
    pub(in crate::report) fn apart() -> Apart {
        const FIGURES: &[Figure] = &[Figure::lower("serial", "ns", 1)];
        let mut apart = Apart::new("pool", "a thing and another".into(), 3, FIGURES, ["one", "other"]);
        for sample in [1.0, 2.0, 4.0] {
            apart.add(0, 0, sample);
            apart.add(1, 0, 100.0);
        }
        apart
    }

    #[test]
    fn the_table_ends_with_the_ratio_round_by_round() {
        let expected = "**a thing and another**: median of 3 rounds (lowest–highest)\n\n\
                        |  | serial, ns |\n|---|---|\n| one | 2.0 (1.0–4.0) |\n| other | 100.0 (100.0–100.0) |\n\
                        | ratio | 50 (25–100) |\n";
        assert_eq!(apart().block(), expected);
    }
}
