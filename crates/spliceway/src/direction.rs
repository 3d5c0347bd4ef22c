//! One direction of a relay as a poll: waits for what its [`Mover`] needs, or copies where the ends are no sockets.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use spliceway_core::socket::{self, Wait};
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, EndKind, Engine, Mover, Need, Reason, Side, Sink, Source};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::coop::has_budget_remaining;

use crate::end::End;
use crate::fallback::CopyLoop;
use crate::lookout::Lookout;
use crate::meter::{By, Meter, Timing};
use crate::options::{RelayOptions, Way};
use crate::outcome::Operation;
use crate::rate::Gate;
use crate::rest::{Clock, Rest};
use crate::rhythm::{self, Rhythm};
use crate::stall::Stall;
use crate::stream;
use crate::turn::{self, give_way};

thread_local! {
    static WORKER: RefCell<Worker> = RefCell::new(Worker::new());
}

/// What the relays of one thread share.
struct Worker {
    /// Where it receives: bytes stay here only until the same poll has sent them, or has set the rest aside.
    scratch: Box<[u8]>,
    lookout: Lookout,
    meter: Meter,
    flows: rhythm::Thread,
}

impl Worker {
    fn new() -> Self {
        Self {
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            lookout: Lookout::new(),
            meter: Meter::new(),
            flows: rhythm::Thread::default(),
        }
    }

    /// Lends this thread's, or a new one to a relay that is polled inside another's poll: a waker may poll a task at once.
    fn lend<T>(turn: impl FnOnce(&mut Self) -> T) -> T {
        WORKER.with(|worker| match worker.try_borrow_mut() {
            Ok(mut worker) => turn(&mut worker),
            Err(_) => turn(&mut Self::new()),
        })
    }
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
    /// Of what it holds.
    stall: Stall,
    /// Of a flow that has moved a MiB and may rest.
    rhythm: Option<Box<Rhythm>>,
    /// `None` where it never rests.
    rests_by: Option<Clock>,
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
    // Once in a direction's life, as all that is cold here: what each message passes through is to be small.
    #[cold]
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
                    ready!(poll_unbuffer(cx, reader, writer, mover))?;
                    course.start = Start::Untried;
                }
                let (Some(source), Some(sink)) = (stream::source(reader), stream::sink(writer)) else {
                    unreachable!("a stream's type does not change");
                };
                let polled = Worker::lend(|worker| {
                    let turn = Turn {
                        mover,
                        course,
                        gate,
                        source,
                        sink,
                        counts,
                        worker,
                        timing: Timing::NotBegun,
                    };
                    turn.poll(cx)
                });
                ready!(polled)?;
                Poll::Ready(Ok(if mover.allowance() == 0 {
                    Moved::UpToLimit
                } else {
                    Moved::All
                }))
            }
            Means::Copying(copy_loop) => {
                // Who is woken has something to pass on, as a rule, or room for it.
                turn::message();
                copy_loop.poll(cx, reader, writer, gate, counts)
            }
            Means::Refused => Poll::Ready(Err((Operation::Read, refusal()))),
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
                stall: Stall::default(),
                rhythm: None,
                // Where there is a gate, that tells when to take. Pipes are never ahead of each other for long.
                rests_by: Clock::new(options)
                    .filter(|_| way.rate.is_none() && source == EndKind::Socket && sink == EndKind::Socket),
            },
        }
    }
}

#[cold]
fn refusal() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "cannot splice: a stream is no plain socket or pipe",
    )
}

/// Empties the buffers between the caller's streams and their sockets: what was written goes out, what was read goes first, as much of
/// it as the mover may take.
#[cold]
fn poll_unbuffer<R, W>(
    cx: &mut Context<'_>,
    reader: &mut R,
    writer: &mut W,
    mover: &mut Mover,
) -> Poll<Result<(), Broken>>
where
    R: ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    ready!(Pin::new(writer).poll_flush(cx)).map_err(|error| (Operation::Write, error))?;
    let most = mover.allowance();
    let buffered = stream::buffered(reader, cx, most).map_err(|error| (Operation::Read, error))?;
    mover.restrict(most - buffered.len() as u64);
    mover.preload(buffered);
    Poll::Ready(Ok(()))
}

/// A direction while it is polled, and what its thread lends it. Dropping it parks the mover, also where a panic ends the turn: bytes left
/// in a buffer that the next relay receives into would be sent to the wrong peer.
struct Turn<'a> {
    mover: &'a mut Mover,
    course: &'a mut Course,
    gate: Option<&'a mut Gate>,
    source: End<'a>,
    sink: End<'a>,
    counts: &'a Counts,
    worker: &'a mut Worker,
    timing: Timing,
}

impl Turn<'_> {
    fn poll(mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.cross();
        self.mover.take_long_turns(turn::may_be_long());
        let allowance = self.mover.allowance();
        let polled = self.poll_all(cx);
        turn::took(allowance - self.mover.allowance());
        if self.timing.is_of_message() && self.mover.in_flight() == 0 && self.crosses() {
            self.worker.meter.end(self.timing);
        }
        polled
    }

    /// Whether it is to be measured how messages go.
    fn crosses(&self) -> bool {
        // Where the gate is asked how much to take, the look that ends a splice would be asked for as well, and wait for what it does not need.
        self.gate.is_none() && self.mover.crosses()
    }

    fn cross(&mut self) {
        if self.gate.is_none() {
            self.mover.cross_at(self.worker.meter.crossover());
        }
    }

    #[inline(always)]
    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            match self.mover.need() {
                Need::Source => ready!(self.poll_take(cx)).map_err(|error| (Operation::Read, error))?,
                Need::Both => ready!(self.poll_pass(cx))?,
                Need::Sink => ready!(self.poll_deliver(cx)).map_err(|error| (Operation::Write, error))?,
                Need::Yield => {
                    self.mover.yielded();
                    give_way(cx);
                    return Poll::Pending;
                }
                Need::Shutdown => return Poll::Ready(Ok(())),
            }
        }
    }

    /// One attempt at the source, when it may have something and the gate lets something through.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(attempt) = ready!(self.poll_source(cx))? else {
            return Poll::Ready(Ok(()));
        };
        ready!(self.poll_rest(cx));
        let most = ready!(self.poll_most(cx));
        let source = self.source;
        let crosses = self.crosses();
        let by = if self.mover.wants_pipe() { By::Splice } else { By::Copy };
        if crosses {
            self.timing = self.worker.meter.begin(self.timing, by);
        }
        let taken = match attempt {
            Attempt::Ready => source.try_take(|source| self.take(most, source)),
            Attempt::Untried => self.take(most, source.as_fd()),
        };
        match (attempt, &taken) {
            // To the end of what was received: an urgent mark is none.
            (_, Ok(Source::Short)) if self.course.finishing => self.course.start = Start::Untried,
            (_, Ok(Source::Short)) => {
                self.course.start = Start::Over;
                self.worker.lookout.suspect(source.as_fd());
            }
            (_, Ok(Source::WouldBlock)) => {
                self.course.start = Start::Over;
                // At a mark a receive finds nothing as well where a signal is pending.
                if let End::Tcp(_) = source {
                    self.worker.lookout.suspect(source.as_fd());
                }
            }
            (_, Ok(Source::Quiet)) | (Attempt::Ready, Ok(Source::Open)) => self.course.start = Start::Over,
            (Attempt::Untried, Ok(Source::Open)) | (_, Err(_)) => {}
        }
        if crosses && self.mover.holds_message() {
            if by == By::Splice && !self.mover.knows_its_ends() {
                self.timing = Timing::Off;
            }
            self.timing = self.worker.meter.message(self.timing, self.mover.in_flight(), by);
        } else if self.timing.is_of_message() && self.mover.in_flight() > 0 {
            self.timing = Timing::Off;
        }
        self.took(matches!(taken, Ok(Source::Short | Source::WouldBlock | Source::Quiet)));
        Poll::Ready(taken.map(drop))
    }

    /// Ready unless it is to take nothing yet, so that its sender writes ahead.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.course.rhythm {
            Some(rhythm) if !self.course.finishing => rhythm.poll_rest(cx, &self.worker.flows),
            _ => Poll::Ready(()),
        }
    }

    /// Counts what was just taken of a source that had no more, or had.
    fn took(&mut self, is_drained: bool) {
        let bytes = self.mover.in_flight();
        self.worker.flows.took(bytes);
        if let Some(gate) = &mut self.gate {
            gate.spent(bytes);
        }
        if let Some(rhythm) = &mut self.course.rhythm {
            rhythm.took(bytes, is_drained, &mut self.worker.flows);
        } else if let Some(clock) = self.course.rests_by
            && self.counts.bytes() >= rhythm::WINDOW
        {
            let rhythm = Rhythm::new(Instant::now(), &self.worker.flows, Rest::new(clock));
            self.course.rhythm = Some(Box::new(rhythm));
        }
    }

    fn take(&mut self, most: usize, source: BorrowedFd<'_>) -> io::Result<Source> {
        // A direction that stays silent should need no pipe, not even to find that out. (A socket that was just connected counts as
        // readable: before, it was hung up.)
        if self.course.start == Start::Untried && self.mover.wants_pipe() {
            match socket::peek(source, Wait::Never) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Source::WouldBlock),
                Err(error) => return Err(error),
            }
        }
        if let Some(rhythm) = &self.course.rhythm {
            self.mover.limit_pipe(rhythm.largest_pipe());
        }
        self.mover
            .take_at_most(most, source, &mut self.worker.scratch, self.counts)
    }

    /// One attempt to move bytes from the source to the sink with no pipe between, when both may do and the gate lets something
    /// through. Of the two only the sink's readiness is cleared here.
    fn poll_pass(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let attempt = ready!(self.poll_source(cx)).map_err(|error| (Operation::Read, error))?;
        let Some(attempt) = attempt else {
            return Poll::Ready(Ok(()));
        };
        let room = self.sink.poll_write_ready(cx);
        if room.map_err(|error| (Operation::Write, error))?.is_pending() {
            return if has_budget_remaining() && self.mover.sink_blocked() {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            };
        }
        let most = ready!(self.poll_most(cx));
        if let Attempt::Ready = attempt {
            self.course.start = Start::Over;
        }
        let allowance = self.mover.allowance();
        let passed = self
            .sink
            .try_deliver(|sink| self.mover.pass(most, self.source.as_fd(), sink, self.counts));
        if let Some(gate) = &mut self.gate {
            // Of a splice no more than a turn's bytes.
            gate.spent((allowance - self.mover.allowance()) as usize);
        }
        Poll::Ready(passed.map(drop).map_err(|(side, error)| match side {
            Side::Source => (Operation::Read, error),
            Side::Sink => (Operation::Write, error),
        }))
    }

    /// One attempt at the sink, which is waited for only if it takes nothing, and alone: a full one must not be woken for by a source that
    /// has more.
    fn poll_deliver(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.course.stall.is_long() {
            self.mover.sink_is_slow();
        }
        match self.sink.try_deliver(|sink| self.deliver(sink))? {
            Sink::Open => {
                if self.mover.in_flight() == 0 {
                    self.course.stall.end();
                }
                Poll::Ready(Ok(()))
            }
            Sink::WouldBlock => {
                self.course.stall.begin();
                self.sink.poll_write_ready(cx)
            }
        }
    }

    fn deliver(&mut self, sink: BorrowedFd<'_>) -> io::Result<Sink> {
        self.mover.deliver(sink, &self.worker.scratch, self.counts)
    }

    /// Ready when the source may have something; with `None` where that is all it will be asked for.
    #[inline]
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Attempt>>> {
        match self.source.poll_read_ready(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map(|()| Some(Attempt::Ready))),
            Poll::Pending if self.course.start == Start::Over && !self.course.finishing => Poll::Pending,
            Poll::Pending => self.poll_unready_source().map(Ok),
        }
    }

    /// The source does not count as readable, and may be worth an attempt.
    #[cold]
    fn poll_unready_source(&mut self) -> Poll<Option<Attempt>> {
        // Out of budget is not out of bytes, but then all that is to be done is to give way.
        if !has_budget_remaining() {
            return Poll::Pending;
        }
        // A FIFO is read as ended until somebody has opened it to write.
        if self.course.start == Start::Untried && !self.source.is_empty_pipe() {
            return Poll::Ready(Some(Attempt::Untried));
        }
        if self.course.finishing {
            self.mover.restrict(0);
            return Poll::Ready(None);
        }
        Poll::Pending
    }

    /// The most bytes to take now: ready when the gate lets some through.
    fn poll_most(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let Some(gate) = &mut self.gate else {
            return Poll::Ready(usize::MAX);
        };
        match self.mover.appetite() {
            0 => Poll::Ready(usize::MAX),
            appetite => gate.poll_grant(cx, appetite),
        }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mover.park(&self.worker.scratch);
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

#[cfg(test)]
mod tests;
