//! Ends a relay from outside, with what is in flight delivered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// A handle by which a relay can be told to end, cheap to clone, from any thread.
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
    /// Nothing asked. The relay's task, once it is polled.
    #[default]
    Running,
    Watched(Waker),
    Asked(Duration),
}

impl CancelHandle {
    /// The relay takes nothing more from either stream, delivers what it holds within `deadline`, and ends with
    /// [`EndReason::Cancelled`](crate::EndReason::Cancelled). Neither stream is shut down. What was not delivered by then is lost, and
    /// counted in [`DirectionSummary::lost`](crate::DirectionSummary::lost).
    ///
    /// Delivered is what the kernel has taken to send. A TCP socket that is dropped with bytes unread is reset, and then what its peer has
    /// not read yet is lost all the same; a relay that owns its streams drops them when it ends. Where the peers still send and
    /// nothing may be lost, lend the streams (`Relay::new(&mut a, &mut b)`), and afterwards shut both down and read both to their end, for as
    /// long as you will wait.
    ///
    /// The first call counts: a second one cannot shorten the deadline, but dropping the relay ends it at once. On a relay that has
    /// ended it does nothing.
    ///
    /// # Panics
    /// The relay does, when polled outside of a tokio runtime with its time driver enabled.
    pub fn cancel(&self, deadline: Duration) {
        let mut state = self.state();
        if let State::Asked(_) = *state {
            return;
        }
        if let State::Watched(task) = std::mem::replace(&mut *state, State::Asked(deadline)) {
            drop(state);
            task.wake();
        }
    }

    /// The deadline if it was asked for; else `task` will be woken by that.
    pub(crate) fn poll_asked(&self, task: &Waker) -> Option<Duration> {
        let mut state = self.state();
        let forgotten = match &*state {
            State::Asked(deadline) => return Some(*deadline),
            State::Watched(watching) if watching.will_wake(task) => return None,
            State::Watched(_) | State::Running => std::mem::replace(&mut *state, State::Watched(task.clone())),
        };
        drop(state);
        // Outside the lock: the end of a waker may be the end of a task that holds another of these handles.
        drop(forgotten);
        None
    }

    /// The relay has ended, and its task is not to be kept for this handle.
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
