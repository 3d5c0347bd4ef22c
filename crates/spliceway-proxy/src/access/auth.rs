//! Authenticates the users of a service: checks names and passwords, and protects against guessing.
//!
//! Passwords are compared in constant time, and a failed login costs the same for every user name.
//! Only this module creates a [`Proof`], and no handshake continues without one.

mod checks;
mod digest;
mod edit;
mod file;
mod hash;
mod passed;
mod penalty;
pub(crate) mod tokens;
mod turns;

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use argon2::password_hash;
use subtle::{Choice, ConstantTimeEq};
use tokio::time::Instant;

use checks::Checks;
use digest::{Digest, KEY_BYTES, digest};
use hash::{Hash, Work};
use passed::{Passed, UserId};
use spliceway_protocol::{Credentials, Proof};

pub(crate) use checks::{Busy, Standing};
pub(crate) use digest::{Fingerprint, fingerprint};
pub(crate) use edit::{Edit, EditError, FileKind, What, clear_text, listed};
pub(crate) use file::{FIELD_MAX_BYTES, check_name, read, user};
pub(crate) use hash::{Stored, hash};
#[cfg(test)]
pub(crate) use penalty::CLIENTS_MAX as PENALISED_MAX;
pub(crate) use penalty::Penalties;

/// The users of a service and their passwords.
pub(crate) struct Users {
    known: HashMap<Box<[u8]>, User>,
    /// One hash of each cost that occurs among the users' hashes. A failed login is checked against
    /// all of them.
    each_cost: Vec<Arc<Hash>>,
    key: [u8; KEY_BYTES],
    checks: Arc<Checks>,
    passed: Passed,
    fingerprint: Fingerprint,
}

struct User {
    id: UserId,
    secret: Secret,
    /// The digest of the last correct password. So a client that connects often does not need a
    /// hash check each time.
    passed: Mutex<Option<Digest>>,
}

enum Secret {
    Clear(Digest),
    Hash(Arc<Hash>),
}

impl Users {
    /// Creates the users from names and passwords. If a name occurs more than once, the last one
    /// counts. `fingerprint` is that of the text they come from.
    ///
    /// # Errors
    /// Returns an error if the system has no random numbers.
    pub(crate) fn new(
        users: impl IntoIterator<Item = (Box<[u8]>, Stored)>,
        fingerprint: Fingerprint,
    ) -> Result<Self, password_hash::Error> {
        let key = password_hash::try_generate_salt()?;
        let (mut known, mut each_cost) = (HashMap::new(), Vec::<Arc<Hash>>::new());
        for (id, (name, stored)) in (0..).zip(users) {
            let secret = match stored {
                Stored::Clear(secret) => Secret::Clear(digest(&key, &secret)),
                Stored::Hash(hash) => {
                    if each_cost.iter().all(|other| other.cost() != hash.cost()) {
                        each_cost.push(Arc::clone(&hash));
                    }
                    Secret::Hash(hash)
                }
            };
            known.insert(name, User::new(id, secret));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cost = each_cost.iter().map(|hash| hash.cost().time()).sum();
        Ok(Self {
            known,
            each_cost,
            key,
            // Checks use half of the cores and leave the others for relays.
            checks: Checks::new((cores / 2).max(1), cost),
            passed: Passed::default(),
            fingerprint,
        })
    }

    /// Returns whether both come from the same text. The passwords that `self` has accepted are
    /// then still right.
    pub(crate) fn are_unchanged(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }

    /// Returns whether there is a user of this name.
    pub(crate) fn know(&self, name: &[u8]) -> bool {
        self.known.contains_key(name)
    }

    /// Returns the names as records show them.
    pub(crate) fn names(&self) -> HashSet<Box<str>> {
        let names = self.known.keys();
        names.map(|name| spliceway_protocol::printable(name)).collect()
    }

    /// Returns a proof if this password was accepted before, for this user and from this address.
    /// The call costs almost nothing.
    pub(crate) fn verify_again(&self, credentials: &Credentials, client: IpAddr, now: Instant) -> Option<Proof> {
        let given = digest(&self.key, &credentials.secret);
        // No user has the highest number.
        let user = self.known.get(&credentials.name).map_or(UserId::MAX, |user| user.id);
        let has_passed = self.passed.has(client.into(), user, &given, now);
        has_passed.then(Proof::of_known_user)
    }

    /// Returns whether any user has logged in from this address.
    pub(crate) fn has_passed_from(&self, client: IpAddr) -> bool {
        self.passed.knows(client.into())
    }

    /// Returns a proof if these are the name and the password of a user. If the future is dropped,
    /// at most one check still runs to completion.
    ///
    /// # Errors
    /// Returns [`Busy`] if too many other checks are waiting, so that there can be no result before
    /// `deadline`.
    pub(crate) async fn verify(
        &self,
        credentials: &Credentials,
        client: Option<IpAddr>,
        standing: Standing,
        deadline: Instant,
    ) -> Result<Option<Proof>, Busy> {
        let user = self.known.get(&credentials.name);
        let given = digest(&self.key, &credentials.secret);
        let is_known_to_be_right = user.is_some_and(|user| match &user.secret {
            Secret::Clear(expected) => bool::from(expected.ct_eq(&given)),
            Secret::Hash(_) => user.has_passed(&given),
        });
        // If no user has a hash, no login costs anything.
        let is_right = if is_known_to_be_right || self.each_cost.is_empty() {
            is_known_to_be_right
        } else {
            let work = self.work(user, &credentials.secret);
            self.checks.check(work, standing, deadline).await?
        };
        let Some(user) = user.filter(|_| is_right) else {
            return Ok(None);
        };
        user.remember(given);
        if let Some(client) = client {
            self.passed.remember(client.into(), user.id, given, Instant::now());
        }
        Ok(Some(Proof::of_known_user()))
    }

    /// Returns the hashes to compute for a wrong password, or for a user whose password is hashed.
    fn work(&self, user: Option<&User>, secret: &[u8]) -> Work {
        let own = user.and_then(|user| match &user.secret {
            Secret::Hash(hash) => Some(hash),
            Secret::Clear(_) => None,
        });
        Work::new(secret, own, &self.each_cost)
    }
}

impl User {
    fn new(id: UserId, secret: Secret) -> Self {
        Self {
            id,
            secret,
            passed: Mutex::new(None),
        }
    }

    fn has_passed(&self, given: &Digest) -> bool {
        let passed = self.passed.lock();
        let same = passed.map_or(Choice::from(0), |passed| passed.ct_eq(given));
        same.into()
    }

    fn remember(&self, given: Digest) {
        *self.passed.lock() = Some(given);
    }
}

impl fmt::Debug for Users {
    /// Shows the number of users, but no passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users")
            .field("count", &self.known.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
