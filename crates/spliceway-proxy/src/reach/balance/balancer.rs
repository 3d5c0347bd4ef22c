//! The backends of a service, and the choice among them.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use spliceway_protocol::address::{Target, TargetRange};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::backend::{Backend, BackendState, BackendStatus, Tried, WEIGHT_UNIT};
use super::ejection::{Availability, Credit};
use super::policy::{self, Candidate, Policy};
use super::queue::Queue;
use super::settings::{BackendSettings, BalanceSettings, Members};
use crate::tls::client::PeerName;

/// The backends of a service, and the clients that wait for one.
#[derive(Debug)]
pub(crate) struct Balancer {
    service: Arc<str>,
    pub(super) settings: BalanceSettings,
    pub(super) inner: Mutex<Inner>,
    /// The balancer of the service that is in force. All balancers of the service share it.
    pub(super) in_force: Arc<Mutex<Weak<Balancer>>>,
    /// Notified when a name has other members.
    pub(super) members_changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) entries: Vec<Entry>,
    pub(super) queue: Queue<Lease>,
    /// Whether another balancer is in force. No client waits here any more.
    pub(super) is_replaced: bool,
    /// The last members of names that have left. An answer may have only some of the addresses, and
    /// a member that returns keeps its weight, its failures and its sessions.
    pub(super) left: VecDeque<Arc<Backend>>,
    /// The names that have not been looked up yet. Clients wait for their members.
    pub(super) unresolved: Vec<Box<str>>,
}

/// A backend, and what only the balancer knows about it.
#[derive(Debug)]
pub(super) struct Entry {
    /// The name in the settings, of which it is a member.
    pub(super) group: Box<str>,
    pub(super) settings: BackendSettings,
    pub(super) hash: u64,
    pub(super) credit: i64,
    pub(super) backend: Arc<Backend>,
}

/// A session's permit to use a backend, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) balancer: Arc<Balancer>,
    pub(super) backend: Arc<Backend>,
    pub(super) targets: TargetRange,
    /// Boxed, because every session with a backend has a lease, and few have TLS.
    pub(super) tls: Option<Box<PeerName>>,
    /// Whether this session tries if an ejected backend works again.
    pub(super) is_trial: bool,
    pub(super) connected: Option<(Instant, Credit)>,
    /// The number of backends that were tried before this one.
    pub(crate) retries: usize,
}

/// The result of a choice.
pub(super) enum Choice {
    /// The index of the entry.
    Backend(usize),
    /// There are backends and all of them are full, or a name is not looked up yet.
    Full,
    None,
}

impl Balancer {
    /// Creates a balancer. Backends of the same name continue from `before`, and so do its waiting
    /// clients when the balancer [takes over](Self::takes_over).
    pub(crate) fn new(service: impl Into<Arc<str>>, settings: &BalanceSettings, before: Option<&Self>) -> Arc<Self> {
        // A client that came to another range of ports has no port of these backends.
        let alike = before.filter(|before| before.settings.ports() == settings.ports());
        let in_force = alike.map(|before| Arc::clone(&before.in_force)).unwrap_or_default();
        let before = before.map(|before| before.inner.lock());
        let left = before.as_ref().map(|inner| inner.left.clone()).unwrap_or_default();
        let before: &[Entry] = before.as_ref().map_or(&[], |inner| &inner.entries);
        let same = |entry: &Entry| Some(Arc::clone(&entry.backend));
        let (mut entries, mut unresolved) = (Vec::new(), Vec::new());
        for backend in &settings.backends {
            if backend.members == Members::One {
                let known = before.iter().find(|entry| entry.settings.name == backend.name);
                entries.push(Entry::new(&backend.name, backend.clone(), known.and_then(same)));
                continue;
            }
            // The members stay until the name is looked up again.
            let known = before.iter().filter(|entry| entry.group == backend.name);
            let count = entries.len();
            entries.extend(known.map(|entry| Entry::new(&backend.name, entry.settings.clone(), same(entry))));
            if entries.len() == count {
                unresolved.push(backend.name.clone());
            }
        }
        Arc::new(Self {
            service: service.into(),
            settings: settings.clone(),
            inner: Mutex::new(Inner {
                entries,
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
    pub(super) fn choose(&self, inner: &mut Inner, client: Option<u64>, tried: &Tried) -> Choice {
        let (entries, now) = (&mut inner.entries, Instant::now());
        for is_backup in [false, true] {
            let is_here = |entry: &Entry| {
                entry.settings.is_backup == is_backup
                    && entry.weight() > 0
                    && !tried.has(&entry.backend)
                    && self.availability(entry, now) != Availability::Ejected
            };
            let here: Vec<_> = (0..entries.len()).filter(|index| is_here(&entries[*index])).collect();
            let (indices, mut candidates): (Vec<_>, Vec<_>) = here
                .iter()
                .filter(|index| !entries[**index].is_full())
                .map(|index| (*index, self.candidate(&entries[*index], now)))
                .unzip();
            let mut random = |below| rand::random_range(0..below);
            if let Some(chosen) = self.settings.policy.choose(&mut candidates, client, &mut random) {
                for (index, candidate) in indices.iter().zip(&candidates) {
                    entries[*index].credit = candidate.credit;
                }
                return Choice::Backend(indices[chosen]);
            }
            if !here.is_empty() {
                return Choice::Full;
            }
        }
        if inner.unresolved.is_empty() {
            Choice::None
        } else {
            Choice::Full
        }
    }

    fn availability(&self, entry: &Entry, now: Instant) -> Availability {
        if self.settings.check.is_some() && entry.backend.is_down() {
            Availability::Ejected
        } else {
            entry.backend.availability(now)
        }
    }

    fn candidate(&self, entry: &Entry, now: Instant) -> Candidate {
        // Clients that are chosen by their address should stay with their backend.
        let slow_start = match self.settings.policy {
            Policy::SourceHash | Policy::First => Duration::ZERO,
            Policy::RoundRobin | Policy::LeastConn | Policy::P2c => self.settings.slow_start,
        };
        let share = entry.backend.share(slow_start, now);
        Candidate {
            weight: (f64::from(entry.weight() * WEIGHT_UNIT) * share) as u32,
            active: entry.backend.active(),
            hash: entry.hash,
            credit: entry.credit,
        }
    }

    /// Returns whether another backend than this target gets clients now, and this one does not.
    pub(crate) fn prefers_others(&self, target: &Target) -> bool {
        let (inner, now) = (self.inner.lock(), Instant::now());
        let gets_clients =
            |entry: &&Entry| entry.weight() > 0 && self.availability(entry, now) != Availability::Ejected;
        let mut available = inner.entries.iter().filter(gets_clients).peekable();
        available.peek().is_some() && !available.any(|entry| entry.settings.targets.contains(target))
    }

    /// Calls `decide` with whether one more backend may be ejected. Only one caller at a time
    /// decides, so that a share is never ejected.
    pub(super) fn with_ejections<T>(&self, now: Instant, decide: impl FnOnce(bool) -> T) -> T {
        let inner = self.inner.lock();
        let is_ejected = |entry: &&Entry| entry.weight() == 0 || self.availability(entry, now) != Availability::Up;
        let ejected = inner.entries.iter().filter(is_ejected).count();
        decide(self.settings.eject.allows(ejected, inner.entries.len()))
    }

    /// Sets the weight of a backend until the program ends: at most [`super::WEIGHT_MAX`], and 0
    /// for no new clients. `None` is the weight of the configuration. Returns `false` if no backend
    /// has this name.
    pub(crate) fn set_weight(self: &Arc<Self>, backend: &str, weight: Option<u32>) -> bool {
        let inner = self.inner.lock();
        let Some(entry) = inner.entries.iter().find(|entry| *entry.settings.name == *backend) else {
            return false;
        };
        entry.backend.set_weight(weight);
        drop(inner);
        self.serve_queue();
        true
    }

    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    pub(crate) fn status(&self) -> Vec<BackendStatus> {
        let now = Instant::now();
        let status = |entry: &Entry| {
            let state = match self.availability(entry, now) {
                _ if entry.weight() == 0 => BackendState::Draining,
                Availability::Up => BackendState::Up,
                _ if self.settings.check.is_some() && entry.backend.is_down() => BackendState::Down,
                Availability::Trial | Availability::Ejected => BackendState::Ejected,
            };
            entry.backend.status(state, entry.weight(), entry.settings.is_backup)
        };
        self.inner.lock().entries.iter().map(status).collect()
    }
}

impl Entry {
    /// Returns an entry whose backend is `known`, or a new one.
    pub(super) fn new(group: &str, settings: BackendSettings, known: Option<Arc<Backend>>) -> Self {
        let backend = known.unwrap_or_else(|| Arc::new(Backend::new(&settings.name)));
        Self {
            group: group.into(),
            hash: policy::hash_of_name(&settings.name),
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
}
