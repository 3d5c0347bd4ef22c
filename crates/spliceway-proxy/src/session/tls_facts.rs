//! What is known about the TLS of a session, and its fields in the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log::Line;
use crate::reach::dial::TargetTls;
use crate::tls::agreed::Agreed;
use crate::tls::client_name::ClientCert;
use spliceway_protocol::proxy;

/// What is known about the TLS of a session.
#[derive(Default)]
pub(crate) struct TlsFacts {
    /// `None` if the handshake has failed.
    pub(crate) agreed: Option<Agreed>,
    /// The certificate of a client whose handshake has failed. Nothing is proven.
    pub(crate) shown: Option<Box<ClientCert>>,
    pub(crate) is_truncated: Arc<AtomicBool>,
}

impl TlsFacts {
    /// Returns the TLVs of a header for the target, after those of a header from the client.
    pub(super) fn tlvs(&self, before: &[u8]) -> Vec<u8> {
        let Some(agreed) = &self.agreed else {
            return before.to_vec();
        };
        let cert = agreed.client_cert.as_ref();
        let facts = proxy::Tls {
            version: match agreed.version {
                "1.3" => "TLSv1.3",
                _ => "TLSv1.2",
            },
            cipher: agreed.cipher_as_openssl(),
            alpn: agreed.alpn.as_deref(),
            server_name: agreed.name.as_deref(),
            has_certificate: cert.is_some(),
            common_name: cert.and_then(|cert| cert.common_name.as_deref()),
        };
        facts.after(before)
    }

    /// Adds the fields of a record.
    pub(super) fn fill(&self, line: &mut Line) {
        if let Some(agreed) = &self.agreed {
            line.text("tls", agreed.version);
            line.text("cipher", agreed.cipher);
            if let Some(protocol) = &agreed.alpn {
                line.text("alpn", protocol);
            }
            if agreed.is_resumed {
                line.text("resumed", "yes");
            }
        }
        let accepted = self.agreed.as_ref().and_then(|agreed| agreed.client_cert.as_ref());
        if let Some(cert) = accepted.or(self.shown.as_ref()) {
            line.text("client_cert", &cert.name);
            line.text("client_cert_sha256", &cert.fingerprint.digits());
        }
        if self.is_truncated.load(Ordering::Relaxed) {
            line.text("truncated", "yes");
        }
    }
}

/// Adds the fields of a record about the TLS of the target.
pub(super) fn fill_target(tls: &TargetTls, line: &mut Line) {
    let TargetTls { agreed, is_truncated } = tls;
    line.text("target_tls", agreed.version);
    line.text("target_cipher", agreed.cipher);
    if let Some(protocol) = &agreed.alpn {
        line.text("target_alpn", protocol);
    }
    if agreed.is_resumed {
        line.text("target_resumed", "yes");
    }
    if !agreed.is_verified {
        line.text("target_verified", "no");
    }
    if is_truncated.load(Ordering::Relaxed) {
        line.text("target_truncated", "yes");
    }
}
