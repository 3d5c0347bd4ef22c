//! The outcome of a relay: what it delivered, and why it ended or failed.

use std::error::Error;
use std::fmt;
use std::io;

use spliceway_core::DirectionSummary;

/// The counts of both directions of a relay, and the reason why it ended.
///
/// Its `Display` is one line: `a to b 12 bytes, b to a 1048576 bytes (983040 spliced): ended`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySummary {
    /// The counts from `a` to `b`.
    pub a_to_b: DirectionSummary,
    /// The counts from `b` to `a`.
    pub b_to_a: DirectionSummary,
    /// The peer whose end of stream came first, or `None` if no stream has ended. If both have
    /// ended, this peer closed the connection first. If the relay sees both ends in the same poll,
    /// this is `a`.
    pub first_eof: Option<Peer>,
    /// Why the relay ended.
    pub end: EndReason,
}

impl RelaySummary {
    /// Returns the number of bytes delivered in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.a_to_b.bytes + self.b_to_a.bytes
    }

    /// Returns the number of bytes of both directions that were spliced.
    #[must_use]
    pub fn spliced(&self) -> u64 {
        self.a_to_b.spliced + self.b_to_a.spliced
    }

    /// Returns the number of bytes of both directions that went through user space.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.a_to_b.copied + self.b_to_a.copied
    }

    /// Returns the number of bytes of both directions that were read and not delivered.
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
    /// The relay has not ended. These are its counts so far.
    #[default]
    Running,
    /// The relay was dropped before its end, for example by a `select!` or with its task.
    Dropped,
    /// The relay failed. These are the counts of a [`RelayError`].
    Broken,
    /// Both directions have ended, at the end of their stream or at their limit. With
    /// [`HalfClose::CloseBoth`](crate::HalfClose::CloseBoth), the end of one direction has ended
    /// both.
    Ended,
    /// No byte was delivered for the [`idle_timeout`](crate::RelayOptions::idle_timeout).
    IdleTimeout,
    /// One direction had ended, and the other one delivered no byte for the
    /// [`half_close_timeout`](crate::RelayOptions::half_close_timeout).
    HalfCloseTimeout,
    /// A [`CancelHandle`](crate::CancelHandle) ended the relay.
    Cancelled,
    /// The relay was [suspended](crate::Relay::suspend). Another relay continues from these counts.
    Suspended,
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
            Self::Suspended => "suspended",
        })
    }
}

/// One of the two streams of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The stream that was given first.
    A,
    /// The other stream.
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

/// An operation of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Reading from the direction's source.
    Read,
    /// Writing to the direction's sink, or flushing the sink.
    Write,
    /// Passing the end of the source to the sink.
    Shutdown,
}

/// The failure of a relay: its direction, its operation, and the bytes delivered until then.
///
/// As an [`io::Error`] (`?` converts it), it is the error of the stream itself, with its kind and
/// errno.
#[derive(Debug)]
#[non_exhaustive]
pub struct RelayError {
    /// The direction that failed. The relay ended the other one too.
    pub direction: Direction,
    /// The operation that failed.
    pub operation: Operation,
    /// The counts of both directions.
    pub summary: RelaySummary,
    /// The stream's own error.
    pub source: io::Error,
}

impl RelayError {
    /// Returns the peer whose stream failed: the direction's source if a read failed, and otherwise
    /// its sink.
    #[must_use]
    pub fn peer(&self) -> Peer {
        failed_peer(self.direction, self.operation)
    }
}

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectionEnd {
    /// The source has ended.
    Eof,
    /// The direction has read all bytes that it may read.
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
