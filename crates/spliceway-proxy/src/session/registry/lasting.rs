//! The sessions that want to know when they have lasted. Work that only long sessions need can wait
//! until then, and short sessions save it.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A session that is older has lasted. Sessions learn it up to this time later.
pub(super) const AGE: Duration = Duration::from_secs(1);

/// The sessions that want to know when they have lasted. All of them share one timer.
#[derive(Default)]
pub(super) struct Young {
    /// The key and the identifier of each, and when it started, about in the order of the last.
    waiting: Mutex<VecDeque<(usize, u64, Instant)>>,
    /// A session was added to an empty list.
    added: Notify,
}

impl Young {
    /// Adds a session with this key and identifier.
    pub(super) fn add(&self, key: usize, id: u64, started: Instant) {
        let mut waiting = self.waiting.lock();
        let was_empty = waiting.is_empty();
        waiting.push_back((key, id, started));
        drop(waiting);
        if was_empty {
            self.added.notify_one();
        }
    }

    /// Waits until there is a session.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// Removes and returns the oldest session, if it has lasted.
    pub(super) fn next(&self, now: Instant) -> Option<(usize, u64)> {
        let mut waiting = self.waiting.lock();
        let (key, id, started) = *waiting.front()?;
        (started + AGE <= now).then(|| {
            waiting.pop_front();
            (key, id)
        })
    }

    /// Returns whether the list is empty, and then gives its memory back.
    pub(super) fn is_empty(&self) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        waiting.is_empty()
    }
}
