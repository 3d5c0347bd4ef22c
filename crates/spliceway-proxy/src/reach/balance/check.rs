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
#[derive(Debug, Default)]
pub(super) struct Checked {
    state: State,
    /// The checks in a row that contradict the state.
    contrary: u32,
}

/// What the checks of a backend have shown, for another process.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HandedOverChecks {
    /// Whether the backend is up. `None` before its first check.
    is_up: Option<bool>,
    contrary: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There was no check yet.
    #[default]
    Unknown,
    Up,
    Down,
}

impl Checked {
    pub(super) fn is_down(&self) -> bool {
        self.state == State::Down
    }

    pub(super) fn to_hand_over(&self) -> HandedOverChecks {
        HandedOverChecks {
            is_up: match self.state {
                State::Unknown => None,
                State::Up => Some(true),
                State::Down => Some(false),
            },
            contrary: self.contrary,
        }
    }

    /// Takes over the results of another process. Those of this process are newer.
    pub(super) fn take_over(&mut self, earlier: HandedOverChecks) {
        if let (State::Unknown, Some(is_up)) = (self.state, earlier.is_up) {
            self.state = if is_up { State::Up } else { State::Down };
            self.contrary = earlier.contrary;
        }
    }

    /// Records the result of a check. Returns whether the backend is up, if that has changed.
    pub(super) fn record(&mut self, is_good: bool, settings: &CheckSettings) -> Option<bool> {
        let needed = match (self.state, is_good) {
            (State::Up, true) | (State::Down, false) => {
                self.contrary = 0;
                return None;
            }
            (State::Unknown, _) => 1,
            (State::Up, false) => settings.fall,
            (State::Down, true) => settings.rise,
        };
        self.contrary = self.contrary.saturating_add(1);
        if self.contrary < needed {
            return None;
        }
        let was_unknown = self.state == State::Unknown;
        self.state = if is_good { State::Up } else { State::Down };
        self.contrary = 0;
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
