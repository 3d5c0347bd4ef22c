//! Waiting for an end of a relay, and the only calls of `try_io`: here alone readiness is cleared.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use spliceway_core::{EndKind, Sink, Source, bytes_in_pipe};
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};

/// What is beneath a stream: a socket, or one end of a pipe.
#[derive(Clone, Copy)]
pub(crate) enum End<'a> {
    Tcp(&'a TcpStream),
    Unix(&'a UnixStream),
    Receiver(&'a pipe::Receiver),
    Sender(&'a pipe::Sender),
}

impl End<'_> {
    /// What it is to the engine.
    pub(crate) fn kind(self) -> EndKind {
        match self {
            Self::Tcp(_) | Self::Unix(_) => EndKind::Socket,
            Self::Receiver(_) | Self::Sender(_) => EndKind::Pipe,
        }
    }

    /// Whether it is a pipe without a byte. No error: a read will tell it.
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
            Self::Sender(_) => unreachable!("nobody reads from a sender"),
        }
    }

    /// Waits until there may be room to write; costs one unit of tokio's cooperative budget.
    pub(crate) fn poll_write_ready(self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
            Self::Sender(sender) => sender.poll_write_ready(cx),
            Self::Receiver(_) => unreachable!("nobody writes to a receiver"),
        }
    }

    /// Runs `take` if it counts as readable, and clears that if it learnt that the source is drained: what it learnt.
    ///
    /// Cleared is by an `Err(WouldBlock)` from the closure. So the outcome is set aside, and a receive that took the last byte, or a
    /// look, saves the calls that would only return EAGAIN. What no caller may do is to report a full pipe's EAGAIN as the source's:
    /// the edge would be lost.
    pub(crate) fn try_take(self, take: impl FnOnce(BorrowedFd<'_>) -> io::Result<Source>) -> io::Result<Source> {
        let mut outcome = Ok(Source::Open);
        self.try_io(Interest::READABLE, |fd| {
            outcome = take(fd);
            match outcome {
                Ok(Source::Short | Source::Quiet | Source::WouldBlock) => Readiness::Cleared,
                Ok(Source::Open) | Err(_) => Readiness::Kept,
            }
        });
        outcome
    }

    /// Runs `deliver` if it counts as writable, and clears that if the sink took nothing: `WouldBlock` also if it did not run.
    pub(crate) fn try_deliver<E>(self, deliver: impl FnOnce(BorrowedFd<'_>) -> Result<Sink, E>) -> Result<Sink, E> {
        let mut outcome = Ok(Sink::WouldBlock);
        self.try_io(Interest::WRITABLE, |fd| {
            outcome = deliver(fd);
            match outcome {
                Ok(Sink::WouldBlock) => Readiness::Cleared,
                Ok(Sink::Open) | Err(_) => Readiness::Kept,
            }
        });
        outcome
    }

    fn try_io(self, interest: Interest, io: impl FnOnce(BorrowedFd<'_>) -> Readiness) {
        let attempt = |fd| match io(fd) {
            Readiness::Kept => Ok(()),
            Readiness::Cleared => Err(io::Error::from(io::ErrorKind::WouldBlock)),
        };
        // The error is `attempt`'s own, or tokio's word that the end is not ready and `attempt` did not run.
        let _ = match self {
            Self::Tcp(stream) => stream.try_io(interest, || attempt(stream.as_fd())),
            Self::Unix(stream) => stream.try_io(interest, || attempt(stream.as_fd())),
            Self::Receiver(receiver) => receiver.try_io(|| attempt(receiver.as_fd())),
            Self::Sender(sender) => sender.try_io(|| attempt(sender.as_fd())),
        };
    }
}

/// What a call leaves of its readiness.
enum Readiness {
    Kept,
    Cleared,
}

impl AsFd for End<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Receiver(receiver) => receiver.as_fd(),
            Self::Sender(sender) => sender.as_fd(),
        }
    }
}
