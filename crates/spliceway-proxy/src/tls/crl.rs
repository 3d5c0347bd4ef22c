//! The lists of revoked certificates (CRLs) in force: the newest of each CA.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateRevocationListDer;
use x509_cert::certificate::Rfc5280;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::name::Name;

use super::certificate::{BadFile, Why, read};
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
    /// When it expires.
    pub(super) next_update: SystemTime,
    scope: Scope,
    age: Age,
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

impl Crl {
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
            next_update: SystemTime::UNIX_EPOCH + next_update.to_unix_duration(),
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
