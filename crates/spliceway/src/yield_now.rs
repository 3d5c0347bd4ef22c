//! Waiting for other tasks: for those that are ready, and for the runtime to poll for events.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

/// Lets other tasks run, and wakes this one when the runtime has polled for events.
///
/// A waker called here would wake sooner: tokio polls for events when no task is ready, or after 61
/// tasks, so every message would wait for 61 polls of a flow that is always ready.
pub(crate) fn yield_now(cx: &mut Context<'_>) {
    defer(&Waker::from(Arc::new(WakeOnDrop(cx.waker().clone()))));
}

/// Leaves `waker` to the runtime, which wakes it when it has polled for events, or drops it when it
/// stops before. Outside of a runtime, the waker is woken at once.
pub(crate) fn defer(waker: &Waker) {
    // All that its first poll does is to hand the waker over.
    let first = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(waker));
    debug_assert!(first.is_pending());
}

/// Wakes a task also if the runtime stops (`block_on` ends) before it has polled for events.
struct WakeOnDrop(Waker);

impl Wake for WakeOnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}
