//! The reasons why TLS with a server fails, for records and metrics.

/// Why TLS with a target fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsFailure {
    Expired,
    NotYetValid,
    WrongName,
    SelfSigned,
    /// The authority is not trusted.
    UnknownIssuer,
    /// The server has not sent the certificate of an authority that is not trusted.
    MissingIssuer,
    /// The certificate has another fault.
    Certificate,
    /// The server does not speak TLS.
    Missing,
    Alert,
    Closed,
    Timeout,
    Handshake,
    Io,
    /// The session has older settings than the backend.
    Settings,
}

impl TlsFailure {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "tls_expired",
            Self::NotYetValid => "tls_not_yet_valid",
            Self::WrongName => "tls_wrong_name",
            Self::SelfSigned => "tls_self_signed",
            Self::UnknownIssuer => "tls_unknown_issuer",
            Self::MissingIssuer => "tls_missing_issuer",
            Self::Certificate => "tls_certificate",
            Self::Missing => "tls_missing",
            Self::Alert => "tls_alert",
            Self::Closed => "tls_closed",
            Self::Timeout => "tls_timeout",
            Self::Handshake => "tls_handshake",
            Self::Io => "tls_io",
            Self::Settings => "tls_settings",
        }
    }
}
