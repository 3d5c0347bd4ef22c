//! What is known about the TLS of a session, and its fields in the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log::Line;
use crate::reach::dial::TargetTls;
use crate::tls::server::Agreed;

/// What is known about the TLS of a session.
pub(super) struct TlsFacts {
    pub(super) agreed: Agreed,
    pub(super) is_truncated: Arc<AtomicBool>,
}

impl TlsFacts {
    /// Adds the fields of a record.
    pub(super) fn fill(&self, line: &mut Line) {
        line.text("tls", self.agreed.version);
        line.text("cipher", self.agreed.cipher);
        if let Some(protocol) = &self.agreed.alpn {
            line.text("alpn", protocol);
        }
        if self.agreed.is_resumed {
            line.text("resumed", "yes");
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
