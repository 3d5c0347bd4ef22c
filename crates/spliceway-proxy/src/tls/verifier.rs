//! Verifies the certificate of a server, and says what is wrong with it.

use std::error;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use webpki::KeyUsage;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::name::Name;

use super::anchors::{Anchors, is_too_long};
use super::issuers::Issuers;

/// The longest tag and length before the content of a name.
const HEAD_MAX_BYTES: usize = 4;

/// Verifies chains, names and times.
#[derive(Debug)]
pub(super) struct Verifier {
    /// The authorities. None if the operator's file has the certificate of the server itself.
    anchors: Anchors,
    provider: Arc<CryptoProvider>,
    /// The certificates of the operator's file. One of them may be that of the server itself.
    named: Vec<CertificateDer<'static>>,
}

/// Why no authority vouches for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Untrusted {
    SelfSigned,
    /// The chain ends at this authority, which is not trusted.
    UnknownAuthority(Box<str>),
    /// The chain ends at an authority that has this name of a trusted one, and another key.
    OtherKey(Box<str>),
    /// The server has sent no certificate of this authority, which is not a trusted one.
    MissingIssuer(Box<str>),
    /// The operator's file has a certificate of this issuer, and it is not that of an authority.
    NotAnAuthority(Box<str>),
}

impl Verifier {
    /// Trusts these authorities. `named` are the certificates that the operator's file has.
    pub(super) fn new(anchors: Anchors, named: Vec<CertificateDer<'static>>, provider: &Arc<CryptoProvider>) -> Self {
        Self {
            anchors,
            provider: Arc::clone(provider),
            named,
        }
    }

    /// Verifies a server whose own certificate is in the operator's file. Such a certificate may
    /// also be that of an authority, as `openssl req -x509` makes them.
    fn verify_named(certificate: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
        let malformed = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
        let parsed = Certificate::from_der(certificate).map_err(malformed)?;
        let validity = parsed.tbs_certificate().validity();
        let from = UnixTime::since_unix_epoch(validity.not_before.to_unix_duration());
        let to = UnixTime::since_unix_epoch(validity.not_after.to_unix_duration());
        if now < from {
            let why = CertificateError::NotValidYetContext {
                time: now,
                not_before: from,
            };
            return Err(why.into());
        }
        if now > to {
            let why = CertificateError::ExpiredContext {
                time: now,
                not_after: to,
            };
            return Err(why.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
    }

    /// Returns why the chain of a server leads to no authority, or `None` if the certificates do
    /// not say it.
    fn untrusted(&self, own: &CertificateDer<'_>, sent: &[CertificateDer<'_>]) -> Option<Untrusted> {
        let names = |certificate: &CertificateDer<'_>| {
            let parsed = Certificate::from_der(certificate).ok()?;
            let parsed = parsed.tbs_certificate();
            Some((parsed.subject().clone(), parsed.issuer().clone()))
        };
        let (subject, mut issuer) = names(own)?;
        if subject == issuer {
            return Some(Untrusted::SelfSigned);
        }
        let sent: Vec<(Name, Name)> = sent.iter().filter_map(names).collect();
        // Each step follows one certificate. Certificates that name each other end the search.
        for _ in 0..=sent.len() {
            let Some((subject, next)) = sent.iter().find(|(subject, _)| *subject == issuer) else {
                return Some(if self.has_authority(&issuer) {
                    Untrusted::OtherKey(shown(&issuer))
                } else if self
                    .named
                    .iter()
                    .filter_map(names)
                    .any(|(subject, _)| subject == issuer)
                {
                    Untrusted::NotAnAuthority(shown(&issuer))
                } else {
                    Untrusted::MissingIssuer(shown(&issuer))
                });
            };
            if subject == next {
                break;
            }
            issuer = next.clone();
        }
        Some(Untrusted::UnknownAuthority(shown(&issuer)))
    }

    fn has_authority(&self, name: &Name) -> bool {
        let der = name.to_der().unwrap_or_default();
        let is_name = |authority: &[u8]| der.len() <= authority.len() + HEAD_MAX_BYTES && der.ends_with(authority);
        self.anchors.subjects().any(is_name)
    }
}

fn shown(name: &Name) -> Box<str> {
    spliceway_protocol::printable(name.to_string().as_bytes())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.named.iter().any(|named| named == end_entity) {
            Self::verify_named(end_entity, server_name, now)?;
            return Ok(ServerCertVerified::assertion());
        }
        let issuers = Issuers::of(intermediates)?.certificates;
        let usage = KeyUsage::server_auth();
        let verified = self
            .anchors
            .verify(end_entity, &issuers, now, usage, &self.provider, |_| Ok(()));
        verified.map_err(|error| {
            use CertificateError::{BadSignature, Other, UnknownIssuer};
            let Error::InvalidCertificate(bad) = &error else {
                return error;
            };
            // An authority's certificate that a server uses as its own is one of the other errors.
            let is_chain = match bad {
                UnknownIssuer | BadSignature => true,
                Other(error) => !is_too_long(error),
                _ => false,
            };
            let untrusted = is_chain.then(|| self.untrusted(end_entity, intermediates)).flatten();
            // Other errors of a chain whose authority is trusted are not about its key.
            let is_about_key = |why: &Untrusted| matches!(why, Untrusted::OtherKey(_));
            let untrusted = untrusted.filter(|why| !(matches!(bad, Other(_)) && is_about_key(why)));
            untrusted.map_or(error, |why| CertificateError::Other(OtherError(Arc::new(why))).into())
        })?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts every certificate, as the operator has asked. The server must have its key.
#[derive(Debug)]
pub(super) struct Unverified(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl Display for Untrusted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::SelfSigned => f.write_str(
                "the certificate is self-signed and not trusted: give it, or that of its CA, as target_tls_ca",
            ),
            Self::UnknownAuthority(name) => write!(
                f,
                "the CA {name:?} is not trusted: give its certificate as target_tls_ca"
            ),
            Self::OtherKey(name) => write!(
                f,
                "the trusted CA {name:?} has another key: give its new certificate as target_tls_ca, too"
            ),
            Self::NotAnAuthority(name) => write!(
                f,
                "the certificate of {name:?} in target_tls_ca is that of a server and not of a CA: expected one \
                 with CA:TRUE, and keyCertSign if it has a keyUsage"
            ),
            Self::MissingIssuer(name) => write!(
                f,
                "the issuer {name:?} is unknown: give its certificate as target_tls_ca, or let the server send it if it \
                 is an intermediate one"
            ),
        }
    }
}

impl error::Error for Untrusted {}

/// Returns the time of a certificate as text.
pub(super) fn time(at: UnixTime) -> impl Display {
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(at.as_secs()))
}
