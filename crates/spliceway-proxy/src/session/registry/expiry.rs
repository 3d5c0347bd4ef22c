//! Ends sessions that have lasted for the longest time that the settings allow.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Sessions;
use crate::kit::outcome::SessionEnd;
use crate::session::facts::Session;

/// The time between two looks at the sessions.
const EVERY: Duration = Duration::from_secs(1);

impl Sessions {
    /// Lets `session` end after `limit`, or up to a tenth earlier.
    pub(in crate::session) fn limit(&self, session: &Session, limit: Option<Duration>) {
        let Some(expires) = limit.and_then(|limit| session.started.checked_add(shortened(limit, session.id))) else {
            return;
        };
        session.facts().expires = Some(expires);
        self.limited.notify_one();
    }

    /// Ends sessions whose time is over, and never returns. It sleeps while no session has a limit.
    pub(crate) async fn expire(self: Arc<Self>) {
        loop {
            self.limited.notified().await;
            while self.end_expired().await {
                sleep(EVERY).await;
            }
        }
    }

    /// Returns whether any session has a limit.
    async fn end_expired(&self) -> bool {
        let (mut found, now) = (false, Instant::now());
        let visit = |session: &Arc<Session>| {
            let expires = session.facts().expires;
            found |= expires.is_some();
            if expires.is_some_and(|expires| expires <= now) {
                session.close_as(SessionEnd::MaxSession);
            }
        };
        self.visit_all(visit).await;
        found
    }
}

/// Returns `limit`, less up to a tenth. The part depends on the identifier of the session, so that
/// sessions which began together end apart, in each process that they are handed over to.
fn shortened(limit: Duration, id: u64) -> Duration {
    // A Fibonacci hash: consecutive identifiers are spread evenly over 0..1024.
    let part = (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as u32;
    limit - limit / 10 / 1024 * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_begin_together_end_apart_within_a_tenth_of_the_limit() {
        assert!(shortened(Duration::MAX, 7) > Duration::MAX / 10 * 9);
        let limit = Duration::from_secs(1000);
        let mut ends: Vec<_> = (1..=100).map(|id| shortened(limit, id)).collect();
        ends.sort_unstable();
        assert!(ends[0] > limit * 9 / 10 && ends[99] <= limit, "{ends:?}");
        let gaps = ends.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.max().unwrap() < Duration::from_secs(3), "{ends:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_sessions_with_a_limit_end_and_not_before_nine_tenths_of_it() {
        let sessions = Arc::new(Sessions::default());
        let task = tokio::spawn(Arc::clone(&sessions).expire());
        let (limited, _) = sessions.add("a".into(), None);
        let (unlimited, _) = sessions.add("a".into(), None);
        let limit = Duration::from_secs(3600);
        sessions.limit(&limited, Some(limit));
        sessions.limit(&unlimited, None);
        // Sleeps because the limit is a time. The clock of this test is not the real one.
        sleep(limit * 9 / 10).await;
        assert!(limited.facts().closed.is_none());
        // Sleeps because of the same limit.
        sleep(limit / 10 + EVERY * 2).await;
        assert!(matches!(limited.facts().closed, Some(SessionEnd::MaxSession)));
        assert!(unlimited.facts().closed.is_none());
        task.abort();
    }
}
