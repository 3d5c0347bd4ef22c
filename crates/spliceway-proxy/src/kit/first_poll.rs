//! Polls a future in another task than the one that awaits it.

use std::future::{poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::task::coop::unconstrained;

/// Polls `future` once. The task that awaits it next polls it immediately, which replaces the waker
/// used here.
pub(crate) fn poll_first<T: Send + 'static>(
    mut future: Pin<Box<dyn Future<Output = T> + Send>>,
) -> Option<Pin<Box<dyn Future<Output = T> + Send>>> {
    let mut cx = Context::from_waker(Waker::noop());
    // The poll is unconstrained. Otherwise, the session would yield before it dials if the caller's
    // budget were used up.
    let first = catch_unwind(AssertUnwindSafe(|| pin!(unconstrained(future.as_mut())).poll(&mut cx)));
    match first {
        Ok(Poll::Pending) => Some(future),
        Ok(Poll::Ready(output)) => Some(Box::pin(ready(output))),
        Err(_) => None,
    }
}

/// Awaits `future`, and does not poll it in [`poll_first`]. Use it for a future that would only
/// register the waker, such as a timer. The task registers its own waker immediately afterwards.
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
    use tokio::sync::oneshot;
    use tokio::task::coop;

    #[tokio::test]
    async fn a_future_that_is_polled_first_elsewhere_ends_in_its_task() {
        let (sender, receiver) = oneshot::channel();
        let waits = poll_first(Box::pin(receiver)).unwrap();
        let ended = tokio::spawn(waits);
        sender.send("sent").unwrap();
        assert_eq!(ended.await.unwrap(), Ok("sent"));
        assert_eq!(poll_first(Box::pin(ready("ready"))).unwrap().await, "ready");
    }

    #[tokio::test]
    async fn a_future_for_its_own_task_is_not_polled_first_elsewhere() {
        let waits = poll_first(Box::pin(in_own_task(ready("ready")))).unwrap();
        assert_eq!(tokio::spawn(waits).await.unwrap(), "ready");
    }

    #[tokio::test]
    async fn the_first_poll_does_not_need_the_budget_of_its_caller() {
        while coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
        let (sender, mut receiver) = oneshot::channel();
        let first = poll_first(Box::pin(async {
            coop::consume_budget().await;
            sender.send("dialled")
        }));
        assert_eq!(receiver.try_recv(), Ok("dialled"));
        drop(first);
    }

    #[tokio::test]
    async fn a_panic_in_the_first_poll_does_not_reach_its_caller() {
        assert!(poll_first::<()>(Box::pin(async { panic!("in the session") })).is_none());
    }
}
