//! Why the quota file cannot be used.

use std::{fmt, io};

/// Why the file cannot be used.
#[derive(Debug)]
pub(super) enum Unusable {
    /// Another process has locked it.
    Busy,
    Other(String),
}

impl Unusable {
    pub(super) fn io(what: &str, error: &io::Error) -> Self {
        Self::Other(format!("cannot {what}: {error}"))
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is the function of map_err")]
    pub(super) fn read(error: io::Error) -> Self {
        Self::io("read it", &error)
    }

    /// Says that the content is wrong, and the remedy.
    pub(super) fn content(what: &str) -> Self {
        Self::Other(format!("{what}: move it away to begin with empty counters"))
    }

    /// Says that an update has not ended in time.
    pub(super) fn slow() -> Self {
        Self::Other("the disk does not answer".to_owned())
    }

    /// Says that the thread with the file has panicked.
    pub(super) fn panicked() -> Self {
        Self::Other("an update has panicked".to_owned())
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("another process has it open"),
            Self::Other(why) => f.write_str(why),
        }
    }
}
