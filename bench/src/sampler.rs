//! Reads the live counts of every relay that runs, as a program with metrics does.

use std::hint::black_box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use spliceway::{EndReason, RelayStats};

/// More often than anybody scrapes.
const EVERY: Duration = Duration::from_millis(100);

/// A thread that looks at all of them every 100 ms, for as long as the process lives.
pub(crate) struct Sampler(Arc<Mutex<Vec<RelayStats>>>);

impl Sampler {
    pub(crate) fn start() -> Self {
        let sampler = Self(Arc::default());
        let looking = Self(Arc::clone(&sampler.0));
        thread::spawn(move || {
            loop {
                thread::park_timeout(EVERY);
                looking
                    .relays()
                    .retain(|relay| black_box(relay.snapshot()).end == EndReason::Running);
            }
        });
        sampler
    }

    /// Looks at this one too, until it has ended.
    pub(crate) fn watch(&self, relay: RelayStats) {
        self.relays().push(relay);
    }

    fn relays(&self) -> MutexGuard<'_, Vec<RelayStats>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
