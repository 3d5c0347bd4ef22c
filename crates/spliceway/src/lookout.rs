//! Looks for urgent marks, once for all receives that came short since the runtime last looked for events.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use spliceway_core::Suspects;
use spliceway_core::heuristic::{Heuristic, is_off};

use crate::turn::defer;

/// The sockets of one thread that a receive came short on. While there is one, a [`Promise`] is out to look at them all.
#[derive(Debug)]
pub(crate) struct Lookout(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    suspects: Suspects,
    /// The one that was kept last, to be given again: a message is worth no allocation.
    kept: Option<Arc<Promise>>,
}

/// Is kept when it is woken: by the runtime once it has looked for events, or at once where no runtime is. Else it is kept when it is
/// dropped: by a runtime that stops before, whose sockets may still be waited for when it goes on.
#[derive(Debug)]
struct Promise(Arc<Shared>);

impl Lookout {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Its readiness was forgotten, as a receive came short.
    pub(crate) fn suspect(&self, socket: BorrowedFd<'_>) {
        if is_off(Heuristic::UrgentMarkCheck) {
            return;
        }
        let mut state = self.0.state();
        let is_promised = !state.suspects.is_empty();
        if state.suspects.is_full() {
            state.suspects.clear();
        }
        state.suspects.add(socket);
        if is_promised {
            return;
        }
        let promise = state
            .kept
            .take()
            .unwrap_or_else(|| Arc::new(Promise(Arc::clone(&self.0))));
        // It may be kept at once.
        drop(state);
        defer(&Waker::from(promise));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Promise {
    fn wake(self: Arc<Self>) {
        let shared = Arc::clone(&self.0);
        let mut state = shared.state();
        state.suspects.clear();
        // Kept by a lookout that is gone, it would never be dropped: each holds the other.
        let has_lookout = Arc::strong_count(&shared) > 2;
        let before = if has_lookout {
            state.kept.replace(self)
        } else {
            Some(self)
        };
        // Its end takes the lock.
        drop(state);
        drop(before);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.0.state().suspects.clear();
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        // Each holds the other.
        let kept = self.0.state().kept.take();
        drop(kept);
    }
}
