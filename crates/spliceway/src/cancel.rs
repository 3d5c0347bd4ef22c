//! Ends a relay from outside, after it has written the bytes in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// A handle that tells a relay to end. It is cheap to clone, and works from any thread.
///
/// ```
/// # async fn example(a: tokio::net::TcpStream, b: tokio::net::TcpStream, shutdown: tokio::sync::oneshot::Receiver<()>) {
/// use std::time::Duration;
///
/// let mut relay = spliceway::Relay::new(a, b);
/// let cancel = relay.cancel_handle();
/// let summary = tokio::select! {
///     ended = &mut relay => ended,
///     _ = shutdown => {
///         cancel.cancel(Duration::from_secs(5));
///         relay.await // EndReason::Cancelled
///     }
/// };
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    /// No cancel was requested, and there is no task to wake.
    #[default]
    Running,
    /// No cancel was requested. The waker belongs to the relay's task, which was polled.
    Watched(Waker),
    /// A cancel was requested, with this deadline.
    Cancelled(Duration),
}

impl CancelHandle {
    /// Ends the relay with [`EndReason::Cancelled`](crate::EndReason::Cancelled).
    ///
    /// The relay reads nothing more from either stream, and writes the bytes that it holds within
    /// `deadline`. Neither stream is shut down. Bytes that were not written by then are lost, and
    /// counted in [`DirectionSummary::lost`](crate::DirectionSummary::lost).
    ///
    /// A byte counts as written when the kernel has accepted it for sending. A TCP socket that is
    /// dropped with unread bytes is reset. Bytes that its peer has not read yet are then lost all
    /// the same. A relay that owns its streams drops them when it ends. If the peers still send and
    /// nothing may be lost, lend the streams (`Relay::new(&mut a, &mut b)`). Afterwards, shut both
    /// down, and read both to their end, for as long as you want to wait.
    ///
    /// Only the first call counts: a second one cannot shorten the deadline. To end the relay at
    /// once, drop it. On a relay that has ended, the call does nothing.
    ///
    /// # Panics
    /// The relay panics when it is polled outside of a tokio runtime with its time driver enabled.
    pub fn cancel(&self, deadline: Duration) {
        let mut state = self.state();
        if let State::Cancelled(_) = *state {
            return;
        }
        if let State::Watched(task) = std::mem::replace(&mut *state, State::Cancelled(deadline)) {
            drop(state);
            task.wake();
        }
    }

    /// Returns the deadline if a cancel was requested. Otherwise a later cancel wakes `task`.
    pub(crate) fn poll_asked(&self, task: &Waker) -> Option<Duration> {
        let mut state = self.state();
        let forgotten = match &*state {
            State::Cancelled(deadline) => return Some(*deadline),
            State::Watched(watching) if watching.will_wake(task) => return None,
            State::Watched(_) | State::Running => std::mem::replace(&mut *state, State::Watched(task.clone())),
        };
        drop(state);
        // The old waker is dropped outside the lock. This may drop a task that holds another of
        // these handles.
        drop(forgotten);
        None
    }

    /// Forgets the relay's task. The relay has ended, so this handle must not keep its task.
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
