//! tokio's copying functions under tokio's names, spliced where both ends are sockets.

use std::future::poll_fn;
use std::io;

use bytes::Bytes;
use spliceway_core::Counts;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::direction::Direction;
use crate::options;
use crate::relay::Relay;
use crate::stream;

/// Copies data in both directions between `a` and `b`: [`tokio::io::copy_bidirectional`], through the kernel where it can.
///
/// ```diff
/// -use tokio::io::copy_bidirectional;
/// +use spliceway::copy_bidirectional;
/// ```
///
/// Spliced where both streams are a [`TcpStream`](tokio::net::TcpStream) or a [`UnixStream`](tokio::net::UnixStream), or a
/// `BufReader`, `BufWriter` or `BufStream` around one, whose buffered bytes go first. Every other pair of streams is given
/// to tokio's own function.
///
/// The end of one stream shuts the other's writing side down, and the other direction goes on. Returns the bytes delivered,
/// `a` to `b` and `b` to `a`, once both have ended.
///
/// # Errors
/// Any error of a read, a write, a flush or a shutdown, at once; interrupted calls are retried. Bytes in flight are then
/// lost. [`Relay`] tells what was delivered.
///
/// # Cancel safety
/// Safe to drop; bytes in flight are lost, as with tokio's.
pub async fn copy_bidirectional<A, B>(a: &mut A, b: &mut B) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncRead + AsyncWrite + Unpin + ?Sized,
{
    if stream::plain(a, b).is_none() {
        return tokio::io::copy_bidirectional(a, b).await;
    }
    let summary = Relay::new(a, b).await?;
    Ok((summary.a_to_b.bytes, summary.b_to_a.bytes))
}

/// [`copy_bidirectional`] with the sizes of the buffers, in bytes, that tokio's function is to copy with:
/// [`tokio::io::copy_bidirectional_with_sizes`].
///
/// Between sockets there is no buffer of the relay's own to size, and the sizes do nothing.
///
/// # Errors
/// Those of [`copy_bidirectional`].
///
/// # Panics
/// If either size is 0, as tokio's does.
pub async fn copy_bidirectional_with_sizes<A, B>(
    a: &mut A,
    b: &mut B,
    a_to_b_buf_size: usize,
    b_to_a_buf_size: usize,
) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncRead + AsyncWrite + Unpin + ?Sized,
{
    assert!(a_to_b_buf_size > 0, "`a_to_b_buf_size` must be greater than 0");
    assert!(b_to_a_buf_size > 0, "`b_to_a_buf_size` must be greater than 0");
    if stream::plain(a, b).is_none() {
        return tokio::io::copy_bidirectional_with_sizes(a, b, a_to_b_buf_size, b_to_a_buf_size).await;
    }
    copy_bidirectional(a, b).await
}

/// Copies everything from `reader` to `writer`: [`tokio::io::copy`], through the kernel where it can.
///
/// Spliced where both ends are those of [`copy_bidirectional`], the halves of both kinds of sockets, owned or borrowed, the ends of a
/// [pipe](tokio::net::unix::pipe), or a [`Take`](tokio::io::Take) of one of these or of a mutable reference to it. Every other pair is
/// given to tokio's own function. The writer is not shut down at the end. Returns the bytes delivered.
///
/// With a limit, `take` says so: not one byte more is taken, the stream can be read on, and the `Take` knows what is left.
///
/// ```no_run
/// use tokio::io::AsyncReadExt;
///
/// # async fn example(mut body: tokio::net::TcpStream, mut upstream: tokio::net::TcpStream, length: u64) -> std::io::Result<()> {
/// let copied = spliceway::copy(&mut (&mut body).take(length), &mut upstream).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Any error of a read, a write or a flush; interrupted calls are retried. Bytes in flight are then lost.
///
/// # Cancel safety
/// Safe to drop; bytes in flight are lost, as with tokio's.
pub async fn copy<R, W>(reader: &mut R, writer: &mut W) -> io::Result<u64>
where
    R: AsyncRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    if stream::plain(reader, writer).is_none() {
        return tokio::io::copy(reader, writer).await;
    }
    let counts = Counts::default();
    let mut direction = Direction::new(
        reader,
        writer,
        Bytes::new(),
        &options::DEFAULT.a_to_b,
        &options::DEFAULT,
        &counts,
    );
    direction.set_limit(stream::limit(reader));
    let ended = poll_fn(|cx| {
        let polled = direction.poll(cx, reader, writer, &counts);
        stream::set_limit(reader, direction.remaining());
        polled
    });
    ended.await.map_err(|(_, error)| error)?;
    Ok(counts.snapshot().bytes)
}
