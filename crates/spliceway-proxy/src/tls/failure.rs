//! Why a handshake failed, as metrics show it.

use rustls::{AlertDescription, Error};

use super::client_cert::BadClientCertKind;
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
    use crate::tls::client_cert::BadClientCert;
    use rustls::CertificateError;

    #[test]
    fn failures_of_certificates_have_reasons_of_their_own() {
        let failure = |error| Failure::of(&error).unwrap();
        let unknown = HandshakeError::Alert(AlertDescription::UnknownCA);
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
