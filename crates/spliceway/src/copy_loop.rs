//! One direction in which at least one stream cannot be spliced. It reads and writes, and flushes
//! when the reader would block, as tokio's copy does.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use spliceway_core::{Counts, WaitsFor};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::{consume_budget, has_budget_remaining};

use crate::direction::OnRead;
use crate::outcome::{DirectionEnd, Failure, Operation};
use crate::rate_limit::RateWaiter;
use crate::worker::Worker;
use crate::yield_now::yield_now;

/// The most bytes of one read: the payload of the longest TLS record. A direction whose writer is
/// slow holds as many.
pub(crate) const MAX_READ: usize = 16 << 10;

/// The number of reads in one poll before the task yields. A stream that is always ready must not
/// monopolize the worker thread.
const READS_PER_POLL: usize = 16;

/// A direction that copies. It reads into the buffer of its thread, and holds memory only for bytes
/// that the writer does not take.
#[derive(Debug)]
pub(crate) struct CopyLoop {
    /// Bytes that were read and not yet written.
    unsent: Bytes,
    /// The number of bytes that may still be read. Without a limit, it starts at `u64::MAX`, which
    /// no stream reaches.
    remaining: u64,
    unflushed: bool,
    /// Whether the last read brought bytes, or there was none yet. Otherwise, nothing shows that
    /// the reader has some.
    brought_bytes: bool,
    /// Whether the direction ends when the reader would block.
    finishing: bool,
    ended: Option<DirectionEnd>,
}

impl CopyLoop {
    /// Creates a loop that writes `prefix` first, and then reads at most `limit` bytes.
    pub(crate) fn new(prefix: Bytes, limit: u64) -> Self {
        Self {
            unsent: prefix,
            remaining: limit,
            unflushed: false,
            brought_bytes: true,
            finishing: false,
            ended: None,
        }
    }

    /// Continues a loop that may not have flushed its writes.
    pub(crate) fn resume(&mut self) {
        self.unflushed = true;
    }

    /// Returns the number of bytes that may still be read.
    pub(crate) fn remaining(&self) -> u64 {
        match self.ended {
            Some(DirectionEnd::Limit) => 0,
            _ => self.remaining,
        }
    }

    /// Returns whether the reader has ended.
    pub(crate) fn has_read_eof(&self) -> bool {
        self.ended == Some(DirectionEnd::Eof)
    }

    /// Reads no more than `bytes` from now on.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.remaining = self.remaining.min(bytes);
    }

    /// Reads the bytes that the reader has now, up to `max`, and then no more.
    pub(crate) fn finish(&mut self, max: u64) {
        self.remaining = self.remaining.min(max);
        self.finishing = true;
    }

    /// Returns whether the reader probably has more bytes.
    pub(crate) fn brought_bytes(&self) -> bool {
        self.brought_bytes
    }

    /// Returns the number of bytes that were read and not yet written.
    pub(crate) fn in_flight(&self) -> usize {
        self.unsent.len()
    }

    /// Removes and returns the bytes that were read and not written.
    pub(crate) fn take_in_flight(&mut self) -> Bytes {
        std::mem::take(&mut self.unsent)
    }

    /// Copies until the reader ends or the limit is reached, then flushes. When ready, it returns
    /// which of the two ended the direction.
    // Not inlined, to keep it separate from the code that a direction between sockets runs for each
    // message.
    #[inline(never)]
    pub(crate) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        on_read: Option<&mut OnRead>,
        counts: &Counts,
    ) -> Poll<Result<DirectionEnd, Failure>>
    where
        R: AsyncRead + Unpin + ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        // A stream might not consume tokio's budget, and a task may run one short relay after
        // another.
        ready!(pin!(consume_budget()).poll(cx));
        let (mut reader, mut writer) = (Pin::new(reader), Pin::new(writer));
        let (mut rate, mut mirror) = on_read.map_or((None, None), |on| (on.rate.as_mut(), on.mirror.as_mut()));
        for _ in 0..READS_PER_POLL {
            match self.poll_write_unsent(cx, writer.as_mut(), counts) {
                Poll::Ready(written) => written.map_err(|error| (Operation::Write, error))?,
                Poll::Pending => {
                    counts.waits_for(Some(WaitsFor::Sink));
                    return Poll::Pending;
                }
            }
            if let Some(end) = self.ended {
                return writer
                    .poll_flush(cx)
                    .map_ok(|()| end)
                    .map_err(|error| (Operation::Write, error));
            }
            if self.remaining == 0 {
                self.ended = Some(DirectionEnd::Limit);
                continue;
            }
            let passed = Worker::lend(|worker| {
                let buffer = &mut worker.scratch[..MAX_READ];
                let read = ready!(self.poll_read(cx, reader.as_mut(), rate.as_deref_mut(), buffer));
                let read = read.map_err(|error| (Operation::Read, error))?;
                if let Some(mirror) = &mut mirror {
                    mirror.write(&buffer[..read]);
                }
                Poll::Ready(self.write(cx, writer.as_mut(), &buffer[..read], counts))
            });
            match passed {
                Poll::Ready(passed) => passed?,
                // If the task's budget or the rate limit is the reason to wait, the reader may
                // still have bytes.
                Poll::Pending
                    if self.finishing
                        && has_budget_remaining()
                        && !rate.as_ref().is_some_and(|rate| rate.is_waiting()) =>
                {
                    self.ended = Some(DirectionEnd::Limit);
                }
                Poll::Pending => {
                    // Before the loop waits, the writer must send what it holds back. The reader
                    // may depend on those bytes.
                    let is_limited = rate.as_ref().is_some_and(|rate| rate.is_waiting());
                    counts.waits_for(Some(match is_limited {
                        true => WaitsFor::RateLimit,
                        false => WaitsFor::Source,
                    }));
                    if self.unflushed {
                        ready!(writer.poll_flush(cx)).map_err(|error| (Operation::Write, error))?;
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
        counts.waits_for(None);
        yield_now(cx);
        Poll::Pending
    }

    fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut reader: Pin<&mut R>,
        mut rate: Option<&mut RateWaiter>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>>
    where
        R: AsyncRead + ?Sized,
    {
        let mut max = usize::try_from(self.remaining).map_or(buffer.len(), |left| left.min(buffer.len()));
        if let Some(rate) = &mut rate {
            max = max.min(ready!(rate.poll_grant(cx, max)));
        }
        let mut buf = ReadBuf::new(&mut buffer[..max]);
        loop {
            match reader.as_mut().poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) => break,
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.brought_bytes = false;
                    // An idle reader must not keep a grant from others that share the limit.
                    if let Some(rate) = rate {
                        rate.spent(0);
                    }
                    return Poll::Pending;
                }
            }
        }
        let read = buf.filled().len();
        self.brought_bytes = read > 0;
        if read == 0 {
            self.ended = Some(DirectionEnd::Eof);
        }
        if let Some(rate) = rate {
            rate.spent(read);
        }
        self.remaining -= read as u64;
        Poll::Ready(Ok(read))
    }

    fn poll_write_unsent<W>(
        &mut self,
        cx: &mut Context<'_>,
        mut writer: Pin<&mut W>,
        counts: &Counts,
    ) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + ?Sized,
    {
        while !self.unsent.is_empty() {
            let written = ready!(poll_write(cx, writer.as_mut(), &self.unsent, counts))?;
            self.unflushed = true;
            self.unsent.advance(written);
            if self.unsent.is_empty() {
                // Frees the memory.
                self.unsent = Bytes::new();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes bytes, and saves those that the writer does not take now.
    fn write<W>(
        &mut self,
        cx: &mut Context<'_>,
        mut writer: Pin<&mut W>,
        mut bytes: &[u8],
        counts: &Counts,
    ) -> Result<(), Failure>
    where
        W: AsyncWrite + ?Sized,
    {
        while !bytes.is_empty() {
            match poll_write(cx, writer.as_mut(), bytes, counts) {
                Poll::Ready(Ok(written)) => {
                    self.unflushed = true;
                    bytes = &bytes[written..];
                }
                stopped => {
                    self.unsent = Bytes::copy_from_slice(bytes);
                    return match stopped {
                        Poll::Ready(Err(error)) => Err((Operation::Write, error)),
                        _ => Ok(()),
                    };
                }
            }
        }
        Ok(())
    }
}

fn poll_write<W>(
    cx: &mut Context<'_>,
    mut writer: Pin<&mut W>,
    bytes: &[u8],
    counts: &Counts,
) -> Poll<io::Result<usize>>
where
    W: AsyncWrite + ?Sized,
{
    loop {
        match ready!(writer.as_mut().poll_write(cx, bytes)) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Ok(written) => {
                counts.add_copied(written);
                return Poll::Ready(Ok(written));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}
