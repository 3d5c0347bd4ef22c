//! Chooses one of several backends for each client of a forwarder.
//!
//! ```text
//!                 all are full
//!             ┌─▶ queue ─┐
//!   client ─▶ Balancer ─ policy ─▶ Lease ─ connect ─▶ relay ─ end of the session ─▶ given back
//!                ▲                           │ failed
//!                └───── another backend ─────┘
//! ```
//!
//! A forwarder with one target has no balancer.

mod check;
mod ejection;
mod lease;
mod members;
mod moved;
mod policy;
mod probe;
mod queue;

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use blake2::Blake2b512;
use blake2::digest::Digest;
use spliceway_protocol::address::{Target, TargetRange};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access::admission::ClientKey;
use ejection::Availability;
use lease::Backend;
use policy::Candidate;
use queue::{InForce, Queue};

pub(crate) use check::CheckSettings;
pub(crate) use ejection::EjectSettings;
pub(crate) use lease::{Failure, Lease, Tried};
pub(crate) use members::Members;
pub(crate) use moved::MovedBackend;
pub(crate) use policy::Policy;
pub(crate) use probe::Probe;
pub(crate) use queue::NoLease;

/// The most backends of a service. A choice looks at each of them, which takes up to 5 µs for so
/// many.
pub(crate) const BACKENDS_MAX: usize = 256;
/// A larger weight would not be exact with few sessions. HAProxy has the same limit.
pub(crate) const WEIGHT_MAX: u32 = 256;
/// What a weight of 1 is for a policy, so that a backend that starts slowly can have less.
const WEIGHT_UNIT: u32 = 16;
/// The most backends that are tried for one client. HAProxy has the same default.
const TRIES_MAX: usize = 4;

/// The backends of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BalanceSettings {
    pub(crate) policy: Policy,
    /// At least 1, and at most [`BACKENDS_MAX`].
    pub(crate) backends: Vec<BackendSettings>,
    pub(crate) eject: EjectSettings,
    /// The most clients that wait for a backend with a limit on sessions.
    pub(crate) queue_max: usize,
    /// How backends are checked. `None` means that only their sessions show how they are.
    pub(crate) check: Option<CheckSettings>,
    /// The time over which a backend that is up again gets its whole share.
    pub(crate) slow_start: Duration,
}

/// One backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendSettings {
    /// The text that names the backend in the log and in metrics, and whose hash decides which
    /// clients it gets.
    pub(crate) name: Box<str>,
    pub(crate) targets: TargetRange,
    /// The share of sessions that it should get.
    pub(crate) weight: NonZeroU32,
    /// Whether it gets sessions only if no other backend is available.
    pub(crate) is_backup: bool,
    /// The most sessions at the same time.
    pub(crate) max_conns: Option<NonZeroU32>,
    pub(crate) members: Members,
}

/// The backends of a service, and the clients that wait for one.
#[derive(Debug)]
pub(crate) struct Balancer {
    service: &'static str,
    settings: BalanceSettings,
    inner: Mutex<Inner>,
    in_force: Arc<InForce>,
    /// Notified when a name has other members.
    members_changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    places: Vec<Place>,
    queue: Queue,
    /// Whether another balancer is in force. No client waits here any more.
    is_replaced: bool,
    /// The last members of names that have left. An answer may have only some of the addresses, and
    /// a member that returns keeps its weight, its failures and its sessions.
    left: VecDeque<Arc<Backend>>,
    /// The names that have not been looked up yet. Clients wait for their members.
    unresolved: Vec<Box<str>>,
}

/// A backend, and what only the balancer knows about it.
#[derive(Debug)]
struct Place {
    /// The name in the settings, of which it is a member.
    group: Box<str>,
    settings: BackendSettings,
    hash: u64,
    credit: i64,
    backend: Arc<Backend>,
}

/// What the operator sees of a backend.
#[derive(Debug, Clone)]
pub(crate) struct BackendStatus {
    pub(crate) name: Box<str>,
    pub(crate) state: BackendState,
    pub(crate) is_backup: bool,
    pub(crate) weight: u32,
    pub(crate) sessions: u32,
    /// The number of connections so far.
    pub(crate) connections: u64,
    /// The number of failures so far, in the order of [`Failure::ALL`].
    pub(crate) failures: [u64; Failure::ALL.len()],
    pub(crate) ejections: u64,
    /// The number of good and of failed checks so far.
    pub(crate) checks: [u64; 2],
}

/// Whether a backend gets clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendState {
    Up,
    /// The operator has set its weight to 0.
    Draining,
    /// It fails, and gets no clients for a while.
    Ejected,
    /// Its checks fail.
    Down,
}

/// The result of a choice.
enum Choice {
    /// The index of the place.
    Place(usize),
    /// There are backends and all of them are full, or a name is not looked up yet.
    Full,
    None,
}

impl Balancer {
    /// Creates a balancer. Backends of the same name continue from `before`, and so do its waiting
    /// clients when the balancer [takes over](Self::takes_over).
    pub(crate) fn new(service: &'static str, settings: &BalanceSettings, before: Option<&Self>) -> Arc<Self> {
        // A client that came to another range of ports has no port of these backends.
        let alike = before.filter(|before| before.settings.ports() == settings.ports());
        let in_force = alike.map(|before| Arc::clone(&before.in_force)).unwrap_or_default();
        let before = before.map(Self::inner);
        let left = before.as_ref().map(|inner| inner.left.clone()).unwrap_or_default();
        let before: &[Place] = before.as_ref().map_or(&[], |inner| &inner.places);
        let same = |place: &Place| Some(Arc::clone(&place.backend));
        let (mut places, mut unresolved) = (Vec::new(), Vec::new());
        for backend in &settings.backends {
            if backend.members == Members::One {
                let known = before.iter().find(|place| place.settings.name == backend.name);
                places.push(Place::new(&backend.name, backend.clone(), known.and_then(same)));
                continue;
            }
            // The members stay until the name is looked up again.
            let known = before.iter().filter(|place| place.group == backend.name);
            let count = places.len();
            places.extend(known.map(|place| Place::new(&backend.name, place.settings.clone(), same(place))));
            if places.len() == count {
                unresolved.push(backend.name.clone());
            }
        }
        Arc::new(Self {
            service,
            settings: settings.clone(),
            inner: Mutex::new(Inner {
                places,
                queue: Queue::default(),
                is_replaced: false,
                left,
                unresolved,
            }),
            in_force,
            members_changed: Notify::new(),
        })
    }

    /// Chooses among the backends, and among the backups if there is no other one.
    fn choose(&self, inner: &mut Inner, client: Option<u64>, tried: &Tried) -> Choice {
        let (places, now) = (&mut inner.places, Instant::now());
        for is_backup in [false, true] {
            let is_here = |place: &Place| {
                place.settings.is_backup == is_backup
                    && place.weight() > 0
                    && !tried.has(&place.backend)
                    && self.availability(place, now) != Availability::Ejected
            };
            let here: Vec<_> = (0..places.len()).filter(|index| is_here(&places[*index])).collect();
            let (indices, mut candidates): (Vec<_>, Vec<_>) = here
                .iter()
                .filter(|index| !places[**index].is_full())
                .map(|index| (*index, self.candidate(&places[*index], now)))
                .unzip();
            let mut random = |below| rand::random_range(0..below);
            if let Some(chosen) = self.settings.policy.choose(&mut candidates, client, &mut random) {
                for (index, candidate) in indices.iter().zip(&candidates) {
                    places[*index].credit = candidate.credit;
                }
                return Choice::Place(indices[chosen]);
            }
            if !here.is_empty() {
                return Choice::Full;
            }
        }
        match inner.unresolved.is_empty() {
            true => Choice::None,
            false => Choice::Full,
        }
    }

    fn availability(&self, place: &Place, now: Instant) -> Availability {
        match self.settings.check.is_some() && place.backend.is_down() {
            true => Availability::Ejected,
            false => place.backend.availability(now),
        }
    }

    fn candidate(&self, place: &Place, now: Instant) -> Candidate {
        // Clients that are chosen by their address should stay with their backend.
        let slow_start = match self.settings.policy {
            Policy::SourceHash | Policy::First => Duration::ZERO,
            _ => self.settings.slow_start,
        };
        let share = place.backend.share(slow_start, now);
        Candidate {
            weight: (f64::from(place.weight() * WEIGHT_UNIT) * share) as u32,
            active: place.backend.active(),
            hash: place.hash,
            credit: place.credit,
        }
    }

    fn take(self: &Arc<Self>, place: &Place) -> Lease {
        Lease::new(
            Arc::clone(self),
            Arc::clone(&place.backend),
            place.settings.targets.clone(),
        )
    }

    /// Returns a place for a session that runs already, if its target is one of the backends.
    pub(crate) fn adopt(self: &Arc<Self>, target: &Target) -> Option<Lease> {
        let inner = self.inner();
        let mut places = inner.places.iter();
        let place = places.find(|place| place.settings.targets.contains(target))?;
        let (backend, targets) = (Arc::clone(&place.backend), place.settings.targets.clone());
        Some(Lease::of_running(Arc::clone(self), backend, targets))
    }

    /// Returns whether another backend than this target gets clients now, and this one does not.
    pub(crate) fn prefers_others(&self, target: &Target) -> bool {
        let (inner, now) = (self.inner(), Instant::now());
        let gets_clients =
            |place: &&Place| place.weight() > 0 && self.availability(place, now) != Availability::Ejected;
        let mut available = inner.places.iter().filter(gets_clients).peekable();
        available.peek().is_some() && !available.any(|place| place.settings.targets.contains(target))
    }

    /// Calls `decide` with whether one more backend may be ejected. Only one caller at a time
    /// decides, so that a share is never ejected.
    fn with_ejections<T>(&self, now: Instant, decide: impl FnOnce(bool) -> T) -> T {
        let inner = self.inner();
        let is_ejected = |place: &&Place| place.weight() == 0 || self.availability(place, now) != Availability::Up;
        let ejected = inner.places.iter().filter(is_ejected).count();
        decide(self.settings.eject.allows(ejected, inner.places.len()))
    }

    /// Sets the weight of a backend until the program ends: at most [`WEIGHT_MAX`], and 0 for no
    /// new clients. `None` is the weight of the configuration. Returns `false` if no backend has
    /// this name.
    pub(crate) fn set_weight(self: &Arc<Self>, backend: &str, weight: Option<u32>) -> bool {
        let inner = self.inner();
        let Some(place) = inner.places.iter().find(|place| *place.settings.name == *backend) else {
            return false;
        };
        place.backend.set_weight(weight);
        drop(inner);
        self.serve_queue();
        true
    }

    pub(crate) fn service(&self) -> &'static str {
        self.service
    }

    pub(crate) fn status(&self) -> Vec<BackendStatus> {
        let now = Instant::now();
        let status = |place: &Place| {
            let state = match self.availability(place, now) {
                _ if place.weight() == 0 => BackendState::Draining,
                Availability::Up => BackendState::Up,
                _ if self.settings.check.is_some() && place.backend.is_down() => BackendState::Down,
                Availability::Trial | Availability::Ejected => BackendState::Ejected,
            };
            place.status(state)
        };
        self.inner().places.iter().map(status).collect()
    }

    /// Locks the state.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl BalanceSettings {
    /// Returns the number of ports of the longest range.
    fn ports(&self) -> Option<u16> {
        self.backends.iter().map(|backend| backend.targets.count).max()
    }
}

impl Place {
    /// Returns a place whose backend is `known`, or a new one.
    fn new(group: &str, settings: BackendSettings, known: Option<Arc<Backend>>) -> Self {
        let backend = known.unwrap_or_else(|| Arc::new(Backend::new(&settings.name)));
        Self {
            group: group.into(),
            hash: hash_of(&settings.name),
            credit: 0,
            backend,
            settings,
        }
    }

    fn is_full(&self) -> bool {
        let max = self.settings.max_conns;
        max.is_some_and(|max| self.backend.active() >= max.get())
    }

    fn weight(&self) -> u32 {
        self.backend.weight().unwrap_or(self.settings.weight.get())
    }

    fn status(&self, state: BackendState) -> BackendStatus {
        BackendStatus {
            weight: self.weight(),
            is_backup: self.settings.is_backup,
            state,
            ..self.backend.status()
        }
    }
}

/// Returns the same number in every process and every version, so that several instances send a
/// client to the same backend.
fn hash_of(name: &str) -> u64 {
    let digest = Blake2b512::digest(name);
    digest.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

fn hash_of_client(client: ClientKey) -> u64 {
    match client.ip() {
        IpAddr::V4(ip) => policy::mixed(ip.to_bits().into()),
        // The other half is 0, because a /64 network is one client.
        IpAddr::V6(ip) => policy::mixed((ip.to_bits() >> 64) as u64),
    }
}

#[cfg(test)]
mod tests;
