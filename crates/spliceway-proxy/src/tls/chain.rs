//! What is doubtful about a certificate and its chain, although the program can use them.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{ExtendedKeyUsage, SubjectAltName};
use x509_cert::name::Name;

use super::ocsp;
use crate::kit::clock;

/// A certificate that ends within this time is a warning, as in the alerts, unless its life is
/// short.
const SOON: Duration = Duration::from_secs(14 * DAY);
/// Less than this part of the life is a warning. ACME renews when a third is left.
const LAST_PART: u32 = 5;
/// A CRL that expires within this time is a warning, unless its life is short. Many CAs write one
/// each week.
const CRL_SOON: Duration = Duration::from_secs(7 * DAY);
const DAY: u64 = 86_400;
/// The purposes of a certificate (RFC 5280, section 4.2.1.12).
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");
const ANY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37.0");

/// A certificate of a chain, and the line of the file in which it begins.
pub(super) struct Link {
    pub(super) line: usize,
    pub(super) serial: Box<[u8]>,
    pub(super) is_version_1: bool,
    pub(super) is_for_clients: bool,
    is_for_servers: bool,
    pub(super) subject: Name,
    issuer: Name,
    pub(super) valid: Validity,
    /// The names of hosts, in lower case.
    pub(super) names: Vec<Box<str>>,
    /// Names of other kinds, such as addresses and URIs, in DER.
    pub(super) other_names: Vec<Box<[u8]>>,
    /// Whether there is a name or an address that a client can check.
    is_named: bool,
}

/// The time in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: SystemTime,
    pub(crate) to: SystemTime,
}

impl Validity {
    /// Returns the time before the end in which a renewal is late.
    fn last_part(&self) -> Duration {
        self.last_part_below(SOON)
    }

    fn last_part_below(&self, longest: Duration) -> Duration {
        let life = self.to.duration_since(self.from).unwrap_or_default();
        longest.min(life / LAST_PART)
    }
}

/// Something that clients may refuse, or because of which clients may be refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubt {
    file: PathBuf,
    line: usize,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Ended(SystemTime),
    /// Unlike other certificates, that of a CA is good for ever (RFC 5280, section 6.1.1).
    CaEnded(SystemTime),
    NotYet(SystemTime),
    EndsSoon(SystemTime),
    /// The certificate has not issued the one before it.
    NotIssuer {
        subject: String,
        expected: String,
    },
    NoName,
    NotForServers,
    /// The OCSP response in this file is not sent.
    NotStapled(NotStapled),
    CrlEnded(SystemTime),
    CrlNotYet(SystemTime),
    CrlEndsSoon(SystemTime),
    /// The CA with this name has another key than the one that has signed the CRL.
    CrlOfOtherKey(String),
    /// The CRL is of a CA with this name, which is in no file.
    CrlOfUnknownCa(String),
    /// Others have a CRL, and the CA with this name has none.
    CaWithoutCrl(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tls) enum NotStapled {
    Expired(SystemTime),
    NotGood,
    OfOther,
    /// The file is no answer.
    Damaged,
}

impl Link {
    /// Reads a certificate.
    ///
    /// # Errors
    /// Returns what is wrong with its content.
    pub(super) fn read(line: usize, certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let parsed = Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let parsed = parsed.tbs_certificate();
        let names = parsed.get_extension::<SubjectAltName>();
        let names = names.map_err(|error| error.to_string())?;
        let names: Vec<_> = names.into_iter().flat_map(|(_, names)| names.0).collect();
        let is_named = |name: &GeneralName| matches!(name, GeneralName::DnsName(_) | GeneralName::IpAddress(_));
        let is_named = names.iter().any(is_named);
        let others = names.iter().filter(|name| !matches!(name, GeneralName::DnsName(_)));
        let others: Result<_, _> = others.map(|name| name.to_der().map(Vec::into_boxed_slice)).collect();
        let other_names = others.map_err(|error| error.to_string())?;
        let names = names.into_iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase().into_boxed_str()),
            _ => None,
        });
        let usages = parsed.get_extension::<ExtendedKeyUsage>();
        let usages = usages.map_err(|error| error.to_string())?.map(|(_, usages)| usages.0);
        let is_for = |usage| {
            let usages = usages.as_ref();
            usages.is_none_or(|usages| usages.contains(&usage) || usages.contains(&ANY_USAGE))
        };
        let time = |since_1970: Duration| SystemTime::UNIX_EPOCH + since_1970;
        let validity = parsed.validity();
        Ok(Self {
            line,
            serial: parsed.serial_number().as_bytes().into(),
            is_for_clients: is_for(CLIENT_AUTH),
            is_for_servers: is_for(SERVER_AUTH),
            is_version_1: parsed.version() == Version::V1,
            subject: parsed.subject().clone(),
            issuer: parsed.issuer().clone(),
            valid: Validity {
                from: time(validity.not_before.to_unix_duration()),
                to: time(validity.not_after.to_unix_duration()),
            },
            names: names.collect(),
            other_names,
            is_named,
        })
    }
}

/// Returns what is doubtful about a chain in this file, which begins with the server's own
/// certificate.
pub(super) fn doubts(file: &Path, chain: &[Link], now: SystemTime) -> Vec<Doubt> {
    let doubt = |link: &Link, what| Doubt::new(file, link.line, what);
    let mut doubts: Vec<_> = chain
        .iter()
        .filter_map(|link| doubt_about_time(file, link, now))
        .collect();
    if let Some(own) = chain.first() {
        doubts.extend((!own.is_named).then(|| doubt(own, What::NoName)));
        doubts.extend((!own.is_for_servers).then(|| doubt(own, What::NotForServers)));
    }
    for pair in chain.windows(2) {
        let [before, link] = pair else { continue };
        if before.issuer != link.subject {
            let what = What::NotIssuer {
                subject: link.subject.to_string(),
                expected: before.issuer.to_string(),
            };
            doubts.push(doubt(link, what));
        }
    }
    doubts
}

/// Returns what is doubtful about a CA that issues the certificates of clients.
pub(super) fn doubt_about_ca(file: &Path, link: &Link, now: SystemTime) -> Option<Doubt> {
    let doubt = doubt_about_time(file, link, now)?;
    let what = match doubt.what {
        What::Ended(to) => What::CaEnded(to),
        what => what,
    };
    Some(Doubt { what, ..doubt })
}

/// Returns what is doubtful about the time in which a certificate is valid.
fn doubt_about_time(file: &Path, link: &Link, now: SystemTime) -> Option<Doubt> {
    let Validity { from, to } = link.valid;
    let what = if to <= now {
        What::Ended(to)
    } else if from > now {
        What::NotYet(from)
    } else if to <= now + link.valid.last_part() {
        What::EndsSoon(to)
    } else {
        return None;
    };
    Some(Doubt::new(file, link.line, what))
}

/// Returns what is doubtful about the time in which a CRL is valid. Clients are refused after it.
pub(super) fn doubt_about_crl(valid: Validity, now: SystemTime) -> Option<What> {
    let to = valid.to;
    if to <= now {
        Some(What::CrlEnded(to))
    } else if valid.from > now {
        Some(What::CrlNotYet(valid.from))
    } else {
        (to <= now + valid.last_part_below(CRL_SOON)).then_some(What::CrlEndsSoon(to))
    }
}

/// Returns why an answer about a certificate is not sent to clients.
pub(super) fn doubt_about_answer(file: &Path, about: Option<ocsp::Statement>, now: SystemTime) -> Option<Doubt> {
    let why = match about {
        None => NotStapled::OfOther,
        Some(about) if !about.is_good => NotStapled::NotGood,
        Some(about) => NotStapled::Expired(about.expires.filter(|expires| *expires <= now)?),
    };
    Some(Doubt::new(file, 1, What::NotStapled(why)))
}

/// Returns the doubt about a file that is no OCSP response.
pub(super) fn doubt_about_damage(file: &Path) -> Doubt {
    Doubt::new(file, 1, What::NotStapled(NotStapled::Damaged))
}

/// Says when a certificate ends, if it has ended or does so soon.
pub(super) fn end(link: &Link, now: SystemTime) -> Option<String> {
    let to = link.valid.to;
    let verb = if to <= now { "has expired" } else { "expires" };
    (to <= now + link.valid.last_part()).then(|| format!("{verb} at {}", clock::rfc3339_seconds(to)))
}

impl Display for NotStapled {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(at) => write!(f, "the OCSP response has expired at {}", clock::rfc3339_seconds(*at)),
            Self::NotGood => f.write_str("the OCSP response does not say that the certificate is good"),
            Self::OfOther => f.write_str("the OCSP response is about another certificate"),
            Self::Damaged => write!(
                f,
                "this is no successful OCSP response in DER, of at most {} KiB",
                ocsp::ANSWER_MAX_BYTES >> 10
            ),
        }
    }
}

impl Doubt {
    pub(super) fn new(file: &Path, line: usize, what: What) -> Self {
        let file = file.to_owned();
        Self { file, line, what }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns whether every client refuses the certificate, or all clients of a CA are refused.
    pub(super) fn is_fatal(&self) -> bool {
        use What::*;
        matches!(
            self.what,
            Ended(_) | NotYet(_) | NotForServers | CrlEnded(_) | CrlOfOtherKey(_)
        )
    }

    /// Returns whether only the certificate of a server must not have it.
    pub(super) fn is_for_servers(&self) -> bool {
        matches!(self.what, What::NoName | What::NotForServers)
    }
}

impl Display for Doubt {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file.display(), self.line)?;
        let date = |time: &SystemTime| clock::rfc3339_seconds(*time);
        match &self.what {
            What::Ended(time) => write!(
                f,
                "the certificate has expired at {}, and peers refuse it: renew it",
                date(time)
            ),
            What::CaEnded(time) => write!(
                f,
                "the certificate of the CA has expired at {}, and what it has issued is accepted: renew or remove it",
                date(time)
            ),
            What::NotYet(time) => write!(
                f,
                "the certificate is valid from {} on, and peers refuse it until then: is the clock of this machine right?",
                date(time)
            ),
            What::EndsSoon(time) => write!(f, "the certificate expires at {}: renew it", date(time)),
            // Names in certificates may have any character, which the quotes escape.
            What::NotIssuer { subject, expected } => write!(
                f,
                "the certificate before this one is from {expected:?}, and this one is of {subject:?}: put the \
                 certificate of each issuer after the one that it has issued"
            ),
            What::NotStapled(why) => write!(
                f,
                "{why}, so clients do not get it: fetch a new one (`openssl ocsp … -respout FILE`), or remove the file"
            ),
            What::NotForServers => write!(
                f,
                "the certificate is not for servers (extendedKeyUsage), and clients refuse it: renew it with serverAuth"
            ),
            What::NoName => write!(
                f,
                "the certificate has no name of a host (subjectAltName), and most clients refuse it: renew it with its names"
            ),
            What::CrlEnded(time) => write!(
                f,
                "the CRL has expired at {}, and all clients of its CA are refused: get the new one of the CA",
                date(time)
            ),
            What::CrlNotYet(time) => f.write_str(&early_crl(*time)),
            What::CrlEndsSoon(time) => write!(
                f,
                "the CRL expires at {}, and all clients of its CA are refused from then on: get the new one of the CA",
                date(time)
            ),
            What::CrlOfOtherKey(name) => write!(
                f,
                "the key of the CA {name:?} in tls_client_ca does not verify the CRL, and all clients of this CA are \
                 refused: get the CRL of this CA, or the certificate of its new key"
            ),
            What::CrlOfUnknownCa(name) => write!(
                f,
                "the CRL is of {name:?}, which is not in tls_client_ca, so it counts only for clients that send the \
                 certificate of this CA: give the CRL of each CA in tls_client_ca"
            ),
            What::CaWithoutCrl(name) => write!(
                f,
                "the CA {name:?} has no CRL, and the clients of this CA are refused, because tls_client_crl is given: \
                 add its CRL to tls_client_crl, or remove the CA"
            ),
        }
    }
}

fn early_crl(time: SystemTime) -> String {
    format!(
        "the CRL is for a time from {} on, and does not count before: check the clock of this machine and that of the CA",
        clock::rfc3339_seconds(time)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::certificate::Pair;
    use crate::tls::certificate::tests::Folder;
    use crate::tls::crypto::provider;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
    };

    fn params(name: &str, hosts: &[&str]) -> CertificateParams {
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    fn authority(name: &str) -> CertificateParams {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    /// Returns what is doubtful about this chain, without the names of folders.
    fn doubts(chain: &[&str], key: &KeyPair) -> Vec<String> {
        let folder = Folder::new();
        let files = folder.pair(&chain.concat(), &key.serialize_pem());
        let pair = Pair::read(&files, &provider()).unwrap();
        let folder = format!("{}/", files.certificate.parent().unwrap().display());
        let doubts = pair.doubts.iter().map(|doubt| doubt.to_string().replace(&folder, ""));
        doubts.collect()
    }

    #[test]
    fn each_issuer_follows_what_it_has_issued() {
        let [root_key, middle_key, key] = std::array::from_fn(|_| KeyPair::generate().unwrap());
        let root_of = Issuer::new(authority("root"), &root_key);
        let middle = authority("middle").signed_by(&middle_key, &root_of).unwrap().pem();
        let root = authority("root").self_signed(&root_key).unwrap().pem();
        let middle_of = Issuer::new(authority("middle"), &middle_key);
        let own = params("own", &["a.test"]).signed_by(&key, &middle_of).unwrap().pem();
        for chain in [&[&*own][..], &[&own, &middle], &[&own, &middle, &root]] {
            assert_eq!(doubts(chain, &key), [""; 0]);
        }
        let line = own.lines().count() + 1;
        let wrong = doubts(&[&own, &root], &key);
        let expected = format!(
            "certificate.pem:{line}: the certificate before this one is from \"CN=middle\", and this one is of \
             \"CN=root\": put"
        );
        assert!(wrong.len() == 1 && wrong[0].starts_with(&expected), "{wrong:?}");
        assert_eq!(doubts(&[&own, &root, &middle], &key).len(), 2);
    }

    #[test]
    fn the_times_of_all_certificates_count() {
        let key = KeyPair::generate().unwrap();
        let of = |from: i32, to: i32| {
            let mut params = params("own", &["a.test"]);
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
            params.self_signed(&key).unwrap().pem()
        };
        for (from, to, expected) in [
            (2000, 4000, None),
            (
                2000,
                2001,
                Some("certificate.pem:1: the certificate has expired at 2001-01-01T00:00:00Z"),
            ),
            (
                3000,
                4000,
                Some("certificate.pem:1: the certificate is valid from 3000-01-01T00:00:00Z on"),
            ),
        ] {
            let doubts = doubts(&[&of(from, to)], &key);
            assert_eq!(doubts.len(), expected.iter().count(), "{doubts:?}");
            assert!(
                doubts
                    .iter()
                    .zip(expected)
                    .all(|(doubt, start)| doubt.starts_with(start)),
                "{doubts:?}"
            );
        }
        let second = doubts(&[&of(2000, 4000), &of(2000, 2001)], &key);
        assert!(second.len() == 1 && second[0].contains("has expired"), "{second:?}");
    }

    #[test]
    fn a_certificate_needs_a_name_or_an_address() {
        let key = KeyPair::generate().unwrap();
        let of = |hosts| params("a.test", hosts).self_signed(&key).unwrap().pem();
        assert_eq!(doubts(&[&of(&["127.0.0.1"])], &key), [""; 0]);
        let doubts = doubts(&[&of(&[])], &key);
        assert!(
            doubts.len() == 1 && doubts[0].contains("has no name of a host (subjectAltName)"),
            "{doubts:?}"
        );
    }

    #[test]
    fn a_certificate_that_is_only_for_clients_is_named() {
        let key = KeyPair::generate().unwrap();
        let of = |usages: &[ExtendedKeyUsagePurpose]| {
            let mut params = params("own", &["a.test"]);
            params.extended_key_usages = usages.to_vec();
            doubts(&[&params.self_signed(&key).unwrap().pem()], &key)
        };
        use ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
        for usages in [&[][..], &[Any], &[ClientAuth, ServerAuth]] {
            assert_eq!(of(usages), [""; 0]);
        }
        let doubts = of(&[ClientAuth]);
        assert!(
            doubts.len() == 1 && doubts[0].contains("is not for servers"),
            "{doubts:?}"
        );
    }

    #[test]
    fn a_certificate_ends_soon_in_two_weeks_or_in_its_last_fifth() {
        let key = KeyPair::generate().unwrap();
        // 15 days, and 2000 years.
        for (to, counts) in [
            (date_time_ymd(2000, 1, 16), [(4, 0), (3, 1), (1, 1)]),
            (date_time_ymd(4000, 1, 1), [(15, 0), (14, 1), (1, 1)]),
        ] {
            let mut params = params("own", &["a.test"]);
            (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), to);
            let pem = params.self_signed(&key).unwrap();
            let link = Link::read(1, pem.der()).unwrap();
            let end = link.valid.to;
            let chain = [link];
            for (before, count) in counts {
                let found = super::doubts(Path::new("a"), &chain, end - Duration::from_secs(before * DAY));
                assert_eq!(found.len(), count, "{before}");
                assert!(found.iter().all(|doubt| !doubt.is_fatal()));
            }
            assert!(super::doubts(Path::new("a"), &chain, end)[0].is_fatal());
        }
    }

    #[test]
    fn a_crl_expires_soon_in_a_week_or_in_its_last_fifth() {
        let at = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * DAY);
        for (life, soon) in [(10, 2), (35, 7), (100, 7)] {
            let valid = Validity {
                from: at(0),
                to: at(life),
            };
            let to = valid.to;
            let before = valid.from - Duration::from_secs(1);
            assert_eq!(doubt_about_crl(valid, before), Some(What::CrlNotYet(valid.from)));
            assert_eq!(doubt_about_crl(valid, at(life - soon - 1)), None);
            assert_eq!(doubt_about_crl(valid, at(life - soon)), Some(What::CrlEndsSoon(to)));
            assert_eq!(doubt_about_crl(valid, to), Some(What::CrlEnded(to)));
        }
    }
}
