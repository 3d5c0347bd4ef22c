//! Performs the steps of a [`Transfer`] on two descriptors, and never waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::counts::Counts;
use crate::endpoint::Endpoint;
use crate::limits::SizeClass;
use crate::pipe::{Drain, Fill};
use crate::pool::{PipePool, PooledPipe};
use crate::reason::Reason;
use crate::socket::{self, Wait};
use crate::splice_support;
use crate::splice_through::{self, EndKind, Side, Through};
use crate::traffic::{Engine, PipeSize, fills};
use crate::transfer::{Event, SCRATCH, SPLICE_THROUGH_MAX, Step, Transfer};

/// One direction of a relay at work: its [`Transfer`], and the bytes that it holds at the moment.
///
/// Invariant: the unsent bytes in user space and the pipe are never both non-empty. Dropping the
/// splicer closes a pipe with bytes inside.
///
/// The caller asks what comes [next](Splicer::next), waits for readiness in its runtime's own way,
/// and performs what it was given.
#[derive(Debug)]
pub struct Splicer {
    transfer: Transfer,
    pool: PipePool,
    /// The pipe, and the class that was asked for: the pool may have lent a smaller one.
    pipe: Option<(SizeClass, PooledPipe)>,
    unsent: Unsent,
    /// Bytes that may still be read from the source.
    remaining: u64,
    source: Endpoint,
    sink: Endpoint,
    wait: Wait,
}

/// What a [`Splicer`] needs next. A variant carries the only way to perform it, so no call can come
/// out of order.
#[derive(Debug)]
pub enum Next<'a> {
    /// A readable source, then [`Read::perform`].
    Read(Read<'a>),
    /// A readable source and a writable sink, then [`SpliceThrough::perform`].
    SpliceThrough(SpliceThrough<'a>),
    /// A writable sink, then [`Write::perform`].
    Write(Write<'a>),
    /// Let other tasks run. The source's readiness stays as it is.
    Yield,
    /// `shutdown(SHUT_WR)` on the sink, if the caller passes ends on. All bytes are delivered.
    Shutdown,
}

/// A read that is due.
#[derive(Debug)]
pub struct Read<'a>(&'a mut Splicer);

/// A splice from the source to the sink, with no pipe in between, that is due.
#[derive(Debug)]
pub struct SpliceThrough<'a>(&'a mut Splicer);

/// A write that is due.
#[derive(Debug)]
pub struct Write<'a>(&'a mut Splicer);

/// What a [`Read`] learned of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// It may have more.
    Open,
    /// It gave fewer bytes than were asked for, so it is drained, and an edge will announce the
    /// next byte. A caller that clears readiness must keep what the poller said of a closed or
    /// failed socket, and must [check the source for an urgent mark](crate::UrgentMarks): a read
    /// stops short there as well.
    Short,
    /// It was probed, and has no byte, no end and no urgent mark: an edge will announce the next.
    Drained,
    /// It had nothing.
    WouldBlock,
}

/// What a write learned of the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It took some bytes.
    Open,
    /// It is full.
    WouldBlock,
}

/// The largest packet of a pipe in packet mode (pipe(2)).
const PIPE_BUF: usize = 4096;

impl Splicer {
    /// A direction between sockets that the caller waits for: none of its calls blocks, even if a
    /// socket is a blocking one. (Such a socket is made non-blocking before it is spliced, because
    /// `splice(2)` knows no other way.)
    #[must_use]
    pub fn new(engine: Engine, pipe_size: PipeSize, pool: PipePool) -> Self {
        Self::with_wait(engine, pipe_size, pool, Wait::Never)
    }

    /// A direction whose calls wait if a socket is a blocking one.
    pub(crate) fn blocking(engine: Engine, pipe_size: PipeSize, pool: PipePool) -> Self {
        Self::with_wait(engine, pipe_size, pool, Wait::IfBlocking)
    }

    fn with_wait(engine: Engine, pipe_size: PipeSize, pool: PipePool, wait: Wait) -> Self {
        Self {
            transfer: Transfer::new(engine, pipe_size),
            pool,
            pipe: None,
            unsent: Unsent::Nothing,
            remaining: u64::MAX,
            source: Endpoint::default(),
            sink: Endpoint::default(),
            wait,
        }
    }

    /// A direction of which one end or both may be pipes of the caller's. Bytes go from one end to
    /// the other by one splice, with no pipe in between, or are copied. (From pipe to pipe a
    /// packet, as `O_DIRECT` makes them, stays one, and a peer that reads the sink in parts loses
    /// its rest. Nothing tells of packets in advance.) Such an end is made non-blocking before it
    /// is used, because `read(2)` and `write(2)` know no other way.
    #[must_use]
    pub fn between(source: EndKind, sink: EndKind, engine: Engine, pipe_size: PipeSize, pool: PipePool) -> Self {
        let mut splicer = Self::new(engine, pipe_size, pool);
        (splicer.source.kind, splicer.sink.kind) = (source, sink);
        if source == EndKind::Pipe || sink == EndKind::Pipe {
            splicer.transfer = Transfer::without_pipe(engine);
        }
        splicer
    }

    /// Bytes that may still be read from the source. Without a limit they begin at `u64::MAX`,
    /// which no stream reaches.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Reads no more than `bytes` from now on, or of a socket of records the one that reaches them.
    /// What follows stays there for others to read. When the sink has the bytes, the direction is
    /// over, as at the source's end.
    pub fn set_limit(&mut self, bytes: u64) {
        self.remaining = self.remaining.min(bytes);
        self.end_at_limit();
    }

    /// `bytes` go first, behind those of an earlier call. They do not count towards the limit.
    ///
    /// # Panics
    /// If the direction has already moved others.
    pub fn preload(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        if let Unsent::Owned {
            bytes: before,
            start: 0,
        } = &mut self.unsent
        {
            before.extend(bytes);
            return;
        }
        self.transfer.preload();
        self.unsent = Unsent::Owned { bytes, start: 0 };
    }

    /// Bytes read and not yet delivered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        // Never both.
        self.pipe.as_ref().map_or(0, |(_, pipe)| pipe.len()) + self.unsent.len()
    }

    /// Takes out the bytes in flight, for a caller that goes on without the splicer. It must be
    /// parked.
    ///
    /// # Errors
    /// Those of `read(2)` on a pipe, none of which a healthy process meets.
    pub fn take_in_flight(&mut self) -> io::Result<Vec<u8>> {
        if let Some((_, mut pipe)) = self.pipe.take()
            && !pipe.is_empty()
        {
            return pipe.read_out();
        }
        match std::mem::replace(&mut self.unsent, Unsent::Nothing) {
            Unsent::Owned { mut bytes, start } => {
                bytes.drain(..start);
                Ok(bytes)
            }
            Unsent::Nothing | Unsent::InScratch { .. } => Ok(Vec::new()),
        }
    }

    /// What is needed next. After [`Next::Yield`] the direction goes on.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend its items")]
    pub fn next(&mut self) -> Next<'_> {
        match self.transfer.step() {
            Step::Recv | Step::Peek | Step::Fill { .. } => Next::Read(Read(self)),
            Step::Send | Step::Drain | Step::Unload => Next::Write(Write(self)),
            Step::SpliceThrough { .. } => Next::SpliceThrough(SpliceThrough(self)),
            Step::Yield => {
                self.transfer.on(Event::Yielded);
                Next::Yield
            }
            Step::Shutdown => Next::Shutdown,
        }
    }

    /// To be called before waiting: releases an empty pipe, and keeps what lies in `scratch`, where
    /// others may read next.
    #[inline]
    pub fn park(&mut self, scratch: &[u8]) {
        self.transfer.park();
        self.pipe.take_if(|(_, pipe)| pipe.is_empty());
        if let Unsent::InScratch { start, end } = self.unsent {
            let bytes = scratch[start..end].to_vec();
            self.unsent = Unsent::Owned { bytes, start: 0 };
        }
    }

    /// Bytes were read from the source. (Of a socket of records, the last one is read whole.)
    fn took(&mut self, bytes: usize) {
        self.remaining = self.remaining.saturating_sub(bytes as u64);
    }

    /// Ends the direction if it may read no more and holds nothing.
    fn end_at_limit(&mut self) {
        if self.remaining == 0 && self.transfer.step().reads() {
            self.transfer.on(Event::LimitReached);
        }
    }

    fn max_read(&self, max: usize) -> usize {
        usize::try_from(self.remaining).map_or(max, |remaining| remaining.min(max))
    }

    /// A system call or the pool gave a reason to copy, which other directions need not find out
    /// again.
    fn cannot(&mut self, reason: Reason, counts: &Counts) -> io::Result<()> {
        if !self.transfer.must_splice() {
            splice_support::note(reason);
        }
        self.copy_instead(reason, counts)
    }

    /// Falls back to copying, or fails if the caller must splice.
    fn copy_instead(&mut self, reason: Reason, counts: &Counts) -> io::Result<()> {
        counts.set_fallback(reason);
        if self.transfer.must_splice() {
            let why = format!("cannot splice: {reason}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        self.transfer.on(Event::Cannot(reason));
        if !self.transfer.step().holds_pipe() {
            self.pipe = None;
        }
        Ok(())
    }
}

impl Read<'_> {
    /// The most bytes that it brings; 0 if it only looks.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        match self.0.transfer.step() {
            Step::Recv => SCRATCH,
            Step::Fill { class, .. } => class.bytes(),
            _ => 0,
        }
    }

    /// Whether it reads into a pipe.
    #[must_use]
    pub fn uses_pipe(&self) -> bool {
        matches!(self.0.transfer.step(), Step::Fill { .. })
    }

    /// Reads once, up to `max` bytes: one `recv` into `scratch`, or one `splice` into a pipe, which
    /// may be preceded by a probe, or one look.
    ///
    /// # Errors
    /// The source's own. `Unsupported` if the caller must splice and that is not possible. The
    /// direction is then over.
    ///
    /// # Panics
    /// If `max` is 0 or `scratch` is empty.
    pub fn perform(
        self,
        max: usize,
        source: impl AsFd,
        scratch: &mut [u8],
        counts: &Counts,
    ) -> io::Result<ReadOutcome> {
        let (splicer, source) = (self.0, source.as_fd());
        let max = splicer.max_read(max);
        let read = match splicer.transfer.step() {
            Step::Fill { class, probe } => splicer.fill(max, source, (class, probe), counts),
            Step::Peek => splicer.peek(source),
            _ if splicer.source.kind == EndKind::Pipe => splicer.read(max, source, scratch),
            _ => splicer.recv(max, source, scratch),
        };
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                splicer.transfer.on(Event::WouldBlock);
                Ok(ReadOutcome::WouldBlock)
            }
            read => read,
        }
    }
}

impl Splicer {
    fn recv(&mut self, max: usize, source: BorrowedFd<'_>, scratch: &mut [u8]) -> io::Result<ReadOutcome> {
        let short_read_drains = self.source.short_read_drains(source);
        let all = scratch.len().min(SCRATCH);
        // The rest of a record that is not read whole is lost. TCP has no records, so only other
        // sockets are asked.
        let takes_part = max >= all || short_read_drains || socket::is_stream(source)?;
        let length = if takes_part { all.min(max) } else { all };
        assert!(max > 0 && length > 0, "a recv of no bytes says nothing");
        let bytes = socket::recv(source, &mut scratch[..length], self.wait)?;
        let full = bytes == length;
        self.received(bytes, full);
        Ok(if short_read_drains && !full && bytes > 0 {
            ReadOutcome::Short
        } else {
            ReadOutcome::Open
        })
    }

    /// [`recv`](Self::recv) of a pipe.
    fn read(&mut self, max: usize, source: BorrowedFd<'_>, scratch: &mut [u8]) -> io::Result<ReadOutcome> {
        self.source.unfit_to_splice(source, self.wait)?;
        // The rest of a packet (`O_DIRECT`) that is not read whole is lost. A rate limit makes up
        // for it later.
        let length = scratch.len().min(SCRATCH).min(self.max_read(max.max(PIPE_BUF)));
        assert!(length > 0, "a read of no bytes says nothing");
        let bytes = splice_through::read(source, &mut scratch[..length])?;
        self.received(bytes, bytes == length);
        Ok(ReadOutcome::Open)
    }

    fn received(&mut self, bytes: usize, full: bool) {
        if bytes == 0 {
            self.transfer.on(Event::Eof);
            return;
        }
        self.took(bytes);
        self.unsent = Unsent::InScratch { start: 0, end: bytes };
        self.transfer.on(Event::Received { bytes, full });
    }

    fn peek(&mut self, source: BorrowedFd<'_>) -> io::Result<ReadOutcome> {
        let event = match self.source.kind {
            EndKind::Socket if socket::peek(source, self.wait)? => Event::Peeked,
            EndKind::Socket => Event::Eof,
            EndKind::Pipe if splice_through::bytes_in_pipe(source)? > 0 => Event::Peeked,
            // An empty pipe may be at its end. A read tells.
            EndKind::Pipe => Event::SourceStopped,
        };
        self.transfer.on(event);
        Ok(ReadOutcome::Open)
    }

    fn fill(
        &mut self,
        max: usize,
        source: BorrowedFd<'_>,
        (class, probe): (SizeClass, bool),
        counts: &Counts,
    ) -> io::Result<ReadOutcome> {
        let open = |()| ReadOutcome::Open;
        if let Err(reason) = splice_support::check() {
            return self.copy_instead(reason, counts).map(open);
        }
        if let Some(reason) = self.source.unfit_to_splice(source, self.wait)? {
            return self.cannot(reason, counts).map(open);
        }
        // A caller whose calls wait learns the same from the fill.
        if probe && self.wait == Wait::Never && self.source.is_drained(source) {
            self.transfer.on(Event::WouldBlock);
            return Ok(ReadOutcome::Drained);
        }
        let pipe = match self.pipe_of(class) {
            Ok(pipe) => pipe,
            Err(reason) => return self.cannot(reason, counts).map(open),
        };
        match pipe.fill_at_most(source, max)? {
            Fill::Moved(bytes) => {
                let full = bytes == max || fills(bytes, pipe.capacity());
                self.took(bytes);
                self.transfer.on(Event::Filled { bytes, full });
            }
            Fill::WouldBlock | Fill::MaybeEof => self.transfer.on(Event::SourceStopped),
            Fill::Cannot(reason) => self.cannot(reason, counts)?,
        }
        Ok(ReadOutcome::Open)
    }

    /// The pipe that is held, if it was asked for as this class, or one from the pool.
    fn pipe_of(&mut self, class: SizeClass) -> Result<&mut PooledPipe, Reason> {
        self.pipe.take_if(|(asked, _)| *asked != class);
        let pipe = match self.pipe.take() {
            Some((_, pipe)) => pipe,
            None => self.pool.acquire(class)?,
        };
        Ok(&mut self.pipe.insert((class, pipe)).1)
    }
}

impl SpliceThrough<'_> {
    /// The sink is full. Returns whether there is something else to do first: to look at the
    /// source, which may have ended or failed. Otherwise, the caller waits for the sink.
    #[must_use]
    pub fn sink_blocked(self) -> bool {
        let peeks = self.0.transfer.step() == Step::SpliceThrough { peeked: false };
        if peeks {
            self.0.transfer.on(Event::SinkBlocked);
        }
        peeks
    }

    /// Splices once from the source to the sink, up to `max` bytes. If the sink is full,
    /// [`sink_blocked`](Self::sink_blocked) tells what to do. It learns nothing of the source's
    /// readiness.
    ///
    /// # Errors
    /// That of a stream, and whose it is. `Unsupported` if the caller must splice and that is not
    /// possible. The direction is then over.
    ///
    /// # Panics
    /// If `max` is 0.
    pub fn perform(
        self,
        max: usize,
        source: impl AsFd,
        sink: impl AsFd,
        counts: &Counts,
    ) -> Result<WriteOutcome, (Side, io::Error)> {
        assert!(max > 0, "a splice of no bytes says nothing");
        let splicer = self.0;
        let (of_source, of_sink) = (|error| (Side::Source, error), |error| (Side::Sink, error));
        let open = |()| WriteOutcome::Open;
        if let Err(reason) = splice_support::check() {
            return splicer.copy_instead(reason, counts).map(open).map_err(of_source);
        }
        let (source, sink) = (source.as_fd(), sink.as_fd());
        let unfit = splicer
            .source
            .unfit_to_splice(source, splicer.wait)
            .map_err(of_source)?;
        let unfit = match unfit {
            None => splicer.sink.unfit_to_splice(sink, splicer.wait).map_err(of_sink)?,
            unfit => unfit,
        };
        if let Some(reason) = unfit {
            return splicer.cannot(reason, counts).map(open).map_err(of_source);
        }
        let max = splicer.max_read(max).min(SPLICE_THROUGH_MAX);
        let guards_sigpipe = splicer.sink.guards_sigpipe();
        let (from, to) = (splicer.source.at(source), splicer.sink.at(sink));
        match splice_through::splice_through(&from, &to, max, guards_sigpipe)? {
            Through::Moved(bytes) => {
                splicer.took(bytes);
                counts.add_spliced(bytes);
                // A pipe is asked for its bytes before every splice. A socket is looked at after a
                // few bytes, because most likely these were all.
                let more = splicer.source.kind == EndKind::Pipe || bytes >= SCRATCH;
                splicer.transfer.on(Event::SplicedThrough { bytes, more });
                splicer.end_at_limit();
            }
            Through::SourceStopped => splicer.transfer.on(Event::SourceStopped),
            Through::SinkWouldBlock => return Ok(WriteOutcome::WouldBlock),
            Through::Cannot(reason) => splicer.cannot(reason, counts).map_err(of_source)?,
            Through::CannotAsk(reason) => splicer.copy_instead(reason, counts).map_err(of_source)?,
        }
        Ok(WriteOutcome::Open)
    }

    /// The most bytes of one splice.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        SPLICE_THROUGH_MAX
    }
}

impl Write<'_> {
    /// Writes once: one `send` of what lies in `scratch`, which is that of the [`Read`] before, or
    /// one `splice`.
    ///
    /// # Errors
    /// The sink's own. `Unsupported` if the caller must splice and that is not possible. The
    /// direction is then over.
    pub fn perform(self, sink: impl AsFd, scratch: &[u8], counts: &Counts) -> io::Result<WriteOutcome> {
        let (splicer, sink) = (self.0, sink.as_fd());
        match splicer.transfer.step() {
            Step::Send => splicer.send(sink, scratch, counts),
            Step::Unload => splicer.unload(),
            _ => splicer.drain(sink, counts),
        }
    }
}

impl Splicer {
    fn send(&mut self, sink: BorrowedFd<'_>, scratch: &[u8], counts: &Counts) -> io::Result<WriteOutcome> {
        let bytes = match self.sink.send(sink, self.unsent.bytes(scratch), self.wait) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(WriteOutcome::WouldBlock),
            Err(error) => return Err(error),
        };
        counts.add_copied(bytes);
        let left = self.unsent.advance(bytes);
        self.transfer.on(Event::Sent { bytes, left });
        self.end_at_limit();
        Ok(WriteOutcome::Open)
    }

    fn drain(&mut self, sink: BorrowedFd<'_>, counts: &Counts) -> io::Result<WriteOutcome> {
        let open = |()| WriteOutcome::Open;
        if let Some(reason) = self.sink.unfit_to_splice(sink, self.wait)? {
            return self.cannot(reason, counts).map(open);
        }
        let (_, pipe) = self.pipe.as_mut().expect("a pipe is drained that was filled");
        match pipe.drain_into(sink)? {
            Drain::Moved(bytes) => {
                counts.add_spliced(bytes);
                let left = pipe.len();
                self.transfer.on(Event::Drained { bytes, left });
                self.end_at_limit();
                Ok(WriteOutcome::Open)
            }
            Drain::WouldBlock => {
                self.transfer.on(Event::SinkBlocked);
                Ok(WriteOutcome::WouldBlock)
            }
            Drain::Cannot(reason) => self.cannot(reason, counts).map(open),
        }
    }

    /// Moves what the pipe holds to user space: the sink cannot be spliced.
    fn unload(&mut self) -> io::Result<WriteOutcome> {
        let (_, mut pipe) = self.pipe.take().expect("a pipe is read out that was filled");
        let bytes = pipe.read_out()?;
        self.unsent = Unsent::Owned { bytes, start: 0 };
        self.transfer.on(Event::Unloaded);
        Ok(WriteOutcome::Open)
    }
}

/// Bytes in user space that the sink has not taken yet.
#[derive(Debug)]
enum Unsent {
    Nothing,
    /// In the caller's scratch buffer, which is lent only until the splicer is parked.
    InScratch {
        start: usize,
        end: usize,
    },
    Owned {
        bytes: Vec<u8>,
        start: usize,
    },
}

impl Unsent {
    fn bytes<'a>(&'a self, scratch: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Nothing => &[],
            Self::InScratch { start, end } => &scratch[*start..*end],
            Self::Owned { bytes, start } => &bytes[*start..],
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::InScratch { start, end } => *end - *start,
            Self::Owned { bytes, start } => bytes.len() - *start,
        }
    }

    /// Forgets what was sent, and frees the memory with the last byte. Returns how many bytes are
    /// left.
    fn advance(&mut self, sent: usize) -> usize {
        if let Self::InScratch { start, .. } | Self::Owned { start, .. } = self {
            *start += sent;
        }
        let left = self.len();
        if left == 0 {
            *self = Self::Nothing;
        }
        left
    }
}
