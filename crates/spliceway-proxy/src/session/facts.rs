//! What is known about an open session, and how it is ended or handed over from outside.
//!
//! ```text
//!   Handshake ── request ──▶ Dial ── connected ──▶ Relay or Datagrams ── end ──▶ removed
//! ```

use parking_lot::{Mutex, MutexGuard};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use spliceway::{CancelHandle, Direction, DirectionSummary, RelayStats, RelaySummary, RelayWaits, Waits};
use spliceway_protocol::Spoken;
use spliceway_protocol::address::Target;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::handover::Offer;
use super::tls_facts::TlsFacts;
use crate::access::accounts::Entered;
use crate::access::datagram_counts::DatagramStats;
use crate::kit::outcome::SessionEnd;
use crate::kit::refusal::Refusal;
use crate::reach::dial::TargetTls;

/// The time in which a session that is closed from outside may deliver the bytes that it holds, as
/// at the end of a drain.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// One open session. Its record writes the facts, and other tasks may read them.
pub(crate) struct Session {
    /// Identifies the session for the life of this process. Later sessions have higher numbers.
    pub(crate) id: u64,
    pub(crate) service: Arc<str>,
    pub(crate) started: Instant,
    facts: Mutex<Facts>,
    /// Whether the state of the hand-over is [`HandoverState::Requested`], without a lock.
    handover_requested: AtomicBool,
}

/// What is known about a session.
#[derive(Default)]
pub(crate) struct Facts {
    /// The client's address. `None` for a client of a Unix socket.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) user: Option<Box<str>>,
    /// The part of the session in the account of its user, if the user has limits.
    pub(crate) account: Option<Entered>,
    pub(crate) protocol: Option<Spoken>,
    /// The name of a server that a TLS client stated.
    pub(crate) server_name: Option<Box<str>>,
    /// What the client and this program have agreed on, if the program terminates the client's TLS.
    pub(crate) tls: Option<Box<TlsFacts>>,
    /// What the target and this program have agreed on, if the target speaks TLS.
    pub(crate) target_tls: Option<Box<TargetTls>>,
    /// Whether the kernel has the TLS of the client, and of the target or the upstream proxy.
    pub(crate) in_kernel: [bool; 2],
    pub(crate) target: Option<Target>,
    /// Why the rules would refuse the target, if the service only learns.
    pub(crate) would_deny: Option<Refusal>,
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
    pub(super) is_over: bool,
    pub(super) handover: HandoverState,
    task: Option<AbortHandle>,
    /// When the session ends, because it has lasted long enough.
    pub(super) expires: Option<Instant>,
    activity: Option<Activity>,
}

/// Whether a session can be handed over to another process.
#[derive(Default)]
pub(super) enum HandoverState {
    #[default]
    Impossible,
    /// It will be possible when the kernel has the TLS of the session.
    Later,
    /// This task can suspend the relay of the session.
    Possible(Waker),
    /// The task of the session sends its suspended relay, or drops the sender.
    Requested(oneshot::Sender<Offer>),
}

/// What a session does now.
#[derive(Default)]
pub(crate) enum Phase {
    #[default]
    Handshake,
    Dial,
    Relay(RelayStats, CancelHandle),
    Datagrams(DatagramStats),
    /// The session has ended, and its task has begun another one.
    Followed(Arc<Session>),
}

/// The last time at which bytes were seen to pass through a session.
#[derive(Clone, Copy)]
struct Activity {
    bytes: u64,
    passed_at: Instant,
}

impl Session {
    pub(crate) fn new(id: u64, service: Arc<str>, started: Instant, facts: Facts) -> Self {
        Self {
            id,
            service,
            started,
            facts: Mutex::new(facts),
            handover_requested: AtomicBool::new(false),
        }
    }

    /// Asks the task of the session to suspend its relay. The channel is closed without an answer
    /// if the session ends, or stays for another reason. Returns `None` if the session cannot be
    /// handed over now.
    pub(crate) fn request_handover(&self) -> Option<oneshot::Receiver<Offer>> {
        let mut facts = self.facts();
        let HandoverState::Possible(task) = &facts.handover else {
            return None;
        };
        let (task, (sender, receiver)) = (task.clone(), oneshot::channel());
        facts.handover = HandoverState::Requested(sender);
        self.handover_requested.store(true, Ordering::Relaxed);
        drop(facts);
        task.wake();
        Some(receiver)
    }

    /// Records that this task can suspend the relay of the session.
    pub(super) fn allow_handover(&self, task: &Waker) {
        self.handover_requested.store(false, Ordering::Relaxed);
        self.facts().handover = HandoverState::Possible(task.clone());
    }

    /// Records that the session may be handed over when the kernel has its TLS.
    pub(super) fn moves_later(&self) {
        self.facts().handover = HandoverState::Later;
    }

    /// Records that the session cannot be handed over now. A hand-over that asks for it goes on.
    pub(super) fn forbid_handover(&self) {
        self.facts().handover = HandoverState::Impossible;
    }

    /// Returns where to send the suspended relay, if another process asks for the session.
    pub(super) fn take_handover_request(&self) -> Option<oneshot::Sender<Offer>> {
        if !self.handover_requested.load(Ordering::Relaxed) {
            return None;
        }
        self.handover_requested.store(false, Ordering::Relaxed);
        match std::mem::take(&mut self.facts().handover) {
            HandoverState::Requested(sender) => Some(sender),
            HandoverState::Impossible | HandoverState::Later | HandoverState::Possible(_) => None,
        }
    }

    /// Locks the facts.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock()
    }

    /// Sets the task of the session, which is aborted to cut it.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        let mut facts = self.facts();
        if let Phase::Followed(next) = &facts.phase {
            let next = Arc::clone(next);
            drop(facts);
            return next.set_task(task);
        }
        if facts.closed.is_some() {
            task.abort();
        }
        facts.task = Some(task);
    }

    /// Passes the task of a session that has ended on to the next one. The task may be faster than
    /// the one that started it, and that calls [`Self::set_task`].
    pub(super) fn pass_task(&self, next: &Arc<Self>) {
        let mut facts = self.facts();
        match facts.task.take() {
            None => facts.phase = Phase::Followed(Arc::clone(next)),
            Some(task) => {
                drop(facts);
                next.set_task(task);
            }
        }
    }

    /// Sets the relay of the session, and the counts of earlier relays.
    pub(super) fn set_relay(&self, stats: RelayStats, cancel: CancelHandle, before: Option<Box<RelaySummary>>) {
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

    pub(super) fn close_as(self: &Arc<Self>, end: SessionEnd) -> bool {
        let mut facts = self.facts();
        if facts.closed.is_some() {
            return false;
        }
        facts.closed = Some(end);
        match &facts.phase {
            Phase::Relay(_, cancel) => cancel.cancel(CLOSE_GRACE),
            Phase::Datagrams(stats) => stats.stop(),
            Phase::Handshake | Phase::Dial => facts.cut(),
            Phase::Followed(_) => return false,
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

    /// Sets the number of bytes that have passed so far, and the time of the last ones.
    pub(crate) fn set_activity(&self, bytes: u64, passed_at: Instant) {
        self.facts().activity = Some(Activity { bytes, passed_at });
    }

    /// Cuts the session, because its user has used up a quota. What it holds is lost, because it
    /// would be above the quota.
    pub(super) fn use_up(&self) {
        let mut facts = self.facts();
        facts.closed.get_or_insert(SessionEnd::Quota);
        facts.cut();
    }

    /// Compares the bytes of this session with those of the last call.
    pub(crate) fn observe(&self, now: Instant) {
        let mut facts = self.facts();
        let bytes = facts.bytes();
        match &mut facts.activity {
            Some(activity) if activity.bytes == bytes => {}
            activity => *activity = Some(Activity { bytes, passed_at: now }),
        }
    }
}

impl Facts {
    /// Records that no further record may follow the last one. Returns why the session was closed
    /// from outside.
    pub(super) fn end(&mut self) -> Option<SessionEnd> {
        self.is_over = true;
        self.closed
    }

    /// Returns why the session was not handed over to the process that serves now.
    pub(super) fn why_it_stayed(&self) -> &'static str {
        match &self.phase {
            Phase::Handshake | Phase::Dial => "after an upgrade, this session had no relay that could move",
            Phase::Datagrams(_) => "after an upgrade, datagrams stay in the old process, which has ended",
            Phase::Relay(..) if self.has_tls_outside_kernel() => {
                "after an upgrade, TLS that the kernel does not have stays in the old process, which has ended"
            }
            Phase::Relay(..) | Phase::Followed(_) => {
                "after an upgrade, this session stayed in the old process, which has ended"
            }
        }
    }

    /// Returns the version of TLS, if the program terminates the TLS of the client.
    pub(crate) fn tls_version(&self) -> Option<&'static str> {
        let agreed = self.tls.as_ref().and_then(|tls| tls.agreed.as_ref());
        agreed.map(|agreed| agreed.version)
    }

    /// Returns whether the session may be handed over later, if it was not up to now.
    pub(crate) fn may_move_later(&self) -> bool {
        let is_early = matches!(self.phase, Phase::Handshake | Phase::Dial);
        is_early || !matches!(self.handover, HandoverState::Impossible)
    }

    fn has_tls_outside_kernel(&self) -> bool {
        let [client, target] = self.in_kernel;
        self.tls.is_some() && !client || self.target_tls.is_some() && !target
    }

    /// Returns whose TLS the kernel has.
    pub(crate) fn kernel_tls(&self) -> Option<&'static str> {
        match self.in_kernel {
            [false, false] => None,
            [true, false] => Some("client"),
            [false, true] => Some("target"),
            [true, true] => Some("both"),
        }
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
    pub(super) fn keep_waits(&mut self) {
        self.waited = Some(Box::new(self.waits()));
    }

    /// Adds a wait for a rate limit before the first relay.
    pub(super) fn add_rate_wait(&mut self, direction: Direction, time: Duration) {
        let waited = self.waited.get_or_insert_default();
        let waits = match direction {
            Direction::AToB => &mut waited.a_to_b,
            Direction::BToA => &mut waited.b_to_a,
        };
        waits.rate_limit += time;
    }

    /// Returns the waits of all relays of this session so far, and those before the first one.
    pub(super) fn waits(&self) -> RelayWaits {
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

    /// Returns the number of bytes that have passed in both directions.
    fn bytes(&self) -> u64 {
        match &self.phase {
            Phase::Datagrams(stats) => {
                let passed = stats.snapshot();
                passed.up.bytes + passed.down.bytes
            }
            _ => self.relayed().bytes(),
        }
    }

    /// Returns the time since bytes were last seen to pass. `None` means that the session has not
    /// been observed yet.
    pub(crate) fn idle(&self, now: Instant) -> Option<Duration> {
        let activity = self.activity?;
        let idle = now.saturating_duration_since(activity.passed_at);
        Some(if activity.bytes == self.bytes() {
            idle
        } else {
            Duration::ZERO
        })
    }
}

/// Adds the counts of an earlier relay.
pub(super) fn add(direction: &mut DirectionSummary, before: &DirectionSummary) {
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
    use super::super::registry::Sessions;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_is_idle_since_its_bytes_last_changed() {
        let (sessions, second) = (Sessions::default(), Duration::from_secs(1));
        let (session, _) = sessions.add("forward".into(), None);
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
    async fn the_next_session_of_a_task_has_the_task_whenever_it_becomes_known() {
        let sessions = Sessions::default();
        for is_known_first in [true, false] {
            let [first, second, third] = [(); 3].map(|()| sessions.add("http".into(), None).0);
            let task = tokio::spawn(std::future::pending::<()>());
            if is_known_first {
                first.set_task(task.abort_handle());
            }
            first.pass_task(&second);
            second.pass_task(&third);
            if !is_known_first {
                first.set_task(task.abort_handle());
            }
            assert!(!first.close() || is_known_first);
            assert!(third.close());
            assert!(task.await.unwrap_err().is_cancelled());
        }
    }

    #[tokio::test]
    async fn a_session_that_is_closed_before_its_task_is_known_is_cut() {
        let sessions = Sessions::default();
        let (session, _) = sessions.add("forward".into(), None);
        assert!(session.close() && !session.close());
        let task = tokio::spawn(std::future::pending::<()>());
        session.set_task(task.abort_handle());
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
