//! One record per session: written, and counted, when the session is over, however it got there.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use spliceway::{CancelHandle, DirectionSummary, RelayStats, RelaySummary};
use tokio::time::Instant;

use crate::address::Target;
use crate::associate::{AssociateStats, AssociateSummary};
use crate::handshake::{ClientRequest, Heard};
use crate::protocol::Spoken;
use crate::session::Service;

/// What is known of a session so far. Dropping it ends the session: it logs, counts and settles the bytes.
///
/// Outlives the session's relay, so that the counts it settles are final.
pub(crate) struct Record {
    service: Arc<Service>,
    /// `None` of a client on this machine's file system.
    client: Option<SocketAddr>,
    user: Option<Box<str>>,
    protocol: Option<Spoken>,
    target: Option<Target>,
    /// What was dialled for the target: one of its addresses, or the first proxy on the way.
    dialled: Option<SocketAddr>,
    started: Instant,
    connect: Option<Duration>,
    /// Bytes that the target got before the relay.
    ahead: u64,
    /// Counts of earlier relays of this session.
    before: Option<Box<RelaySummary>>,
    /// Where the traffic ledger keeps this session's relay.
    running: Option<usize>,
    /// Where it keeps its association.
    associated: Option<usize>,
    outcome: Option<Outcome>,
}

/// How a session ended, and the error if there was one.
pub(crate) struct Outcome {
    pub(crate) end: SessionEnd,
    pub(crate) cause: Option<Box<str>>,
}

/// How a session ended: the `end` of metrics and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SessionEnd {
    /// Both sides finished, the client first. (Or the client went away before it asked for anything.)
    ClientEof,
    /// Both sides finished, the upstream first.
    UpstreamEof,
    Idle,
    HalfCloseTimeout,
    /// The client's socket failed.
    ResetByClient,
    /// The upstream's socket failed.
    ResetByUpstream,
    /// With the errno's name.
    ConnectFailed(&'static str),
    /// Refused by us, with the reason.
    Denied(&'static str),
    /// Cut because the program stops.
    Drained,
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

    /// A balancer in front of us says whose connection it is.
    pub(crate) fn introduced(&mut self, client: SocketAddr) {
        self.client = Some(client);
    }

    /// The client has said this of itself, whether or not it is served.
    pub(crate) fn heard(&mut self, heard: Heard) {
        self.protocol = heard.protocol;
        self.user = heard.user;
    }

    /// The client asks for this.
    pub(crate) fn requested(&mut self, request: &ClientRequest) {
        self.target = Some(request.request.target.clone());
    }

    /// The target answered after `time`.
    pub(crate) fn connected(&mut self, dialled: Option<SocketAddr>, time: Duration) {
        self.service.metrics.connected(time);
        self.dialled = dialled;
        self.connect = Some(time);
    }

    /// The target has got so many bytes before the relay.
    pub(crate) fn sent_ahead(&mut self, bytes: u64) {
        self.ahead = bytes;
        self.service.traffic.sent_ahead(bytes);
    }

    /// Bytes move from now on.
    pub(crate) fn relaying(&mut self, stats: RelayStats, cancel: CancelHandle) {
        if self.running.is_some() {
            self.before = Some(Box::new(self.relayed()));
        }
        self.running = Some(self.service.traffic.enter(stats, cancel));
    }

    /// Datagrams pass from now on.
    pub(crate) fn associating(&mut self, stats: AssociateStats) {
        self.associated = Some(self.service.traffic.associate(stats));
    }

    /// Counts of all relays of this session. The last one has ended.
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

/// What there is, or the word for what there is not.
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

/// Bytes in flight when it ended, where there were any.
fn lost(direction: &DirectionSummary) -> Option<u64> {
    (direction.lost > 0).then_some(direction.lost)
}

impl Outcome {
    pub(crate) fn because(end: SessionEnd, cause: &dyn fmt::Display) -> Self {
        Self {
            end,
            cause: Some(cause.to_string().into()),
        }
    }
}

impl From<SessionEnd> for Outcome {
    fn from(end: SessionEnd) -> Self {
        Self { end, cause: None }
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientEof => f.write_str("client_eof"),
            Self::UpstreamEof => f.write_str("upstream_eof"),
            Self::Idle => f.write_str("idle"),
            Self::HalfCloseTimeout => f.write_str("half_close_timeout"),
            Self::ResetByClient => f.write_str("reset_by_client"),
            Self::ResetByUpstream => f.write_str("reset_by_upstream"),
            Self::ConnectFailed(errno) => write!(f, "connect_failed:{errno}"),
            Self::Denied(reason) => write!(f, "denied:{reason}"),
            Self::Drained => f.write_str("drained"),
        }
    }
}

impl EncodeLabelValue for SessionEnd {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        use fmt::Write;
        write!(encoder, "{self}")
    }
}
