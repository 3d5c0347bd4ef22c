//! One direction of a relay as a poll: waits for what its [`Mover`] needs, or copies where the ends are no sockets.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use spliceway_core::socket::{self, Wait};
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Engine, Mover, Need, Reason, Source};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::coop::has_budget_remaining;

use crate::fallback::CopyLoop;
use crate::options::{RelayOptions, Way};
use crate::outcome::Operation;
use crate::rate::Gate;
use crate::stream::{self, Socket};

thread_local! {
    /// Where a worker receives: bytes stay here only until the same poll has sent them, or has set the rest aside.
    static SCRATCH_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// The most that a source can have received when the other direction ends, and a bound on what a sender without end gets through by
/// then: more than a socket holds by default (`net.ipv4.tcp_rmem`, 6 MiB).
const RECEIVED_MOST: u64 = 8 << 20;

/// One direction from its first byte to its last.
#[derive(Debug)]
pub(crate) struct Moving {
    means: Means,
    gate: Option<Box<Gate>>,
}

/// How one direction moves its bytes, decided by the types of its ends.
#[derive(Debug)]
enum Means {
    /// Both ends are sockets.
    Splicing { mover: Mover, course: Course },
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

/// How far a direction between sockets has come.
#[derive(Debug)]
struct Course {
    start: Start,
    /// To end where its source would wait.
    finishing: bool,
}

/// What is still to be done before a direction takes from its socket as it will to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// What buffers around the sockets hold goes first, behind the caller's prefix, which the mover has.
    Buffered,
    /// The source was not yet seen to be drained, nor told to be readable, and may have bytes of which no edge will tell: a read of
    /// the caller's own that stopped at an urgent mark took the readiness for what lies behind it. (A short read counts as one
    /// that drained the socket.)
    Untried,
    Over,
}

/// Why a direction ended early: the operation that failed, and how.
pub(crate) type Broken = (Operation, io::Error);

impl Moving {
    pub(crate) fn new<R: ?Sized, W: ?Sized>(
        reader: &R,
        writer: &W,
        prefix: Bytes,
        way: &Way,
        options: &RelayOptions,
        counts: &Counts,
    ) -> Self {
        Self {
            means: Means::new(reader, writer, prefix, way, options, counts),
            gate: way.rate.clone().map(|rate| Box::new(Gate::new(rate))),
        }
    }

    /// Ready when the source has ended, or may be taken from no more, and the sink has every byte.
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
        let gate = self.gate.as_deref_mut();
        match &mut self.means {
            Means::Splicing { mover, course } => {
                if course.start == Start::Buffered {
                    let buffered = ready!(poll_unbuffer(cx, reader, writer, mover.allowance()))?;
                    mover.restrict(mover.allowance() - buffered.len() as u64);
                    mover.preload(buffered);
                    course.start = Start::Untried;
                }
                match (stream::source(reader), stream::sink(writer)) {
                    (Some(source), Some(sink)) => ready!(poll_mover(mover, course, gate, cx, source, sink, counts))?,
                    _ => unreachable!("a stream's type does not change"),
                }
                Poll::Ready(Ok(if mover.allowance() == 0 {
                    Moved::UpToLimit
                } else {
                    Moved::All
                }))
            }
            Means::Copying(copy_loop) => copy_loop.poll(cx, reader, writer, gate, counts),
            Means::Refused => {
                let refusal = io::Error::new(io::ErrorKind::Unsupported, "cannot splice: a stream is no plain socket");
                Poll::Ready(Err((Operation::Read, refusal)))
            }
        }
    }

    /// Takes what its source has received by now, and then no more.
    pub(crate) fn finish(&mut self) {
        match &mut self.means {
            Means::Splicing { mover, course } => {
                mover.restrict(RECEIVED_MOST);
                course.finishing = true;
            }
            Means::Copying(copy_loop) => copy_loop.finish(RECEIVED_MOST),
            Means::Refused => {}
        }
    }

    /// Takes no more.
    pub(crate) fn stop(&mut self) {
        match &mut self.means {
            Means::Splicing { mover, .. } => mover.restrict(0),
            Means::Copying(copy_loop) => copy_loop.stop(),
            Means::Refused => {}
        }
    }

    /// Whether the source has bytes that the rate does not allow yet.
    pub(crate) fn is_held_back(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_waiting())
    }

    /// Bytes taken and not yet delivered.
    pub(crate) fn in_flight(&self) -> usize {
        match &self.means {
            Means::Splicing { mover, .. } => mover.in_flight(),
            Means::Copying(copy_loop) => copy_loop.in_flight(),
            Means::Refused => 0,
        }
    }
}

impl Means {
    fn new<R: ?Sized, W: ?Sized>(
        reader: &R,
        writer: &W,
        prefix: Bytes,
        way: &Way,
        options: &RelayOptions,
        counts: &Counts,
    ) -> Self {
        let limit = way.limit.unwrap_or(u64::MAX);
        if !stream::are_sockets(reader, writer) {
            counts.set_fallback(Reason::NotSockets);
            return match options.engine {
                Engine::Splice => Self::Refused,
                Engine::Auto | Engine::Copy => Self::Copying(CopyLoop::new(prefix, limit)),
            };
        }
        if options.engine == Engine::Copy {
            counts.set_fallback(Reason::Disabled);
        }
        let mut mover = Mover::new(options.engine, options.pipe_size, options.the_pool()).with_limit(limit);
        mover.preload(prefix.into());
        Self::Splicing {
            mover,
            course: Course {
                start: Start::Buffered,
                finishing: false,
            },
        }
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
    course: &mut Course,
    gate: Option<&mut Gate>,
    cx: &mut Context<'_>,
    source: Socket<'_>,
    sink: Socket<'_>,
    counts: &Counts,
) -> Poll<Result<(), Broken>> {
    SCRATCH_BUFFER.with_borrow_mut(|scratch| {
        let turn = &mut Turn { mover, scratch };
        poll_steps(turn, course, gate, cx, source, sink, counts)
    })
}

/// A mover while it has the scratch buffer. Dropping it parks the mover, also where a panic ends the turn: bytes left in a buffer
/// that the next relay receives into would be sent to the wrong peer.
struct Turn<'a> {
    mover: &'a mut Mover,
    scratch: &'a mut [u8],
}

impl Turn<'_> {
    /// One attempt at the source, when it may have something and the gate lets something through.
    fn poll_take(
        &mut self,
        course: &mut Course,
        mut gate: Option<&mut Gate>,
        cx: &mut Context<'_>,
        source: Socket<'_>,
        counts: &Counts,
    ) -> Poll<io::Result<()>> {
        let ready = source.poll_read_ready(cx)?.is_ready();
        // Out of budget is not out of bytes, but then all that is to be done is to give way.
        let worth_a_try = ready || (course.start == Start::Untried && has_budget_remaining());
        if !worth_a_try && course.finishing && has_budget_remaining() {
            self.mover.restrict(0);
            return Poll::Ready(Ok(()));
        }
        if !worth_a_try {
            return Poll::Pending;
        }
        let most = match (&mut gate, self.mover.appetite()) {
            (None, _) | (_, 0) => usize::MAX,
            (Some(gate), appetite) => ready!(gate.poll_grant(cx, appetite)),
        };
        // A direction that stays silent should need no pipe, not even to find that out. (A socket that was just connected counts as
        // readable: before, it was hung up.)
        let looks_first = course.start == Start::Untried && self.mover.wants_pipe();
        let mut take = |socket: BorrowedFd<'_>| match looks_first.then(|| socket::peek(socket, Wait::Never)) {
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(Source::WouldBlock),
            Some(Err(error)) => Err(error),
            Some(Ok(_)) | None => self.mover.take_at_most(most, socket, self.scratch, counts),
        };
        let taken = if ready {
            course.start = Start::Over;
            source.try_take(take)
        } else {
            take(source.as_fd()).map(|learnt| {
                if learnt != Source::Open {
                    course.start = Start::Over;
                }
            })
        };
        if let Some(gate) = gate {
            gate.spent(self.mover.in_flight());
        }
        Poll::Ready(taken)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.mover.park(self.scratch);
    }
}

fn poll_steps(
    turn: &mut Turn<'_>,
    course: &mut Course,
    mut gate: Option<&mut Gate>,
    cx: &mut Context<'_>,
    source: Socket<'_>,
    sink: Socket<'_>,
    counts: &Counts,
) -> Poll<Result<(), Broken>> {
    loop {
        match turn.mover.need() {
            Need::Source => {
                ready!(turn.poll_take(course, gate.as_deref_mut(), cx, source, counts))
                    .map_err(|error| (Operation::Read, error))?;
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
