//! Performs what a [`Transfer`] decides, on two ends, and never waits.

mod end;
mod look;
mod rest;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::counts::Counts;
use crate::pipe::{Drain, Fill};
use crate::pipe_end::{self, EndKind, Pass, Side};
use crate::pool::{PipePool, PooledPipe, SizeClass};
use crate::reason::Reason;
use crate::socket::{self, Seen, Wait};
use crate::switch;
use crate::transfer::{Crossover, Engine, Event, PASS, PipeSize, SCRATCH, Step, TINY_FILL, Transfer, is_full};
use end::End;
use look::Looks;
use rest::Rest;

/// One direction at work: its [`Transfer`], and what it holds at the moment.
///
/// Invariant: the remainder in user space and the pipe are never both non-empty. Dropping it closes a pipe with bytes inside.
///
/// The caller asks what is [needed](Mover::need), waits for that readiness in its runtime's own way, and
/// calls the method that the need belongs to.
#[derive(Debug)]
pub struct Mover {
    transfer: Transfer,
    pool: PipePool,
    /// The pipe, and the class it was asked for as: the pool may have given a smaller one.
    pipe: Option<(SizeClass, PooledPipe)>,
    rest: Rest,
    /// Bytes that may still be taken from the source.
    allowance: u64,
    source: End,
    sink: End,
    wait: Wait,
    looks: Looks,
}

/// The largest packet of a pipe in packet mode (pipe(2)).
const PIPE_BUF: usize = 4096;

/// What a [`Mover`] needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A readable source, then [`Mover::take`].
    Source,
    /// A readable source and a writable sink, then [`Mover::pass`].
    Both,
    /// A writable sink, then [`Mover::deliver`].
    Sink,
    /// A turn for other tasks, then [`Mover::yielded`]. The source's readiness stays as it is.
    Yield,
    /// `shutdown(SHUT_WR)` on the sink, if the caller passes ends on. All bytes are delivered.
    Shutdown,
}

/// What [`Mover::take`] learnt of the source's readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It gave bytes, and fewer than were asked for: it is drained, and an edge will tell of the next byte. Whoever
    /// forgets readiness here must keep what the poller said of a closed or failed socket, and add the source to
    /// [`Suspects`](crate::Suspects): at an urgent mark it is as short of bytes.
    Short,
    /// It was looked at, and has no byte, no end and no urgent mark: an edge will tell of the next, and nobody need suspect it.
    Quiet,
    /// It had nothing.
    WouldBlock,
    /// It may have more.
    Open,
}

/// What [`Mover::deliver`] or [`Mover::pass`] learnt of the sink's readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// It takes nothing now.
    WouldBlock,
    /// It took some.
    Open,
}

impl Mover {
    /// A direction about to start, between sockets that are waited for elsewhere: none of its calls waits, also if a socket is
    /// a blocking one. (Such a socket is made non-blocking before it is spliced, as `splice(2)` knows no other way.)
    #[must_use]
    pub fn new(engine: Engine, pipe_size: PipeSize, pool: PipePool) -> Self {
        Self::with_wait(engine, pipe_size, pool, Wait::Never)
    }

    /// A direction about to start, whose calls wait where a socket is a blocking one.
    #[must_use]
    pub fn blocking(engine: Engine, pipe_size: PipeSize, pool: PipePool) -> Self {
        Self::with_wait(engine, pipe_size, pool, Wait::IfBlocking)
    }

    fn with_wait(engine: Engine, pipe_size: PipeSize, pool: PipePool, wait: Wait) -> Self {
        Self {
            transfer: Transfer::new(engine, pipe_size),
            pool,
            pipe: None,
            rest: Rest::Nothing,
            allowance: u64::MAX,
            source: End::default(),
            sink: End::default(),
            wait,
            looks: Looks::default(),
        }
    }

    /// A direction about to start of which one end is a pipe of the caller's, or both are: bytes go from one to the other by one
    /// splice, with no pipe between, or are copied. (From pipe to pipe a packet, as `O_DIRECT` makes them, stays one, and who reads the
    /// sink in parts loses its rest. Nothing tells of packets in advance.) Such an end is made non-blocking before it is used, as `read(2)` and `write(2)` know no
    /// other way.
    #[must_use]
    pub fn between(source: EndKind, sink: EndKind, engine: Engine, pipe_size: PipeSize, pool: PipePool) -> Self {
        let mut mover = Self::new(engine, pipe_size, pool);
        mover.source.kind = source;
        mover.sink.kind = sink;
        if source == EndKind::Pipe || sink == EndKind::Pipe {
            mover.transfer = Transfer::without_pipe(engine);
        }
        mover
    }

    /// Takes no more than `bytes` from the source, or of a socket of records the one that reaches them: what follows stays there
    /// for others to read. When the sink has them, the direction is over, as at the source's end. To be set before it starts.
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.allowance = bytes;
        self.end_at_limit();
        self
    }

    /// Bytes that may still be taken from the source. Without a limit they begin at `u64::MAX`, which no stream reaches.
    #[must_use]
    pub fn allowance(&self) -> u64 {
        self.allowance
    }

    /// `bytes` go first, behind those of an earlier call. Whether they came from the source or not, the limit is no matter of theirs.
    ///
    /// # Panics
    /// If the direction has already moved others.
    pub fn preload(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        if let Rest::Owned {
            bytes: before,
            start: 0,
        } = &mut self.rest
        {
            before.extend(bytes);
            return;
        }
        self.transfer.preload();
        self.rest = Rest::Owned { bytes, start: 0 };
    }

    /// Takes no more than `bytes` from now on; 0 ends the direction when what it holds is delivered.
    pub fn restrict(&mut self, bytes: u64) {
        self.allowance = self.allowance.min(bytes);
        self.end_at_limit();
    }

    /// Bytes taken and not yet delivered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        // Never both.
        self.pipe.as_ref().map_or(0, |(_, pipe)| pipe.len()) + self.rest.len()
    }

    /// What is needed next.
    #[inline]
    #[must_use]
    pub fn need(&self) -> Need {
        match self.transfer.step() {
            Step::Recv | Step::Peek | Step::Fill(_) => Need::Source,
            Step::Send | Step::Drain | Step::Unload => Need::Sink,
            Step::Pass { .. } => Need::Both,
            Step::Yield => Need::Yield,
            Step::Shutdown | Step::Done => Need::Shutdown,
        }
    }

    /// The most bytes that the next [`take`](Mover::take) or [`pass`](Mover::pass) brings; 0 where it only looks.
    #[must_use]
    pub fn appetite(&self) -> usize {
        match self.transfer.step() {
            Step::Recv => SCRATCH,
            Step::Pass { .. } => PASS,
            Step::Fill(class) => class.bytes(),
            _ => 0,
        }
    }

    /// Whether the next [`take`](Mover::take) needs a pipe.
    #[must_use]
    pub fn wants_pipe(&self) -> bool {
        matches!(self.transfer.step(), Step::Fill(_))
    }

    /// Takes from the source: one `recv` into `scratch`, or one `splice` into a pipe, or one look, which may come before the splice, and after
    /// one that found nothing.
    ///
    /// # Errors
    /// The source's own. `Unsupported` where the engine must splice and cannot. The direction is then over.
    ///
    /// # Panics
    /// If [`need`](Mover::need) is not [`Need::Source`], or `scratch` is empty.
    pub fn take(&mut self, source: impl AsFd, scratch: &mut [u8], counts: &Counts) -> io::Result<Source> {
        self.take_at_most(usize::MAX, source, scratch, counts)
    }

    /// [`take`](Mover::take), for no more than `most` bytes.
    ///
    /// # Errors
    /// Those of [`take`](Mover::take).
    ///
    /// # Panics
    /// As [`take`](Mover::take), or if `most` is 0.
    pub fn take_at_most(
        &mut self,
        most: usize,
        source: impl AsFd,
        scratch: &mut [u8],
        counts: &Counts,
    ) -> io::Result<Source> {
        let most = usize::try_from(self.allowance).map_or(most, |left| left.min(most));
        match self.transfer.step() {
            Step::Recv => self.recv(most, source, scratch),
            Step::Peek => self.peek(source),
            Step::Fill(class) => self.fill(most, source, class, counts),
            step => unreachable!("{step:?} takes nothing from the source"),
        }
    }

    /// The sink is full: whether there is something else to do first, which is to look at the source. It may have ended, or broken,
    /// and then there is nothing to wait for a sink for.
    ///
    /// # Panics
    /// If [`need`](Mover::need) is not [`Need::Both`].
    pub fn sink_blocked(&mut self) -> bool {
        match self.transfer.step() {
            Step::Pass { sure } if !sure => self.transfer.on(Event::SinkBlocked),
            Step::Pass { .. } => return false,
            step => unreachable!("{step:?} does not wait for both"),
        }
        true
    }

    /// Moves from the source to the sink, no more than `most` bytes: one `splice`. Of the source's readiness it learns nothing.
    /// Where the sink is full, [`sink_blocked`](Mover::sink_blocked) is to be asked next.
    ///
    /// # Errors
    /// That of a stream, and whose it is. `Unsupported` where the engine must splice and cannot. The direction is then over.
    ///
    /// # Panics
    /// If [`need`](Mover::need) is not [`Need::Both`], or `most` is 0.
    pub fn pass(
        &mut self,
        most: usize,
        source: impl AsFd,
        sink: impl AsFd,
        counts: &Counts,
    ) -> Result<Sink, (Side, io::Error)> {
        let step = self.transfer.step();
        assert!(
            matches!(step, Step::Pass { .. }) && most > 0,
            "{step:?} passes nothing on"
        );
        let (of_source, of_sink) = (|error| (Side::Source, error), |error| (Side::Sink, error));
        let open = |()| Sink::Open;
        if let Err(reason) = switch::check() {
            return self.copy_instead(reason, counts).map(open).map_err(of_source);
        }
        let (source, sink) = (source.as_fd(), sink.as_fd());
        if let Some(reason) = self.source.unfit_to_splice(source, self.wait).map_err(of_source)? {
            return self.cannot(reason, counts).map(open).map_err(of_source);
        }
        if let Some(reason) = self.sink.unfit_to_splice(sink, self.wait).map_err(of_sink)? {
            return self.cannot(reason, counts).map(open).map_err(of_sink);
        }
        let most = usize::try_from(self.allowance)
            .map_or(most, |left| left.min(most))
            .min(PASS);
        let guards_sigpipe = self.sink.guards_sigpipe();
        match pipe_end::pass(&self.source.at(source), &self.sink.at(sink), most, guards_sigpipe)? {
            Pass::Moved(bytes) => {
                self.takes(bytes);
                counts.add_spliced(bytes);
                // What a pipe has is told before every pass. A socket is looked at after a few bytes, as most likely these were all.
                let more = self.source.kind == EndKind::Pipe || bytes >= SCRATCH;
                self.transfer.on(Event::Passed { bytes, more });
                self.end_at_limit();
            }
            Pass::SourceStopped => self.transfer.on(Event::SourceStopped),
            Pass::SinkWouldBlock => return Ok(Sink::WouldBlock),
            Pass::Cannot(reason) => self.cannot(reason, counts).map_err(of_source)?,
            Pass::CannotAsk(reason) => self.copy_instead(reason, counts).map_err(of_source)?,
        }
        Ok(Sink::Open)
    }

    /// Delivers to the sink: one `send` or one `splice`.
    ///
    /// # Errors
    /// The sink's own. `Unsupported` where the engine must splice and cannot. The direction is then over.
    ///
    /// # Panics
    /// If [`need`](Mover::need) is not [`Need::Sink`]. `scratch` is the one of the [`take`](Mover::take) before.
    pub fn deliver(&mut self, sink: impl AsFd, scratch: &[u8], counts: &Counts) -> io::Result<Sink> {
        match self.transfer.step() {
            Step::Send => self.send(sink, scratch, counts),
            Step::Drain => self.drain(sink, counts),
            Step::Unload => self.unload(),
            step => unreachable!("{step:?} delivers nothing to the sink"),
        }
    }

    /// The sink has made what is held wait for long, and not just while its peer turned to it: it gets no pipe of 1 MiB until it
    /// keeps up again, as it would be no faster for it and hold more. Who has no clock may tell at
    /// every [`Sink::WouldBlock`]; who never tells lets slow sinks keep such pipes.
    pub fn sink_is_slow(&mut self) {
        if self.transfer.step() == Step::Drain {
            self.transfer.on(Event::SinkSlow);
        }
    }

    /// See [`Transfer::limit_pipe`].
    #[inline]
    pub fn limit_pipe(&mut self, largest: SizeClass) {
        self.transfer.limit_pipe(largest);
    }

    /// See [`Transfer::take_long_turns`]. [`need`](Mover::need) is to be asked anew.
    #[inline]
    pub fn take_long_turns(&mut self, long: bool) {
        self.transfer.take_long_turns(long);
    }

    /// Which messages are worth splicing from now on; see [`Transfer::cross_at`]. Only those that fill a receive, unless told.
    pub fn cross_at(&mut self, crossover: Crossover) {
        self.transfer.cross_at(crossover);
    }

    /// See [`Transfer::crosses`].
    #[must_use]
    pub fn crosses(&self) -> bool {
        self.transfer.crosses()
    }

    /// Whether it has asked its ends what they are, as it does when it first splices: that takes several calls.
    #[must_use]
    pub fn knows_its_ends(&self) -> bool {
        self.sink.is_fit()
    }

    /// See [`Transfer::holds_message`].
    #[must_use]
    pub fn holds_message(&self) -> bool {
        self.transfer.holds_message()
    }

    /// Other tasks had their turn.
    pub fn yielded(&mut self) {
        self.transfer.on(Event::Yielded);
    }

    /// To be called before waiting for anything: gives an empty pipe back, and keeps what lies in `scratch`.
    #[inline]
    pub fn park(&mut self, scratch: &[u8]) {
        // A direction of messages that waits for its source holds nothing.
        if self.pipe.is_some() || !self.rest.is_empty() {
            self.park_what_it_holds(scratch);
        }
    }

    fn park_what_it_holds(&mut self, scratch: &[u8]) {
        self.pipe.take_if(|(_, pipe)| pipe.is_empty());
        if let Rest::InScratch { start, end } = self.rest {
            self.rest = Rest::Owned {
                bytes: scratch[start..end].to_vec(),
                start: 0,
            };
        }
    }

    fn recv(&mut self, most: usize, source: impl AsFd, scratch: &mut [u8]) -> io::Result<Source> {
        let source = source.as_fd();
        if self.source.kind == EndKind::Pipe {
            return self.read(most, source, scratch);
        }
        let short_drains = self.source.short_drains(source);
        let all = scratch.len().min(SCRATCH);
        // The rest of a record that is not taken whole is lost. TCP has none, so only other sockets are asked.
        let takes_part = most >= all || short_drains || socket::is_stream(source)?;
        let length = if takes_part { all.min(most) } else { all };
        assert!(most > 0 && length > 0, "a recv of no bytes says nothing");
        let received = match socket::recv(source, &mut scratch[..length], self.wait) {
            Ok(received) => received,
            Err(error) => return self.source_error(error),
        };
        if received == 0 {
            self.transfer.on(Event::Eof);
            return Ok(Source::Open);
        }
        self.takes(received);
        self.rest = Rest::InScratch {
            start: 0,
            end: received,
        };
        let full = received == length;
        self.transfer.on(Event::Received { bytes: received, full });
        Ok(if short_drains && !full {
            Source::Short
        } else {
            Source::Open
        })
    }

    /// [`recv`](Mover::recv) of a pipe.
    fn read(&mut self, most: usize, source: BorrowedFd<'_>, scratch: &mut [u8]) -> io::Result<Source> {
        self.source.unfit_to_splice(source, self.wait)?;
        // The rest of a packet (`O_DIRECT`) that is not read whole is lost. Whoever limits the rate waits longer the next time.
        let most = usize::try_from(self.allowance).map_or(usize::MAX, |left| left.min(most.max(PIPE_BUF)));
        let length = scratch.len().min(SCRATCH).min(most);
        assert!(length > 0, "a read of no bytes says nothing");
        match pipe_end::read(source, &mut scratch[..length]) {
            Ok(0) => self.transfer.on(Event::Eof),
            Ok(end) => {
                self.takes(end);
                self.rest = Rest::InScratch { start: 0, end };
                // A pipe of the default size is rarely read when it is full to the last byte.
                let full = end == length || end >= TINY_FILL;
                self.transfer.on(Event::Received { bytes: end, full });
            }
            Err(error) => return self.source_error(error),
        }
        Ok(Source::Open)
    }

    fn peek(&mut self, source: impl AsFd) -> io::Result<Source> {
        if self.source.kind == EndKind::Pipe {
            // Empty may be the end: a read tells.
            let has_bytes = pipe_end::bytes_in_pipe(source)? > 0;
            self.transfer
                .on(if has_bytes { Event::Peeked } else { Event::SourceStopped });
            return Ok(Source::Open);
        }
        match socket::peek(source, self.wait) {
            Ok(there_is_more) => {
                self.transfer.on(if there_is_more { Event::Peeked } else { Event::Eof });
                Ok(Source::Open)
            }
            Err(error) => self.source_error(error),
        }
    }

    fn source_error(&mut self, error: io::Error) -> io::Result<Source> {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        self.transfer.on(Event::WouldBlock);
        Ok(Source::WouldBlock)
    }

    fn fill(&mut self, most: usize, source: impl AsFd, class: SizeClass, counts: &Counts) -> io::Result<Source> {
        if let Err(reason) = switch::check() {
            return self.copy_instead(reason, counts).map(|()| Source::Open);
        }
        let source = source.as_fd();
        if let Some(reason) = self.source.unfit_to_splice(source, self.wait)? {
            return self.cannot(reason, counts).map(|()| Source::Open);
        }
        if self.transfer.expects_drained_source() && self.looks.is_quiet(source, self.wait) {
            return Ok(self.drained());
        }
        let pipe = match self.pipe_of(class) {
            Ok(pipe) => pipe,
            Err(reason) => return self.cannot(reason, counts).map(|()| Source::Open),
        };
        match pipe.fill_at_most(source, most)? {
            Fill::Moved(bytes) => {
                // All that was allowed tells no more of the source than all that fits: there will be more.
                let full = bytes == most || is_full(bytes, pipe.capacity());
                self.takes(bytes);
                self.looks.after_some();
                self.transfer.on(Event::Filled { bytes, full });
            }
            Fill::WouldBlock | Fill::MaybeEof => match self.looks.after_none(source, self.wait) {
                Seen::Nothing => return Ok(self.drained()),
                // Behind the last fill, as if they had been there at once: nobody has waited.
                Seen::Bytes => {}
                Seen::Other => self.transfer.on(Event::SourceStopped),
            },
            Fill::Cannot(reason) => self.cannot(reason, counts)?,
        }
        Ok(Source::Open)
    }

    fn drained(&mut self) -> Source {
        self.transfer.on(Event::WouldBlock);
        Source::Quiet
    }

    /// The pipe held, if it was asked for as this class; else one from the pool.
    fn pipe_of(&mut self, class: SizeClass) -> Result<&mut PooledPipe, Reason> {
        self.pipe.take_if(|(asked, _)| *asked != class);
        let pipe = match self.pipe.take() {
            Some((_, pipe)) => pipe,
            None => self.pool.acquire(class)?,
        };
        Ok(&mut self.pipe.insert((class, pipe)).1)
    }

    fn send(&mut self, sink: impl AsFd, scratch: &[u8], counts: &Counts) -> io::Result<Sink> {
        let bytes = match self.sink.send(sink.as_fd(), self.rest.bytes(scratch), self.wait) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sink::WouldBlock),
            Err(error) => return Err(error),
        };
        counts.add_copied(bytes);
        let left = self.rest.advance(bytes);
        self.transfer.on(Event::Sent { bytes, left });
        self.end_at_limit();
        Ok(Sink::Open)
    }

    fn drain(&mut self, sink: impl AsFd, counts: &Counts) -> io::Result<Sink> {
        let sink = sink.as_fd();
        if let Some(reason) = self.sink.unfit_to_splice(sink, self.wait)? {
            return self.cannot(reason, counts).map(|()| Sink::Open);
        }
        let (_, pipe) = self.pipe.as_mut().expect("a pipe is drained that was filled");
        match pipe.drain_into(sink)? {
            Drain::Moved(bytes) => {
                counts.add_spliced(bytes);
                let left = pipe.len();
                self.transfer.on(Event::Drained { bytes, left });
                self.end_at_limit();
                Ok(Sink::Open)
            }
            Drain::WouldBlock => Ok(Sink::WouldBlock),
            Drain::Cannot(reason) => self.cannot(reason, counts).map(|()| Sink::Open),
        }
    }

    fn unload(&mut self) -> io::Result<Sink> {
        let (_, pipe) = self.pipe.as_mut().expect("a pipe is read out that was filled");
        let bytes = pipe.read_out()?;
        self.pipe = None;
        self.rest = Rest::Owned { bytes, start: 0 };
        self.transfer.on(Event::Unloaded);
        Ok(Sink::Open)
    }

    /// Bytes were taken from the source. (Of a socket of records, the last one is taken whole.)
    fn takes(&mut self, bytes: usize) {
        self.allowance = self.allowance.saturating_sub(bytes as u64);
    }

    /// Ends the direction if it may take no more, and holds nothing more.
    fn end_at_limit(&mut self) {
        if self.allowance == 0 && matches!(self.need(), Need::Source | Need::Both | Need::Yield) {
            self.transfer.on(Event::LimitReached);
        }
    }

    /// A call or the pool said why not, which other directions need not ask again at once.
    fn cannot(&mut self, reason: Reason, counts: &Counts) -> io::Result<()> {
        if !self.transfer.must_splice() {
            switch::note(reason);
        }
        self.copy_instead(reason, counts)
    }

    /// Falls back, or fails if it must not.
    fn copy_instead(&mut self, reason: Reason, counts: &Counts) -> io::Result<()> {
        counts.set_fallback(reason);
        if self.transfer.must_splice() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("cannot splice: {reason}"),
            ));
        }
        self.transfer.on(Event::Cannot(reason));
        if !self.transfer.step().holds_pipe() {
            self.pipe = None;
        }
        Ok(())
    }
}
