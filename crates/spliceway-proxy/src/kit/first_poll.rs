//! Awaits a future in its own task only.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

/// Awaits `future`, and does not poll it in the first poll of a session, which another task makes
/// with a waker that does nothing. Use it for a future that would only register the waker, such as
/// a timer. The task of the session polls it immediately afterwards.
pub(crate) async fn in_own_task<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if cx.waker().will_wake(Waker::noop()) {
            return Poll::Pending;
        }
        future.as_mut().poll(cx)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;
    use std::task::Context;

    #[tokio::test]
    async fn a_future_for_its_own_task_waits_for_the_waker_of_that_task() {
        let mut waits = Box::pin(in_own_task(ready("ready")));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert_eq!(tokio::spawn(waits).await.unwrap(), "ready");
    }
}
