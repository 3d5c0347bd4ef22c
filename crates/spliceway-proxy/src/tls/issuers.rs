//! Certificates that may have issued others: those of CAs, and those that a peer sends after its
//! own.

use std::collections::HashSet;
use std::error;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, Error, OtherError};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::{BasicConstraints, KeyUsage, NameConstraints};

/// How many certificates may have the same subject as one before them. A CA with a new key, or
/// another CA above it, is the reason for one or two. The verifier tries each order of certificates
/// with one subject: without this bound, a peer without a valid certificate keeps a worker busy for
/// a tenth of a second.
const REPEATED_MAX: usize = 2;

/// A certificate that may have issued others.
#[derive(Debug)]
pub(super) struct Authority {
    /// The name, in DER.
    subject: Vec<u8>,
    /// Whether it restricts the names in certificates below it.
    pub(super) restricts_names: bool,
    /// How many CAs may be between it and the certificate of a peer.
    pub(super) between_max: Option<u8>,
    /// Whether it may sign CRLs.
    pub(super) signs_crls: bool,
}

/// Why a certificate cannot have issued others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotAnIssuer {
    Damaged,
    /// It does not say that it is the certificate of a CA.
    NotCa,
    /// Its key is for other uses.
    OtherKeyUsage,
}

/// Too many certificates of a peer have the same subject.
#[derive(Debug)]
pub(super) struct TooManyAlike;

impl Authority {
    pub(super) fn read(certificate: &CertificateDer<'_>) -> Result<Self, NotAnIssuer> {
        let damaged = |_| NotAnIssuer::Damaged;
        let parsed = Certificate::from_der(certificate).map_err(damaged)?;
        let parsed = parsed.tbs_certificate();
        let constraints = parsed.get_extension::<BasicConstraints>().map_err(damaged)?;
        // The first version has no constraints. As in OpenSSL, a self-signed one is that of a CA.
        let is_old_root = parsed.version() == Version::V1 && parsed.subject() == parsed.issuer();
        let constraints = constraints.map(|(_, constraints)| constraints);
        if !is_old_root && !constraints.as_ref().is_some_and(|constraints| constraints.ca) {
            return Err(NotAnIssuer::NotCa);
        }
        let usage = parsed.get_extension::<KeyUsage>().map_err(damaged)?;
        let usage = usage.map(|(_, usage)| usage);
        if usage.is_some_and(|usage| !usage.key_cert_sign()) {
            return Err(NotAnIssuer::OtherKeyUsage);
        }
        Ok(Self {
            subject: parsed.subject().to_der().map_err(damaged)?,
            restricts_names: parsed.get_extension::<NameConstraints>().map_err(damaged)?.is_some(),
            between_max: constraints.and_then(|constraints| constraints.path_len_constraint),
            signs_crls: usage.is_none_or(|usage| usage.crl_sign()),
        })
    }
}

/// What a peer sends after its own certificate, as far as it may have issued others.
pub(super) struct Issuers<'a> {
    pub(super) certificates: Vec<CertificateDer<'a>>,
    /// Whether one of them restricts the names in certificates below it.
    pub(super) restrict_names: bool,
}

impl<'a> Issuers<'a> {
    /// Leaves out what cannot have issued others, and what is repeated.
    pub(super) fn of(sent: &'a [CertificateDer<'_>]) -> Result<Self, Error> {
        let mut issuers = Self {
            certificates: Vec::with_capacity(sent.len()),
            restrict_names: false,
        };
        let (mut seen, mut subjects) = (HashSet::new(), HashSet::new());
        let mut repeated = 0;
        for certificate in sent {
            if !seen.insert(&**certificate) {
                continue;
            }
            let Ok(authority) = Authority::read(certificate) else {
                continue;
            };
            repeated += usize::from(!subjects.insert(authority.subject));
            if repeated > REPEATED_MAX {
                let why = CertificateError::Other(OtherError(Arc::new(TooManyAlike)));
                return Err(why.into());
            }
            issuers.restrict_names |= authority.restricts_names;
            issuers.certificates.push(CertificateDer::from(&**certificate));
        }
        Ok(issuers)
    }
}

impl Display for NotAnIssuer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Damaged => "it is damaged",
            Self::NotCa => "its basicConstraints do not have CA:TRUE",
            Self::OtherKeyUsage => "its keyUsage does not have keyCertSign",
        })
    }
}

impl Display for TooManyAlike {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "more than {REPEATED_MAX} of the certificates repeat the subject of another: expected one chain"
        )
    }
}

impl error::Error for TooManyAlike {}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};

    fn certificate(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        change(&mut params);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        certificate.der().clone()
    }

    #[test]
    fn only_the_certificates_of_cas_can_have_issued_others() {
        for (change, expected) in [
            (|_: &mut CertificateParams| {}, Ok(())),
            (
                |params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign],
                Ok(()),
            ),
            (
                |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature],
                Err(NotAnIssuer::OtherKeyUsage),
            ),
            (|params| params.is_ca = IsCa::ExplicitNoCa, Err(NotAnIssuer::NotCa)),
            (|params| params.is_ca = IsCa::NoCa, Err(NotAnIssuer::NotCa)),
        ] as [(fn(&mut CertificateParams), _); 5]
        {
            let certificate = certificate("a", change);
            assert_eq!(Authority::read(&certificate).map(|_| ()), expected);
            let sent = [certificate];
            let issuers = Issuers::of(&sent).unwrap();
            assert_eq!(issuers.certificates.len(), usize::from(expected.is_ok()));
        }
        let damaged = Authority::read(&CertificateDer::from(vec![0x30, 0]));
        assert_eq!(damaged.map(|_| ()), Err(NotAnIssuer::Damaged));
    }

    #[test]
    fn a_peer_may_repeat_certificates_and_two_subjects() {
        let of = |names: &str| -> Vec<_> { names.split(' ').map(|name| certificate(name, |_| {})).collect() };
        for (names, is_accepted) in [
            ("a b c d e f g h", true),
            ("a b a b", true),
            ("a a a", true),
            ("a a a a", false),
            ("a b c a b c", false),
        ] {
            let mut sent = of(names);
            let count = sent.len();
            sent.extend(sent.clone());
            let issuers = Issuers::of(&sent).map(|issuers| issuers.certificates.len());
            assert_eq!(issuers.ok(), is_accepted.then_some(count), "{names}");
        }
    }
}
