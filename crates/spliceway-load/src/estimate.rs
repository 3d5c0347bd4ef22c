//! Figures over interleaved rounds, and how certain they are.

use serde::Serialize;

use crate::{Histogram, Random};

/// A figure with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The figure over all rounds.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// Returns the value, and its interval in brackets.
    #[must_use]
    pub fn show(self, decimals: usize) -> String {
        let Self { value, low, high } = self;
        format!("{value:.decimals$} [{low:.decimals$}, {high:.decimals$}]")
    }
}

/// Returns the mean of the lower half of the rounds. The host's other guests can only add to CPU
/// time and latency. On a shared host, they disturb some of the rounds.
pub fn lower_half(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.truncate(values.len().div_ceil(2));
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the mean of the upper half of the rounds, for rates. See [`lower_half`].
pub fn upper_half(values: impl Iterator<Item = f64>) -> Option<f64> {
    lower_half(values.map(|value| -value)).map(|value| -value)
}

/// Returns a quantile over the rounds, in microseconds: the mean over the undisturbed rounds. If a
/// round has too few durations for the quantile, returns the quantile of all rounds together.
pub fn typical<'a>(rounds: impl Iterator<Item = &'a Histogram>, part: f64) -> Option<f64> {
    let rounds: Vec<&Histogram> = rounds.collect();
    let each: Option<Vec<f64>> = rounds.iter().map(|round| round.quantile(part)).collect();
    match each {
        Some(each) => lower_half(each.into_iter()),
        None => {
            let mut all = Histogram::default();
            rounds.iter().for_each(|round| all.add(round));
            all.quantile(part)
        }
    }
}

/// Returns a figure over rounds, with a 95 % interval from the bootstrap. `figure` gets the indices
/// of the rounds to include. A ratio that uses the same indices for both of its sides compares
/// rounds in pairs.
pub fn bootstrap(rounds: usize, figure: impl Fn(&[usize]) -> Option<f64>) -> Option<Estimate> {
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
    let last = drawn.len().checked_sub(1)?;
    let at = |part: f64| drawn[(last as f64 * part).round() as usize];
    Some(Estimate {
        value,
        low: at(0.025),
        high: at(0.975),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_of_paired_rounds_is_exact_if_only_the_rounds_differ() {
        let (ours, theirs) = ([1.0, 5.0, 2.0, 9.0], [2.0, 10.0, 4.0, 18.0]);
        let ratio = bootstrap(4, |rounds| {
            let of = |values: &[f64]| lower_half(rounds.iter().map(|at| values[*at]));
            Some(of(&ours)? / of(&theirs)?)
        })
        .unwrap();
        assert_eq!((ratio.value, ratio.low, ratio.high), (0.5, 0.5, 0.5));
        assert_eq!(ratio.show(2), "0.50 [0.50, 0.50]");
    }

    #[test]
    fn the_undisturbed_half_of_the_rounds_counts() {
        let rounds = [1.0, 3.0, 50.0, 70.0];
        assert_eq!(lower_half(rounds.into_iter()), Some(2.0));
        assert_eq!(upper_half(rounds.into_iter()), Some(60.0));
        assert_eq!(lower_half([].into_iter()), None);
        assert_eq!(bootstrap(0, |_| Some(1.0)), None);
        assert_eq!(bootstrap(3, |_| None), None);
    }
}
