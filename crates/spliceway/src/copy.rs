//! tokio's copying functions under tokio's names. They splice if both ends are sockets.

use std::future::poll_fn;
use std::io;

use spliceway_core::{Counts, DirectionSummary};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::direction::Direction;
use crate::options::CopyOptions;
use crate::outcome::DirectionEnd;
use crate::relay::Relay;
use crate::stream;

/// Copies data in both directions between `a` and `b`, like [`tokio::io::copy_bidirectional`], and
/// through the kernel if possible.
///
/// ```diff
/// -use tokio::io::copy_bidirectional;
/// +use spliceway::copy_bidirectional;
/// ```
///
/// Bulk data is spliced if both streams are [plain sockets](crate#what-is-spliced). Bytes in a
/// `BufReader`, `BufWriter` or `BufStream` around a socket go first. For all other pairs of
/// streams, the function calls tokio's own.
///
/// The end of one stream shuts down the writing side of the other, and the other direction
/// continues. When both directions have ended, the function returns the number of bytes delivered
/// from `a` to `b` and from `b` to `a`.
///
/// # Errors
/// Returns the first error of a read, a write, a flush or a shutdown immediately. Interrupted calls
/// are retried. Bytes in flight are lost. [`Relay`] reports how many bytes were delivered.
///
/// # Cancel safety
/// The future is safe to drop. Bytes in flight are then lost, as with tokio's function.
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

/// Like [`copy_bidirectional`], with the sizes of tokio's buffers in bytes. It corresponds to
/// [`tokio::io::copy_bidirectional_with_sizes`].
///
/// Between sockets there is no such buffer, and the sizes have no effect.
///
/// # Errors
/// The same as [`copy_bidirectional`].
///
/// # Panics
/// If either size is 0, as with tokio's function.
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

/// Copies everything from `reader` to `writer`, like [`tokio::io::copy`], and through the kernel if
/// possible.
///
/// Bulk data is spliced between [plain sockets](crate#what-is-spliced), their halves (owned or
/// borrowed), the ends of a [pipe](tokio::net::unix::pipe), and a [`Take`](tokio::io::Take) of any
/// of these. For all other pairs, the function calls tokio's own. The writer is not shut down at
/// the end. Returns the number of bytes delivered.
///
/// With a `Take`, the function never reads past its limit. Afterwards, the caller can read the rest
/// of the stream, and the `Take` has the remaining limit.
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
/// Returns the first error of a read, a write or a flush. Bytes in flight are then lost.
/// Interrupted calls are retried.
///
/// # Cancel safety
/// The future is safe to drop. Bytes in flight are then lost, as with tokio's function.
pub async fn copy<R, W>(reader: &mut R, writer: &mut W) -> io::Result<u64>
where
    R: AsyncRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    if stream::plain(reader, writer).is_none() {
        return tokio::io::copy(reader, writer).await;
    }
    static DEFAULT: CopyOptions = CopyOptions::new();
    Ok(copy_with_options(reader, writer, &DEFAULT).await?.bytes)
}

/// Like [`copy()`], with [options](CopyOptions) and with the counts of the delivered bytes.
///
/// Like [`copy()`], this function does not shut the writer down. Streams that cannot be spliced are
/// copied, and the summary gives the reason. An error has no counts: use a [`Relay`] if you need
/// these counts or a timeout.
///
/// ```no_run
/// use spliceway::{CopyOptions, RateLimit};
///
/// # async fn example(mut from: tokio::net::TcpStream, mut to: tokio::net::TcpStream) -> std::io::Result<()> {
/// let options = CopyOptions::new().limit(1 << 30).rate_limit(&RateLimit::new(10_000_000));
/// let summary = spliceway::copy_with_options(&mut from, &mut to, &options).await?;
/// println!("{} bytes, {} spliced", summary.bytes, summary.spliced);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The same as [`copy()`]. Returns `Unsupported` if the options demand splicing and that is not
/// possible.
///
/// # Cancel safety
/// The future is safe to drop. Bytes in flight are then lost.
pub async fn copy_with_options<R, W>(
    reader: &mut R,
    writer: &mut W,
    options: &CopyOptions,
) -> io::Result<DirectionSummary>
where
    R: AsyncRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    let prefix = options.0.a_to_b_prefix.clone();
    let (counts, options) = (Counts::default(), options.0.shared());
    let mut direction = Direction::new(reader, writer, prefix, None, &options.a_to_b, options, &counts);
    direction.set_limit(stream::limit(reader));
    let ended = poll_fn(|cx| {
        let polled = direction.poll(cx, reader, writer, &counts);
        stream::set_limit(reader, direction.remaining());
        polled
    });
    if ended.await.map_err(|(_, error)| error)? == DirectionEnd::Eof {
        counts.set_eof();
    }
    Ok(counts.snapshot())
}
