//! The cryptography of `--tls`.

use std::io;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::PrivateKeyDer;

/// Returns a provider that has only the cipher which rustls prefers.
pub(super) fn provider() -> io::Result<Arc<CryptoProvider>> {
    Ok(Arc::new(CryptoProvider {
        cipher_suites: vec![cipher_suite::TLS13_AES_256_GCM_SHA384],
        ..default_provider()
    }))
}

/// Returns a new certificate for this name, in PEM, and its key.
pub(super) fn identity(name: &str) -> io::Result<(String, PrivateKeyDer<'static>)> {
    let pair = rcgen::generate_simple_self_signed([name.to_owned()]).map_err(io::Error::other)?;
    let key = pair.signing_key.serialize_der();
    Ok((pair.cert.pem(), PrivateKeyDer::Pkcs8(key.into())))
}
