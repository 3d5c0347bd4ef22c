//! What is made of the samples: tables in the terminal, a file of all results, and the documents that are written from it.

pub(crate) mod apart;
pub(crate) mod environment;
pub(crate) mod json;
pub(crate) mod markdown;
mod plots;
mod regret;
mod terminal;

use std::fs;
use std::io;
use std::path::Path;

pub(crate) use terminal::{Row, heading, print, print_apart, print_small_differences, print_table};

use json::Results;

/// The results, below the folder of the documents.
pub(crate) const RESULTS: &str = "benchmarks/results.json";
const DOCUMENT: &str = "benchmarks.md";
const PLOTS: &str = "benchmarks";

/// Writes the documents from the results: the generated blocks of `benchmarks.md`, and the plots beside the results.
pub(crate) fn write_documents(results: &Results, out: &Path) -> io::Result<()> {
    let path = out.join(DOCUMENT);
    let document = match fs::read_to_string(&path) {
        Ok(document) => document,
        Err(error) if error.kind() == io::ErrorKind::NotFound => markdown::empty_document(results),
        Err(error) => return Err(error),
    };
    for name in markdown::unmentioned(&document, results) {
        eprintln!("{}: no block has the results of {name}", path.display());
    }
    let written = markdown::fill_in(&document, results)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    fs::write(&path, written)?;
    plots::draw_all(results, &out.join(PLOTS))
}

/// Ratios round by round, as the machine's speed drifts between rounds.
fn paired(samples: &[f64], others: &[f64]) -> Vec<f64> {
    samples
        .iter()
        .zip(others)
        .map(|(sample, other)| sample / other)
        .collect()
}

fn spread(samples: &[f64]) -> (f64, f64) {
    let both = |(low, high): (f64, f64), x: &f64| (low.min(*x), high.max(*x));
    samples.iter().fold((f64::MAX, f64::MIN), both)
}

/// The interval that holds the median of what was sampled, at 19 times of 20 or more: as many samples are left out on either side as
/// fewer tosses of a coin show heads at no more than one time of 40. Below six samples that is none, and the interval is too short.
fn median_interval(samples: &[f64]) -> (f64, f64) {
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    let count = samples.len();
    let (mut left_out, mut chance, mut sum) = (0, 0.5_f64.powi(count as i32), 0.0);
    while left_out < count / 2 && sum + chance <= 1.0 / 40.0 {
        sum += chance;
        chance *= (count - left_out) as f64 / (left_out + 1) as f64;
        left_out += 1;
    }
    let outermost = left_out.saturating_sub(1);
    (samples[outermost], samples[count - 1 - outermost])
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    if samples.len() % 2 == 1 {
        samples[middle]
    } else {
        (samples[middle - 1] + samples[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::json::{Measured, Quantity, Samples};
    use super::*;
    use crate::arms::Role;
    use crate::scenario::Better;

    /// A scenario as if it had been measured: its figures, and of each arm the samples by figure.
    pub(super) fn scenario(id: &str, figures: &[(&str, Better)], rows: &[(&str, Role, &[&[f64]])]) -> Measured {
        let quantity = |(name, better): &(&str, Better)| Quantity {
            name: (*name).into(),
            unit: "units".into(),
            decimals: 2,
            better: *better,
        };
        let samples = |(arm, role, samples): &(&str, Role, &[&[f64]])| Samples {
            arm: (*arm).into(),
            role: *role,
            samples: samples.iter().map(|samples| samples.to_vec()).collect(),
        };
        Measured {
            id: id.into(),
            title: format!("the scenario, {id}"),
            rounds: 1,
            figures: figures.iter().map(quantity).collect(),
            rows: rows.iter().map(samples).collect(),
            skipped: Vec::new(),
        }
    }

    #[test]
    fn the_interval_of_a_median_leaves_out_what_tables_of_the_sign_test_say() {
        for (count, outermost) in [(1, 0), (5, 0), (6, 0), (9, 1), (15, 3), (21, 5), (40, 13)] {
            let samples: Vec<f64> = (0..count).rev().map(f64::from).collect();
            let expected = (f64::from(outermost), f64::from(count - 1 - outermost));
            assert_eq!(median_interval(&samples), expected, "of {count}");
        }
    }
}
