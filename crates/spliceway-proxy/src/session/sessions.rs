//! The registry of open sessions: what is known about each of them, and how one is ended from
//! outside.
//!
//! ```text
//!   Handshake ── request ──▶ Dial ── connected ──▶ Relay or Datagrams ── end ──▶ removed
//! ```

mod expiry;

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use slab::Slab;
use spliceway::{CancelHandle, DirectionSummary, RelayStats, RelaySummary, RelayWaits, Waits};
use spliceway_protocol::Spoken;
use spliceway_protocol::address::Target;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::access::accounts::Entered;
use crate::access::datagram_counts::DatagramStats;
use crate::kit::heap::Heap;
use crate::kit::outcome::SessionEnd;
use crate::session::Moving;

/// The time in which a session that is closed from outside may deliver the bytes that it holds, as
/// at the end of a drain.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// The slots that one slice looks at. A slice holds the lock for about 20 µs.
const SLICE: usize = 256;

/// The open sessions of all services.
#[derive(Default)]
pub(crate) struct Sessions {
    /// The number of sessions so far, which is also the last identifier.
    count: AtomicU64,
    open: Mutex<Slab<(u64, Arc<Session>)>>,
    heap: Heap,
    /// A session with a limit was added.
    limited: Notify,
}

/// One open session. Its record writes the facts, and other tasks may read them.
pub(crate) struct Session {
    /// Identifies the session for the life of this process. Later sessions have higher numbers.
    pub(crate) id: u64,
    pub(crate) service: &'static str,
    pub(crate) started: Instant,
    facts: Mutex<Facts>,
    /// Whether another process asks for this session: see [`MoveState::Requested`].
    is_asked: AtomicBool,
}

/// What is known about a session.
#[derive(Default)]
pub(crate) struct Facts {
    /// The client's address. `None` for a client of a Unix socket.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) user: Option<Box<str>>,
    /// The session's place in the account of its user, if the user has limits.
    pub(crate) account: Option<Entered>,
    pub(crate) protocol: Option<Spoken>,
    /// The name of a server that a TLS client stated.
    pub(crate) server_name: Option<Box<str>>,
    pub(crate) target: Option<Target>,
    /// The address that was dialled: one of the target's addresses, or the first upstream proxy's
    /// address.
    pub(crate) dialled: Option<SocketAddr>,
    /// The time that connecting took.
    pub(crate) connect: Option<Duration>,
    /// The number of bytes that the target received before the relay started.
    pub(crate) ahead: u64,
    /// The time before the first relay of this session.
    pub(crate) opening: Option<Duration>,
    /// The counts of earlier relays of this session.
    pub(crate) before: Option<Box<RelaySummary>>,
    /// The waits of earlier relays of this session.
    waited: Option<Box<RelayWaits>>,
    pub(crate) phase: Phase,
    /// Why the session was closed from outside.
    pub(crate) closed: Option<SessionEnd>,
    /// Whether the last record of the session is being written.
    pub(crate) is_over: bool,
    pub(crate) mover: MoveState,
    task: Option<AbortHandle>,
    /// When the session ends, because it has lasted long enough.
    expires: Option<Instant>,
    activity: Option<Activity>,
}

/// Whether a session can move to another process.
#[derive(Default)]
pub(crate) enum MoveState {
    #[default]
    Stays,
    /// Its relay can be suspended, by this task.
    Movable(Waker),
    /// Another process asks for it. Its task answers, or drops the sender.
    Requested(oneshot::Sender<Moving>),
}

/// What a session does now.
#[derive(Default)]
pub(crate) enum Phase {
    #[default]
    Handshake,
    Dial,
    Relay(RelayStats, CancelHandle),
    Datagrams(DatagramStats),
}

/// The last time at which a session was seen to have moved bytes.
#[derive(Clone, Copy)]
struct Activity {
    bytes: u64,
    moved_at: Instant,
}

impl Sessions {
    /// Adds a session. Returns it, and its key for [`Self::remove`].
    pub(crate) fn add(&self, service: &'static str, client: Option<SocketAddr>) -> (Arc<Session>, usize) {
        let id = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let facts = Facts {
            client,
            ..Facts::default()
        };
        self.insert(Session::new(id, service, Instant::now(), facts))
    }

    /// Adds a session from another process.
    pub(crate) fn insert(&self, session: Session) -> (Arc<Session>, usize) {
        let session = Arc::new(session);
        let mut open = self.open();
        let key = open.insert((session.id, Arc::clone(&session)));
        self.heap.grows_to(open.len());
        drop(open);
        (session, key)
    }

    /// Returns the number of open sessions.
    pub(crate) fn len(&self) -> usize {
        self.open().len()
    }

    /// Returns the last identifier.
    pub(crate) fn last_id(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Gives later sessions higher identifiers than this one.
    pub(crate) fn continue_after(&self, id: u64) {
        self.count.fetch_max(id, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, key: usize) {
        let mut open = self.open();
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

    /// Returns the sessions of some slots from `slot` on, each with its slot, and the slot to
    /// continue with. The second value is `None` at the end. A session that is open during all
    /// calls is returned once.
    pub(crate) fn slice(&self, slot: usize) -> (Vec<(usize, Arc<Session>)>, Option<usize>) {
        let open = self.open();
        let next = slot.saturating_add(SLICE);
        let found = (slot..next).filter_map(|slot| Some((slot, open.get(slot)?)));
        let found = found.map(|(slot, (_, session))| (slot, Arc::clone(session))).collect();
        (found, (next < open.capacity()).then_some(next))
    }

    /// Returns the number of slices that one pass over all slots takes.
    pub(crate) fn slices(&self) -> u32 {
        u32::try_from(self.open().capacity().div_ceil(SLICE)).map_or(u32::MAX, |slices| slices.max(1))
    }

    /// Returns the number of open sessions, and the start of the oldest.
    pub(crate) async fn survey(&self) -> (u64, Option<Instant>) {
        let (mut slot, mut count, mut oldest) = (Some(0), 0, None);
        while let Some(from) = slot {
            let (sessions, next) = self.slice(from);
            count += sessions.len() as u64;
            let started = sessions.iter().map(|(_, session)| session.started);
            oldest = started.chain(oldest).min();
            slot = next;
            tokio::task::yield_now().await;
        }
        (count, oldest)
    }

    /// Closes the sessions whose service has users, but not theirs. Returns their number.
    pub(crate) async fn close_unknown(&self, users: &HashMap<&'static str, HashSet<Box<str>>>) -> usize {
        let (mut slot, mut closed) = (Some(0), 0);
        while let Some(from) = slot {
            let (sessions, next) = self.slice(from);
            for (_, session) in sessions {
                let user = session.facts().user.clone();
                let known = users.get(session.service);
                let is_unknown = matches!((user, known), (Some(user), Some(known)) if !known.contains(&user));
                closed += usize::from(is_unknown && session.close());
            }
            slot = next;
            tokio::task::yield_now().await;
        }
        closed
    }

    /// Closes the sessions of users who have used up a quota.
    pub(crate) async fn close_used_up(&self) {
        let mut slot = Some(0);
        while let Some(from) = slot {
            let (sessions, next) = self.slice(from);
            for (_, session) in sessions {
                let is_used_up = session
                    .facts()
                    .account
                    .as_ref()
                    .is_some_and(|entered| entered.account().is_used_up());
                if is_used_up {
                    session.use_up();
                }
            }
            slot = next;
            tokio::task::yield_now().await;
        }
    }

    /// Returns the session with this identifier.
    pub(crate) async fn find(&self, id: u64) -> Option<Arc<Session>> {
        let mut slot = 0;
        loop {
            {
                let open = self.open();
                let slots = slot..slot + 16 * SLICE;
                let found = slots.filter_map(|slot| open.get(slot)).find(|(one, _)| *one == id);
                if let Some((_, session)) = found {
                    return Some(Arc::clone(session));
                }
                slot += 16 * SLICE;
                if slot >= open.capacity() {
                    return None;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Locks the sessions.
    fn open(&self) -> MutexGuard<'_, Slab<(u64, Arc<Session>)>> {
        self.open.lock()
    }
}

impl Session {
    pub(crate) fn new(id: u64, service: &'static str, started: Instant, facts: Facts) -> Self {
        Self {
            id,
            service,
            started,
            facts: Mutex::new(facts),
            is_asked: AtomicBool::new(false),
        }
    }

    /// Asks the task of the session to suspend its relay. The channel is closed without an answer
    /// if the session ends, or stays for another reason. Returns `None` if the session cannot move
    /// now.
    pub(crate) fn ask_to_move(&self) -> Option<oneshot::Receiver<Moving>> {
        let mut facts = self.facts();
        let MoveState::Movable(task) = &facts.mover else {
            return None;
        };
        let (task, (sender, receiver)) = (task.clone(), oneshot::channel());
        facts.mover = MoveState::Requested(sender);
        self.is_asked.store(true, Ordering::Relaxed);
        drop(facts);
        task.wake();
        Some(receiver)
    }

    /// Records that this task can suspend the relay of the session.
    pub(crate) fn is_movable_by(&self, task: &Waker) {
        self.is_asked.store(false, Ordering::Relaxed);
        self.facts().mover = MoveState::Movable(task.clone());
    }

    /// Returns the sender of [`MoveState::Requested`].
    pub(crate) fn asked_to_move(&self) -> Option<oneshot::Sender<Moving>> {
        if !self.is_asked.load(Ordering::Relaxed) {
            return None;
        }
        match std::mem::take(&mut self.facts().mover) {
            MoveState::Requested(sender) => Some(sender),
            MoveState::Stays | MoveState::Movable(_) => None,
        }
    }

    /// Locks the facts.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock()
    }

    /// Records the task of the session.
    pub(crate) fn runs_in(&self, task: AbortHandle) {
        let mut facts = self.facts();
        if facts.closed.is_some() {
            task.abort();
        }
        facts.task = Some(task);
    }

    /// Records that a relay moves bytes from now on, and the counts of earlier relays.
    pub(crate) fn relays(&self, stats: RelayStats, cancel: CancelHandle, before: Option<Box<RelaySummary>>) {
        let mut facts = self.facts();
        facts.before = before;
        facts.opening.get_or_insert_with(|| self.started.elapsed());
        if facts.closed.is_some() {
            cancel.cancel(CLOSE_GRACE);
        }
        facts.phase = Phase::Relay(stats, cancel);
    }

    /// Ends the session. A relay stops reading and has [`CLOSE_GRACE`] to deliver what it holds.
    /// A session that does not relay yet is cut. Returns `false` if it was closed before.
    pub(crate) fn close(self: &Arc<Self>) -> bool {
        self.close_as(SessionEnd::ClosedByAdmin)
    }

    fn close_as(self: &Arc<Self>, end: SessionEnd) -> bool {
        let mut facts = self.facts();
        if facts.closed.is_some() {
            return false;
        }
        facts.closed = Some(end);
        match &facts.phase {
            Phase::Relay(_, cancel) => cancel.cancel(CLOSE_GRACE),
            Phase::Datagrams(stats) => stats.stop(),
            Phase::Handshake | Phase::Dial => facts.cut(),
        }
        drop(facts);
        // The session may be in a step after its relay, which nothing but this ends.
        let session = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep(CLOSE_GRACE * 2).await;
            if let Some(session) = session.upgrade() {
                session.facts().cut();
            }
        });
        true
    }

    /// Records that the session has moved this number of bytes, and when it moved the last ones.
    pub(crate) fn has_moved(&self, bytes: u64, moved_at: Instant) {
        self.facts().activity = Some(Activity { bytes, moved_at });
    }

    /// Cuts the session, because its user has used up a quota. What it holds is lost, because it
    /// would be above the quota.
    pub(crate) fn use_up(&self) {
        let mut facts = self.facts();
        facts.closed.get_or_insert(SessionEnd::Quota);
        facts.cut();
    }

    /// Compares the bytes of this session with those of the last call.
    pub(crate) fn observe(&self, now: Instant) {
        let mut facts = self.facts();
        let bytes = facts.moved();
        match &mut facts.activity {
            Some(activity) if activity.bytes == bytes => {}
            activity => *activity = Some(Activity { bytes, moved_at: now }),
        }
    }
}

impl Facts {
    /// Records that no further record may follow the last one. Returns why the session was closed
    /// from outside.
    pub(crate) fn ends(&mut self) -> Option<SessionEnd> {
        self.is_over = true;
        self.closed
    }

    fn cut(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }

    /// Returns the counts of all relays of this session so far.
    pub(crate) fn relayed(&self) -> RelaySummary {
        let mut relayed = match &self.phase {
            Phase::Relay(stats, _) => stats.snapshot(),
            _ => RelaySummary::default(),
        };
        if let Some(before) = &self.before {
            add(&mut relayed.a_to_b, &before.a_to_b);
            add(&mut relayed.b_to_a, &before.b_to_a);
        }
        relayed.a_to_b.bytes += self.ahead;
        relayed.a_to_b.copied += self.ahead;
        relayed
    }

    /// Adds the waits of the last relay to those of earlier ones, before another relay begins.
    pub(crate) fn keep_waits(&mut self) {
        self.waited = Some(Box::new(self.waits()));
    }

    /// Returns the waits of all relays of this session so far.
    pub(crate) fn waits(&self) -> RelayWaits {
        let mut waits = match &self.phase {
            Phase::Relay(stats, _) => stats.waits(),
            _ => RelayWaits::default(),
        };
        if let Some(waited) = &self.waited {
            add_waits(&mut waits.a_to_b, &waited.a_to_b);
            add_waits(&mut waits.b_to_a, &waited.b_to_a);
        }
        waits
    }

    fn moved(&self) -> u64 {
        match &self.phase {
            Phase::Datagrams(stats) => {
                let passed = stats.snapshot();
                passed.up.bytes + passed.down.bytes
            }
            _ => self.relayed().bytes(),
        }
    }

    /// Returns the time since the session was last seen to move bytes. `None` means that it has not
    /// been observed yet.
    pub(crate) fn idle(&self, now: Instant) -> Option<Duration> {
        let activity = self.activity?;
        let idle = now.saturating_duration_since(activity.moved_at);
        Some(if activity.bytes == self.moved() {
            idle
        } else {
            Duration::ZERO
        })
    }
}

/// Adds the counts of an earlier relay.
pub(crate) fn add(direction: &mut DirectionSummary, before: &DirectionSummary) {
    direction.bytes += before.bytes;
    direction.spliced += before.spliced;
    direction.copied += before.copied;
    direction.lost += before.lost;
}

fn add_waits(waits: &mut Waits, before: &Waits) {
    waits.source += before.source;
    waits.sink += before.sink;
    waits.rate_limit += before.rate_limit;
    waits.other_direction += before.other_direction;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(sessions: &Sessions) -> Vec<u64> {
        let (mut ids, mut slot) = (Vec::new(), Some(0));
        while let Some(at) = slot {
            let (found, next) = sessions.slice(at);
            ids.extend(found.iter().map(|(_, session)| session.id));
            slot = next;
        }
        ids
    }

    #[tokio::test]
    async fn slices_return_each_open_session_once() {
        let sessions = Sessions::default();
        let keys: Vec<usize> = (0..3 * SLICE).map(|_| sessions.add("forward", None).1).collect();
        assert_eq!(all(&sessions), (1..=3 * SLICE as u64).collect::<Vec<_>>());
        let (count, oldest) = sessions.survey().await;
        assert_eq!(count, 3 * SLICE as u64);
        assert_eq!(oldest, sessions.find(1).await.map(|first| first.started));
        keys[..SLICE].iter().for_each(|key| sessions.remove(*key));
        assert_eq!(all(&sessions).len(), 2 * SLICE);
        assert!(sessions.find(1).await.is_none());
        assert_eq!(sessions.find(SLICE as u64 + 1).await.unwrap().id, SLICE as u64 + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_idle_since_its_bytes_last_changed() {
        let (sessions, second) = (Sessions::default(), Duration::from_secs(1));
        let (session, _) = sessions.add("forward", None);
        assert_eq!(session.facts().idle(Instant::now()), None);
        session.observe(Instant::now());
        tokio::time::advance(second).await;
        session.observe(Instant::now());
        assert_eq!(session.facts().idle(Instant::now()), Some(second));
        session.facts().ahead = 1;
        assert_eq!(session.facts().idle(Instant::now()), Some(Duration::ZERO));
        session.observe(Instant::now());
        tokio::time::advance(second).await;
        assert_eq!(session.facts().idle(Instant::now()), Some(second));
    }

    #[tokio::test]
    async fn a_session_that_is_closed_before_its_task_is_known_is_cut() {
        let sessions = Sessions::default();
        let (session, _) = sessions.add("forward", None);
        assert!(session.close() && !session.close());
        let task = tokio::spawn(std::future::pending::<()>());
        session.runs_in(task.abort_handle());
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
