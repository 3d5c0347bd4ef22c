//! A connection, whatever its family.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

/// A connection to a client or to a target. For handshakes; a relay takes it apart, as it splices sockets by their type.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// This end's address, where the family has ports.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

/// The same call on whichever socket it is.
macro_rules! of_either {
    ($stream:expr, $socket:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($socket) => $call,
            Stream::Unix($socket) => $call,
        }
    };
}

impl Stream {
    /// As tokio's `TcpStream::ready`.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        of_either!(self, socket => socket.ready(interest).await)
    }

    /// The error that is pending on the socket, which then no longer is.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        of_either!(self, socket => socket.take_error())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        of_either!(self, socket => socket.as_fd())
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

/// The same call on whichever stream it is.
macro_rules! on_either {
    ($stream:expr, $call:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).$call($($argument),*),
            Stream::Unix(stream) => Pin::new(stream).$call($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_either!(self, poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_either!(self, poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, poll_shutdown(cx))
    }
}
