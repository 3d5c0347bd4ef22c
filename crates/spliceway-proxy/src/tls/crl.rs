//! The lists of revoked certificates (CRLs), and which certificates they refuse.
//!
//! A list is about a certificate if the issuer has its name and has signed it: several CAs may have
//! one name. A certificate is revoked if any such list has its number. Otherwise, it needs one that
//! covers it and has not expired. A list for a later time does not count before.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateRevocationListDer, TrustAnchor, UnixTime};
use webpki::{BorrowedCertRevocationList, Cert, CertRevocationList, Error, VerifiedPath};
use x509_cert::Certificate;
use x509_cert::certificate::Rfc5280;
use x509_cert::crl::CertificateList;
use x509_cert::der::asn1::{AnyRef, BitStringRef, ObjectIdentifier};
use x509_cert::der::{self, Decode, Reader, SliceReader};
use x509_cert::ext::pkix::CrlDistributionPoints;
use x509_cert::ext::pkix::crl::dp::{DistributionPoint, IssuingDistributionPoint};
use x509_cert::ext::pkix::name::{DistributionPointName, GeneralName};
use x509_cert::name::Name;

use super::bad_crl::BadCrl;
use super::certificate::{BadFile, Validity, Why, read};
use super::chain::{Doubt, Link, What, doubt_about_crl};
use super::issuers::Authority;
use super::pem;

/// The longest file of revoked certificates that is read. It has room for a million of them.
const FILE_MAX_BYTES: usize = 64 << 20;
/// Extensions of a list (RFC 5280, section 5.2).
const NUMBER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.20");
const DISTRIBUTION_POINT: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.28");
const ISSUER_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.35");

/// A list of revoked certificates, and where it is.
#[derive(Debug)]
pub(super) struct Crl {
    pub(super) file: PathBuf,
    /// The line in which it begins.
    pub(super) line: usize,
    pub(super) list: CertificateRevocationListDer<'static>,
    /// From its time to that of the next one, when it expires.
    pub(super) valid: Validity,
    /// When a newer list takes its place.
    replaced: Option<SystemTime>,
    /// The numbers of the certificates that are revoked, in order.
    pub(super) revoked: Vec<Box<[u8]>>,
    /// The key that has signed the list, as soon as a CA with the name of the issuer has had it.
    signer: OnceLock<Box<[u8]>>,
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
    /// The name of the issuer in DER, without its tag and its length.
    issuer_der: Box<[u8]>,
    /// The name that the list has for the key of the issuer.
    key: Option<Box<[u8]>>,
    distribution_point: Option<IssuingDistributionPoint>,
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

/// Returns the newest list of each CA and distribution point, in the order of their issuers. The
/// newest one of those for a later time replaces it only then.
pub(super) fn newest(all: Vec<Crl>, cas: &[Ca], provider: &CryptoProvider, now: SystemTime) -> Vec<Crl> {
    let mut newest = Vec::<Crl>::new();
    for crl in all {
        cas.iter().any(|ca| crl.is_of(ca, provider));
        let is_early = crl.valid.from > now;
        let mut all_known = newest.iter_mut().filter(|known| known.is_like(&crl));
        match all_known.find(|known| (known.valid.from > now) == is_early) {
            Some(known) if known.age < crl.age => *known = crl,
            Some(_) => {}
            None => newest.push(crl),
        }
    }
    for at in 0..newest.len() {
        let one = &newest[at];
        let is_next = |other: &&Crl| one.valid.from <= now && now < other.valid.from && one.is_like(other);
        newest[at].replaced = newest.iter().find(is_next).map(|next| next.valid.from);
    }
    newest.sort_by(|one, other| one.scope.issuer_der.cmp(&other.scope.issuer_der));
    newest
}

/// Checks the certificates of a path against lists in the order of their issuers.
///
/// # Errors
/// A certificate is revoked, or no list says that it is not.
pub(super) fn check(
    crls: &[Crl],
    path: &VerifiedPath<'_>,
    now: UnixTime,
    provider: &CryptoProvider,
) -> Result<(), Error> {
    if crls.is_empty() {
        return Ok(());
    }
    let mut own = true;
    let mut certificate: &Cert<'_> = path.end_entity();
    for issuer in path.intermediate_certificates() {
        let authority = Authority::read(&issuer.der());
        if !authority.is_ok_and(|authority| authority.signs_crls) {
            return Err(Error::UnknownRevocationStatus);
        }
        let key = issuer.subject_public_key_info();
        let key = AnyRef::from_der(&key).map_err(|_| Error::BadDer)?;
        check_one(crls, certificate, !own, key.value(), now, provider)?;
        (own, certificate) = (false, issuer);
    }
    check_one(
        crls,
        certificate,
        !own,
        &path.anchor().subject_public_key_info,
        now,
        provider,
    )
}

/// Checks a certificate whose issuer has this key.
fn check_one(
    crls: &[Crl],
    certificate: &Cert<'_>,
    is_ca: bool,
    key: &[u8],
    now: UnixTime,
    provider: &CryptoProvider,
) -> Result<(), Error> {
    let first = crls.partition_point(|crl| *crl.scope.issuer_der < *certificate.issuer());
    let of_issuer = crls[first..].iter();
    let of_issuer = of_issuer.take_while(|crl| *crl.scope.issuer_der == *certificate.issuer());
    let mut status = Err(Error::UnknownRevocationStatus);
    for crl in of_issuer.filter(|crl| crl.counts(now) && crl.is_signed_by(key, provider)) {
        if crl
            .revoked
            .binary_search_by(|serial| (**serial).cmp(certificate.serial()))
            .is_ok()
        {
            return Err(Error::CertRevoked);
        }
        if status.is_err() && crl.covers(certificate, is_ca) {
            status = crl.check_time(now);
        }
    }
    status
}

/// Returns what is doubtful about these lists, and about the CAs that need them. With at least one
/// list, a client is refused if a CA of its chain has none, or one that has expired.
pub(super) fn doubts(crls: &[Crl], cas: &[Ca], provider: &CryptoProvider, now: SystemTime) -> Vec<Doubt> {
    if crls.is_empty() {
        return Vec::new();
    }
    let is_early = |crl: &Crl| crl.valid.from > now;
    let has_list = |ca: &Ca| crls.iter().any(|crl| !is_early(crl) && crl.is_of(ca, provider));
    let all_have_lists = cas.iter().all(has_list);
    // A list whose signer is no CA of the files.
    let is_foreign = |crl: &Crl| crl.signer.get().is_none();
    let mut doubts = Vec::new();
    for crl in crls {
        let doubt = |what| Doubt::new(&crl.file, crl.line, what);
        let issuer = crl.scope.issuer.to_string();
        if is_foreign(crl) && cas.iter().any(|ca| crl.names(ca) && !has_list(ca)) {
            doubts.push(doubt(What::CrlOfOtherKey(issuer)));
        } else if is_foreign(crl) && !all_have_lists {
            // Otherwise, it is that of a CA between those of the files and the clients.
            doubts.push(doubt(What::CrlOfUnknownCa(issuer)));
        }
        doubts.extend(doubt_about_crl(crl.valid, now).map(doubt));
    }
    let is_told = |ca: &Ca| crls.iter().any(|crl| is_foreign(crl) && crl.names(ca));
    let without = cas.iter().filter(|ca| !has_list(ca) && !is_told(ca));
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

    /// Returns whether newer ones of the two replace older ones.
    fn is_like(&self, other: &Self) -> bool {
        // Several CAs may have the name, and each of them one list.
        let is_signed_alike = match (self.signer.get(), other.signer.get()) {
            (None, None) => self.scope.key == other.scope.key,
            (one, other) => one == other,
        };
        is_signed_alike
            && self.scope.issuer_der == other.scope.issuer_der
            && self.scope.distribution_point == other.scope.distribution_point
    }

    /// Returns whether the issuer has the name of this CA.
    fn names(&self, ca: &Ca) -> bool {
        *self.scope.issuer_der == *ca.anchor.subject
    }

    fn is_of(&self, ca: &Ca, provider: &CryptoProvider) -> bool {
        self.names(ca) && self.is_signed_by(&ca.anchor.subject_public_key_info, provider)
    }

    /// Returns whether the key of a CA has signed the list, by an algorithm that the provider
    /// knows. Only the first key that fits is tried, because the digest of a long list takes long.
    fn is_signed_by(&self, key: &[u8], provider: &CryptoProvider) -> bool {
        if let Some(signer) = self.signer.get() {
            return **signer == *key;
        }
        let is_signed = self.verify(key, provider).unwrap_or(false);
        if is_signed {
            self.signer.get_or_init(|| key.into());
        }
        is_signed
    }

    fn verify(&self, key: &[u8], provider: &CryptoProvider) -> der::Result<bool> {
        let list = AnyRef::from_der(&self.list)?;
        let mut list = SliceReader::new(list.value())?;
        let content = list.tlv_bytes()?;
        let signed_by = AnyRef::decode(&mut list)?;
        let signature = BitStringRef::decode(&mut list)?;
        let mut key = SliceReader::new(key)?;
        let kind = AnyRef::decode(&mut key)?;
        let key = BitStringRef::decode(&mut key)?;
        let algorithms = provider.signature_verification_algorithms.all.iter();
        let mut fitting = algorithms.filter(|algorithm| {
            *algorithm.signature_alg_id() == *signed_by.value() && *algorithm.public_key_alg_id() == *kind.value()
        });
        let (key, signature) = (key.raw_bytes(), signature.raw_bytes());
        Ok(fitting.any(|algorithm| algorithm.verify_signature(key, content, signature).is_ok()))
    }

    /// Returns whether a certificate that is not in the list is not revoked.
    fn covers(&self, certificate: &Cert<'_>, is_ca: bool) -> bool {
        let Some(point) = &self.scope.distribution_point else {
            return true;
        };
        let is_for_others = if is_ca {
            point.only_contains_user_certs
        } else {
            point.only_contains_ca_certs
        };
        let names = full_name(point.distribution_point.as_ref());
        let of_certificate = distribution_points(certificate).unwrap_or_default();
        let mut of_certificate = of_certificate
            .iter()
            .filter(|one| one.reasons.is_none() && one.crl_issuer.is_none());
        !is_for_others
            && of_certificate.any(|one| {
                let mut others = full_name(one.distribution_point.as_ref()).iter();
                others.any(|name| names.contains(name))
            })
    }

    /// Returns whether the time of the list has come, and that of the next one has not.
    fn counts(&self, now: UnixTime) -> bool {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        self.valid.from <= now && self.replaced.is_none_or(|next| now < next)
    }

    fn check_time(&self, now: UnixTime) -> Result<(), Error> {
        let to = self.valid.to.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let next_update = UnixTime::since_unix_epoch(to);
        if now < next_update {
            Ok(())
        } else {
            Err(Error::CrlExpired { time: now, next_update })
        }
    }

    fn new(file: &Path, line: usize, list: CertificateRevocationListDer<'static>) -> Result<Self, BadCrl> {
        let damaged = |error: der::Error| BadCrl::Damaged(error.to_string());
        let checked = BorrowedCertRevocationList::from_der(&list)?;
        let revoked = checked.into_iter().map(|one| Ok(one?.serial_number.into()));
        let revoked: Result<Vec<Box<[u8]>>, Error> = revoked.collect();
        let mut revoked = revoked?;
        revoked.sort_unstable();
        let issuer_der = CertRevocationList::from(checked).issuer().into();
        let parsed = CertificateList::<Rfc5280>::from_der(&list).map_err(damaged)?;
        let parsed = parsed.tbs_cert_list;
        let next_update = parsed.next_update.ok_or(BadCrl::NoNextUpdate)?;
        let extension = |id| {
            let mut all = parsed.crl_extensions.iter().flatten();
            let found = all.find(|extension| extension.extn_id == id)?;
            Some(Box::from(found.extn_value.as_bytes()))
        };
        let number: Option<Box<[u8]>> = extension(NUMBER);
        let point = extension(DISTRIBUTION_POINT).map(|point| IssuingDistributionPoint::from_der(&point));
        Ok(Self {
            file: file.to_owned(),
            line,
            valid: Validity {
                from: SystemTime::UNIX_EPOCH + parsed.this_update.to_unix_duration(),
                to: SystemTime::UNIX_EPOCH + next_update.to_unix_duration(),
            },
            replaced: None,
            revoked,
            signer: OnceLock::new(),
            scope: Scope {
                key: extension(ISSUER_KEY),
                distribution_point: point.transpose().map_err(damaged)?,
                issuer: parsed.issuer,
                issuer_der,
            },
            age: Age {
                this_update: parsed.this_update.to_unix_duration(),
                number: number.map(|number| (number.len(), number)),
            },
            list,
        })
    }
}

fn full_name(name: Option<&DistributionPointName>) -> &[GeneralName] {
    match name {
        Some(DistributionPointName::FullName(names)) => names,
        Some(DistributionPointName::NameRelativeToCRLIssuer(_)) | None => &[],
    }
}

fn distribution_points(certificate: &Cert<'_>) -> Option<Vec<DistributionPoint>> {
    let parsed = Certificate::from_der(&certificate.der()).ok()?;
    let points = parsed.tbs_certificate().get_extension::<CrlDistributionPoints>();
    Some(points.ok()??.1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::certificate::tests::Folder;
    use crate::tls::crypto::provider;
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair,
        date_time_ymd,
    };

    #[test]
    fn a_list_for_a_later_time_replaces_the_current_one_then() {
        let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::new(params, key);
        let list = |number: u64, year| {
            let list = CertificateRevocationListParams {
                this_update: date_time_ymd(year, 1, 1),
                next_update: date_time_ymd(2900, 1, 1),
                crl_number: number.into(),
                issuing_distribution_point: None,
                revoked_certs: Vec::new(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            list.signed_by(&issuer).unwrap().pem().unwrap()
        };
        let year = |year: i32| u64::try_from(date_time_ymd(year, 1, 1).unix_timestamp()).unwrap();
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let folder = Folder::new();
        let file = folder.write("crl.pem", &(list(3, 2030) + &list(2, 2020) + &list(1, 2000)));
        let newest = newest(read_crls(&file).unwrap(), &[], &provider(), at(year(2025)));
        let counting = |now: u64| -> Vec<_> {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
            let counting = newest.iter().filter(|crl| crl.counts(now));
            counting.map(|crl| crl.valid.from).collect()
        };
        assert_eq!(counting(year(2030) - 1), [at(year(2020))]);
        assert_eq!(counting(year(2030)), [at(year(2030))]);
    }
}
