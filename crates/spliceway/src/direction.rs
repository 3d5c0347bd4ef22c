//! One direction of a relay as a poll: waits for what its [`Mover`] needs, or copies where the ends are no sockets.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use spliceway_core::socket::{self, Wait};
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Engine, Mover, Need, Reason, Side, Source};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::coop::has_budget_remaining;

use crate::company::{Company, give_way};
use crate::end::End;
use crate::fallback::CopyLoop;
use crate::lookout::Lookout;
use crate::options::{RelayOptions, Way};
use crate::outcome::Operation;
use crate::rate::Gate;
use crate::stream;

thread_local! {
    static WORKER: RefCell<Worker> = RefCell::new(Worker {
        scratch: vec![0; SCRATCH].into_boxed_slice(),
        company: Company::new(),
        lookout: Lookout::new(),
    });
}

/// What the relays of one thread share.
struct Worker {
    /// Where it receives: bytes stay here only until the same poll has sent them, or has set the rest aside.
    scratch: Box<[u8]>,
    company: Company,
    lookout: Lookout,
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
    /// Each end is a socket or a pipe.
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
                let refusal = io::Error::new(
                    io::ErrorKind::Unsupported,
                    "cannot splice: a stream is no plain socket or pipe",
                );
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
                if course.start == Start::Over {
                    // It counts as drained, and may stand at an urgent mark.
                    course.start = Start::Untried;
                }
            }
            Means::Copying(copy_loop) => copy_loop.finish(RECEIVED_MOST),
            Means::Refused => {}
        }
    }

    /// Bytes that may still be taken.
    pub(crate) fn allowance(&self) -> u64 {
        match &self.means {
            Means::Splicing { mover, .. } => mover.allowance(),
            Means::Copying(copy_loop) => copy_loop.allowance(),
            Means::Refused => 0,
        }
    }

    /// Takes no more than `bytes` from now on.
    pub(crate) fn restrict(&mut self, bytes: u64) {
        match &mut self.means {
            Means::Splicing { mover, .. } => mover.restrict(bytes),
            Means::Copying(copy_loop) => copy_loop.restrict(bytes),
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
        let Some((source, sink)) = stream::plain(reader, writer) else {
            counts.set_fallback(Reason::NotSockets);
            return match options.engine {
                Engine::Splice => Self::Refused,
                Engine::Auto | Engine::Copy => Self::Copying(CopyLoop::new(prefix, limit)),
            };
        };
        if options.engine == Engine::Copy {
            counts.set_fallback(Reason::Disabled);
        }
        let (source, sink) = (source.kind(), sink.kind());
        let mut mover =
            Mover::between(source, sink, options.engine, options.pipe_size, options.the_pool()).with_limit(limit);
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
    source: End<'_>,
    sink: End<'_>,
    counts: &Counts,
) -> Poll<Result<(), Broken>> {
    WORKER.with_borrow_mut(|worker| {
        let Worker {
            scratch,
            company,
            lookout,
        } = worker;
        mover.take_turns(company.turns());
        let turn = &mut Turn {
            mover,
            scratch,
            company,
            lookout,
        };
        poll_steps(turn, course, gate, cx, source, sink, counts)
    })
}

/// A mover while it has the scratch buffer. Dropping it parks the mover, also where a panic ends the turn: bytes left in a buffer
/// that the next relay receives into would be sent to the wrong peer.
struct Turn<'a> {
    mover: &'a mut Mover,
    scratch: &'a mut [u8],
    company: &'a mut Company,
    lookout: &'a Lookout,
}

impl Turn<'_> {
    /// One attempt at the source, when it may have something and the gate lets something through.
    fn poll_take(
        &mut self,
        course: &mut Course,
        mut gate: Option<&mut Gate>,
        cx: &mut Context<'_>,
        source: End<'_>,
        counts: &Counts,
    ) -> Poll<io::Result<()>> {
        let Some(attempt) = ready!(self.poll_source(course, cx, source))? else {
            return Poll::Ready(Ok(()));
        };
        let most = ready!(poll_most(self.mover, gate.as_deref_mut(), cx));
        // A direction that stays silent should need no pipe, not even to find that out. (A socket that was just connected counts as
        // readable: before, it was hung up.)
        let looks_first = course.start == Start::Untried && self.mover.wants_pipe();
        let mut learnt = Source::Open;
        let mut take = |fd: BorrowedFd<'_>| {
            learnt = match looks_first.then(|| socket::peek(fd, Wait::Never)) {
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Source::WouldBlock,
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) | None => self.mover.take_at_most(most, fd, self.scratch, counts)?,
            };
            Ok(learnt)
        };
        let taken = match attempt {
            Attempt::Ready => source.try_take(take),
            Attempt::Untried => take(source.as_fd()).map(drop),
        };
        match (attempt, learnt) {
            // To the end of what was received: an urgent mark is none.
            (_, Source::Short) if course.finishing => course.start = Start::Untried,
            (_, Source::Short) => {
                course.start = Start::Over;
                self.lookout.suspect(source.as_fd());
            }
            (_, Source::WouldBlock) => {
                course.start = Start::Over;
                // At a mark a receive finds nothing as well where a signal is pending.
                if let End::Tcp(_) = source {
                    self.lookout.suspect(source.as_fd());
                }
            }
            (Attempt::Ready, Source::Open) => course.start = Start::Over,
            (Attempt::Untried, Source::Open) => {}
        }
        if self.mover.holds_message() {
            self.company.message();
        }
        if let Some(gate) = gate {
            gate.spent(self.mover.in_flight());
        }
        Poll::Ready(taken)
    }

    /// One attempt to move bytes from the source to the sink with no pipe between, when both may do and the gate lets something
    /// through. Of the two only the sink's readiness is cleared here.
    fn poll_pass(
        &mut self,
        course: &mut Course,
        mut gate: Option<&mut Gate>,
        cx: &mut Context<'_>,
        source: End<'_>,
        sink: End<'_>,
        counts: &Counts,
    ) -> Poll<Result<(), Broken>> {
        let attempt = ready!(self.poll_source(course, cx, source)).map_err(|error| (Operation::Read, error))?;
        let Some(attempt) = attempt else {
            return Poll::Ready(Ok(()));
        };
        if sink
            .poll_write_ready(cx)
            .map_err(|error| (Operation::Write, error))?
            .is_pending()
        {
            return if has_budget_remaining() && self.mover.sink_blocked() {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            };
        }
        let most = ready!(poll_most(self.mover, gate.as_deref_mut(), cx));
        if let Attempt::Ready = attempt {
            course.start = Start::Over;
        }
        let allowance = self.mover.allowance();
        let mut operation = Operation::Write;
        let passed = sink.try_deliver(|sink| {
            self.mover
                .pass(most, source.as_fd(), sink, counts)
                .map_err(|(side, error)| {
                    if let Side::Source = side {
                        operation = Operation::Read;
                    }
                    error
                })
        });
        if let Some(gate) = gate {
            // Of a splice no more than a turn's bytes.
            gate.spent((allowance - self.mover.allowance()) as usize);
        }
        Poll::Ready(passed.map_err(|error| (operation, error)))
    }

    /// Ready when the source may have something; with `None` where that is all it will be asked for.
    fn poll_source(
        &mut self,
        course: &Course,
        cx: &mut Context<'_>,
        source: End<'_>,
    ) -> Poll<io::Result<Option<Attempt>>> {
        let ready = source.poll_read_ready(cx)?.is_ready();
        // Out of budget is not out of bytes, but then all that is to be done is to give way.
        if !ready && !has_budget_remaining() {
            return Poll::Pending;
        }
        Poll::Ready(Ok(Some(match (ready, course.start) {
            (true, _) => Attempt::Ready,
            // A FIFO is read as ended until somebody has opened it to write.
            (false, Start::Untried) if !source.is_empty_pipe() => Attempt::Untried,
            (false, _) if course.finishing => {
                self.mover.restrict(0);
                return Poll::Ready(Ok(None));
            }
            (false, _) => return Poll::Pending,
        })))
    }
}

/// Why the source is worth an attempt.
#[derive(Clone, Copy)]
enum Attempt {
    /// It counts as readable.
    Ready,
    /// It does not, but see [`Start::Untried`].
    Untried,
}

/// The most bytes to take now: ready when the gate lets some through.
fn poll_most(mover: &Mover, gate: Option<&mut Gate>, cx: &mut Context<'_>) -> Poll<usize> {
    match (gate, mover.appetite()) {
        (None, _) | (_, 0) => Poll::Ready(usize::MAX),
        (Some(gate), appetite) => gate.poll_grant(cx, appetite),
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
    source: End<'_>,
    sink: End<'_>,
    counts: &Counts,
) -> Poll<Result<(), Broken>> {
    loop {
        match turn.mover.need() {
            Need::Source => {
                ready!(turn.poll_take(course, gate.as_deref_mut(), cx, source, counts))
                    .map_err(|error| (Operation::Read, error))?;
            }
            Need::Both => ready!(turn.poll_pass(course, gate.as_deref_mut(), cx, source, sink, counts))?,
            // Only the sink is waited for: a full one must not be woken for by a source that has more.
            Need::Sink => {
                ready!(sink.poll_write_ready(cx)).map_err(|error| (Operation::Write, error))?;
                sink.try_deliver(|socket| turn.mover.deliver(socket, turn.scratch, counts))
                    .map_err(|error| (Operation::Write, error))?;
            }
            Need::Yield => {
                turn.mover.yielded();
                turn.company.turn_over();
                give_way(cx);
                return Poll::Pending;
            }
            Need::Shutdown => return Poll::Ready(Ok(())),
        }
    }
}
