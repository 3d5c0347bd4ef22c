//! Both directions between two streams as one named future.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use spliceway_core::{Counts, DirectionSummary, Engine, PipePool, PipeSize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::direction::{Broken, Moved, Moving};

/// Relays both directions between `a` and `b` until both have ended.
///
/// ```text
///     ┌──────────── a_to_b ───────────▶┐
///   a                                  b
///     └◀─────────── b_to_a ────────────┘
/// ```
///
/// The streams may be owned or mutably borrowed. [`copy_bidirectional`](crate::copy_bidirectional) is this without the
/// counts.
///
/// ```no_run
/// # async fn example(mut client: tokio::net::TcpStream, mut upstream: tokio::net::TcpStream) {
/// let relay = spliceway::Relay::new(&mut client, &mut upstream);
/// let stats = relay.stats();
/// tokio::spawn(async move { println!("so far: {:?}", stats.snapshot()) });
/// match relay.await {
///     Ok(summary) => println!("{} bytes up, {} spliced", summary.a_to_b.bytes, summary.a_to_b.spliced),
///     Err(error) => println!("{error}, after {} bytes down", error.summary.b_to_a.bytes),
/// }
/// # }
/// ```
///
/// # End of stream
/// The end of one stream is passed on as a shutdown of the other's writing side; the other direction goes on.
///
/// # Errors
/// An error on either side of either direction ends both: a [`RelayError`] with what was delivered until then. Bytes in
/// flight are lost: what was received and not yet delivered, up to a pipe of each direction.
///
/// # Cancel safety
/// Dropping it is safe at any point: descriptors are closed or given back, and no byte can reach another relay. Bytes in
/// flight are lost, so the streams cannot be used on as if nothing had been read.
#[derive(Debug)]
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Relay<A, B> {
    a: A,
    b: B,
    options: Options,
    counts: Arc<RelayCounts>,
    a_to_b: Phase,
    b_to_a: Phase,
}

/// How a relay works, for both of its directions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    pool: Option<PipePool>,
    a_to_b_limit: Option<u64>,
    b_to_a_limit: Option<u64>,
}

/// One direction's course.
#[derive(Debug)]
enum Phase {
    Start,
    Moving(Moving),
    ShuttingDown,
    Done,
}

#[derive(Debug, Default)]
struct RelayCounts {
    a_to_b: Counts,
    b_to_a: Counts,
}

impl<A, B> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    /// A relay between `a` and `b`, which starts at its first poll.
    pub fn new(a: A, b: B) -> Self {
        Self {
            a,
            b,
            options: Options::default(),
            counts: Arc::default(),
            a_to_b: Phase::Start,
            b_to_a: Phase::Start,
        }
    }

    /// When to splice. Default [`Engine::Auto`]. To be chosen before the first poll.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.options.engine = engine;
        self
    }

    /// Which pipes to use. Default [`PipeSize::Auto`]. To be chosen before the first poll.
    pub fn pipe_size(mut self, pipe_size: PipeSize) -> Self {
        self.options.pipe_size = pipe_size;
        self
    }

    /// Where pipes come from. Default [`PipePool::global`]. To be chosen before the first poll.
    pub fn pool(mut self, pool: &PipePool) -> Self {
        self.options.pool = Some(pool.clone());
        self
    }

    /// Ends the direction from `a` to `b` when so many bytes were taken from `a` and `b` has them. Default: no limit. To be chosen
    /// before the first poll.
    ///
    /// Not one byte more is taken: what follows can be read from `a` afterwards. `b` is not shut down, because nothing has ended, and
    /// can be written to. A stream that ends with its last byte allowed is at its limit, not at its end.
    pub fn a_to_b_limit(mut self, bytes: u64) -> Self {
        self.options.a_to_b_limit = Some(bytes);
        self
    }

    /// The same from `b` to `a`.
    pub fn b_to_a_limit(mut self, bytes: u64) -> Self {
        self.options.b_to_a_limit = Some(bytes);
        self
    }

    /// A handle to the live counts, cheap to clone, which outlives the relay.
    pub fn stats(&self) -> RelayStats {
        RelayStats(Arc::clone(&self.counts))
    }
}

impl<A, B> Future for Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    type Output = Result<RelaySummary, RelayError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            a,
            b,
            options,
            counts,
            a_to_b,
            b_to_a,
        } = self.get_mut();
        let broken = |direction, (operation, source): Broken| RelayError {
            direction,
            operation,
            summary: counts.summary(),
            source,
        };
        let a_to_b = a_to_b
            .poll(cx, a, b, options.a_to_b_limit, options, &counts.a_to_b)
            .map_err(|failure| broken(Direction::AToB, failure))?;
        let b_to_a = b_to_a
            .poll(cx, b, a, options.b_to_a_limit, options, &counts.b_to_a)
            .map_err(|failure| broken(Direction::BToA, failure))?;
        // Both are polled every time, and one that is done says so again.
        ready!(a_to_b);
        ready!(b_to_a);
        Poll::Ready(Ok(counts.summary()))
    }
}

impl<A, B> Unpin for Relay<A, B> {}

impl Phase {
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        limit: Option<u64>,
        options: &Options,
        counts: &Counts,
    ) -> Poll<Result<(), Broken>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            *self = match self {
                Self::Start => {
                    let limit = limit.unwrap_or(u64::MAX);
                    Self::Moving(Moving::new(reader, writer, limit, options, counts))
                }
                Self::Moving(moving) => match ready!(moving.poll(cx, reader, writer, counts))? {
                    Moved::All => Self::ShuttingDown,
                    Moved::UpToLimit => Self::Done,
                },
                Self::ShuttingDown => {
                    ready!(Pin::new(&mut *writer).poll_shutdown(cx)).map_err(|error| (Operation::Shutdown, error))?;
                    counts.set_eof();
                    Self::Done
                }
                Self::Done => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl Options {
    pub(crate) fn pool(&self) -> PipePool {
        self.pool.as_ref().unwrap_or_else(|| PipePool::global()).clone()
    }
}

/// A handle to a relay's live counts: cheap, lock-free, from any thread, while it runs and afterwards.
#[derive(Clone, Debug)]
pub struct RelayStats(Arc<RelayCounts>);

impl RelayStats {
    /// The counts now. Each is exact; taken while the relay runs, they may be an instant apart.
    #[must_use]
    pub fn snapshot(&self) -> RelaySummary {
        self.0.summary()
    }
}

impl RelayCounts {
    fn summary(&self) -> RelaySummary {
        RelaySummary {
            a_to_b: self.a_to_b.snapshot(),
            b_to_a: self.b_to_a.snapshot(),
        }
    }
}

/// What a relay delivered, each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySummary {
    /// From `a` to `b`.
    pub a_to_b: DirectionSummary,
    /// From `b` to `a`.
    pub b_to_a: DirectionSummary,
}

/// A direction of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From `a` to `b`.
    AToB,
    /// From `b` to `a`.
    BToA,
}

/// What a relay was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reading from the direction's source.
    Read,
    /// Writing to its sink, or flushing it.
    Write,
    /// Passing the end of the source on to the sink.
    Shutdown,
}

/// A relay that broke: where, at what, and what was delivered until then.
///
/// As an [`io::Error`] (`?` converts it) it is the error of the stream itself, with its kind and errno.
#[derive(Debug)]
#[non_exhaustive]
pub struct RelayError {
    /// The direction that failed. The other one was ended with it.
    pub direction: Direction,
    /// What failed.
    pub operation: Operation,
    /// What was delivered, both ways.
    pub summary: RelaySummary,
    /// The stream's own error.
    pub source: io::Error,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AToB => "a to b",
            Self::BToA => "b to a",
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Shutdown => "shutdown",
        })
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed from {}", self.operation, self.direction)
    }
}

impl Error for RelayError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl From<RelayError> for io::Error {
    fn from(error: RelayError) -> Self {
        error.source
    }
}
