//! A certificate and its private key, from PEM files.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use super::bad_crl::BadCrl;
pub(super) use super::chain::Validity;
use super::chain::{self, Doubt, Link};
use super::issuers::NotAnIssuer;
use super::ocsp;
use super::pem;
use super::rsa;
use super::ticket_file;
use crate::kit::named_file::{self, NamedFile, Unreadable};
use crate::kit::tls_error::fault;
use spliceway_protocol::pem::Fault;

/// The longest file that is read. A chain of certificates has a few KiB.
pub(super) const FILE_MAX_BYTES: usize = 1 << 20;
/// The longest certificate with its chain. Most clients accept 64 KiB for the whole message.
const CHAIN_MAX_BYTES: usize = 60 << 10;
/// The most certificates in a folder. Reading this number takes some seconds of a thread that
/// serves no session, and each certificate holds about 5 KiB.
pub(super) const PAIRS_MAX: usize = 10_000;
/// The permission of everybody to read a file.
pub(super) const READ_BY_OTHERS: u32 = 0o004;
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
    pub(super) file: PathBuf,
    pub(crate) key: Arc<CertifiedKey>,
    stapled: Option<Stapled>,
    /// The names of hosts in the certificate, in lower case. A wildcard begins with `*.`.
    pub(crate) names: Vec<Box<str>>,
    /// Names of other kinds, such as addresses and URIs, in DER.
    pub(super) other_names: Vec<Box<[u8]>>,
    pub(super) valid: Validity,
    /// What clients may refuse.
    pub(super) doubts: Vec<Doubt>,
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
    /// ACME has issued the certificate, and its file is gone.
    Removed,
    /// The folder has too many certificates.
    TooMany,
    /// The folder has no certificate for this key.
    KeyAlone,
    /// The folder has no certificate.
    Empty,
    ReadByOthers,
    Pem(Fault),
    TicketKeys(ticket_file::Fault),
    /// The key was expected in the file of the certificate.
    NoKeyInside,
    ChainTooLong {
        certificates: usize,
        bytes: usize,
    },
    /// The certificate in this line has no room for names.
    Version1(usize),
    /// The certificate in this line is not valid.
    Certificate(usize, String),
    /// The certificate in this line cannot be that of a CA.
    NotCa(usize, NotAnIssuer),
    /// The list of revoked certificates in this line cannot be used.
    Crl(usize, BadCrl),
    /// The key in this line cannot be used. An RSA key has this number of bits.
    Key(usize, Error, Option<usize>),
    /// The key in this line does not belong to the first certificate in a file. It may belong to
    /// the one in another line.
    OtherKey {
        line: usize,
        certificate: PathBuf,
        own: Option<usize>,
    },
}

impl Pair {
    /// Reads a certificate, its chain and its key.
    ///
    /// # Errors
    /// Returns the first fault of the files.
    pub(super) fn read(files: &PairFiles, provider: &CryptoProvider) -> Result<Self, BadFile> {
        let at_certificate = |why| BadFile::new(&files.certificate, why);
        let at_key = |why| BadFile::new(&files.key, why);
        let found = read_certificates(&files.certificate).map_err(at_certificate)?;
        let links = check_chain(&found).map_err(at_certificate)?;
        let (line, key) = read_key(&files.key).map_err(|why| match why {
            Why::Pem(fault) if files.key == files.certificate && fault.has_certificates_only() => {
                at_key(Why::NoKeyInside)
            }
            why => at_key(why),
        })?;
        let belongs = |chain: &[(usize, CertificateDer<'static>)]| {
            let chain = chain.iter().map(|(_, one)| one.clone()).collect();
            CertifiedKey::from_der(chain, key.clone_key(), provider)
        };
        let certified = belongs(&found).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => at_key(Why::OtherKey {
                line,
                certificate: files.certificate.clone(),
                own: found
                    .iter()
                    .find_map(|one| belongs(slice::from_ref(one)).ok().map(|_| one.0)),
            }),
            Error::InvalidCertificate(_) => at_certificate(Why::Certificate(found[0].0, fault(&error))),
            error => at_key(Why::Key(line, error, rsa::bits(&key))),
        })?;
        let mut doubts = chain::doubts(&files.certificate, &links, SystemTime::now());
        let stapled = Stapled::read(&files.ocsp(), &certified, &links[0], &mut doubts)?;
        Ok(Self {
            file: files.certificate.clone(),
            key: Arc::new(certified),
            stapled,
            names: links[0].names.clone(),
            other_names: links[0].other_names.clone(),
            valid: links[0].valid,
            doubts,
        })
    }
}

/// Returns the certificates in a file, at least one, each with the line in which it begins.
///
/// # Errors
/// Returns the first fault of the file.
pub(super) fn read_chain(path: &Path) -> Result<Vec<(usize, CertificateDer<'static>)>, BadFile> {
    read_certificates(path).map_err(|why| BadFile::new(path, why))
}

fn read_certificates(path: &Path) -> Result<Vec<(usize, CertificateDer<'static>)>, Why> {
    let (text, _) = read(path, FILE_MAX_BYTES)?;
    pem::certificates(&text).map_err(Why::Pem)
}

/// Checks what clients are sent.
fn check_chain(chain: &[(usize, CertificateDer<'_>)]) -> Result<Vec<Link>, Why> {
    let bytes = chain.iter().map(|(_, one)| one.len()).sum();
    if bytes > CHAIN_MAX_BYTES {
        let certificates = chain.len();
        return Err(Why::ChainTooLong { certificates, bytes });
    }
    let link = |(line, one): &(usize, _)| Link::read(*line, one).map_err(|why| Why::Certificate(*line, why));
    let links: Vec<_> = chain.iter().map(link).collect::<Result<_, _>>()?;
    match links.first() {
        Some(own) if own.is_version_1 => Err(Why::Version1(own.line)),
        _ => Ok(links),
    }
}

impl PairFiles {
    /// Returns the file of the answer about the certificate, which need not exist.
    pub(super) fn ocsp(&self) -> PathBuf {
        let mut name = self.certificate.clone().into_os_string();
        name.push(".ocsp");
        name.into()
    }
}

/// An answer about a certificate, until it expires.
#[derive(Debug)]
struct Stapled {
    key: Arc<CertifiedKey>,
    expires: Option<SystemTime>,
}

impl Stapled {
    /// Reads the answer in this file, if there is one that clients accept now. Another content is
    /// only doubtful, as in HAProxy: clients need no answer, and a new certificate must not wait
    /// for one. A file that cannot be read is an error, because nothing is known about it.
    fn read(path: &Path, key: &CertifiedKey, own: &Link, doubts: &mut Vec<Doubt>) -> Result<Option<Self>, BadFile> {
        let mut damaged = || doubts.push(chain::doubt_about_damage(path));
        let answer = match read(path, ocsp::ANSWER_MAX_BYTES) {
            Ok((answer, _)) => answer,
            Err(Why::Read(Unreadable::TooLong(_))) => {
                damaged();
                return Ok(None);
            }
            Err(Why::Read(Unreadable::Failed(error))) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(why) => return Err(BadFile::new(path, why)),
        };
        let Some(statement) = ocsp::read(&answer, &own.serial) else {
            damaged();
            return Ok(None);
        };
        match chain::doubt_about_answer(path, statement, SystemTime::now()) {
            Some(doubt) => {
                doubts.push(doubt);
                Ok(None)
            }
            None => {
                let mut key = key.clone();
                key.ocsp = Some(answer);
                Ok(Some(Self {
                    key: Arc::new(key),
                    expires: statement.and_then(|statement| statement.expires),
                }))
            }
        }
    }
}

impl Pair {
    /// Returns what a client gets at this time: with the answer about the certificate if there is
    /// one.
    pub(super) fn to_send(&self, now: SystemTime) -> &Arc<CertifiedKey> {
        let stapled = self.stapled.as_ref();
        let stapled = stapled.filter(|stapled| stapled.expires.is_none_or(|expires| now < expires));
        stapled.map_or(&self.key, |stapled| &stapled.key)
    }
}

/// Returns the key, and the line in which it begins.
fn read_key(path: &Path) -> Result<(usize, PrivateKeyDer<'static>), Why> {
    let (text, mode) = read(path, FILE_MAX_BYTES)?;
    let key = pem::key(&text).map_err(Why::Pem)?;
    if mode & READ_BY_OTHERS != 0 {
        return Err(Why::ReadByOthers);
    }
    Ok(key)
}

/// Returns the content of a file in PEM, and its mode.
pub(super) fn read(path: &Path, max_bytes: usize) -> Result<(Vec<u8>, u32), Why> {
    let NamedFile { mut text, rights } = named_file::read_bytes(path, max_bytes).map_err(Why::Read)?;
    // Some editors write it. The first line would not be found.
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    Ok((text, rights.mode))
}

/// Returns when a certificate stops to be valid.
pub(super) fn expiry(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    Link::read(1, certificate).ok().map(|link| link.valid.to)
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

    /// Describes a key of another certificate.
    fn fmt_other_key(&self, f: &mut Formatter<'_>, line: usize, certificate: &Path, own: Option<usize>) -> fmt::Result {
        let (file, certificate) = (self.file.display(), certificate.display());
        write!(
            f,
            "{file}:{line}: the private key does not belong to the first certificate in {certificate}: "
        )?;
        match own {
            Some(own) => write!(
                f,
                "it belongs to the one in line {own}, which must come first, before its chain"
            ),
            None => write!(
                f,
                "expected the key for which `openssl pkey -pubout -in {file}` prints the same as `openssl x509 -pubkey \
                 -noout -in {certificate}`"
            ),
        }
    }
}

impl Display for BadFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.why {
            Why::Read(error @ Unreadable::Kind(_)) => write!(
                f,
                "cannot read {file}: {error}: expected a file, because only --tls-dir takes a folder"
            ),
            Why::Read(error) => write!(f, "cannot read {file}: {error}"),
            Why::Removed => write!(
                f,
                "{file} was removed: put it back, or wait until ACME has issued another certificate"
            ),
            Why::TooMany | Why::KeyAlone | Why::Empty => self.fmt_folder(f),
            Why::ReadByOthers => write!(
                f,
                "every user can read the private key in {file}: run `chmod o= {file}`"
            ),
            Why::Pem(fault) => fault.of(&file).fmt(f),
            Why::TicketKeys(fault) => fault.of(&file).fmt(f),
            Why::NoKeyInside => write!(
                f,
                "{file} has a certificate and no private key: give --tls-key too, or one file with both (in a folder, \
                 NAME.key beside the certificate)"
            ),
            Why::ChainTooLong { certificates, bytes } => write!(
                f,
                "{file} has {} KiB of certificates ({certificates}), and clients refuse more than {} KiB: expected the \
                 server's own certificate and its chain",
                bytes >> 10,
                CHAIN_MAX_BYTES >> 10
            ),
            Why::Version1(line) => write!(
                f,
                "{file}:{line}: the certificate is of version 1, which has no names of hosts: `openssl x509 -req \
                 -extfile` makes one with the extension subjectAltName"
            ),
            Why::Certificate(line, why) => write!(
                f,
                "{file}:{line}: the certificate is damaged ({why}): copy the file again"
            ),
            Why::NotCa(line, why) => write!(
                f,
                "{file}:{line}: the certificate cannot have issued others, because {why}: expected that of the CA. To \
                 permit a single certificate, give its fingerprint as tls_client_allow"
            ),
            Why::Crl(line, why) => write!(f, "{file}:{line}: {why}"),
            Why::Key(line, _, Some(bits)) if !rsa::BITS.contains(bits) => write!(
                f,
                "{file}:{line}: the private key is RSA with {bits} bits, and clients expect {} to {}: make a new one, \
                 such as by `openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out {file}`, and let the CA \
                 issue a certificate for it",
                rsa::BITS.start(),
                rsa::BITS.end()
            ),
            Why::Key(line, error, _) => write!(
                f,
                "{file}:{line}: the private key cannot be used ({}): expected RSA with 2048 to 8192 bits, ECDSA with \
                 P-256, P-384 or P-521, or Ed25519. If it is one of them, the file is damaged: copy it again",
                fault(error)
            ),
            Why::OtherKey { line, certificate, own } => self.fmt_other_key(f, *line, certificate, *own),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
