//! Takes the place of `crypto` in a build without the feature `tls`. The settings refuse all that
//! would use it.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

const REFUSED: &str = "the settings refuse TLS";

pub(super) fn provider() -> Arc<CryptoProvider> {
    unreachable!("{REFUSED}")
}

pub(super) fn fill_random(_: &mut [u8]) {
    unreachable!("{REFUSED}")
}

pub(super) fn sha256(_: &[u8]) -> [u8; 32] {
    unreachable!("{REFUSED}")
}

pub(super) fn derive(_: &[u8], _: &[u8]) -> [u8; 32] {
    unreachable!("{REFUSED}")
}

pub(super) struct Cipher;

impl Cipher {
    pub(super) fn new(_: &[u8; 32]) -> Self {
        unreachable!("{REFUSED}")
    }

    pub(super) fn seal(&self, _: &[u8], _: &[u8]) -> Option<Vec<u8>> {
        unreachable!("{REFUSED}")
    }

    pub(super) fn open(&self, _: &[u8], _: &[u8]) -> Option<Vec<u8>> {
        unreachable!("{REFUSED}")
    }
}
