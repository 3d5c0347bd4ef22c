//! The answer to TLS-ALPN-01 (RFC 8737): a certificate that has the hash of the challenge.

use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::tls::crypto::sha256;

/// The protocol by which a server validates a name on the listener itself.
const PROTOCOL: &[u8] = b"acme-tls/1";

/// Returns whether a client wants to validate a name.
pub(crate) fn is_validation(hello: &ClientHello<'_>) -> bool {
    let mut offered = hello.alpn().into_iter().flatten();
    offered.any(|protocol| protocol == PROTOCOL)
}

/// Returns the configuration that answers the challenge of a name. `authorization` is the token
/// with the thumbprint of the account (RFC 8555, section 8.1).
pub(super) fn answer(name: &str, authorization: &str, provider: &Arc<CryptoProvider>) -> Option<Arc<ServerConfig>> {
    let hash = sha256(authorization.as_bytes());
    let key = KeyPair::generate().ok()?;
    let mut certificate = CertificateParams::new([name.to_owned()]).ok()?;
    certificate.distinguished_name = DistinguishedName::new();
    certificate.custom_extensions = vec![CustomExtension::new_acme_identifier(&hash)];
    let certificate = certificate.self_signed(&key).ok()?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let key = provider.key_provider.load_private_key(key.into()).ok()?;
    // A check of the certificate would refuse the extension, which is critical and unknown to it.
    let pair = CertifiedKey::new(vec![certificate.der().clone()], key);
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .ok()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.send_tls13_tickets = 0;
    Some(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::crypto::provider;

    #[test]
    fn a_challenge_is_answered_with_its_hash() {
        let config = answer("a.test", "token.thumbprint", &provider()).unwrap();
        assert_eq!(config.alpn_protocols, [PROTOCOL]);
    }
}
