//! Password hashes. Parsing a hash bounds its cost, and a check returns its memory to the system.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{self, PasswordHasher};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use subtle::ConstantTimeEq;

/// The maximum memory of one hash, which libsodium calls "moderate". `hash-password` uses 19 MiB.
pub(super) const MEMORY_MAX_KIB: u32 = 256 << 10;
/// The maximum cost of a failed login: the sum of memory times passes over all different costs in a
/// file. The check takes about 1 s.
pub(super) const WORK_MAX_KIB: u64 = 1 << 20;

/// The minimum size of an allocation. glibc maps an allocation of at least this size and unmaps it
/// when it is freed. The memory of a smaller allocation may stay in an arena.
const MAPPED_BYTES: usize = 33 << 20;

/// A hash from the user file. All of its parts have been checked.
pub(crate) struct Hash {
    argon2: Argon2<'static>,
    cost: Cost,
    salt: Box<[u8]>,
    output: Box<[u8]>,
}

/// The stored form of a user's password.
pub(crate) enum Stored {
    Clear(Box<[u8]>),
    Hash(Arc<Hash>),
}

/// The parameters that determine how long the check of a hash takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    algorithm: Algorithm,
    version: Version,
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// Memory for one check at a time. Freed memory returns to the system.
#[derive(Default)]
pub(super) struct Blocks(Vec<Block>);

/// The check of one password. A wrong password costs one hash of each cost in the file, whatever
/// user the client named.
pub(super) struct Work {
    secret: Box<[u8]>,
    /// The hash of the named user, if there is one.
    own: Option<Arc<Hash>>,
    /// One hash of each other cost. Their results are ignored.
    others: Vec<Arc<Hash>>,
}

impl Hash {
    /// Parses an argon2 hash.
    ///
    /// # Errors
    /// Returns a message that describes the expected form, without repeating the text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |error: password_hash::Error| format!("this is not a valid argon2 hash: {error}");
        let parsed = PasswordHash::new(text).map_err(|error| wrong(error.into()))?;
        let algorithm = Algorithm::try_from(parsed.algorithm.as_str()).map_err(wrong)?;
        let version = parsed.version.map(Version::try_from).transpose();
        let version = version.map_err(|error| wrong(error.into()))?.unwrap_or_default();
        let params = Params::try_from(&parsed).map_err(wrong)?;
        let (Some(salt), Some(output)) = (&parsed.salt, &parsed.hash) else {
            return Err("this is not a valid argon2 hash: expected a salt and an output".to_owned());
        };
        if salt.len() < argon2::MIN_SALT_LEN {
            return Err(format!(
                "the salt of this hash is too short: expected at least {} bytes",
                argon2::MIN_SALT_LEN
            ));
        }
        let cost = Cost {
            algorithm,
            version,
            memory_kib: params.m_cost(),
            passes: params.t_cost(),
            lanes: params.p_cost(),
        };
        if cost.memory_kib > MEMORY_MAX_KIB {
            return Err(format!(
                "this hash asks for too much memory, m={}: expected at most m={MEMORY_MAX_KIB} (256 MiB)",
                cost.memory_kib
            ));
        }
        Ok(Self {
            argon2: Argon2::new(algorithm, version, params),
            cost,
            salt: Box::from(&salt[..]),
            output: Box::from(output.as_bytes()),
        })
    }

    pub(super) fn cost(&self) -> Cost {
        self.cost
    }

    fn matches(&self, secret: &[u8], blocks: &mut Blocks) -> bool {
        let mut computed = vec![0; self.output.len()];
        let memory = blocks.first(self.argon2.params().block_count());
        let hashed = self
            .argon2
            .hash_password_into_with_memory(secret, &self.salt, &mut computed, memory);
        hashed.is_ok() && bool::from(computed.ct_eq(&self.output))
    }
}

impl Cost {
    /// Returns the approximate time of a check. It is 20 ms for 19 MiB and two passes on a
    /// processor from 2020.
    pub(super) fn time(self) -> Duration {
        Duration::from_nanos(self.work_kib() * 500)
    }

    /// Returns the memory in KiB times the number of passes. The time of a check is proportional to
    /// this product.
    pub(super) fn work_kib(self) -> u64 {
        u64::from(self.memory_kib) * u64::from(self.passes)
    }
}

impl Work {
    /// Creates a check. `each_cost` has one hash of each cost in the file.
    pub(super) fn new(secret: &[u8], own: Option<&Arc<Hash>>, each_cost: &[Arc<Hash>]) -> Self {
        let is_other = |hash: &&Arc<Hash>| own.is_none_or(|own| own.cost() != hash.cost());
        Self {
            secret: secret.into(),
            own: own.cloned(),
            others: each_cost.iter().filter(is_other).cloned().collect(),
        }
    }

    /// Returns whether the password is the user's.
    pub(super) fn run(&self, blocks: &mut Blocks) -> bool {
        let same = self.own.as_ref().is_some_and(|own| own.matches(&self.secret, blocks));
        if !same {
            self.others.iter().for_each(|other| {
                other.matches(&self.secret, blocks);
            });
        }
        same
    }

    /// Returns the costs of checking a wrong password.
    #[cfg(test)]
    pub(super) fn costs(&self) -> std::collections::BTreeSet<Cost> {
        self.own.iter().chain(&self.others).map(|hash| hash.cost()).collect()
    }
}

impl Blocks {
    fn first(&mut self, count: usize) -> &mut [Block] {
        if self.0.len() < count {
            // The old blocks are freed before the new ones are allocated. Reserved but unused space
            // does not use memory.
            self.0 = Vec::new();
            self.0.reserve_exact(count.max(MAPPED_BYTES / Block::SIZE));
            self.0.resize(count, Block::new());
        }
        &mut self.0[..count]
    }
}

/// Returns the output of `hash-password` for a password: an argon2id hash with the crate's defaults
/// (19 MiB, two passes).
///
/// # Errors
/// Returns an error if the system has no random numbers.
pub(crate) fn hash(secret: &[u8]) -> Result<String, password_hash::Error> {
    let hash: PasswordHash = Argon2::default().hash_password(secret)?;
    Ok(hash.to_string())
}

impl fmt::Debug for Hash {
    /// Shows the cost, but nothing that helps to find the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hash").field("cost", &self.cost).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a hash in the form of the user file, with this many KiB and passes.
    pub(in super::super) fn text(secret: &str, memory_kib: u32, passes: u32) -> String {
        let params = Params::new(memory_kib, passes, 1, None).unwrap();
        let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let hash: PasswordHash = hasher.hash_password(secret.as_bytes()).unwrap();
        hash.to_string()
    }

    #[test]
    fn reused_memory_gives_the_same_results() {
        let mut blocks = Blocks::default();
        let hashes = [(64, 2), (8, 1), (64, 1), (256, 2), (8, 3)];
        let hashes = hashes.map(|(memory, passes)| Hash::parse(&text("right", memory, passes)).unwrap());
        for hash in hashes.iter().chain(hashes.iter().rev()) {
            assert!(!hash.matches(b"wrong", &mut blocks) && hash.matches(b"right", &mut blocks));
        }
    }

    #[test]
    fn the_cost_of_a_hash_is_bounded() {
        let asks = |cost: &str| Hash::parse(&format!("$argon2id$v=19${cost}$c29tZXNhbHQxMjM0${}", "A".repeat(43)));
        assert!(asks("m=262144,t=1,p=1").is_ok());
        let wrong = asks("m=262145,t=1,p=1").unwrap_err();
        assert!(wrong.contains("m=262145: expected at most m=262144"), "{wrong}");
        for cost in ["m=7,t=1,p=1", "m=8,t=0,p=1", "m=8,t=1,p=2", "m=8,t=1,p=0"] {
            assert!(asks(cost).is_err(), "{cost}");
        }
    }
}
