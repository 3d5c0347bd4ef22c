//! The messages of a hand-over. Their JSON is the format between versions of the program: a new
//! field is ignored by an older program, and a missing one has its default.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spliceway::{DirectionStage, DirectionSummary, Peer, Reason, RelayState, RelaySummary, SuspendedDirection};
use spliceway_protocol::Spoken;
use spliceway_protocol::address::Target;

use super::tls::TlsMessage;
use crate::kit::refusal::Refusal;
use crate::session::Facts;

/// The version of the format. A program that changes the meaning of a message changes this number,
/// and a hand-over between two numbers is refused. Counters are the exception: a program that
/// cannot read them begins with its own, because a refused upgrade would be worse.
pub(super) const VERSION: u32 = 1;

/// What the old process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToNew {
    /// The first message.
    Hello { version: u32 },
    /// One descriptor: a listener of this role, opened for this address. Listeners of the same
    /// group were opened for one address.
    Listener {
        role: String,
        address: String,
        group: usize,
    },
    /// The data is the JSON of the services that were given at run time. It is only sent if there
    /// are some, so that a program from before them can take over the others.
    Given,
    /// There are no more listeners. Sessions have identifiers up to this one.
    Prepare { last_session: u64 },
    /// Start the services. The data is the counters so far. If it is not the JSON of
    /// [`Samples`](crate::metrics::Samples), the counters begin again.
    Serve,
    /// The data is a [`ServiceState`](super::state::ServiceState).
    Service,
    /// The totals of an older process.
    Status,
    /// Two descriptors: the client and the target of a session. The data is the bytes in flight, up
    /// and then down, and then the secrets of TLS. A program that does not know these secrets
    /// refuses the session, because there are too many bytes.
    Session(Box<SessionMessage>),
    /// Accept clients, because the old process accepts none any more. The data is the counters
    /// so far.
    Accept,
    /// The data is the counters so far.
    Totals,
    /// The data is the beginning of that of the next message, which is too long for a frame.
    Part,
    /// Accept no clients, and let the sessions finish, because the program was asked to stop.
    Stop,
}

/// What the new process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToOld {
    /// It does not take over.
    Refused { why: String },
    /// It has its listeners and its services, and waits for [`ToNew::Serve`].
    Ready,
    /// Its services can receive sessions.
    Serving,
    /// It accepts clients from now on.
    Accepting,
    /// It owns this session from now on.
    Taken { session: u64 },
    /// The old process still owns this session.
    NotTaken { session: u64, why: String },
}

/// A session in relay.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SessionMessage {
    pub(super) id: u64,
    pub(super) service: String,
    pub(super) age_us: u64,
    client: Option<SocketAddr>,
    user: Option<String>,
    protocol: Option<String>,
    server_name: Option<String>,
    target: Option<String>,
    would_deny: Option<String>,
    dialled: Option<SocketAddr>,
    connect_us: Option<u64>,
    opening_us: Option<u64>,
    ahead: u64,
    before: Option<[Counts; 2]>,
    up: Direction,
    down: Direction,
    first_eof: Option<Side>,
    idle_us: u64,
    /// The time for which the list of sessions shows the session as idle.
    pub(super) shown_idle_us: Option<u64>,
    /// What the innermost rate limit allows or owes, for bytes from and to the client.
    pub(super) rates: [Option<i64>; 2],
    pub(super) tls: TlsMessage,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Direction {
    stage: Stage,
    in_flight: usize,
    remaining: Option<u64>,
    counts: Counts,
    /// The microseconds of waits: source, sink, rate limit, other direction.
    waits_us: [u64; 4],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    #[default]
    Moving,
    Finishing,
    ShuttingDown,
    ShuttingDownAtEof,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Client,
    Target,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Counts {
    spliced: u64,
    copied: u64,
    lost: u64,
    eof: bool,
    fallback: Option<String>,
}

impl SessionMessage {
    /// Returns the message about a session, without the fields that other modules can see.
    pub(super) fn new(facts: &Facts, state: &RelayState) -> Self {
        let both = |summary: &RelaySummary| [(&summary.a_to_b).into(), (&summary.b_to_a).into()];
        Self {
            client: facts.client,
            user: facts.user.as_deref().map(str::to_owned),
            protocol: facts.protocol.map(|protocol| protocol.name().to_owned()),
            server_name: facts.server_name.as_deref().map(str::to_owned),
            target: facts.target.as_ref().map(ToString::to_string),
            would_deny: facts.would_deny.map(|reason| reason.as_str().to_owned()),
            dialled: facts.dialled,
            connect_us: facts.connect.map(micros),
            opening_us: facts.opening.map(micros),
            ahead: facts.ahead,
            before: facts.before.as_deref().map(both),
            up: (&state.a_to_b).into(),
            down: (&state.b_to_a).into(),
            first_eof: state.first_eof.map(|peer| match peer {
                Peer::A => Side::Client,
                Peer::B => Side::Target,
            }),
            idle_us: micros(state.idle),
            ..Self::default()
        }
    }

    /// Returns the facts about the session, for its record.
    pub(super) fn facts(&self) -> Facts {
        let named = |name: &String| Spoken::ALL.into_iter().find(|one| one.name() == name);
        let mut facts = Facts::default();
        facts.client = self.client;
        facts.user = self.user.as_deref().map(Into::into);
        facts.protocol = self.protocol.as_ref().and_then(named);
        facts.server_name = self.server_name.as_deref().map(Into::into);
        facts.target = self.target.as_deref().and_then(target);
        let reason = |text: &String| Refusal::all().find(|reason| reason.as_str() == text);
        facts.would_deny = self.would_deny.as_ref().and_then(reason);
        facts.dialled = self.dialled;
        facts.connect = self.connect_us.map(Duration::from_micros);
        facts.opening = self.opening_us.map(Duration::from_micros);
        facts.ahead = self.ahead;
        facts.before = self.before.as_ref().map(|[up, down]| {
            let mut summary = RelaySummary::default();
            (summary.a_to_b, summary.b_to_a) = (up.summary(), down.summary());
            Box::new(summary)
        });
        facts
    }

    /// Returns the number of bytes that have passed in the session.
    pub(super) fn bytes(&self) -> u64 {
        let relays = self.before.iter().flatten().chain([&self.up.counts, &self.down.counts]);
        let bytes = relays.map(|counts| counts.summary().bytes);
        bytes.fold(self.ahead, u64::saturating_add)
    }

    /// Returns the state of the relay, and the secrets of TLS. `data` has the bytes in flight
    /// before them. Returns `None` if their number is wrong.
    pub(super) fn state<'a>(&self, data: &'a [u8]) -> Option<(RelayState, &'a [u8])> {
        let (up, data) = data.split_at_checked(self.up.in_flight)?;
        let (down, secrets) = data.split_at_checked(self.down.in_flight)?;
        let mut state = RelayState::default();
        state.a_to_b = self.up.suspended(up)?;
        state.b_to_a = self.down.suspended(down)?;
        state.idle = Duration::from_micros(self.idle_us);
        state.first_eof = self.first_eof.map(|side| match side {
            Side::Client => Peer::A,
            Side::Target => Peer::B,
        });
        (secrets.len() == self.tls.secrets_len()).then_some((state, secrets))
    }
}

/// Returns the target that was shown as `text`. The operator's targets may be anything, and those
/// of clients have a name or an address.
fn target(text: &str) -> Option<Target> {
    text.parse().ok().or_else(|| {
        let (name, port) = text.rsplit_once(':')?;
        Target::named(name, port.parse().ok()?)
    })
}

impl From<&SuspendedDirection> for Direction {
    fn from(suspended: &SuspendedDirection) -> Self {
        Self {
            stage: match suspended.stage {
                DirectionStage::Moving => Stage::Moving,
                DirectionStage::Finishing => Stage::Finishing,
                DirectionStage::ShuttingDown { eof: false } => Stage::ShuttingDown,
                DirectionStage::ShuttingDown { eof: true } => Stage::ShuttingDownAtEof,
                DirectionStage::Ended => Stage::Ended,
            },
            in_flight: suspended.in_flight.len(),
            remaining: suspended.remaining,
            counts: (&suspended.counts).into(),
            waits_us: {
                let waits = &suspended.waits;
                [waits.source, waits.sink, waits.rate_limit, waits.other_direction].map(micros)
            },
        }
    }
}

impl Direction {
    fn suspended(&self, in_flight: &[u8]) -> Option<SuspendedDirection> {
        let mut suspended = SuspendedDirection::default();
        suspended.stage = match self.stage {
            Stage::Moving => DirectionStage::Moving,
            Stage::Finishing => DirectionStage::Finishing,
            Stage::ShuttingDown => DirectionStage::ShuttingDown { eof: false },
            Stage::ShuttingDownAtEof => DirectionStage::ShuttingDown { eof: true },
            Stage::Ended => DirectionStage::Ended,
        };
        suspended.in_flight = in_flight.to_vec().into();
        suspended.remaining = self.remaining;
        suspended.counts = self.counts.summary();
        let [source, sink, rate_limit, other_direction] = self.waits_us.map(Duration::from_micros);
        (suspended.waits.source, suspended.waits.sink) = (source, sink);
        (suspended.waits.rate_limit, suspended.waits.other_direction) = (rate_limit, other_direction);
        (in_flight.len() == self.in_flight).then_some(suspended)
    }
}

impl From<&DirectionSummary> for Counts {
    fn from(summary: &DirectionSummary) -> Self {
        Self {
            spliced: summary.spliced,
            copied: summary.copied,
            lost: summary.lost,
            eof: summary.eof,
            fallback: summary.fallback.map(|reason| reason.to_string()),
        }
    }
}

impl Counts {
    fn summary(&self) -> DirectionSummary {
        let known = |name: &String| Reason::ALL.into_iter().find(|reason| reason.to_string() == *name);
        let mut summary = DirectionSummary::default();
        (summary.spliced, summary.copied) = (self.spliced, self.copied);
        summary.bytes = self.spliced.saturating_add(self.copied);
        (summary.lost, summary.eof) = (self.lost, self.eof);
        summary.fallback = self.fallback.as_ref().and_then(known);
        summary
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(stage: DirectionStage, in_flight: &'static [u8]) -> SuspendedDirection {
        let mut direction = SuspendedDirection::default();
        (direction.stage, direction.remaining) = (stage, Some(7));
        direction.in_flight = in_flight.into();
        (direction.counts.spliced, direction.counts.copied) = (3, 4);
        direction.counts.bytes = 7;
        direction.counts.fallback = Some(Reason::ALL[2]);
        (direction.waits.source, direction.waits.sink) = (Duration::from_secs(1), Duration::from_secs(2));
        (direction.waits.rate_limit, direction.waits.other_direction) =
            (Duration::from_secs(3), Duration::from_secs(4));
        direction
    }

    #[test]
    fn a_session_arrives_as_it_was_sent() {
        for (stage, first_eof) in [
            (DirectionStage::Moving, None),
            (DirectionStage::Finishing, Some(Peer::A)),
            (DirectionStage::ShuttingDown { eof: true }, Some(Peer::B)),
            (DirectionStage::ShuttingDown { eof: false }, None),
            (DirectionStage::Ended, None),
        ] {
            let mut state = RelayState::default();
            state.a_to_b = direction(stage, b"up");
            state.b_to_a = direction(DirectionStage::Moving, b"down");
            (state.first_eof, state.idle) = (first_eof, Duration::from_millis(1500));
            let mut summary = RelaySummary::default();
            summary.a_to_b = state.a_to_b.counts;
            for target in ["192.0.2.1:80", "a_b.example.:443", "[2001:db8::1]:1", "unix:/run/a b"] {
                let mut facts = Facts::default();
                facts.client = Some("192.0.2.7:99".parse().unwrap());
                facts.user = Some("ann".into());
                facts.protocol = Some(Spoken::Http);
                facts.server_name = Some("a.example".into());
                facts.target = super::target(target);
                facts.would_deny = Some(Refusal::NameMissing);
                facts.connect = Some(Duration::from_micros(5));
                facts.opening = Some(Duration::from_micros(8));
                facts.ahead = 9;
                facts.before = Some(Box::new(summary));
                let sent = SessionMessage::new(&facts, &state);
                let json = serde_json::to_string(&sent).unwrap();
                let received: SessionMessage = serde_json::from_str(&json).unwrap();
                assert_eq!(received.state(b"updown"), Some((state.clone(), &[][..])));
                let had = received.facts();
                assert_eq!((had.client, had.user, had.ahead), (facts.client, facts.user, 9));
                assert_eq!(had.protocol.map(Spoken::name), Some("http"));
                assert_eq!(had.server_name.as_deref(), Some("a.example"));
                assert_eq!(had.would_deny, facts.would_deny);
                assert_eq!(had.target.unwrap().to_string(), target);
                assert_eq!((had.connect, had.before), (facts.connect, facts.before));
                assert_eq!(had.opening, facts.opening);
                for wrong in [&b"updow"[..], b"updown!", b"u"] {
                    assert_eq!(received.state(wrong), None);
                }
            }
        }
    }

    #[test]
    fn unknown_fields_are_ignored_and_missing_ones_have_their_default() {
        let message: ToNew = serde_json::from_str(r#"{"session":{"id":7,"later":[1]}}"#).unwrap();
        let ToNew::Session(session) = message else {
            panic!("another message")
        };
        let expected = SessionMessage {
            id: 7,
            ..SessionMessage::default()
        };
        assert_eq!(*session, expected);
        assert_eq!(session.state(b""), Some((RelayState::default(), &[][..])));
        assert!(serde_json::from_str::<ToOld>(r#"{"later":{}}"#).is_err());
    }
}
