//! A proxy whose streams are an enum of plain and encrypted streams. Plain connections are spliced,
//! and the counts prove it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use spliceway::{AsSocket, Relay, SocketRef, Spliceable};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Replaces a real TLS stream, so that the example needs no certificate.
type TlsStream = DuplexStream;

enum Stream {
    Plain(TcpStream),
    Tls(TlsStream),
}

impl AsSocket for Stream {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        match self {
            Self::Plain(socket) => Some(SocketRef::Tcp(socket)),
            // The bytes of this stream are not a socket's bytes.
            Self::Tls(_) => None,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    const BYTES: usize = 16 << 20;

    // Plain on both sides, so the relay splices.
    let ((client, a), (b, server)) = (pair().await?, pair().await?);
    let relay = Relay::new(Spliceable::new(Stream::Plain(a)), Spliceable::new(Stream::Plain(b)));
    let relay = tokio::spawn(relay);
    tokio::try_join!(send(client, BYTES), receive(server))?;
    eprintln!("plain to plain: {}", relay.await??);

    // Encrypted on one side, so the relay copies.
    let ((client, a), (b, server)) = (tokio::io::duplex(64 << 10), pair().await?);
    let relay = Relay::new(Spliceable::new(Stream::Tls(a)), Spliceable::new(Stream::Plain(b)));
    let relay = tokio::spawn(relay);
    tokio::try_join!(send(client, BYTES), receive(server))?;
    eprintln!("TLS to plain: {}", relay.await??);
    Ok(())
}

async fn send(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: usize) -> io::Result<()> {
    stream.write_all(&vec![7; bytes]).await?;
    stream.shutdown().await?;
    stream.read_to_end(&mut Vec::new()).await.map(drop)
}

async fn receive(mut stream: TcpStream) -> io::Result<()> {
    stream.read_to_end(&mut Vec::new()).await?;
    stream.shutdown().await
}

/// Returns the two ends of a connection.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (connected, accepted) = tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
    Ok((connected, accepted.0))
}
