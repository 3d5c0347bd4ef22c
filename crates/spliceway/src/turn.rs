//! How a turn ends: others get theirs, and the runtime looks for events.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use tokio::task::yield_now;

/// Wakes this task when the runtime has looked for events, or when it stops before (`block_on` ends): who gave way may be waited for
/// when it goes on. A waker called here would wake sooner: tokio looks for events when no task is ready, or after 61, so that every
/// message would wait for 61 turns of a flow that is always ready.
pub(crate) fn give_way(cx: &mut Context<'_>) {
    defer(&Waker::from(Arc::new(WakesWhenDropped(cx.waker().clone()))));
}

/// Leaves `waker` to the runtime, which wakes it when it has looked for events, or drops it when it stops before. Wakes it at once where
/// no runtime is.
pub(crate) fn defer(waker: &Waker) {
    // All that its first poll does is to hand the waker over.
    let first = pin!(yield_now()).poll(&mut Context::from_waker(waker));
    debug_assert!(first.is_pending());
}

struct WakesWhenDropped(Waker);

impl Wake for WakesWhenDropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for WakesWhenDropped {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}
