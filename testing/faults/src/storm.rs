//! Signals at one thread, many and on end.

use std::io;
use std::time::Duration;

use crate::sys::{self, Timer};

/// A timer that sends the calling thread `SIGALRM` again and again, until dropped.
///
/// The handler does nothing and is set without `SA_RESTART`: calls that can return `EINTR` or a short count do.
#[derive(Debug)]
pub struct SignalStorm {
    _timer: Timer,
    before: u64,
}

impl SignalStorm {
    /// Starts it, one signal in each `period`, at the thread that calls.
    ///
    /// # Errors
    /// Those of `sigaction(2)` and `timer_create(2)`.
    pub fn on_this_thread(period: Duration) -> io::Result<Self> {
        sys::count_alarms()?;
        Ok(Self {
            before: sys::alarms(),
            _timer: Timer::start(period)?,
        })
    }

    /// Signals that arrived since it started, of all storms of the process.
    #[must_use]
    pub fn signals(&self) -> u64 {
        sys::alarms() - self.before
    }
}
