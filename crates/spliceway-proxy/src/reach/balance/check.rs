//! Decides from checks whether a backend is up. This module does no I/O.
//!
//! ```text
//!   Up ── `fall` failed checks in a row ──▶ Down
//!   ▲                                         │
//!   └──── `rise` good checks in a row ────────┘
//! ```
//!
//! The first check of a backend decides at once.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::probe::Probe;

/// How backends are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckSettings {
    pub(crate) probe: Probe,
    /// The time between two checks of a backend, and the time limit for a check.
    pub(crate) interval: Duration,
    /// The number of good checks after which a backend is up.
    pub(crate) rise: u32,
    /// The number of failed checks after which a backend is down.
    pub(crate) fall: u32,
    /// What a target receives before anything else.
    pub(crate) introduction: Vec<u8>,
}

/// What the checks of a backend have shown.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Checked {
    /// Whether the backend is up. `None` before its first check.
    is_up: Option<bool>,
    /// The checks in a row that contradict the state.
    contrary: u32,
}

impl Checked {
    pub(super) fn is_down(&self) -> bool {
        self.is_up == Some(false)
    }

    /// Takes over the results of another process. Those of this process are newer.
    pub(super) fn take_over(&mut self, earlier: Self) {
        if self.is_up.is_none() && earlier.is_up.is_some() {
            *self = earlier;
        }
    }

    /// Records the result of a check. Returns whether the backend is up, if that has changed.
    pub(super) fn record(&mut self, is_good: bool, settings: &CheckSettings) -> Option<bool> {
        if self.is_up == Some(is_good) {
            self.contrary = 0;
            return None;
        }
        let needed = match self.is_up {
            None => 1,
            Some(true) => settings.fall,
            Some(false) => settings.rise,
        };
        self.contrary = self.contrary.saturating_add(1);
        if self.contrary < needed {
            return None;
        }
        let was_unknown = self.is_up.is_none();
        (self.is_up, self.contrary) = (Some(is_good), 0);
        // Nobody was told that an unknown backend was not up.
        (!(was_unknown && is_good)).then_some(is_good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: CheckSettings = CheckSettings {
        probe: Probe::Connect,
        interval: Duration::from_secs(2),
        rise: 2,
        fall: 3,
        introduction: Vec::new(),
    };

    #[test]
    fn a_backend_falls_and_rises_after_checks_in_a_row() {
        for (checks, expected) in [
            // The first check decides.
            ("+", "u"),
            ("-", "D"),
            // Three bad ones in a row.
            ("+---", "uuuD"),
            ("+--+--+---", "uuuuuuuuuD"),
            // Two good ones in a row.
            ("-+-+-++", "DdddddU"),
        ] {
            let mut checked = Checked::default();
            let state = |check| {
                let changed = checked.record(check == '+', &SETTINGS);
                match (changed, checked.is_down()) {
                    (Some(true), false) => 'U',
                    (None, false) => 'u',
                    (Some(false), true) => 'D',
                    (None, true) => 'd',
                    _ => '?',
                }
            };
            assert_eq!(checks.chars().map(state).collect::<String>(), expected, "{checks}");
        }
    }
}
