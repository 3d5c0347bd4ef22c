//! Why a hand-over does not continue.

use std::time::Duration;

use super::message::ToOld;
use crate::kit::harmless::reason;

/// Why the new process does not do what the old one asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It says that it does not take over.
    Refused(String),
    /// It has closed its socket, because it ends.
    Closed,
    /// It has not answered in this time.
    Late(Duration),
    /// Its answer makes no sense, or the socket does not work.
    Wrong(String),
    /// This process gives up the upgrade.
    GivenUp,
}

/// How a hand-over has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The new process has ended.
    Ended,
    /// This process has given up the upgrade. The new process has not ended yet.
    GivenUp,
}

impl Trouble {
    pub(super) fn unexpected(answer: &ToOld) -> Self {
        Self::Wrong(reason(&format!("an unexpected answer: {answer:?}")))
    }

    /// Returns the reason that the operator reads. `step` says what did not happen, and `ended` how
    /// the process ended.
    pub(super) fn describe(self, step: &str, ended: &str) -> String {
        match self {
            Self::Refused(why) => why,
            Self::Closed => format!("{step}: {ended}"),
            Self::Late(time) => format!(
                "{step}: no answer within {} s, so this process has ended it",
                time.as_secs()
            ),
            Self::Wrong(what) => format!("{step}: {what}. So this process has ended it"),
            Self::GivenUp => format!("{step}: the upgrade was given up"),
        }
    }
}
