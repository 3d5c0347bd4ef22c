//! How a relay ended: what it delivered, and why it ended or broke.

use std::error::Error;
use std::fmt;
use std::io;

use spliceway_core::DirectionSummary;

/// What a relay delivered in each direction, and why it ended.
///
/// Its `Display` is one line: `a to b 12 bytes, b to a 1048576 bytes (983040 spliced): ended`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySummary {
    /// From `a` to `b`.
    pub a_to_b: DirectionSummary,
    /// From `b` to `a`.
    pub b_to_a: DirectionSummary,
    /// The peer whose end of stream came first, which is the one that closed the connection if both
    /// have ended. `None` while there was none. If both ends are seen at once, `a`'s is the first.
    pub first_eof: Option<Peer>,
    /// Why it ended.
    pub end: EndReason,
}

impl RelaySummary {
    /// Bytes delivered in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.a_to_b.bytes + self.b_to_a.bytes
    }

    /// The bytes of both directions that went through the kernel alone.
    #[must_use]
    pub fn spliced(&self) -> u64 {
        self.a_to_b.spliced + self.b_to_a.spliced
    }

    /// The bytes of both directions that went through user space.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.a_to_b.copied + self.b_to_a.copied
    }

    /// Bytes of both directions that were read and not delivered.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.a_to_b.lost + self.b_to_a.lost
    }
}

impl fmt::Display for RelaySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (direction, way) in [(Direction::AToB, self.a_to_b), (Direction::BToA, self.b_to_a)] {
            write!(f, "{direction} {} bytes", way.bytes)?;
            if way.spliced > 0 {
                write!(f, " ({} spliced)", way.spliced)?;
            }
            if way.lost > 0 {
                write!(f, ", {} lost", way.lost)?;
            }
            f.write_str(if direction == Direction::AToB { ", " } else { ": " })?;
        }
        write!(f, "{}", self.end)
    }
}

/// Why a relay ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// It has not: these are the counts of a relay that runs.
    #[default]
    Running,
    /// It was dropped before its end, for example by a `select!` or with its task.
    Dropped,
    /// It failed: these are the counts of a [`RelayError`].
    Broken,
    /// Both directions have ended, by the end of their stream or their limit; or one has, and the
    /// options end both then.
    Ended,
    /// No byte was delivered for the [`idle_timeout`](crate::RelayOptions::idle_timeout).
    IdleTimeout,
    /// One direction had ended, and the other one delivered no byte for the
    /// [`half_close_timeout`](crate::RelayOptions::half_close_timeout).
    HalfCloseTimeout,
    /// A [`CancelHandle`](crate::CancelHandle) asked for it.
    Cancelled,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Dropped => "dropped",
            Self::Broken => "failed",
            Self::Ended => "ended",
            Self::IdleTimeout => "idle timeout",
            Self::HalfCloseTimeout => "half-close timeout",
            Self::Cancelled => "cancelled",
        })
    }
}

/// One of the two streams of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The one that was given first.
    A,
    /// The other one.
    B,
}

/// A direction of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From `a` to `b`.
    AToB,
    /// From `b` to `a`.
    BToA,
}

/// What a relay was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Reading from the direction's source.
    Read,
    /// Writing to its sink, or flushing it.
    Write,
    /// Passing the end of the source on to the sink.
    Shutdown,
}

/// A relay that failed: where, in which operation, and what was delivered until then.
///
/// As an [`io::Error`] (`?` converts it), it is the error of the stream itself, with its kind and
/// errno.
#[derive(Debug)]
#[non_exhaustive]
pub struct RelayError {
    /// The direction that failed. The other one was ended with it.
    pub direction: Direction,
    /// What failed.
    pub operation: Operation,
    /// What was delivered in both directions.
    pub summary: RelaySummary,
    /// The stream's own error.
    pub source: io::Error,
}

impl RelayError {
    /// The peer whose stream failed: the direction's source if reading failed, or else its sink.
    #[must_use]
    pub fn peer(&self) -> Peer {
        failed_peer(self.direction, self.operation)
    }
}

/// How a direction came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectionEnd {
    /// The source has ended.
    Eof,
    /// Everything that may be read of it was read.
    Limit,
}

/// Why a direction failed: the operation, and its error.
pub(crate) type Failure = (Operation, io::Error);

pub(crate) fn failed_peer(direction: Direction, operation: Operation) -> Peer {
    match (direction, operation) {
        (Direction::AToB, Operation::Read) | (Direction::BToA, Operation::Write | Operation::Shutdown) => Peer::A,
        (Direction::BToA, Operation::Read) | (Direction::AToB, Operation::Write | Operation::Shutdown) => Peer::B,
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AToB => "a to b",
            Self::BToA => "b to a",
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Shutdown => "shutdown",
        })
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed from {}", self.operation, self.direction)
    }
}

impl Error for RelayError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl From<RelayError> for io::Error {
    fn from(error: RelayError) -> Self {
        error.source
    }
}
