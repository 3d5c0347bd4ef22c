//! The number of rounds: a row has rounds until its intervals are narrow, or until its budget is
//! used.
//!
//! The rule looks at the widths of intervals, and not at which contender is ahead. So it favors no
//! result. It looks at the control's value too, which compares spliceway with itself.

use spliceway_load::Estimate;

/// When a row has enough rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Rounds of every row, with all contenders. The intervals of fewer rounds say little about
    /// their own widths.
    pub(crate) least: usize,
    /// The budget of a row. Rounds beyond `least` have only the contenders that the row compares.
    pub(crate) most: usize,
    /// The half-width of an interval that is narrow enough, as a fraction of the ratio.
    pub(crate) target: f64,
    /// How often a run is made until others do not disturb it.
    pub(crate) attempts: usize,
}

/// The attempts of a measurement.
pub(crate) const ATTEMPTS: usize = 3;

/// A percentile varies more than CPU time, and a smaller difference does not change a decision.
pub(crate) const LATENCY_FACTOR: f64 = 3.0;

impl Rule {
    /// Exactly this many rounds.
    pub(crate) fn fixed(rounds: usize) -> Self {
        Self {
            least: rounds,
            most: rounds,
            target: 0.0,
            attempts: ATTEMPTS,
        }
    }

    /// Halves the rounds, for a load that takes several seconds.
    pub(crate) fn halved(self) -> Self {
        Self {
            least: self.least.div_ceil(2),
            most: self.most.div_ceil(2),
            ..self
        }
    }

    /// Returns whether these ratios are narrow enough. The control is spliceway's second run
    /// relative to its first one.
    pub(crate) fn is_narrow(&self, ratios: &[Estimate], control: Option<Estimate>, factor: f64) -> bool {
        let is_narrow = |ratio: &Estimate| ratio.half_width() <= self.target * factor;
        let is_equal = control.is_none_or(|control| is_narrow(&control) && control.contains(1.0));
        is_equal && !ratios.is_empty() && ratios.iter().all(is_narrow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spliceway_load::{Random, bootstrap, lower_half};

    const RULE: Rule = Rule {
        least: 6,
        most: 60,
        target: 0.03,
        attempts: 1,
    };

    fn about(value: f64, half: f64) -> Estimate {
        Estimate {
            value,
            low: value - half,
            high: value + half,
        }
    }

    #[test]
    fn a_row_ends_when_both_intervals_are_narrow_and_the_control_is_1() {
        let narrow = |ratio, control| RULE.is_narrow(&[ratio], Some(control), 1.0);
        assert!(narrow(about(0.5, 0.014), about(1.01, 0.02)));
        assert!(!narrow(about(0.5, 0.016), about(1.01, 0.02)), "the ratio is wide");
        assert!(!narrow(about(0.5, 0.014), about(1.01, 0.04)), "the control is wide");
        assert!(!narrow(about(0.5, 0.014), about(1.03, 0.02)), "the control differs");
        assert!(RULE.is_narrow(&[about(0.5, 0.04)], Some(about(1.0, 0.08)), LATENCY_FACTOR));
        assert!(!RULE.is_narrow(&[], None, 1.0), "nothing was compared");
    }

    #[test]
    fn a_narrow_interval_ends_a_row_on_either_side_of_1() {
        for value in [0.5, 1.0, 2.0] {
            assert!(RULE.is_narrow(&[about(value, value * 0.029)], None, 1.0));
            assert!(!RULE.is_narrow(&[about(value, value * 0.031)], None, 1.0));
        }
    }

    /// Draws rounds as the benchmark does: each has its own speed, and some are disturbed. Returns
    /// the ratio when the rule ends, for contenders that cost equally much.
    fn sampled(rule: Rule, random: &mut Random) -> (Estimate, usize) {
        let (mut own, mut others) = (Vec::new(), Vec::new());
        loop {
            let round = 1.0 + 0.2 * random.fraction();
            for costs in [&mut own, &mut others] {
                let noise = (0..4).map(|_| random.fraction() - 0.5).sum::<f64>();
                let slow = if random.fraction() < 0.2 {
                    random.fraction()
                } else {
                    0.0
                };
                costs.push(round * (1.0 + 0.08 * noise + slow));
            }
            if own.len() < rule.least {
                continue;
            }
            let of = |costs: &[f64], rounds: &[usize]| lower_half(rounds.iter().map(|at| costs[*at]));
            let ratio = bootstrap(own.len(), |rounds| Some(of(&own, rounds)? / of(&others, rounds)?));
            let ratio = ratio.expect("there are rounds").for_rounds(own.len());
            if own.len() == rule.most || rule.is_narrow(&[ratio], None, 1.0) {
                return (ratio, own.len());
            }
        }
    }

    #[test]
    fn intervals_contain_the_true_ratio_although_the_rule_looks_at_them() {
        const ROWS: usize = 100;
        let rule = Rule {
            most: 30,
            target: 0.05,
            ..RULE
        };
        let mut random = Random::new(1);
        let rows: Vec<(Estimate, usize)> = (0..ROWS).map(|_| sampled(rule, &mut random)).collect();
        let right = rows.iter().filter(|(ratio, _)| ratio.contains(1.0)).count();
        assert!(right >= ROWS * 9 / 10, "{right} of {ROWS}");
        let mean = rows.iter().map(|(ratio, _)| ratio.value.ln()).sum::<f64>() / ROWS as f64;
        assert!(mean.abs() < 0.01, "it favors one contender by {mean}");
        let early = rows.iter().filter(|(_, rounds)| *rounds < rule.most).count();
        assert!(early > ROWS / 2, "only {early} rows ended before the budget");
    }
}
