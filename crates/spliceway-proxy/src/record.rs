//! The record of a session: one log line. It is written and counted when the session is over,
//! however the session ended.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spliceway::{CancelHandle, DirectionSummary, RelayStats, RelaySummary};
use tokio::time::Instant;

use crate::associate::{AssociateStats, AssociateSummary};
use crate::handshake::{ClientRequest, Heard};
use crate::outcome::{Outcome, SessionEnd};
use crate::service::Service;
use spliceway_protocol::Spoken;
use spliceway_protocol::address::Target;

/// The known facts about a session. Dropping the record ends the session: it writes the log line
/// and updates the metrics.
///
/// The record outlives the session's relay, so the counts that it records are final.
pub(crate) struct Record {
    service: Arc<Service>,
    /// The client's address. `None` for a client of a Unix socket.
    client: Option<SocketAddr>,
    user: Option<Box<str>>,
    protocol: Option<Spoken>,
    target: Option<Target>,
    /// The address that was dialled: one of the target's addresses, or the first upstream proxy's
    /// address.
    dialled: Option<SocketAddr>,
    started: Instant,
    connect: Option<Duration>,
    /// The number of bytes that the target received before the relay started.
    ahead: u64,
    /// The counts of earlier relays of this session.
    before: Option<Box<RelaySummary>>,
    /// The key of this session's relay in the traffic ledger.
    running: Option<usize>,
    /// The key of this session's association in the traffic ledger.
    associated: Option<usize>,
    outcome: Option<Outcome>,
}

impl Record {
    pub(crate) fn new(service: Arc<Service>, client: Option<SocketAddr>) -> Self {
        service.metrics.session_began(service.kind.name());
        let started = Instant::now();
        Self {
            service,
            client,
            user: None,
            protocol: None,
            target: None,
            dialled: None,
            started,
            connect: None,
            ahead: 0,
            before: None,
            running: None,
            associated: None,
            outcome: None,
        }
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Records the client's address, which a load balancer in front of the proxy has sent.
    pub(crate) fn introduced(&mut self, client: SocketAddr) {
        self.client = Some(client);
    }

    /// Records what the client has stated about itself, whether or not the client is served.
    pub(crate) fn heard(&mut self, heard: Heard) {
        self.protocol = heard.protocol;
        self.user = heard.user;
    }

    /// Records the target that the client asks for.
    pub(crate) fn requested(&mut self, request: &ClientRequest) {
        self.target = Some(request.request.target.clone());
    }

    /// Records that connecting took `time`.
    pub(crate) fn connected(&mut self, dialled: Option<SocketAddr>, time: Duration) {
        self.service.metrics.connected(time);
        self.dialled = dialled;
        self.connect = Some(time);
    }

    /// Records that the target received `bytes` bytes before the relay started.
    pub(crate) fn sent_ahead(&mut self, bytes: u64) {
        self.ahead = bytes;
        self.service.traffic.sent_ahead(bytes);
    }

    /// Records that a relay moves bytes from now on.
    pub(crate) fn relaying(&mut self, stats: RelayStats, cancel: CancelHandle) {
        if self.running.is_some() {
            self.before = Some(Box::new(self.relayed()));
        }
        self.running = Some(self.service.traffic.enter(stats, cancel));
    }

    /// Records that an association delivers datagrams from now on.
    pub(crate) fn associating(&mut self, stats: AssociateStats) {
        self.associated = Some(self.service.traffic.associate(stats));
    }

    /// Returns the counts of all relays of this session. The last relay must have ended.
    fn relayed(&mut self) -> RelaySummary {
        let key = self.running.take();
        let mut relayed = key.map(|key| self.service.traffic.leave(key)).unwrap_or_default();
        if let Some(before) = self.before.take() {
            add(&mut relayed.a_to_b, &before.a_to_b);
            add(&mut relayed.b_to_a, &before.b_to_a);
        }
        relayed
    }

    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    fn write(&self, outcome: &Outcome, relay: &RelaySummary, datagrams: Option<&AssociateSummary>) {
        macro_rules! write_at {
            ($level:ident) => {
                tracing::$level!(
                    service = self.service.kind.name(),
                    client = %Shown(self.client.as_ref(), "unix"),
                    user = self.user.as_deref(),
                    protocol = self.protocol.map(Spoken::name),
                    target = self.target.as_ref().map(display),
                    upstream = self.dialled.map(display),
                    bytes_up = relay.a_to_b.bytes + self.ahead,
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
                    connect_ms = self.connect.map(|time| time.as_millis()),
                    duration_ms = self.started.elapsed().as_millis(),
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
        let outcome = self.outcome.take().unwrap_or(SessionEnd::Drained.into());
        let relay = self.relayed();
        let datagrams = self.associated.map(|key| self.service.traffic.dissociate(key));
        self.service
            .metrics
            .session_ended(self.service.kind.name(), outcome.end);
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

fn add(direction: &mut DirectionSummary, before: &DirectionSummary) {
    direction.bytes += before.bytes;
    direction.spliced += before.spliced;
    direction.copied += before.copied;
    direction.lost += before.lost;
}

/// Returns the number of bytes that were in flight when the session ended, if there were any.
fn lost(direction: &DirectionSummary) -> Option<u64> {
    (direction.lost > 0).then_some(direction.lost)
}
