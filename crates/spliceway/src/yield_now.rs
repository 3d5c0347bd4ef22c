//! Yields to other tasks until the runtime has polled for events.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

/// Lets other tasks run, and wakes this one after the runtime has polled for events.
///
/// If this function woke the task itself, the task would run too early. tokio polls for events when
/// no task is ready, or after 61 polls of tasks. Every message would then wait for 61 polls of a
/// relay that is always ready.
pub(crate) fn yield_now(cx: &mut Context<'_>) {
    defer(&Waker::from(Arc::new(WakeOnDrop(cx.waker().clone()))));
}

/// Hands `waker` to the runtime. The runtime wakes it after polling for events, or drops it if the
/// runtime stops first. Outside a runtime, the waker is woken immediately.
pub(crate) fn defer(waker: &Waker) {
    // The first poll of this future only hands the waker over.
    let first = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(waker));
    debug_assert!(first.is_pending());
}

/// Wakes a task even if the runtime stops (`block_on` ends) before it has polled for events.
struct WakeOnDrop(Waker);

impl Wake for WakeOnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}
