//! The sockets beneath the streams a relay is given, and the only calls of `try_io`: here alone readiness is cleared.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use spliceway_core::{Sink, Source};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, BufStream, BufWriter, Interest};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use crate::identity::{NoLifetimes, cast_mut, cast_ref};

/// A socket beneath a stream.
#[derive(Clone, Copy)]
pub(crate) enum Socket<'a> {
    Tcp(&'a TcpStream),
    Unix(&'a UnixStream),
}

/// The socket that `stream` reads from, past whatever it has buffered; `None` if it is no plain socket.
pub(crate) fn source<R: ?Sized>(stream: &R) -> Option<Socket<'_>> {
    duplex::<R, TcpStream>(stream)
        .or_else(|| duplex::<R, UnixStream>(stream))
        .or_else(|| read_half::<R, tcp::OwnedReadHalf>(stream))
        .or_else(|| read_half::<R, unix::OwnedReadHalf>(stream))
}

/// The socket that `stream` writes to; `None` if it is no plain socket. What a buffer holds back must be flushed first.
pub(crate) fn sink<W: ?Sized>(stream: &W) -> Option<Socket<'_>> {
    duplex::<W, TcpStream>(stream)
        .or_else(|| duplex::<W, UnixStream>(stream))
        .or_else(|| write_half::<W, tcp::OwnedWriteHalf>(stream))
        .or_else(|| write_half::<W, unix::OwnedWriteHalf>(stream))
}

/// Whether bytes from `reader` to `writer` can go through the kernel. Known at compile time.
pub(crate) fn are_sockets<R: ?Sized, W: ?Sized>(reader: &R, writer: &W) -> bool {
    source(reader).is_some() && sink(writer).is_some()
}

/// Takes what `stream` has read from its socket and keeps in a buffer of its own, up to `most` bytes. If that is not all of it,
/// there is nothing to be taken from the socket either.
///
/// A `BufReader` shows its buffer. A `BufStream` does not, so its first bytes are read through it. Where that would wait, its
/// buffer is empty; and no bytes are the end of the stream, which the socket will tell again.
pub(crate) fn buffered<R: ?Sized>(stream: &mut R, cx: &mut Context<'_>, most: u64) -> io::Result<Vec<u8>> {
    let held = buffer_of::<R, TcpStream>(stream, most)
        .or_else(|| buffer_of::<R, UnixStream>(stream, most))
        .or_else(|| buffer_of::<R, tcp::OwnedReadHalf>(stream, most))
        .or_else(|| buffer_of::<R, unix::OwnedReadHalf>(stream, most));
    if let Some(held) = held {
        return Ok(held);
    }
    if let Some(stream) = cast_mut::<R, BufStream<TcpStream>>(stream) {
        return read_ahead(stream, cx, most);
    }
    if let Some(stream) = cast_mut::<R, BufStream<UnixStream>>(stream) {
        return read_ahead(stream, cx, most);
    }
    Ok(Vec::new())
}

/// A stream type that is a socket, or half of one.
trait IsSocket: NoLifetimes {
    fn socket(&self) -> Socket<'_>;
}

macro_rules! is_socket {
    ($($kind:ident: $($stream:ty),+;)+) => {$($(
        impl IsSocket for $stream {
            fn socket(&self) -> Socket<'_> {
                Socket::$kind(self.as_ref())
            }
        }
    )+)+};
}

is_socket! {
    Tcp: tcp::OwnedReadHalf, tcp::OwnedWriteHalf;
    Unix: unix::OwnedReadHalf, unix::OwnedWriteHalf;
}

impl IsSocket for TcpStream {
    fn socket(&self) -> Socket<'_> {
        Socket::Tcp(self)
    }
}

impl IsSocket for UnixStream {
    fn socket(&self) -> Socket<'_> {
        Socket::Unix(self)
    }
}

fn duplex<T: ?Sized, S: IsSocket + AsyncRead + AsyncWrite>(stream: &T) -> Option<Socket<'_>> {
    read_half::<T, S>(stream)
        .or_else(|| write_half::<T, S>(stream))
        .or_else(|| cast_ref::<T, BufStream<S>>(stream).map(|buffered| buffered.get_ref().socket()))
}

fn read_half<T: ?Sized, S: IsSocket + AsyncRead>(stream: &T) -> Option<Socket<'_>> {
    let socket = cast_ref::<T, S>(stream).or_else(|| cast_ref::<T, BufReader<S>>(stream).map(BufReader::get_ref));
    socket.map(S::socket)
}

fn write_half<T: ?Sized, S: IsSocket + AsyncWrite>(stream: &T) -> Option<Socket<'_>> {
    let socket = cast_ref::<T, S>(stream).or_else(|| cast_ref::<T, BufWriter<S>>(stream).map(BufWriter::get_ref));
    socket.map(S::socket)
}

fn buffer_of<R: ?Sized, S: IsSocket + AsyncRead + Unpin>(stream: &mut R, most: u64) -> Option<Vec<u8>> {
    let reader = cast_mut::<R, BufReader<S>>(stream)?;
    let held = up_to(most, reader.buffer()).to_vec();
    Pin::new(reader).consume(held.len());
    Some(held)
}

fn read_ahead(mut stream: impl AsyncBufRead + Unpin, cx: &mut Context<'_>, most: u64) -> io::Result<Vec<u8>> {
    if most == 0 {
        return Ok(Vec::new());
    }
    let mut stream = Pin::new(&mut stream);
    let held = match stream.as_mut().poll_fill_buf(cx)? {
        Poll::Ready(buffer) => up_to(most, buffer).to_vec(),
        Poll::Pending => Vec::new(),
    };
    stream.consume(held.len());
    Ok(held)
}

fn up_to(most: u64, buffer: &[u8]) -> &[u8] {
    &buffer[..usize::try_from(most).map_or(buffer.len(), |most| most.min(buffer.len()))]
}

impl Socket<'_> {
    /// Waits until there may be something to read; costs one unit of tokio's cooperative budget.
    pub(crate) fn poll_read_ready(self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Waits until there may be room to write; costs one unit of tokio's cooperative budget.
    pub(crate) fn poll_write_ready(self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Runs `take` if the socket counts as readable, and clears that if it learnt that the source is drained.
    ///
    /// Cleared is by an `Err(WouldBlock)` from the closure. So the outcome is set aside, and a receive that took the last byte
    /// saves the call that would only return EAGAIN. What no caller may do is to report a full pipe's EAGAIN as the source's:
    /// the edge would be lost.
    pub(crate) fn try_take(self, take: impl FnOnce(BorrowedFd<'_>) -> io::Result<Source>) -> io::Result<()> {
        self.try_io(Interest::READABLE, |socket| match take(socket) {
            Ok(Source::Open) => (Ok(()), Readiness::Kept),
            Ok(Source::Drained | Source::WouldBlock) => (Ok(()), Readiness::Cleared),
            Err(error) => (Err(error), Readiness::Kept),
        })
    }

    /// Runs `deliver` if the socket counts as writable, and clears that if the sink took nothing.
    pub(crate) fn try_deliver(self, deliver: impl FnOnce(BorrowedFd<'_>) -> io::Result<Sink>) -> io::Result<()> {
        self.try_io(Interest::WRITABLE, |socket| match deliver(socket) {
            Ok(Sink::Open) => (Ok(()), Readiness::Kept),
            Ok(Sink::WouldBlock) => (Ok(()), Readiness::Cleared),
            Err(error) => (Err(error), Readiness::Kept),
        })
    }

    fn try_io(
        self,
        interest: Interest,
        io: impl FnOnce(BorrowedFd<'_>) -> (io::Result<()>, Readiness),
    ) -> io::Result<()> {
        let mut outcome = Ok(());
        let attempt = || {
            let readiness;
            (outcome, readiness) = io(self.as_fd());
            match readiness {
                Readiness::Kept => Ok(()),
                Readiness::Cleared => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            }
        };
        // The error is `attempt`'s own, or tokio's word that the socket is not ready and `attempt` did not run.
        let _ = match self {
            Self::Tcp(stream) => stream.try_io(interest, attempt),
            Self::Unix(stream) => stream.try_io(interest, attempt),
        };
        outcome
    }
}

/// What a call on a socket leaves of its readiness.
enum Readiness {
    Kept,
    Cleared,
}

impl AsFd for Socket<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}
