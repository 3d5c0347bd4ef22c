//! The relays of `--tls`, which terminate the TLS of their clients in user space or in the kernel.
//!
//! ```text
//!   client: rustls ══ TLS ══▶ relay: rustls, or the kernel ──▶ server
//! ```

#[cfg_attr(not(feature = "tls"), path = "tls/no_crypto.rs")]
mod crypto;
mod load;

use std::io;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::TLS13;
use rustls::{ConnectionTrafficSecrets, ServerConfig};
use spliceway::{Engine, KernelTls, Relay, RelayOptions, TlsCipher, TlsSession, TrafficKey};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::kernel_tls::Unsupported;
pub(super) use load::Load;

/// The name in the certificate of a relay.
const NAME: &str = "relay.test";

/// Checks that this build and this kernel have TLS.
pub(super) fn check() -> io::Result<()> {
    crypto::provider()?;
    KernelTls::probe(TlsCipher::Aes256Gcm).map_err(|error| io::Error::other(format!("--tls: {}", Unsupported(&error))))
}

/// Where the TLS of a relay is after the handshake.
#[derive(Clone, Copy)]
pub(super) enum TlsPlace {
    UserSpace,
    /// Bytes pass in this way.
    Kernel(Engine),
}

/// The TLS of a relay, and its certificate.
pub(super) struct Acceptor {
    place: TlsPlace,
    acceptor: TlsAcceptor,
    /// In PEM.
    pub(super) certificate: String,
}

impl Acceptor {
    pub(super) fn new(place: TlsPlace) -> io::Result<Self> {
        let (certificate, key) = crypto::identity(NAME)?;
        let chain = vec![parsed(&certificate)?];
        let config = ServerConfig::builder_with_provider(crypto::provider()?)
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
        let mut config = config.map_err(io::Error::other)?;
        config.send_tls13_tickets = 0;
        config.enable_secret_extraction = true;
        Ok(Self {
            place,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            certificate,
        })
    }

    /// Relays between a client and the stream that `connect` returns. The client sends no data
    /// before this connection exists, so rustls has read none when the kernel gets the keys.
    pub(super) async fn session(
        &self,
        client: TcpStream,
        connect: impl Future<Output = io::Result<TcpStream>>,
    ) -> io::Result<()> {
        let client = self.acceptor.accept(client).await?;
        match self.place {
            TlsPlace::UserSpace => relay(client, connect.await?, Engine::Auto).await,
            TlsPlace::Kernel(engine) => {
                let client = in_kernel(client)?;
                relay(client, connect.await?, engine).await
            }
        }
    }
}

/// Returns a certificate in PEM.
fn parsed(certificate: &str) -> io::Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(io::Error::other)
}

/// Gives a connection to the kernel after its handshake.
fn in_kernel(client: TlsStream<TcpStream>) -> io::Result<KernelTls> {
    let (socket, connection) = client.into_inner();
    KernelTls::attach(&socket)?;
    let secrets = connection.dangerous_extract_secrets().map_err(io::Error::other)?;
    let (send, receive) = (key(secrets.tx)?, key(secrets.rx)?);
    let stream = KernelTls::new(socket, &send, &receive, Box::new(OneKey));
    stream.map_err(|(_, error)| error)
}

fn key((next_record, secrets): (u64, ConnectionTrafficSecrets)) -> io::Result<TrafficKey> {
    let key = match &secrets {
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => iv
            .as_ref()
            .try_into()
            .ok()
            .and_then(|iv| TrafficKey::new(TlsCipher::Aes256Gcm, key.as_ref(), iv, next_record)),
        _ => None,
    };
    key.ok_or_else(|| io::Error::other("the key is not of the only cipher"))
}

async fn relay(client: impl AsyncRead + AsyncWrite + Unpin, upstream: TcpStream, engine: Engine) -> io::Result<()> {
    let relay = Relay::with_options(client, upstream, RelayOptions::new().engine(engine));
    relay.await.map(drop).map_err(io::Error::other)
}

/// A session without key updates. The client never sends one, and no run is long enough for one of
/// the relay.
#[derive(Debug)]
struct OneKey;

impl TlsSession for OneKey {
    fn next_send_key(&mut self) -> io::Result<TrafficKey> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn next_receive_key(&mut self) -> io::Result<TrafficKey> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn ended(&mut self, _: bool) {}
}
