//! Checks the files of a service's TLS for `spliceway doctor --tls`, also by the roots of the
//! system.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, Error, RootCertStore};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::ext::pkix::AuthorityInfoAccessSyntax;
use x509_cert::ext::pkix::name::GeneralName;

use super::certificate::{Pair, PairFiles, read_chain};
use super::chain::{self, Link};
use super::client::{ClientSettings, authorities};
use super::crypto::provider;
use super::server::ServerSettings;
use crate::kit::clock;
use crate::kit::tls_error::fault;

mod clients;
mod finding;

use finding::permissions;
pub(crate) use finding::{Finding, Subject, Verdict};

/// The place of the issuer's certificate (RFC 5280, section 4.2.2.1). Other places answer OCSP.
const CA_ISSUERS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.2");
/// The names of a certificate that a text shows.
const NAMES_MAX: usize = 5;

/// Knows the roots of the system.
pub(crate) struct Inspector {
    provider: Arc<CryptoProvider>,
    /// `Err` says why there are none.
    roots: Result<Arc<WebPkiServerVerifier>, String>,
    /// The keys of the private CAs that a finding has named.
    private: RefCell<HashSet<Vec<u8>>>,
}

impl Inspector {
    pub(crate) fn new() -> Self {
        let found = rustls_native_certs::load_native_certs();
        let errors = found
            .errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        Self::with_roots(found.certs, &errors)
    }

    fn with_roots(certificates: Vec<CertificateDer<'static>>, errors: &str) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        let provider = provider();
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let roots = verifier.build().map_err(|_| errors.to_owned());
        Self {
            provider,
            roots,
            private: RefCell::default(),
        }
    }

    /// Returns what is known about each file for clients, in the order of the settings.
    pub(crate) fn clients(&self, settings: &ServerSettings) -> Vec<(String, Vec<Finding>)> {
        let mut owners = HashMap::new();
        let (pairs, bad) = match settings.all_pairs() {
            Ok(pairs) => (pairs, None),
            Err(bad) => (settings.pairs.clone(), Some(bad)),
        };
        let pairs = pairs.iter();
        let pairs = pairs.map(|files| (files.certificate.display().to_string(), self.pair(files, &mut owners)));
        let bad = bad.map(|bad| (bad.file().display().to_string(), vec![Finding::from(bad)]));
        let mut all: Vec<_> = pairs.chain(bad).collect();
        all.extend(
            settings
                .acme
                .iter()
                .flat_map(|acme| clients::acme(acme, &self.provider)),
        );
        all.extend(settings.ticket_keys.iter().map(|file| clients::ticket_keys(file)));
        let asked = settings.clients.iter();
        all.extend(asked.flat_map(|asked| clients::certificates(asked, &self.provider)));
        all
    }

    /// Returns what is known about the files for targets and upstream proxies.
    pub(crate) fn targets(&self, settings: &ClientSettings) -> Vec<(String, Vec<Finding>)> {
        let trust = if settings.verifies {
            let file = settings.authorities.as_deref();
            let title = file.map_or_else(|| "target_tls_ca".to_owned(), |file| file.display().to_string());
            let mut findings = trusted(file);
            findings.extend(
                file.iter()
                    .flat_map(|file| permissions(&[file], "choose which targets are trusted")),
            );
            (title, findings)
        } else {
            let text = "the certificates of targets are not verified, so that anybody on the way can read and change what \
                        passes: give target_tls_ca to trust a certificate of your own";
            let finding = Finding::new(Verdict::Doubtful, Subject::Authorities, text.to_owned());
            ("target_tls_verify".to_owned(), vec![finding])
        };
        let pair = settings.pair.iter();
        let pair = pair.map(|files| (files.certificate.display().to_string(), self.own_pair(files)));
        [trust].into_iter().chain(pair).collect()
    }

    /// Returns what is known about the certificate that targets ask for. Its issuer and its names
    /// are the business of the target.
    fn own_pair(&self, files: &PairFiles) -> Vec<Finding> {
        let pair = match Pair::read(files, &self.provider) {
            Ok(pair) => pair,
            Err(bad) => return vec![bad.into()],
        };
        let doubts = pair.doubts.iter().filter(|doubt| !doubt.is_for_servers());
        let mut findings: Vec<_> = doubts.map(Finding::from).collect();
        let own = pair.key.cert.first().and_then(|own| Link::read(1, own).ok());
        if own.is_some_and(|own| !own.is_for_clients) {
            let text = "targets refuse the certificate, because it is not for clients (extendedKeyUsage): expected one with \
                        clientAuth";
            findings.push(Finding::new(Verdict::Faulty, Subject::Chain, text.to_owned()));
        }
        findings.extend(permissions(
            &[&files.certificate, &files.key],
            "replace the certificate",
        ));
        if findings.is_empty() {
            let text = format!("for targets; it expires at {}", clock::rfc3339_seconds(pair.valid.to));
            findings.push(Finding::new(Verdict::Fine, Subject::Pair, text));
        }
        findings
    }

    /// `owners` has the file of the first certificate with each name and kind of key.
    fn pair(&self, files: &PairFiles, owners: &mut HashMap<(Box<str>, String), String>) -> Vec<Finding> {
        let pair = match Pair::read(files, &self.provider) {
            Ok(pair) => pair,
            Err(bad) => return vec![bad.into()],
        };
        let mut findings: Vec<_> = pair.doubts.iter().map(Finding::from).collect();
        findings.extend(permissions(
            &[&files.certificate, &files.key],
            "replace the certificate",
        ));
        findings.extend(shared(&pair, owners));
        let accepted = self.accepted(&pair.key.cert);
        let is_accepted = accepted.is_ok();
        if let Err(Some(text)) = accepted {
            findings.push(Finding::new(Verdict::Doubtful, Subject::Roots, text));
        }
        if findings.iter().all(|finding| finding.subject == Subject::Roots) {
            let mut text = format!(
                "{}; it expires at {}",
                named(&pair.names),
                clock::rfc3339_seconds(pair.valid.to)
            );
            if is_accepted {
                text.push_str("; the roots of this system accept it");
            }
            findings.insert(0, Finding::new(Verdict::Fine, Subject::Pair, text));
        }
        findings
    }

    /// Returns whether the roots of the system accept a chain, or why not. Faults that every client
    /// finds are not repeated here.
    fn accepted(&self, chain: &[CertificateDer<'_>]) -> Result<(), Option<String>> {
        let roots = self.roots.as_ref().map_err(|errors| {
            Some(format!(
                "cannot check the chain, because this system has no roots ({errors}): install ca-certificates"
            ))
        })?;
        let Some((own, others)) = chain.split_first() else {
            return Err(None);
        };
        // The name is checked last, and every certificate has other ones.
        let name = ServerName::try_from("name.invalid").expect("it is a name");
        match roots.verify_server_cert(own, others, &name, &[], UnixTime::now()) {
            Ok(_)
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(()),
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                Err(unknown(own, others, &mut self.private.borrow_mut()))
            }
            Err(Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            )) => Err(None),
            Err(error) if is_of_ca(&error) && is_self_signed(own) => Err(Some(SELF_SIGNED.to_owned())),
            Err(error) => Err(Some(format!("{REFUSED}: {}", fault(&error)))),
        }
    }
}

const REFUSED: &str = "clients that use the system's CAs refuse it";
/// What clients do with the certificate of a CA that a server shows as its own.
const SELF_SIGNED: &str = "clients that use the system's CAs refuse it, because it is a self-signed CA certificate: \
    give clients this file as their CA, or get a certificate of a CA";

/// Returns what is known about the authorities of a file, or those of the system.
fn trusted(file: Option<&Path>) -> Vec<Finding> {
    let finding = |verdict, text| Finding::new(verdict, Subject::Authorities, text);
    let count = match authorities(file) {
        Ok((roots, ..)) => roots.len(),
        Err(bad) => return vec![finding(Verdict::Faulty, bad.to_string())],
    };
    let Some(file) = file else {
        return vec![finding(Verdict::Fine, format!("the roots of this system: {count}"))];
    };
    let found = read_chain(file).unwrap_or_default();
    let links: Vec<_> = found
        .iter()
        .filter_map(|(line, one)| Link::read(*line, one).ok())
        .collect();
    let mut ends = links.iter().filter_map(|link| {
        let when = chain::end(link, SystemTime::now())?;
        let (file, line, subject) = (file.display(), link.line, link.subject.to_string());
        // Quotes escape what a terminal would obey.
        Some(format!(
            "{file}:{line}: the certificate of {subject:?} {when}: add the new one of this CA"
        ))
    });
    let noun = if count == 1 { "CA" } else { "CAs" };
    // The others are the certificates of servers themselves.
    let of_servers = match found.len().saturating_sub(count) {
        0 => String::new(),
        1 => " and the certificate of 1 server".to_owned(),
        more => format!(" and the certificates of {more} servers"),
    };
    // A file with many authorities may have some old ones for years.
    vec![match (ends.next(), ends.count()) {
        (None, _) => finding(Verdict::Fine, format!("{count} {noun}{of_servers} for targets")),
        (Some(first), 0) => finding(Verdict::Doubtful, first),
        (Some(first), more) => finding(Verdict::Doubtful, format!("{first}. The same is true of {more} more")),
    }]
}

/// Returns whether a server shows the certificate of a CA as its own.
fn is_of_ca(error: &Error) -> bool {
    // webpki names its errors in their text alone.
    matches!(error, Error::InvalidCertificate(CertificateError::Other(error)) if error.to_string() == "CaUsedAsEndEntity")
}

fn is_self_signed(certificate: &CertificateDer<'_>) -> bool {
    Certificate::from_der(certificate)
        .is_ok_and(|one| one.tbs_certificate().issuer() == one.tbs_certificate().subject())
}

/// Says what is missing after the last certificate of a chain. Its order does not matter. Returns
/// `None` for a private CA that a finding has named: `private` has the keys of these CAs.
fn unknown(own: &CertificateDer<'_>, others: &[CertificateDer<'_>], private: &mut HashSet<Vec<u8>>) -> Option<String> {
    let Ok(last) = Certificate::from_der(own) else {
        return Some(REFUSED.to_owned());
    };
    let mut others: Vec<_> = others
        .iter()
        .filter_map(|one| Certificate::from_der(one).ok())
        .collect();
    let mut last = last.tbs_certificate().clone();
    while let Some(next) = others
        .iter()
        .position(|one| one.tbs_certificate().subject() == last.issuer())
    {
        // Each one is followed once, also if certificates name each other.
        last = others.swap_remove(next).tbs_certificate().clone();
    }
    // Quotes escape what a terminal would obey.
    let issuer = last.issuer().to_string();
    if last.issuer() == last.subject() {
        let key = last.subject_public_key_info().subject_public_key.raw_bytes().to_vec();
        return private
            .insert(key)
            .then(|| format!("{REFUSED}: {issuer:?} is no public CA. Clients need its certificate as a root"));
    }
    let places = last.get_extension::<AuthorityInfoAccessSyntax>().ok().flatten();
    let places = places.into_iter().flat_map(|(_, places)| places.0);
    let mut issuers = places.filter(|place| place.access_method == CA_ISSUERS);
    let place = issuers.find_map(|place| match place.access_location {
        GeneralName::UniformResourceIdentifier(place) => Some(place.as_str().to_owned()),
        _ => None,
    });
    let from = place.map_or_else(String::new, |place| format!(" from {place:?}"));
    Some(format!(
        "{REFUSED}: the certificate of {issuer:?} is missing. Add it{from} at the end of the file, or give it to \
         clients as a root if it is one"
    ))
}

/// Returns the names for which an earlier certificate is chosen.
fn shared(pair: &Pair, owners: &mut HashMap<(Box<str>, String), String>) -> Option<Finding> {
    let kind = format!("{:?}", pair.key.key.algorithm());
    let mut first = None;
    for name in &pair.names {
        let key = (name.clone(), kind.clone());
        match owners.get(&key) {
            Some(owner) if first.is_none() => first = Some((name, owner.clone())),
            Some(_) => {}
            None => drop(owners.insert(key, pair.file.display().to_string())),
        }
    }
    first.map(|(name, owner)| {
        let text = format!("clients of {name} get the certificate in {owner}, which comes first: remove one of them");
        Finding::new(Verdict::Doubtful, Subject::Names, text)
    })
}

fn named(names: &[Box<str>]) -> String {
    let shown: Vec<_> = names.iter().take(NAMES_MAX).map(|name| &**name).collect();
    match names.len().checked_sub(NAMES_MAX) {
        None | Some(0) if shown.is_empty() => "an address, and no name".to_owned(),
        None | Some(0) => shown.join(", "),
        Some(more) => format!("{} and {more} more names", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::certificate::tests::Folder;
    use crate::tls::client::OfferedProtocols;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
    };
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn the_roots_accept_a_whole_chain_and_say_what_another_one_misses() {
        let [root_key, middle_key, key] = std::array::from_fn(|_| KeyPair::generate().unwrap());
        let root = authority("root").self_signed(&root_key).unwrap();
        let root_of = Issuer::new(authority("root"), &root_key);
        let middle = authority("middle").signed_by(&middle_key, &root_of).unwrap();
        let middle_of = Issuer::new(authority("middle"), &middle_key);
        let own = params("own", &["a.test"]).signed_by(&key, &middle_of).unwrap();
        let inspector = Inspector::with_roots(vec![root.der().clone()], "");
        let accepted = |chain: &[CertificateDer<'_>]| inspector.accepted(chain);
        let (own, middle) = (own.der().clone(), middle.der().clone());
        assert_eq!(accepted(&[own.clone(), middle.clone()]), Ok(()));
        assert!(accepted(&[own.clone(), root.der().clone(), middle.clone()]).is_ok());
        let other = Inspector::with_roots(vec![own.clone()], "");
        let chain = [own.clone(), root.der().clone(), middle];
        let private = other.accepted(&chain).unwrap_err().unwrap();
        assert!(private.contains("\"CN=root\" is no public CA"), "{private}");
        // Other certificates of the CA have the same doubt.
        assert_eq!(other.accepted(&chain), Err(None));
        let missing = accepted(&[own]).unwrap_err().unwrap();
        assert!(
            missing.contains("the certificate of \"CN=middle\" is missing. Add it at"),
            "{missing}"
        );
        let alone = params("alone", &["a.test"]).self_signed(&key).unwrap();
        let alone = accepted(&[alone.der().clone()]).unwrap_err().unwrap();
        assert!(alone.contains("\"CN=alone\" is no public CA"), "{alone}");
        let authority = authority("a").self_signed(&key).unwrap();
        let of_ca = Inspector::with_roots(vec![authority.der().clone()], "").accepted(&[authority.der().clone()]);
        assert_eq!(of_ca, Err(Some(SELF_SIGNED.to_owned())));
        let none = Inspector::with_roots(Vec::new(), "x").accepted(&[root.der().clone()]);
        assert!(none.unwrap_err().unwrap().contains("this system has no roots (x)"));
    }

    #[test]
    fn each_pair_has_its_findings() {
        let folder = Folder::new();
        let key = KeyPair::generate().unwrap();
        let certificate = params("a", &["a.test"]).self_signed(&key).unwrap();
        let inspector = Inspector::with_roots(vec![certificate.der().clone()], "");
        let files = folder.pair(&certificate.pem(), &key.serialize_pem());
        let mut owners = HashMap::new();
        let mut findings = |files: &PairFiles| inspector.pair(files, &mut owners);
        let fine = findings(&files);
        let [one] = &fine[..] else { panic!("{fine:?}") };
        assert_eq!((one.verdict, one.subject), (Verdict::Fine, Subject::Pair));
        assert!(
            one.text.starts_with("a.test; it expires at ") && one.text.ends_with("of this system accept it"),
            "{one:?}"
        );
        std::fs::set_permissions(&files.key, PermissionsExt::from_mode(0o620)).unwrap();
        let doubtful = findings(&files);
        let subjects: Vec<_> = doubtful
            .iter()
            .map(|finding| (finding.verdict, finding.subject))
            .collect();
        let expected = [Subject::Permissions, Subject::Names].map(|subject| (Verdict::Doubtful, subject));
        assert_eq!(subjects, expected);
        assert!(doubtful[0].text.contains("run `chmod go-w "), "{doubtful:?}");
        folder.write("key.pem", "");
        let faulty = findings(&files);
        assert_eq!((faulty.len(), faulty[0].verdict), (1, Verdict::Faulty));
    }

    #[test]
    fn the_files_for_targets_are_checked() {
        let folder = Folder::new();
        let key = KeyPair::generate().unwrap();
        let (mut old, mut own) = (authority("old"), params("own", &[]));
        old.not_after = date_time_ymd(2001, 1, 1);
        own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let pem = |params: CertificateParams| params.self_signed(&key).unwrap().pem();
        let new = pem(authority("new"));
        let line = new.lines().count() + 1;
        let authorities = folder.write("ca.pem", &(new + &pem(old)));
        let mut settings = ClientSettings {
            authorities: Some(authorities.clone()),
            name: None,
            alpn: OfferedProtocols::Listed(Vec::new()),
            pair: Some(folder.pair(&pem(own), &key.serialize_pem())),
            verifies: true,
            uses_kernel: false,
        };
        let inspector = Inspector::with_roots(Vec::new(), "");
        let found = |settings: &ClientSettings| -> Vec<_> {
            let all = inspector
                .targets(settings)
                .into_iter()
                .flat_map(|(_, findings)| findings);
            all.map(|finding| (finding.verdict, finding.text)).collect()
        };
        let all = found(&settings);
        let [(Verdict::Doubtful, old), (Verdict::Faulty, own)] = &all[..] else {
            panic!("{all:?}")
        };
        assert!(
            old.contains(&format!(
                "ca.pem:{line}: the certificate of \"CN=old\" has expired at 2001-01-01"
            )),
            "{old}"
        );
        assert!(own.contains("expected one with clientAuth"), "{own}");
        folder.write("ca.pem", &pem(authority("new")));
        folder.pair(&pem(params("own", &[])), &key.serialize_pem());
        let all = found(&settings);
        let [(Verdict::Fine, one), (Verdict::Fine, own)] = &all[..] else {
            panic!("{all:?}")
        };
        assert!(
            one == "1 CA for targets" && own.starts_with("for targets; it expires at "),
            "{all:?}"
        );
        folder.write("ca.pem", "nothing");
        settings.pair = None;
        assert_eq!(found(&settings)[0].0, Verdict::Faulty);
        settings.verifies = false;
        let all = found(&settings);
        assert!(all.len() == 1 && all[0].0 == Verdict::Doubtful, "{all:?}");
    }
}
