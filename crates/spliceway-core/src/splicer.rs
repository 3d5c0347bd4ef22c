//! Performs the steps of a [`Transfer`] on two descriptors. The caller waits for their readiness.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::counts::Counts;
use crate::endpoint::Endpoint;
use crate::kernel_tls;
use crate::limits::SizeClass;
use crate::mirror::Mirror;
use crate::outcomes::{ReadOutcome, WriteOutcome};
use crate::pipe::{Drain, Fill};
use crate::pool::{PipePool, PooledPipe};
use crate::reason::Reason;
use crate::socket::{self, Wait};
use crate::splice_support;
use crate::splice_through::{self, EndKind, Side, Through};
use crate::sys::Errno;
use crate::traffic::{Engine, PipeSize, fills};
use crate::transfer::{Event, SCRATCH, SPLICE_THROUGH_MAX, Step, Transfer};
use crate::unsent::Unsent;

/// One running direction of a relay: its [`Transfer`], and the bytes that it holds at the moment.
///
/// Invariant: the splicer never holds bytes in its pipe and in user space at the same time. If the
/// pipe holds bytes when the splicer is dropped, the pipe is closed.
///
/// The caller asks for the [next](Splicer::next) operation, waits for readiness as its runtime
/// requires, and performs the operation.
#[derive(Debug)]
pub struct Splicer {
    transfer: Transfer,
    pool: PipePool,
    /// The pipe, and the class that was requested. The pool may have lent a smaller one.
    pipe: Option<(SizeClass, PooledPipe)>,
    unsent: Unsent,
    /// Bytes that may still be read from the source.
    remaining: u64,
    source: Endpoint,
    sink: Endpoint,
    wait: Wait,
}

/// The next operation of a [`Splicer`]. Each variant carries the only means to perform its
/// operation, so a caller cannot make calls in the wrong order.
#[derive(Debug)]
pub enum Next<'a> {
    /// Wait until the source is readable, then call [`Read::perform`].
    Read(Read<'a>),
    /// Wait until the source is readable and the sink is writable, then call
    /// [`SpliceThrough::perform`].
    SpliceThrough(SpliceThrough<'a>),
    /// Wait until the sink is writable, then call [`Write::perform`].
    Write(Write<'a>),
    /// Let other tasks run. The readiness of the source does not change.
    Yield,
    /// Call `shutdown(SHUT_WR)` on the sink, if the caller passes the end of the stream on. All
    /// bytes have been delivered.
    Shutdown,
}

/// A read that is due.
#[derive(Debug)]
pub struct Read<'a>(&'a mut Splicer);

/// A splice that is due. It moves bytes from the source to the sink, with no pipe in between.
#[derive(Debug)]
pub struct SpliceThrough<'a>(&'a mut Splicer);

/// A write that is due.
#[derive(Debug)]
pub struct Write<'a>(&'a mut Splicer);

/// The maximum size of a packet in a pipe in packet mode, in bytes (pipe(2)).
const PIPE_BUF: usize = 4096;

impl Splicer {
    /// Creates a direction between sockets whose readiness the caller awaits. None of its calls
    /// blocks, even if a socket is blocking. (The splicer makes such a socket non-blocking before
    /// it splices, because `splice(2)` has no flag for the socket's side.)
    #[must_use]
    pub fn new(engine: Engine, pipe_size: PipeSize, pool: PipePool) -> Self {
        Self::with_wait(engine, pipe_size, pool, Wait::Never)
    }

    /// Creates a direction whose calls wait if a socket is blocking.
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

    /// Creates a direction for which one or both ends may be the caller's own pipes. If an end is a
    /// pipe, one splice moves bytes directly from the source to the sink, with no pipe in between.
    /// Bytes that are not spliced are copied.
    ///
    /// Between two pipes, a packet (`O_DIRECT`) stays a packet. A peer that reads only a part of it
    /// from the sink loses the rest. The splicer cannot detect packets in advance.
    ///
    /// The splicer makes a pipe non-blocking, because `read(2)` and `write(2)` have no flag for it.
    #[must_use]
    pub fn between(source: EndKind, sink: EndKind, engine: Engine, pipe_size: PipeSize, pool: PipePool) -> Self {
        let mut splicer = Self::new(engine, pipe_size, pool);
        (splicer.source.kind, splicer.sink.kind) = (source, sink);
        if source == EndKind::Pipe || sink == EndKind::Pipe {
            splicer.transfer = Transfer::without_pipe(engine);
        }
        splicer
    }

    /// Records that the source is a TCP socket without another protocol on top of it in the kernel.
    /// Otherwise, the first receive asks the kernel.
    pub fn set_plain_source(&mut self) {
        self.source.set_short_read_drains();
    }

    /// Returns the number of bytes that may still be read from the source. Without a limit, this
    /// number starts at `u64::MAX`, which is more than any stream can carry.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Limits all further reads to `bytes` bytes in total. If the source sends records, the splicer
    /// reads the last record as a whole, even if it exceeds the limit. The bytes after the limit
    /// stay in the source for other readers. When the sink has accepted all bytes up to the limit,
    /// the direction ends, as it does at the source's EOF.
    pub fn set_limit(&mut self, bytes: u64) {
        self.remaining = self.remaining.min(bytes);
        self.end_at_limit();
    }

    /// Queues `bytes` to be sent before all bytes that the splicer reads. The bytes of an earlier
    /// call go first. Preloaded bytes do not count towards the limit.
    ///
    /// # Panics
    /// If the direction has already moved other bytes.
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

    /// Returns the number of bytes that were read and not yet delivered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        // At most one of the two lengths is above 0.
        self.pipe.as_ref().map_or(0, |(_, pipe)| pipe.len()) + self.unsent.len()
    }

    /// Returns whether the kernel's TLS has refused a splice, and only the next read can tell why.
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.transfer.was_refused()
    }

    /// Duplicates the bytes in flight into a mirror. Call this after each [`Read`] that brought
    /// bytes, before the next write. `scratch` must be the buffer of the read.
    pub fn mirror(&self, mirror: &mut Mirror, scratch: &[u8]) {
        match &self.pipe {
            Some((_, pipe)) if !pipe.is_empty() => mirror.tee(pipe),
            _ => mirror.write(self.unsent.bytes(scratch)),
        }
    }

    /// Removes and returns the bytes in flight, for a caller that continues without the splicer.
    /// The splicer must be parked.
    ///
    /// # Errors
    /// The errors of `read(2)` on a pipe, which do not occur in a healthy process.
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

    /// Returns the next operation. After [`Next::Yield`], the next call continues the direction.
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

    /// Releases an empty pipe, and saves the unsent bytes from `scratch`, which another direction
    /// may overwrite. Call this before waiting.
    #[inline]
    pub fn park(&mut self, scratch: &[u8]) {
        self.transfer.park();
        self.pipe.take_if(|(_, pipe)| pipe.is_empty());
        if let Unsent::InScratch { start, end } = self.unsent {
            let bytes = scratch[start..end].to_vec();
            self.unsent = Unsent::Owned { bytes, start: 0 };
        }
    }

    /// Counts bytes that were read from the source. (A record is read as a whole, so the last one
    /// may exceed the limit.)
    fn took(&mut self, bytes: usize) {
        self.remaining = self.remaining.saturating_sub(bytes as u64);
    }

    /// Ends the direction if it must not read more bytes and holds none.
    fn end_at_limit(&mut self) {
        if self.remaining == 0 && self.transfer.step().reads() {
            self.transfer.on(Event::LimitReached);
        }
    }

    fn max_read(&self, max: usize) -> usize {
        usize::try_from(self.remaining).map_or(max, |remaining| remaining.min(max))
    }

    /// Handles a reason to copy that a system call or the pool gave. It notes the reason, so that
    /// other directions do not have to discover it themselves.
    fn cannot(&mut self, reason: Reason, counts: &Counts) -> io::Result<()> {
        if !self.transfer.must_splice() {
            splice_support::note(reason);
        }
        self.copy_instead(reason, counts)
    }

    /// Falls back to copying, or fails if the engine is [`Engine::Splice`].
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
    /// Returns the maximum number of bytes that this read can return, or 0 if it only peeks.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        match self.0.transfer.step() {
            Step::Recv => SCRATCH,
            Step::Fill { class, .. } => class.bytes(),
            _ => 0,
        }
    }

    /// Returns whether this read goes into a pipe.
    #[must_use]
    pub fn uses_pipe(&self) -> bool {
        matches!(self.0.transfer.step(), Step::Fill { .. })
    }

    /// Probes the source. Returns `true` if it certainly has nothing to read. The next step is then
    /// still due.
    pub fn is_source_drained(&mut self, source: impl AsFd) -> bool {
        self.0.source.is_drained(source.as_fd())
    }

    /// Reads once, up to `max` bytes. This is one receive into `scratch`, one `splice` into a pipe
    /// (possibly after a probe), or one peek.
    ///
    /// # Errors
    /// The source's own errors. `Unsupported` if the engine is [`Engine::Splice`] and splicing is
    /// not possible. The direction has then ended.
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
            Step::Peek => return Ok(splicer.peek(source)),
            _ => match splicer.source.kind {
                EndKind::Socket => splicer.recv(max, source, scratch),
                EndKind::Pipe => splicer.read(max, source, scratch),
                EndKind::Tls => splicer.receive_record(max, source, scratch),
            },
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
        // If a record is not read as a whole, its rest is lost. TCP has no records, so the code
        // queries only other sockets.
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

    /// Does the same as [`recv`](Self::recv) for a pipe.
    fn read(&mut self, max: usize, source: BorrowedFd<'_>, scratch: &mut [u8]) -> io::Result<ReadOutcome> {
        self.source.unfit_to_splice(source, self.wait)?;
        // If a packet (`O_DIRECT`) is not read as a whole, its rest is lost. The read may therefore
        // exceed `max`, and a rate limit compensates for this later.
        let length = scratch.len().min(SCRATCH).min(self.max_read(max.max(PIPE_BUF)));
        assert!(length > 0, "a read of no bytes says nothing");
        let bytes = splice_through::read(source, &mut scratch[..length])?;
        self.received(bytes, bytes == length);
        Ok(ReadOutcome::Open)
    }

    /// Does the same for a socket with TLS in the kernel, which keeps the rest of a record.
    fn receive_record(&mut self, max: usize, source: BorrowedFd<'_>, scratch: &mut [u8]) -> io::Result<ReadOutcome> {
        let room = scratch.len().min(SCRATCH).min(max);
        let receive = match self.transfer.was_refused() {
            true => kernel_tls::receive_refused,
            false => kernel_tls::receive,
        };
        match receive(source, &mut scratch[..room])? {
            (Some(kernel_tls::DATA) | None, bytes) if bytes > 0 => self.received(bytes, bytes == room),
            (None, _) => self.transfer.on(Event::Eof),
            (Some(kind), length) => {
                self.transfer.on(Event::OtherRecord);
                let length = u32::try_from(length).expect("scratch is small");
                return Ok(ReadOutcome::Record { kind, length });
            }
        }
        Ok(ReadOutcome::Open)
    }

    /// Ends the direction, because its source has ended. The direction must be about to read.
    pub fn end_source(&mut self) {
        self.transfer.on(Event::LimitReached);
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

    fn peek(&mut self, source: BorrowedFd<'_>) -> ReadOutcome {
        let event = self.source.peek(source);
        self.transfer.on(event);
        if event == Event::WouldBlock {
            ReadOutcome::Drained
        } else {
            ReadOutcome::Open
        }
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
        // If the calls may wait, no probe is needed, because the fill itself waits for the source.
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
            Fill::Cannot(Reason::InvalidArgument) if self.source.kind == EndKind::Tls => {
                self.transfer.on(Event::SourceRefused);
            }
            Fill::Cannot(reason) => self.cannot(reason, counts)?,
        }
        Ok(ReadOutcome::Open)
    }

    /// Returns the held pipe if it was requested for this class, or else a pipe from the pool.
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
    /// Reports that the sink is full. Returns `true` if the splicer must first peek at the source,
    /// which may have ended or failed. If it returns `false`, the caller waits for the sink.
    #[must_use]
    pub fn sink_blocked(self) -> bool {
        let peeks = self.0.transfer.step() == Step::SpliceThrough { peeked: false };
        if peeks {
            self.0.transfer.on(Event::SinkBlocked);
        }
        peeks
    }

    /// Splices once from the source to the sink, up to `max` bytes. If the sink is full, the caller
    /// must call [`sink_blocked`](Self::sink_blocked), which decides what comes next. The outcome
    /// does not describe the readiness of the source.
    ///
    /// # Errors
    /// The error of a stream, with the side that failed. `Unsupported` if the engine is
    /// [`Engine::Splice`] and splicing is not possible. The direction has then ended.
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
                // The splicer queries the number of bytes in a pipe before every splice. It peeks
                // at a socket after a splice of few bytes, because most likely the socket is then
                // drained.
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

    /// Returns the maximum number of bytes that one splice moves.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        SPLICE_THROUGH_MAX
    }
}

impl Write<'_> {
    /// Writes once, with one send or one `splice`. `scratch` must be the buffer of the preceding
    /// [`Read`].
    ///
    /// # Errors
    /// The sink's own errors. `Unsupported` if the engine is [`Engine::Splice`] and splicing is not
    /// possible. The direction has then ended.
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
            // The kernel reports a damaged record of the peer to the next call of any kind.
            Drain::Cannot(Reason::InvalidArgument) if self.sink.kind == EndKind::Tls => Err(Errno::INVAL.into()),
            Drain::Cannot(reason) => self.cannot(reason, counts).map(open),
        }
    }

    /// Moves the bytes in the pipe to user space, because the sink cannot be spliced.
    fn unload(&mut self) -> io::Result<WriteOutcome> {
        let (_, mut pipe) = self.pipe.take().expect("a pipe is read out that was filled");
        let bytes = pipe.read_out()?;
        self.unsent = Unsent::Owned { bytes, start: 0 };
        self.transfer.on(Event::Unloaded);
        Ok(WriteOutcome::Open)
    }
}
