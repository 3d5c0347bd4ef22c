//! Ends a relay from outside, after it has written the bytes in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// A handle that ends a relay. It is cheap to clone, and works from any thread.
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
///         // Ends with `EndReason::Cancelled`.
///         relay.await
///     }
/// };
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    /// The caller has not cancelled the relay, and there is no task to wake.
    #[default]
    Running,
    /// The caller has not cancelled the relay. The waker belongs to the task that polled the relay.
    Watched(Waker),
    /// The caller has cancelled the relay, with this deadline.
    Cancelled(Duration),
}

impl CancelHandle {
    /// Ends the relay with [`EndReason::Cancelled`](crate::EndReason::Cancelled).
    ///
    /// The relay reads nothing more from either stream. Within `deadline`, it writes the bytes that
    /// it holds. Neither stream is shut down. Bytes that were not written by then are lost, and
    /// they are counted in [`DirectionSummary::lost`](crate::DirectionSummary::lost).
    ///
    /// A byte counts as written when the kernel has accepted it for sending. A TCP socket that is
    /// dropped with unread bytes resets its connection. Bytes that its peer has not read yet are
    /// then lost after all. A relay that owns its streams drops them when it ends. If the peers may
    /// still send and no byte may be lost, lend the streams (`Relay::new(&mut a, &mut b)`).
    /// Afterwards, shut both streams down. Then read both to their end, for as long as you want to
    /// wait.
    ///
    /// Only the first call counts, so a second call cannot shorten the deadline. To end the relay
    /// immediately, drop it. If the relay has ended, the call does nothing.
    ///
    /// # Panics
    /// The relay panics when it is polled outside a tokio runtime, or in one without the time
    /// driver.
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

    /// Returns the deadline if the caller has cancelled the relay. Otherwise a later cancel wakes
    /// `task`.
    pub(crate) fn poll_asked(&self, task: &Waker) -> Option<Duration> {
        let mut state = self.state();
        let forgotten = match &*state {
            State::Cancelled(deadline) => return Some(*deadline),
            State::Watched(watching) if watching.will_wake(task) => return None,
            State::Watched(_) | State::Running => std::mem::replace(&mut *state, State::Watched(task.clone())),
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
