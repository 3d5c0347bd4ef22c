//! One direction of a relay as a poll: waits for what its [`Mover`] needs, or copies where the ends are no sockets.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Engine, Mover, Need, Reason};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::fallback::CopyLoop;
use crate::relay::{Operation, Options};
use crate::stream::{self, Socket};

thread_local! {
    /// Where a worker receives: bytes stay here only until the same poll has sent them, or has set the rest aside.
    static SCRATCH_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// How one direction moves its bytes, decided by the types of its ends.
#[derive(Debug)]
pub(crate) enum Moving {
    /// Both ends are sockets. Until `unbuffered`, buffers around them may hold bytes, which go first.
    Splicing { mover: Mover, unbuffered: bool },
    /// Some end is not.
    Copying(CopyLoop),
    /// Some end is not, and the caller would rather fail than copy.
    Refused,
}

/// Why a direction ended early: the operation that failed, and how.
pub(crate) type Broken = (Operation, io::Error);

impl Moving {
    pub(crate) fn new<R: ?Sized, W: ?Sized>(reader: &R, writer: &W, options: &Options, counts: &Counts) -> Self {
        if !stream::are_sockets(reader, writer) {
            counts.set_fallback(Reason::NotSockets);
            return match options.engine {
                Engine::Splice => Self::Refused,
                Engine::Auto | Engine::Copy => Self::Copying(CopyLoop::default()),
            };
        }
        if options.engine == Engine::Copy {
            counts.set_fallback(Reason::Disabled);
        }
        let mover = Mover::new(options.engine, options.pipe_size, options.pool());
        Self::Splicing {
            mover,
            unbuffered: false,
        }
    }

    /// Ready when the source has ended and the sink has every byte.
    pub(crate) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        counts: &Counts,
    ) -> Poll<Result<(), Broken>>
    where
        R: AsyncRead + Unpin + ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        match self {
            Self::Splicing { mover, unbuffered } => {
                if !*unbuffered {
                    let buffered = ready!(poll_unbuffer(cx, reader, writer))?;
                    mover.preload(buffered);
                    *unbuffered = true;
                }
                match (stream::source(reader), stream::sink(writer)) {
                    (Some(source), Some(sink)) => poll_mover(mover, cx, source, sink, counts),
                    _ => unreachable!("a stream's type does not change"),
                }
            }
            Self::Copying(copy_loop) => copy_loop.poll(cx, reader, writer, counts),
            Self::Refused => Poll::Ready(Err((
                Operation::Read,
                io::Error::new(io::ErrorKind::Unsupported, "cannot splice: a stream is no plain socket"),
            ))),
        }
    }
}

/// Empties the buffers between the caller's streams and their sockets: what was written goes out, what was read is returned.
fn poll_unbuffer<R, W>(cx: &mut Context<'_>, reader: &mut R, writer: &mut W) -> Poll<Result<Vec<u8>, Broken>>
where
    R: ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    ready!(Pin::new(writer).poll_flush(cx)).map_err(|error| (Operation::Write, error))?;
    stream::poll_buffered(reader, cx).map_err(|error| (Operation::Read, error))
}

fn poll_mover(
    mover: &mut Mover,
    cx: &mut Context<'_>,
    source: Socket<'_>,
    sink: Socket<'_>,
    counts: &Counts,
) -> Poll<Result<(), Broken>> {
    SCRATCH_BUFFER.with_borrow_mut(|scratch| {
        let polled = poll_steps(mover, cx, source, sink, scratch, counts);
        mover.park(scratch);
        polled
    })
}

fn poll_steps(
    mover: &mut Mover,
    cx: &mut Context<'_>,
    source: Socket<'_>,
    sink: Socket<'_>,
    scratch: &mut [u8],
    counts: &Counts,
) -> Poll<Result<(), Broken>> {
    loop {
        match mover.need() {
            Need::Source => {
                ready!(source.poll_read_ready(cx)).map_err(|error| (Operation::Read, error))?;
                source
                    .try_take(|socket| mover.take(socket, scratch, counts))
                    .map_err(|error| (Operation::Read, error))?;
            }
            // Only the sink is waited for: a full one must not be woken for by a source that has more.
            Need::Sink => {
                ready!(sink.poll_write_ready(cx)).map_err(|error| (Operation::Write, error))?;
                sink.try_deliver(|socket| mover.deliver(socket, scratch, counts))
                    .map_err(|error| (Operation::Write, error))?;
            }
            Need::Yield => {
                mover.yielded();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Need::Shutdown => return Poll::Ready(Ok(())),
        }
    }
}
