//! Attackers that speak TLS, or pretend to.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The types of records, and of messages in a handshake (RFC 8446 sections 4 and 5.1).
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// The longest record.
const RECORD_MAX_BYTES: usize = 1 << 14;

/// The behaviour of one attacker on one connection to a service that terminates TLS.
#[derive(Clone, Copy)]
pub(crate) enum Attempt {
    /// Is silent before, in or after its hello.
    HalfOpen,
    /// Sends one byte of its hello every 10 ms.
    ByteByByte,
    /// Sends a hello that is long, cut into pieces, never complete, or no hello.
    Hellos,
    /// Shakes hands in full, and leaves.
    Handshakes,
    /// Does the same, and must send its hello twice.
    TwoHellos,
    /// Asks for new keys again and again.
    KeyUpdates,
    /// Sends one byte in each record.
    TinyRecords,
    /// Sends to an echo server, and never reads.
    NeverReads,
    /// Shows a certificate of no CA, with many others that all could be its issuers.
    LongSearch,
}

/// What the attackers know.
pub(crate) struct Attackers {
    connector: TlsConnector,
    /// Begins with a key exchange that the program does not know.
    asked_again: TlsConnector,
    /// Has a certificate.
    searched: TlsConnector,
    /// The hello of a real client, in one record.
    hello: Vec<u8>,
}

/// The name of the CA whose certificates the service accepts.
const AUTHORITY: &str = "CA";
/// The certificates after a client's own. The message with all of them may have 64 KiB.
const ISSUERS: usize = 120;

impl Attackers {
    pub(crate) fn new() -> io::Result<Self> {
        let builder = |provider| {
            let config = ClientConfig::builder_with_provider(Arc::new(provider));
            let config = config.with_safe_default_protocol_versions().map_err(io::Error::other)?;
            let trusting = config.dangerous().with_custom_certificate_verifier(Arc::new(Trusting));
            Ok::<_, io::Error>(trusting)
        };
        // Every handshake costs the server a signature.
        let without_tickets = |provider| {
            let mut config = builder(provider)?.with_no_client_auth();
            config.resumption = Resumption::disabled();
            Ok::<_, io::Error>(Arc::new(config))
        };
        let config = without_tickets(default_provider())?;
        let asked_again = without_tickets(CryptoProvider {
            kx_groups: vec![kx_group::MLKEM768, kx_group::X25519],
            ..default_provider()
        })?;
        let (chain, key) = searched_chain().map_err(io::Error::other)?;
        let searched = builder(default_provider())?
            .with_client_auth_cert(chain, key)
            .map_err(io::Error::other)?;
        let mut hello = Vec::new();
        let client = ClientConnection::new(Arc::clone(&config), name());
        client.map_err(io::Error::other)?.write_tls(&mut hello)?;
        Ok(Self {
            connector: config.into(),
            asked_again: asked_again.into(),
            searched: Arc::new(searched).into(),
            hello,
        })
    }

    /// Attacks once. Returns when the program has closed the connection, or earlier.
    pub(crate) async fn attempt(&self, kind: Attempt, stream: &mut TcpStream, number: u64) -> io::Result<()> {
        match kind {
            Attempt::HalfOpen => {
                let parts = [&[][..], &self.hello[..100], &self.hello];
                stream.write_all(parts[(number % 3) as usize]).await?;
            }
            Attempt::ByteByByte => {
                for byte in &self.hello {
                    stream.write_all(&[*byte]).await?;
                    // Sleeps because a slow client is the attack.
                    sleep(Duration::from_millis(10)).await;
                }
            }
            Attempt::Hellos => stream.write_all(&self.odd(number)).await?,
            Attempt::Handshakes => return self.shake(stream).await.map(drop),
            Attempt::TwoHellos => return self.asked_again.connect(name(), stream).await.map(drop),
            Attempt::LongSearch => {
                let mut stream = self.searched.connect(name(), stream).await?;
                return stream.read_to_end(&mut Vec::new()).await.map(drop);
            }
            Attempt::KeyUpdates => return self.update_keys(stream, number % 2 == 1).await,
            Attempt::TinyRecords => return self.drip(stream).await,
            Attempt::NeverReads => {
                let mut stream = self.shake(stream).await?;
                // This waits for ever once every buffer is full.
                return stream.write_all(&vec![0; 64 << 20]).await;
            }
        }
        stream.read_to_end(&mut Vec::new()).await.map(drop)
    }

    /// Returns bytes that are no usual hello.
    fn odd(&self, number: u64) -> Vec<u8> {
        // The hello without the head of its record.
        let message = &self.hello[5..];
        let one_by_one = message.chunks(1).flat_map(record).collect();
        match number % 7 {
            // The last byte of a whole hello is missing.
            0 => record(&long_hello()[..RECORD_MAX_BYTES - 1]),
            1 => long_hello().chunks(RECORD_MAX_BYTES).flat_map(record).collect(),
            // Almost 64 KiB of a hello, the longest one that rustls stores.
            2 => {
                let part = [&[CLIENT_HELLO, 0, 0xff, 0xf0][..], &[0; RECORD_MAX_BYTES - 4]].concat();
                [&part[..], &[0; RECORD_MAX_BYTES], &[0; RECORD_MAX_BYTES], &[0; 8192]]
                    .map(record)
                    .concat()
            }
            3 => one_by_one,
            4 => record(&[]).repeat(1000),
            5 => [&self.hello[..], &[0xff; 4096]].concat(),
            _ => b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
        }
    }

    async fn shake<'a>(&self, stream: &'a mut TcpStream) -> io::Result<TlsStream<&'a mut TcpStream>> {
        self.connector.connect(name(), stream).await
    }

    /// Asks for new keys until the program ends the session. With data in between, it need not.
    async fn update_keys(&self, stream: &mut TcpStream, with_data: bool) -> io::Result<()> {
        const REQUESTS: usize = 1000;
        let mut stream = self.shake(stream).await?;
        for _ in 0..REQUESTS {
            let (_, session) = stream.get_mut();
            session.refresh_traffic_keys().map_err(io::Error::other)?;
            if with_data {
                stream.write_all(b"x").await?;
                stream.flush().await?;
                stream.read_exact(&mut [0]).await?;
            } else {
                stream.flush().await?;
            }
        }
        if with_data {
            return Ok(());
        }
        stream.read_to_end(&mut Vec::new()).await.map(drop)
    }

    /// Sends many records of one byte. Compares what returns.
    async fn drip(&self, stream: &mut TcpStream) -> io::Result<()> {
        const RECORDS: usize = 10_000;
        let stream = self.shake(stream).await?;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let send = async {
            for _ in 0..RECORDS {
                writer.write_all(b"x").await?;
            }
            writer.shutdown().await
        };
        let mut returned = Vec::new();
        let (sent, read) = tokio::join!(send, reader.read_to_end(&mut returned));
        sent.and(read).map(drop)
    }
}

fn name() -> ServerName<'static> {
    ServerName::try_from("a.test").expect("a valid name")
}

/// Returns a record of a handshake.
fn record(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("a record is short").to_be_bytes();
    [&[HANDSHAKE, 3, 1], &length[..], content].concat()
}

/// Returns a hello of 16 KiB that is valid except for its cipher suites, which nobody knows.
fn long_hello() -> Vec<u8> {
    const SUITES_BYTES: usize = RECORD_MAX_BYTES - 200;
    let suites = u16::try_from(SUITES_BYTES).expect("short").to_be_bytes();
    let body = [&[3, 3][..], &[7; 32], &[0], &suites, &[0x5a; SUITES_BYTES], &[1, 0]].concat();
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    let mut hello = [&[CLIENT_HELLO], &length[1..], &body[..]].concat();
    hello.resize(RECORD_MAX_BYTES, 0);
    hello
}

/// Returns a chain in which each certificate could have issued each other, and so could the CA.
/// Only the signatures tell that none has.
fn searched_chain() -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), rcgen::Error> {
    let key = rcgen::KeyPair::generate()?;
    let issuer = rcgen::Issuer::new(authority(), rcgen::KeyPair::generate()?);
    let own = rcgen::CertificateParams::new(["a.test".to_owned()])?.signed_by(&key, &issuer)?;
    let mut chain = vec![own.der().clone()];
    for _ in 0..ISSUERS {
        chain.push(authority().self_signed(&rcgen::KeyPair::generate()?)?.der().clone());
    }
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok((chain, key.into()))
}

fn authority() -> rcgen::CertificateParams {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, AUTHORITY);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
}

/// Writes the certificate of the CA whose certificates the service accepts.
pub(crate) fn write_authority(folder: &Path) -> io::Result<PathBuf> {
    let key = rcgen::KeyPair::generate().map_err(io::Error::other)?;
    let certificate = authority().self_signed(&key).map_err(io::Error::other)?;
    let file = folder.join("authority.pem");
    fs::write(&file, certificate.pem())?;
    Ok(file)
}

/// Writes a certificate and its key. RSA costs a server the most, and its clients the least.
pub(crate) fn write_pair(folder: &Path) -> io::Result<[PathBuf; 2]> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).map_err(io::Error::other)?;
    let certificate = rcgen::CertificateParams::new(["a.test".to_owned()]);
    let certificate = certificate.and_then(|params| params.self_signed(&key));
    let files = [folder.join("certificate.pem"), folder.join("key.pem")];
    fs::write(&files[0], certificate.map_err(io::Error::other)?.pem())?;
    fs::write(&files[1], key.serialize_pem())?;
    fs::set_permissions(&files[1], fs::Permissions::from_mode(0o600))?;
    Ok(files)
}

/// Trusts every certificate, and checks no signature, because attackers do not.
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
