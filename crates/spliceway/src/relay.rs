//! Both directions between two streams as one named future.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use spliceway_core::{Counts, Engine, PipePool, PipeSize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cancel::CancelHandle;
use crate::deadlines::{Deadlines, Now};
use crate::direction_state::DirectionState;
use crate::options::{self, HalfClose, RelayOptions};
use crate::outcome::{Direction, EndReason, Failure, Peer, RelayError, RelaySummary, failed_peer};
use crate::rate_limit::RateLimit;
use crate::salvage::{Salvage, Wreck};

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
/// Every option is to be chosen before the first poll; one chosen later has no effect. They are those of [`RelayOptions`], which tells what each does.
///
/// # End of stream
/// The end of one stream is passed on as a shutdown of the other's writing side; the other direction goes on, unless
/// [`HalfClose::CloseBoth`] ends it too.
///
/// # Errors
/// An error on either side of either direction ends both: a [`RelayError`] with what was delivered until then, after what
/// [`RelayOptions::early_answers`] and [`RelayOptions::pass_resets`] ask for. Bytes in flight are lost: what was taken and not yet delivered, up to a pipe of each direction, counted in
/// [`DirectionSummary::lost`](crate::DirectionSummary::lost). A timeout is no error: the caller wanted that end, and gets
/// a summary that says so.
///
/// # Cancel safety
/// Dropping it is safe at any point: descriptors are closed or given back, and no byte can reach another relay. Bytes in
/// flight are lost, so the streams cannot be used on as if nothing had been read; [`stats`](Relay::stats) tell how many. To
/// end a relay and lose nothing there is [`cancel_handle`](Relay::cancel_handle).
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Relay<A, B> {
    a: A,
    b: B,
    /// `None` are the defaults, for which nothing is allocated.
    options: Option<Box<RelayOptions>>,
    directions: Directions,
    /// What may end it before its streams do, if anything; made at the first poll.
    deadlines: Option<Box<Deadlines>>,
    /// One stream has failed, and the other is still served.
    salvage: Option<Box<Salvage>>,
    /// Who polled it last: a cancel handle that is taken later wakes this task.
    task: Option<Waker>,
}

/// Both directions, and those who are told how they end: also where that is by being dropped.
#[derive(Debug)]
struct Directions {
    a_to_b: DirectionState,
    b_to_a: DirectionState,
    shared: Arc<Shared>,
}

/// What the relay shares with its handles.
#[derive(Debug, Default)]
struct Shared {
    a_to_b: Counts,
    b_to_a: Counts,
    first_eof: OnceLock<Peer>,
    end: OnceLock<EndReason>,
}

impl<A, B> Relay<A, B> {
    /// A relay between `a` and `b`, which starts at its first poll.
    pub fn new(a: A, b: B) -> Self {
        Self {
            a,
            b,
            options: None,
            directions: Directions {
                a_to_b: DirectionState::Start(Bytes::new()),
                b_to_a: DirectionState::Start(Bytes::new()),
                shared: Arc::default(),
            },
            deadlines: None,
            salvage: None,
            task: None,
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
    pub fn idle_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        self.with(|options| options.idle_timeout(timeout))
    }

    /// See [`RelayOptions::half_close_timeout`].
    pub fn half_close_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        self.with(|options| options.half_close_timeout(timeout))
    }

    /// See [`RelayOptions::half_close`].
    pub fn half_close(self, half_close: HalfClose) -> Self {
        self.with(|options| options.half_close(half_close))
    }

    /// See [`RelayOptions::early_answers`].
    pub fn early_answers(self, deliver: bool) -> Self {
        self.with(|options| options.early_answers(deliver))
    }

    /// See [`RelayOptions::pass_resets`].
    pub fn pass_resets(self, pass: bool) -> Self {
        self.with(|options| options.pass_resets(pass))
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
        RelayStats(Arc::clone(&self.directions.shared))
    }

    /// A handle that ends the relay and delivers what it holds. May be taken at any time.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        let options = self.options.get_or_insert_default();
        let handle = options.cancel.get_or_insert_default().clone();
        match (&mut self.deadlines, &self.directions.a_to_b) {
            (Some(deadlines), _) => deadlines.watch_for(handle.clone()),
            // The first poll makes one, inside the runtime that its timers need.
            (None, DirectionState::Start(_)) => {}
            (None, _) => self.deadlines = Deadlines::new(options).map(Box::new),
        }
        if let Some(task) = &self.task {
            handle.poll_asked(task);
        }
        handle
    }

    fn is_polled_by(&mut self, task: &Waker) {
        match &mut self.task {
            Some(known) => known.clone_from(task),
            None => self.task = Some(task.clone()),
        }
    }

    /// Before the first poll.
    fn start(&mut self) {
        let (DirectionState::Start(forth), DirectionState::Start(back)) =
            (&mut self.directions.a_to_b, &mut self.directions.b_to_a)
        else {
            return;
        };
        let Some(options) = self.options.as_deref_mut() else {
            return;
        };
        self.deadlines = Deadlines::new(options).map(Box::new);
        // What was sent is not kept for as long as the relay lasts.
        *forth = std::mem::take(&mut options.a_to_b.prefix);
        *back = std::mem::take(&mut options.b_to_a.prefix);
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
        this.start();
        loop {
            if this.salvage.is_some() {
                return this.poll_salvage(cx).map(Err);
            }
            match this.poll_directions(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(this.end(EndReason::Ended))),
                Poll::Ready(Err((direction, broken))) => match this.salvage(direction, broken) {
                    Ok(()) => continue,
                    Err(broken) => return Poll::Ready(Err(this.broken(direction, broken))),
                },
                Poll::Pending => {}
            }
            match this.poll_deadlines(cx) {
                Poll::Ready(Verdict::End(reason)) => return Poll::Ready(Ok(this.end(reason))),
                Poll::Ready(Verdict::PollAgain) => {}
                Poll::Pending => {
                    this.is_polled_by(cx.waker());
                    return Poll::Pending;
                }
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
    fn poll_directions(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), (Direction, Failure)>> {
        let Self {
            a,
            b,
            options,
            directions,
            ..
        } = self;
        let options = options.as_deref().unwrap_or(&options::DEFAULT);
        // Both are polled every time, and one that is done says so again.
        let counts = &directions.shared.a_to_b;
        let a_to_b = match directions.a_to_b.poll(cx, a, b, &options.a_to_b, options, counts) {
            Poll::Ready(Err(broken)) => return Poll::Ready(Err((Direction::AToB, broken))),
            Poll::Ready(Ok(())) => directions.shared.has_ended(Peer::A, counts),
            Poll::Pending => false,
        };
        let counts = &directions.shared.b_to_a;
        let b_to_a = match directions.b_to_a.poll(cx, b, a, &options.b_to_a, options, counts) {
            Poll::Ready(Err(broken)) => return Poll::Ready(Err((Direction::BToA, broken))),
            Poll::Ready(Ok(())) => directions.shared.has_ended(Peer::B, counts),
            Poll::Pending => false,
        };
        if a_to_b && b_to_a {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Starts to serve the side that has not failed, if the options ask for it and the relay is not
    /// cancelled.
    #[cold]
    fn salvage(&mut self, direction: Direction, broken: Failure) -> Result<(), Failure> {
        let options = self.options.as_deref().unwrap_or(&options::DEFAULT);
        if self
            .deadlines
            .as_ref()
            .is_some_and(|deadlines| deadlines.is_cancelled())
        {
            return Err(broken);
        }
        let Shared { a_to_b, b_to_a, .. } = &*self.directions.shared;
        let onward = match failed_peer(direction, broken.0) {
            Peer::A => a_to_b,
            Peer::B => b_to_a,
        };
        self.salvage = Some(Box::new(Salvage::new(direction, broken, options, onward.bytes())?));
        Ok(())
    }

    /// Ready with the error, when there is nothing more to be done for the other side.
    #[cold]
    fn poll_salvage(&mut self, cx: &mut Context<'_>) -> Poll<RelayError> {
        let hurry = self
            .deadlines
            .as_mut()
            .is_some_and(|deadlines| deadlines.is_asked_to_cancel(cx));
        let Self { a, b, directions, .. } = self;
        let options = self.options.as_deref().unwrap_or(&options::DEFAULT);
        let mut salvage = self.salvage.take().expect("a stream has failed");
        let polled = match failed_peer(salvage.direction, salvage.broken.0) {
            Peer::A => {
                let mut wreck = Wreck {
                    failed: a,
                    other: b,
                    onward: &mut directions.a_to_b,
                    counts: &directions.shared.a_to_b,
                    way: &options.a_to_b,
                    dead: &mut directions.b_to_a,
                    options,
                };
                salvage.poll(cx, &mut wreck, hurry)
            }
            Peer::B => {
                let mut wreck = Wreck {
                    failed: b,
                    other: a,
                    onward: &mut directions.b_to_a,
                    counts: &directions.shared.b_to_a,
                    way: &options.b_to_a,
                    dead: &mut directions.a_to_b,
                    options,
                };
                salvage.poll(cx, &mut wreck, hurry)
            }
        };
        if polled.is_pending() {
            self.salvage = Some(salvage);
            self.is_polled_by(cx.waker());
            return Poll::Pending;
        }
        Poll::Ready(self.broken(salvage.direction, salvage.broken))
    }

    fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<Verdict> {
        let Some(deadlines) = &mut self.deadlines else {
            return Poll::Pending;
        };
        let Directions { a_to_b, b_to_a, shared } = &mut self.directions;
        let half_closed = matches!(a_to_b, DirectionState::Done) || matches!(b_to_a, DirectionState::Done);
        if deadlines.must_close_both(half_closed) {
            a_to_b.finish();
            b_to_a.finish();
            return Poll::Ready(Verdict::PollAgain);
        }
        if deadlines.is_asked_to_cancel(cx) {
            a_to_b.stop();
            b_to_a.stop();
            return Poll::Ready(Verdict::PollAgain);
        }
        let now = Now {
            half_closed,
            held_back: a_to_b.is_held_back() || b_to_a.is_held_back(),
        };
        let moved = shared.summary();
        deadlines
            .poll(cx, moved.a_to_b.bytes + moved.b_to_a.bytes, now)
            .map(Verdict::End)
    }
}

impl<A, B> Relay<A, B> {
    /// The relay is over: what it did, and what it held.
    fn end(&mut self, reason: EndReason) -> RelaySummary {
        let reason = match &self.deadlines {
            Some(deadlines) if deadlines.is_cancelled() && reason == EndReason::Ended => EndReason::Cancelled,
            _ => reason,
        };
        if let Some(cancel) = self.options.as_deref().and_then(|options| options.cancel.as_ref()) {
            cancel.ended();
        }
        self.task = None;
        self.directions.end(reason);
        self.directions.shared.summary()
    }

    fn broken(&mut self, direction: Direction, (operation, source): Failure) -> RelayError {
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
            .field("a_to_b", &self.directions.a_to_b)
            .field("b_to_a", &self.directions.b_to_a)
            .finish_non_exhaustive()
    }
}

impl Directions {
    /// They are over. The first end is the one.
    fn end(&mut self, reason: EndReason) {
        if self.shared.end.get().is_some() {
            return;
        }
        self.shared.a_to_b.set_lost(self.a_to_b.in_flight());
        self.shared.b_to_a.set_lost(self.b_to_a.in_flight());
        // What they hold goes now, and not when somebody drops what is left of the relay.
        (self.a_to_b, self.b_to_a) = (DirectionState::Done, DirectionState::Done);
        let _ = self.shared.end.set(reason);
    }
}

impl Drop for Directions {
    fn drop(&mut self) {
        self.end(EndReason::Dropped);
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
    /// The direction whose source is `peer` is over: `true`.
    fn has_ended(&self, peer: Peer, counts: &Counts) -> bool {
        if self.first_eof.get().is_none() && counts.snapshot().eof {
            let _ = self.first_eof.set(peer);
        }
        true
    }

    fn summary(&self) -> RelaySummary {
        RelaySummary {
            a_to_b: self.a_to_b.snapshot(),
            b_to_a: self.b_to_a.snapshot(),
            first_eof: self.first_eof.get().copied(),
            end: self.end.get().copied().unwrap_or_default(),
        }
    }
}
