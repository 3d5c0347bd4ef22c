//! Keys of tickets from a file, which several machines share.
//!
//! ```text
//!   key in the file ─┐
//!   period of 6 h ───┼─ HMAC-SHA-256 ─▶ Sealer ─▶ tickets of this period
//!   names served ────┘
//! ```
//!
//! The period bounds the life of a ticket, although the key in the file stays. It also bounds how
//! many tickets one key of AES-GCM encrypts. rustls checks the age of a ticket only for early data.
//!
//! The names are those in the service's certificates, of hosts and of other kinds. A service
//! resumes only sessions of services with the same names. Without this rule, an attacker on the
//! network could connect a client to a service whose certificate the client would refuse.

use std::fmt::{self, Debug, Formatter};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::server::ProducesTickets;

use super::certificate::{self, BadFile, FILE_MAX_BYTES, Pair, READ_BY_OTHERS, Why};
use super::crypto::{derive, sha256};
use super::names::Pairs;
use super::ticket_file::{Fault, parse};
use super::tickets::{KEY_BYTES, LIFE, Sealer, Tickets, lifetime};

/// The clock of another machine may be ahead by this time. Machines with NTP differ by less than a
/// second.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// The keys of a file, for a service with certain names.
pub(super) struct SharedKeys {
    /// The first one encrypts, and all decrypt. There is at least one.
    secrets: Vec<[u8; KEY_BYTES]>,
    /// A digest of the names in the service's certificates.
    names: [u8; 32],
    derived: RwLock<Arc<Derived>>,
}

/// The keys for the tickets of three periods.
struct Derived {
    /// The period of new tickets, counted from 1970.
    period: u64,
    /// One for each secret.
    keys: Vec<Sealers>,
}

struct Sealers {
    previous: Sealer,
    current: Sealer,
    /// For tickets of machines whose clocks are ahead.
    next: Sealer,
}

/// Makes the tickets of a service that has shared keys.
struct Ticketer {
    shared: Arc<SharedKeys>,
    /// Decrypts tickets from before the service had shared keys.
    own: Arc<Tickets>,
}

/// Returns what makes the tickets of a service: its own keys, unless it has shared ones.
pub(super) fn ticketer(shared: Option<&Arc<SharedKeys>>, own: &Arc<Tickets>) -> Arc<dyn ProducesTickets> {
    let own = Arc::clone(own);
    match shared {
        Some(shared) => Arc::new(Ticketer {
            shared: Arc::clone(shared),
            own,
        }),
        None => own,
    }
}

impl SharedKeys {
    /// Reads the keys for a service with these certificates.
    ///
    /// # Errors
    /// Returns the first fault of the file.
    pub(super) fn read(path: &Path, pairs: &Pairs) -> Result<Self, BadFile> {
        let secrets = secrets(path).map_err(|why| BadFile::new(path, why))?;
        let mut names: Vec<_> = pairs.all().iter().flat_map(names_of).collect();
        names.sort_unstable();
        names.dedup();
        Ok(Self::new(secrets, &names.concat(), SystemTime::now()))
    }

    /// Returns the number of keys in a file.
    ///
    /// # Errors
    /// Returns the first fault of the file.
    pub(super) fn count(path: &Path) -> Result<usize, BadFile> {
        let secrets = secrets(path).map_err(|why| BadFile::new(path, why))?;
        Ok(secrets.len())
    }

    fn new(secrets: Vec<[u8; KEY_BYTES]>, names: &[u8], now: SystemTime) -> Self {
        let (names, period) = (sha256(names), period(now));
        let derived = Arc::new(Derived::new(&secrets, names, period));
        Self {
            secrets,
            names,
            derived: RwLock::new(derived),
        }
    }

    /// Returns the keys for this time. They are derived again once in a period.
    fn derived(&self, now: SystemTime) -> Arc<Derived> {
        let period = period(now);
        let known = Arc::clone(&self.derived.read());
        if known.period == period {
            return known;
        }
        let derived = Arc::new(Derived::new(&self.secrets, self.names, period));
        *self.derived.write() = Arc::clone(&derived);
        derived
    }

    fn encrypt(&self, plain: &[u8], now: SystemTime) -> Option<Vec<u8>> {
        self.derived(now).keys.first()?.current.encrypt(plain)
    }

    /// Returns `None` for a ticket of another key, of other names, or of a period that is over or
    /// does not begin soon.
    fn decrypt(&self, ticket: &[u8], now: SystemTime) -> Option<Vec<u8>> {
        let is_near_next = period(now + AHEAD_MAX) > period(now);
        self.derived(now).keys.iter().find_map(|key| {
            let next = Some(&key.next).filter(|_| is_near_next);
            let mut sealers = [&key.current, &key.previous].into_iter().chain(next);
            sealers.find_map(|sealer| sealer.decrypt(ticket))
        })
    }
}

impl Derived {
    fn new(secrets: &[[u8; KEY_BYTES]], names: [u8; 32], period: u64) -> Self {
        let sealer = |secret: &[u8; KEY_BYTES], period: u64| {
            let purpose = [&b"key of tickets"[..], &period.to_be_bytes(), &names].concat();
            Sealer::new(&derive(secret, &purpose))
        };
        let keys = secrets.iter().map(|secret| Sealers {
            previous: sealer(secret, period.saturating_sub(1)),
            current: sealer(secret, period),
            next: sealer(secret, period.saturating_add(1)),
        });
        Self {
            period,
            keys: keys.collect(),
        }
    }
}

/// Returns a digest of each name in a certificate. One without names is known only as a whole, by
/// clients that have a copy of it.
fn names_of(pair: &Pair) -> Vec<[u8; 32]> {
    let digest = |kind: &[u8], value: &[u8]| sha256(&[kind, value].concat());
    let names = pair.names.iter().map(|name| digest(b"host ", name.as_bytes()));
    let others = pair.other_names.iter().map(|name| digest(b"other ", name));
    let all: Vec<_> = names.chain(others).collect();
    match pair.key.cert.first() {
        Some(certificate) if all.is_empty() => vec![digest(b"certificate ", certificate)],
        _ => all,
    }
}

/// Returns the number of the period, which has the length of [`LIFE`].
fn period(now: SystemTime) -> u64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / LIFE.as_secs()
}

impl PartialEq for SharedKeys {
    fn eq(&self, other: &Self) -> bool {
        self.secrets == other.secrets && self.names == other.names
    }
}

/// Shows no key.
impl Debug for SharedKeys {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "SharedKeys({})", self.secrets.len())
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.shared.encrypt(plain, SystemTime::now())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let shared = self.shared.decrypt(ticket, SystemTime::now());
        shared.or_else(|| self.own.decrypt(ticket))
    }
}

impl Debug for Ticketer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticketer").field(&self.shared).finish()
    }
}

fn secrets(path: &Path) -> Result<Vec<[u8; KEY_BYTES]>, Why> {
    let (text, mode) = certificate::read(path, FILE_MAX_BYTES)?;
    let secrets = parse(&text).map_err(Why::TicketKeys)?;
    if mode & READ_BY_OTHERS != 0 {
        return Err(Why::TicketKeys(Fault::ReadByOthers));
    }
    Ok(secrets)
}

#[cfg(test)]
mod tests;
