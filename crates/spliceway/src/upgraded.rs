//! hyper's upgraded connections, back as the sockets they are (feature `hyper`).
//!
//! After a CONNECT or an HTTP upgrade, hyper gives an [`Upgraded`]: a stream of unknown type, which nobody can splice. Below it is what the
//! connection was made of, on a server's side as on a client's; and where that is a socket in hyper-util's [`TokioIo`], it is
//! given back here, with the bytes that hyper has read too far. They are the first of the new protocol, so they go first:
//!
//! ```no_run
//! use hyper::upgrade::Upgraded;
//! use hyper_util::rt::TokioIo;
//! use spliceway::{Relay, RelayError, RelaySummary, upgraded};
//! use tokio::net::TcpStream;
//!
//! async fn tunnel(client: Upgraded, upstream: TcpStream) -> Result<RelaySummary, RelayError> {
//!     match upgraded::into_tcp(client) {
//!         Ok((client, early)) => Relay::new(client, upstream).a_to_b_prefix(early).await,
//!         // TLS, or a stream of HTTP/2: relayed as it is, that is copied.
//!         Err(client) => Relay::new(TokioIo::new(client), upstream).await,
//!     }
//! }
//! ```
//!
//! # What it does not find
//! - A socket below TLS: its bytes are not the peer's.
//! - A stream of HTTP/2, which shares its socket with others.
//! - The socket of a server from `hyper_util::server::conn::auto`, even where it speaks HTTP/1: that wraps it in a type of its own.
//!   `hyper_util::server::conn::auto::upgrade::downcast::<TokioIo<TcpStream>>` takes it out; `io.into_inner()` and `read_buf`
//!   of what that returns are the same two parts.

use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The TCP socket of an upgraded connection, and what was read from it and is still to be relayed.
///
/// Neither blocks nor waits. The bytes are to go before all that the socket brings, as the relay's
/// [`a_to_b_prefix`](crate::RelayOptions::a_to_b_prefix) or [`b_to_a_prefix`](crate::RelayOptions::b_to_a_prefix); often there are
/// none.
///
/// # Errors
/// The connection as it was, with every byte, if it is not a `TokioIo<TcpStream>`.
pub fn into_tcp(upgraded: Upgraded) -> Result<(TcpStream, Bytes), Upgraded> {
    into_parts(upgraded)
}

/// The same for a Unix socket.
///
/// # Errors
/// The connection as it was, with every byte, if it is not a `TokioIo<UnixStream>`.
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
