//! Whether a relay was ended from outside.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// What a relay and its handles share to end the relay.
#[derive(Debug, Default)]
pub(crate) struct Cancel(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// There is no handle.
    #[default]
    Impossible,
    /// The caller has not cancelled the relay, and there is no task to wake.
    Running,
    /// The caller has not cancelled the relay. The waker belongs to the task that polled the relay.
    Watched(Waker),
    /// The caller has cancelled the relay, with this deadline.
    Cancelled(Duration),
}

impl Cancel {
    /// Records that there is a handle.
    pub(crate) fn allow(&self) {
        let mut state = self.state();
        if let State::Impossible = *state {
            *state = State::Running;
        }
    }

    /// Returns whether there is a handle.
    pub(crate) fn is_possible(&self) -> bool {
        !matches!(*self.state(), State::Impossible)
    }

    /// Ends the relay. Only the first call counts.
    pub(crate) fn cancel(&self, deadline: Duration) {
        let mut state = self.state();
        if let State::Cancelled(_) = *state {
            return;
        }
        if let State::Watched(task) = std::mem::replace(&mut *state, State::Cancelled(deadline)) {
            drop(state);
            task.wake();
        }
    }

    /// Returns the deadline if the caller has cancelled the relay. Otherwise a later cancel wakes
    /// `task`.
    pub(crate) fn poll_asked(&self, task: &Waker) -> Option<Duration> {
        let mut state = self.state();
        let forgotten = match &*state {
            State::Cancelled(deadline) => return Some(*deadline),
            State::Watched(watching) if watching.will_wake(task) => return None,
            State::Watched(_) | State::Running | State::Impossible => {
                std::mem::replace(&mut *state, State::Watched(task.clone()))
            }
        };
        drop(state);
        // The old waker is dropped outside the lock, because dropping it may drop a task that holds
        // another of these handles.
        drop(forgotten);
        None
    }

    /// Whether the caller has cancelled the relay, which may not have noticed yet.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(*self.state(), State::Cancelled(_))
    }

    /// Forgets the relay's task. The relay has ended, so its handles must not keep its task.
    pub(crate) fn ended(&self) {
        let mut state = self.state();
        if let State::Watched(_) = &*state {
            let forgotten = std::mem::take(&mut *state);
            drop(state);
            drop(forgotten);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
