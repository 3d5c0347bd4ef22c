//! Keyed digests of passwords and texts.

use std::sync::OnceLock;

use argon2::password_hash;
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};

/// A keyed digest of a password, for comparisons. Its length does not depend on the password, and
/// it is useless outside this process.
pub(super) type Digest = [u8; 32];

/// A keyed digest of the text that users were read from. It shows whether the text has changed.
pub(crate) type Fingerprint = Digest;

/// The length of the salts that the password-hash crate generates. Such a salt is random, so it can
/// serve as the key.
pub(super) const KEY_BYTES: usize = 16;

/// Returns the fingerprint of a text, for comparisons within this process.
pub(crate) fn fingerprint(text: &str) -> Fingerprint {
    static KEY: OnceLock<[u8; KEY_BYTES]> = OnceLock::new();
    // Without random numbers, the program does not get as far as users.
    let key = KEY.get_or_init(|| password_hash::try_generate_salt().unwrap_or_default());
    digest(key, text.as_bytes())
}

pub(super) fn digest(key: &[u8], secret: &[u8]) -> Digest {
    let mut mac = Blake2sMac256::new_from_slice(key).expect("a key of 16 bytes is short enough");
    mac.update(secret);
    mac.finalize().into_bytes().into()
}
