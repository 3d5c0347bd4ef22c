//! Tickets, with which clients resume their sessions. The server stores nothing but the keys.
//!
//! A ticket is the name of its key, a nonce, and what rustls wants back, encrypted by AES-256-GCM.

use std::time::Duration;

use parking_lot::RwLock;
use rustls::server::ProducesTickets;
use tokio::time::Instant;

use super::crypto::{Cipher, derive, fill_random};

/// A key encrypts tickets for this time, and decrypts them for as long again. So a ticket is valid
/// for 6 to 12 hours. rustls has the same life of keys.
pub(super) const LIFE: Duration = Duration::from_secs(6 * 60 * 60);
pub(super) const KEY_BYTES: usize = 32;
const NAME_BYTES: usize = 16;

/// The keys of a service. Its processes have the same ones during an upgrade.
pub(crate) struct Tickets(RwLock<Keys>);

struct Keys {
    /// Encrypts.
    current: Key,
    /// Still decrypts.
    previous: Option<Key>,
}

struct Key {
    secret: [u8; KEY_BYTES],
    sealer: Sealer,
    made: Instant,
}

/// Encrypts and decrypts tickets with one key. Each ticket begins with the name of its key.
pub(super) struct Sealer {
    name: [u8; NAME_BYTES],
    cipher: Cipher,
}

/// A key for the next process: its bytes, and its age.
pub(crate) type HandedOverKey = (Vec<u8>, Duration);

impl Tickets {
    pub(super) fn new() -> Self {
        Self(RwLock::new(Keys {
            current: Key::random(),
            previous: None,
        }))
    }

    /// Returns the keys for the next process, the current one first.
    pub(crate) fn to_hand_over(&self) -> Vec<HandedOverKey> {
        let keys = self.0.read();
        let keys = std::iter::once(&keys.current).chain(&keys.previous);
        keys.map(|key| (key.secret.to_vec(), key.made.elapsed())).collect()
    }

    /// Replaces the keys by those of the process before, if there are any.
    pub(crate) fn take_over(&self, keys: &[HandedOverKey]) {
        let mut keys = keys.iter().filter_map(|(secret, age)| Key::aged(secret, *age));
        if let Some(current) = keys.next() {
            *self.0.write() = Keys {
                current,
                previous: keys.next(),
            };
        }
    }

    /// Replaces a key at the end of its life. A handshake calls it.
    fn rotate(&self) {
        if self.0.read().current.made.elapsed() < LIFE {
            return;
        }
        let mut keys = self.0.write();
        let age = keys.current.made.elapsed();
        if age >= LIFE {
            let old = std::mem::replace(&mut keys.current, Key::random());
            keys.previous = Some(old);
        }
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.rotate();
        self.0.read().current.sealer.encrypt(plain)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.rotate();
        let keys = self.0.read();
        let mut keys = std::iter::once(&keys.current).chain(&keys.previous);
        keys.find_map(|key| key.decrypt(ticket))
    }
}

impl Key {
    fn random() -> Self {
        let mut secret = [0; KEY_BYTES];
        fill_random(&mut secret);
        Self::new(secret, Instant::now())
    }

    /// Returns `None` if this is no key, or one at the end of its life.
    fn aged(secret: &[u8], age: Duration) -> Option<Self> {
        let made = Instant::now().checked_sub(age).filter(|_| age < 2 * LIFE)?;
        Some(Self::new(secret.try_into().ok()?, made))
    }

    fn new(secret: [u8; KEY_BYTES], made: Instant) -> Self {
        let sealer = Sealer::new(&secret);
        Self { secret, sealer, made }
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        if self.made.elapsed() >= 2 * LIFE {
            return None;
        }
        self.sealer.decrypt(ticket)
    }
}

impl Sealer {
    pub(super) fn new(secret: &[u8; KEY_BYTES]) -> Self {
        let name = derive(secret, b"name of a ticket key");
        Self {
            name: *name.first_chunk().expect("a name is shorter"),
            cipher: Cipher::new(secret),
        }
    }

    pub(super) fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        Some([&self.name[..], &self.cipher.seal(&self.name, plain)?].concat())
    }

    /// Returns `None` for the ticket of another key.
    pub(super) fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.cipher.open(&self.name, ticket.strip_prefix(&self.name)?)
    }
}

/// Returns for how many seconds a client should use a ticket.
pub(super) fn lifetime() -> u32 {
    u32::try_from(LIFE.as_secs()).unwrap_or(u32::MAX)
}

/// Shows no key.
impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tickets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[test]
    fn a_ticket_comes_back_and_a_changed_one_does_not() {
        let tickets = Tickets::new();
        let ticket = tickets.encrypt(b"session").unwrap();
        assert_eq!(tickets.decrypt(&ticket).unwrap(), b"session");
        assert_ne!(tickets.encrypt(b"session").unwrap(), ticket);
        assert_eq!(Tickets::new().decrypt(&ticket), None);
        for length in 0..ticket.len() {
            assert_eq!(tickets.decrypt(&ticket[..length]), None, "{length}");
        }
        for bit in 0..ticket.len() * 8 {
            let mut changed = ticket.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(tickets.decrypt(&changed), None, "{bit}");
        }
        assert_eq!(format!("{tickets:?}"), "Tickets");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_encrypts_for_its_life_and_decrypts_for_twice_as_long() {
        let tickets = Tickets::new();
        let first = tickets.encrypt(b"1").unwrap();
        advance(LIFE).await;
        let second = tickets.encrypt(b"2").unwrap();
        assert_ne!(first[..NAME_BYTES], second[..NAME_BYTES]);
        assert!(tickets.decrypt(&first).is_some() && tickets.decrypt(&second).is_some());
        advance(LIFE - Duration::from_secs(1)).await;
        assert!(tickets.decrypt(&first).is_some());
        advance(Duration::from_secs(1)).await;
        assert!(tickets.decrypt(&first).is_none() && tickets.decrypt(&second).is_some());
        // Nobody came for a day.
        advance(4 * LIFE).await;
        assert!(tickets.decrypt(&second).is_none());
    }

    #[tokio::test]
    async fn the_next_process_has_the_keys() {
        let (old, new) = (Tickets::new(), Tickets::new());
        let ticket = old.encrypt(b"session").unwrap();
        for _ in 0..2 {
            new.take_over(&old.to_hand_over());
            assert_eq!(new.decrypt(&ticket).unwrap(), b"session");
        }
        assert!(old.decrypt(&new.encrypt(b"new").unwrap()).is_some());
        for wrong in [vec![], vec![(vec![1; 31], LIFE)], vec![(vec![1; 32], 2 * LIFE)]] {
            new.take_over(&wrong);
            assert!(new.decrypt(&ticket).is_some());
        }
    }
}
