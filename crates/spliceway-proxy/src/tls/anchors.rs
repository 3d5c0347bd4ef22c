//! The CAs to trust, and the chains that end at one of them.

use std::ptr;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::{CertificateError, DistinguishedName, Error, OtherError};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath, anchor_from_trusted_cert};

use super::issuers::Authority;

/// CAs to trust.
#[derive(Debug, Default)]
pub(super) struct Anchors {
    all: Vec<TrustAnchor<'static>>,
    /// How many CAs may be between each of them and the certificate of a peer.
    between_max: Vec<Option<u8>>,
}

impl Anchors {
    /// Trusts this CA.
    ///
    /// # Errors
    /// Returns what is wrong with the certificate.
    pub(super) fn add(&mut self, certificate: &CertificateDer<'_>) -> Result<TrustAnchor<'static>, Error> {
        let anchor = anchor_from_trusted_cert(certificate).map_err(error)?.to_owned();
        let authority = Authority::read(certificate).ok();
        self.between_max
            .push(authority.and_then(|authority| authority.between_max));
        self.all.push(anchor.clone());
        Ok(anchor)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the names, each in DER without its tag and its length.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &[u8]> {
        self.all.iter().map(|anchor| &*anchor.subject)
    }

    /// Returns the names that tell a client which certificate to choose.
    pub(super) fn hints(&self) -> impl Iterator<Item = DistinguishedName> {
        self.subjects().map(DistinguishedName::in_sequence)
    }

    /// Returns whether a CA restricts the names in certificates below it.
    pub(super) fn restrict_names(&self) -> bool {
        self.all.iter().any(|anchor| anchor.name_constraints.is_some())
    }

    /// Verifies a certificate and the ones between it and a CA. `check` may refuse one of several
    /// paths.
    ///
    /// # Errors
    /// Returns what is wrong with the path that came closest.
    pub(super) fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
        provider: &CryptoProvider,
        check: impl Fn(&VerifiedPath<'_>) -> Result<(), webpki::Error>,
    ) -> Result<(), Error> {
        let certificate = EndEntityCert::try_from(certificate).map_err(error)?;
        // The library checks this for the CAs between, and not for the trusted one.
        let check = |path: &VerifiedPath<'_>| {
            let mut all = self.all.iter().zip(&self.between_max);
            let anchor = all.find(|(anchor, _)| ptr::eq(*anchor, path.anchor()));
            let max = anchor.and_then(|(_, max)| *max);
            // One that a CA has issued to itself, such as for a new key, does not count
            // (RFC 5280, section 4.2.1.9).
            let others = path.intermediate_certificates();
            let others = others.filter(|one| one.subject() != one.issuer()).count();
            if max.is_some_and(|max| others > max.into()) {
                return Err(webpki::Error::PathLenConstraintViolated);
            }
            check(path)
        };
        let algorithms = provider.signature_verification_algorithms.all;
        let verified = certificate.verify_for_usage(algorithms, &self.all, between, now, usage, None, Some(&check));
        verified.map(drop).map_err(error)
    }
}

/// Returns the error for a handshake, from which the alert follows.
fn error(error: webpki::Error) -> Error {
    use webpki::Error::*;
    let error = match error {
        BadDer | BadDerTime | TrailingData(_) => CertificateError::BadEncoding,
        InvalidCertValidity => CertificateError::Expired,
        CertExpired { time, not_after } => CertificateError::ExpiredContext { time, not_after },
        CertNotValidYet { time, not_before } => CertificateError::NotValidYetContext { time, not_before },
        CertRevoked => CertificateError::Revoked,
        CrlExpired { time, next_update } => CertificateError::ExpiredRevocationListContext { time, next_update },
        InvalidSignatureForPublicKey => CertificateError::BadSignature,
        RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        UnknownIssuer => CertificateError::UnknownIssuer,
        UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
        error => CertificateError::Other(OtherError(Arc::new(error))),
    };
    error.into()
}

/// Returns whether more CAs are in a chain than one of them allows.
pub(super) fn is_too_long(error: &OtherError) -> bool {
    matches!(error.0.downcast_ref(), Some(webpki::Error::PathLenConstraintViolated))
}
