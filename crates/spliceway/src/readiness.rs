//! Waiting for an end of a relay. Only this file calls `try_io`, so only it clears readiness.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use spliceway_core::{EndKind, ReadOutcome, WriteOutcome, bytes_in_pipe};
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};

/// The descriptor below a stream: a socket, or one end of a pipe.
#[derive(Clone, Copy)]
pub(crate) enum ReadySocket<'a> {
    Tcp(&'a TcpStream),
    Unix(&'a UnixStream),
    Receiver(&'a pipe::Receiver),
    Sender(&'a pipe::Sender),
}

impl ReadySocket<'_> {
    pub(crate) fn kind(self) -> EndKind {
        match self {
            Self::Tcp(_) | Self::Unix(_) => EndKind::Socket,
            Self::Receiver(_) | Self::Sender(_) => EndKind::Pipe,
        }
    }

    /// Whether it is an empty pipe. A read will report any error.
    pub(crate) fn is_empty_pipe(self) -> bool {
        match self {
            Self::Receiver(receiver) => bytes_in_pipe(receiver).is_ok_and(|bytes| bytes == 0),
            Self::Tcp(_) | Self::Unix(_) | Self::Sender(_) => false,
        }
    }

    /// Waits until there may be something to read; costs one unit of tokio's cooperative budget.
    pub(crate) fn poll_read_ready(self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
            Self::Receiver(receiver) => receiver.poll_read_ready(cx),
            Self::Sender(_) => unreachable!("a sender is not read from"),
        }
    }

    /// Waits until there may be room to write; costs one unit of tokio's cooperative budget.
    pub(crate) fn poll_write_ready(self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
            Self::Sender(sender) => sender.poll_write_ready(cx),
            Self::Receiver(_) => unreachable!("a receiver is not written to"),
        }
    }

    /// Runs `read` if the end counts as readable, and clears that if the source is drained.
    ///
    /// tokio clears readiness when the closure returns `WouldBlock`. So the outcome is set aside,
    /// and a receive that took the last byte, or a probe, saves the call that would only return
    /// `EAGAIN`. A full pipe's `EAGAIN` must never be reported as the source's: the edge would be
    /// lost.
    pub(crate) fn try_read(
        self,
        read: impl FnOnce(BorrowedFd<'_>) -> io::Result<ReadOutcome>,
    ) -> io::Result<ReadOutcome> {
        let mut outcome = Ok(ReadOutcome::Open);
        self.try_io(Interest::READABLE, |fd| {
            outcome = read(fd);
            match outcome {
                Ok(ReadOutcome::Short | ReadOutcome::Drained | ReadOutcome::WouldBlock) => Readiness::Cleared,
                Ok(ReadOutcome::Open) | Err(_) => Readiness::Kept,
            }
        });
        outcome
    }

    /// Runs `write` if the end counts as writable, and clears that if the sink is full. Returns
    /// `WouldBlock` as well if it did not run.
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
        // The error is `attempt`'s own, or tokio's word that the end is not ready and `attempt` did
        // not run.
        let _ = match self {
            Self::Tcp(stream) => stream.try_io(interest, || attempt(stream.as_fd())),
            Self::Unix(stream) => stream.try_io(interest, || attempt(stream.as_fd())),
            Self::Receiver(receiver) => receiver.try_io(|| attempt(receiver.as_fd())),
            Self::Sender(sender) => sender.try_io(|| attempt(sender.as_fd())),
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
        }
    }
}
