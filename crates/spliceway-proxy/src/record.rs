//! The record of a session: one log line. It is written and counted when the session is over,
//! however the session ended.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spliceway::{CancelHandle, DirectionSummary, RelayStats, RelaySummary};

use crate::associate::{AssociateStats, AssociateSummary};
use crate::handshake::{ClientRequest, Heard};
use crate::outcome::{Outcome, SessionEnd};
use crate::service::Service;
use crate::sessions::{Phase, Session, add};
use spliceway_protocol::Spoken;

/// The known facts about a session. Dropping the record ends the session: it writes the log line
/// and updates the metrics.
///
/// The record outlives the session's relay, so the counts that it records are final.
pub(crate) struct Record {
    service: Arc<Service>,
    /// The facts, which the admin socket shows.
    session: Arc<Session>,
    /// The key of this session in the registry.
    registered: usize,
    /// The key of this session's relay in the traffic ledger.
    running: Option<usize>,
    /// The key of this session's association in the traffic ledger.
    associated: Option<usize>,
    outcome: Option<Outcome>,
}

impl Record {
    pub(crate) fn new(service: Arc<Service>, client: Option<SocketAddr>) -> Self {
        service.metrics.session_began(service.name);
        service.traffic.session_began();
        let (session, registered) = service.sessions.add(service.name, client);
        Self {
            service,
            session,
            registered,
            running: None,
            associated: None,
            outcome: None,
        }
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Records the client's address, which a load balancer in front of the proxy has sent.
    pub(crate) fn introduced(&mut self, client: SocketAddr) {
        self.session.facts().client = Some(client);
    }

    /// Records what the client has stated about itself, whether or not the client is served.
    pub(crate) fn heard(&mut self, heard: Heard) {
        let mut facts = self.session.facts();
        facts.protocol = heard.protocol;
        facts.user = heard.user;
    }

    /// Records the target that the client asks for.
    pub(crate) fn requested(&mut self, request: &ClientRequest) {
        let mut facts = self.session.facts();
        facts.target = Some(request.request.target.clone());
        facts.phase = Phase::Dial;
    }

    /// Records that connecting took `time`.
    pub(crate) fn connected(&mut self, dialled: Option<SocketAddr>, time: Duration) {
        self.service.metrics.connected(time);
        let mut facts = self.session.facts();
        facts.dialled = dialled;
        facts.connect = Some(time);
    }

    /// Records that the target received `bytes` bytes before the relay started.
    pub(crate) fn sent_ahead(&mut self, bytes: u64) {
        self.session.facts().ahead = bytes;
        self.service.traffic.sent_ahead(bytes);
    }

    /// Records that a relay moves bytes from now on.
    pub(crate) fn relaying(&mut self, stats: RelayStats, cancel: CancelHandle) {
        let before = self.running.is_some().then(|| Box::new(self.relayed()));
        self.running = Some(self.service.traffic.enter(stats.clone(), cancel.clone()));
        self.session.relays(stats, cancel, before);
    }

    /// Records that an association delivers datagrams from now on.
    pub(crate) fn associating(&mut self, stats: AssociateStats) {
        self.associated = Some(self.service.traffic.associate(stats.clone()));
        self.session.facts().phase = Phase::Datagrams(stats);
    }

    /// Returns the counts of all relays of this session. The last relay must have ended.
    fn relayed(&mut self) -> RelaySummary {
        let key = self.running.take();
        let mut relayed = key.map(|key| self.service.traffic.leave(key)).unwrap_or_default();
        if let Some(before) = self.session.facts().before.take() {
            add(&mut relayed.a_to_b, &before.a_to_b);
            add(&mut relayed.b_to_a, &before.b_to_a);
        }
        relayed
    }

    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    fn write(&self, outcome: &Outcome, relay: &RelaySummary, datagrams: Option<&AssociateSummary>) {
        let facts = self.session.facts();
        macro_rules! write_at {
            ($level:ident) => {
                tracing::$level!(
                    service = self.service.name,
                    client = %Shown(facts.client.as_ref(), "unix"),
                    user = facts.user.as_deref(),
                    protocol = facts.protocol.map(Spoken::name),
                    target = facts.target.as_ref().map(display),
                    upstream = facts.dialled.map(display),
                    bytes_up = relay.a_to_b.bytes + facts.ahead,
                    bytes_down = relay.b_to_a.bytes,
                    spliced_up = relay.a_to_b.spliced,
                    spliced_down = relay.b_to_a.spliced,
                    datagrams_up = datagrams.map(|passed| passed.up.datagrams),
                    datagrams_down = datagrams.map(|passed| passed.down.datagrams),
                    datagram_bytes_up = datagrams.map(|passed| passed.up.bytes),
                    datagram_bytes_down = datagrams.map(|passed| passed.down.bytes),
                    datagrams_dropped = datagrams.map(AssociateSummary::dropped_in_all),
                    lost_up = lost(&relay.a_to_b),
                    lost_down = lost(&relay.b_to_a),
                    connect_ms = facts.connect.map(|time| time.as_millis()),
                    duration_ms = self.session.started.elapsed().as_millis(),
                    end = %outcome.end,
                    cause = outcome.cause.as_deref(),
                    "session"
                )
            };
        }
        match outcome.end {
            SessionEnd::ConnectFailed(_) => write_at!(warn),
            _ => write_at!(info),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut outcome = self.outcome.take().unwrap_or(SessionEnd::Drained.into());
        if outcome.end == SessionEnd::Drained && self.session.facts().is_closed {
            outcome.end = SessionEnd::ClosedByAdmin;
        }
        let relay = self.relayed();
        let datagrams = self.associated.map(|key| self.service.traffic.dissociate(key));
        self.service.metrics.session_ended(self.service.name, outcome.end);
        self.service.sessions.remove(self.registered);
        self.write(&outcome, &relay, datagrams.as_ref());
    }
}

/// Shows an address, or this word if there is none.
struct Shown<'a>(Option<&'a SocketAddr>, &'static str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str(self.1),
        }
    }
}

/// Returns the number of bytes that were in flight when the session ended, if there were any.
fn lost(direction: &DirectionSummary) -> Option<u64> {
    (direction.lost > 0).then_some(direction.lost)
}
