//! Why a handshake failed, as metrics show it.

use rustls::{AlertDescription, Error};

use super::counts::Failure;
use super::server::HandshakeError;

impl Failure {
    /// Returns `None` if nothing failed.
    pub(crate) fn of(error: &HandshakeError) -> Option<Self> {
        Some(match error {
            HandshakeError::Validated(_) => return None,
            HandshakeError::NoCertificate => Self::Other,
            HandshakeError::Gone | HandshakeError::Failed(_) => Self::Closed,
            HandshakeError::LongHello => Self::Malformed,
            HandshakeError::UnknownName(_) => Self::UnknownName,
            HandshakeError::Alert(alert) => of_alert(*alert),
            HandshakeError::Tls(error) => match error {
                Error::InvalidMessage(_)
                | Error::InappropriateMessage { .. }
                | Error::InappropriateHandshakeMessage { .. }
                | Error::PeerMisbehaved(_)
                | Error::PeerSentOversizedRecord
                | Error::DecryptError => Self::Malformed,
                Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::NothingInCommon,
                Error::NoCertificatesPresented => Self::NoClientCert,
                Error::InvalidCertificate(_) | Error::InvalidCertRevocationList(_) => Self::ClientCert,
                _ => Self::Other,
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

    #[test]
    fn failures_of_certificates_have_reasons_of_their_own() {
        let failure = |error| Failure::of(&error).unwrap();
        let unknown = HandshakeError::Alert(AlertDescription::UnknownCA);
        assert_eq!(failure(unknown), Failure::CertificateRefused);
        let none = HandshakeError::Tls(Error::NoCertificatesPresented);
        assert_eq!(failure(none), Failure::NoClientCert);
        assert_eq!(failure(HandshakeError::Gone), Failure::Closed);
    }
}
