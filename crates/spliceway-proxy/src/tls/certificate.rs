//! A certificate and its private key, from PEM files.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The longest file that is read. A chain of certificates has a few KiB.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// The permission of everybody to read a file.
const READ_BY_OTHERS: u32 = 0o004;

/// The files of a certificate with its chain, and of its key. Both may be the same file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PairFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// A certificate, its chain and its key.
#[derive(Debug)]
pub(crate) struct Pair {
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
enum Why {
    Read(io::Error),
    TooLong,
    ReadByOthers,
    Pem(pem::Error),
    NoCertificate,
    NoKey,
    EncryptedKey,
    Certificate(String),
    Key(Error),
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
        let chain = read_chain(&files.certificate)?;
        let (names, valid) = facts(&chain[0]).map_err(|why| at_certificate(Why::Certificate(why)))?;
        let key = read_key(&files.key).map_err(at_key)?;
        let key = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => at_key(Why::OtherKey(files.certificate.clone())),
            Error::InvalidCertificate(_) => at_certificate(Why::Certificate(error.to_string())),
            error => at_key(Why::Key(error)),
        })?;
        Ok(Self {
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
    let certificates = read(path).and_then(|(text, _)| {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let chain = chain.map_err(Why::Pem)?;
        if chain.is_empty() {
            Err(Why::NoCertificate)
        } else {
            Ok(chain)
        }
    });
    certificates.map_err(|why| BadFile::new(path, why))
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Why> {
    let (text, mode) = read(path)?;
    if mode & READ_BY_OTHERS != 0 {
        return Err(Why::ReadByOthers);
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound if is_encrypted(&text) => Why::EncryptedKey,
        pem::Error::NoItemsFound => Why::NoKey,
        error => Why::Pem(error),
    })
}

/// Returns whether a file has an encrypted key: in PKCS#8, or as OpenSSL wrote keys before.
fn is_encrypted(text: &[u8]) -> bool {
    let has = |marker: &[u8]| text.windows(marker.len()).any(|part| part == marker);
    has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED")
}

/// Returns the content of a file, and its mode.
fn read(path: &Path) -> Result<(Vec<u8>, u32), Why> {
    let file = File::open(path).map_err(Why::Read)?;
    let mode = file.metadata().map_err(Why::Read)?.permissions().mode();
    let mut text = Vec::new();
    let mut bounded = file.take(FILE_MAX_BYTES + 1);
    bounded.read_to_end(&mut text).map_err(Why::Read)?;
    if text.len() as u64 > FILE_MAX_BYTES {
        return Err(Why::TooLong);
    }
    Ok((text, mode))
}

/// Returns when a certificate stops to be valid.
pub(super) fn expiry(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    facts(certificate).ok().map(|(_, valid)| valid.to)
}

/// Returns the names of hosts in a certificate, and when it is valid.
fn facts(certificate: &CertificateDer<'_>) -> Result<(Vec<Box<str>>, Validity), String> {
    let parsed = x509_cert::Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    let parsed = parsed.tbs_certificate();
    let names = parsed.get_extension::<SubjectAltName>();
    let names = names.map_err(|error| error.to_string())?;
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
    fn new(file: &Path, why: Why) -> Self {
        Self {
            file: file.to_owned(),
            why,
        }
    }
}

impl Display for BadFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.why {
            Why::Read(error) => write!(f, "cannot read {file}: {error}"),
            Why::TooLong => write!(
                f,
                "{file} is longer than {} KiB: expected a file in PEM",
                FILE_MAX_BYTES >> 10
            ),
            Why::ReadByOthers => write!(
                f,
                "every user can read the private key in {file}: run `chmod o= {file}`"
            ),
            Why::Pem(error) => write!(f, "{file} is not valid PEM: {error:?}"),
            Why::NoCertificate => write!(
                f,
                "{file} has no certificate: expected a line `-----BEGIN CERTIFICATE-----`"
            ),
            Why::NoKey => write!(
                f,
                "{file} has no private key: expected a line such as `-----BEGIN PRIVATE KEY-----`"
            ),
            Why::EncryptedKey => write!(
                f,
                "the private key in {file} is encrypted: `openssl pkey -in {file} -out NEW` writes it without a password"
            ),
            Why::Certificate(why) => write!(f, "the certificate in {file} is not valid: {why}"),
            Why::Key(error) => write!(f, "the private key in {file} cannot be used: {error}"),
            Why::OtherKey(certificate) => write!(
                f,
                "the key in {file} does not belong to the first certificate in {}: the server's own certificate comes \
                 first, and then its chain",
                certificate.display()
            ),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
