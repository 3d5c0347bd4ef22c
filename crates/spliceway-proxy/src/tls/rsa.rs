//! The length of an RSA key, for messages about keys that are too short.

use std::ops::RangeInclusive;

use rustls::pki_types::PrivateKeyDer;
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, SliceReader, Tag, Tagged};

/// The lengths that clients accept, in bits.
pub(super) const BITS: RangeInclusive<usize> = 2048..=8192;

/// Returns the length of an RSA key in bits, or `None` for other keys.
pub(super) fn bits(key: &PrivateKeyDer<'_>) -> Option<usize> {
    match key {
        PrivateKeyDer::Pkcs1(key) => modulus_bits(key.secret_pkcs1_der()),
        PrivateKeyDer::Pkcs8(key) => {
            // The version and the algorithm come before the key. Keys of other algorithms have no
            // number where that of RSA has the modulus.
            let part = part(key.secret_pkcs8_der(), 2)?;
            (part.tag() == Tag::OctetString).then(|| modulus_bits(part.value()))?
        }
        _ => None,
    }
}

/// Returns the length of the modulus, which follows the version.
fn modulus_bits(key: &[u8]) -> Option<usize> {
    let modulus = part(key, 1).filter(|part| part.tag() == Tag::Integer)?;
    let bytes = modulus.value();
    let bytes = &bytes[bytes.iter().position(|byte| *byte != 0)?..];
    Some(bytes.len() * 8 - bytes[0].leading_zeros() as usize)
}

/// Returns the value at this index of a sequence.
fn part(sequence: &[u8], index: usize) -> Option<AnyRef<'_>> {
    let mut reader = SliceReader::new(AnyRef::from_der(sequence).ok()?.value()).ok()?;
    for _ in 0..index {
        AnyRef::decode(&mut reader).ok()?;
    }
    AnyRef::decode(&mut reader).ok()
}
