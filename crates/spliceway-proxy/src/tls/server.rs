//! The server's end of TLS: settings, the configuration in force, and the handshake.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{Acceptor, NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{Error, KeyLog, PeerIncompatible, SupportedProtocolVersion};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::StartHandshake;
use tokio_rustls::server::TlsStream;

use super::acme::{AcmeSettings, is_validation};
use super::agreed::Agreed;
use super::certificate::{BadFile, Pair, PairFiles, Validity, Why};
use super::chain::Doubt;
use super::client_cert::{ClientCertSettings, ClientVerifier, with_shown};
use super::counts::Counts;
use super::crypto::provider;
use super::failure::{HandshakeError, NotTls};
use super::folder::{Stamps, pairs_in};
use super::names::Pairs;
use super::shared_keys::{SharedKeys, ticketer};
use super::tickets::Tickets;
use super::turns::{Handshake, Turns};
use super::watched::{Stale, Watched, watch};

/// How a listener terminates TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerSettings {
    pub(crate) pairs: Vec<PairFiles>,
    /// A folder with further pairs. Without `pairs`, its first pair is the default.
    pub(crate) folder: Option<PathBuf>,
    /// How the certificates are issued. `None` means that the operator does it. The files may be
    /// missing before the first one is issued.
    pub(crate) acme: Option<AcmeSettings>,
    /// The keys of tickets, which other machines may have too.
    pub(crate) ticket_keys: Option<PathBuf>,
    pub(crate) is_13_only: bool,
    /// The protocols for ALPN, the best first. Empty means that none is negotiated.
    pub(crate) alpn: Vec<Box<str>>,
    /// Whether a client that states an unknown name gets an alert instead of the first certificate.
    pub(crate) refuses_unknown_names: bool,
    /// `None` means that clients are asked for no certificate.
    pub(crate) clients: Option<ClientCertSettings>,
    /// Whether the kernel may take connections over.
    pub(crate) uses_kernel: bool,
}

/// Terminates the TLS of a listener's clients.
#[derive(Debug)]
pub(crate) struct Terminator {
    settings: ServerSettings,
    provider: Arc<CryptoProvider>,
    in_force: RwLock<InForce>,
    tickets: Arc<Tickets>,
    files: Watched<Stamps>,
    turns: Turns,
    counts: Arc<Counts>,
}

#[derive(Debug, Clone)]
struct InForce {
    config: Arc<ServerConfig>,
    pairs: Arc<Pairs>,
    /// `None` means that clients are asked for no certificate.
    clients: Option<Arc<ClientVerifier>>,
    /// `None` means that the service has only its own random keys.
    ticket_keys: Option<Arc<SharedKeys>>,
}

impl ServerSettings {
    /// Returns at least one pair, except before ACME has issued the first: those of the settings,
    /// and then those of the folder.
    pub(super) fn all_pairs(&self) -> Result<Vec<PairFiles>, BadFile> {
        let is_there = |files: &&PairFiles| self.acme.is_none() || !is_missing(&files.certificate);
        let mut pairs: Vec<_> = self.pairs.iter().filter(is_there).cloned().collect();
        if let Some(folder) = &self.folder {
            pairs.extend(pairs_in(folder)?);
            if pairs.is_empty() {
                return Err(BadFile::new(folder, Why::Empty));
            }
        }
        Ok(pairs)
    }

    /// Returns the files outside the folder.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        let pairs = self.pairs.iter();
        let files = pairs.flat_map(|pair| [pair.certificate.clone(), pair.key.clone(), pair.ocsp()]);
        let of_clients = self.clients.iter();
        let of_clients = of_clients.flat_map(|clients| clients.authorities.iter().chain(&clients.crls));
        let others = of_clients.chain(&self.ticket_keys);
        files.chain(others.cloned())
    }

    /// Returns the state of the files.
    fn stamps(&self) -> Stamps {
        Stamps::of(self.files(), self.folder.as_deref())
    }
}

/// A handshake that has failed.
#[derive(Debug)]
pub(crate) struct Refused<S> {
    pub(crate) error: HandshakeError,
    /// The connection of a client that may be sending already, and has an alert to read.
    pub(crate) stream: Option<S>,
}

impl Terminator {
    /// Reads the certificates.
    ///
    /// # Errors
    /// Returns the first fault of the files.
    pub(crate) fn new(settings: ServerSettings) -> Result<Self, BadFile> {
        let provider = provider();
        let files = Watched::new(settings.stamps());
        let tickets = Arc::new(Tickets::new());
        let in_force = read(&settings, &provider, &tickets)?;
        Ok(Self {
            settings,
            provider,
            in_force: RwLock::new(in_force),
            tickets,
            files,
            turns: Turns::default(),
            counts: Arc::default(),
        })
    }

    /// Continues from the terminator before a reload: clients can resume their sessions, and counts
    /// go on. Nobody resumes a session while certificates of clients are asked for.
    pub(crate) fn continued(&self, before: &Self) -> Self {
        let lacks_file = self.settings == before.settings && before.check_removed().is_err();
        let (in_force, files) = if lacks_file {
            // The next look says so.
            (&before.in_force, Watched::new(Stamps::default()))
        } else {
            (&self.in_force, self.files.continued())
        };
        let mut in_force = in_force.read().clone();
        if self.settings.clients.is_none() {
            let mut config = ServerConfig::clone(&in_force.config);
            config.ticketer = ticketer(in_force.ticket_keys.as_ref(), &before.tickets);
            in_force.config = Arc::new(config);
        }
        Self {
            settings: self.settings.clone(),
            provider: Arc::clone(&self.provider),
            in_force: RwLock::new(in_force),
            tickets: Arc::clone(&before.tickets),
            files,
            turns: Turns::default(),
            counts: Arc::clone(&before.counts),
        }
    }

    /// Returns whether clients would notice no difference.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let chains = |one: &Self| -> Vec<_> { one.pairs().all().iter().map(|pair| pair.key.cert.clone()).collect() };
        let clients = |one: &Self| one.in_force.read().clients.clone();
        let have_same_clients = match (clients(self), clients(other)) {
            (Some(clients), Some(others)) => clients.is_like(&others),
            (clients, others) => clients.is_none() && others.is_none(),
        };
        let ticket_keys = |one: &Self| one.in_force.read().ticket_keys.clone();
        self.settings == other.settings
            && chains(self) == chains(other)
            && have_same_clients
            && ticket_keys(self) == ticket_keys(other)
    }

    /// Returns the settings for certificates of clients, if they are asked for.
    pub(crate) fn clients(&self) -> Option<&ClientCertSettings> {
        self.settings.clients.as_ref()
    }

    /// Returns when the list of revoked certificates in each file expires.
    pub(crate) fn crls(&self) -> Vec<(String, SystemTime)> {
        let clients = self.in_force.read().clients.clone();
        let crls = clients.iter().flat_map(|clients| clients.crls());
        crls.map(|(file, expires)| (file.display().to_string(), *expires))
            .collect()
    }

    /// Reads the certificates again. Handshakes that have begun keep the old ones.
    ///
    /// # Errors
    /// Returns the first fault of the files. The previous TLS files then stay in force.
    fn reload(&self) -> Result<(), BadFile> {
        self.check_removed()?;
        let new = read(&self.settings, &self.provider, &self.tickets)?;
        *self.in_force.write() = new;
        Ok(())
    }

    /// Checks that each valid certificate of ACME that is in force has its file. Otherwise, the
    /// file looks like one that is not issued yet.
    fn check_removed(&self) -> Result<(), BadFile> {
        let (pairs, now) = (self.pairs(), SystemTime::now());
        let issued = self.settings.acme.iter().flat_map(|_| pairs.all());
        let mut valid = issued.filter(|pair| now < pair.valid.to);
        match valid.find(|pair| is_missing(&pair.file)) {
            Some(pair) => Err(BadFile::new(&pair.file, Why::Removed)),
            None => Ok(()),
        }
    }

    /// Reads changed files. Never returns.
    pub(crate) async fn watch(self: Arc<Self>, service: Arc<str>) {
        watch(Arc::clone(&service), move || drop(self.look(&service))).await;
    }

    /// Reads the certificates again if a file has changed since the last look, and says what
    /// follows.
    fn look(&self, service: &str) -> Option<Result<(), BadFile>> {
        let tell = |result: Result<(), &str>| {
            self.counts.reloaded(result.is_ok());
            if let Err(why) = result {
                tracing::error!(service, "the previous TLS files stay in force: {why}");
                return;
            }
            tracing::info!(service, "read the changed TLS files");
            for (_, doubt) in self.doubts().into_iter().chain(self.doubts_about_clients()) {
                tracing::warn!(service, "{doubt}");
            }
        };
        self.files.look(self.settings.stamps(), || self.reload(), tell)
    }

    /// Returns since when the previous TLS files stay in force, although the files have changed.
    pub(crate) fn stale(&self) -> Option<Stale> {
        self.files.stale()
    }

    /// Returns the keys of tickets, with which clients resume their sessions.
    pub(crate) fn tickets(&self) -> &Tickets {
        &self.tickets
    }

    /// Counts a handshake that has succeeded.
    pub(crate) fn succeeded(&self, agreed: &Agreed) {
        let is_13 = agreed.version == "1.3";
        self.counts
            .succeeded([is_13, agreed.is_resumed, agreed.client_cert.is_some()]);
    }

    /// Returns how the certificates are issued.
    pub(crate) fn acme(&self) -> Option<&AcmeSettings> {
        self.settings.acme.as_ref()
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the certificates in force.
    pub(crate) fn pairs(&self) -> Arc<Pairs> {
        Arc::clone(&self.in_force.read().pairs)
    }

    /// Returns the number of certificates in force.
    pub(crate) fn certificates(&self) -> usize {
        self.pairs().all().len()
    }

    /// Returns what clients may refuse about the certificates in force, each with its file.
    pub(crate) fn doubts(&self) -> Vec<(PathBuf, String)> {
        first_ones(self.pairs().all().iter().flat_map(|pair| &pair.doubts))
    }

    /// Returns what is doubtful about the CAs that issue the certificates of clients, and about
    /// their CRLs, each with its file.
    pub(crate) fn doubts_about_clients(&self) -> Vec<(PathBuf, String)> {
        let clients = self.in_force.read().clients.clone();
        first_ones(clients.iter().flat_map(|clients| clients.doubts()))
    }

    /// Returns the certificates that end first, each with its file. There are at most `max`.
    pub(crate) fn first_to_expire(&self, max: usize) -> Vec<(String, Validity)> {
        let pairs = self.pairs();
        let mut all: Vec<_> = pairs.all().iter().map(|pair| (&pair.file, pair.valid)).collect();
        all.sort_by_key(|(file, valid)| (valid.to, *file));
        // A file may be in several pairs.
        all.dedup_by_key(|(file, _)| *file);
        let first = all.into_iter().take(max);
        first.map(|(file, valid)| (file.display().to_string(), valid)).collect()
    }

    /// Returns whether the kernel may take connections over.
    pub(crate) fn uses_kernel(&self) -> bool {
        self.settings.uses_kernel
    }

    /// Shakes hands with a client, which has already sent `head`. `protocol` is the only one to
    /// agree on (ALPN), if there is one. `keys` gets the secrets, if the kernel may take the
    /// connection over. `stated` gets the name that the client states. A client whose handshake
    /// fails has its alert afterwards.
    pub(crate) async fn accept<S>(
        &self,
        head: Vec<u8>,
        stream: S,
        protocol: Option<&[u8]>,
        keys: Option<Arc<dyn KeyLog>>,
        stated: impl FnOnce(&str),
    ) -> Result<(TlsStream<S>, Agreed), Refused<S>>
    where
        S: AsyncBufRead + AsyncWrite + Unpin,
    {
        let InForce { mut config, pairs, .. } = self.in_force.read().clone();
        if let Some(protocol) = protocol {
            Arc::make_mut(&mut config).alpn_protocols = vec![protocol.to_vec()];
        }
        if let Some(keys) = keys {
            let config = Arc::make_mut(&mut config);
            config.enable_secret_extraction = true;
            config.key_log = keys;
        }
        let start = hello(&head, stream).await?;
        drop(head);
        let name = start.client_hello().server_name().map(Box::<str>::from);
        if let Some(name) = &name {
            stated(name);
        }
        if let Some(acme) = &self.settings.acme {
            if is_validation(&start.client_hello()) {
                return Err(self.validate(start, acme, name).await.into());
            }
            if pairs.all().is_empty() {
                let mut stream = start.io;
                let _ = stream.write_all(&INTERNAL_ERROR).await;
                return Err(HandshakeError::NoCertificate.into());
            }
        }
        if self.settings.refuses_unknown_names
            && let Some(name) = &name
            && !pairs.know(name)
        {
            let mut stream = start.io;
            let _ = stream.write_all(&UNRECOGNIZED_NAME).await;
            return Err(HandshakeError::UnknownName(name.clone()).into());
        }
        let turn = self.turns.next().await;
        let verifies_clients = self.settings.clients.is_some();
        let handshake = Handshake::begin(start, config, verifies_clients);
        let handshake = self.turns.end(turn, handshake);
        let (stream, client_cert) = if verifies_clients {
            let (accepted, shown) = with_shown(handshake).await;
            match accepted {
                Ok(stream) => (stream, shown),
                Err((error, stream)) => {
                    return Err(Refused {
                        error: HandshakeError::from(error).about(shown),
                        stream: Some(stream),
                    });
                }
            }
        } else {
            (handshake.await.map_err(|(error, _)| error)?, None)
        };
        let agreed = Agreed::new(stream.get_ref().1, name, client_cert);
        Ok((stream, agreed))
    }

    /// Answers the challenge TLS-ALPN-01 while a name is being validated. The connection carries
    /// nothing else.
    async fn validate<S>(&self, start: StartHandshake<S>, acme: &AcmeSettings, name: Option<Box<str>>) -> HandshakeError
    where
        S: AsyncBufRead + AsyncWrite + Unpin,
    {
        let name = name.unwrap_or_default();
        let turn = self.turns.next().await;
        let Some(config) = acme.answer(&name, &self.provider) else {
            drop(turn);
            let mut stream = start.io;
            let _ = stream.write_all(&UNRECOGNIZED_NAME).await;
            return HandshakeError::UnknownName(name);
        };
        let handshake = Handshake::begin(start, config, false);
        match self.turns.end(turn, handshake).await {
            Ok(mut stream) => {
                let _ = stream.shutdown().await;
                HandshakeError::Validated(name)
            }
            Err((error, _)) => error.into(),
        }
    }
}

/// Reads a client's hello, which begins with `head`. An error is answered with its alert.
async fn hello<S>(mut head: &[u8], mut stream: S) -> Result<StartHandshake<S>, HandshakeError>
where
    S: AsyncBufRead + AsyncWrite + Unpin,
{
    let mut acceptor = Acceptor::default();
    let mut length = 0;
    loop {
        length += if head.is_empty() {
            let mut bytes = stream.fill_buf().await?;
            if bytes.is_empty() {
                return Err(HandshakeError::Gone);
            }
            if let Some(other) = (length == 0).then(|| NotTls::find(bytes)).flatten() {
                let _ = stream.write_all(&DECODE_ERROR).await;
                return Err(HandshakeError::NotTls(other));
            }
            let read = acceptor.read_tls(&mut bytes)?;
            stream.consume(read);
            read
        } else {
            acceptor.read_tls(&mut head)?
        };
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(StartHandshake::from_parts(accepted, stream)),
            Ok(None) if length > HELLO_MAX_BYTES => return Err(HandshakeError::LongHello(HELLO_MAX_BYTES)),
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                alert.write(&mut bytes)?;
                if error == Error::PeerIncompatible(PeerIncompatible::SignatureAlgorithmsExtensionRequired) {
                    // Hellos before TLS 1.2 lack it. Other servers say what is wrong.
                    bytes = PROTOCOL_VERSION.into();
                }
                let _ = stream.write_all(&bytes).await;
                return Err(error.into());
            }
        }
    }
}

/// Returns whether there is no such file. One that cannot be read is not missing.
fn is_missing(file: &Path) -> bool {
    fs::metadata(file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Shows the first doubts, and the number of the others.
fn first_ones<'a>(mut all: impl Iterator<Item = &'a Doubt>) -> Vec<(PathBuf, String)> {
    let shown = all.by_ref().take(DOUBTS_MAX);
    let mut shown: Vec<_> = shown
        .map(|doubt| (doubt.file().to_owned(), doubt.to_string()))
        .collect();
    let more = all.count();
    if more > 0
        && let Some((file, _)) = shown.last()
    {
        let file = file.clone();
        let more = format!("{more} more certificates have such faults: see the flag `tls` of `spliceway doctor`");
        shown.push((file, more));
    }
    shown
}

/// The warnings about certificates that one read shows. With a thousand certificates that end on
/// one day, the first ones tell the operator enough.
const DOUBTS_MAX: usize = 8;
/// The longest hello, with the heads of its records, as in `sni`. rustls would store 64 KiB.
const HELLO_MAX_BYTES: usize = 20 << 10;
/// The alert `decode_error` in a record, before a version is agreed on.
const DECODE_ERROR: [u8; 7] = [21, 3, 1, 0, 2, 2, 50];
/// The alert `protocol_version`.
const PROTOCOL_VERSION: [u8; 7] = [21, 3, 1, 0, 2, 2, 70];
/// The alert `internal_error`.
const INTERNAL_ERROR: [u8; 7] = [21, 3, 1, 0, 2, 2, 80];
/// The alert `unrecognized_name`.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 1, 0, 2, 2, 112];

/// Reads the files.
fn read(settings: &ServerSettings, provider: &Arc<CryptoProvider>, tickets: &Arc<Tickets>) -> Result<InForce, BadFile> {
    let pairs: Result<Vec<_>, _> = settings
        .all_pairs()?
        .iter()
        .map(|files| Pair::read(files, provider))
        .collect();
    let pairs = Arc::new(Pairs::new(pairs?));
    let ticket_keys = settings.ticket_keys.as_deref();
    let ticket_keys = ticket_keys.map(|file| SharedKeys::read(file, &pairs)).transpose()?;
    let ticket_keys = ticket_keys.map(Arc::new);
    let versions: &[&SupportedProtocolVersion] = if settings.is_13_only {
        &[&TLS13]
    } else {
        &[&TLS13, &TLS12]
    };
    let clients = settings.clients.as_ref();
    let clients = clients
        .map(|clients| ClientVerifier::read(clients, provider))
        .transpose()?;
    let clients = clients.map(Arc::new);
    let verifier = match &clients {
        Some(clients) => Arc::clone(clients) as Arc<dyn ClientCertVerifier>,
        None => WebPkiClientVerifier::no_client_auth(),
    };
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(versions)
        .expect("the provider has suites of both versions")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::clone(&pairs) as _);
    config.alpn_protocols = settings.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    // Tickets are the only kind of resumption. The server stores nothing.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    // A resumed session would skip the check of the certificate. The CAs, the revoked certificates
    // and the rules may have changed since then. So each handshake with this check is a full one.
    if clients.is_none() {
        config.ticketer = ticketer(ticket_keys.as_ref(), tickets);
    } else {
        config.send_tls13_tickets = 0;
    }
    Ok(InForce {
        config: Arc::new(config),
        pairs,
        clients,
        ticket_keys,
    })
}

impl<S, E: Into<HandshakeError>> From<E> for Refused<S> {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            stream: None,
        }
    }
}

#[cfg(test)]
mod tests;
