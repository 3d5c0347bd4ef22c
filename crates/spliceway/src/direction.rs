//! One direction of a relay as a poll: waits for what its [`Mover`] needs, or copies where the ends are no sockets.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Engine, Mover, Need, Reason, Source};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::coop::has_budget_remaining;

use crate::fallback::CopyLoop;
use crate::relay::{Operation, Options};
use crate::stream::{self, Socket};

thread_local! {
    /// Where a worker receives: bytes stay here only until the same poll has sent them, or has set the rest aside.
    static SCRATCH_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// How one direction moves its bytes, decided by the types of its ends.
#[derive(Debug)]
pub(crate) enum Moving {
    /// Both ends are sockets.
    Splicing { mover: Mover, start: Start },
    /// Some end is not.
    Copying(CopyLoop),
    /// Some end is not, and the caller would rather fail than copy.
    Refused,
}

/// How a direction came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The source has ended.
    All,
    /// All that may be taken of it was taken.
    UpToLimit,
}

/// What is still to be done before a direction takes from its socket as it will to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Buffers around the sockets may hold bytes, which go first.
    Buffered,
    /// The source was not yet seen to be drained, nor told to be readable, and may have bytes of which no edge will tell: a read of the caller's own that stopped at an
    /// urgent mark took the readiness for what lies behind it. (A short read counts as one that drained the socket.)
    Untried,
    Over,
}

/// Why a direction ended early: the operation that failed, and how.
pub(crate) type Broken = (Operation, io::Error);

impl Moving {
    /// A direction that takes at most `limit` bytes.
    pub(crate) fn new<R: ?Sized, W: ?Sized>(
        reader: &R,
        writer: &W,
        limit: u64,
        options: &Options,
        counts: &Counts,
    ) -> Self {
        if !stream::are_sockets(reader, writer) {
            counts.set_fallback(Reason::NotSockets);
            return match options.engine {
                Engine::Splice => Self::Refused,
                Engine::Auto | Engine::Copy => Self::Copying(CopyLoop::with_limit(limit)),
            };
        }
        if options.engine == Engine::Copy {
            counts.set_fallback(Reason::Disabled);
        }
        let mover = Mover::new(options.engine, options.pipe_size, options.pool()).with_limit(limit);
        Self::Splicing {
            mover,
            start: Start::Buffered,
        }
    }

    /// Ready when the source has ended, or the limit is reached, and the sink has every byte.
    pub(crate) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        counts: &Counts,
    ) -> Poll<Result<Moved, Broken>>
    where
        R: AsyncRead + Unpin + ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        let allowance = match self {
            Self::Splicing { mover, start } => {
                if *start == Start::Buffered {
                    let buffered = ready!(poll_unbuffer(cx, reader, writer, mover.allowance()))?;
                    mover.preload(buffered);
                    *start = Start::Untried;
                }
                match (stream::source(reader), stream::sink(writer)) {
                    (Some(source), Some(sink)) => ready!(poll_mover(mover, start, cx, source, sink, counts))?,
                    _ => unreachable!("a stream's type does not change"),
                }
                mover.allowance()
            }
            Self::Copying(copy_loop) => {
                ready!(copy_loop.poll(cx, reader, writer, counts))?;
                copy_loop.allowance()
            }
            Self::Refused => {
                let refusal = io::Error::new(io::ErrorKind::Unsupported, "cannot splice: a stream is no plain socket");
                return Poll::Ready(Err((Operation::Read, refusal)));
            }
        };
        Poll::Ready(Ok(if allowance == 0 { Moved::UpToLimit } else { Moved::All }))
    }
}

/// Empties the buffers between the caller's streams and their sockets: what was written goes out, what was read is returned, up
/// to `most` bytes of it.
fn poll_unbuffer<R, W>(cx: &mut Context<'_>, reader: &mut R, writer: &mut W, most: u64) -> Poll<Result<Vec<u8>, Broken>>
where
    R: ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    ready!(Pin::new(writer).poll_flush(cx)).map_err(|error| (Operation::Write, error))?;
    Poll::Ready(stream::buffered(reader, cx, most).map_err(|error| (Operation::Read, error)))
}

fn poll_mover(
    mover: &mut Mover,
    start: &mut Start,
    cx: &mut Context<'_>,
    source: Socket<'_>,
    sink: Socket<'_>,
    counts: &Counts,
) -> Poll<Result<(), Broken>> {
    SCRATCH_BUFFER.with_borrow_mut(|scratch| {
        let turn = &mut Turn { mover, scratch };
        poll_steps(turn, start, cx, source, sink, counts)
    })
}

/// A mover while it has the scratch buffer. Dropping it parks the mover, also where a panic ends the turn: bytes left in a buffer
/// that the next relay receives into would be sent to the wrong peer.
struct Turn<'a> {
    mover: &'a mut Mover,
    scratch: &'a mut [u8],
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.mover.park(self.scratch);
    }
}

fn poll_steps(
    turn: &mut Turn<'_>,
    start: &mut Start,
    cx: &mut Context<'_>,
    source: Socket<'_>,
    sink: Socket<'_>,
    counts: &Counts,
) -> Poll<Result<(), Broken>> {
    loop {
        match turn.mover.need() {
            Need::Source => {
                let mut take = |socket: BorrowedFd<'_>| turn.mover.take(socket, turn.scratch, counts);
                let taken = match source.poll_read_ready(cx) {
                    Poll::Ready(outcome) => {
                        *start = Start::Over;
                        outcome.and_then(|()| source.try_take(take))
                    }
                    // Out of budget is not out of bytes: then all that is to be done is to give way.
                    Poll::Pending if *start == Start::Untried && has_budget_remaining() => {
                        take(source.as_fd()).map(|learnt| {
                            if learnt != Source::Open {
                                *start = Start::Over;
                            }
                        })
                    }
                    Poll::Pending => return Poll::Pending,
                };
                taken.map_err(|error| (Operation::Read, error))?;
            }
            // Only the sink is waited for: a full one must not be woken for by a source that has more.
            Need::Sink => {
                ready!(sink.poll_write_ready(cx)).map_err(|error| (Operation::Write, error))?;
                sink.try_deliver(|socket| turn.mover.deliver(socket, turn.scratch, counts))
                    .map_err(|error| (Operation::Write, error))?;
            }
            Need::Yield => {
                turn.mover.yielded();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Need::Shutdown => return Poll::Ready(Ok(())),
        }
    }
}
