//! The sockets and pipes beneath the streams a relay is given, and what those streams hold back: known by their types.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, BufStream, BufWriter, Join};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use crate::identity::{
    Limit, Limited, NoLifetimes, cast_borrowed, cast_mut, cast_ref, cast_take_mut, cast_take_ref, cast_watched,
};
use crate::readiness::ReadySocket;

/// What `stream` reads from, past whatever it has buffered; `None` if the kernel alone does not know its bytes.
pub(crate) fn source<R: ?Sized>(stream: &R) -> Option<ReadySocket<'_>> {
    duplex::<R, TcpStream>(stream)
        .or_else(|| duplex::<R, UnixStream>(stream))
        .or_else(|| read_half::<R, tcp::OwnedReadHalf>(stream))
        .or_else(|| read_half::<R, unix::OwnedReadHalf>(stream))
        .or_else(|| cast_borrowed::<R, tcp::ReadHalf<'static>>(stream).map(|half| ReadySocket::Tcp(half.as_ref())))
        .or_else(|| cast_borrowed::<R, unix::ReadHalf<'static>>(stream).map(|half| ReadySocket::Unix(half.as_ref())))
        .or_else(|| read_half::<R, pipe::Receiver>(stream))
        .or_else(|| joined::<R, tcp::OwnedReadHalf, tcp::OwnedWriteHalf>(stream).map(|(reader, _)| reader))
        .or_else(|| joined::<R, unix::OwnedReadHalf, unix::OwnedWriteHalf>(stream).map(|(reader, _)| reader))
        .or_else(|| joined::<R, pipe::Receiver, pipe::Sender>(stream).map(|(reader, _)| reader))
}

/// What `stream` writes to; `None` if the kernel alone cannot. What a buffer holds back must be flushed first.
pub(crate) fn sink<W: ?Sized>(stream: &W) -> Option<ReadySocket<'_>> {
    duplex::<W, TcpStream>(stream)
        .or_else(|| duplex::<W, UnixStream>(stream))
        .or_else(|| write_half::<W, tcp::OwnedWriteHalf>(stream))
        .or_else(|| write_half::<W, unix::OwnedWriteHalf>(stream))
        .or_else(|| cast_borrowed::<W, tcp::WriteHalf<'static>>(stream).map(|half| ReadySocket::Tcp(half.as_ref())))
        .or_else(|| cast_borrowed::<W, unix::WriteHalf<'static>>(stream).map(|half| ReadySocket::Unix(half.as_ref())))
        .or_else(|| write_half::<W, pipe::Sender>(stream))
        .or_else(|| joined::<W, tcp::OwnedReadHalf, tcp::OwnedWriteHalf>(stream).map(|(_, writer)| writer))
        .or_else(|| joined::<W, unix::OwnedReadHalf, unix::OwnedWriteHalf>(stream).map(|(_, writer)| writer))
        .or_else(|| joined::<W, pipe::Receiver, pipe::Sender>(stream).map(|(_, writer)| writer))
        .or_else(|| cast_watched(stream).map(ReadySocket::Tcp))
}

/// Both ends, where bytes from `reader` to `writer` can go through the kernel. Known at compile time.
///
/// From pipe to pipe they do not: a buffer takes with it that it was written as a packet (`O_DIRECT`), which the source's end cannot
/// be asked for, and the rest of a packet is lost to whoever reads it in parts.
pub(crate) fn plain<'a, R: ?Sized, W: ?Sized>(
    reader: &'a R,
    writer: &'a W,
) -> Option<(ReadySocket<'a>, ReadySocket<'a>)> {
    match (source(reader)?, sink(writer)?) {
        (ReadySocket::Receiver(_), ReadySocket::Sender(_)) => None,
        ends => Some(ends),
    }
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

/// Bytes that `stream` may still be read of, where it is a `Take`: what is beneath it knows nothing of that.
pub(crate) fn limit<R: ?Sized>(stream: &mut R) -> u64 {
    let mut limit = u64::MAX;
    with_limit(stream, &mut |limited| limit = limited.limit());
    limit
}

/// Tells a `Take` what is left of that.
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
    tcp::OwnedReadHalf: half => ReadySocket::Tcp(half.as_ref());
    tcp::OwnedWriteHalf: half => ReadySocket::Tcp(half.as_ref());
    unix::OwnedReadHalf: half => ReadySocket::Unix(half.as_ref());
    unix::OwnedWriteHalf: half => ReadySocket::Unix(half.as_ref());
    pipe::Receiver: receiver => ReadySocket::Receiver(receiver);
    pipe::Sender: sender => ReadySocket::Sender(sender);
}

fn duplex<T: ?Sized, S: IsEnd + AsyncRead + AsyncWrite + Unpin>(stream: &T) -> Option<ReadySocket<'_>> {
    read_half::<T, S>(stream)
        .or_else(|| write_half::<T, S>(stream))
        .or_else(|| cast_ref::<T, BufStream<S>>(stream).map(|buffered| buffered.get_ref().end()))
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
