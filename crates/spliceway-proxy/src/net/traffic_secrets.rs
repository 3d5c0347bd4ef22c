//! The secrets of a TLS connection from which its keys follow, for the kernel.

use std::fmt::{self, Debug, Formatter};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustls::crypto::tls13::{HkdfExpander, OkmBlock};
use rustls::{CipherSuite, ConnectionTrafficSecrets, ExtractedSecrets, KeyLog, Side, Tls13CipherSuite};
use spliceway::{TlsCipher, TlsSession, TrafficKey};

use super::kernel_support;

/// The first secrets of both sides, which rustls logs at the end of the handshake.
#[derive(Default)]
pub(crate) struct TrafficSecrets {
    client: Mutex<Option<OkmBlock>>,
    server: Mutex<Option<OkmBlock>>,
}

/// The keys of a connection in the kernel, now and after each key update.
#[derive(Debug)]
pub(super) struct KernelSession {
    send: Direction,
    receive: Direction,
    is_truncated: Arc<AtomicBool>,
    /// Becomes `true` if what this side sends is cut, so that its end must not look complete.
    is_cut: Option<Arc<AtomicBool>>,
}

/// The keys of one direction.
struct Direction {
    suite: &'static Tls13CipherSuite,
    cipher: TlsCipher,
    /// The secret of the keys that are in force.
    secret: OkmBlock,
}

/// The most key updates before the switch. A peer that updates its keys after each KiB reaches a
/// quarter of it.
const UPDATES_MAX: usize = 4096;
/// The labels that NSS has given to the secrets.
const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";
const IV_BYTES: usize = 12;

impl TrafficSecrets {
    /// Forgets the secrets. The configuration of a connection keeps this value.
    pub(super) fn forget(&self) {
        *self.client.lock() = None;
        *self.server.lock() = None;
    }

    fn of(&self, label: &str) -> Option<&Mutex<Option<OkmBlock>>> {
        match label {
            CLIENT => Some(&self.client),
            SERVER => Some(&self.server),
            _ => None,
        }
    }

    /// Returns the secrets of what this side sends and receives.
    fn sent_and_received(&self, side: Side) -> Option<(OkmBlock, OkmBlock)> {
        let (client, server) = (self.client.lock().clone()?, self.server.lock().clone()?);
        Some(match side {
            Side::Client => (client, server),
            Side::Server => (server, client),
        })
    }
}

impl KeyLog for TrafficSecrets {
    fn will_log(&self, label: &str) -> bool {
        self.of(label).is_some()
    }

    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if let Some(place) = self.of(label) {
            *place.lock() = Some(OkmBlock::new(secret));
        }
    }
}

impl Debug for TrafficSecrets {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficSecrets").finish_non_exhaustive()
    }
}

impl KernelSession {
    /// Returns the keys that rustls has extracted for sending and for receiving, and the session
    /// from which the next ones follow. `is_truncated` becomes `true` if the peer ends without an
    /// announcement.
    ///
    /// # Errors
    /// Returns an error if the keys do not follow from the secrets of the handshake.
    pub(super) fn new(
        suite: &'static Tls13CipherSuite,
        side: Side,
        secrets: &TrafficSecrets,
        extracted: &ExtractedSecrets,
        is_truncated: Arc<AtomicBool>,
    ) -> io::Result<(TrafficKey, TrafficKey, Self)> {
        let missing = || io::Error::other("the secrets of the handshake are missing");
        let (sent, received) = secrets.sent_and_received(side).ok_or_else(missing)?;
        let (send_key, send) = Direction::find(suite, sent, &extracted.tx)?;
        let (receive_key, receive) = Direction::find(suite, received, &extracted.rx)?;
        let session = Self {
            send,
            receive,
            is_truncated,
            is_cut: None,
        };
        Ok((send_key, receive_key, session))
    }
}

impl KernelSession {
    /// Ends without an announcement if this is `true` by then.
    pub(super) fn set_cut(&mut self, is_cut: Option<Arc<AtomicBool>>) {
        self.is_cut = is_cut;
    }

    /// Continues a session with the [secrets](Self::secrets) that it had in another process.
    ///
    /// # Errors
    /// Returns an error if they do not fit the cipher suite.
    pub(super) fn resume(
        suite: &'static Tls13CipherSuite,
        [sent, received]: [&[u8]; 2],
        is_truncated: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        Ok(Self {
            send: Direction::resume(suite, sent)?,
            receive: Direction::resume(suite, received)?,
            is_truncated,
            is_cut: None,
        })
    }

    pub(super) fn suite(&self) -> CipherSuite {
        self.send.suite.common.suite
    }

    /// Returns the secrets of what this side sends and receives.
    pub(super) fn secrets(&self) -> [&[u8]; 2] {
        [self.send.secret.as_ref(), self.receive.secret.as_ref()]
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.is_truncated.load(Ordering::Relaxed)
    }
}

impl TlsSession for KernelSession {
    fn next_send_key(&mut self) -> io::Result<TrafficKey> {
        self.send.update();
        self.send.key(0)
    }

    fn next_receive_key(&mut self) -> io::Result<TrafficKey> {
        self.receive.update();
        self.receive.key(0)
    }

    fn announces_end(&self) -> bool {
        !self
            .is_cut
            .as_ref()
            .is_some_and(|is_cut| is_cut.load(Ordering::Relaxed))
    }

    fn ended(&mut self, is_announced: bool) {
        if !is_announced {
            self.is_truncated.store(true, Ordering::Relaxed);
        }
    }
}

impl Direction {
    /// Updates the first secret until the extracted key follows from it.
    fn find(
        suite: &'static Tls13CipherSuite,
        secret: OkmBlock,
        (next_record, extracted): &(u64, ConnectionTrafficSecrets),
    ) -> io::Result<(TrafficKey, Self)> {
        let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = extracted
        else {
            return Err(no_cipher());
        };
        let cipher = kernel_support::cipher(suite.common.suite).ok_or_else(no_cipher)?;
        let mut direction = Self { suite, cipher, secret };
        for _ in 0..=UPDATES_MAX {
            let derived = direction.key(*next_record)?;
            if derived.key() == key.as_ref() && derived.iv() == iv.as_ref() {
                return Ok((derived, direction));
            }
            direction.update();
        }
        Err(io::Error::other("the keys have been updated too often"))
    }

    fn resume(suite: &'static Tls13CipherSuite, secret: &[u8]) -> io::Result<Self> {
        let cipher = kernel_support::cipher(suite.common.suite).ok_or_else(no_cipher)?;
        if secret.len() != suite.common.hash_provider.output_len() {
            return Err(io::Error::other("a secret of TLS has another length"));
        }
        let secret = OkmBlock::new(secret);
        Ok(Self { suite, cipher, secret })
    }

    /// Returns the keys in force (RFC 8446, 7.3).
    fn key(&self, next_record: u64) -> io::Result<TrafficKey> {
        let expander = self.suite.hkdf_provider.expander_for_okm(&self.secret);
        let mut key = vec![0; self.cipher.key_len()];
        expand(&*expander, "key", &mut key)?;
        let mut iv = [0; IV_BYTES];
        expand(&*expander, "iv", &mut iv)?;
        let key = TrafficKey::new(self.cipher, &key, iv, next_record);
        key.ok_or_else(|| io::Error::other("the cipher has keys of another length"))
    }

    /// Replaces the secret by the next one (RFC 8446, 7.2).
    fn update(&mut self) {
        let expander = self.suite.hkdf_provider.expander_for_okm(&self.secret);
        let label = label("traffic upd", expander.hash_len());
        self.secret = expander.expand_block(&[&label]);
    }
}

impl Debug for Direction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direction")
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}

fn no_cipher() -> io::Error {
    io::Error::other("the kernel has no such cipher")
}

/// HKDF-Expand-Label with an empty context (RFC 8446, 7.1).
fn expand(expander: &dyn HkdfExpander, name: &str, output: &mut [u8]) -> io::Result<()> {
    let label = label(name, output.len());
    let expanded = expander.expand_slice(&[&label], output);
    expanded.map_err(|_| io::Error::other("the hash is too short for a key"))
}

/// Returns an encoded HkdfLabel for a secret of this many bytes.
fn label(name: &str, bytes: usize) -> Vec<u8> {
    let name = format!("tls13 {name}");
    let mut label = Vec::with_capacity(2 + 1 + name.len() + 1);
    label.extend(u16::try_from(bytes).expect("a key is short").to_be_bytes());
    label.push(u8::try_from(name.len()).expect("a label is short"));
    label.extend(name.as_bytes());
    // The context is empty.
    label.push(0);
    label
}

#[cfg(all(test, feature = "tls"))]
pub(super) mod tests;
