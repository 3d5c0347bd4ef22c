//! Lets the old process give up an upgrade: a stop of the program must not wait for a new process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::trouble::{Stopped, Trouble};

/// The time that a new process has left for its answer, once the old one gives up. It may have
/// taken a session, and only its answer tells.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Whether an upgrade is to be given up, and whether that still undoes it.
#[derive(Debug)]
pub(in crate::run) struct GiveUp {
    requested: watch::Sender<Option<Instant>>,
    sends_sessions: AtomicBool,
}

impl GiveUp {
    pub(in crate::run) fn new() -> Self {
        Self {
            requested: watch::Sender::new(None),
            sends_sessions: AtomicBool::new(false),
        }
    }

    /// Gives up. Further calls have no effect.
    pub(in crate::run) fn request(&self) {
        self.requested.send_if_modified(|requested| {
            let is_first = requested.is_none();
            requested.get_or_insert_with(Instant::now);
            is_first
        });
    }

    fn is_requested(&self) -> bool {
        self.requested.borrow().is_some()
    }

    /// Returns an error after the request to give up.
    pub(super) fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() {
            Err(Stopped::GivenUp)
        } else {
            Ok(())
        }
    }

    /// Records that sessions are handed over from now on.
    pub(super) fn begin_sessions(&self) {
        self.sends_sessions.store(true, Ordering::Relaxed);
    }

    /// Returns whether no session was handed over yet, so that to give up changes nothing.
    pub(in crate::run) fn undoes_all(&self) -> bool {
        !self.sends_sessions.load(Ordering::Relaxed)
    }

    /// Waits for the end of `work`, but not longer than `limit`, and not at all after the request
    /// to give up.
    pub(super) async fn at_once<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Result<T, Trouble> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.requested() => Err(Trouble::GivenUp),
            () = sleep(limit) => Err(self.late(limit)),
        }
    }

    /// Waits for the end of `work`, but not longer than `limit`, and at most a second after the
    /// request to give up.
    pub(super) async fn soon<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Result<T, Trouble> {
        let late = async {
            self.requested().await;
            let requested = *self.requested.borrow();
            sleep_until(requested.unwrap_or_else(Instant::now) + LAST_CHANCE).await;
        };
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = late => Err(Trouble::GivenUp),
            () = sleep(limit) => Err(self.late(limit)),
        }
    }

    /// Waits for the request to give up.
    pub(in crate::run) async fn requested(&self) {
        let mut requested = self.requested.subscribe();
        // `self` has the sender, so the channel stays open.
        let _ = requested.wait_for(Option::is_some).await;
    }

    /// Returns why there is no answer after this time.
    fn late(&self, limit: Duration) -> Trouble {
        if self.is_requested() {
            Trouble::GivenUp
        } else {
            Trouble::Late(limit)
        }
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
        assert_eq!(give_up.soon(limit, pending::<()>()).await, Err(Trouble::Late(limit)));
        assert_eq!(started.elapsed(), limit);
        give_up.request();
        let started = Instant::now();
        assert_eq!(give_up.at_once(limit, pending::<()>()).await, Err(Trouble::GivenUp));
        assert_eq!(started.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            assert_eq!(give_up.soon(limit, pending::<()>()).await, Err(Trouble::GivenUp));
        }
        assert!(started.elapsed() <= LAST_CHANCE * 2, "{:?}", started.elapsed());
        assert_eq!(give_up.soon(limit, async { 7 }).await, Ok(7));
    }
}
