//! Rules that decide which call fails, when and how. Only counting decides.

use crate::call::Call;

/// Selects the calls of one kind that fail, by a number that starts at 1. All filtered threads and
/// programs share one count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The call with this number.
    Nth(u64),
    /// The calls from the first number to the second, inclusive.
    Between(u64, u64),
    /// Every call.
    Always,
    /// None. The calls are only counted.
    Never,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this errno, as `libc` names it. The kernel does not execute the call.
    Errno(i32),
    /// The call returns this value. The kernel does not execute the call.
    Returns(i64),
}

/// A kind of call, with the time and manner of its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(crate) call: Call,
    when: When,
    fault: Fault,
}

impl Rule {
    /// Makes a rule: calls of this kind fail with `fault` if `when` selects them.
    #[must_use]
    pub fn new(call: Call, when: When, fault: Fault) -> Self {
        Self { call, when, fault }
    }

    /// Makes a rule that only counts calls of this kind. The kernel executes them as usual.
    #[must_use]
    pub fn watch(call: Call) -> Self {
        Self::new(call, When::Never, Fault::Returns(0))
    }

    /// Returns the fault of the `number`th call of its kind, if there is one.
    pub(crate) fn on(&self, call: Call, number: u64) -> Option<Fault> {
        (self.call == call && self.when.holds(number)).then_some(self.fault)
    }
}

impl When {
    /// The first call.
    pub const FIRST: Self = Self::Nth(1);

    fn holds(self, number: u64) -> bool {
        match self {
            Self::Nth(wanted) => number == wanted,
            Self::Between(first, last) => (first..=last).contains(&number),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_applies_only_to_its_call_and_its_numbers() {
        let failing = |when| {
            let rule = Rule::new(Call::Pipe, when, Fault::Errno(libc::EMFILE));
            let numbers: Vec<u64> = (1..=6)
                .filter(|number| rule.on(Call::Pipe, *number).is_some())
                .collect();
            assert_eq!(rule.on(Call::Send, 2), None);
            numbers
        };
        assert_eq!(failing(When::FIRST), [1]);
        assert_eq!(failing(When::Nth(3)), [3]);
        assert_eq!(failing(When::Between(2, 4)), [2, 3, 4]);
        assert_eq!(failing(When::Always), [1, 2, 3, 4, 5, 6]);
        assert_eq!(failing(When::Never), [0; 0]);
    }
}
