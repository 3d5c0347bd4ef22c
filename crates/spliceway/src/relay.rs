//! A named future for both directions between two streams.

mod suspend;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use spliceway_core::WaitsFor;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::deadlines::{Deadlines, Now};
use crate::direction_state::DirectionState;
use crate::handles::{CancelHandle, RelayStats, Shared};
use crate::options::{self, Options, RelayOptions};
use crate::outcome::{Direction, EndReason, Failure, Peer, RelayError, RelaySummary, failed_peer};
use crate::salvage::{Salvage, Wreck};
pub use suspend::{DirectionStage, RelayState, SuspendedDirection, SuspendedRelay};

/// Relays both directions between `a` and `b` until both have ended.
///
/// ```text
///     ┌──────────── a_to_b ───────────▶┐
///   a                                  b
///     └◀─────────── b_to_a ────────────┘
/// ```
///
/// The streams may be owned or mutably borrowed. [`copy_bidirectional`](crate::copy_bidirectional)
/// does the same without options or counts.
///
/// ```no_run
/// use std::time::Duration;
///
/// use spliceway::{Relay, RelayOptions};
///
/// # async fn example(mut client: tokio::net::TcpStream, mut upstream: tokio::net::TcpStream, early_data: Vec<u8>) {
/// let options = RelayOptions::new()
///     .idle_timeout(Duration::from_secs(300))
///     .half_close_timeout(Duration::from_secs(30))
///     .a_to_b_prefix(early_data);
/// let relay = Relay::with_options(&mut client, &mut upstream, options);
/// let stats = relay.stats();
/// tokio::spawn(async move { println!("so far: {}", stats.snapshot()) });
/// match relay.await {
///     Ok(summary) => println!("{summary}"),
///     Err(error) => println!("{error}: {}; {}", error.source, error.summary),
/// }
/// # }
/// ```
///
/// # End of stream
/// The end of one stream shuts down the writing side of the other. The other direction continues,
/// unless [`HalfClose::CloseBoth`](crate::HalfClose::CloseBoth) ends it too.
///
/// # Errors
/// An error of either stream ends both directions. The relay returns a [`RelayError`] with the
/// counts. Before that, it does what [`RelayOptions::early_answers`] and
/// [`RelayOptions::pass_resets`] ask for. Bytes that were read and not delivered are lost, up to
/// the contents of one pipe in each direction.
/// [`DirectionSummary::lost`](crate::DirectionSummary::lost) counts them. A timeout is not an
/// error, because the caller asked for it. The summary gives the timeout as the reason.
///
/// # Cancel safety
/// Dropping a relay is safe at any point. Descriptors are closed or returned to the pool, and no
/// byte can reach another relay. Bytes in flight are lost, and [`stats`](Relay::stats) counts them.
/// [`cancel_handle`](Relay::cancel_handle) ends a relay after it has written these bytes, within a
/// deadline. [`into_parts`](Relay::into_parts) returns the bytes in flight.
/// [`suspend`](Relay::suspend) returns everything that another relay needs to continue.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Relay<A, B> {
    a: A,
    b: B,
    /// `None` means the defaults. Relays share their options.
    options: Option<Arc<Options>>,
    directions: Directions,
    /// The conditions that may end the relay before its streams do, if any. The first poll creates
    /// them.
    deadlines: Option<Box<Deadlines>>,
    /// Set while the relay still serves one stream after the other has failed.
    salvage: Option<Box<Salvage>>,
    /// The task that polled last. A cancel handle that the caller takes later wakes it.
    task: Option<Waker>,
}

/// The streams of a relay and the bytes in flight between them: see [`Relay::into_parts`].
#[derive(Debug)]
#[non_exhaustive]
pub struct RelayParts<A, B> {
    /// The stream that was given first.
    pub a: A,
    /// The other stream.
    pub b: B,
    /// Bytes that were read from `a` and not written to `b`.
    pub a_to_b: Bytes,
    /// Bytes that were read from `b` and not written to `a`.
    pub b_to_a: Bytes,
}

/// Both directions. When they end or are dropped, they store the reason for the handles.
#[derive(Debug)]
struct Directions {
    a_to_b: DirectionState,
    b_to_a: DirectionState,
    shared: Arc<Shared>,
}

impl<A, B> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    /// Creates a relay between `a` and `b`. It starts when it is first polled.
    pub fn new(a: A, b: B) -> Self {
        Self {
            a,
            b,
            options: None,
            directions: Directions {
                a_to_b: DirectionState::Start(Bytes::new(), None),
                b_to_a: DirectionState::Start(Bytes::new(), None),
                shared: Arc::default(),
            },
            deadlines: None,
            salvage: None,
            task: None,
        }
    }

    /// Creates a relay between `a` and `b` with options.
    pub fn with_options(a: A, b: B, mut options: RelayOptions) -> Self {
        let mut relay = Self::new(a, b);
        relay.directions.a_to_b = DirectionState::Start(std::mem::take(&mut options.a_to_b_prefix), None);
        relay.directions.b_to_a = DirectionState::Start(std::mem::take(&mut options.b_to_a_prefix), None);
        relay.options = options.into_shared();
        relay
    }

    /// Copies what the relay reads from `a` into a mirror, in order: the prefix and small messages
    /// with a write, and bulk data with `tee(2)`. Call this before the first poll. A mirror that
    /// comes later, or is a second one, is dropped.
    ///
    /// The relay never waits for a mirror. If the second pipe is full, the copy ends, and the relay
    /// continues. For this direction, the relay uses pipes of 256 KiB, so that the second pipe has
    /// room for several reads.
    ///
    /// ```no_run
    /// # async fn example(a: tokio::net::TcpStream, b: tokio::net::TcpStream) -> std::io::Result<()> {
    /// use spliceway::{Mirror, MirrorEnd, PipePool, Relay};
    /// use tokio::net::{TcpStream, unix::pipe::Receiver};
    ///
    /// let mut relay = Relay::new(a, b);
    /// if let Ok((mirror, reader, state)) = Mirror::new(PipePool::global()) {
    ///     relay.mirror_a_to_b(mirror);
    ///     tokio::spawn(async move {
    ///         let mut observer = TcpStream::connect("127.0.0.1:9000").await?;
    ///         spliceway::copy(&mut Receiver::from_owned_fd(reader)?, &mut observer).await?;
    ///         if state.end() != MirrorEnd::Complete {
    ///             spliceway::reset(observer).await;
    ///         }
    ///         std::io::Result::Ok(())
    ///     });
    /// }
    /// # relay.await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(target_os = "linux")]
    pub fn mirror_a_to_b(&mut self, mirror: spliceway_core::Mirror) {
        if let DirectionState::Start(_, none @ None) = &mut self.directions.a_to_b {
            *none = Some(mirror);
        }
    }

    /// Returns a handle to the live counts. It is cheap to clone, and outlives the relay.
    pub fn stats(&self) -> RelayStats {
        RelayStats(Arc::clone(&self.directions.shared))
    }

    /// Returns the streams `a` and `b`, for example to ask the kernel about their sockets. Whatever
    /// moves bytes or waits for readiness must be left to the relay.
    pub fn streams(&self) -> (&A, &B) {
        (&self.a, &self.b)
    }

    /// Returns a handle that ends the relay after the bytes in flight have been written. The caller
    /// can take a handle at any time.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        let handle = CancelHandle(Arc::clone(&self.directions.shared));
        handle.0.cancel.allow();
        if let Some(task) = &self.task {
            match &mut self.deadlines {
                Some(deadlines) => deadlines.allow_cancel(),
                None => self.deadlines = self.directions.deadlines(options::or_default(&self.options)),
            }
            handle.0.cancel.poll_asked(task);
        }
        // Otherwise, the first poll creates the deadlines, inside the runtime that their timers
        // need.
        handle
    }

    /// Stops the relay immediately, and returns its streams and the bytes in flight.
    ///
    /// The streams are not shut down. To continue, write `a_to_b` to `b` and `b_to_a` to `a` before
    /// any other byte, for example as prefixes of another relay. A prefix that was not written is
    /// among these bytes. A relay that has ended returns no bytes: bytes that it could not write
    /// are lost.
    ///
    /// ```no_run
    /// # async fn example(client: tokio::net::TcpStream, upstream: tokio::net::TcpStream) -> std::io::Result<()> {
    /// use std::time::Duration;
    ///
    /// use spliceway::{Relay, RelayOptions};
    ///
    /// let mut relay = Relay::new(client, upstream);
    /// if tokio::time::timeout(Duration::from_secs(60), &mut relay).await.is_err() {
    ///     let parts = relay.into_parts()?;
    ///     let options = RelayOptions::new().a_to_b_prefix(parts.a_to_b).b_to_a_prefix(parts.b_to_a);
    ///     let relay = Relay::with_options(parts.a, parts.b, options);
    /// #   drop(relay);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of a `read(2)` on a pipe, which does not fail in a healthy process. The
    /// streams are then dropped.
    pub fn into_parts(self) -> io::Result<RelayParts<A, B>> {
        let Self {
            a, b, mut directions, ..
        } = self;
        Ok(RelayParts {
            a_to_b: directions.a_to_b.take_in_flight()?,
            b_to_a: directions.b_to_a.take_in_flight()?,
            a,
            b,
        })
    }

    fn is_polled_by(&mut self, task: &Waker) {
        match &mut self.task {
            Some(known) => known.clone_from(task),
            None => self.task = Some(task.clone()),
        }
    }

    /// Creates the deadlines if this is the first poll.
    fn start(&mut self) {
        if self.task.is_none() {
            self.deadlines = self.directions.deadlines(options::or_default(&self.options));
        }
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

/// The next step of a relay that has nothing to move.
enum Verdict {
    End(EndReason),
    /// A direction was asked to end.
    PollAgain,
}

impl<A, B> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    /// Ready when both directions have ended, or one has failed.
    fn poll_directions(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), (Direction, Failure)>> {
        let Self {
            a,
            b,
            options,
            directions,
            ..
        } = self;
        let options = options::or_default(options);
        // Both directions are polled every time. A direction that has ended stays ready.
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
        match (a_to_b, b_to_a) {
            (true, true) => return Poll::Ready(Ok(())),
            (true, false) => directions.shared.a_to_b.waits_for(Some(WaitsFor::OtherDirection)),
            (false, true) => directions.shared.b_to_a.waits_for(Some(WaitsFor::OtherDirection)),
            (false, false) => {}
        }
        Poll::Pending
    }

    /// Starts to serve the side that has not failed, if the options ask for it and the relay is not
    /// cancelled.
    #[cold]
    fn salvage(&mut self, direction: Direction, broken: Failure) -> Result<(), Failure> {
        let options = options::or_default(&self.options);
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
        self.salvage = Some(Box::new(Salvage::new(direction, broken, options, onward)?));
        Ok(())
    }

    /// Ready with the error when there is nothing left to do for the other side.
    #[cold]
    fn poll_salvage(&mut self, cx: &mut Context<'_>) -> Poll<RelayError> {
        let hurry = self
            .deadlines
            .as_mut()
            .is_some_and(|deadlines| deadlines.is_asked_to_cancel(&self.directions.shared.cancel, cx));
        let Self { a, b, directions, .. } = self;
        let options = options::or_default(&self.options);
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
        let (half_closed, held_back) = (self.directions.half_closed(), self.directions.is_held_back());
        let Directions { a_to_b, b_to_a, shared } = &mut self.directions;
        if deadlines.must_close_both(half_closed) {
            a_to_b.finish();
            b_to_a.finish();
            return Poll::Ready(Verdict::PollAgain);
        }
        if deadlines.is_asked_to_cancel(&shared.cancel, cx) {
            a_to_b.stop();
            b_to_a.stop();
            return Poll::Ready(Verdict::PollAgain);
        }
        let now = Now { half_closed, held_back };
        deadlines.poll(cx, shared.bytes(), now).map(Verdict::End)
    }
}

impl<A, B> Relay<A, B> {
    /// Ends the relay, and returns its summary.
    fn end(&mut self, reason: EndReason) -> RelaySummary {
        let reason = match &self.deadlines {
            Some(deadlines) if deadlines.is_cancelled() && reason == EndReason::Ended => EndReason::Cancelled,
            _ => reason,
        };
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
    fn half_closed(&self) -> bool {
        matches!(self.a_to_b, DirectionState::Done) || matches!(self.b_to_a, DirectionState::Done)
    }

    fn is_held_back(&self) -> bool {
        self.a_to_b.is_held_back() || self.b_to_a.is_held_back()
    }

    #[cold]
    fn deadlines(&self, options: &Options) -> Option<Box<Deadlines>> {
        let (moved, can_cancel) = (self.shared.bytes(), self.shared.cancel.is_possible());
        Deadlines::new(options, moved, self.half_closed(), can_cancel).map(Box::new)
    }

    /// Ends the waits of both directions, so that their times no longer grow.
    fn stop_waiting(&self) {
        self.shared.a_to_b.waits_for(None);
        self.shared.b_to_a.waits_for(None);
    }

    /// Ends both directions. Only the first call counts.
    fn end(&mut self, reason: EndReason) {
        if self.shared.end.get().is_some() {
            return;
        }
        self.shared.cancel.ended();
        self.shared.a_to_b.set_lost(self.a_to_b.in_flight());
        self.shared.b_to_a.set_lost(self.b_to_a.in_flight());
        self.stop_waiting();
        // The pipes and buffers of both directions are released here, not when the relay is
        // dropped.
        (self.a_to_b, self.b_to_a) = (DirectionState::Done, DirectionState::Done);
        let _ = self.shared.end.set(reason);
    }
}

impl Drop for Directions {
    fn drop(&mut self) {
        self.end(EndReason::Dropped);
    }
}
