//! The cryptography of TLS. Nothing else in this folder names the library that has it.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{digest, hmac, rand};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

pub(super) fn fill_random(bytes: &mut [u8]) {
    rand::fill(bytes).expect("the system has random numbers");
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, bytes);
    *digest.as_ref().first_chunk().expect("it has 32 bytes")
}

/// Returns a value that tells nothing about the secret: HMAC-SHA-256 of the message.
pub(super) fn derive(secret: &[u8], message: &[u8]) -> [u8; 32] {
    let value = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message);
    *value.as_ref().first_chunk().expect("it has 32 bytes")
}

/// Encrypts by AES-256-GCM. Each message begins with its nonce.
pub(super) struct Cipher(RandomizedNonceKey);

impl Cipher {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Self(RandomizedNonceKey::new(&AES_256_GCM, secret).expect("the key has the size for AES-256"))
    }

    /// Encrypts a message. `name` is not part of it, and must be the same for [`Self::open`].
    pub(super) fn seal(&self, name: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = plain.to_vec();
        let nonce = self.0.seal_in_place_append_tag(Aad::from(name), &mut sealed).ok()?;
        Some([&nonce.as_ref()[..], &sealed].concat())
    }

    pub(super) fn open(&self, name: &[u8], message: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = message.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let plain = self.0.open_in_place(nonce, Aad::from(name), &mut sealed).ok()?;
        Some(plain.to_vec())
    }
}
