//! Why a handshake with a client has failed, in records and in metrics.

use std::fmt::{self, Display, Formatter};
use std::io;

use rustls::{AlertDescription, Error};

use super::client_cert::{BadClientCert, BadClientCertKind};
use super::client_name::ClientCert;
use super::counts::Failure;
use crate::kit::tls_error::{Peer, TlsError};

/// Why a handshake failed.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The client has closed the connection.
    Gone,
    /// The client has validated a name by ACME, and wants nothing else.
    Validated(Box<str>),
    /// No certificate is issued yet.
    NoCertificate,
    /// No certificate has the name that the client stated.
    UnknownName(Box<str>),
    /// The client's first bytes are not TLS.
    NotTls(NotTls),
    /// The client's hello is longer than this number of bytes.
    LongHello(usize),
    /// The client's messages do not fit the settings, or it refuses and says why.
    Tls(TlsError),
    /// The client has no certificate that the service accepts.
    ClientCert(BadClientCert),
    Failed(io::Error),
}

/// What a client sends instead of TLS, if its first bytes tell.
#[derive(Debug)]
pub(crate) struct NotTls(Option<&'static str>);

/// The first bytes of other protocols.
const OTHERS: [(&[u8], &str); 15] = [
    (b"GET ", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"POST", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"PATCH", "HTTP"),
    (b"DELETE", "HTTP"),
    (b"OPTIONS", "HTTP"),
    (b"CONNECT", "HTTP"),
    (b"PRI ", "HTTP"),
    (b"SSH-", "SSH"),
    (b"PROXY ", "a PROXY header, which needs accept_proxy"),
    (b"\r\n\r\n\0\r\n", "a PROXY header, which needs accept_proxy"),
    (b"\x04", "SOCKS4"),
    (b"\x05", "SOCKS5"),
    (b"\x80", "SSL 2"),
];
/// The first byte of a hello: the content type of a record.
const HANDSHAKE: u8 = 22;

impl NotTls {
    /// Returns `None` if the bytes may begin a hello.
    pub(super) fn find(first: &[u8]) -> Option<Self> {
        let other = || OTHERS.iter().find(|(bytes, _)| first.starts_with(bytes));
        (first.first() != Some(&HANDSHAKE)).then(|| Self(other().map(|(_, name)| *name)))
    }
}

impl HandshakeError {
    /// Returns the same error, with the certificate that the client has shown if it is about that.
    pub(super) fn about(self, shown: Option<Box<ClientCert>>) -> Self {
        match self {
            Self::Tls(tls) => match BadClientCert::of(&tls.error, shown) {
                Some(bad) => Self::ClientCert(bad),
                None => Self::Tls(tls),
            },
            error => error,
        }
    }
}

impl From<Error> for HandshakeError {
    fn from(error: Error) -> Self {
        let peer = Peer::Client;
        Self::Tls(TlsError { error, peer })
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => return Self::Gone,
            io::ErrorKind::InvalidData => {}
            _ => return Self::Failed(error),
        }
        error.downcast::<Error>().map_or_else(Self::Failed, Self::from)
    }
}

impl Display for HandshakeError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the client has closed the connection in the handshake"),
            Self::NotTls(NotTls(None)) => f.write_str("the client does not speak TLS"),
            Self::NotTls(NotTls(Some(other))) => write!(f, "the client does not speak TLS: it sends {other}"),
            Self::LongHello(max) => write!(f, "the client's hello is longer than {} KiB", max >> 10),
            Self::Validated(name) => write!(f, "the client has validated {name} for ACME"),
            Self::NoCertificate => f.write_str("ACME has issued no certificate yet: the log says why"),
            Self::UnknownName(name) => write!(f, "no certificate has the name {name:?}"),
            Self::Tls(error) => error.fmt(f),
            Self::ClientCert(bad) => bad.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl Failure {
    /// Returns `None` if nothing failed.
    pub(crate) fn of(error: &HandshakeError) -> Option<Self> {
        Some(match error {
            HandshakeError::Validated(_) => return None,
            HandshakeError::NoCertificate => Self::Other,
            HandshakeError::Gone | HandshakeError::Failed(_) => Self::Closed,
            HandshakeError::NotTls(_) | HandshakeError::LongHello(_) => Self::Malformed,
            HandshakeError::UnknownName(_) => Self::UnknownName,
            HandshakeError::Tls(tls) => match &tls.error {
                Error::AlertReceived(alert) => of_alert(*alert),
                Error::InvalidMessage(_)
                | Error::InappropriateMessage { .. }
                | Error::InappropriateHandshakeMessage { .. }
                | Error::PeerMisbehaved(_)
                | Error::PeerSentOversizedRecord
                | Error::DecryptError => Self::Malformed,
                Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::NothingInCommon,
                _ => Self::Other,
            },
            HandshakeError::ClientCert(bad) => match bad.kind() {
                BadClientCertKind::None => Self::NoClientCert,
                _ => Self::ClientCert,
            },
        })
    }
}

fn of_alert(alert: AlertDescription) -> Failure {
    match alert {
        AlertDescription::NoCertificate
        | AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::BadCertificateStatusResponse => Failure::CertificateRefused,
        AlertDescription::ProtocolVersion
        | AlertDescription::InsufficientSecurity
        | AlertDescription::NoApplicationProtocol => Failure::NothingInCommon,
        AlertDescription::UserCanceled | AlertDescription::CloseNotify => Failure::Closed,
        _ => Failure::Alert,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::CertificateError;

    #[test]
    fn failures_of_certificates_have_reasons_of_their_own() {
        let failure = |error| Failure::of(&error).unwrap();
        let unknown = Error::AlertReceived(AlertDescription::UnknownCA).into();
        assert_eq!(failure(unknown), Failure::CertificateRefused);
        let of_client = |error| HandshakeError::ClientCert(BadClientCert::of(&error, None).unwrap());
        assert_eq!(
            failure(of_client(Error::NoCertificatesPresented)),
            Failure::NoClientCert
        );
        assert_eq!(
            failure(of_client(CertificateError::Revoked.into())),
            Failure::ClientCert
        );
        assert_eq!(failure(HandshakeError::Gone), Failure::Closed);
    }
}
