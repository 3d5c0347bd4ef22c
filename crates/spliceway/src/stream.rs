//! Finds the sockets and pipes below a relay's streams by the types of the streams, and empties the
//! streams' own buffers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use spliceway_core::socket;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, BufStream, BufWriter, Join};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream, tcp, unix};
#[cfg(feature = "tokio-util")]
use tokio_util::either::Either;

use crate::as_socket::{AsSocket, SocketRef, Spliceable};
use crate::identity::{
    Limit, Limited, NoLifetimes, cast_borrowed, cast_mut, cast_ref, cast_take_mut, cast_take_ref, cast_watched,
};
use crate::kernel_tls::KernelTls;
use crate::readiness::ReadySocket;

/// Returns the end that `stream` reads from, below any buffer. Returns `None` if the stream's bytes
/// do not come directly from the kernel.
pub(crate) fn source<R: ?Sized>(stream: &R) -> Option<ReadySocket<'_>> {
    duplex::<R, TcpStream>(stream)
        .or_else(|| duplex::<R, UnixStream>(stream))
        .or_else(|| cast_ref::<R, KernelTls>(stream).map(KernelTls::end))
        .or_else(|| read_half::<R, tcp::OwnedReadHalf>(stream))
        .or_else(|| read_half::<R, unix::OwnedReadHalf>(stream))
        .or_else(|| cast_borrowed::<R, tcp::ReadHalf<'static>>(stream).map(|half| ReadySocket::Tcp(half.as_ref())))
        .or_else(|| cast_borrowed::<R, unix::ReadHalf<'static>>(stream).map(|half| ReadySocket::Unix(half.as_ref())))
        .or_else(|| read_half::<R, pipe::Receiver>(stream))
        .or_else(|| joined::<R, tcp::OwnedReadHalf, tcp::OwnedWriteHalf>(stream).map(|(reader, _)| reader))
        .or_else(|| joined::<R, unix::OwnedReadHalf, unix::OwnedWriteHalf>(stream).map(|(reader, _)| reader))
        .or_else(|| joined::<R, pipe::Receiver, pipe::Sender>(stream).map(|(reader, _)| reader))
        .or_else(|| either(stream))
        .or_else(|| opted_in(stream))
}

/// Returns the end that `stream` writes to. Returns `None` if bytes cannot go directly from the
/// kernel to the stream. The caller must first flush bytes that a buffer holds back.
pub(crate) fn sink<W: ?Sized>(stream: &W) -> Option<ReadySocket<'_>> {
    duplex::<W, TcpStream>(stream)
        .or_else(|| duplex::<W, UnixStream>(stream))
        .or_else(|| cast_ref::<W, KernelTls>(stream).map(KernelTls::end))
        .or_else(|| write_half::<W, tcp::OwnedWriteHalf>(stream))
        .or_else(|| write_half::<W, unix::OwnedWriteHalf>(stream))
        .or_else(|| cast_borrowed::<W, tcp::WriteHalf<'static>>(stream).map(|half| ReadySocket::Tcp(half.as_ref())))
        .or_else(|| cast_borrowed::<W, unix::WriteHalf<'static>>(stream).map(|half| ReadySocket::Unix(half.as_ref())))
        .or_else(|| write_half::<W, pipe::Sender>(stream))
        .or_else(|| joined::<W, tcp::OwnedReadHalf, tcp::OwnedWriteHalf>(stream).map(|(_, writer)| writer))
        .or_else(|| joined::<W, unix::OwnedReadHalf, unix::OwnedWriteHalf>(stream).map(|(_, writer)| writer))
        .or_else(|| joined::<W, pipe::Receiver, pipe::Sender>(stream).map(|(_, writer)| writer))
        .or_else(|| cast_watched(stream).map(ReadySocket::Tcp))
        .or_else(|| either(stream))
        .or_else(|| opted_in(stream))
}

/// Returns both ends if bytes from `reader` to `writer` can go through the kernel. The types decide
/// this at compile time, except for a `Spliceable`, which gives its socket at run time.
///
/// Bytes from pipe to pipe are not spliced. A pipe buffer that was written as a packet (`O_DIRECT`)
/// would stay a packet in the sink. The source's end does not show whether its bytes are packets.
/// If the reader of the sink reads only a part of a packet, it loses the rest.
pub(crate) fn plain<'a, R: ?Sized, W: ?Sized>(
    reader: &'a R,
    writer: &'a W,
) -> Option<(ReadySocket<'a>, ReadySocket<'a>)> {
    match (source(reader)?, sink(writer)?) {
        (ReadySocket::Receiver(_), ReadySocket::Sender(_) | ReadySocket::Tls(_)) => None,
        (ReadySocket::Tls(_), ReadySocket::Sender(_)) => None,
        ends => Some(ends),
    }
}

/// Removes and returns up to `most` bytes that `stream` has read from its socket and holds in its
/// own buffer. If more bytes remain in the buffer, the limit is reached, and the relay must not
/// read from the socket either.
///
/// A `BufReader` shows its buffer. A `BufStream` does not, so its first bytes are read through it.
/// If that read would wait, the buffer is empty. If it returns no bytes, the stream has ended, and
/// the socket will report the end again.
pub(crate) fn buffered<R: ?Sized>(stream: &mut R, cx: &mut Context<'_>, most: u64) -> io::Result<Vec<u8>> {
    let held = buffer_of::<R, TcpStream>(stream, most)
        .or_else(|| buffer_of::<R, UnixStream>(stream, most))
        .or_else(|| buffer_of::<R, tcp::OwnedReadHalf>(stream, most))
        .or_else(|| buffer_of::<R, unix::OwnedReadHalf>(stream, most))
        .or_else(|| buffer_of::<R, pipe::Receiver>(stream, most));
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

/// Returns how many bytes may still be read from `stream` if it is a `Take`. The stream inside it
/// does not know that limit.
pub(crate) fn limit<R: ?Sized>(stream: &mut R) -> u64 {
    let mut limit = u64::MAX;
    with_limit(stream, &mut |limited| limit = limited.limit());
    limit
}

/// Sets how many bytes may still be read from a `Take`.
pub(crate) fn set_limit<R: ?Sized>(stream: &mut R, limit: u64) {
    with_limit(stream, &mut |limited| limited.set_limit(limit));
}

fn with_limit<R: ?Sized>(stream: &mut R, tell: &mut dyn FnMut(&mut dyn Limit)) {
    with_limit_around::<R, TcpStream>(stream, tell);
    with_limit_around::<R, UnixStream>(stream, tell);
    with_limit_around::<R, tcp::OwnedReadHalf>(stream, tell);
    with_limit_around::<R, unix::OwnedReadHalf>(stream, tell);
    with_limit_around::<R, pipe::Receiver>(stream, tell);
}

fn with_limit_around<R: ?Sized, S: IsEnd + AsyncRead + Unpin>(stream: &mut R, tell: &mut dyn FnMut(&mut dyn Limit)) {
    if let Some(limited) = cast_take_mut::<R, S>(stream) {
        tell(limited);
    }
    if let Some(limited) = cast_take_mut::<R, BufReader<S>>(stream) {
        tell(limited);
    }
}

/// A stream type that is a socket, half of one, or an end of a pipe.
trait IsEnd: NoLifetimes {
    fn end(&self) -> ReadySocket<'_>;
}

macro_rules! is_end {
    ($($stream:ty: $this:ident => $end:expr;)+) => {$(
        impl IsEnd for $stream {
            fn end(&self) -> ReadySocket<'_> {
                let $this = self;
                $end
            }
        }
    )+};
}

is_end! {
    TcpStream: stream => ReadySocket::Tcp(stream);
    UnixStream: stream => ReadySocket::Unix(stream);
    KernelTls: tls => ReadySocket::Tls(tls);
    tcp::OwnedReadHalf: half => ReadySocket::Tcp(half.as_ref());
    tcp::OwnedWriteHalf: half => ReadySocket::Tcp(half.as_ref());
    unix::OwnedReadHalf: half => ReadySocket::Unix(half.as_ref());
    unix::OwnedWriteHalf: half => ReadySocket::Unix(half.as_ref());
    pipe::Receiver: receiver => ReadySocket::Receiver(receiver);
    pipe::Sender: sender => ReadySocket::Sender(sender);
}

/// Returns the socket of a stream that provides it through [`AsSocket`].
fn opted_in<T: ?Sized>(stream: &T) -> Option<ReadySocket<'_>> {
    cast_borrowed::<T, Spliceable<'static>>(stream)
        .and_then(AsSocket::as_socket)
        .map(|socket| match socket {
            SocketRef::Tcp(socket) => ReadySocket::Tcp(socket),
            SocketRef::Unix(socket) => ReadySocket::Unix(socket),
            SocketRef::KernelTls(tls) => ReadySocket::Tls(tls),
        })
}

#[cfg(feature = "tokio-util")]
fn either<T: ?Sized>(stream: &T) -> Option<ReadySocket<'_>> {
    fn of<T: ?Sized, L: IsEnd, R: IsEnd>(stream: &T) -> Option<ReadySocket<'_>> {
        cast_ref::<T, Either<L, R>>(stream).map(|either| match either {
            Either::Left(left) => left.end(),
            Either::Right(right) => right.end(),
        })
    }
    of::<T, TcpStream, UnixStream>(stream).or_else(|| of::<T, UnixStream, TcpStream>(stream))
}

#[cfg(not(feature = "tokio-util"))]
fn either<T: ?Sized>(_: &T) -> Option<ReadySocket<'_>> {
    None
}

/// Returns the TCP socket that `stream` writes to, if it writes to one.
pub(crate) fn tcp_sink<W: ?Sized>(stream: &W) -> Option<&TcpStream> {
    match sink(stream)? {
        ReadySocket::Tcp(socket) => Some(socket),
        ReadySocket::Tls(tls) => Some(tls.socket()),
        ReadySocket::Unix(_) | ReadySocket::Receiver(_) | ReadySocket::Sender(_) => None,
    }
}

/// Returns whether there are bytes that the peer has not acknowledged yet. Returns `false` if the
/// kernel does not know, because there is then nothing to wait for.
pub(crate) fn is_owed(socket: &TcpStream) -> bool {
    socket::unacknowledged(socket).is_ok_and(|bytes| bytes > 0)
}

fn duplex<T: ?Sized, S: IsEnd + AsyncRead + AsyncWrite + Unpin>(stream: &T) -> Option<ReadySocket<'_>> {
    read_half::<T, S>(stream)
        .or_else(|| write_half::<T, S>(stream))
        .or_else(|| cast_ref::<T, BufStream<S>>(stream).map(|buffered| buffered.get_ref().end()))
        .or_else(|| cast_ref::<T, Box<S>>(stream).map(|boxed| boxed.end()))
        .or_else(|| cast_ref::<T, Pin<Box<S>>>(stream).map(|boxed| boxed.end()))
}

fn read_half<T: ?Sized, S: IsEnd + AsyncRead + Unpin>(stream: &T) -> Option<ReadySocket<'_>> {
    cast_ref::<T, S>(stream)
        .or_else(|| cast_ref::<T, BufReader<S>>(stream).map(BufReader::get_ref))
        .or_else(|| cast_take_ref::<T, S>(stream).map(Limited::inner))
        .or_else(|| cast_take_ref::<T, BufReader<S>>(stream).map(|limited| limited.inner().get_ref()))
        .map(S::end)
}

fn write_half<T: ?Sized, S: IsEnd + AsyncWrite>(stream: &T) -> Option<ReadySocket<'_>> {
    let socket = cast_ref::<T, S>(stream).or_else(|| cast_ref::<T, BufWriter<S>>(stream).map(BufWriter::get_ref));
    socket.map(S::end)
}

fn joined<T: ?Sized, R: IsEnd + AsyncRead, W: IsEnd + AsyncWrite>(
    stream: &T,
) -> Option<(ReadySocket<'_>, ReadySocket<'_>)> {
    cast_ref::<T, Join<R, W>>(stream).map(|both| (both.reader().end(), both.writer().end()))
}

fn buffer_of<R: ?Sized, S: IsEnd + AsyncRead + Unpin>(stream: &mut R, most: u64) -> Option<Vec<u8>> {
    let reader = buffered_reader::<R, S>(stream)?;
    let held = up_to(most, reader.buffer()).to_vec();
    Pin::new(reader).consume(held.len());
    Some(held)
}

fn buffered_reader<R: ?Sized, S: IsEnd + AsyncRead + Unpin>(stream: &mut R) -> Option<&mut BufReader<S>> {
    if cast_ref::<R, BufReader<S>>(stream).is_some() {
        cast_mut::<R, BufReader<S>>(stream)
    } else {
        cast_take_mut::<R, BufReader<S>>(stream).map(Limited::inner_mut)
    }
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
