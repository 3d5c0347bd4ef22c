//! Tells sessions that they have lasted. Work that only long sessions need can wait until then, and
//! short sessions save it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Sessions;
use crate::session::facts::Session;

/// A session that is older has lasted. Sessions learn it up to this time later.
const AGE: Duration = Duration::from_secs(1);

/// The sessions that want to know when they have lasted. All of them share one timer.
#[derive(Default)]
pub(super) struct Young {
    /// The key and the identifier of each, about in the order of their age.
    waiting: Mutex<VecDeque<(usize, u64, Instant)>>,
    /// A session was added to an empty list.
    added: Notify,
}

impl Sessions {
    /// Lets an open session with this key know when it has lasted.
    pub(in crate::session) fn tell_when_lasting(&self, key: usize, session: &Session) {
        let mut waiting = self.young.waiting.lock();
        let was_empty = waiting.is_empty();
        waiting.push_back((key, session.id, session.started));
        drop(waiting);
        if was_empty {
            self.young.added.notify_one();
        }
    }

    /// Tells sessions that they have lasted, and never returns. It sleeps while no session wants to
    /// know.
    pub(crate) async fn tell_lasting(self: Arc<Self>) {
        loop {
            self.young.added.notified().await;
            loop {
                sleep(AGE).await;
                let now = Instant::now();
                while let Some((key, id)) = self.young.next(now) {
                    // Another session may have the key of one that has ended.
                    let session = self.open.lock().get(key).filter(|session| session.id == id).cloned();
                    if let Some(session) = session {
                        session.set_lasted();
                    }
                }
                if self.young.is_empty() {
                    break;
                }
            }
        }
    }
}

impl Young {
    /// Removes and returns the oldest session, if it has lasted.
    fn next(&self, now: Instant) -> Option<(usize, u64)> {
        let mut waiting = self.waiting.lock();
        let (key, id, started) = *waiting.front()?;
        (started + AGE <= now).then(|| {
            waiting.pop_front();
            (key, id)
        })
    }

    /// Returns whether the list is empty, and then gives its memory back.
    fn is_empty(&self) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_learns_that_it_has_lasted_and_another_with_its_key_does_not() {
        let sessions = Arc::new(Sessions::default());
        let task = tokio::spawn(Arc::clone(&sessions).tell_lasting());
        for _ in 0..2 {
            let (short, key) = sessions.add("a".into(), None);
            sessions.tell_when_lasting(key, &short);
            sessions.remove(key);
            let (other, same) = sessions.add("a".into(), None);
            assert_eq!(same, key);
            let (long, key) = sessions.add("a".into(), None);
            sessions.tell_when_lasting(key, &long);
            // Sleeps because the age is a time. The clock of this test is not the real one.
            sleep(AGE - Duration::from_millis(1)).await;
            assert!(!long.has_lasted());
            // Sleeps because of the same age.
            sleep(AGE).await;
            assert!(long.has_lasted() && !short.has_lasted() && !other.has_lasted());
            assert!(sessions.young.is_empty());
        }
        task.abort();
    }
}
