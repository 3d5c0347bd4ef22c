//! Why a handshake with a server has failed.

use std::fmt::{self, Display, Formatter};
use std::io;

use rustls::{CertificateError, Error, HandshakeType, OtherError};
use spliceway_protocol::Failure;

use super::anchors::is_too_long;
use super::verifier::{Untrusted, time};
use crate::kit::tls_error::{self, Peer, TlsError, is_no_record};
use crate::kit::tls_failure::TlsFailure;

/// Certificates may have hundreds of names.
const NAMES_SHOWN: usize = 8;

/// Why a handshake with a server has failed.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// The certificate is refused.
    Certificate(BadCertificate),
    /// The server's first bytes are not TLS.
    NotTls,
    /// The server has closed the connection in the handshake.
    Closed,
    TimedOut,
    /// The settings of the client do not say how to speak TLS to this server. Those after a reload
    /// do.
    OlderSettings,
    /// The server does not agree on the protocol on which the client has agreed.
    OtherProtocol(Box<str>),
    /// The server's messages do not fit the settings, or it refuses and says why.
    Tls(TlsError),
    Io(io::Error),
}

/// What is wrong with the certificate of a server.
#[derive(Debug)]
pub(crate) enum BadCertificate {
    /// It has expired, at this time if that is known.
    Expired(Option<Box<str>>),
    /// It becomes valid later, at this time if that is known.
    NotValidYet(Option<Box<str>>),
    /// It has these names, and not the first one.
    WrongName(Box<str>, Vec<Box<str>>),
    Untrusted(Untrusted),
    Other(CertificateError),
}

impl ConnectError {
    /// Returns the reason for records and metrics.
    pub(crate) fn reason(&self) -> TlsFailure {
        match self {
            Self::Certificate(bad) => bad.reason(),
            Self::NotTls => TlsFailure::Missing,
            Self::Closed => TlsFailure::Closed,
            Self::TimedOut => TlsFailure::Timeout,
            Self::OlderSettings => TlsFailure::Settings,
            Self::Tls(tls) if matches!(tls.error, Error::AlertReceived(_)) => TlsFailure::Alert,
            Self::OtherProtocol(_) | Self::Tls(_) => TlsFailure::Handshake,
            Self::Io(_) => TlsFailure::Io,
        }
    }

    /// Returns the failure to report to the client.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::TimedOut => Failure::TimedOut,
            _ => Failure::General,
        }
    }
}

impl BadCertificate {
    fn reason(&self) -> TlsFailure {
        match self {
            Self::Expired(_) => TlsFailure::Expired,
            Self::NotValidYet(_) => TlsFailure::NotYetValid,
            Self::WrongName(..) => TlsFailure::WrongName,
            Self::Untrusted(Untrusted::SelfSigned) => TlsFailure::SelfSigned,
            Self::Untrusted(Untrusted::UnknownAuthority(_) | Untrusted::OtherKey(_) | Untrusted::NotAnAuthority(_)) => {
                TlsFailure::UnknownIssuer
            }
            Self::Untrusted(Untrusted::MissingIssuer(_)) => TlsFailure::MissingIssuer,
            Self::Other(_) => TlsFailure::Certificate,
        }
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        if let UnexpectedEof | BrokenPipe | ConnectionAborted | ConnectionReset = error.kind() {
            return Self::Closed;
        }
        match error.downcast::<Error>() {
            Ok(error) => error.into(),
            Err(error) => Self::Io(error),
        }
    }
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(error) => Self::Certificate(error.into()),
            Error::InvalidMessage(why) if is_no_record(why) => Self::NotTls,
            // It sends back what it receives.
            Error::InappropriateHandshakeMessage {
                got_type: HandshakeType::ClientHello,
                ..
            } => Self::NotTls,
            error => Self::Tls(TlsError {
                error,
                peer: Peer::Target,
            }),
        }
    }
}

impl From<CertificateError> for BadCertificate {
    fn from(error: CertificateError) -> Self {
        match error {
            CertificateError::Expired => Self::Expired(None),
            CertificateError::ExpiredContext { not_after, .. } => {
                Self::Expired(Some(time(not_after).to_string().into()))
            }
            CertificateError::NotValidYet => Self::NotValidYet(None),
            CertificateError::NotValidYetContext { not_before, .. } => {
                Self::NotValidYet(Some(time(not_before).to_string().into()))
            }
            CertificateError::NotValidForNameContext { expected, presented } => {
                let names = presented.iter().map(|name| bare(name).into()).collect();
                Self::WrongName(expected.to_str().as_ref().into(), names)
            }
            CertificateError::Other(OtherError(error)) => match error.downcast_ref::<Untrusted>() {
                Some(untrusted) => Self::Untrusted(untrusted.clone()),
                None => Self::Other(CertificateError::Other(OtherError(error))),
            },
            error => Self::Other(error),
        }
    }
}

/// Returns the name in text such as `DnsName("a.example")` or `IpAddress(192.0.2.1)`.
fn bare(presented: &str) -> String {
    let inner = presented.split_once('(').and_then(|(_, name)| name.strip_suffix(')'));
    let name = inner.unwrap_or(presented).trim_matches('"');
    spliceway_protocol::printable(name.as_bytes()).into()
}

impl Display for ConnectError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(bad) => bad.fmt(f),
            Self::NotTls => f.write_str("the server does not speak TLS on this port"),
            Self::Closed => f.write_str(
                "the server has closed the connection in the TLS handshake: its log may say why, \
                 such as that it wants a certificate (target_tls_cert)",
            ),
            Self::TimedOut => f.write_str("the TLS handshake has not ended within the connect timeout"),
            Self::OlderSettings => f.write_str("the session began before a reload that has given the server TLS"),
            Self::OtherProtocol(protocol) => write!(
                f,
                "the server does not speak {protocol:?} (ALPN), on which the client has agreed: remove it from tls_alpn"
            ),
            Self::Tls(error) => error.fmt(f),
            Self::Io(error) => write!(f, "TLS handshake: {error}"),
        }
    }
}

impl Display for BadCertificate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(None) => f.write_str("the certificate has expired"),
            Self::Expired(Some(at)) => write!(f, "the certificate has expired: it was valid until {at}"),
            Self::NotValidYet(None) => f.write_str("the certificate is not valid yet"),
            Self::NotValidYet(Some(at)) => write!(f, "the certificate is not valid yet: it is valid from {at}"),
            Self::WrongName(expected, names) if names.is_empty() => {
                write!(f, "the certificate is not for {expected}: it has no name (SAN) at all")
            }
            Self::WrongName(expected, names) => {
                let (shown, more) = names.split_at(names.len().min(NAMES_SHOWN));
                write!(
                    f,
                    "the certificate is not for {expected}: it is for {}",
                    shown.join(", ")
                )?;
                match more.len() {
                    0 => Ok(()),
                    more => write!(f, " and {more} more names"),
                }
            }
            Self::Untrusted(why) => why.fmt(f),
            Self::Other(CertificateError::Other(error)) if is_too_long(error) => {
                f.write_str("a CA of the chain allows fewer certificates of CAs below it (pathlen)")
            }
            Self::Other(error) => {
                let why = tls_error::BadCertificate(error, Peer::Target);
                write!(f, "the certificate is not valid: {why}")
            }
        }
    }
}
