//! The certificates of clients: which ones a service accepts, and why it refuses others.

use std::cell::RefCell;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use tokio::task_local;
use webpki::{KeyUsage, VerifiedPath};
use x509_cert::der::DateTime;

use super::anchors::{Anchors, is_too_long};
use super::certificate::{self, BadFile, read_chain};
use super::chain::{Doubt, Link, doubt_about_ca};
use super::client_name::{ClientCert, Fingerprint, Names};
use super::client_rule::ClientRule;
use super::crl::{self, Ca, Crl, newest, read_crls};
use super::issuers::{Authority, Issuers, TooManyAlike};
use crate::kit::tls_error::{self, Peer, fault};

/// The longest names of CAs that clients get. A message has 64 KiB for them and the rest. Without
/// names, clients choose a certificate by themselves.
const HINTS_MAX_BYTES: usize = 60 << 10;

/// Which certificates a service accepts from its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCertSettings {
    /// The files of the CAs that issue the certificates. At least one.
    pub(crate) authorities: Vec<PathBuf>,
    /// The files with the certificates that the CAs have revoked.
    pub(crate) crls: Vec<PathBuf>,
    /// Whether a client needs a certificate.
    pub(crate) is_required: bool,
    /// The certificates that may be used. Empty means all that the CAs have issued.
    pub(crate) rules: Vec<ClientRule>,
}

/// Verifies the certificates of clients.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    anchors: Anchors,
    /// The names of the CAs. None if they are too long for a message.
    hints: Vec<DistinguishedName>,
    lists: Vec<Crl>,
    rules: Vec<ClientRule>,
    is_required: bool,
    provider: Arc<CryptoProvider>,
    /// The digests of what was read from the files.
    contents: Vec<Fingerprint>,
    /// When the first list of revoked certificates in each file expires.
    crls: Vec<(PathBuf, SystemTime)>,
    /// Whether a CA restricts the names in certificates below it.
    restricts_names: bool,
    /// What is doubtful about the CAs and the lists.
    doubts: Vec<Doubt>,
}

/// What the files of a service have, as far as they can be read.
pub(super) struct ClientFiles {
    pub(super) cas: Vec<Ca>,
    /// The newest list of each CA.
    pub(super) crls: Vec<Crl>,
    /// What is doubtful about the CAs and the lists.
    pub(super) doubts: Vec<Doubt>,
    /// The first fault of each file that cannot be used.
    pub(super) bad: Vec<BadFile>,
    anchors: Anchors,
    /// The digests of what was read.
    contents: Vec<Fingerprint>,
}

/// Why the certificate of a client is refused.
#[derive(Debug)]
pub(crate) struct BadClientCert {
    why: Why,
    /// The certificate, if there is one. The client may not have its key.
    pub(crate) shown: Option<Box<ClientCert>>,
}

#[derive(Debug)]
enum Why {
    None,
    NotPermitted,
    Invalid(CertificateError),
}

/// The kind of a [`BadClientCert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadClientCertKind {
    None,
    Revoked,
    NotPermitted,
    Invalid,
}

task_local! {
    /// The certificate that was verified last in a handshake.
    static SHOWN: RefCell<Option<Box<ClientCert>>>;
}

/// Runs a handshake. Also returns the certificate that the client has shown, which is proven only
/// if the handshake succeeds.
pub(super) async fn with_shown<T>(handshake: impl Future<Output = T>) -> (T, Option<Box<ClientCert>>) {
    let run = async {
        let result = handshake.await;
        (result, SHOWN.with(RefCell::take))
    };
    SHOWN.scope(RefCell::default(), run).await
}

impl ClientFiles {
    pub(super) fn read(settings: &ClientCertSettings, provider: &Arc<CryptoProvider>) -> Self {
        let (mut cas, mut all, mut bad) = (Vec::new(), Vec::new(), Vec::new());
        let mut anchors = Anchors::default();
        for file in &settings.authorities {
            match read_cas(file, &mut anchors) {
                Ok(read) => cas.extend(read),
                Err(fault) => bad.push(fault),
            }
        }
        for file in &settings.crls {
            match read_crls(file) {
                Ok(read) => all.extend(read),
                Err(fault) => bad.push(fault),
            }
        }
        let (cas, contents): (Vec<_>, Vec<_>) = cas.into_iter().unzip();
        let now = SystemTime::now();
        let crls = newest(all, &cas, provider, now);
        let of_crls = crls
            .iter()
            .map(|crl| Fingerprint::of(&CertificateDer::from(&*crl.list)));
        let contents = contents.into_iter().chain(of_crls).collect();
        let mut doubts: Vec<_> = cas
            .iter()
            .filter_map(|ca| doubt_about_ca(&ca.file, &ca.link, now))
            .collect();
        // A file that cannot be read may have what is missing.
        if bad.is_empty() {
            doubts.extend(crl::doubts(&crls, &cas, provider, now));
        }
        Self {
            cas,
            crls,
            doubts,
            bad,
            anchors,
            contents,
        }
    }
}

/// Trusts the CAs in a file. Returns them, each with the digest of its certificate.
fn read_cas(file: &Path, anchors: &mut Anchors) -> Result<Vec<(Ca, Fingerprint)>, BadFile> {
    let mut cas = Vec::new();
    for (line, certificate) in read_chain(file)? {
        let bad = |why| BadFile::new(file, why);
        let damaged = |why| bad(certificate::Why::Certificate(line, why));
        let link = Link::read(line, &certificate).map_err(damaged)?;
        let authority = Authority::read(&certificate);
        authority.map_err(|why| bad(certificate::Why::NotCa(line, why)))?;
        let content = Fingerprint::of(&certificate);
        let anchor = anchors.add(&certificate).map_err(|error| damaged(fault(&error)))?;
        let file = file.to_owned();
        cas.push((Ca { file, link, anchor }, content));
    }
    Ok(cas)
}

impl ClientVerifier {
    /// Reads the files.
    ///
    /// # Errors
    /// Returns the first fault of the files.
    pub(super) fn read(settings: &ClientCertSettings, provider: &Arc<CryptoProvider>) -> Result<Self, BadFile> {
        let files = ClientFiles::read(settings, provider);
        if let Some(bad) = files.bad.into_iter().next() {
            return Err(bad);
        }
        let mut crls = Vec::<(PathBuf, SystemTime)>::new();
        for crl in &files.crls {
            match crls.iter_mut().find(|(file, _)| *file == crl.file) {
                Some((_, expires)) => *expires = crl.valid.to.min(*expires),
                None => crls.push((crl.file.clone(), crl.valid.to)),
            }
        }
        let mut hints: Vec<_> = files.anchors.hints().collect();
        // Each has a length of two bytes.
        if hints.iter().map(|name| name.as_ref().len() + 2).sum::<usize>() > HINTS_MAX_BYTES {
            hints.clear();
        }
        Ok(Self {
            restricts_names: files.anchors.restrict_names(),
            anchors: files.anchors,
            hints,
            lists: files.crls,
            rules: settings.rules.clone(),
            is_required: settings.is_required,
            provider: Arc::clone(provider),
            contents: files.contents,
            crls,
            doubts: files.doubts,
        })
    }

    /// Returns whether both accept the same certificates, if their settings are the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.contents == other.contents
    }

    /// Returns when the first list of revoked certificates in each file expires.
    pub(super) fn crls(&self) -> &[(PathBuf, SystemTime)] {
        &self.crls
    }

    /// Returns what is doubtful about the CAs and the lists.
    pub(super) fn doubts(&self) -> &[Doubt] {
        &self.doubts
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let (mut names, fingerprint) = (Names::of(certificate), Fingerprint::of(certificate));
        let issuers = Issuers::of(intermediates);
        // Such a CA may issue certificates for some names, and the verifier does not look at the
        // common name.
        if self.restricts_names || issuers.as_ref().is_ok_and(|issuers| issuers.restrict_names) {
            names.common_name = None;
        }
        let shown = Box::new(ClientCert::new(&names, fingerprint));
        let _ = SHOWN.try_with(|cell| cell.replace(Some(shown)));
        let issuers = issuers?.certificates;
        let revoked = |path: &VerifiedPath<'_>| crl::check(&self.lists, path, now, &self.provider);
        let usage = KeyUsage::client_auth();
        self.anchors
            .verify(certificate, &issuers, now, usage, &self.provider, revoked)?;
        let is_permitted = |rule: &ClientRule| rule.permits(&names, &fingerprint);
        if self.rules.is_empty() || self.rules.iter().any(is_permitted) {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl BadClientCert {
    /// Returns why the certificate is refused, if this error is about it.
    pub(super) fn of(error: &Error, shown: Option<Box<ClientCert>>) -> Option<Self> {
        let why = match error {
            Error::NoCertificatesPresented => Why::None,
            Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => Why::NotPermitted,
            Error::InvalidCertificate(error) => Why::Invalid(error.clone()),
            _ => return None,
        };
        Some(Self { why, shown })
    }

    pub(crate) fn kind(&self) -> BadClientCertKind {
        match &self.why {
            Why::None => BadClientCertKind::None,
            Why::NotPermitted => BadClientCertKind::NotPermitted,
            Why::Invalid(CertificateError::Revoked) => BadClientCertKind::Revoked,
            Why::Invalid(_) => BadClientCertKind::Invalid,
        }
    }
}

impl Display for BadClientCert {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use CertificateError::*;
        let error = match &self.why {
            Why::None => return f.write_str("the client has no certificate: expected one of a CA in tls_client_ca"),
            Why::NotPermitted => return f.write_str("no rule of tls_client_allow permits the client's certificate"),
            Why::Invalid(error) => error,
        };
        match error {
            Expired => f.write_str("the client's certificate has expired"),
            ExpiredContext { not_after, .. } => {
                write!(f, "the client's certificate has expired at {}", date(*not_after))
            }
            NotValidYet => f.write_str("the client's certificate is not valid yet"),
            NotValidYetContext { not_before, .. } => {
                write!(f, "the client's certificate is not valid before {}", date(*not_before))
            }
            Revoked => f.write_str("the client's certificate is revoked"),
            UnknownIssuer => f.write_str(
                "no CA in tls_client_ca has issued the client's certificate, or the client does not send the \
                 certificates between them",
            ),
            UnknownRevocationStatus => f.write_str(
                "it is unknown whether the client's certificate is revoked: expected a CRL of each CA of its chain in \
                 tls_client_crl, signed by its key, for all certificates or for their distribution point",
            ),
            ExpiredRevocationList => f.write_str("the CRL for the client's certificate has expired"),
            ExpiredRevocationListContext { next_update, .. } => write!(
                f,
                "the CRL for the client's certificate has expired at {}: expected a newer one in tls_client_crl",
                date(*next_update)
            ),
            Other(error) if is_too_long(error) => f.write_str(
                "a CA of the client's chain allows fewer certificates of CAs below it: expected a shorter chain, or a \
                 larger pathlen in its basicConstraints",
            ),
            Other(error) if error.0.is::<TooManyAlike>() => {
                write!(f, "the client's chain cannot be used: {}", error.0)
            }
            error => write!(
                f,
                "the client's certificate cannot be used: {}",
                tls_error::BadCertificate(error, Peer::Client)
            ),
        }
    }
}

fn date(time: UnixTime) -> impl Display {
    let date = DateTime::from_unix_duration(Duration::from_secs(time.as_secs()));
    date.map_or_else(|_| format!("{} s after 1970", time.as_secs()), |date| date.to_string())
}
