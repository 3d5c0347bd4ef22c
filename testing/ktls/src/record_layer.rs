//! Records of TLS 1.3 (RFC 8446, sections 5 and 7.3).

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};

use crate::plan::Cipher;

pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const DATA: u8 = 23;

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 5;

/// The keys of one direction.
pub(crate) struct Keys {
    cipher: Cipher,
    secret: Vec<u8>,
    key: LessSafeKey,
    iv: [u8; 12],
    next: u64,
}

impl Keys {
    pub(crate) fn new(cipher: Cipher, secret: &[u8]) -> Self {
        let (algorithm, _): (&'static Algorithm, _) = algorithms(cipher);
        let key = expand(cipher, secret, b"key", algorithm.key_len());
        let iv = expand(cipher, secret, b"iv", 12);
        Self {
            cipher,
            secret: secret.to_vec(),
            key: LessSafeKey::new(UnboundKey::new(algorithm, &key).expect("a key of this length")),
            iv: iv.try_into().expect("12 bytes"),
            next: 0,
        }
    }

    /// Changes to the keys that follow a key update.
    pub(crate) fn update(&mut self) {
        let next = expand(self.cipher, &self.secret, b"traffic upd", self.secret.len());
        *self = Self::new(self.cipher, &next);
    }

    /// Returns a record.
    pub(crate) fn seal(&mut self, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut text = content.to_vec();
        text.push(kind);
        text.resize(text.len() + padding, 0);
        let header = header(text.len() + self.key.algorithm().tag_len());
        let nonce = self.nonce();
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut text)
            .expect("a short text");
        [&header[..], &text].concat()
    }

    /// Opens a record that has its header, and returns its type and content.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Option<(u8, Vec<u8>)> {
        let (head, text) = record.split_at_mut(HEADER);
        let head: [u8; HEADER] = (&*head).try_into().expect("its length");
        let nonce = self.nonce();
        let text = self.key.open_in_place(nonce, Aad::from(head), text).ok()?;
        let end = text.iter().rposition(|byte| *byte != 0)?;
        Some((text[end], text[..end].to_vec()))
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[4..].iter_mut().zip(self.next.to_be_bytes()) {
            *byte ^= of_number;
        }
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Returns the length of the record whose header this is, with the header.
pub(crate) fn length(header: [u8; HEADER]) -> usize {
    HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]))
}

fn header(length: usize) -> [u8; HEADER] {
    let [high, low] = u16::try_from(length).expect("a record").to_be_bytes();
    [DATA, 3, 3, high, low]
}

fn algorithms(cipher: Cipher) -> (&'static Algorithm, hkdf::Algorithm) {
    match cipher {
        Cipher::Aes128 => (&AES_128_GCM, HKDF_SHA256),
        Cipher::Aes256 => (&AES_256_GCM, HKDF_SHA384),
        Cipher::ChaCha20 => (&CHACHA20_POLY1305, HKDF_SHA256),
    }
}

/// HKDF-Expand-Label without a context.
fn expand(cipher: Cipher, secret: &[u8], label: &[u8], length: usize) -> Vec<u8> {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let label = [b"tls13 ", label].concat();
    let lengths = [
        0,
        u8::try_from(length).expect("short"),
        u8::try_from(label.len()).expect("short"),
    ];
    let prk = Prk::new_less_safe(algorithms(cipher).1, secret);
    let info = [&lengths[..], &label, &[0]];
    let mut bytes = vec![0; length];
    let expanded = prk.expand(&info, Length(length)).expect("a short key");
    expanded.fill(&mut bytes).expect("the length that was asked for");
    bytes
}
