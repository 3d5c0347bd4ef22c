//! Lets the old process give up an upgrade: a stop of the program must not wait for a new process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// The time that a new process has left for its answer, once the old one gives up. It may have
/// taken a session, and only its answer tells.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Whether an upgrade is to be given up, and whether that still undoes it.
#[derive(Debug)]
pub(crate) struct GiveUp {
    asked: watch::Sender<Option<Instant>>,
    has_moved: AtomicBool,
}

impl GiveUp {
    pub(crate) fn new() -> Self {
        Self {
            asked: watch::Sender::new(None),
            has_moved: AtomicBool::new(false),
        }
    }

    /// Gives up. Further calls have no effect.
    pub(crate) fn ask(&self) {
        self.asked.send_if_modified(|asked| {
            let is_first = asked.is_none();
            asked.get_or_insert_with(Instant::now);
            is_first
        });
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.borrow().is_some()
    }

    /// Records that sessions move from now on.
    pub(super) fn moves(&self) {
        self.has_moved.store(true, Ordering::Relaxed);
    }

    /// Returns whether nothing has moved yet, so that to give up changes nothing.
    pub(crate) fn undoes(&self) -> bool {
        !self.has_moved.load(Ordering::Relaxed)
    }

    /// Waits for the end of `work`, but not longer than `limit`, and not at all after the request
    /// to give up.
    pub(super) async fn at_once<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.asked() => None,
            () = sleep(limit) => None,
        }
    }

    /// Waits for the end of `work`, but not longer than `limit`, and at most a second after the
    /// request to give up.
    pub(super) async fn soon<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let late = async {
            self.asked().await;
            let asked = *self.asked.borrow();
            sleep_until(asked.unwrap_or_else(Instant::now) + LAST_CHANCE).await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = late => None,
            () = sleep(limit) => None,
        }
    }

    /// Waits for the request to give up.
    pub(crate) async fn asked(&self) {
        let mut asked = self.asked.subscribe();
        // `self` has the sender, so the channel stays open.
        let _ = asked.wait_for(Option::is_some).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[tokio::test(start_paused = true)]
    async fn a_request_to_give_up_shortens_every_wait() {
        let give_up = GiveUp::new();
        let (started, limit) = (Instant::now(), Duration::from_secs(10));
        assert_eq!(give_up.soon(limit, pending::<()>()).await, None);
        assert_eq!(started.elapsed(), limit);
        give_up.ask();
        let started = Instant::now();
        assert_eq!(give_up.at_once(limit, pending::<()>()).await, None);
        assert_eq!(started.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            assert_eq!(give_up.soon(limit, pending::<()>()).await, None);
        }
        assert!(started.elapsed() <= LAST_CHANCE * 2, "{:?}", started.elapsed());
        assert_eq!(give_up.soon(limit, async { 7 }).await, Some(7));
    }
}
