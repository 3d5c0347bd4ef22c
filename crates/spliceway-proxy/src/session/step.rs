//! The steps of a session, each with memory of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::task::coop::unconstrained;

use crate::kit::alive::Alive;

/// A step of a session. It returns the next step, or `None` after the last one.
///
/// Each step is boxed, so that a session holds only the memory of the step that it is in. Thousands
/// of idle sessions are normal, and all of them are in one step, the relay.
pub(crate) struct Step(Pin<Box<dyn Future<Output = Option<Step>> + Send>>);

impl Step {
    pub(super) fn new(step: impl Future<Output = Option<Step>> + Send + 'static) -> Self {
        Self(Box::pin(step))
    }

    /// Polls the step once, in another task than the one that runs it. That task polls it
    /// immediately, which replaces the waker used here.
    ///
    /// Returns the step that is due, or `None` if the session has ended or panicked.
    pub(super) fn poll_first(mut self) -> Option<Self> {
        let mut cx = Context::from_waker(Waker::noop());
        // The poll is unconstrained. Otherwise, the session would yield before it dials if the
        // caller's budget were used up.
        let first = catch_unwind(AssertUnwindSafe(|| pin!(unconstrained(self.0.as_mut())).poll(&mut cx)));
        match first {
            Ok(Poll::Pending) => Some(self),
            Ok(Poll::Ready(next)) => next,
            Err(_) => None,
        }
    }
}

/// Serves the client from this step to the end of the session. If this future is dropped before
/// that, the session is cut and recorded as drained.
pub(crate) async fn run(mut step: Step, _alive: Alive) {
    while let Some(next) = step.0.as_mut().await {
        step = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;
    use tokio::sync::oneshot;
    use tokio::task::coop;

    #[tokio::test]
    async fn a_step_that_is_polled_first_elsewhere_ends_in_its_task() {
        let (sender, receiver) = oneshot::channel();
        let first = Step::new(async {
            let second = receiver.await.unwrap();
            Some(second)
        });
        let (alive, mut ended) = Alive::new();
        let running = tokio::spawn(run(first.poll_first().unwrap(), alive));
        let (end, last) = oneshot::channel();
        let second = Step::new(async {
            end.send("ended").unwrap();
            None
        });
        assert!(sender.send(second).is_ok());
        assert_eq!(last.await, Ok("ended"));
        running.await.unwrap();
        ended.wait().await;
    }

    #[test]
    fn the_step_after_a_first_one_that_is_ready_is_due() {
        let next = || Step::new(ready(Some(Step::new(ready(None)))));
        assert!(next().poll_first().unwrap().poll_first().is_none());
    }

    #[tokio::test]
    async fn the_first_poll_does_not_need_the_budget_of_its_caller() {
        while coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
        let (sender, mut receiver) = oneshot::channel();
        let first = Step::new(async {
            coop::consume_budget().await;
            sender.send("dialled").unwrap();
            None
        });
        assert!(first.poll_first().is_none());
        assert_eq!(receiver.try_recv(), Ok("dialled"));
    }

    #[tokio::test]
    async fn a_panic_in_the_first_poll_does_not_reach_its_caller() {
        assert!(Step::new(async { panic!("in the session") }).poll_first().is_none());
    }
}
