//! Waits until an end of a relay is ready. Only this file calls `try_io`, so only it clears
//! readiness.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::task::{Context, Poll};

use spliceway_core::{EndKind, ReadOutcome, WriteOutcome, bytes_in_pipe};
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};

use crate::kernel_tls::KernelTls;

/// The descriptor below a stream: a socket, or one end of a pipe.
#[derive(Clone, Copy)]
pub(crate) enum ReadySocket<'a> {
    Tcp(&'a TcpStream),
    Unix(&'a UnixStream),
    Receiver(&'a pipe::Receiver),
    Sender(&'a pipe::Sender),
    Tls(&'a KernelTls),
}

impl ReadySocket<'_> {
    pub(crate) fn kind(self) -> EndKind {
        match self {
            Self::Tcp(_) | Self::Unix(_) => EndKind::Socket,
            Self::Receiver(_) | Self::Sender(_) => EndKind::Pipe,
            Self::Tls(_) => EndKind::Tls,
        }
    }

    pub(crate) fn tls(&self) -> Option<&KernelTls> {
        match self {
            Self::Tls(tls) => Some(tls),
            Self::Tcp(_) | Self::Unix(_) | Self::Receiver(_) | Self::Sender(_) => None,
        }
    }

    /// Returns whether the end is a pipe without bytes. If the query fails, the function returns
    /// `false`, and a read will report the error.
    pub(crate) fn is_empty_pipe(self) -> bool {
        match self {
            Self::Receiver(receiver) => bytes_in_pipe(receiver).is_ok_and(|bytes| bytes == 0),
            Self::Tcp(_) | Self::Unix(_) | Self::Tls(_) | Self::Sender(_) => false,
        }
    }

    /// Waits until there may be something to read. Each call costs one unit of tokio's cooperative
    /// budget.
    pub(crate) fn poll_read_ready(self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
            Self::Receiver(receiver) => receiver.poll_read_ready(cx),
            Self::Tls(tls) => tls.poll_read_ready(cx),
            Self::Sender(_) => unreachable!("a sender is not read from"),
        }
    }

    /// Waits until there may be room to write. Each call costs one unit of tokio's cooperative
    /// budget.
    pub(crate) fn poll_write_ready(self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
            Self::Sender(sender) => sender.poll_write_ready(cx),
            Self::Tls(tls) => tls.socket().poll_write_ready(cx),
            Self::Receiver(_) => unreachable!("a receiver is not written to"),
        }
    }

    /// Returns whether the end counts as a socket whose writing side has closed. tokio never clears
    /// this.
    pub(crate) fn counts_as_closed(self, cx: &mut Context<'_>) -> bool {
        let ready = match self {
            Self::Tcp(stream) => pin!(stream.ready(Interest::WRITABLE)).poll(cx),
            Self::Unix(stream) => pin!(stream.ready(Interest::WRITABLE)).poll(cx),
            Self::Tls(tls) => pin!(tls.socket().ready(Interest::WRITABLE)).poll(cx),
            Self::Receiver(_) | Self::Sender(_) => Poll::Pending,
        };
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_write_closed())
    }

    /// Runs `read` if the end counts as readable, and clears its readiness if the source is
    /// drained.
    ///
    /// tokio clears readiness when its closure returns `WouldBlock`. Here, the closure returns
    /// `WouldBlock` for every outcome that means a drained source, for example after a short read
    /// or a probe. This saves the call that would only return `EAGAIN`. The `EAGAIN` of a full pipe
    /// must never be reported as the source's, because the next edge would be lost.
    pub(crate) fn try_read(
        self,
        read: impl FnOnce(BorrowedFd<'_>) -> io::Result<ReadOutcome>,
    ) -> io::Result<ReadOutcome> {
        let mut outcome = Ok(ReadOutcome::Open);
        self.try_io(Interest::READABLE, |fd| {
            outcome = read(fd);
            match outcome {
                Ok(ReadOutcome::Short | ReadOutcome::Drained | ReadOutcome::WouldBlock) => Readiness::Cleared,
                Ok(ReadOutcome::Open | ReadOutcome::Record { .. }) | Err(_) => Readiness::Kept,
            }
        });
        outcome
    }

    /// Runs `write` if the end counts as writable, and clears its readiness if the sink is full. If
    /// `write` did not run, the function returns `WouldBlock` too.
    pub(crate) fn try_write<E>(
        self,
        write: impl FnOnce(BorrowedFd<'_>) -> Result<WriteOutcome, E>,
    ) -> Result<WriteOutcome, E> {
        let mut outcome = Ok(WriteOutcome::WouldBlock);
        self.try_io(Interest::WRITABLE, |fd| {
            outcome = write(fd);
            match outcome {
                Ok(WriteOutcome::WouldBlock) => Readiness::Cleared,
                Ok(WriteOutcome::Open) | Err(_) => Readiness::Kept,
            }
        });
        outcome
    }

    fn try_io(self, interest: Interest, io: impl FnOnce(BorrowedFd<'_>) -> Readiness) {
        let attempt = |fd| match io(fd) {
            Readiness::Kept => Ok(()),
            Readiness::Cleared => Err(io::Error::from(io::ErrorKind::WouldBlock)),
        };
        // The error comes from `attempt`, or from tokio if the end is not ready and `attempt` did
        // not run.
        let _ = match self {
            Self::Tcp(stream) => stream.try_io(interest, || attempt(stream.as_fd())),
            Self::Unix(stream) => stream.try_io(interest, || attempt(stream.as_fd())),
            Self::Receiver(receiver) => receiver.try_io(|| attempt(receiver.as_fd())),
            Self::Sender(sender) => sender.try_io(|| attempt(sender.as_fd())),
            Self::Tls(tls) if interest == Interest::READABLE => tls.try_read(|| attempt(tls.as_fd())),
            Self::Tls(tls) => tls.socket().try_io(interest, || attempt(tls.as_fd())),
        };
    }
}

/// Whether an end still counts as ready after a call.
enum Readiness {
    Kept,
    Cleared,
}

impl AsFd for ReadySocket<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Receiver(receiver) => receiver.as_fd(),
            Self::Sender(sender) => sender.as_fd(),
            Self::Tls(tls) => tls.as_fd(),
        }
    }
}
