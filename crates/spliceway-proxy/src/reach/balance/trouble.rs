//! Why and since when a backend gets no clients, for the operator.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Longer text does not help. Errors of TLS may name certificates with many names.
const WHY_MAX_CHARS: usize = 200;

/// Why and since when a backend gets no clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trouble {
    pub(crate) since: SystemTime,
    pub(crate) why: Box<str>,
}

/// What is wrong with a backend. Checks and ejections are independent of each other.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Troubles {
    /// Why its checks fail, if they have found it down.
    pub(super) down: Option<Trouble>,
    /// Why it was last ejected. It may be up again.
    pub(super) ejected: Option<Trouble>,
}

impl Trouble {
    /// Returns the trouble with the newest reason. It continues `before`.
    pub(super) fn continued(before: Option<Self>, why: &dyn fmt::Display) -> Self {
        let why: String = why.to_string().chars().take(WHY_MAX_CHARS).collect();
        Self {
            since: before.map_or_else(SystemTime::now, |before| before.since),
            why: why.into(),
        }
    }
}
