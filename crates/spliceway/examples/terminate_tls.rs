//! A forwarder that terminates TLS. A client that does not speak TLS is forwarded as it is.
//!
//! ```text
//! cargo run -p spliceway --example terminate_tls -- 127.0.0.1:8443 127.0.0.1:8080 cert.pem key.pem
//! curl --cacert cert.pem https://localhost:8443/     # copied
//! curl http://localhost:8443/                        # spliced
//! ```
//!
//! The bytes of a TLS stream differ from the bytes in its socket, so a relay copies them. The
//! counts that the forwarder prints show which path the bytes took.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use spliceway::{AsSocket, Relay, SocketRef, Spliceable};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// The first byte of a client that speaks TLS: the type of a handshake record.
const TLS_HANDSHAKE: u8 = 22;

enum Client {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsSocket for Client {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        match self {
            Self::Plain(socket) => Some(SocketRef::Tcp(socket)),
            // There is a socket below, but splicing it would pass encrypted bytes on.
            Self::Tls(_) => None,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, remote, certificate, key] = arguments.as_slice() else {
        return Err("usage: terminate_tls LISTEN REMOTE CERTIFICATE KEY".into());
    };
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(listen).await?;
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (socket, from) = listener.accept().await?;
        let (acceptor, remote) = (acceptor.clone(), remote.clone());
        tokio::spawn(async move {
            if let Err(error) = forward(socket, from, acceptor, &remote).await {
                eprintln!("{from}: {error}");
            }
        });
    }
}

async fn forward(socket: TcpStream, from: SocketAddr, acceptor: TlsAcceptor, remote: &str) -> io::Result<()> {
    let mut first = [0];
    socket.peek(&mut first).await?;
    let client = if first[0] == TLS_HANDSHAKE {
        Client::Tls(Box::new(acceptor.accept(socket).await?))
    } else {
        Client::Plain(socket)
    };
    let upstream = TcpStream::connect(remote).await?;
    let summary = Relay::new(Spliceable::new(client), upstream).await?;
    eprintln!("{from}: {summary}");
    Ok(())
}

impl AsyncRead for Client {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Client {
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
