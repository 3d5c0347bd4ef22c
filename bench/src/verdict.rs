//! What a ratio shows: which of two contenders is better, or how much worse one of them may be.

use spliceway_load::Estimate;

/// Which of two contenders a ratio shows to be better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Better,
    Worse,
    /// The interval contains 1.00, so its end on the worse side is a bound.
    Undecided,
    /// The interval of the A/A control does not contain 1.00, so the run decides nothing.
    Unfair,
}

/// A contender relative to another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    pub(crate) ratio: Estimate,
    pub(crate) is_more_better: bool,
    /// The A/A control of the same figure.
    pub(crate) control: Option<Estimate>,
}

/// Returns the value as the pages print it. Verdicts are about printed values, so that readers can
/// check them.
fn printed(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Returns whether the printed interval contains 1.00.
pub(crate) fn contains_one(estimate: Estimate) -> bool {
    printed(estimate.low) <= 1.0 && printed(estimate.high) >= 1.0
}

impl Ratio {
    pub(crate) fn verdict(self) -> Verdict {
        if !self.control.is_none_or(contains_one) {
            return Verdict::Unfair;
        }
        if contains_one(self.ratio) {
            Verdict::Undecided
        } else if (self.ratio.value > 1.0) == self.is_more_better {
            Verdict::Better
        } else {
            Verdict::Worse
        }
    }

    /// Returns the answer, with its ratio and interval.
    pub(crate) fn answer(self) -> String {
        let figures = self.ratio.show(2);
        match self.verdict() {
            Verdict::Better => format!("better: {figures}"),
            Verdict::Worse => format!("worse: {figures}"),
            Verdict::Undecided => format!("at most {}: {figures}", self.bound()),
            Verdict::Unfair => format!("not decided (control): {figures}"),
        }
    }

    /// Returns the answer for a sentence about this other contender.
    pub(crate) fn spoken(self, other: &str) -> String {
        let ratio = self.ratio.value;
        match self.verdict() {
            Verdict::Better => format!("{ratio:.2} times that of {other} (better)"),
            Verdict::Worse => format!("{ratio:.2} times that of {other} (worse)"),
            Verdict::Undecided => format!("{ratio:.2} times that of {other} (at most {})", self.bound()),
            Verdict::Unfair => format!("{ratio:.2} times that of {other} (not decided, because the control differs)"),
        }
    }

    /// Returns whether the ratio alone, without its interval, is on the worse side by more than
    /// this fraction.
    pub(crate) fn is_worse_by(self, fraction: f64) -> bool {
        if self.is_more_better {
            self.ratio.value < 1.0 - fraction
        } else {
            self.ratio.value > 1.0 + fraction
        }
    }

    /// Returns the largest loss that the interval allows. A factor is clearer than a percentage of
    /// 100 or more.
    fn bound(self) -> String {
        let Estimate { low, high, .. } = self.ratio;
        let loss = if self.is_more_better {
            1.0 - printed(low)
        } else {
            printed(high) - 1.0
        };
        if loss < 0.995 {
            format!("{:.0} % worse", loss.max(0.0) * 100.0)
        } else {
            format!("{high:.1} times")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(value: f64, low: f64, high: f64) -> Estimate {
        Estimate { value, low, high }
    }

    fn ratio(value: f64, low: f64, high: f64) -> Ratio {
        Ratio {
            ratio: about(value, low, high),
            is_more_better: false,
            control: None,
        }
    }

    fn of_rate(ratio: Ratio) -> Ratio {
        Ratio {
            is_more_better: true,
            ..ratio
        }
    }

    #[test]
    fn a_row_has_an_answer_or_a_bound_on_the_loss() {
        let less = ratio(0.5, 0.4, 0.6);
        assert_eq!(less.answer(), "better: 0.50 [0.40, 0.60]");
        assert_eq!(of_rate(less).answer(), "worse: 0.50 [0.40, 0.60]");
        let more = ratio(1.5, 1.4, 1.6);
        assert_eq!(more.answer(), "worse: 1.50 [1.40, 1.60]");
        assert_eq!(of_rate(more).answer(), "better: 1.50 [1.40, 1.60]");
        let equal = ratio(1.0, 0.96, 1.079);
        assert_eq!(equal.answer(), "at most 8 % worse: 1.00 [0.96, 1.08]");
        assert_eq!(of_rate(equal).answer(), "at most 4 % worse: 1.00 [0.96, 1.08]");
        assert_eq!(ratio(1.1, 0.9, 2.32).answer(), "at most 2.3 times: 1.10 [0.90, 2.32]");
    }

    #[test]
    fn a_verdict_agrees_with_the_printed_interval() {
        assert_eq!(ratio(1.04, 1.004, 1.08).verdict(), Verdict::Undecided);
        assert_eq!(ratio(1.04, 1.006, 1.08).verdict(), Verdict::Worse);
    }

    #[test]
    fn a_control_without_1_decides_nothing() {
        let with = |control| Ratio {
            control: Some(control),
            ..ratio(0.5, 0.4, 0.6)
        };
        assert_eq!(with(about(1.1, 0.9, 1.3)).verdict(), Verdict::Better);
        assert_eq!(with(about(1.3, 1.1, 1.6)).verdict(), Verdict::Unfair);
        assert_eq!(
            with(about(0.8, 0.7, 0.9)).answer(),
            "not decided (control): 0.50 [0.40, 0.60]"
        );
    }
}
