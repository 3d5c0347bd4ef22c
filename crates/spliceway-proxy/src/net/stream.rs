//! A connection over TCP or a Unix socket, with or without TLS.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use spliceway::{AsSocket, KernelTls, SocketRef};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

use super::tls_stream::TlsStream;

/// A connection to a client or to a target. Handshakes use this type. A relay needs the socket
/// inside, because the socket's type decides how the relay splices.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// TLS over another stream.
    Tls(Box<TlsStream<Stream>>),
    /// TLS in the kernel. It begins as [`Self::Tls`].
    Kernel(Box<KernelTls>),
}

/// Makes the same call on either kind of socket.
macro_rules! of_socket {
    ($stream:expr, $socket:ident => $call:expr) => {
        match $stream.socket() {
            Stream::Tcp($socket) => $call,
            Stream::Unix($socket) => $call,
            Stream::Kernel(stream) => {
                let $socket = stream.socket();
                $call
            }
            Stream::Tls(_) => unreachable!("TLS is over a socket"),
        }
    };
}

/// Makes the same call on each kind of stream.
macro_rules! of_stream {
    ($stream:expr, $one:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($one) => $call,
            Stream::Unix($one) => $call,
            Stream::Tls($one) => $call,
            Stream::Kernel($one) => $call,
        }
    };
}

impl Stream {
    /// Returns the local address, if the address family has ports.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self.socket() {
            Self::Tcp(stream) => stream.local_addr().ok(),
            Self::Kernel(stream) => stream.socket().local_addr().ok(),
            _ => None,
        }
    }

    /// Returns the socket, which is below TLS in this process.
    pub(super) fn socket(&self) -> &Self {
        match self {
            // TLS to a target may be inside of TLS to a proxy.
            Self::Tls(stream) => stream.socket().socket(),
            socket => socket,
        }
    }

    /// Returns the socket, and gives up TLS.
    pub(crate) fn into_socket(self) -> Self {
        match self {
            Self::Tls(stream) => stream.into_socket().into_socket(),
            Self::Kernel(stream) => Self::Tcp(stream.into_socket()),
            socket => socket,
        }
    }

    /// Waits for readiness, like tokio's `TcpStream::ready`.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        of_socket!(self, socket => socket.ready(interest).await)
    }

    /// Returns the pending error of the socket and clears it.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        of_socket!(self, socket => socket.take_error())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        of_socket!(self, socket => socket.as_fd())
    }
}

impl AsSocket for Stream {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        match self {
            Self::Tcp(socket) => Some(SocketRef::Tcp(socket)),
            Self::Unix(socket) => Some(SocketRef::Unix(socket)),
            Self::Tls(_) => None,
            Self::Kernel(stream) => stream.as_socket(),
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        of_stream!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        of_stream!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, buf))
    }

    /// tokio-rustls sends its last alert by one call, which must take all records.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        of_stream!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        of_stream!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_stream!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_stream!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}
