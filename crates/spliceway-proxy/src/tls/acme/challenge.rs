//! The answer to TLS-ALPN-01 (RFC 8737): a certificate that has the hash of the challenge.

use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

/// The protocol by which a server validates a name on the listener itself.
const PROTOCOL: &[u8] = b"acme-tls/1";
const HASH_BYTES: usize = 32;

/// Returns whether a client wants to validate a name.
pub(crate) fn is_validation(hello: &ClientHello<'_>) -> bool {
    let mut offered = hello.alpn().into_iter().flatten();
    offered.any(|protocol| protocol == PROTOCOL)
}

/// Returns the configuration that answers the challenge of a name. `hash` is in hexadecimal.
/// Returns `None` if it is not a hash.
pub(super) fn answer(name: &str, hash: &str, provider: &Arc<CryptoProvider>) -> Option<Arc<ServerConfig>> {
    let hash = hash_from(hash)?;
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

fn hash_from(text: &str) -> Option<[u8; HASH_BYTES]> {
    let mut hash = [0; HASH_BYTES];
    if text.len() != 2 * HASH_BYTES {
        return None;
    }
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_answered_with_its_hash() {
        let provider = crate::tls::crypto::provider();
        let config = answer("a.test", &"0f".repeat(32), &provider).unwrap();
        assert_eq!(config.alpn_protocols, [PROTOCOL]);
        assert!(answer("a.test", "0f", &provider).is_none());
    }

    #[test]
    fn a_hash_is_64_hexadecimal_digits() {
        assert_eq!(hash_from(&"0f".repeat(32)), Some([15; 32]));
        for other in ["", "0f", &"0g".repeat(32), &"0f".repeat(33), &"é".repeat(32)] {
            assert_eq!(hash_from(other), None, "{other}");
        }
    }
}
