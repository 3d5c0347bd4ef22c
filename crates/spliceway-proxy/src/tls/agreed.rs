//! What a handshake with a client has agreed on, for records and headers.

use rustls::{CipherSuite, HandshakeKind, ProtocolVersion, ServerConnection};

use super::client_name::ClientCert;

/// What a handshake has agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    /// The name that the client stated.
    pub(crate) name: Option<Box<str>>,
    pub(crate) alpn: Option<Box<str>>,
    pub(crate) is_resumed: bool,
    pub(crate) client_cert: Option<Box<ClientCert>>,
}

impl Agreed {
    pub(super) fn new(
        session: &ServerConnection,
        name: Option<Box<str>>,
        client_cert: Option<Box<ClientCert>>,
    ) -> Self {
        let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
        let alpn = session.alpn_protocol().and_then(|name| std::str::from_utf8(name).ok());
        Self {
            version: match session.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "1.3",
                _ => "1.2",
            },
            cipher: suite.map_or("", iana_name),
            name,
            alpn: alpn.map(Box::from),
            is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            client_cert,
        }
    }

    /// Returns the name of the cipher suite in OpenSSL.
    pub(crate) fn cipher_as_openssl(&self) -> &'static str {
        match self.cipher {
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => "ECDHE-ECDSA-AES256-GCM-SHA384",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => "ECDHE-ECDSA-AES128-GCM-SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" => "ECDHE-ECDSA-CHACHA20-POLY1305",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => "ECDHE-RSA-AES256-GCM-SHA384",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => "ECDHE-RSA-AES128-GCM-SHA256",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" => "ECDHE-RSA-CHACHA20-POLY1305",
            other => other,
        }
    }
}

/// Returns the name in the registry of IANA, which other programs show. rustls has names of its own
/// for the suites of TLS 1.3.
pub(crate) fn iana_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        suite => suite.as_str().unwrap_or_default(),
    }
}
