//! Chooses one of several backends for each client of a forwarder.
//!
//! ```text
//!   client ─▶ Balancer ─ policy ─▶ Lease ─ connect ─▶ relay ─ end of the session ─▶ given back
//!                ▲                           │ failed
//!                └───── another backend ─────┘
//! ```
//!
//! A forwarder with one target has no balancer.

mod policy;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake2::Blake2b512;
use blake2::digest::Digest;
use spliceway_protocol::address::{Target, TargetRange};

use crate::admission::ClientKey;
use policy::Candidate;
pub(crate) use policy::Policy;

/// The most backends of a service. A choice looks at each of them, which takes up to 5 µs for so
/// many.
pub(crate) const BACKENDS_MAX: usize = 256;
/// The most backends that are tried for one client. HAProxy has the same default.
const TRIES_MAX: usize = 4;

/// The backends of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BalanceSettings {
    pub(crate) policy: Policy,
    /// At least 1, and at most [`BACKENDS_MAX`].
    pub(crate) backends: Vec<BackendSettings>,
}

/// One backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendSettings {
    /// The text that names the backend in the log, and whose hash decides which clients it gets.
    pub(crate) name: Box<str>,
    pub(crate) targets: TargetRange,
    /// The share of sessions that it should get.
    pub(crate) weight: NonZeroU32,
    /// Whether it gets sessions only if no other backend is available.
    pub(crate) is_backup: bool,
}

/// The backends of a service, and the sessions that they have.
#[derive(Debug)]
pub(crate) struct Balancer {
    policy: Policy,
    places: Mutex<Vec<Place>>,
}

/// A backend, and what only the balancer knows about it.
#[derive(Debug)]
struct Place {
    settings: BackendSettings,
    hash: u64,
    credit: i64,
    backend: Arc<Backend>,
}

/// What the sessions of a backend share. A reload keeps it.
#[derive(Debug, Default)]
struct Backend {
    /// The number of sessions, including those that are connecting.
    active: AtomicU32,
}

/// A session's place with a backend, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    targets: TargetRange,
    backend: Arc<Backend>,
}

/// The backends that have been tried for one client.
#[derive(Debug, Default)]
pub(crate) struct Tried(Vec<Arc<Backend>>);

impl Balancer {
    /// Creates a balancer. Backends of the same name continue from `before`.
    pub(crate) fn new(settings: &BalanceSettings, before: Option<&Self>) -> Self {
        let before = before.map(Self::places);
        let known = |name: &str| {
            let mut before = before.iter().flat_map(|places| places.iter());
            before.find(|place| *place.settings.name == *name)
        };
        let place = |settings: &BackendSettings| Place {
            hash: hash_of(&settings.name),
            credit: 0,
            backend: known(&settings.name).map_or_else(Arc::default, |place| Arc::clone(&place.backend)),
            settings: settings.clone(),
        };
        Self {
            policy: settings.policy,
            places: Mutex::new(settings.backends.iter().map(place).collect()),
        }
    }

    /// Returns a place with a backend that was not tried before. Returns `None` if there is none,
    /// or after [`TRIES_MAX`] tries.
    pub(crate) fn lease(&self, client: Option<ClientKey>, tried: &Tried) -> Option<Lease> {
        if tried.0.len() >= TRIES_MAX {
            return None;
        }
        let client = client.map(|client| hash_of_client(client.ip()));
        let mut places = self.places();
        let index = [false, true]
            .into_iter()
            .find_map(|is_backup| self.choose(&mut places, is_backup, client, tried))?;
        let place = &places[index];
        place.backend.active.fetch_add(1, Ordering::Relaxed);
        Some(Lease {
            targets: place.settings.targets.clone(),
            backend: Arc::clone(&place.backend),
        })
    }

    fn choose(&self, places: &mut [Place], is_backup: bool, client: Option<u64>, tried: &Tried) -> Option<usize> {
        let is_eligible = |place: &Place| place.settings.is_backup == is_backup && !tried.has(&place.backend);
        let eligible = places.iter().enumerate().filter(|(_, place)| is_eligible(place));
        let (indices, mut candidates): (Vec<_>, Vec<_>) =
            eligible.map(|(index, place)| (index, place.candidate())).unzip();
        let mut random = |below| rand::random_range(0..below);
        let chosen = self.policy.choose(&mut candidates, client, &mut random)?;
        for (index, candidate) in indices.iter().zip(&candidates) {
            places[*index].credit = candidate.credit;
        }
        Some(indices[chosen])
    }

    /// Locks the places and ignores poisoning, because they are valid at every instant.
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn candidate(&self) -> Candidate {
        Candidate {
            weight: self.settings.weight.get(),
            active: self.backend.active.load(Ordering::Relaxed),
            hash: self.hash,
            credit: self.credit,
        }
    }
}

impl Lease {
    /// Returns the target for clients of the listener at this offset in its range.
    pub(crate) fn target(&self, port_index: u16) -> Target {
        self.targets.nth(port_index)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.backend.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tried {
    /// Records that this backend cannot be reached, and gives its place back.
    pub(crate) fn add(&mut self, lease: Lease) {
        self.0.push(Arc::clone(&lease.backend));
    }

    fn has(&self, backend: &Arc<Backend>) -> bool {
        self.0.iter().any(|tried| Arc::ptr_eq(tried, backend))
    }
}

/// Returns the same number in every process and every version, so that several instances send a
/// client to the same backend.
fn hash_of(name: &str) -> u64 {
    first_bytes(&Blake2b512::digest(name))
}

fn hash_of_client(client: IpAddr) -> u64 {
    match client {
        IpAddr::V4(ip) => policy::mixed(ip.to_bits().into()),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            // The other half is 0, because a /64 network is one client.
            policy::mixed((bits >> 64) as u64)
        }
    }
}

fn first_bytes(digest: &[u8]) -> u64 {
    digest.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests;
