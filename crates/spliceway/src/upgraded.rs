//! Recovers the sockets below hyper's upgraded connections (feature `hyper`).
//!
//! After a CONNECT or an HTTP upgrade, hyper returns an [`Upgraded`]: a stream of unknown type,
//! which cannot be spliced. Below it is the stream of the connection, on a server as well as on a
//! client. If that stream is a socket in hyper-util's [`TokioIo`], this module returns the socket
//! and the bytes that hyper has read ahead. These bytes belong to the new protocol, and they go
//! first:
//!
//! ```no_run
//! use hyper::upgrade::Upgraded;
//! use hyper_util::rt::TokioIo;
//! use spliceway::{Relay, RelayError, RelayOptions, RelaySummary, upgraded};
//! use tokio::net::TcpStream;
//!
//! async fn tunnel(client: Upgraded, upstream: TcpStream) -> Result<RelaySummary, RelayError> {
//!     match upgraded::into_tcp(client) {
//!         Ok((client, early)) => Relay::with_options(client, upstream, RelayOptions::new().a_to_b_prefix(early)).await,
//!         // TLS, or an HTTP/2 stream. The relay copies it.
//!         Err(client) => Relay::new(TokioIo::new(client), upstream).await,
//!     }
//! }
//! ```
//!
//! # Sockets that this module does not find
//! - A socket below TLS, because the socket's bytes are not the peer's bytes.
//! - The socket of an HTTP/2 stream, because other streams share it.
//! - The socket of a server from `hyper_util::server::conn::auto`, even if it speaks HTTP/1. That
//!   server wraps the socket in a type of its own.
//!   `hyper_util::server::conn::auto::upgrade::downcast::<TokioIo<TcpStream>>` returns its parts:
//!   `io.into_inner()` is the socket, and `read_buf` holds the bytes.

use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

/// Returns the TCP socket of an upgraded connection, and the bytes that hyper has read ahead and
/// that must still be relayed.
///
/// The function neither blocks nor waits. The bytes must go before all bytes from the socket. Pass
/// them as the relay's [`a_to_b_prefix`](crate::RelayOptions::a_to_b_prefix) or
/// [`b_to_a_prefix`](crate::RelayOptions::b_to_a_prefix). Often there are none.
///
/// # Errors
/// Returns the connection unchanged, with every byte, if it is not a `TokioIo<TcpStream>`.
pub fn into_tcp(upgraded: Upgraded) -> Result<(TcpStream, Bytes), Upgraded> {
    into_parts(upgraded)
}

/// Does the same as [`into_tcp`] for a Unix socket.
///
/// # Errors
/// Returns the connection unchanged, with every byte, if it is not a `TokioIo<UnixStream>`.
#[cfg(unix)]
pub fn into_unix(upgraded: Upgraded) -> Result<(UnixStream, Bytes), Upgraded> {
    into_parts(upgraded)
}

fn into_parts<S>(upgraded: Upgraded) -> Result<(S, Bytes), Upgraded>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let parts = upgraded.downcast::<TokioIo<S>>()?;
    Ok((parts.io.into_inner(), parts.read_buf))
}
