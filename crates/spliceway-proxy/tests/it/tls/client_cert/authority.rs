//! A CA, and what it issues.

use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
    CrlIssuingDistributionPoint, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

/// A CA with its own key.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate with the certificates between it and the CA, and its key, in PEM.
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
    pub(crate) fingerprint: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        Self::changed(name, |_| {})
    }

    /// Returns a CA after a change to its certificate.
    pub(crate) fn changed(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let (mut params, key) = (Self::params(name, change), KeyPair::generate().unwrap());
        let pem = params.self_signed(&key).unwrap().pem();
        // It also signs what its certificate does not permit.
        params.key_usages.clear();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Returns a CA whose certificate this one has issued.
    pub(crate) fn intermediate(&self, name: &str) -> Self {
        self.intermediate_changed(name, |_| {})
    }

    /// Returns such a CA after a change to its certificate.
    pub(crate) fn intermediate_changed(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let (mut params, key) = (Self::params(name, change), KeyPair::generate().unwrap());
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        // It also signs what its certificate does not permit.
        params.key_usages.clear();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn params(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        change(&mut params);
        params
    }

    /// Issues a certificate for a client. `change` changes it before.
    pub(crate) fn issue(
        &self,
        common_name: &str,
        names: &[SanType],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = names.to_vec();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let issued = params.signed_by(&key, &self.issuer).unwrap();
        let digest = sha256(issued.der());
        Issued {
            chain: issued.pem(),
            key: key.serialize_pem(),
            fingerprint: digest,
        }
    }

    /// Issues a certificate with the number `serial` for a host.
    pub(crate) fn host(&self, name: &str, serial: u64) -> Issued {
        self.issue("", &[dns(name)], |params| {
            params.distinguished_name = DistinguishedName::new();
            params.serial_number = Some(serial.into());
        })
    }

    /// Returns a list of revoked certificates that is valid until this year.
    pub(crate) fn revoke(&self, serials: &[u64], year: i32) -> String {
        self.revoke_again(1, serials, year)
    }

    /// Returns such a list with this number.
    pub(crate) fn revoke_again(&self, number: u64, serials: &[u64], year: i32) -> String {
        self.list(number, serials, [year_of(2000), year_of(year)], None)
    }

    /// Returns an empty list that is valid until this time.
    pub(crate) fn revoke_until(&self, until: SystemTime) -> String {
        self.list(1, &[], [year_of(2000), until], None)
    }

    /// Returns a list that is valid between these years.
    pub(crate) fn revoke_between(&self, serials: &[u64], years: [i32; 2]) -> String {
        self.list(2, serials, years.map(year_of), None)
    }

    /// Returns such a list for the certificates with this distribution point.
    pub(crate) fn revoke_at(&self, number: u64, serials: &[u64], point: &str) -> String {
        let uris = vec![point.to_owned()];
        let point = CrlIssuingDistributionPoint {
            distribution_point: CrlDistributionPoint { uris },
            scope: None,
        };
        self.list(number, serials, [2000, 2900].map(year_of), Some(point))
    }

    fn list(
        &self,
        number: u64,
        serials: &[u64],
        valid: [SystemTime; 2],
        point: Option<CrlIssuingDistributionPoint>,
    ) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2001, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: valid[0].into(),
            next_update: valid[1].into(),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: point,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

pub(crate) fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

pub(crate) fn email(name: &str) -> SanType {
    SanType::Rfc822Name(name.try_into().unwrap())
}

pub(crate) fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

/// Returns the digest in hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let digest = suite.tls13().unwrap().common.hash_provider.hash(bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn year_of(year: i32) -> SystemTime {
    date_time_ymd(year, 1, 1).into()
}
