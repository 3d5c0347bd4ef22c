//! Both directions between two streams as one named future.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use spliceway_core::{Counts, Engine, PipePool, PipeSize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cancel::CancelHandle;
use crate::direction::{Broken, Moved, Moving};
use crate::options::{self, HalfClose, RelayOptions, Way};
use crate::outcome::{Direction, EndReason, Operation, RelayError, RelaySummary};
use crate::rate::RateLimit;
use crate::watch::{Now, Watch};

/// Relays both directions between `a` and `b` until both have ended.
///
/// ```text
///     ┌──────────── a_to_b ───────────▶┐
///   a                                  b
///     └◀─────────── b_to_a ────────────┘
/// ```
///
/// The streams may be owned or mutably borrowed. [`copy_bidirectional`](crate::copy_bidirectional) is this without the
/// options and the counts.
///
/// ```no_run
/// use std::time::Duration;
/// use spliceway::{HalfClose, Relay};
///
/// # async fn example(mut client: tokio::net::TcpStream, mut upstream: tokio::net::TcpStream, early_data: Vec<u8>) {
/// let relay = Relay::new(&mut client, &mut upstream)
///     .idle_timeout(Duration::from_secs(300))
///     .half_close_timeout(Duration::from_secs(30))
///     .half_close(HalfClose::Propagate)
///     .a_to_b_prefix(early_data);
/// let stats = relay.stats();
/// tokio::spawn(async move { println!("so far: {:?}", stats.snapshot()) });
/// match relay.await {
///     Ok(summary) => println!("{} bytes up, {} spliced: {:?}", summary.a_to_b.bytes, summary.a_to_b.spliced, summary.end),
///     Err(error) => println!("{error}: {}, after {} bytes down", error.source, error.summary.b_to_a.bytes),
/// }
/// # }
/// ```
///
/// Every option is to be chosen before the first poll. They are those of [`RelayOptions`], which tells what each does.
///
/// # End of stream
/// The end of one stream is passed on as a shutdown of the other's writing side; the other direction goes on, unless
/// [`HalfClose::CloseBoth`] ends it too.
///
/// # Errors
/// An error on either side of either direction ends both: a [`RelayError`] with what was delivered until then. Bytes in
/// flight are lost: what was taken and not yet delivered, up to a pipe of each direction, counted in
/// [`DirectionSummary::lost`](crate::DirectionSummary::lost). A timeout is no error: the caller wanted that end, and gets
/// a summary that says so.
///
/// # Cancel safety
/// Dropping it is safe at any point: descriptors are closed or given back, and no byte can reach another relay. Bytes in
/// flight are lost, so the streams cannot be used on as if nothing had been read. To end a relay and lose nothing there
/// is [`cancel_handle`](Relay::cancel_handle).
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Relay<A, B> {
    a: A,
    b: B,
    /// `None` are the defaults, for which nothing is allocated.
    options: Option<Box<RelayOptions>>,
    shared: Arc<Shared>,
    a_to_b: Phase,
    b_to_a: Phase,
    /// What may end it before its streams do, if anything; made at the first poll.
    watch: Option<Box<Watch>>,
}

/// One direction's course.
#[derive(Debug)]
enum Phase {
    Start,
    Moving(Moving),
    /// Told to end with the other direction, when what its source had received by then is delivered.
    Finishing(Moving),
    ShuttingDown {
        eof: bool,
    },
    Done,
}

/// What the relay shares with its handles.
#[derive(Debug, Default)]
struct Shared {
    a_to_b: Counts,
    b_to_a: Counts,
    end: OnceLock<EndReason>,
}

impl<A, B> Relay<A, B> {
    /// A relay between `a` and `b`, which starts at its first poll.
    pub fn new(a: A, b: B) -> Self {
        Self {
            a,
            b,
            options: None,
            shared: Arc::default(),
            a_to_b: Phase::Start,
            b_to_a: Phase::Start,
            watch: None,
        }
    }

    /// A relay that works as `options` say.
    pub fn with_options(a: A, b: B, options: RelayOptions) -> Self {
        Self {
            options: Some(Box::new(options)),
            ..Self::new(a, b)
        }
    }

    /// See [`RelayOptions::engine`].
    pub fn engine(self, engine: Engine) -> Self {
        self.with(|options| options.engine(engine))
    }

    /// See [`RelayOptions::pipe_size`].
    pub fn pipe_size(self, pipe_size: PipeSize) -> Self {
        self.with(|options| options.pipe_size(pipe_size))
    }

    /// See [`RelayOptions::pool`].
    pub fn pool(self, pool: &PipePool) -> Self {
        self.with(|options| options.pool(pool))
    }

    /// See [`RelayOptions::idle_timeout`].
    pub fn idle_timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.idle_timeout(timeout))
    }

    /// See [`RelayOptions::half_close_timeout`].
    pub fn half_close_timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.half_close_timeout(timeout))
    }

    /// See [`RelayOptions::half_close`].
    pub fn half_close(self, half_close: HalfClose) -> Self {
        self.with(|options| options.half_close(half_close))
    }

    /// See [`RelayOptions::a_to_b_prefix`].
    pub fn a_to_b_prefix(self, bytes: impl Into<Bytes>) -> Self {
        self.with(|options| options.a_to_b_prefix(bytes))
    }

    /// See [`RelayOptions::b_to_a_prefix`].
    pub fn b_to_a_prefix(self, bytes: impl Into<Bytes>) -> Self {
        self.with(|options| options.b_to_a_prefix(bytes))
    }

    /// See [`RelayOptions::a_to_b_limit`].
    pub fn a_to_b_limit(self, bytes: u64) -> Self {
        self.with(|options| options.a_to_b_limit(bytes))
    }

    /// See [`RelayOptions::b_to_a_limit`].
    pub fn b_to_a_limit(self, bytes: u64) -> Self {
        self.with(|options| options.b_to_a_limit(bytes))
    }

    /// See [`RelayOptions::rate_limit`].
    pub fn rate_limit(self, limit: &RateLimit) -> Self {
        self.with(|options| options.rate_limit(limit))
    }

    /// See [`RelayOptions::a_to_b_rate_limit`].
    pub fn a_to_b_rate_limit(self, limit: &RateLimit) -> Self {
        self.with(|options| options.a_to_b_rate_limit(limit))
    }

    /// See [`RelayOptions::b_to_a_rate_limit`].
    pub fn b_to_a_rate_limit(self, limit: &RateLimit) -> Self {
        self.with(|options| options.b_to_a_rate_limit(limit))
    }

    /// A handle to the live counts, cheap to clone, which outlives the relay.
    pub fn stats(&self) -> RelayStats {
        RelayStats(Arc::clone(&self.shared))
    }

    /// A handle that ends the relay and delivers what it holds. May be taken at any time.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        let options = self.options.get_or_insert_default();
        let handle = options.cancel.get_or_insert_default().clone();
        match (&mut self.watch, &self.a_to_b) {
            (Some(watch), _) => watch.watch_for(handle.clone()),
            // The first poll makes one, inside the runtime that its timers need.
            (None, Phase::Start) => {}
            (None, _) => self.watch = Watch::new(options).map(Box::new),
        }
        handle
    }

    fn with(mut self, choose: impl FnOnce(RelayOptions) -> RelayOptions) -> Self {
        let options = self.options.get_or_insert_default();
        **options = choose(std::mem::take(&mut **options));
        self
    }
}

impl<A, B> Future for Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    type Output = Result<RelaySummary, RelayError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Phase::Start = this.a_to_b {
            this.watch = this.options.as_deref().and_then(Watch::new).map(Box::new);
        }
        loop {
            if let Poll::Ready(ended) = this.poll_directions(cx) {
                return Poll::Ready(ended.map(|()| this.end(EndReason::Ended)));
            }
            match this.poll_watch(cx) {
                Poll::Ready(Verdict::End(reason)) => return Poll::Ready(Ok(this.end(reason))),
                Poll::Ready(Verdict::PollAgain) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// What is due when a relay has nothing to move.
enum Verdict {
    End(EndReason),
    /// A direction was told to come to its end.
    PollAgain,
}

impl<A, B> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    /// Ready when both have ended, or one is broken.
    fn poll_directions(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RelayError>> {
        let Self { a, b, shared, .. } = self;
        let options = self.options.as_deref().unwrap_or(&options::DEFAULT);
        // Both are polled every time, and one that is done says so again.
        let a_to_b = match self.a_to_b.poll(cx, a, b, &options.a_to_b, options, &shared.a_to_b) {
            Poll::Ready(Err(broken)) => return Poll::Ready(Err(self.broken(Direction::AToB, broken))),
            polled => polled.is_ready(),
        };
        let b_to_a = match self.b_to_a.poll(cx, b, a, &options.b_to_a, options, &shared.b_to_a) {
            Poll::Ready(Err(broken)) => return Poll::Ready(Err(self.broken(Direction::BToA, broken))),
            polled => polled.is_ready(),
        };
        if a_to_b && b_to_a {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<Verdict> {
        let Some(watch) = &mut self.watch else {
            return Poll::Pending;
        };
        let half_closed = matches!(self.a_to_b, Phase::Done) || matches!(self.b_to_a, Phase::Done);
        if watch.closes_both() && half_closed {
            watch.closing();
            self.a_to_b.finish();
            self.b_to_a.finish();
            return Poll::Ready(Verdict::PollAgain);
        }
        if watch.is_asked_to_cancel(cx) {
            self.a_to_b.stop();
            self.b_to_a.stop();
            return Poll::Ready(Verdict::PollAgain);
        }
        let now = Now {
            half_closed,
            held_back: self.a_to_b.is_held_back() || self.b_to_a.is_held_back(),
        };
        let moved = self.shared.summary();
        watch
            .poll(cx, moved.a_to_b.bytes + moved.b_to_a.bytes, now)
            .map(Verdict::End)
    }
}

impl<A, B> Relay<A, B> {
    /// The relay is over: what it did, and what it held.
    fn end(&mut self, reason: EndReason) -> RelaySummary {
        let reason = match &self.watch {
            Some(watch) if watch.is_cancelled() && reason == EndReason::Ended => EndReason::Cancelled,
            _ => reason,
        };
        self.shared.a_to_b.set_lost(self.a_to_b.in_flight());
        self.shared.b_to_a.set_lost(self.b_to_a.in_flight());
        // What they hold goes now, and not when somebody drops what is left of the relay.
        (self.a_to_b, self.b_to_a) = (Phase::Done, Phase::Done);
        if let Some(cancel) = self.options.as_deref().and_then(|options| options.cancel.as_ref()) {
            cancel.ended();
        }
        // The first end is the one.
        let _ = self.shared.end.set(reason);
        self.shared.summary()
    }

    fn broken(&mut self, direction: Direction, (operation, source): Broken) -> RelayError {
        RelayError {
            direction,
            operation,
            summary: self.end(EndReason::Broken),
            source,
        }
    }
}

impl<A, B> Unpin for Relay<A, B> {}

impl<A, B> fmt::Debug for Relay<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("options", &self.options)
            .field("a_to_b", &self.a_to_b)
            .field("b_to_a", &self.b_to_a)
            .finish_non_exhaustive()
    }
}

impl Phase {
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        way: &Way,
        options: &RelayOptions,
        counts: &Counts,
    ) -> Poll<Result<(), Broken>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            *self = match self {
                Self::Start => Self::Moving(Moving::new(reader, writer, way, options, counts)),
                Self::Moving(moving) => match ready!(moving.poll(cx, reader, writer, way, counts))? {
                    Moved::All => Self::ShuttingDown { eof: true },
                    Moved::UpToLimit => Self::Done,
                },
                Self::Finishing(moving) => {
                    let moved = ready!(moving.poll(cx, reader, writer, way, counts))?;
                    Self::ShuttingDown {
                        eof: moved == Moved::All,
                    }
                }
                Self::ShuttingDown { eof } => {
                    ready!(Pin::new(&mut *writer).poll_shutdown(cx)).map_err(|error| (Operation::Shutdown, error))?;
                    if *eof {
                        counts.set_eof();
                    }
                    Self::Done
                }
                Self::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// The other direction has ended: this one is to end too, when it has delivered what its source has received.
    fn finish(&mut self) {
        *self = match std::mem::replace(self, Self::Done) {
            Self::Moving(mut moving) => {
                moving.finish();
                Self::Finishing(moving)
            }
            phase => phase,
        };
    }

    /// This direction is to end when it has delivered what it holds.
    fn stop(&mut self) {
        match self {
            Self::Moving(moving) | Self::Finishing(moving) => moving.restrict(0),
            Self::Start => *self = Self::Done,
            Self::ShuttingDown { .. } | Self::Done => {}
        }
    }

    fn is_held_back(&self) -> bool {
        match self {
            Self::Moving(moving) | Self::Finishing(moving) => moving.is_held_back(),
            Self::Start | Self::ShuttingDown { .. } | Self::Done => false,
        }
    }

    fn in_flight(&self) -> usize {
        match self {
            Self::Moving(moving) | Self::Finishing(moving) => moving.in_flight(),
            Self::Start | Self::ShuttingDown { .. } | Self::Done => 0,
        }
    }
}

/// A handle to a relay's live counts: cheap, lock-free, from any thread, while it runs and afterwards.
#[derive(Clone, Debug)]
pub struct RelayStats(Arc<Shared>);

impl RelayStats {
    /// The counts now. Each is exact; taken while the relay runs, they may be an instant apart.
    #[must_use]
    pub fn snapshot(&self) -> RelaySummary {
        self.0.summary()
    }
}

impl Shared {
    fn summary(&self) -> RelaySummary {
        RelaySummary {
            a_to_b: self.a_to_b.snapshot(),
            b_to_a: self.b_to_a.snapshot(),
            end: self.end.get().copied().unwrap_or_default(),
        }
    }
}
