//! Streams that are not tokio's own types: boxes, `Either`, and types whose author names their
//! socket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use spliceway::{AsSocket, Operation, Reason, Relay, RelaySummary, SocketRef, Spliceable};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

use crate::support::pattern::Pattern;
use crate::support::{BULK, Duplex, guard, tcp};

/// The stream type of a proxy.
enum Stream {
    Plain(TcpStream),
    /// Replaces a TLS stream. Its bytes are not a socket's bytes.
    Tls(DuplexStream),
    /// A plain socket until the flag is cleared.
    Fickle(TcpStream, Arc<AtomicBool>),
}

impl Stream {
    fn inner(&mut self) -> Pin<&mut dyn Duplex> {
        match self {
            Self::Plain(stream) | Self::Fickle(stream, _) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream),
        }
    }
}

impl AsSocket for Stream {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        match self {
            Self::Plain(stream) => Some(SocketRef::Tcp(stream)),
            Self::Tls(_) => None,
            Self::Fickle(stream, is_plain) => is_plain.load(Ordering::Relaxed).then_some(SocketRef::Tcp(stream)),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner().poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().inner().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner().poll_shutdown(cx)
    }
}

/// Relays bulk in both directions, checks every byte, and returns the relay's summary.
async fn relayed<A: Duplex, B: Duplex>(mut near: impl Duplex, a: A, b: B, mut far: impl Duplex) -> RelaySummary {
    let relay = Relay::new(a, b);
    let peers = async {
        let (mut near_read, mut near_write) = tokio::io::split(&mut near);
        let (mut far_read, mut far_write) = tokio::io::split(&mut far);
        let [mut up, mut up_wanted] = [Pattern::new(1); 2];
        let [mut down, mut down_wanted] = [Pattern::new(2); 2];
        tokio::join!(
            up.send(&mut near_write, BULK),
            up_wanted.expect(&mut far_read, BULK),
            down.send(&mut far_write, BULK),
            down_wanted.expect(&mut near_read, BULK)
        );
        drop((near_read, near_write, far_read, far_write));
        drop((near, far));
    };
    let (summary, ()) = guard(async { tokio::join!(relay, peers) }).await;
    let summary = summary.unwrap();
    assert_eq!(summary.bytes(), 2 * BULK);
    summary
}

#[tokio::test]
async fn boxed_and_pinned_sockets_are_spliced() {
    let ((near, a), (b, far)) = (tcp().await, UnixStream::pair().unwrap());
    let summary = relayed(near, Box::new(a), Box::pin(b), far).await;
    assert!(summary.spliced() > BULK, "{summary}");
}

#[tokio::test]
async fn either_of_two_sockets_is_spliced() {
    let ((near, a), (b, far)) = (tcp().await, UnixStream::pair().unwrap());
    let a: Either<TcpStream, UnixStream> = Either::Left(a);
    let b: Either<TcpStream, UnixStream> = Either::Right(b);
    let summary = relayed(near, a, b, far).await;
    assert!(summary.spliced() > BULK, "{summary}");
}

#[tokio::test]
async fn the_plain_variant_of_an_enum_is_spliced_and_the_other_one_is_copied() {
    let ((near, a), (b, far)) = (tcp().await, tcp().await);
    let (a, b) = (Spliceable::new(Stream::Plain(a)), Spliceable::new(Stream::Plain(b)));
    let summary = relayed(near, a, b, far).await;
    assert!(summary.spliced() > BULK, "{summary}");

    let ((near, a), (b, far)) = (tokio::io::duplex(64 << 10), tcp().await);
    let (a, b) = (Spliceable::new(Stream::Tls(a)), Spliceable::new(Stream::Plain(b)));
    let summary = relayed(near, a, b, far).await;
    assert_eq!(summary.spliced(), 0);
    assert_eq!(summary.a_to_b.fallback, Some(Reason::NotSockets));
}

/// The type alone proves nothing: an enum without a `Spliceable` around it is copied, as before.
#[tokio::test]
async fn a_borrowed_enum_is_spliced_only_within_a_spliceable() {
    let ((near, a), (b, far)) = (tcp().await, tcp().await);
    let (mut a, mut b) = (Stream::Plain(a), Stream::Plain(b));
    let (a, b) = (Spliceable::new(&mut a), Spliceable::new(&mut b));
    assert!(relayed(near, a, b, far).await.spliced() > BULK);

    let ((near, a), (b, far)) = (tcp().await, tcp().await);
    let (mut a, mut b) = (Stream::Plain(a), Stream::Plain(b));
    assert_eq!(relayed(near, &mut a, &mut b, far).await.spliced(), 0);
}

#[tokio::test]
async fn a_stream_that_stops_being_a_socket_fails_its_relay() {
    let ((mut near, a), (b, mut far)) = (tcp().await, tcp().await);
    let is_plain = Arc::new(AtomicBool::new(true));
    let a = Spliceable::new(Stream::Fickle(a, Arc::clone(&is_plain)));
    let relay = tokio::spawn(Relay::new(a, b));
    let [mut sent, mut wanted] = [Pattern::new(1); 2];
    sent.send(&mut near, 1000).await;
    wanted.expect(&mut far, 1000).await;
    is_plain.store(false, Ordering::Relaxed);
    sent.send(&mut near, 1000).await;
    let error = guard(relay).await.unwrap().unwrap_err();
    assert_eq!((error.operation, error.summary.bytes()), (Operation::Read, 1000));
}
