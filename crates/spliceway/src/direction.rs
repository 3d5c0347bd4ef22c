//! One direction of a relay. A poll moves bytes from its source to its sink.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use spliceway_core::{Counts, Engine, Mirror, Reason};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::copy_loop::CopyLoop;
use crate::options::{Begin, DirectionOptions, Options};
use crate::outcome::{DirectionEnd, Failure, Operation};
use crate::rate_limit::RateWaiter;
use crate::splice_path::SplicePath;
use crate::stream;

/// The most bytes that a direction still reads after the other one has ended. This is more than a
/// socket holds by default (`net.ipv4.tcp_rmem`, 6 MiB), and it limits a sender that never stops.
const FINISH_MAX: u64 = 8 << 20;

/// One direction from its first byte to its last.
#[derive(Debug)]
pub(crate) struct Direction {
    path: Path,
    on_read: Option<Box<OnRead>>,
}

/// What happens at each read of some directions.
#[derive(Debug)]
pub(crate) struct OnRead {
    /// Grants the read.
    pub(crate) rate: Option<RateWaiter>,
    /// Gets what was read.
    pub(crate) mirror: Option<Mirror>,
}

/// How a direction moves its bytes. The types of its ends decide this.
#[derive(Debug)]
enum Path {
    /// Each end is a socket or a pipe.
    Splice(SplicePath),
    /// At least one end is neither a socket nor a pipe.
    Copy(CopyLoop),
    /// At least one end is neither a socket nor a pipe, and the options forbid copying.
    Refused,
}

impl Direction {
    // Code that runs once per direction is cold. The code that runs for each message stays small.
    #[cold]
    pub(crate) fn new<R: ?Sized, W: ?Sized>(
        reader: &R,
        writer: &W,
        prefix: Bytes,
        mut mirror: Option<Mirror>,
        own: &DirectionOptions,
        options: &Options,
        counts: &Counts,
    ) -> Self {
        let limit = own.limit.unwrap_or(u64::MAX);
        let path = match (stream::plain(reader, writer), options.engine) {
            (Some((source, sink)), engine) => {
                if engine == Engine::Copy {
                    counts.set_fallback(Reason::Disabled);
                }
                let begin = own.begin;
                let has_mirror = mirror.is_some();
                Path::Splice(SplicePath::new(source, sink, prefix, limit, begin, options, has_mirror))
            }
            (None, engine) => {
                counts.set_fallback(Reason::NotSockets);
                match engine {
                    Engine::Splice => Path::Refused,
                    _ => {
                        mirror.iter_mut().for_each(|mirror| mirror.write(&prefix));
                        let mut path = CopyLoop::new(prefix, limit);
                        if matches!(own.begin, Begin::Resumed | Begin::ResumedToFinish) {
                            path.resume();
                        }
                        Path::Copy(path)
                    }
                }
            }
        };
        Self {
            path,
            on_read: (own.rate.is_some() || mirror.is_some()).then(|| {
                let rate = own.rate.clone().map(RateWaiter::new);
                Box::new(OnRead { rate, mirror })
            }),
        }
    }

    /// Ready when the source has ended or its limit is reached, and the sink has every byte.
    pub(crate) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        counts: &Counts,
    ) -> Poll<Result<DirectionEnd, Failure>>
    where
        R: AsyncRead + Unpin + ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        let on_read = self.on_read.as_deref_mut();
        let polled = match &mut self.path {
            Path::Splice(path) => path.poll(cx, reader, writer, on_read, counts),
            Path::Copy(path) => path.poll(cx, reader, writer, on_read, counts),
            Path::Refused => Poll::Ready(Err((Operation::Read, refusal()))),
        };
        if let (Poll::Ready(Ok(DirectionEnd::Eof)), Some(on_read)) = (&polled, &mut self.on_read) {
            on_read.mirror.iter_mut().for_each(Mirror::finish);
        }
        polled
    }

    /// Reads the bytes that the source has received by now, and then no more.
    pub(crate) fn finish(&mut self) {
        match &mut self.path {
            Path::Splice(path) => path.finish(FINISH_MAX),
            Path::Copy(path) => path.finish(FINISH_MAX),
            Path::Refused => {}
        }
    }

    /// Returns the number of bytes that may still be read.
    pub(crate) fn remaining(&self) -> u64 {
        match &self.path {
            Path::Splice(path) => path.remaining(),
            Path::Copy(path) => path.remaining(),
            Path::Refused => 0,
        }
    }

    /// Returns whether the source has ended, and its sink must still be shut down.
    pub(crate) fn has_read_eof(&self) -> bool {
        match &self.path {
            Path::Copy(path) => path.has_read_eof(),
            // A direction between sockets never waits after the end of its source.
            Path::Splice(_) | Path::Refused => false,
        }
    }

    /// Returns whether the last read is not complete, so that the direction cannot be suspended.
    pub(crate) fn is_inside_read(&self) -> bool {
        match &self.path {
            Path::Splice(path) => path.is_inside_read(),
            Path::Copy(_) | Path::Refused => false,
        }
    }

    /// Reads no more than `bytes` from now on.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        match &mut self.path {
            Path::Splice(path) => path.set_limit(bytes),
            Path::Copy(path) => path.set_limit(bytes),
            Path::Refused => {}
        }
    }

    /// Returns whether the source has bytes that the rate limit holds back.
    pub(crate) fn is_held_back(&self) -> bool {
        let has_bytes = match &self.path {
            // A socket is readable before its direction asks for a grant.
            Path::Splice(_) => true,
            Path::Copy(path) => path.brought_bytes(),
            Path::Refused => false,
        };
        let rate = self.on_read.as_ref().and_then(|on_read| on_read.rate.as_ref());
        has_bytes && rate.is_some_and(RateWaiter::is_waiting)
    }

    /// Returns the number of bytes that were read and not yet delivered.
    pub(crate) fn in_flight(&self) -> usize {
        match &self.path {
            Path::Splice(path) => path.in_flight(),
            Path::Copy(path) => path.in_flight(),
            Path::Refused => 0,
        }
    }

    /// Removes and returns the bytes that were read and not delivered.
    pub(crate) fn take_in_flight(&mut self) -> io::Result<Bytes> {
        match &mut self.path {
            Path::Splice(path) => path.take_in_flight(),
            Path::Copy(path) => Ok(path.take_in_flight()),
            Path::Refused => Ok(Bytes::new()),
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
