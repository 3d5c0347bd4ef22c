//! Which call fails, when and how: decided by counting alone.

use crate::call::Call;

/// Which call of its kind fails, counted from 1 and by thread and program together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This one.
    Nth(u64),
    /// These, both ends included.
    Between(u64, u64),
    /// Every one.
    Always,
    /// None: it is only counted.
    Never,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// With this errno, as `libc` names it. The kernel does nothing.
    Errno(i32),
    /// It returns this value. The kernel does nothing.
    Returns(i64),
}

/// One kind of call, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(crate) call: Call,
    when: When,
    fault: Fault,
}

impl Rule {
    /// Such a call fails so at that time.
    #[must_use]
    pub fn new(call: Call, when: When, fault: Fault) -> Self {
        Self { call, when, fault }
    }

    /// Such a call is counted, and goes on as if nobody had looked.
    #[must_use]
    pub fn watch(call: Call) -> Self {
        Self::new(call, When::Never, Fault::Returns(0))
    }

    /// What becomes of the `number`th call of its kind.
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
    fn a_rule_holds_for_its_call_and_its_numbers_alone() {
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
