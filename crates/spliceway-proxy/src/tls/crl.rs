//! The lists of revoked certificates (CRLs) in force: the newest of each CA.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateRevocationListDer, TrustAnchor};
use x509_cert::certificate::Rfc5280;
use x509_cert::crl::CertificateList;
use x509_cert::der::asn1::{AnyRef, BitStringRef, ObjectIdentifier};
use x509_cert::der::{self, Decode, Reader, SliceReader};
use x509_cert::name::Name;

use super::certificate::{BadFile, Validity, Why, read};
use super::chain::{Doubt, Link, What, doubt_about_crl};
use super::pem;

/// The longest file of revoked certificates that is read. It has room for a million of them.
const FILE_MAX_BYTES: usize = 64 << 20;
/// Extensions of a list (RFC 5280, section 5.2).
const NUMBER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.20");
const DISTRIBUTION_POINT: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.28");

/// A list of revoked certificates, and where it is.
#[derive(Debug)]
pub(super) struct Crl {
    pub(super) file: PathBuf,
    /// The line in which it begins.
    pub(super) line: usize,
    pub(super) list: CertificateRevocationListDer<'static>,
    /// From its time to that of the next one, when it expires.
    pub(super) valid: Validity,
    /// The number of certificates that are revoked.
    pub(super) revoked: usize,
    scope: Scope,
    age: Age,
}

/// A CA, and where its certificate is.
pub(super) struct Ca {
    pub(super) file: PathBuf,
    pub(super) link: Link,
    pub(super) anchor: TrustAnchor<'static>,
}

/// The certificates that a list is about: those of a CA, or those with one distribution point.
#[derive(Debug, PartialEq, Eq)]
struct Scope {
    issuer: Name,
    distribution_point: Option<Box<[u8]>>,
}

/// Grows from one list of a CA to the next.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Age {
    this_update: Duration,
    /// The length of the number in DER, and the number.
    number: Option<(usize, Box<[u8]>)>,
}

/// Reads the lists in a file. There is at least one.
///
/// # Errors
/// Returns the first fault of the file.
pub(super) fn read_crls(path: &Path) -> Result<Vec<Crl>, BadFile> {
    let lists = read(path, FILE_MAX_BYTES).and_then(|(text, _)| pem::crls(&text).map_err(Why::Pem));
    let lists = lists.map_err(|why| BadFile::new(path, why))?;
    let crl = |(line, list)| {
        let crl = Crl::new(path, line, list);
        crl.map_err(|why| BadFile::new(path, Why::Crl(line, why)))
    };
    lists.into_iter().map(crl).collect()
}

/// Returns the newest list of each CA. The verifier uses only one of them, and an old one may lack
/// certificates that the CA has revoked since.
pub(super) fn newest(all: impl IntoIterator<Item = Crl>) -> Vec<Crl> {
    let mut newest = Vec::<Crl>::new();
    for crl in all {
        match newest.iter_mut().find(|known| known.scope == crl.scope) {
            Some(known) if known.age < crl.age => *known = crl,
            Some(_) => {}
            None => newest.push(crl),
        }
    }
    newest
}

/// Returns what is doubtful about these lists, and about the CAs that need them. With at least one
/// list, a client is refused if a CA of its chain has none, or one that has expired.
pub(super) fn doubts(crls: &[Crl], cas: &[Ca], provider: &CryptoProvider, now: SystemTime) -> Vec<Doubt> {
    if crls.is_empty() {
        return Vec::new();
    }
    let has_list = |ca: &Ca| crls.iter().any(|crl| crl.scope.issuer == ca.link.subject);
    let all_have_lists = cas.iter().all(has_list);
    let mut doubts = Vec::new();
    for crl in crls {
        let doubt = |what| Doubt::new(&crl.file, crl.line, what);
        let issuer = &crl.scope.issuer;
        let mut issuers = cas.iter().filter(|ca| ca.link.subject == *issuer).peekable();
        if issuers.peek().is_some() {
            let is_signed = issuers.any(|ca| crl.is_signed_by(&ca.anchor, provider).unwrap_or(false));
            doubts.extend((!is_signed).then(|| doubt(What::CrlOfOtherKey(issuer.to_string()))));
        } else if !all_have_lists {
            // Otherwise, it is that of a CA between those of the files and the clients.
            doubts.push(doubt(What::CrlOfUnknownCa(issuer.to_string())));
        }
        doubts.extend(doubt_about_crl(crl.valid, now).map(doubt));
    }
    let without = cas.iter().filter(|ca| !has_list(ca));
    doubts.extend(without.map(|ca| {
        let what = What::CaWithoutCrl(ca.link.subject.to_string());
        Doubt::new(&ca.file, ca.link.line, what)
    }));
    doubts
}

impl Crl {
    pub(super) fn issuer(&self) -> &Name {
        &self.scope.issuer
    }

    /// Returns whether the key of a CA has signed the list, by an algorithm that the verifier
    /// knows. It verifies the signature only when a client comes.
    fn is_signed_by(&self, ca: &TrustAnchor<'_>, provider: &CryptoProvider) -> der::Result<bool> {
        let list = AnyRef::from_der(&self.list)?;
        let mut list = SliceReader::new(list.value())?;
        let content = list.tlv_bytes()?;
        let signed_by = AnyRef::decode(&mut list)?;
        let signature = BitStringRef::decode(&mut list)?;
        let mut key = SliceReader::new(&ca.subject_public_key_info)?;
        let kind = AnyRef::decode(&mut key)?;
        let key = BitStringRef::decode(&mut key)?;
        let algorithms = provider.signature_verification_algorithms.all.iter();
        let mut fitting = algorithms.filter(|algorithm| {
            *algorithm.signature_alg_id() == *signed_by.value() && *algorithm.public_key_alg_id() == *kind.value()
        });
        let (key, signature) = (key.raw_bytes(), signature.raw_bytes());
        Ok(fitting.any(|algorithm| algorithm.verify_signature(key, content, signature).is_ok()))
    }

    fn new(file: &Path, line: usize, list: CertificateRevocationListDer<'static>) -> Result<Self, String> {
        let parsed = CertificateList::<Rfc5280>::from_der(&list).map_err(|error| error.to_string())?;
        let parsed = parsed.tbs_cert_list;
        let next_update = parsed.next_update.ok_or("it has no time of the next update")?;
        let extension = |id| {
            let mut all = parsed.crl_extensions.iter().flatten();
            let found = all.find(|extension| extension.extn_id == id)?;
            Some(Box::from(found.extn_value.as_bytes()))
        };
        let number: Option<Box<[u8]>> = extension(NUMBER);
        Ok(Self {
            file: file.to_owned(),
            line,
            valid: Validity {
                from: SystemTime::UNIX_EPOCH + parsed.this_update.to_unix_duration(),
                to: SystemTime::UNIX_EPOCH + next_update.to_unix_duration(),
            },
            revoked: parsed.revoked_certificates.map_or(0, |revoked| revoked.len()),
            scope: Scope {
                distribution_point: extension(DISTRIBUTION_POINT),
                issuer: parsed.issuer,
            },
            age: Age {
                this_update: parsed.this_update.to_unix_duration(),
                number: number.map(|number| (number.len(), number)),
            },
            list,
        })
    }
}
