//! Makes a caller's own stream type spliceable, such as an enum of plain and TLS streams.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

#[cfg(target_os = "linux")]
use crate::kernel_tls::KernelTls;

/// A stream that may be a plain socket.
///
/// The functions of this crate recognise tokio's sockets by their types. They cannot recognise a
/// type of your own, even if it implements this trait. Wrap such a stream in a [`Spliceable`],
/// which gives the stream's socket to these functions:
///
/// ```
/// use spliceway::{AsSocket, SocketRef, Spliceable};
/// # use std::pin::Pin;
/// # use std::task::{Context, Poll};
/// # use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
/// use tokio::net::TcpStream;
/// # type TlsStream = DuplexStream;
///
/// enum Stream {
///     Plain(TcpStream),
///     Tls(TlsStream),
/// }
///
/// impl AsSocket for Stream {
///     fn as_socket(&self) -> Option<SocketRef<'_>> {
///         match self {
///             Self::Plain(socket) => Some(SocketRef::Tcp(socket)),
///             // Its bytes are not the socket's bytes.
///             Self::Tls(_) => None,
///         }
///     }
/// }
/// # impl AsyncRead for Stream {
/// #     fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
/// #         match self.get_mut() { Self::Plain(s) => Pin::new(s).poll_read(cx, buf), Self::Tls(s) => Pin::new(s).poll_read(cx, buf) }
/// #     }
/// # }
/// # impl AsyncWrite for Stream {
/// #     fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
/// #         match self.get_mut() { Self::Plain(s) => Pin::new(s).poll_write(cx, buf), Self::Tls(s) => Pin::new(s).poll_write(cx, buf) }
/// #     }
/// #     fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> { Poll::Ready(Ok(())) }
/// #     fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> { Poll::Ready(Ok(())) }
/// # }
///
/// # async fn example(mut client: Stream, mut upstream: Stream) -> std::io::Result<()> {
/// let (mut client, mut upstream) = (Spliceable::new(&mut client), Spliceable::new(&mut upstream));
/// spliceway::copy_bidirectional(&mut client, &mut upstream).await?;
/// # Ok(())
/// # }
/// ```
pub trait AsSocket {
    /// Returns the socket below the stream, if the bytes of the stream are the bytes of the socket,
    /// in the same order. If the stream encrypts, counts or buffers bytes, this must return `None`.
    /// A TLS stream is therefore copied: the kernel would pass its encrypted records on. (On Linux,
    /// `KernelTls` leaves encryption to the kernel.) The example `terminate_tls` serves plain
    /// clients and TLS clients on one port.
    ///
    /// A relay calls this method before each poll. If it returns a socket at first and `None`
    /// later, the relay fails.
    fn as_socket(&self) -> Option<SocketRef<'_>>;
}

/// A borrowed plain socket.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SocketRef<'a> {
    /// A TCP socket.
    Tcp(&'a TcpStream),
    /// A Unix socket.
    #[cfg(unix)]
    Unix(&'a UnixStream),
    /// A TCP socket with TLS in the kernel.
    #[cfg(target_os = "linux")]
    KernelTls(&'a KernelTls),
}

impl<S: AsSocket + ?Sized> AsSocket for &mut S {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        (**self).as_socket()
    }
}

impl AsSocket for TcpStream {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        Some(SocketRef::Tcp(self))
    }
}

#[cfg(unix)]
impl AsSocket for UnixStream {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        Some(SocketRef::Unix(self))
    }
}

/// A stream of any type. This crate splices it while its [`AsSocket::as_socket`] returns a socket,
/// and copies it otherwise. A `Spliceable` owns the stream or borrows it
/// (`Spliceable::new(&mut stream)`). Each wrapper makes one allocation.
pub struct Spliceable<'a>(Box<dyn Stream + Send + 'a>);

trait Stream: AsyncRead + AsyncWrite + AsSocket + Unpin {}

impl<S: AsyncRead + AsyncWrite + AsSocket + Unpin> Stream for S {}

impl<'a> Spliceable<'a> {
    /// Wraps a stream.
    pub fn new<S: AsyncRead + AsyncWrite + AsSocket + Unpin + Send + 'a>(stream: S) -> Self {
        Self(Box::new(stream))
    }
}

impl AsSocket for Spliceable<'_> {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        self.0.as_socket()
    }
}

impl AsyncRead for Spliceable<'_> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Spliceable<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

impl fmt::Debug for Spliceable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spliceable").field(&self.as_socket()).finish()
    }
}
