//! The client's end of TLS: settings, the configuration in force, and the handshake.

use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, CommonState, HandshakeKind, ProtocolVersion};
use spliceway_protocol::address::Target;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::agreed::iana_name;
use super::anchors::Anchors;
use super::certificate::{BadFile, Pair, PairFiles, expiry, read_chain};
use super::chain::Doubt;
use super::connect_error::ConnectError;
use super::crypto::provider;
use super::issuers::{Authority, NotAnIssuer};
use super::stamp::Stamp;
use super::verifier::{Unverified, Verifier};
use super::watched::{Watched, watch};
use crate::kit::tls_error::fault;
use crate::net::records::Records;

/// How a service speaks TLS to its targets and its upstream proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientSettings {
    /// The file of the authorities to trust. `None` means those of the system.
    pub(crate) authorities: Option<PathBuf>,
    /// The name that every target must have, whatever it is called.
    pub(crate) name: Option<PeerName>,
    pub(crate) alpn: OfferedProtocols,
    /// The certificate for servers that ask for one.
    pub(crate) pair: Option<PairFiles>,
    /// Whether a server must prove who it is.
    pub(crate) verifies: bool,
    /// Whether the kernel may take connections over.
    pub(crate) uses_kernel: bool,
}

/// The protocols that a target is offered (ALPN).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OfferedProtocols {
    /// These. None means that none is negotiated.
    Listed(Vec<Box<str>>),
    /// The protocol on which the client has agreed, if there is one.
    OfClient,
}

/// The name that the certificate of a server must have. `None` if the server has an address that is
/// not a name: a Unix socket, or SRV records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerName(Option<ServerName<'static>>);

/// Speaks TLS to the targets and the upstream proxies of a service.
#[derive(Debug)]
pub(crate) struct Originator {
    settings: ClientSettings,
    provider: Arc<CryptoProvider>,
    in_force: RwLock<InForce>,
    files: Watched<Vec<Stamp>>,
}

#[derive(Debug, Clone)]
struct InForce {
    config: Arc<ClientConfig>,
    /// The same for checks. They resume no session, because a resumed one proves nothing new.
    checks: Arc<ClientConfig>,
    /// Differs if the certificates do.
    fingerprint: u64,
    /// What servers may refuse about the certificate for them.
    doubts: Arc<[Doubt]>,
}

/// What a handshake with a server has agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgreedWithServer {
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    pub(crate) alpn: Option<Box<str>>,
    pub(crate) is_resumed: bool,
    /// Whether the server has proven who it is.
    pub(crate) is_verified: bool,
    /// When the certificate of the server stops to be valid. Only checks need it.
    pub(crate) expires: Option<SystemTime>,
}

/// Why TLS to servers is not possible, with the remedy.
#[derive(Debug)]
pub(crate) enum Unusable {
    File(BadFile),
    /// The system has no authorities. The text says what was wrong, if anything was.
    NoAuthorities(String),
    /// The certificate in this line cannot be used as an authority.
    Authority(PathBuf, usize, String),
}

impl PeerName {
    /// Returns the name of a target.
    pub(crate) fn of(target: &Target) -> Self {
        Self(match target {
            Target::Ip(address) => Some(ServerName::IpAddress(address.ip().to_canonical().into())),
            Target::Name(name, _) => ServerName::try_from(name.to_string()).ok(),
            Target::Unix(_) => None,
        })
    }

    /// Returns the name of a server without a name.
    pub(crate) fn unknown() -> Self {
        Self(None)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.is_some()
    }
}

impl FromStr for PeerName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = ServerName::try_from(text.to_owned());
        let name = name.map_err(|_| "expected the name of a host, such as example.com, or an IP address")?;
        Ok(Self(Some(name)))
    }
}

impl Originator {
    /// Reads the certificates.
    ///
    /// # Errors
    /// Returns the first fault of the files.
    pub(crate) fn new(settings: ClientSettings) -> Result<Self, Unusable> {
        let provider = provider();
        let files = Watched::new(stamps(&settings));
        let in_force = RwLock::new(read(&settings, &provider)?);
        Ok(Self {
            settings,
            provider,
            in_force,
            files,
        })
    }

    /// Returns whether servers would notice no difference.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.settings == other.settings && self.fingerprint() == other.fingerprint()
    }

    /// Returns whether the kernel may take connections over.
    pub(crate) fn uses_kernel(&self) -> bool {
        self.settings.uses_kernel
    }

    /// Returns what servers may refuse about the certificate for them.
    pub(crate) fn doubts(&self) -> Arc<[Doubt]> {
        Arc::clone(&self.in_force.read().doubts)
    }

    fn fingerprint(&self) -> u64 {
        self.in_force.read().fingerprint
    }

    /// Reads changed files. Never returns.
    pub(crate) async fn watch(self: Arc<Self>, service: Arc<str>) {
        watch(Arc::clone(&service), move || drop(self.look(&service))).await;
    }

    /// Reads the files again if they have changed since the last look, and says what follows.
    fn look(&self, service: &str) -> Option<Result<(), Unusable>> {
        let read = || {
            let new = read(&self.settings, &self.provider)?;
            *self.in_force.write() = new;
            Ok(())
        };
        let tell = |result: Result<(), &str>| match result {
            Ok(()) => tracing::info!(service, "read the changed TLS files for targets"),
            Err(why) => tracing::error!(service, "the previous TLS files for targets stay in force: {why}"),
        };
        self.files.look(stamps(&self.settings), read, tell)
    }

    /// Shakes hands with a target. `protocol` is that on which the client has agreed. A check
    /// always verifies the certificate. The caller limits the time. Cancel safe: dropping the
    /// future closes the stream.
    ///
    /// # Errors
    /// Returns the reason why the target is not trusted, or refuses.
    pub(crate) async fn connect_to_target<S>(
        &self,
        stream: Records<S>,
        name: &PeerName,
        protocol: Option<&str>,
        is_check: bool,
    ) -> Result<(TlsStream<Records<S>>, AgreedWithServer), ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let protocols: Vec<&str> = match &self.settings.alpn {
            OfferedProtocols::Listed(all) => all.iter().map(AsRef::as_ref).collect(),
            OfferedProtocols::OfClient => protocol.into_iter().collect(),
        };
        let name = self.settings.name.as_ref().unwrap_or(name);
        let in_force = self.in_force.read().clone();
        let config = if is_check { in_force.checks } else { in_force.config };
        let (stream, mut agreed) = self.connect(stream, config, name, &protocols).await?;
        if self.settings.alpn == OfferedProtocols::OfClient
            && let Some(protocol) = protocol
            && agreed.alpn.as_deref() != Some(protocol)
            // Servers speak it without ALPN, too.
            && protocol != "http/1.1"
        {
            return Err(ConnectError::OtherProtocol(protocol.into()));
        }
        if is_check {
            let chain = stream.get_ref().1.peer_certificates();
            agreed.expires = chain.and_then(|chain| expiry(chain.first()?));
        }
        Ok((stream, agreed))
    }

    /// Shakes hands with an upstream proxy. Cancel safe.
    ///
    /// # Errors
    /// Returns the reason why the proxy is not trusted, or refuses.
    pub(crate) async fn connect_to_proxy<S>(
        &self,
        stream: Records<S>,
        name: &PeerName,
    ) -> Result<(TlsStream<Records<S>>, AgreedWithServer), ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.in_force.read().config);
        self.connect(stream, config, name, &[]).await
    }

    async fn connect<S>(
        &self,
        stream: Records<S>,
        mut config: Arc<ClientConfig>,
        name: &PeerName,
        protocols: &[&str],
    ) -> Result<(TlsStream<Records<S>>, AgreedWithServer), ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = name.0.clone().ok_or(ConnectError::OlderSettings)?;
        let protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        if let Some(secrets) = stream.secrets() {
            let config = Arc::make_mut(&mut config);
            config.enable_secret_extraction = true;
            config.key_log = Arc::clone(secrets) as _;
        }
        let connector = TlsConnector::from(config);
        let stream = connector.with_alpn(protocols).connect(name, stream).await?;
        let agreed = AgreedWithServer::new(stream.get_ref().1, self.settings.verifies);
        Ok((stream, agreed))
    }
}

impl AgreedWithServer {
    fn new(session: &CommonState, is_verified: bool) -> Self {
        let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
        let alpn = session.alpn_protocol().map(spliceway_protocol::printable);
        Self {
            version: match session.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "1.3",
                _ => "1.2",
            },
            cipher: suite.map_or("", iana_name),
            alpn,
            is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            is_verified,
            expires: None,
        }
    }
}

fn stamps(settings: &ClientSettings) -> Vec<Stamp> {
    let pair = settings.pair.iter();
    let pair = pair.flat_map(|pair| [&pair.certificate, &pair.key]);
    let files = settings.authorities.iter().chain(pair);
    files.map(|file| Stamp::of(file)).collect()
}

/// Reads the files.
fn read(settings: &ClientSettings, provider: &Arc<CryptoProvider>) -> Result<InForce, Unusable> {
    let mut hasher = DefaultHasher::new();
    let verifier: Arc<dyn ServerCertVerifier> = if settings.verifies {
        let (anchors, all, named) = authorities(settings.authorities.as_deref())?;
        all.hash(&mut hasher);
        Arc::new(Verifier::new(anchors, named, provider))
    } else {
        Arc::new(Unverified(Arc::clone(provider)))
    };
    let config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites of both versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    // The configuration keeps the sessions of 256 names, for resumption.
    let mut doubts = Vec::new();
    let config = match &settings.pair {
        None => config.with_no_client_auth(),
        Some(files) => {
            let pair = Pair::read(files, provider).map_err(Unusable::File)?;
            doubts.extend(pair.doubts.into_iter().filter(|doubt| !doubt.is_for_servers()));
            pair.key.cert.hash(&mut hasher);
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.key)))
        }
    };
    let mut checks = config.clone();
    checks.resumption = Resumption::disabled();
    Ok(InForce {
        config: Arc::new(config),
        checks: Arc::new(checks),
        fingerprint: hasher.finish(),
        doubts: doubts.into(),
    })
}

/// The authorities to trust, their certificates, and those that the operator's file has.
type Authorities = (Anchors, Vec<CertificateDer<'static>>, Vec<CertificateDer<'static>>);

/// Reads the authorities to trust: those of a file, or those of the system.
pub(super) fn authorities(file: Option<&Path>) -> Result<Authorities, Unusable> {
    let mut anchors = Anchors::default();
    let Some(file) = file else {
        let found = rustls_native_certs::load_native_certs();
        for certificate in &found.certs {
            let _ = anchors.add(certificate);
        }
        if anchors.is_empty() {
            let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
            return Err(Unusable::NoAuthorities(errors.join(", ")));
        }
        return Ok((anchors, found.certs, Vec::new()));
    };
    let named = read_chain(file).map_err(Unusable::File)?;
    for (line, certificate) in &named {
        // A server's own certificate is trusted, and what it has issued is not.
        if let Err(NotAnIssuer::NotCa | NotAnIssuer::OtherKeyUsage) = Authority::read(certificate) {
            continue;
        }
        let added = anchors.add(certificate);
        added.map_err(|error| Unusable::Authority(file.into(), *line, fault(&error)))?;
    }
    let named: Vec<_> = named.into_iter().map(|(_, certificate)| certificate).collect();
    Ok((anchors, named.clone(), named))
}

impl Unusable {
    /// Returns the file that cannot be read, if that is the cause.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(bad) => Some(bad.file()),
            Self::NoAuthorities(_) | Self::Authority(..) => None,
        }
    }
}

impl Display for Unusable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(bad) => bad.fmt(f),
            Self::NoAuthorities(errors) => {
                f.write_str("the system has no certificates of CAs")?;
                if !errors.is_empty() {
                    write!(f, " ({errors})")?;
                }
                f.write_str(": install the package ca-certificates, or give target_tls_ca")
            }
            Self::Authority(file, line, why) => write!(
                f,
                "{}:{line}: the certificate cannot be that of a CA ({why}): copy the file again",
                file.display()
            ),
        }
    }
}
