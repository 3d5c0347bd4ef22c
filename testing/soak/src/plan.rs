//! The plan of a connection. Both ends compute it from the seed and the connection's number.

use std::time::{Duration, Instant};

use super::pattern::PIECE_MAX;
use spliceway_load::Random;

/// One connection, from the first byte to the last.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) kind: Kind,
    /// The flow from client to server, and the flow back.
    pub(super) flows: [Flow; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Bulk,
    /// Requests and responses of random sizes.
    Rounds {
        trips: u64,
        size_max: u64,
        sizes: u64,
    },
    SlowReader,
    /// One side ends its flow before the other begins.
    LateAnswer,
    Urgent,
    Idle,
    /// This side resets the connection after the bytes of its flow.
    Reset(Side),
    /// The connection is opened, and closed or reset without a byte.
    Silent {
        reset: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Client,
    Server,
}

/// One direction of a connection.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) bytes: u64,
    /// Bytes sent per call.
    pub(super) piece: usize,
    pub(super) begin: Begin,
    /// The sender sends an urgent byte before this byte. There is one per direction, because a
    /// second could turn the first into a normal byte.
    pub(super) urgent_at: Option<u64>,
    /// The reader pauses for this time each time it has read this many bytes.
    pub(super) stall: Option<(u64, Duration)>,
    /// The time at which the sender stops, even if it has not sent all of `bytes`.
    pub(super) cut: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Begin {
    After(Duration),
    /// Begins this long after the other side ended its flow.
    AfterPeersEnd(Duration),
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Session {
    /// Returns a session that sends these numbers of bytes up and down, as fast as possible.
    pub(super) fn bulk(number: u64, up: u64, down: u64, cut: Option<Instant>) -> Self {
        let flow = |bytes| Flow {
            cut,
            ..Flow::of(bytes, PIECE_MAX)
        };
        Self {
            number,
            kind: Kind::Bulk,
            flows: [flow(up), flow(down)],
        }
    }

    /// Returns the connection with this number in the mixed load for this seed.
    pub(super) fn mixed(seed: u64, number: u64) -> Self {
        let mut random = Random::new(seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut session = Self::bulk(number, 0, 0, None);
        session.kind = kind(&mut random);
        session.flows = match session.kind {
            Kind::Bulk => [(); 2].map(|()| bulk_flow(&mut random, 64 * MIB)),
            Kind::SlowReader => [(); 2].map(|()| slow_flow(&mut random)),
            Kind::LateAnswer => late_ways(&mut random),
            Kind::Urgent => [(); 2].map(|()| urgent_way(&mut random)),
            Kind::Idle => [(); 2].map(|()| idle_way(&mut random)),
            Kind::Reset(_) => [(); 2].map(|()| bulk_flow(&mut random, 4 * MIB)),
            Kind::Rounds { .. } | Kind::Silent { .. } => session.flows,
        };
        session
    }
}

/// Draws a kind, in shares of 1/20. Chatty kinds are the most frequent. Every remaining kind is
/// frequent enough to run at the same time as the others.
fn kind(random: &mut Random) -> Kind {
    match random.between(1, 20) {
        1..=4 => Kind::Bulk,
        5..=9 => Kind::Rounds {
            trips: random.magnitude(1, 2000),
            size_max: random.magnitude(64, 256 * KIB),
            sizes: random.next(),
        },
        10 | 11 => Kind::SlowReader,
        12..=14 => Kind::LateAnswer,
        15 => Kind::Urgent,
        16 => Kind::Idle,
        17 => Kind::Reset(Side::Client),
        18 => Kind::Reset(Side::Server),
        _ => Kind::Silent {
            reset: random.one_in(2),
        },
    }
}

impl Flow {
    fn of(bytes: u64, piece: usize) -> Self {
        Self {
            bytes,
            piece,
            begin: Begin::After(Duration::ZERO),
            urgent_at: None,
            stall: None,
            cut: None,
        }
    }
}

/// Draws a bulk direction. A quarter of these directions carry nothing. Such a direction ends
/// immediately while the other runs.
fn bulk_flow(random: &mut Random, most: u64) -> Flow {
    let bytes = random.magnitude(KIB, most);
    let piece = random.magnitude(1448, PIECE_MAX as u64) as usize;
    Flow::of(if random.one_in(4) { 0 } else { bytes }, piece)
}

/// Draws a slow direction. It has at most 8 stalls, so that its session ends within seconds of the
/// other sessions.
fn slow_flow(random: &mut Random) -> Flow {
    let bytes = random.magnitude(256 * KIB, 32 * MIB);
    Flow {
        stall: Some((bytes / random.between(1, 8), milliseconds(random, 20, 500))),
        ..Flow::of(bytes, PIECE_MAX)
    }
}

fn late_ways(random: &mut Random) -> [Flow; 2] {
    let first = bulk_flow(random, MIB);
    let late = Flow {
        begin: Begin::AfterPeersEnd(milliseconds(random, 0, 300)),
        ..bulk_flow(random, 16 * MIB)
    };
    match random.one_in(2) {
        true => [first, late],
        false => [late, first],
    }
}

fn urgent_way(random: &mut Random) -> Flow {
    let flow = Flow::of(random.magnitude(KIB, 16 * MIB), 64 << 10);
    Flow {
        urgent_at: Some(random.between(0, flow.bytes - 1)),
        ..flow
    }
}

fn idle_way(random: &mut Random) -> Flow {
    Flow {
        begin: Begin::After(milliseconds(random, 1000, 5000)),
        ..Flow::of(random.magnitude(1, 4 * KIB), PIECE_MAX)
    }
}

fn milliseconds(random: &mut Random, low: u64, high: u64) -> Duration {
    Duration::from_millis(random.between(low, high))
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Rounds { .. } => "rounds",
            Self::SlowReader => "slow reader",
            Self::LateAnswer => "late answer",
            Self::Urgent => "urgent",
            Self::Idle => "idle",
            Self::Reset(_) => "reset",
            Self::Silent { .. } => "silent",
        }
    }
}

impl Side {
    /// Returns the direction that this side sends and the direction that it receives, as indices
    /// into a session's `flows`.
    pub(super) fn out_and_in(self) -> (usize, usize) {
        match self {
            Self::Client => (0, 1),
            Self::Server => (1, 0),
        }
    }
}
