//! What TLS in the kernel can do on this machine.

use std::io;
use std::sync::OnceLock;

use rustls::{CipherSuite, CommonState, ProtocolVersion};
use spliceway::{KernelTls, TlsCipher};
use spliceway_lab::kernel_tls::Unsupported;

/// The ciphers that the kernel accepts.
#[derive(Debug)]
pub(crate) struct KernelSupport {
    ciphers: Vec<TlsCipher>,
    /// The error for the first cipher that the kernel refuses.
    refused: Option<io::Error>,
}

/// What has become of a TLS connection that the kernel should take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switch {
    /// The kernel has it.
    Done,
    /// The kernel has only TLS 1.3 with key updates.
    OldVersion,
    /// The kernel lacks the cipher, or lacks key updates for it.
    NoCipher,
    /// The kernel has refused the socket.
    Refused,
    /// The kernel has refused the keys, so the session has ended.
    Failed,
}

impl KernelSupport {
    /// Asks the kernel at the first call, which blocks for a moment.
    pub(crate) fn get() -> &'static Self {
        static SUPPORT: OnceLock<KernelSupport> = OnceLock::new();
        SUPPORT.get_or_init(Self::probe)
    }

    fn probe() -> Self {
        let mut support = Self {
            ciphers: Vec::new(),
            refused: None,
        };
        for &cipher in TlsCipher::ALL {
            match probe(cipher) {
                Ok(()) => support.ciphers.push(cipher),
                Err(error) => drop(support.refused.get_or_insert(error)),
            }
        }
        support
    }

    /// Returns why no connection can be in the kernel.
    pub(crate) fn refusal(&self) -> Option<Unsupported<'_>> {
        self.ciphers
            .is_empty()
            .then_some(self.refused.as_ref())
            .flatten()
            .map(Unsupported)
    }

    /// Checks that the kernel can take a connection over after its handshake.
    pub(super) fn check(&self, session: &CommonState) -> Result<(), Switch> {
        if session.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
            return Err(Switch::OldVersion);
        }
        let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
        let cipher = match suite {
            Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => TlsCipher::Aes128Gcm,
            Some(CipherSuite::TLS13_AES_256_GCM_SHA384) => TlsCipher::Aes256Gcm,
            Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => TlsCipher::ChaCha20Poly1305,
            _ => return Err(Switch::NoCipher),
        };
        if self.ciphers.contains(&cipher) {
            Ok(())
        } else {
            Err(Switch::NoCipher)
        }
    }
}

/// Tries a cipher. In unit tests, and in builds for tests with this variable, a kernel without TLS
/// looks like one with TLS until it gets a socket.
fn probe(cipher: TlsCipher) -> io::Result<()> {
    let has_variable = || std::env::var_os("SPLICEWAY_TEST_KTLS_PROBED").is_some();
    if cfg!(test) || cfg!(debug_assertions) && has_variable() {
        return Ok(());
    }
    KernelTls::probe(cipher)
}

impl Switch {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "switched",
            Self::OldVersion => "version",
            Self::NoCipher => "cipher",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_any_cipher_is_refused() {
        let mut support = KernelSupport {
            ciphers: Vec::new(),
            refused: Some(io::ErrorKind::NotFound.into()),
        };
        assert!(support.refusal().is_some());
        support.ciphers.push(TlsCipher::Aes128Gcm);
        assert!(support.refusal().is_none(), "one cipher is enough");
    }
}
