//! The certificate of servers, and settings of rustls with one cipher.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, KeyLog, RootCertStore, ServerConfig};

use crate::plan::Cipher;

/// The name in the certificate.
pub(crate) const NAME: &str = "a.test";

/// A certificate for `a.test` and 127.0.0.1, and its key.
pub struct Identity {
    /// The certificate, in PEM.
    pub certificate: String,
    /// The key, in PEM.
    pub key: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

impl Default for Identity {
    fn default() -> Self {
        let pair =
            rcgen::generate_simple_self_signed([NAME.to_owned(), "127.0.0.1".to_owned()]).expect("a certificate");
        Self {
            certificate: pair.cert.pem(),
            key: pair.signing_key.serialize_pem(),
        }
    }
}

impl Identity {
    pub(crate) fn client(&self, cipher: Cipher) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate()).expect("a certificate");
        ClientConfig::builder_with_provider(provider(cipher))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a cipher of TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    pub(crate) fn server(&self, cipher: Cipher) -> ServerConfig {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key");
        ServerConfig::builder_with_provider(provider(cipher))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a cipher of TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate()], key)
            .expect("a key that belongs to the certificate")
    }

    fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).expect("a certificate")
    }
}

fn provider(cipher: Cipher) -> Arc<rustls::crypto::CryptoProvider> {
    let suite = match cipher {
        Cipher::Aes128 => cipher_suite::TLS13_AES_128_GCM_SHA256,
        Cipher::Aes256 => cipher_suite::TLS13_AES_256_GCM_SHA384,
        Cipher::ChaCha20 => cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    };
    Arc::new(rustls::crypto::CryptoProvider {
        cipher_suites: vec![suite],
        ..aws_lc_rs::default_provider()
    })
}

/// Keeps the first secrets of both directions.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Mutex<[Vec<u8>; 2]>);

impl Secrets {
    /// Returns the secrets of the client and of the server.
    pub(crate) fn get(&self) -> [Vec<u8>; 2] {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let of = match label {
            "CLIENT_TRAFFIC_SECRET_0" => 0,
            "SERVER_TRAFFIC_SECRET_0" => 1,
            _ => return,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[of] = secret.to_vec();
    }
}
