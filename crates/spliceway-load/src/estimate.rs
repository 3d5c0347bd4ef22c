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

    /// Widens the interval of a ratio over a few rounds. The bootstrap of a few rounds is too
    /// narrow, by about the factor of Student's distribution (Hesterberg 2015, *What teachers
    /// should know about the bootstrap*).
    #[must_use]
    pub fn for_rounds(self, rounds: usize) -> Self {
        let freedom = rounds.saturating_sub(1).max(1) as f64;
        // The quantile at 97.5 % relative to the normal distribution (Abramowitz and Stegun,
        // 26.7.5).
        let student = 1.0 + 1.21 / freedom + 1.44 / freedom.powi(2);
        let stretch = student * (rounds as f64 / freedom).sqrt();
        let stretched = |end: f64| self.value * (end / self.value).powf(stretch);
        Self {
            low: stretched(self.low),
            high: stretched(self.high),
            ..self
        }
    }

    /// Widens the interval of a ratio by the difference between two runs of the same relay, which
    /// the rounds do not show. `control` is the ratio of these two runs.
    #[must_use]
    pub fn widened_by(self, control: f64) -> Self {
        let factor = control.max(1.0 / control);
        Self {
            low: self.low / factor,
            high: self.high * factor,
            ..self
        }
    }

    /// Returns half of the interval's width, as a fraction of the value.
    #[must_use]
    pub fn half_width(self) -> f64 {
        (self.high - self.low) / 2.0 / self.value
    }

    /// Returns whether the interval contains a value.
    #[must_use]
    pub fn contains(self, value: f64) -> bool {
        self.low <= value && value <= self.high
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
    fn an_interval_over_few_rounds_is_wider() {
        let ratio = Estimate {
            value: 0.5,
            low: 0.4,
            high: 0.6,
        };
        let [few, many] = [3, 100].map(|rounds| ratio.for_rounds(rounds));
        assert!(few.low < many.low && many.low < ratio.low, "{few:?}, {many:?}");
        assert!(few.high > 0.75 && many.high < 0.61, "{few:?}, {many:?}");
    }

    #[test]
    fn a_control_widens_an_interval_whichever_of_its_runs_is_slower() {
        let ratio = Estimate {
            value: 0.5,
            low: 0.4,
            high: 0.6,
        };
        for control in [1.25, 0.8] {
            let wide = ratio.widened_by(control);
            assert!(
                (wide.low - 0.32).abs() < 1e-9 && (wide.high - 0.75).abs() < 1e-9,
                "{wide:?}"
            );
        }
        assert_eq!(ratio.widened_by(1.0), ratio);
        assert!((ratio.half_width() - 0.2).abs() < 1e-9);
        assert!(ratio.contains(0.6) && !ratio.contains(1.0));
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
