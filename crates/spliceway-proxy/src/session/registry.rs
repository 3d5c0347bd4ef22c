//! The registry of open sessions of all services.

mod expiry;

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slab::Slab;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::facts::{Facts, Session};
use crate::kit::heap::Heap;

/// The slots that one slice looks at. A slice holds the lock for about 20 µs.
const SLICE: usize = 256;

/// The open sessions of all services.
#[derive(Default)]
pub(crate) struct Sessions {
    /// The number of sessions so far, which is also the last identifier.
    count: AtomicU64,
    open: Mutex<Slab<Arc<Session>>>,
    heap: Heap,
    /// A session with a limit was added.
    limited: Notify,
}

impl Sessions {
    /// Adds a session. Returns it, and its key for [`Self::remove`].
    pub(crate) fn add(&self, service: Arc<str>, client: Option<SocketAddr>) -> (Arc<Session>, usize) {
        let id = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut facts = Facts::default();
        facts.client = client;
        self.insert(Session::new(id, service, Instant::now(), facts))
    }

    /// Adds a session from another process.
    pub(super) fn insert(&self, session: Session) -> (Arc<Session>, usize) {
        let session = Arc::new(session);
        let mut open = self.open.lock();
        let key = open.insert(Arc::clone(&session));
        self.heap.grows_to(open.len());
        drop(open);
        (session, key)
    }

    /// Returns the number of open sessions.
    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Returns the last identifier.
    pub(crate) fn last_id(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Gives later sessions higher identifiers than this one.
    pub(crate) fn continue_after(&self, id: u64) {
        self.count.fetch_max(id, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, key: usize) {
        let mut open = self.open.lock();
        let removed = open.remove(key);
        self.heap.shrinks_to(open.len());
        // The session is dropped outside the lock.
        drop(open);
        drop(removed);
    }

    /// Returns what decides when memory is given back to the system.
    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Returns the sessions from `slot` on in slices, each session with its slot. A session that is
    /// open during the whole iteration is returned once. The first slice may be empty.
    ///
    /// Each slice locks the registry. Let other tasks run between two slices.
    pub(crate) fn slices(&self, slot: usize) -> impl Iterator<Item = Vec<(usize, Arc<Session>)>> {
        let mut next = Some(slot);
        std::iter::from_fn(move || {
            let from = next?;
            let (open, to) = (self.open.lock(), from.saturating_add(SLICE));
            next = (to < open.capacity()).then_some(to);
            let found = (from..to).filter_map(|slot| Some((slot, Arc::clone(open.get(slot)?))));
            Some(found.collect())
        })
    }

    /// Returns the number of slices that one pass over all slots takes.
    pub(super) fn slice_count(&self) -> u32 {
        let slices = self.open.lock().capacity().div_ceil(SLICE);
        u32::try_from(slices).map_or(u32::MAX, |slices| slices.max(1))
    }

    /// Calls `visit` for each session from `slot` on until it breaks, and yields between
    /// [slices](Self::slices).
    pub(crate) async fn visit<B>(
        &self,
        slot: usize,
        mut visit: impl FnMut(usize, &Arc<Session>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        for slice in self.slices(slot) {
            for (slot, session) in slice {
                visit(slot, &session)?;
            }
            yield_now().await;
        }
        ControlFlow::Continue(())
    }

    /// Calls `visit` for each session.
    async fn visit_all(&self, mut visit: impl FnMut(&Arc<Session>)) {
        let visit = |_, session: &Arc<Session>| {
            visit(session);
            ControlFlow::<()>::Continue(())
        };
        let _ = self.visit(0, visit).await;
    }

    /// Returns the number of open sessions, and the start of the oldest.
    pub(crate) async fn survey(&self) -> (u64, Option<Instant>) {
        let (mut count, mut oldest) = (0, None);
        let visit = |session: &Arc<Session>| {
            count += 1;
            oldest = oldest.into_iter().chain([session.started]).min();
        };
        self.visit_all(visit).await;
        (count, oldest)
    }

    /// Closes the sessions whose service has users, but not theirs. Returns their number.
    pub(crate) async fn close_unknown(&self, users: &HashMap<Arc<str>, HashSet<Box<str>>>) -> usize {
        let mut closed = 0;
        let visit = |session: &Arc<Session>| {
            let user = session.facts().user.clone();
            let known = users.get(&session.service);
            let is_unknown = matches!((user, known), (Some(user), Some(known)) if !known.contains(&user));
            closed += usize::from(is_unknown && session.close());
        };
        self.visit_all(visit).await;
        closed
    }

    /// Closes the sessions of users who have used up a quota.
    pub(crate) async fn close_used_up(&self) {
        let visit = |session: &Arc<Session>| {
            let facts = session.facts();
            let account = facts.account.as_ref();
            let is_used_up = account.is_some_and(|entered| entered.account().is_used_up());
            drop(facts);
            if is_used_up {
                session.use_up();
            }
        };
        self.visit_all(visit).await;
    }

    /// Returns the session with this identifier.
    pub(crate) async fn find(&self, id: u64) -> Option<Arc<Session>> {
        let visit = |_, session: &Arc<Session>| {
            if session.id == id {
                ControlFlow::Break(Arc::clone(session))
            } else {
                ControlFlow::Continue(())
            }
        };
        self.visit(0, visit).await.break_value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(sessions: &Sessions) -> Vec<u64> {
        sessions.slices(0).flatten().map(|(_, session)| session.id).collect()
    }

    #[tokio::test]
    async fn slices_return_each_open_session_once() {
        let sessions = Sessions::default();
        let keys: Vec<usize> = (0..3 * SLICE).map(|_| sessions.add("forward".into(), None).1).collect();
        assert_eq!(all(&sessions), (1..=3 * SLICE as u64).collect::<Vec<_>>());
        let (count, oldest) = sessions.survey().await;
        assert_eq!(count, 3 * SLICE as u64);
        assert_eq!(oldest, sessions.find(1).await.map(|first| first.started));
        keys[..SLICE].iter().for_each(|key| sessions.remove(*key));
        assert_eq!(all(&sessions).len(), 2 * SLICE);
        assert!(sessions.find(1).await.is_none());
        assert_eq!(sessions.find(SLICE as u64 + 1).await.unwrap().id, SLICE as u64 + 1);
    }
}
