//! A direction between sockets and pipes. It waits until its [`Splicer`] can perform the next step,
//! and performs it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use spliceway_core::{
    Counts, EndKind, Engine, Next, PipeSize, Read, ReadOutcome, Side, SizeClass, SpliceThrough, Splicer, WaitsFor,
    Write, WriteOutcome,
};
use tokio::io::AsyncWrite;
use tokio::task::coop::has_budget_remaining;

use crate::direction::OnRead;
use crate::kernel_tls::{KernelTls, Received};
use crate::options::{Begin, Options};
use crate::outcome::{DirectionEnd, Failure, Operation};
use crate::readiness::ReadySocket;
use crate::stream;
use crate::stuck_sink::StuckSink;
use crate::worker::Worker;
use crate::yield_now::yield_now;

/// A direction between sockets and pipes.
#[derive(Debug)]
pub(crate) struct SplicePath {
    splicer: Splicer,
    start: Startup,
    /// Whether the direction ends when its source would block.
    finishing: bool,
    stuck: Option<Box<StuckSink>>,
}

/// The work that must be done before a direction can rely on the readiness of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Startup {
    /// Bytes in buffers around the sockets must go before bytes from the sockets, and after the
    /// caller's prefix. The splicer has the prefix. A new source needs no try afterwards.
    Unbuffer {
        is_source_new: bool,
    },
    /// The source must be tried, even if it does not count as readable, because it may have bytes
    /// that no edge will announce. For example, the caller's own read stopped at an urgent mark.
    /// That read was short, and tokio clears readiness after a short read.
    TrySource,
    Done,
    /// As above, but the last read may have stopped at an urgent mark. Before the direction waits
    /// for the source, the source must be checked for one. Often it does not wait, because the end
    /// of the stream has come with the last bytes.
    CheckMark,
}

impl SplicePath {
    pub(crate) fn new(
        source: ReadySocket<'_>,
        sink: ReadySocket<'_>,
        prefix: Bytes,
        limit: u64,
        begin: Begin,
        options: &Options,
        is_mirrored: bool,
    ) -> Self {
        let (pool, mut size, mut engine) = (options.the_pool(), options.pipe_size, options.engine);
        let kinds = (source.kind(), sink.kind());
        if is_mirrored {
            // The second pipe has room for several reads, so that the observer may be late.
            size = PipeSize::Fixed(SizeClass::Kib256);
        }
        if is_mirrored && (kinds.0 == EndKind::Pipe || kinds.1 == EndKind::Pipe) {
            // One splice from end to end leaves nothing to duplicate.
            engine = Engine::Copy;
        }
        let mut splicer = Splicer::between(kinds.0, kinds.1, engine, size, pool);
        splicer.set_limit(limit);
        splicer.preload(prefix.into());
        let is_source_new = begin == Begin::NewSocket && matches!(source, ReadySocket::Tcp(_));
        if is_source_new {
            splicer.set_plain_source();
        }
        Self {
            splicer,
            start: Startup::Unbuffer { is_source_new },
            finishing: false,
            stuck: None,
        }
    }

    pub(crate) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        mut on_read: Option<&mut OnRead>,
        counts: &Counts,
    ) -> Poll<Result<DirectionEnd, Failure>>
    where
        R: ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        if let Startup::Unbuffer { is_source_new } = self.start {
            ready!(self.poll_unbuffer(cx, reader, writer))?;
            if let Some(mirror) = on_read.as_mut().and_then(|on_read| on_read.mirror.as_mut()) {
                self.splicer.mirror(mirror, &[]);
            }
            self.start = if is_source_new {
                Startup::Done
            } else {
                Startup::TrySource
            };
        }
        let (Some(source), Some(sink)) = (stream::source(reader), stream::sink(writer)) else {
            return Poll::Ready(Err(read_failed(no_socket_any_more())));
        };
        if let Some(tls) = source.tls() {
            tls.poll_owed(cx);
            tls.take_fault().map_err(|error| read_failed(tls.explain(error)))?;
        }
        if let Some(tls) = sink.tls() {
            tls.poll_owed(cx);
        }
        let Self {
            splicer,
            start,
            finishing,
            stuck,
        } = self;
        let polled = ready!(Worker::lend(|worker| {
            let mut parked = Parked { splicer, worker };
            let ends = Ends {
                source,
                sink,
                start,
                finishing: *finishing,
                stuck,
                on_read,
                counts,
            };
            parked.poll(cx, ends)
        }));
        if let Err((operation, error)) = polled {
            let failed = match operation {
                Operation::Read => source.tls(),
                Operation::Write | Operation::Shutdown => sink.tls(),
            };
            let error = match failed {
                Some(tls) => tls.explain(error),
                None => error,
            };
            return Poll::Ready(Err((operation, error)));
        }
        if self.splicer.remaining() == 0 {
            return Poll::Ready(Ok(DirectionEnd::Limit));
        }
        if let Some(tls) = source.tls() {
            tls.has_ended();
        }
        Poll::Ready(Ok(DirectionEnd::Eof))
    }

    /// Reads the bytes that the source has received by now, up to `max`, and then no more.
    pub(crate) fn finish(&mut self, max: u64) {
        self.splicer.set_limit(max);
        self.finishing = true;
        if !matches!(self.start, Startup::Unbuffer { .. }) {
            // The source counts as drained, but it may be at an urgent mark.
            self.start = Startup::TrySource;
        }
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.splicer.remaining()
    }

    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.splicer.set_limit(bytes);
    }

    /// Returns whether the last read of a source with TLS is not complete.
    pub(crate) fn is_inside_read(&self) -> bool {
        self.splicer.was_refused()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.splicer.in_flight()
    }

    pub(crate) fn take_in_flight(&mut self) -> io::Result<Bytes> {
        self.splicer.take_in_flight().map(Bytes::from)
    }

    /// Empties the buffers between the caller's streams and their sockets. It flushes the bytes
    /// that were written. The bytes that were read go first, up to the limit.
    #[cold]
    fn poll_unbuffer<R, W>(&mut self, cx: &mut Context<'_>, reader: &mut R, writer: &mut W) -> Poll<Result<(), Failure>>
    where
        R: ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        ready!(Pin::new(writer).poll_flush(cx)).map_err(write_failed)?;
        let max = self.splicer.remaining();
        let buffered = stream::buffered(reader, cx, max).map_err(read_failed)?;
        self.splicer.set_limit(max - buffered.len() as u64);
        self.splicer.preload(buffered);
        Poll::Ready(Ok(()))
    }
}

/// The type of a stream does not change, but the return value of a caller's
/// [`AsSocket`](crate::AsSocket) may.
#[cold]
fn no_socket_any_more() -> io::Error {
    io::Error::other("a stream was a plain socket when the relay began, and is none any more")
}

fn read_failed(error: io::Error) -> Failure {
    (Operation::Read, error)
}

fn write_failed(error: io::Error) -> Failure {
    (Operation::Write, error)
}

/// Parks the splicer when the poll ends, even after a panic. If bytes stayed in the shared buffer,
/// the next relay would send them to the wrong peer.
struct Parked<'a> {
    splicer: &'a mut Splicer,
    worker: &'a mut Worker,
}

impl Drop for Parked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.splicer.park(&self.worker.scratch);
    }
}

/// The ends of a direction, and the state that one poll needs.
struct Ends<'a> {
    source: ReadySocket<'a>,
    sink: ReadySocket<'a>,
    start: &'a mut Startup,
    /// Whether the direction ends when its source would block.
    finishing: bool,
    stuck: &'a mut Option<Box<StuckSink>>,
    on_read: Option<&'a mut OnRead>,
    counts: &'a Counts,
}

/// Why the direction tries to read from the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The source counts as readable.
    Ready,
    /// The source does not count as readable: see [`Startup::TrySource`].
    Try,
    /// The source is drained, and the direction must end there.
    Finish,
    /// The source has announced its end to an earlier relay.
    Ended,
}

impl Parked<'_> {
    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>, mut ends: Ends<'_>) -> Poll<Result<(), Failure>> {
        loop {
            let before = self.splicer.remaining();
            match self.splicer.next() {
                Next::Read(read) => match ready!(ends.poll_source(cx, self.worker)).map_err(read_failed)? {
                    Attempt::Finish => self.splicer.set_limit(0),
                    Attempt::Ended => self.splicer.end_source(),
                    attempt => {
                        let outcome = ready!(ends.poll_read(cx, read, attempt, self.worker)).map_err(read_failed)?;
                        if let ReadOutcome::Record { kind, length } = outcome {
                            let is_end = ends.on_records(cx, kind, &self.worker.scratch[..length as usize]);
                            if is_end.map_err(read_failed)? {
                                self.splicer.end_source();
                            }
                            continue;
                        }
                        ends.has_read(self.splicer.in_flight(), self.splicer, &self.worker.scratch);
                    }
                },
                Next::SpliceThrough(splice) => match ready!(ends.poll_source(cx, self.worker)).map_err(read_failed)? {
                    Attempt::Finish => self.splicer.set_limit(0),
                    Attempt::Ended => self.splicer.end_source(),
                    attempt => {
                        ready!(ends.poll_splice_through(cx, splice, attempt))?;
                        // The difference is at most the length of one splice, so it fits into a
                        // `usize`.
                        let bytes = (before - self.splicer.remaining()) as usize;
                        ends.has_read(bytes, self.splicer, &[]);
                    }
                },
                Next::Write(write) => {
                    ready!(ends.poll_write(cx, write, &self.worker.scratch)).map_err(write_failed)?;
                }
                Next::Yield => {
                    ends.counts.waits_for(None);
                    yield_now(cx);
                    return Poll::Pending;
                }
                Next::Shutdown => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl Ends<'_> {
    /// Ready when the source may have bytes.
    #[inline]
    fn poll_source(&mut self, cx: &mut Context<'_>, worker: &Worker) -> Poll<io::Result<Attempt>> {
        if self.source.tls().is_some_and(KernelTls::is_at_end) {
            return Poll::Ready(Ok(Attempt::Ended));
        }
        match (self.source.poll_read_ready(cx), *self.start) {
            (Poll::Ready(ready), _) => Poll::Ready(ready.map(|()| Attempt::Ready)),
            (Poll::Pending, Startup::Done) if !self.finishing => self.waits(WaitsFor::Source),
            // Without budget, the source may be ready, and the task polls it again.
            (Poll::Pending, Startup::CheckMark) if !self.finishing && has_budget_remaining() => {
                worker.urgent.add(self.source.as_fd());
                *self.start = Startup::Done;
                self.waits(WaitsFor::Source)
            }
            (Poll::Pending, _) => self.poll_unready_source().map(Ok),
        }
    }

    /// Decides what to do with a source that does not count as readable.
    #[cold]
    fn poll_unready_source(&self) -> Poll<Attempt> {
        // If tokio's budget is used up, the source may still have bytes. The task must yield first.
        if !has_budget_remaining() {
            return self.waits(WaitsFor::Source);
        }
        // A read from a FIFO that has never had a writer returns an end of stream.
        if *self.start == Startup::TrySource && !self.source.is_empty_pipe() {
            return Poll::Ready(Attempt::Try);
        }
        match self.finishing {
            true => Poll::Ready(Attempt::Finish),
            false => self.waits(WaitsFor::Source),
        }
    }

    /// Performs one read when the rate limit allows it.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        mut read: Read<'_>,
        attempt: Attempt,
        worker: &mut Worker,
    ) -> Poll<io::Result<ReadOutcome>> {
        let max = ready!(self.poll_max(cx, read.max_bytes()));
        let (is_first, counts, scratch) = (*self.start == Startup::TrySource, self.counts, &mut worker.scratch);
        let perform = |source: BorrowedFd<'_>| {
            // A direction that stays silent should need no pipe, not even to find that out. (A
            // newly connected socket counts as readable, because it was in the hang-up state
            // before.)
            if is_first && read.uses_pipe() && read.is_source_drained(source) {
                return Ok(ReadOutcome::Drained);
            }
            read.perform(max, source, scratch, counts)
        };
        let outcome = match attempt {
            Attempt::Ready => self.source.try_read(perform),
            _ => perform(self.source.as_fd()),
        }?;
        // A direction that finishes reads all bytes that were received. An urgent mark is not their
        // end.
        let is_startup_over = match outcome {
            ReadOutcome::Short => !self.finishing,
            ReadOutcome::Open | ReadOutcome::Record { .. } => attempt == Attempt::Ready,
            ReadOutcome::WouldBlock | ReadOutcome::Drained => true,
        };
        *self.start = match outcome {
            _ if !is_startup_over => Startup::TrySource,
            ReadOutcome::Short => Startup::CheckMark,
            // At an urgent mark, a receive also finds nothing if a signal is pending.
            ReadOutcome::WouldBlock if matches!(self.source, ReadySocket::Tcp(_)) => Startup::CheckMark,
            ReadOutcome::WouldBlock | ReadOutcome::Open | ReadOutcome::Drained | ReadOutcome::Record { .. } => {
                Startup::Done
            }
        };
        Poll::Ready(Ok(outcome))
    }

    /// Handles records of TLS without data. Returns whether they announce the end of the source.
    #[cold]
    fn on_records(&self, cx: &mut Context<'_>, kind: u8, content: &[u8]) -> io::Result<bool> {
        let tls = self.source.tls().expect("other sources have no records");
        // All data before them has been delivered.
        let is_end = tls.on_records(kind, content, Received::ByRelay(self.counts.bytes()))?;
        tls.poll_owed(cx);
        Ok(is_end)
    }

    /// Performs one splice from the source to the sink, when both are ready and the rate limit
    /// allows it. It clears only the sink's readiness.
    fn poll_splice_through(
        &mut self,
        cx: &mut Context<'_>,
        splice: SpliceThrough<'_>,
        attempt: Attempt,
    ) -> Poll<Result<(), Failure>> {
        if self.poll_sink(cx).map_err(write_failed)?.is_pending() {
            return match has_budget_remaining() && splice.sink_blocked() {
                true => Poll::Ready(Ok(())),
                false => self.waits(WaitsFor::Sink),
            };
        }
        let max = ready!(self.poll_max(cx, splice.max_bytes()));
        if attempt == Attempt::Ready {
            *self.start = Startup::Done;
        }
        let (source, counts) = (self.source.as_fd(), self.counts);
        let spliced = self.sink.try_write(|sink| splice.perform(max, source, sink, counts));
        if let Ok(WriteOutcome::WouldBlock) = spliced
            && self.sink.poll_write_ready(cx).is_ready()
        {
            StuckSink::note_full(self.stuck, self.sink, cx);
        }
        Poll::Ready(spliced.map(drop).map_err(|(side, error)| match side {
            Side::Source => read_failed(error),
            Side::Sink => write_failed(error),
        }))
    }

    /// Performs one write. If the sink accepts nothing, the direction waits for the sink alone. A
    /// source that has more must not wake the task while the sink is full.
    fn poll_write(&mut self, cx: &mut Context<'_>, write: Write<'_>, scratch: &[u8]) -> Poll<io::Result<()>> {
        let counts = self.counts;
        let tls = self.sink.tls().map(|tls| (tls, counts.bytes()));
        if let Some((tls, _)) = tls {
            tls.check_writable()?;
        }
        let written = self.sink.try_write(|sink| write.perform(sink, scratch, counts));
        if let Some((tls, before)) = tls {
            tls.has_written(counts.bytes() - before);
        }
        match written? {
            WriteOutcome::Open => Poll::Ready(Ok(())),
            WriteOutcome::WouldBlock => match self.sink.poll_write_ready(cx) {
                Poll::Pending => self.waits(WaitsFor::Sink),
                Poll::Ready(ready) => {
                    ready?;
                    self.poll_ready_full_sink(cx)
                }
            },
        }
    }

    /// Waits for a sink that counts as writable and whose last write found no room. Usually, the
    /// sink has got room since then.
    #[cold]
    fn poll_ready_full_sink(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        StuckSink::note_full(self.stuck, self.sink, cx);
        match self.poll_sink(cx) {
            Poll::Pending => self.waits(WaitsFor::Sink),
            ready => ready,
        }
    }

    /// Ready when the sink may have room.
    fn poll_sink(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stuck {
            Some(stuck) => stuck.poll_room(cx),
            None => self.sink.poll_write_ready(cx),
        }
    }

    /// Ready with the most bytes to read now, up to `max`, when the rate limit allows some.
    fn poll_max(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<usize> {
        match self.on_read.as_mut().and_then(|on_read| on_read.rate.as_mut()) {
            Some(rate) if max > 0 => match rate.poll_grant(cx, max) {
                Poll::Pending => self.waits(WaitsFor::RateLimit),
                granted => granted,
            },
            _ => Poll::Ready(usize::MAX),
        }
    }

    /// Records what the direction waits for.
    fn waits<T>(&self, what: WaitsFor) -> Poll<T> {
        self.counts.waits_for(Some(what));
        Poll::Pending
    }

    /// Records that this many bytes were read. Those that are in flight go to the mirror.
    fn has_read(&mut self, bytes: usize, splicer: &Splicer, scratch: &[u8]) {
        let Some(OnRead { rate, mirror }) = &mut self.on_read else {
            return;
        };
        rate.iter_mut().for_each(|rate| rate.spent(bytes));
        mirror.iter_mut().for_each(|mirror| splicer.mirror(mirror, scratch));
    }
}
