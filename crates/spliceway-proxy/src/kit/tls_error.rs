//! What the errors of TLS mean, in plain words: one table for records, logs and commands.

use std::error;
use std::fmt::{self, Display, Formatter};
use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// The other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Client,
    Target,
    /// An upstream proxy.
    Proxy,
}

/// An error of TLS. Its text is for an operator.
#[derive(Debug)]
pub(crate) struct TlsError {
    pub(crate) error: Error,
    pub(crate) peer: Peer,
}

/// The fault of a certificate, as a sentence that begins with "it".
pub(crate) struct BadCertificate<'a>(pub(crate) &'a CertificateError, pub(crate) Peer);

/// A name that rustls or webpki have for an error, such as `UnknownCA`, as words. Other text stays
/// as it is.
pub(super) struct Words<'a>(pub(super) &'a str);

impl TlsError {
    /// Returns the same error with the text for an operator, if it is one of TLS.
    pub(crate) fn explain(error: io::Error, peer: Peer) -> io::Error {
        let kind = error.kind();
        match error.downcast::<Error>() {
            Ok(error) => io::Error::new(kind, Self { error, peer }),
            Err(error) => error,
        }
    }

    /// Returns what [`Self::explain`] has put into an error.
    pub(super) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl error::Error for TlsError {}

impl Display for TlsError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let peer = match self.peer {
            Peer::Client => "the client",
            Peer::Target | Peer::Proxy => "the server",
        };
        match &self.error {
            Error::AlertReceived(alert) => {
                write!(f, "{peer} refuses (alert {})", words(alert))?;
                match meaning(*alert, self.peer) {
                    "" => Ok(()),
                    meaning => write!(f, ": {meaning}"),
                }
            }
            Error::InvalidCertificate(bad) => {
                let peer = if self.peer == Peer::Client { "client" } else { "server" };
                write!(
                    f,
                    "the certificate of the {peer} cannot be used: {}",
                    BadCertificate(bad, self.peer)
                )
            }
            Error::NoCertificatesPresented => write!(f, "{peer} has sent no certificate"),
            Error::PeerIncompatible(why) => incompatible(f, why, peer),
            Error::NoApplicationProtocol => write!(f, "{peer} offers no protocol (ALPN) that tls_alpn has"),
            Error::InvalidMessage(why) if is_no_record(*why) => write!(f, "{peer} sends bytes that are not TLS"),
            Error::InvalidMessage(why) => broken(f, &format_args!("{peer} sends a damaged message ({})", words(why))),
            Error::InappropriateMessage { got_type, .. } => broken(
                f,
                &format_args!("{peer} sends a message out of order ({})", words(got_type)),
            ),
            Error::InappropriateHandshakeMessage { got_type, .. } => broken(
                f,
                &format_args!("{peer} sends a message out of order ({})", words(got_type)),
            ),
            Error::PeerMisbehaved(why) => broken(f, &format_args!("{peer} breaks a rule of TLS ({})", words(why))),
            Error::DecryptError => broken(f, &format_args!("a message of {peer} cannot be decrypted")),
            Error::PeerSentOversizedRecord => broken(f, &format_args!("{peer} sends a record that is too long")),
            Error::InvalidCertRevocationList(why) => {
                write!(f, "the list of revoked certificates is not valid: {}", words(why))
            }
            Error::InvalidEncryptedClientHello(why) => write!(f, "the hello cannot be encrypted: {}", words(why)),
            Error::InconsistentKeys(why) => write!(f, "the key does not fit the certificate: {}", words(why)),
            Error::General(why) => write!(f, "TLS fails: {}", Words(why)),
            Error::Other(why) => write!(f, "TLS fails: {}", Words(&why.to_string())),
            // The text of the others is plain.
            error => write!(f, "TLS fails: {error}"),
        }
    }
}

/// Returns what is wrong with a certificate, a key or a list in a file.
pub(crate) fn fault(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why @ CertificateError::BadEncoding) => words(why),
        Error::InvalidCertificate(why) => BadCertificate(why, Peer::Client).to_string(),
        Error::General(why) => why.clone(),
        error => {
            let (error, peer) = (error.clone(), Peer::Client);
            TlsError { error, peer }.to_string()
        }
    }
}

/// Writes what has happened, and what the cause may be.
fn broken(f: &mut Formatter<'_>, what: &dyn Display) -> fmt::Result {
    write!(
        f,
        "{what}: its program has a fault, or the bytes were changed on the way"
    )
}

/// Returns whether bytes that cause this error are not TLS at all.
pub(crate) fn is_no_record(why: InvalidMessage) -> bool {
    matches!(
        why,
        InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge
            | InvalidMessage::InvalidEmptyPayload
    )
}

/// Returns what an alert means and what helps, or an empty text.
fn meaning(alert: AlertDescription, peer: Peer) -> &'static str {
    use AlertDescription as A;
    match (alert, peer) {
        (A::UnknownCA, Peer::Client) => {
            "it does not trust the CA of the certificate, or the file of tls_cert lacks an intermediate certificate"
        }
        (A::BadCertificate | A::CertificateUnknown, Peer::Client) => {
            "it does not trust the certificate, or expects another name in it"
        }
        (A::CertificateExpired, Peer::Client) => "the certificate has expired, or the client's clock is wrong",
        (A::CertificateRevoked, Peer::Client) => "the CA has revoked the certificate: give a new one as tls_cert",
        (A::UnsupportedCertificate, Peer::Client) => {
            "it cannot use the certificate: expected the extended key usage serverAuth, and a kind of key that it knows"
        }
        (A::BadCertificateStatusResponse, Peer::Client) => {
            "it does not accept the OCSP response: renew the file .ocsp beside the certificate, or remove it"
        }
        (A::ProtocolVersion, Peer::Client) => "it speaks no version of TLS that the service accepts (tls_min)",
        (A::HandshakeFailure | A::InsufficientSecurity, Peer::Client) => {
            "it accepts no suite, key exchange or signature of the service"
        }
        (A::NoApplicationProtocol, Peer::Client) => "it speaks no protocol (ALPN) that tls_alpn has",
        (A::CertificateRequired | A::NoCertificate, Peer::Target | Peer::Proxy) => {
            "it wants a certificate: give one as target_tls_cert"
        }
        (A::BadCertificate, Peer::Target | Peer::Proxy) => {
            "it does not accept the certificate of target_tls_cert, or wants one"
        }
        (A::UnknownCA, Peer::Target | Peer::Proxy) => {
            "it does not trust the CA of the certificate of target_tls_cert, or the file lacks an intermediate one"
        }
        (A::CertificateUnknown | A::AccessDenied, Peer::Target | Peer::Proxy) => {
            "it does not permit the certificate of target_tls_cert"
        }
        (A::CertificateExpired, Peer::Target | Peer::Proxy) => {
            "the certificate of target_tls_cert has expired, or the server's clock is wrong"
        }
        (A::CertificateRevoked, Peer::Target | Peer::Proxy) => "the certificate of target_tls_cert is revoked",
        (A::UnsupportedCertificate, Peer::Target | Peer::Proxy) => {
            "it cannot use the certificate of target_tls_cert: expected the extended key usage clientAuth, and a kind \
             of key that it knows"
        }
        (A::ProtocolVersion, _) => "it speaks neither TLS 1.2 nor TLS 1.3",
        (A::HandshakeFailure | A::InsufficientSecurity, Peer::Target | Peer::Proxy) => {
            "it shares no suite or key exchange with this program, or wants a certificate (target_tls_cert)"
        }
        (A::NoApplicationProtocol, Peer::Target | Peer::Proxy) => "it speaks no protocol (ALPN) of target_tls_alpn",
        (A::UnrecognisedName, Peer::Target | Peer::Proxy) => {
            "it has no certificate for the name of the target: another one may be right (target_tls_name)"
        }
        (A::MissingExtension, Peer::Target | Peer::Proxy) => {
            "it wants the name of a host, which an address is not: give one as target_tls_name"
        }
        (A::InternalError, _) => "it has a fault of its own, which its log may explain",
        (A::CloseNotify | A::UserCanceled, _) => "it has ended the handshake",
        (
            A::UnexpectedMessage
            | A::BadRecordMac
            | A::RecordOverflow
            | A::DecryptionFailed
            | A::DecompressionFailure
            | A::IllegalParameter
            | A::DecodeError
            | A::DecryptError
            | A::MissingExtension
            | A::UnsupportedExtension,
            _,
        ) => "one of both programs has a fault, or the bytes were changed on the way",
        _ => "",
    }
}

fn incompatible(f: &mut Formatter<'_>, why: &PeerIncompatible, peer: &str) -> fmt::Result {
    use PeerIncompatible as P;
    match why {
        P::SupportedVersionsExtensionRequired => write!(f, "{peer} speaks TLS 1.2 at most, and tls_min is 1.3"),
        P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled
        | P::SignatureAlgorithmsExtensionRequired
        | P::ServerDoesNotSupportTls12Or13
        | P::ServerTlsVersionIsDisabledByOurConfig => {
            write!(
                f,
                "{peer} speaks no version of TLS that is allowed: expected 1.3, or 1.2 if tls_min allows it"
            )
        }
        P::NoCipherSuitesInCommon => write!(
            f,
            "{peer} offers no suite that the service can use: expected AES-GCM or ChaCha20-Poly1305 with ECDHE, and a \
             certificate whose kind of key (RSA or ECDSA) the suite has"
        ),
        P::NoKxGroupsInCommon
        | P::NamedGroupsExtensionRequired
        | P::KeyShareExtensionRequired
        | P::EcPointsExtensionRequired
        | P::NoEcPointFormatsInCommon
        | P::UncompressedEcPointsRequired => write!(
            f,
            "{peer} offers no key exchange that the service can use: expected ECDHE with X25519, P-256 or P-384"
        ),
        P::NoSignatureSchemesInCommon => write!(
            f,
            "{peer} accepts no signature by the key of the certificate: give one with another kind of key (RSA or \
             ECDSA) as tls_cert"
        ),
        P::NoCertificateRequestSignatureSchemesInCommon => write!(
            f,
            "{peer} accepts no signature by the key of target_tls_cert: give one with another kind of key (RSA or \
             ECDSA)"
        ),
        P::ServerRejectedEncryptedClientHello(_) => write!(f, "{peer} does not accept the encrypted hello"),
        why => write!(f, "{peer} lacks what TLS needs here: {}", words(why)),
    }
}

const WEAK_SIGNATURE: &str =
    "its chain has a signature that is too weak or unknown, such as one with SHA-1: expected SHA-256 or better";

impl Display for BadCertificate<'_> {
    #[expect(deprecated, reason = "the verifier of rustls may still return the old form")]
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use CertificateError as C;
        f.write_str(match self.0 {
            C::BadEncoding => "it is damaged",
            C::Expired | C::ExpiredContext { .. } => "it has expired",
            C::NotValidYet | C::NotValidYetContext { .. } => "it is not valid yet",
            C::Revoked => "it is revoked",
            C::UnhandledCriticalExtension => "it has a critical extension that this program does not know",
            C::UnknownIssuer => match self.1 {
                Peer::Client => "no CA in tls_client_ca has issued it",
                Peer::Target | Peer::Proxy => "no trusted CA has issued it: give that of the server as target_tls_ca",
            },
            C::UnknownRevocationStatus => "it is unknown whether it is revoked",
            C::ExpiredRevocationList | C::ExpiredRevocationListContext { .. } => "the CRL of its CA has expired",
            C::BadSignature => "a signature of it, or of its key, is wrong",
            C::UnsupportedSignatureAlgorithm
            | C::UnsupportedSignatureAlgorithmContext { .. }
            | C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => WEAK_SIGNATURE,
            C::NotValidForNameContext { expected, .. } => return write!(f, "it is not for {}", expected.to_str()),
            C::NotValidForName => "it is for another name",
            C::InvalidPurpose | C::InvalidPurposeContext { .. } => match self.1 {
                Peer::Client => "it is for another use: expected the extended key usage clientAuth",
                _ => "it is for another use: expected the extended key usage serverAuth",
            },
            C::InvalidOcspResponse => "its OCSP response is not valid",
            C::ApplicationVerificationFailure => "it is not permitted",
            // webpki names its errors in their text alone.
            C::Other(error) => match &*error.to_string() {
                "CaUsedAsEndEntity" => "it is that of a CA: expected one without CA:TRUE",
                "EndEntityUsedAsCa" => "its chain has a certificate that is not that of a CA: expected CA:TRUE",
                "PathLenConstraintViolated" => "its chain is longer than a CA permits (pathlen)",
                "NameConstraintViolation" => "its CA may not issue certificates for its name (nameConstraints)",
                other if other.starts_with("UnsupportedSignatureAlgorithm") => WEAK_SIGNATURE,
                "UnsupportedCertVersion" => "its chain has a certificate of version 1: expected version 3",
                other => return Words(other).fmt(f),
            },
            // Newer versions of rustls may have others.
            other => return Words(&format!("{other:?}")).fmt(f),
        })
    }
}

/// Returns the name of a variant in words.
pub(crate) fn words(variant: &dyn fmt::Debug) -> String {
    Words(&format!("{variant:?}")).to_string()
}

/// Parts of names that are not words.
const TERMS: [(&str, &str); 14] = [
    ("Ccs", "change cipher spec"),
    ("Crl", "CRL"),
    ("Der", "DER"),
    ("Dh", "DH"),
    ("Ec", "EC"),
    ("Ech", "ECH"),
    ("Eku", "extended key usage"),
    ("Ems", "extended master secret"),
    ("Kx", "key exchange"),
    ("Psk", "PSK"),
    ("Quic", "QUIC"),
    ("Sct", "SCT"),
    ("Tls12", "TLS 1.2"),
    ("Tls13", "TLS 1.3"),
];

impl Display for Words<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_part = |char: char| char.is_ascii_alphanumeric();
        let name = self.0.split(|char| !is_part(char)).next().unwrap_or_default();
        let rest = &self.0[name.len()..];
        let is_name = name.starts_with(|first: char| first.is_ascii_uppercase())
            && (rest.is_empty() || rest.starts_with('(') || rest.starts_with(" {"));
        if !is_name {
            return f.write_str(self.0);
        }
        let bytes = name.as_bytes();
        let is_upper = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_uppercase);
        // A word begins at each capital, except within a run of them.
        let begins = |at: &usize| is_upper(*at) && (!is_upper(at - 1) || (at + 1 < bytes.len() && !is_upper(at + 1)));
        let mut start = 0;
        for end in (1..bytes.len()).filter(begins).chain([bytes.len()]) {
            let part = &name[start..end];
            if start > 0 {
                f.write_str(" ")?;
            }
            match TERMS.iter().find(|(term, _)| *term == part) {
                Some((_, term)) => f.write_str(term)?,
                None if part.len() > 1 && part.bytes().all(|byte| byte.is_ascii_uppercase()) => f.write_str(part)?,
                None => f.write_str(&part.to_ascii_lowercase())?,
            }
            start = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
