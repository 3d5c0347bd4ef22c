//! A continuous stream of signals to one thread.

use std::io;
use std::time::Duration;

use crate::sys::{self, Timer};

/// A timer that sends `SIGALRM` to the calling thread repeatedly until it is dropped.
///
/// The handler only counts. It is installed without `SA_RESTART`, so calls that can return `EINTR`
/// or a short count do so.
#[derive(Debug)]
pub struct SignalStorm {
    _timer: Timer,
    before: u64,
}

impl SignalStorm {
    /// Starts a timer that sends one signal per `period` to the calling thread.
    ///
    /// # Errors
    /// Returns the `sigaction(2)` and `timer_create(2)` errors.
    pub fn on_this_thread(period: Duration) -> io::Result<Self> {
        sys::count_alarms()?;
        Ok(Self {
            before: sys::alarms(),
            _timer: Timer::start(period)?,
        })
    }

    /// Returns the number of signals since this storm started, from all storms in the process.
    #[must_use]
    pub fn signals(&self) -> u64 {
        sys::alarms() - self.before
    }
}
