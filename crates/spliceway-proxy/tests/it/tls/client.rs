//! Clients that speak TLS, and certificates for them.

use std::io;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    DigitallySignedStruct, Error, HandshakeKind, RootCertStore, ServerConfig, SignatureScheme,
    SupportedProtocolVersion, version,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::harness::{PATIENCE, Program, TextFile};

pub(crate) const TLS12: &[&SupportedProtocolVersion] = &[&version::TLS12];
pub(crate) const TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13];

/// The files of a certificate and its key.
pub(crate) struct Pair {
    pub(crate) certificate: TextFile,
    pub(crate) key: TextFile,
}

impl Pair {
    pub(crate) fn new(names: &[&str]) -> Self {
        let (certificate, key) = (TextFile::new(""), TextFile::new(""));
        std::fs::set_permissions(&key.0, PermissionsExt::from_mode(0o600)).unwrap();
        let pair = Self { certificate, key };
        pair.renew(names);
        pair
    }

    /// Replaces the certificate and its key.
    pub(crate) fn renew(&self, names: &[&str]) {
        let (certificate, key) = made(names);
        self.certificate.write(&certificate);
        self.key.write(&key);
    }

    pub(crate) fn arguments(&self) -> [&str; 4] {
        ["--tls-cert", self.certificate.path(), "--tls-key", self.key.path()]
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.certificate.0).unwrap()
    }
}

/// Returns a new certificate for these names, and its key, in PEM.
pub(crate) fn made(names: &[&str]) -> (String, String) {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// How a client speaks TLS.
pub(crate) struct Config {
    config: ClientConfig,
    name: ServerName<'static>,
}

impl Config {
    /// Trusts this certificate only, as that of `a.test`.
    pub(crate) fn new(pair: &Pair) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(pair.der()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Self {
            config: builder.with_root_certificates(roots).with_no_client_auth(),
            name: ServerName::try_from("a.test").unwrap(),
        }
    }

    /// Trusts every certificate.
    pub(crate) fn anything() -> Self {
        Self::anything_with(&[&version::TLS13, &version::TLS12])
    }

    fn anything_with(versions: &[&'static SupportedProtocolVersion]) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_protocol_versions(versions).unwrap().dangerous();
        Self {
            config: builder
                .with_custom_certificate_verifier(Arc::new(Trusting))
                .with_no_client_auth(),
            name: ServerName::try_from("a.test").unwrap(),
        }
    }

    pub(crate) fn versions(self, versions: &[&'static SupportedProtocolVersion]) -> Self {
        let mut config = Self::anything_with(versions).config;
        config.client_auth_cert_resolver = self.config.client_auth_cert_resolver;
        Self {
            config,
            name: self.name,
        }
    }

    /// Shows this certificate to a server that asks for one. Both are in PEM.
    pub(crate) fn client_cert(mut self, chain: &str, key: &str) -> Self {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let key = CertifiedKey::from_der(chain.unwrap(), key, &default_provider()).unwrap();
        self.config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(key));
        self
    }

    /// States this name. `None` states no name.
    pub(crate) fn name(mut self, name: Option<&'static str>) -> Self {
        self.config.enable_sni = name.is_some();
        if let Some(name) = name {
            self.name = ServerName::try_from(name).unwrap();
        }
        self
    }

    pub(crate) fn alpn(mut self, protocols: &[&str]) -> Self {
        self.config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        self
    }

    /// Returns the settings for a client of another kind.
    pub(crate) fn parts(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        (Arc::new(self.config.clone()), self.name.clone())
    }

    /// Sends early data, if the server offers it.
    pub(crate) fn early_data(mut self) -> Self {
        self.config.resumption = Resumption::in_memory_sessions(8);
        self.config.enable_early_data = true;
        self
    }
}

/// Trusts every certificate.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A client or a server after its handshake. No call takes longer than [`PATIENCE`].
pub(crate) struct Client {
    runtime: Runtime,
    stream: TlsStream<tokio::net::TcpStream>,
}

impl Client {
    pub(crate) fn connect(program: &Program, config: &Config) -> io::Result<Self> {
        Self::over(program.connect(), config)
    }

    pub(crate) fn over(socket: TcpStream, config: &Config) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        socket.set_nonblocking(true)?;
        let connect = async {
            let socket = tokio::net::TcpStream::from_std(socket)?;
            let connector = TlsConnector::from(Arc::new(config.config.clone()));
            connector.connect(config.name.clone(), socket).await
        };
        let stream = runtime.block_on(async { timeout(PATIENCE, connect).await })??.into();
        Ok(Self { runtime, stream })
    }

    /// Shakes hands as the server.
    pub(crate) fn serve(socket: TcpStream, config: &Arc<ServerConfig>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        socket.set_nonblocking(true)?;
        let accept = async {
            let socket = tokio::net::TcpStream::from_std(socket)?;
            TlsAcceptor::from(Arc::clone(config)).accept(socket).await
        };
        let stream = runtime.block_on(async { timeout(PATIENCE, accept).await })??.into();
        Ok(Self { runtime, stream })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let sent = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        self.runtime
            .block_on(async { timeout(PATIENCE, sent).await })
            .unwrap()
            .unwrap();
    }

    /// Asks for new keys, with a message that the next bytes follow.
    pub(crate) fn update_keys(&mut self) {
        let updated = match &mut self.stream {
            TlsStream::Client(stream) => stream.get_mut().1.refresh_traffic_keys(),
            TlsStream::Server(stream) => stream.get_mut().1.refresh_traffic_keys(),
        };
        updated.unwrap();
    }

    /// Announces the end of the stream.
    pub(crate) fn finish(&mut self) {
        let finished = self.stream.shutdown();
        self.runtime
            .block_on(async { timeout(PATIENCE, finished).await })
            .unwrap()
            .unwrap();
    }

    pub(crate) fn receive(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self.stream.read_exact(&mut bytes);
        self.runtime
            .block_on(async { timeout(PATIENCE, read).await })
            .unwrap()
            .unwrap();
        bytes
    }

    /// Returns the head of an answer.
    pub(crate) fn receive_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.receive(1));
        }
        String::from_utf8(head).unwrap()
    }

    /// Returns the bytes up to the announced end. An end that was not announced is an error.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.stream.read_to_end(&mut bytes);
        self.runtime.block_on(async { timeout(PATIENCE, read).await })??;
        Ok(bytes)
    }

    /// Sends bytes and the end of the stream, and receives at the same time.
    pub(crate) fn exchange(&mut self, up: &[u8]) -> io::Result<Vec<u8>> {
        let (mut reader, mut writer) = tokio::io::split(&mut self.stream);
        let send = async {
            writer.write_all(up).await?;
            writer.shutdown().await
        };
        let mut down = Vec::new();
        let both = async { tokio::try_join!(send, reader.read_to_end(&mut down)) };
        self.runtime.block_on(async { timeout(PATIENCE, both).await })??;
        Ok(down)
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.stream.get_ref().1.peer_certificates().unwrap()[0]
            .clone()
            .into_owned()
    }

    /// Returns the name that a client has stated.
    pub(crate) fn stated_name(&self) -> Option<String> {
        match &self.stream {
            TlsStream::Server(stream) => stream.get_ref().1.server_name().map(str::to_owned),
            TlsStream::Client(_) => None,
        }
    }

    /// Returns whether the other end has shown a certificate.
    pub(crate) fn has_certificate(&self) -> bool {
        self.stream.get_ref().1.peer_certificates().is_some()
    }

    pub(crate) fn protocol(&self) -> Option<String> {
        let name = self.stream.get_ref().1.alpn_protocol()?;
        Some(String::from_utf8(name.to_vec()).unwrap())
    }

    pub(crate) fn is_resumed(&self) -> bool {
        self.stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns the socket. Nothing announces the end of the stream.
    pub(crate) fn into_socket(self) -> TcpStream {
        let socket = self
            .runtime
            .block_on(async {
                match self.stream {
                    TlsStream::Client(stream) => stream.into_inner().0.into_std(),
                    TlsStream::Server(stream) => stream.into_inner().0.into_std(),
                }
            })
            .unwrap();
        socket.set_nonblocking(false).unwrap();
        socket
    }
}
