//! The state of one direction, from its start until its sink has been shut down.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use spliceway_core::{Counts, Mirror};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::direction::Direction;
use crate::options::{Begin, DirectionOptions, Options};
use crate::outcome::{DirectionEnd, Failure, Operation};
use crate::relay::{DirectionStage, SuspendedDirection};

/// The state of one direction.
///
/// ```text
///   Start ──▶ Moving ──▶ ShuttingDown ──▶ Done
///               │  └── limit reached ──────▲
///               └──▶ Finishing: the other direction has ended ──▶ ShuttingDown
///   any state ──▶ Broken: a stream has failed
/// ```
#[derive(Debug)]
pub(crate) enum DirectionState {
    /// The direction has not started. It holds the caller's bytes, which go first, and a mirror.
    Start(Bytes, Option<Mirror>),
    Moving(Direction),
    /// The other direction has ended. This one ends when it has written the bytes that its source
    /// has received.
    Finishing(Direction),
    ShuttingDown {
        eof: bool,
    },
    Done,
    /// A stream has failed. Bytes that the direction held are lost.
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
        options: &Options,
        counts: &Counts,
    ) -> Poll<Result<(), Failure>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        ready!(self.poll_move(cx, reader, writer, own, options, counts))?;
        if let Self::ShuttingDown { eof } = *self {
            ready!(poll_shutdown(cx, writer))?;
            if eof {
                counts.set_eof();
            }
            *self = Self::Done;
        }
        Poll::Ready(Ok(()))
    }

    /// Moves all bytes, and does not shut the sink down.
    pub(crate) fn poll_move<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        own: &DirectionOptions,
        options: &Options,
        counts: &Counts,
    ) -> Poll<Result<(), Failure>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            *self = match self {
                Self::Start(prefix, mirror) => {
                    let (prefix, mirror) = (std::mem::take(prefix), mirror.take());
                    let mut moving = Direction::new(reader, writer, prefix, mirror, own, options, counts);
                    if own.begin == Begin::ResumedToFinish {
                        moving.finish();
                        Self::Finishing(moving)
                    } else {
                        Self::Moving(moving)
                    }
                }
                Self::Moving(moving) | Self::Finishing(moving) => {
                    let moved = ready!(moving.poll(cx, reader, writer, counts))?;
                    self.after(moved)
                }
                Self::ShuttingDown { .. } | Self::Done | Self::Broken { .. } => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Returns the state that follows when all bytes have been written.
    fn after(&self, moved: DirectionEnd) -> Self {
        match (self, moved) {
            (Self::Finishing(_), DirectionEnd::Limit) => Self::ShuttingDown { eof: false },
            (_, DirectionEnd::Eof) => Self::ShuttingDown { eof: true },
            (_, DirectionEnd::Limit) => Self::Done,
        }
    }

    /// Ends this direction because the other one has ended. First it writes the bytes that its
    /// source has received.
    pub(crate) fn finish(&mut self) {
        *self = match std::mem::replace(self, Self::Done) {
            Self::Moving(mut moving) => {
                moving.finish();
                Self::Finishing(moving)
            }
            state => state,
        };
    }

    /// Ends this direction after it has written the bytes that it holds. The sink is not shut down.
    pub(crate) fn stop(&mut self) {
        *self = match std::mem::replace(self, Self::Done) {
            Self::Moving(mut moving) | Self::Finishing(mut moving) => {
                moving.set_limit(0);
                Self::Moving(moving)
            }
            Self::Start(..) => Self::Done,
            state => state,
        };
    }

    /// Discards the bytes that the direction holds, and counts `bytes` more that were read from its
    /// source.
    pub(crate) fn lose(&mut self, bytes: usize) {
        if !matches!(self, Self::Done) {
            let lost = self.in_flight() + bytes;
            *self = Self::Broken { lost };
        }
    }

    /// Removes and returns the bytes that were read and not written, for a caller that continues
    /// without the relay.
    pub(crate) fn take_in_flight(&mut self) -> io::Result<Bytes> {
        let lost = self.in_flight();
        let taken = match std::mem::replace(self, Self::Done) {
            Self::Start(prefix, _) => Ok(prefix),
            Self::Moving(mut direction) | Self::Finishing(mut direction) => direction.take_in_flight(),
            Self::ShuttingDown { .. } | Self::Done | Self::Broken { .. } => Ok(Bytes::new()),
        };
        if taken.is_err() {
            *self = Self::Broken { lost };
        }
        taken
    }

    /// Removes and returns the state from which [`resume`](Self::resume) continues.
    pub(crate) fn suspend(&mut self, own: &DirectionOptions) -> io::Result<SuspendedDirection> {
        let remaining = match self {
            Self::Finishing(direction) => Some(direction.remaining()),
            Self::Moving(direction) => own.limit.map(|_| direction.remaining()),
            Self::Start(..) | Self::ShuttingDown { .. } | Self::Done | Self::Broken { .. } => own.limit,
        };
        let stage = match self {
            Self::Moving(direction) | Self::Finishing(direction) if direction.has_read_eof() => {
                DirectionStage::ShuttingDown { eof: true }
            }
            Self::Start(..) if own.begin == Begin::ResumedToFinish => DirectionStage::Finishing,
            Self::Start(..) | Self::Moving(_) => DirectionStage::Moving,
            Self::Finishing(_) => DirectionStage::Finishing,
            Self::ShuttingDown { eof } => DirectionStage::ShuttingDown { eof: *eof },
            Self::Done | Self::Broken { .. } => DirectionStage::Ended,
        };
        Ok(SuspendedDirection {
            stage,
            remaining,
            in_flight: self.take_in_flight()?,
            ..SuspendedDirection::default()
        })
    }

    /// Continues from `suspended`, which changes the options of the direction.
    pub(crate) fn resume(suspended: SuspendedDirection, own: &mut DirectionOptions) -> Self {
        own.limit = suspended.remaining;
        own.begin = match suspended.stage {
            DirectionStage::Finishing => Begin::ResumedToFinish,
            _ => Begin::Resumed,
        };
        match suspended.stage {
            DirectionStage::Moving | DirectionStage::Finishing => Self::Start(suspended.in_flight, None),
            DirectionStage::ShuttingDown { eof } => Self::ShuttingDown { eof },
            DirectionStage::Ended => Self::Done,
        }
    }

    pub(crate) fn is_held_back(&self) -> bool {
        match self {
            Self::Moving(moving) | Self::Finishing(moving) => moving.is_held_back(),
            Self::Start(..) | Self::ShuttingDown { .. } | Self::Done | Self::Broken { .. } => false,
        }
    }

    pub(crate) fn is_inside_read(&self) -> bool {
        match self {
            Self::Moving(moving) | Self::Finishing(moving) => moving.is_inside_read(),
            Self::Start(..) | Self::ShuttingDown { .. } | Self::Done | Self::Broken { .. } => false,
        }
    }

    /// Returns the number of bytes that were read and not written.
    pub(crate) fn in_flight(&self) -> usize {
        match self {
            Self::Moving(moving) | Self::Finishing(moving) => moving.in_flight(),
            Self::Broken { lost } => *lost,
            Self::Start(..) | Self::ShuttingDown { .. } | Self::Done => 0,
        }
    }
}

#[cold]
pub(crate) fn poll_shutdown<W: AsyncWrite + Unpin>(cx: &mut Context<'_>, writer: &mut W) -> Poll<Result<(), Failure>> {
    Pin::new(writer)
        .poll_shutdown(cx)
        .map_err(|error| (Operation::Shutdown, error))
}
