//! Who may use a service: names, secrets, and how guessing is slowed down.
//!
//! A secret is compared in constant time, and a name that nobody has costs what a wrong secret does. Only this module makes a [`Proof`],
//! and without one no handshake goes on.

mod file;
mod penalty;
mod turns;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{self, PasswordHasher, PasswordVerifier};
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::Semaphore;

use crate::protocol::{Credentials, Proof};

pub(crate) use file::{read, user};
pub(crate) use penalty::Penalties;

/// What a secret is compared by: of one length whatever the secret's, and worth nothing outside this process.
type Digest = [u8; 32];

/// What the password-hash crate's salts have, which are random numbers like any.
const KEY_BYTES: usize = 16;

/// The names and secrets of a service.
pub(crate) struct Users {
    known: HashMap<Box<[u8]>, User>,
    /// Whose secret is compared where nobody has the name, so that it takes as long.
    nobody: User,
    key: [u8; KEY_BYTES],
    /// A check of a hash takes 19 MiB and some 20 ms of a core, by argon2's defaults: so many at once, and the rest wait.
    checks: Arc<Semaphore>,
}

struct User {
    secret: Secret,
    /// The last secret that was found to be the one behind a hash: who connects often does not pay for a check each time.
    passed: Mutex<Option<Digest>>,
}

enum Secret {
    Clear(Digest),
    /// As argon2 writes it.
    Hash(Arc<PasswordHash>),
}

/// How a user's secret is stored.
pub(crate) enum Stored {
    Clear(Box<[u8]>),
    Hash(Arc<PasswordHash>),
}

impl Users {
    /// These names with these secrets, the last of each name.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(users: impl IntoIterator<Item = (Box<[u8]>, Stored)>) -> Result<Self, password_hash::Error> {
        let key = password_hash::try_generate_salt()?;
        let mut nobody = Secret::Clear(digest(&key, &password_hash::try_generate_salt()?));
        let mut known = HashMap::new();
        for (name, stored) in users {
            let secret = match stored {
                Stored::Clear(secret) => Secret::Clear(digest(&key, &secret)),
                Stored::Hash(hash) => Secret::Hash(hash),
            };
            // A hash costs more than a comparison: one of them, of whatever cost, is what a stranger pays.
            if let Secret::Hash(hash) = &secret {
                nobody = Secret::Hash(Arc::clone(hash));
            }
            known.insert(name, User::new(secret));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            known,
            nobody: User::new(nobody),
            key,
            // Half of the cores are left to the relays that run.
            checks: Arc::new(Semaphore::new((cores / 2).max(1))),
        })
    }

    /// Whether these are a user's name and secret. Dropped before it is done, it leaves one check running to its end.
    pub(crate) async fn verify(&self, credentials: &Credentials) -> Option<Proof> {
        let known = self.known.get(&credentials.name);
        let user = known.unwrap_or(&self.nobody);
        let given = digest(&self.key, &credentials.secret);
        let same = match &user.secret {
            Secret::Clear(expected) => bool::from(expected.ct_eq(&given)),
            Secret::Hash(_) if user.has_passed(&given) => true,
            Secret::Hash(hash) => self.check(&credentials.secret, hash).await,
        };
        // With hashes beside it, a wrong secret in clear text must not be told from an unknown name by the time it takes.
        let same = match (&user.secret, &self.nobody.secret) {
            (Secret::Clear(_), Secret::Hash(hash)) if !same => {
                self.check(&credentials.secret, hash).await;
                false
            }
            _ => same,
        };
        // Whoever's hash it is that stands in for nobody's: knowing that secret makes nobody a user.
        let known = known.filter(|_| same)?;
        known.remember(given);
        Some(Proof::of_known_user())
    }

    async fn check(&self, secret: &[u8], hash: &Arc<PasswordHash>) -> bool {
        let Ok(permit) = Arc::clone(&self.checks).acquire_owned().await else {
            return false;
        };
        let (secret, hash) = (secret.to_vec(), Arc::clone(hash));
        let check = move || {
            let _permit = permit;
            Argon2::default().verify_password(&secret, &*hash).is_ok()
        };
        tokio::task::spawn_blocking(check).await.unwrap_or(false)
    }
}

impl User {
    fn new(secret: Secret) -> Self {
        Self {
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

/// What `hash-password` prints for a secret: argon2id with the crate's defaults (19 MiB, two passes).
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn hash(secret: &[u8]) -> Result<String, password_hash::Error> {
    let hash: PasswordHash = Argon2::default().hash_password(secret)?;
    Ok(hash.to_string())
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
mod tests {
    use super::*;

    fn credentials(name: &str, secret: &str) -> Credentials {
        Credentials {
            name: name.as_bytes().into(),
            secret: secret.as_bytes().into(),
        }
    }

    fn hashed(secret: &str) -> Stored {
        // The least that argon2 takes: a test is about what is compared, not about what it costs.
        let cheap = argon2::Params::new(8, 1, 1, None).unwrap();
        let hasher = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, cheap);
        Stored::Hash(Arc::new(hasher.hash_password(secret.as_bytes()).unwrap()))
    }

    fn clear(secret: &str) -> Stored {
        Stored::Clear(secret.as_bytes().into())
    }

    fn users(of: impl IntoIterator<Item = (&'static str, Stored)>) -> Users {
        Users::new(of.into_iter().map(|(name, stored)| (name.as_bytes().into(), stored))).unwrap()
    }

    #[tokio::test]
    async fn a_name_with_its_own_secret_passes_and_nothing_else_does() {
        for stored in [clear, hashed] {
            let users = users([("ann", stored("a")), ("bob", stored("b"))]);
            for _ in 0..2 {
                assert!(users.verify(&credentials("ann", "a")).await.is_some());
                for (name, secret) in [
                    ("ann", "b"),
                    ("ann", ""),
                    ("ann", "a\0"),
                    ("carol", "a"),
                    ("", ""),
                    ("Ann", "a"),
                ] {
                    assert!(
                        users.verify(&credentials(name, secret)).await.is_none(),
                        "{name} {secret}"
                    );
                }
            }
        }
    }

    /// The hash that stands in for nobody's is somebody's.
    #[tokio::test]
    async fn the_secret_that_strangers_are_compared_with_lets_no_stranger_in() {
        let users = users([("ann", clear("a")), ("bob", hashed("b"))]);
        assert!(users.verify(&credentials("carol", "b")).await.is_none());
        assert!(users.verify(&credentials("bob", "b")).await.is_some());
        assert!(
            users.verify(&credentials("carol", "b")).await.is_none(),
            "nor once it has passed"
        );
    }

    #[tokio::test]
    async fn a_hash_is_checked_once_for_who_comes_again() {
        let users = users([("ann", hashed("a"))]);
        assert!(users.verify(&credentials("ann", "a")).await.is_some());
        // Without a permit left nothing can be checked.
        let _all = users
            .checks
            .acquire_many(u32::try_from(users.checks.available_permits()).unwrap())
            .await
            .unwrap();
        assert!(users.verify(&credentials("ann", "a")).await.is_some());
    }

    #[tokio::test]
    async fn what_is_hashed_is_found_again_and_says_how_it_was_hashed() {
        let text = hash(b"correct horse").unwrap();
        assert!(text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
        let users = users([("ann", Stored::Hash(Arc::new(PasswordHash::new(&text).unwrap())))]);
        assert!(users.verify(&credentials("ann", "correct horse")).await.is_some());
    }

    #[test]
    fn no_secret_is_in_what_is_printed() {
        let users = users([("ann", clear("s3cret"))]);
        assert_eq!(format!("{users:?}"), "Users { count: 1, .. }");
    }
}
