//! Who may use a service: names, secrets, and how guessing is slowed down.
//!
//! A secret is compared in constant time, and a login that fails costs the same whatever user it names. Only this module makes a
//! [`Proof`], and without one no handshake goes on.

mod checks;
mod file;
mod hash;
mod passed;
mod penalty;
mod turns;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use argon2::password_hash;
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use subtle::{Choice, ConstantTimeEq};
use tokio::time::Instant;

use crate::protocol::{Credentials, Proof};
use checks::Checks;
use hash::{Hash, Work};
use passed::Passed;

pub(crate) use checks::{Busy, Standing};
pub(crate) use file::{read, user};
pub(crate) use hash::hash;
pub(crate) use penalty::Penalties;

/// What a secret is compared by: of one length whatever the secret's, and worth nothing outside this process.
type Digest = [u8; 32];

/// Which of the users it is.
type UserId = u32;

/// What the password-hash crate's salts have, which are random numbers like any.
const KEY_BYTES: usize = 16;

/// The names and secrets of a service.
pub(crate) struct Users {
    known: HashMap<Box<[u8]>, User>,
    /// One hash of each cost that the users have. A login that fails is checked against all of them.
    each_cost: Vec<Arc<Hash>>,
    key: [u8; KEY_BYTES],
    checks: Arc<Checks>,
    passed: Passed,
}

struct User {
    id: UserId,
    secret: Secret,
    /// The last secret that was found to be the one behind a hash: who connects often does not pay for a check each time.
    passed: Mutex<Option<Digest>>,
}

enum Secret {
    Clear(Digest),
    Hash(Arc<Hash>),
}

/// How a user's secret is stored.
pub(crate) enum Stored {
    Clear(Box<[u8]>),
    Hash(Arc<Hash>),
}

impl Users {
    /// These names with these secrets, the last of each name.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(users: impl IntoIterator<Item = (Box<[u8]>, Stored)>) -> Result<Self, password_hash::Error> {
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
            // Half of the cores are left to the relays that run.
            checks: Checks::new((cores / 2).max(1), cost),
            passed: Passed::default(),
        })
    }

    /// Whether this secret has passed before from this address, for this user. Costs next to nothing.
    pub(crate) fn verify_again(&self, credentials: &Credentials, client: IpAddr, now: Instant) -> Option<Proof> {
        let given = digest(&self.key, &credentials.secret);
        // No user has the last number.
        let user = self.known.get(&credentials.name).map_or(UserId::MAX, |user| user.id);
        let has_passed = self.passed.has(client.into(), user, &given, now);
        has_passed.then(Proof::of_known_user)
    }

    /// Whether any user has proven who it is from this address.
    pub(crate) fn has_passed_from(&self, client: IpAddr) -> bool {
        self.passed.knows(client.into())
    }

    /// Whether these are a user's name and secret. Dropped before it is done, it leaves at most one check running to its end.
    ///
    /// # Errors
    /// There are too many others to tell before `deadline`.
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
        let is_right = match is_known_to_be_right {
            true => true,
            // Nothing costs anything.
            false if self.each_cost.is_empty() => false,
            false => {
                let work = self.work(user, &credentials.secret);
                self.checks.check(work, standing, deadline).await?
            }
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

    /// What has to be hashed to find that a secret is wrong, or is right for a user whose secret is hashed.
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
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let same = passed.map_or(Choice::from(0), |passed| passed.ct_eq(given));
        same.into()
    }

    fn remember(&self, given: Digest) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Some(given);
    }
}

fn digest(key: &[u8], secret: &[u8]) -> Digest {
    let mut mac = Blake2sMac256::new_from_slice(key).expect("a key of 16 bytes is short enough");
    mac.update(secret);
    mac.finalize().into_bytes().into()
}

impl fmt::Debug for Users {
    /// Who, and no secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users")
            .field("count", &self.known.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
