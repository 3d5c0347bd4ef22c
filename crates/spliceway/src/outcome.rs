//! How a relay ended: what it delivered, and why it ended or broke.

use std::error::Error;
use std::fmt;
use std::io;

use spliceway_core::DirectionSummary;

/// What a relay delivered, each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySummary {
    /// From `a` to `b`.
    pub a_to_b: DirectionSummary,
    /// From `b` to `a`.
    pub b_to_a: DirectionSummary,
    /// Whose end of stream came first, which is who closed the connection where both have ended: the one of the first
    /// [`eof`](DirectionSummary::eof). `None` while there is none. Of two ends seen at once `a`'s is the first.
    pub first_eof: Option<Peer>,
    /// Why it ended.
    pub end: EndReason,
}

/// Why a relay ended that did not break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// It has not: these are the counts of a relay that runs.
    #[default]
    Running,
    /// It was dropped before its end, by a `select!` say, or with its task.
    Dropped,
    /// It broke: these are the counts of a [`RelayError`].
    Broken,
    /// Both directions have ended, by the end of their stream or their limit; or one has, and the options close both then.
    Ended,
    /// No byte was delivered for the [`idle_timeout`](crate::RelayOptions::idle_timeout).
    IdleTimeout,
    /// One direction had ended, and the other delivered no byte for the
    /// [`half_close_timeout`](crate::RelayOptions::half_close_timeout).
    HalfCloseTimeout,
    /// A [`CancelHandle`](crate::CancelHandle) asked for it.
    Cancelled,
}

/// One of the two streams of a relay, by who is at its far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The one that was given first.
    A,
    /// The other.
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
pub enum Operation {
    /// Reading from the direction's source.
    Read,
    /// Writing to its sink, or flushing it.
    Write,
    /// Passing the end of the source on to the sink.
    Shutdown,
}

/// A relay that broke: where, at what, and what was delivered until then.
///
/// As an [`io::Error`] (`?` converts it) it is the error of the stream itself, with its kind and errno.
#[derive(Debug)]
#[non_exhaustive]
pub struct RelayError {
    /// The direction that failed. The other one was ended with it.
    pub direction: Direction,
    /// What failed.
    pub operation: Operation,
    /// What was delivered, both ways.
    pub summary: RelaySummary,
    /// The stream's own error.
    pub source: io::Error,
}

impl RelayError {
    /// Whose stream failed: that of the direction's source where reading failed, its sink's where anything else did.
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
