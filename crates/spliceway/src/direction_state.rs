//! One direction's course, from its start to the end that the sink was told of.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use spliceway_core::Counts;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::direction::Direction;
use crate::options::{DirectionOptions, RelayOptions};
use crate::outcome::{DirectionEnd, Failure, Operation};

/// Where a direction stands.
#[derive(Debug)]
pub(crate) enum DirectionState {
    /// Nothing was done yet. The bytes are the caller's, to go first.
    Start(Bytes),
    Moving(Direction),
    /// Told to end with the other direction, when what its source had received by then is delivered.
    Finishing(Direction),
    ShuttingDown {
        eof: bool,
    },
    Done,
    /// A stream has failed, and with it what the direction held.
    Broken {
        lost: usize,
    },
}

impl DirectionState {
    pub(crate) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        own: &DirectionOptions,
        options: &RelayOptions,
        counts: &Counts,
    ) -> Poll<Result<(), Failure>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            *self = match self {
                Self::Start(prefix) => {
                    let prefix = std::mem::take(prefix);
                    Self::Moving(Direction::new(reader, writer, prefix, own, options, counts))
                }
                Self::Moving(moving) | Self::Finishing(moving) => {
                    let moved = ready!(moving.poll(cx, reader, writer, counts))?;
                    self.after(moved)
                }
                Self::ShuttingDown { eof } => {
                    ready!(poll_shutdown(cx, writer))?;
                    if *eof {
                        counts.set_eof();
                    }
                    Self::Done
                }
                Self::Done | Self::Broken { .. } => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Where it stands when its bytes are delivered.
    fn after(&self, moved: DirectionEnd) -> Self {
        match (self, moved) {
            (Self::Finishing(_), DirectionEnd::Limit) => Self::ShuttingDown { eof: false },
            (_, DirectionEnd::Eof) => Self::ShuttingDown { eof: true },
            (_, DirectionEnd::Limit) => Self::Done,
        }
    }

    /// The other direction has ended: this one is to end too, when it has delivered what its source has received.
    pub(crate) fn finish(&mut self) {
        *self = match std::mem::replace(self, Self::Done) {
            Self::Moving(mut moving) => {
                moving.finish();
                Self::Finishing(moving)
            }
            state => state,
        };
    }

    /// This direction is to end when it has delivered what it holds. Its sink is not shut down, also where it was told to finish.
    pub(crate) fn stop(&mut self) {
        *self = match std::mem::replace(self, Self::Done) {
            Self::Moving(mut moving) | Self::Finishing(mut moving) => {
                moving.set_limit(0);
                Self::Moving(moving)
            }
            Self::Start(_) => Self::Done,
            state => state,
        };
    }

    /// Gives up what it holds, and `bytes` more that were taken from its source. A direction that is done has taken what it had to.
    pub(crate) fn lose(&mut self, bytes: usize) {
        if !matches!(self, Self::Done) {
            let lost = self.in_flight() + bytes;
            *self = Self::Broken { lost };
        }
    }

    pub(crate) fn is_held_back(&self) -> bool {
        match self {
            Self::Moving(moving) | Self::Finishing(moving) => moving.is_held_back(),
            Self::Start(_) | Self::ShuttingDown { .. } | Self::Done | Self::Broken { .. } => false,
        }
    }

    /// Bytes taken and not delivered.
    pub(crate) fn in_flight(&self) -> usize {
        match self {
            Self::Moving(moving) | Self::Finishing(moving) => moving.in_flight(),
            Self::Broken { lost } => *lost,
            Self::Start(_) | Self::ShuttingDown { .. } | Self::Done => 0,
        }
    }
}

#[cold]
pub(crate) fn poll_shutdown<W: AsyncWrite + Unpin>(cx: &mut Context<'_>, writer: &mut W) -> Poll<Result<(), Failure>> {
    Pin::new(writer)
        .poll_shutdown(cx)
        .map_err(|error| (Operation::Shutdown, error))
}
