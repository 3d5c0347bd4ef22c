//! A check, and what it found.

use std::io;

use serde::Serialize;

/// Checks that belong together.
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) checks: Vec<Check>,
}

/// One experiment, or one look at the machine.
pub(super) struct Check {
    /// Identifies the check in the JSON output and in the documentation.
    pub(super) name: &'static str,
    /// What the check is about, in a few words.
    pub(super) title: &'static str,
    /// Whether the answer of the report is no if this check differs.
    pub(super) decides: bool,
    /// Whether the check says nothing if splice moves no bytes at all.
    pub(super) needs_splice: bool,
    pub(super) run: Box<dyn FnOnce() -> io::Result<Finding>>,
}

impl Check {
    pub(super) fn new(
        name: &'static str,
        title: &'static str,
        run: impl FnOnce() -> io::Result<Finding> + 'static,
    ) -> Self {
        Self {
            name,
            title,
            decides: false,
            needs_splice: false,
            run: Box::new(run),
        }
    }

    /// A check on which the answer of the report depends.
    pub(super) fn decisive(mut self) -> Self {
        self.decides = true;
        self
    }

    /// A check that runs only if splice moves bytes.
    pub(super) fn after_splice(mut self) -> Self {
        self.needs_splice = true;
        self
    }
}

/// The result of a check, the best one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Ok,
    CannotTell,
    Differs,
}

/// What a check found.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// Empty if the check expects nothing.
    pub(super) expected: String,
    /// The observation, or the reason why there is none.
    pub(super) observed: String,
    /// What follows from it.
    pub(super) consequence: String,
    /// A command or a setting that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
    /// Whether the operator should know it, although nothing is wrong.
    #[serde(skip)]
    pub(super) is_remark: bool,
}

impl Finding {
    /// Compares an observation with what the design of the relay expects.
    pub(super) fn compared(expected: impl Into<String>, observed: impl Into<String>) -> Self {
        let (expected, observed) = (expected.into(), observed.into());
        let is_same = expected == observed;
        Self::judged(is_same, expected, observed)
    }

    pub(super) fn judged(is_ok: bool, expected: impl Into<String>, observed: impl Into<String>) -> Self {
        Self {
            verdict: if is_ok { Verdict::Ok } else { Verdict::Differs },
            expected: expected.into(),
            observed: observed.into(),
            consequence: String::new(),
            advice: None,
            is_remark: false,
        }
    }

    /// Tells a fact that is neither good nor bad.
    pub(super) fn info(observed: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self::judged(true, "", observed).so(consequence, "")
    }

    pub(super) fn unknown(reason: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::CannotTell,
            expected: String::new(),
            observed: reason.into(),
            consequence: String::new(),
            advice: None,
            is_remark: false,
        }
    }

    /// Returns whether a short report shows the finding.
    pub(super) fn needs_attention(&self) -> bool {
        self.verdict != Verdict::Ok || self.is_remark
    }

    /// Adds what follows if the check is as expected, and if it differs.
    pub(super) fn so(mut self, if_ok: impl Into<String>, if_differs: impl Into<String>) -> Self {
        self.consequence = match self.verdict {
            Verdict::Ok => if_ok.into(),
            Verdict::Differs => if_differs.into(),
            Verdict::CannotTell => String::new(),
        };
        self
    }

    /// Adds advice for a difference.
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        if self.verdict == Verdict::Differs {
            self.advice = Some(advice.into());
        }
        self
    }
}
