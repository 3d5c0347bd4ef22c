//! Keeps a worker awake for a short time after a message, so that the next one meets no sleeping
//! core.

use std::pin::pin;
use std::task::Context;
use std::time::Duration;

use spliceway::RelayStats;
use tokio::time::Instant;

/// Decides after each poll of a relay whether its task stays awake.
#[derive(Debug)]
pub(super) struct Spin {
    time: Duration,
    stats: RelayStats,
    bytes: u64,
    /// The time at which bytes last passed. An idle relay has none, and sleeps.
    passed_at: Option<Instant>,
}

impl Spin {
    /// Returns `None` if the task never spins.
    pub(super) fn new(time: Duration, stats: RelayStats) -> Option<Box<Self>> {
        (!time.is_zero()).then(|| {
            Box::new(Self {
                time,
                stats,
                bytes: 0,
                passed_at: None,
            })
        })
    }

    /// Call this after a poll of the relay that is pending. If bytes have passed less than the time
    /// ago, the task yields: other tasks run, the runtime polls for events without waiting, and the
    /// task is polled again.
    pub(super) fn after_poll(&mut self, cx: &mut Context<'_>) {
        let stats = self.stats.snapshot();
        let bytes = stats.a_to_b.bytes + stats.b_to_a.bytes;
        if bytes != self.bytes {
            self.bytes = bytes;
            self.passed_at = Some(Instant::now());
        }
        if self.passed_at.is_some_and(|passed_at| passed_at.elapsed() < self.time) {
            // The first poll gives the waker to the runtime, and is pending.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        } else {
            self.passed_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    use spliceway::Relay;
    use tokio::net::UnixStream;

    use super::*;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_spins_after_a_message_and_not_before_or_later() {
        const TIME: Duration = Duration::from_micros(20);
        let ((near, a), (b, far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let mut relay = pin!(Relay::new(a, b));
        let mut spin = Spin::new(TIME, relay.stats()).unwrap();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut woken_after = async |spin: &mut Spin| {
            let mut cx = Context::from_waker(&waker);
            assert!(relay.as_mut().poll(&mut cx).is_pending());
            let before = wakes.0.load(Ordering::Relaxed);
            spin.after_poll(&mut cx);
            // The runtime wakes tasks that have yielded when it has polled for events.
            tokio::task::yield_now().await;
            wakes.0.load(Ordering::Relaxed) > before
        };
        assert!(!woken_after(&mut spin).await, "idle");
        assert_eq!(near.try_write(b"message").unwrap(), 7);
        while far.try_read(&mut [0; 7]).is_err() {
            woken_after(&mut spin).await;
        }
        assert!(woken_after(&mut spin).await, "just after the message");
        tokio::time::advance(TIME).await;
        assert!(!woken_after(&mut spin).await, "later");
        assert_eq!(Spin::new(Duration::ZERO, relay.stats()).map(drop), None);
    }
}
