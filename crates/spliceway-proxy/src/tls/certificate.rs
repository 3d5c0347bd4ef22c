//! A certificate and its private key, from PEM files.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::kit::harmless::reason;
use crate::kit::named_file::{self, NamedFile, Unreadable};

/// The longest file that is read. A chain of certificates has a few KiB.
const FILE_MAX_BYTES: usize = 1 << 20;
/// The longest certificate with its chain. Most clients accept 64 KiB for the whole message.
const CHAIN_MAX_BYTES: usize = 60 << 10;
/// The most certificates in a folder. Reading this number takes some seconds of a thread that
/// serves no session, and each certificate holds about 5 KiB.
pub(crate) const PAIRS_MAX: usize = 10_000;
/// The longest answer of a responder. Usual ones have 0.5 to 4 KiB.
const OCSP_MAX_BYTES: usize = 16 << 10;
/// The permission of everybody to read a file.
const READ_BY_OTHERS: u32 = 0o004;
/// The first byte of a file in DER.
const SEQUENCE: u8 = 0x30;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The files of a certificate with its chain, and of its key. Both may be the same file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PairFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// A certificate, its chain and its key.
#[derive(Debug)]
pub(crate) struct Pair {
    /// The file of the certificate.
    pub(crate) file: PathBuf,
    pub(crate) key: Arc<CertifiedKey>,
    /// The names of hosts in the certificate, in lower case. A wildcard begins with `*.`.
    pub(crate) names: Vec<Box<str>>,
    pub(crate) valid: Validity,
}

/// The time in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: SystemTime,
    pub(crate) to: SystemTime,
}

/// Why a file cannot be used, with the remedy.
#[derive(Debug)]
pub(crate) struct BadFile {
    file: PathBuf,
    why: Why,
}

#[derive(Debug)]
pub(super) enum Why {
    Read(Unreadable),
    /// The folder has too many certificates.
    TooMany,
    /// The folder has no certificate for this key.
    KeyAlone,
    /// The folder has no certificate.
    Empty,
    ReadByOthers,
    /// DER or PKCS#12.
    Binary,
    Pem(pem::Error),
    NoCertificate,
    NoKey,
    /// The key was expected in the file of the certificate.
    NoKeyInside,
    EncryptedKey,
    ChainTooLong {
        certificates: usize,
        bytes: usize,
    },
    Version1,
    Certificate(String),
    /// A certificate of the chain, counted from 1.
    Chain(usize, String),
    Key(Error),
    /// The file is no answer of an OCSP responder.
    Ocsp,
    /// The key does not belong to the certificate in this file.
    OtherKey(PathBuf),
}

impl Pair {
    /// Reads a certificate, its chain and its key.
    ///
    /// # Errors
    /// Returns the first fault of the files.
    pub(crate) fn read(files: &PairFiles, provider: &CryptoProvider) -> Result<Self, BadFile> {
        let at_certificate = |why| BadFile::new(&files.certificate, why);
        let at_key = |why| BadFile::new(&files.key, why);
        let chain = read_certificates(&files.certificate).map_err(at_certificate)?;
        check_chain(&chain).map_err(at_certificate)?;
        let (names, valid) = facts(&chain[0]).map_err(at_certificate)?;
        let key = read_key(&files.key).map_err(|why| match why {
            Why::NoKey if files.key == files.certificate => at_key(Why::NoKeyInside),
            why => at_key(why),
        })?;
        let mut key = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => at_key(Why::OtherKey(files.certificate.clone())),
            Error::InvalidCertificate(_) => at_certificate(Why::Certificate(error.to_string())),
            error => at_key(Why::Key(error)),
        })?;
        key.ocsp = read_ocsp(&files.ocsp())?;
        Ok(Self {
            file: files.certificate.clone(),
            key: Arc::new(key),
            names,
            valid,
        })
    }
}

/// Returns the certificates in a file, at least one.
///
/// # Errors
/// Returns the first fault of the file.
pub(super) fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadFile> {
    read_certificates(path).map_err(|why| BadFile::new(path, why))
}

/// Returns the certificates of a file. There is at least one.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Why> {
    let (text, _) = read(path, FILE_MAX_BYTES)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates = certificates.map_err(Why::Pem)?;
    if certificates.is_empty() {
        return Err(missing(&text, Why::NoCertificate));
    }
    Ok(certificates)
}

/// Checks what clients are sent, except for the first certificate.
fn check_chain(chain: &[CertificateDer<'_>]) -> Result<(), Why> {
    let bytes = chain.iter().map(|one| one.len()).sum();
    if bytes > CHAIN_MAX_BYTES {
        let certificates = chain.len();
        return Err(Why::ChainTooLong { certificates, bytes });
    }
    for (position, one) in chain.iter().enumerate().skip(1) {
        Certificate::from_der(one).map_err(|error| Why::Chain(position + 1, error.to_string()))?;
    }
    Ok(())
}

impl PairFiles {
    /// Returns the file of the answer about the certificate, which need not exist.
    pub(super) fn ocsp(&self) -> PathBuf {
        let mut name = self.certificate.clone().into_os_string();
        name.push(".ocsp");
        name.into()
    }
}

/// Reads an answer of an OCSP responder, if there is one. Clients check its signature and its time.
fn read_ocsp(path: &Path) -> Result<Option<Vec<u8>>, BadFile> {
    match read(path, OCSP_MAX_BYTES) {
        Ok((answer, _)) if is_ocsp_answer(&answer) => Ok(Some(answer)),
        Ok(_) | Err(Why::Read(Unreadable::TooLong(_))) => Err(BadFile::new(path, Why::Ocsp)),
        Err(Why::Read(Unreadable::Failed(error))) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(BadFile::new(path, why)),
    }
}

/// Returns whether this is an `OCSPResponse` with the status `successful` (RFC 6960, 4.2.1).
fn is_ocsp_answer(answer: &[u8]) -> bool {
    const SUCCESSFUL: &[u8] = &[0x0a, 1, 0];
    let parts = |answer| {
        AnyRef::from_der(answer)
            .ok()
            .filter(|whole| whole.tag() == Tag::Sequence)
    };
    parts(answer).is_some_and(|whole| {
        let body = whole.value().strip_prefix(SUCCESSFUL);
        body.is_some_and(|body| body.starts_with(&[0xa0]) && AnyRef::from_der(body).is_ok())
    })
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Why> {
    let (text, mode) = read(path, FILE_MAX_BYTES)?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        _ if is_encrypted(&text) => Why::EncryptedKey,
        pem::Error::NoItemsFound => missing(&text, Why::NoKey),
        error => Why::Pem(error),
    })?;
    if mode & READ_BY_OTHERS != 0 {
        return Err(Why::ReadByOthers);
    }
    Ok(key)
}

/// Returns why a file has nothing in PEM.
fn missing(text: &[u8], why: Why) -> Why {
    if text.first() == Some(&SEQUENCE) {
        return Why::Binary;
    }
    why
}

/// Returns whether a file has an encrypted key: in PKCS#8, or as OpenSSL wrote keys before.
fn is_encrypted(text: &[u8]) -> bool {
    let has = |marker: &[u8]| text.windows(marker.len()).any(|part| part == marker);
    has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED")
}

/// Returns the content of a file in PEM, and its mode.
fn read(path: &Path, max_bytes: usize) -> Result<(Vec<u8>, u32), Why> {
    let NamedFile { mut text, mode } = named_file::read_bytes(path, max_bytes).map_err(Why::Read)?;
    // Some editors write it. The first line would not be found.
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    Ok((text, mode))
}

/// Returns when a certificate stops to be valid.
pub(super) fn expiry(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    facts(certificate).ok().map(|(_, valid)| valid.to)
}

/// Returns the names of hosts in a certificate, and when it is valid.
fn facts(certificate: &CertificateDer<'_>) -> Result<(Vec<Box<str>>, Validity), Why> {
    let parsed = Certificate::from_der(certificate).map_err(|error| Why::Certificate(error.to_string()))?;
    let parsed = parsed.tbs_certificate();
    if parsed.version() == Version::V1 {
        return Err(Why::Version1);
    }
    let names = parsed.get_extension::<SubjectAltName>();
    let names = names.map_err(|error| Why::Certificate(error.to_string()))?;
    let names = names.into_iter().flat_map(|(_, names)| names.0);
    let names = names.filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase().into_boxed_str()),
        _ => None,
    });
    let time = |since_1970: Duration| SystemTime::UNIX_EPOCH + since_1970;
    let validity = parsed.validity();
    let valid = Validity {
        from: time(validity.not_before.to_unix_duration()),
        to: time(validity.not_after.to_unix_duration()),
    };
    Ok((names.collect(), valid))
}

impl BadFile {
    pub(super) fn new(file: &Path, why: Why) -> Self {
        Self {
            file: file.to_owned(),
            why,
        }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }
}

impl BadFile {
    /// Describes a fault of a folder.
    fn fmt_folder(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.why {
            Why::TooMany => write!(
                f,
                "{file} has more than {PAIRS_MAX} certificates: spread them over several services"
            ),
            Why::KeyAlone => {
                let name = self.file.with_extension("");
                let name = name.file_name().unwrap_or_default().display();
                write!(
                    f,
                    "{file} is the key of no certificate: expected {name}.pem, {name}.crt or {name}.cert beside it"
                )
            }
            _ => write!(
                f,
                "{file} has no certificate: expected NAME.pem, NAME.crt or NAME.cert, with its key in NAME.key or in \
                 the same file"
            ),
        }
    }
}

impl Display for BadFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.why {
            Why::Read(error) => write!(f, "cannot read {file}: {error}"),
            Why::TooMany | Why::KeyAlone | Why::Empty => self.fmt_folder(f),
            Why::ReadByOthers => write!(
                f,
                "every user can read the private key in {file}: run `chmod o= {file}`"
            ),
            Why::Binary => write!(
                f,
                "{file} is in DER or PKCS#12: expected PEM, which `openssl x509 -inform DER`, `openssl pkey -inform \
                 DER` or `openssl pkcs12 -nodes` writes"
            ),
            Why::Pem(error) => {
                write!(f, "{file} is not valid PEM: ")?;
                describe(error, f)
            }
            Why::NoCertificate => write!(
                f,
                "{file} has no certificate: expected a line `-----BEGIN CERTIFICATE-----`"
            ),
            Why::NoKey => write!(
                f,
                "{file} has no private key: expected a line such as `-----BEGIN PRIVATE KEY-----`"
            ),
            Why::NoKeyInside => write!(
                f,
                "{file} has a certificate and no private key: give --tls-key too, or one file with both (in a folder, \
                 NAME.key beside the certificate)"
            ),
            Why::EncryptedKey => write!(
                f,
                "the private key in {file} is encrypted: `openssl pkey -in {file} -out NEW` writes it without a password"
            ),
            Why::ChainTooLong { certificates, bytes } => write!(
                f,
                "{file} has {} KiB of certificates ({certificates}), and clients refuse more than {} KiB: expected the \
                 server's own certificate and its chain",
                bytes >> 10,
                CHAIN_MAX_BYTES >> 10
            ),
            Why::Version1 => write!(
                f,
                "the certificate in {file} is of version 1, which has no names of hosts: `openssl x509 -req -extfile` \
                 makes one with the extension subjectAltName"
            ),
            Why::Chain(number, why) => write!(f, "certificate {number} in {file} is not valid: {why}"),
            Why::Certificate(why) => write!(f, "the certificate in {file} is not valid: {why}"),
            Why::Key(error) => write!(
                f,
                "the private key in {file} cannot be used: expected RSA with 2048 to 8192 bits, ECDSA with P-256, P-384 \
                 or P-521, or Ed25519 ({error})"
            ),
            Why::Ocsp => write!(
                f,
                "{file} is no successful answer of an OCSP responder, in DER, of at most {} KiB: `openssl ocsp … -respout \
                 {file}` writes one, and without the file none is sent",
                OCSP_MAX_BYTES >> 10
            ),
            Why::OtherKey(certificate) => write!(
                f,
                "the key in {file} does not belong to the first certificate in {}: the server's own certificate comes \
                 first, and then its chain",
                certificate.display()
            ),
        }
    }
}

fn describe(error: &pem::Error, f: &mut Formatter<'_>) -> fmt::Result {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            let label = String::from_utf8_lossy(end_marker);
            write!(f, "it ends before the line `-----END {}-----`", reason(&label))
        }
        pem::Error::IllegalSectionStart { line } => {
            let line = String::from_utf8_lossy(line);
            write!(f, "expected a line `-----BEGIN …-----` in place of `{}`", reason(&line))
        }
        pem::Error::Base64Decode(why) => write!(f, "a line between BEGIN and END is not base64: {why}"),
        error => error.fmt(f),
    }
}

#[cfg(test)]
pub(crate) mod tests;
