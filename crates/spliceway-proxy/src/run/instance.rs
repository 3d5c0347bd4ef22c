//! The services and listeners that run now, and their change to other settings.
//!
//! ```text
//!   Settings ─ plan: bind, check, build ─▶ Plan ─ commit: assign, open, close ─▶ Changes
//!                      └─ error: everything new is dropped, nothing has changed
//! ```

mod build;
mod changes;
mod finishing;
mod sockets;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spliceway_operator::text::count;
use spliceway_protocol::address::ListenAddress;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Level;

use crate::kit::alive::{Alive, MaybeAlive};
use crate::kit::limits::{Descriptors, EACH_MIRROR, datagram_ports, datagram_sessions, mirrors};
use crate::log::{self, announce};
use crate::monitor::control::By;
use crate::monitor::overview::{Overview, Served};
use crate::net::adopted::Offered;
use crate::net::listener::{Transport, hash_of};
use crate::run::startup::CannotRun;
use crate::session::Process;
use crate::settings::config::Config;
use crate::settings::exposure::{Clients, Reach, check_open};
use crate::settings::{Purpose, ServiceSettings, Settings};
use build::{Before, Built, build};
pub(super) use changes::Changes;
use sockets::{Acceptor, Assignment, Bound, OpenAddress};

/// A limit of fewer sessions than this is probably a mistake, and causes a warning.
const FEW_SESSIONS: usize = 64;

/// The services and listeners that run now.
pub(super) struct Instance {
    process: Arc<Process>,
    acceptor: Acceptor,
    /// `None` before the start.
    running: Option<Running>,
    /// What the operator had written at the start. A key that needs a restart keeps this value,
    /// whatever the files say later.
    started_with: Option<Config>,
    /// The time between two records of an open session.
    record_interval: watch::Sender<Option<Duration>>,
    /// In the order of the services that run.
    open: Vec<OpenAddress>,
    /// The new listeners that the log has not named.
    unannounced: Vec<String>,
    /// How often an operator has drained a service.
    drains: AtomicUsize,
    accepting: JoinSet<()>,
}

/// What is in force. A program may have 10,000 services, so they are found by their names.
struct Running {
    settings: Arc<Settings>,
    /// The service of each of the services in the settings.
    built: Vec<Arc<Built>>,
    /// The index of each service.
    indices: HashMap<Arc<str>, usize>,
    /// For each service, the range of its listeners in the list of all.
    open: Vec<Range<usize>>,
}

/// Checked settings, with everything bound and built that they need. Dropping a plan undoes it.
pub(super) struct Plan {
    settings: Settings,
    built: Vec<Arc<Built>>,
    /// For each service, the index that it has now.
    before: Vec<Option<usize>>,
    addresses: Addresses,
    /// The number of drains before the plan.
    drains: usize,
    changes: Changes,
}

/// The listeners of a plan.
struct Addresses {
    /// Whether the service at this index continues with its listeners, and nothing of it changes.
    is_kept: Vec<bool>,
    /// The addresses of the other services, in the order of the services.
    planned: Vec<Planned>,
    /// Whether the open listeners at this index stay open.
    stays: Vec<bool>,
    /// The number of listeners.
    sockets: usize,
}

/// One address to listen on.
struct Planned {
    address: ListenAddress,
    port_index: u16,
    /// The index of the service.
    service: usize,
    purpose: Purpose,
    listeners: Listeners,
}

enum Listeners {
    /// The index of listeners that are open.
    Open(usize),
    New(Vec<Bound>),
}

impl Listeners {
    fn bound(&self) -> &[Bound] {
        match self {
            Self::New(bound) => bound,
            Self::Open(_) => &[],
        }
    }
}

impl Plan {
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }
}

impl Instance {
    /// `alive` keeps the drain waiting for the listeners and their sessions.
    pub(super) fn new(process: Arc<Process>, alive: Alive) -> Self {
        Self {
            acceptor: Acceptor::new(Arc::clone(&process), alive),
            process,
            running: None,
            started_with: None,
            record_interval: watch::Sender::default(),
            open: Vec::new(),
            unannounced: Vec::new(),
            drains: AtomicUsize::new(0),
            accepting: JoinSet::new(),
        }
    }

    /// Binds the listeners that `settings` need and this instance does not have, and builds the
    /// services. Nothing that runs changes. Cancel safe: what was bound is closed.
    ///
    /// # Errors
    /// Returns an error if a listener cannot be bound, or if the settings are not safe.
    pub(super) async fn plan(&self, mut settings: Settings) -> Result<Plan, CannotRun> {
        let drains = self.drains.load(Ordering::Relaxed);
        let before = self.indices(&settings);
        self.continue_parts(&mut settings, &before);
        // The services share these descriptors evenly. The divisor is a power of two, so that few
        // new services change the share of the others.
        let shares = Descriptors::divide(self.process.descriptors, 0);
        let is_mirrored = settings.services.iter().any(|service| service.mirror.is_some());
        let mirrors = usize::from(is_mirrored) * EACH_MIRROR * mirrors(self.process.descriptors);
        let transient = shares.transient().saturating_sub(mirrors) / settings.services.len().next_power_of_two();
        let addresses = self.addresses(&settings, &before, transient).await?;
        let (mut built, mut left) = (Vec::with_capacity(settings.services.len()), &addresses.planned[..]);
        for (index, service) in settings.services.iter().enumerate() {
            let before = self.before(before[index]);
            let continued = before
                .as_ref()
                .filter(|before| addresses.is_kept[index] || before.stays_drained(service));
            if let Some(before) = continued {
                built.push(Arc::clone(before.built));
                continue;
            }
            // The addresses are in the order of the services.
            let own = left.iter().take_while(|address| address.service == index).count();
            let (own, others) = left.split_at(own);
            left = others;
            let reach = own.iter().flat_map(|address| self.reach(address));
            let clients = Clients::of_service(service, reach);
            check_open(service, clients).map_err(CannotRun::Unsafe)?;
            let process = &self.process;
            built.push(build(process, &settings, service, clients, transient, before.as_ref())?);
        }
        Ok(Plan {
            changes: self.changes(&settings, &before, &addresses),
            settings,
            built,
            before,
            addresses,
            drains,
        })
    }

    /// Returns the index of the service of the same name that runs now, for each service.
    fn indices(&self, settings: &Settings) -> Vec<Option<usize>> {
        let Some(running) = &self.running else {
            return vec![None; settings.services.len()];
        };
        let mut next = 0;
        let index = |service: &Arc<ServiceSettings>| {
            // Most services have the place behind the one before, and were not read again.
            let guess = running.settings.services.get(next);
            let is_next = guess.is_some_and(|guess| Arc::ptr_eq(guess, service));
            let index = if is_next {
                next
            } else {
                *running.indices.get(&service.name)?
            };
            next = index + 1;
            Some(index)
        };
        settings.services.iter().map(index).collect()
    }

    /// Keeps what is equal in the services that were read again.
    fn continue_parts(&self, settings: &mut Settings, before: &[Option<usize>]) {
        for (service, before) in settings.services.iter_mut().zip(before) {
            // A service that was not read again is shared, and cannot be changed.
            if let Some(before) = self.before(*before)
                && let Some(service) = Arc::get_mut(service)
            {
                build::continue_parts(service, before.service);
            }
        }
    }

    /// Returns the service that has this index now.
    fn before(&self, index: Option<usize>) -> Option<Before<'_>> {
        let (running, index) = (self.running.as_ref()?, index?);
        Some(Before {
            built: running.built.get(index)?,
            settings: &running.settings,
            service: running.settings.services.get(index)?,
        })
    }

    /// Finds or binds the listeners of all services, or none. A run with only some of its listeners
    /// would look as if it worked.
    async fn addresses(
        &self,
        settings: &Settings,
        before: &[Option<usize>],
        transient: usize,
    ) -> Result<Addresses, CannotRun> {
        let mut stays = vec![false; self.open.len()];
        let (mut is_kept, mut sockets) = (Vec::with_capacity(before.len()), 0);
        for (service, index) in settings.services.iter().zip(before) {
            let before = self.before(*index);
            is_kept.push(before.is_some_and(|before| before.is_kept(settings, service, transient)));
            if let (Some(true), Some(index), Some(running)) = (is_kept.last(), index, &self.running) {
                let range = running.open[*index].clone();
                stays[range.clone()].fill(true);
                sockets += self.open[range].iter().map(|open| open.sockets.len()).sum::<usize>();
            }
        }
        let (by_hash, mut planned) = (self.free_by_hash(&stays), Vec::new());
        for (index, settled) in settings.services.iter().enumerate() {
            let before = self.before(before[index]);
            if is_kept[index] || before.is_some_and(|before| before.stays_drained(settled)) {
                continue;
            }
            for (range, purpose) in settled.listeners() {
                for (port_index, address) in (0..=u16::MAX).zip(range.iter()) {
                    let listeners = match self.find(&address, settled, purpose, &by_hash, &stays) {
                        Some(index) => {
                            stays[index] = true;
                            self.open[index].check(settled)?;
                            sockets += self.open[index].sockets.len();
                            Listeners::Open(index)
                        }
                        None => {
                            let explained = |error| sockets::explained(error, &address, purpose, &self.open);
                            let bound = self.acceptor.bind(&address, settled, purpose);
                            let bound = bound.await.map_err(explained)?;
                            sockets += bound.len();
                            Listeners::New(bound)
                        }
                    };
                    planned.push(Planned {
                        address,
                        port_index,
                        service: index,
                        purpose,
                        listeners,
                    });
                }
            }
        }
        Ok(Addresses {
            is_kept,
            planned,
            stays,
            sockets,
        })
    }

    /// Returns the hashes and the indices of the open listeners that no service keeps.
    fn free_by_hash(&self, stays: &[bool]) -> Vec<(u64, usize)> {
        let all = self.open.iter().enumerate();
        let free = all.filter(|(index, _)| !stays[*index]);
        let mut by_hash: Vec<_> = free.map(|(index, open)| (open.hash(), index)).collect();
        by_hash.sort_unstable();
        by_hash
    }

    /// Returns the index of open listeners that would do for an address of a service.
    fn find(
        &self,
        address: &ListenAddress,
        service: &ServiceSettings,
        purpose: Purpose,
        by_hash: &[(u64, usize)],
        is_taken: &[bool],
    ) -> Option<usize> {
        let hash = hash_of(address, &service.name);
        let first = by_hash.partition_point(|(one, _)| *one < hash);
        let like = by_hash[first..].iter().take_while(|(one, _)| *one == hash);
        like.map(|(_, index)| *index).find(|&index| {
            let open: &OpenAddress = &self.open[index];
            !is_taken[index] && open.is_accepting() && open.is_at(address, &service.name, purpose)
        })
    }

    fn reach(&self, planned: &Planned) -> Vec<Reach> {
        match &planned.listeners {
            Listeners::Open(index) => self.open[*index].reach_as(&planned.address),
            Listeners::New(bound) => bound.iter().map(Bound::reach).collect(),
        }
    }

    fn changes(&self, settings: &Settings, before: &[Option<usize>], addresses: &Addresses) -> Changes {
        let mut changes = Changes::default();
        let services = settings.services.iter().zip(before);
        for ((service, index), _) in services.zip(&addresses.is_kept).filter(|(_, is_kept)| !**is_kept) {
            let name = || Arc::clone(&service.name);
            let Some(before) = self.before(*index) else {
                changes.added.push(name());
                continue;
            };
            if !build::is_unchanged(settings, service, &before) {
                changes.changed.push(name());
            }
            let missing = before.service.users_missing_in(service).into_iter();
            changes.removed_users.extend(missing.map(|user| (name(), user)));
        }
        let open = self.open.iter().zip(&addresses.stays);
        let closed = open.filter(|(open, stays)| !**stays && open.is_accepting());
        changes.closed = closed.map(|(open, _)| open.to_string()).collect();
        let new = addresses.planned.iter().flat_map(|address| address.listeners.bound());
        changes.opened = new.map(Bound::describe).collect();
        if let Some(Running { settings: now, .. }) = &self.running {
            let mut is_here = vec![false; now.services.len()];
            before.iter().flatten().for_each(|index| is_here[*index] = true);
            let removed = now.services.iter().zip(is_here).filter(|(_, is_here)| !is_here);
            changes.removed = removed.map(|(service, _)| Arc::clone(&service.name)).collect();
            changes.has_other_users_limits = settings.users != now.users;
            changes.has_other_tokens = settings.tokens() != now.tokens();
        }
        if let Some(started_with) = &self.started_with {
            changes.needs_restart = settings.written.fixed_differences(started_with);
        }
        changes
    }

    /// Returns the name of a service that an operator has drained since the plan was made, if there
    /// is one. The plan would send clients to listeners that are closed.
    pub(super) fn drained_since(&self, plan: &Plan) -> Option<Arc<str>> {
        if self.drains.load(Ordering::Relaxed) == plan.drains {
            return None;
        }
        let Addresses { is_kept, planned, .. } = &plan.addresses;
        let is_closed = |planned: &&Planned| matches!(planned.listeners, Listeners::Open(index) if !self.open[index].is_accepting());
        let closed = planned.iter().filter(is_closed);
        let closed = closed.map(|planned| &plan.built[planned.service]);
        let listening: HashSet<usize> = planned.iter().map(|planned| planned.service).collect();
        let built = plan.built.iter().enumerate();
        let built = built.filter(|(index, _)| is_kept[*index] || listening.contains(index));
        let built = built.map(|(_, built)| built);
        let built = built.filter(|built| !built.service.accepting.is_on());
        closed.chain(built).map(|built| Arc::clone(&built.service.name)).next()
    }

    /// Puts a plan into force. Clients that are accepted from now on get the new rules. Running
    /// sessions keep the rules that they began with.
    pub(super) fn commit(&mut self, plan: Plan) -> Changes {
        let Plan {
            settings,
            built,
            before,
            addresses,
            changes,
            drains: _,
        } = plan;
        if let Some(Running { settings: before, .. }) = &self.running
            && before.log.level != settings.log.level
        {
            log::set_level(settings.log.level);
        }
        self.record_interval.send_if_modified(|interval| {
            let before = std::mem::replace(interval, settings.record_interval);
            before != settings.record_interval
        });
        settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.limit_sessions(&settings, addresses.sockets);
        self.process.accounts.set(&settings.users);
        let is_new = built.iter().zip(&addresses.is_kept).filter(|(_, is_kept)| !**is_kept);
        let new: Vec<_> = is_new.map(|(built, _)| Arc::clone(built)).collect();
        new.iter().for_each(|built| built.put_in_force());
        let open = self.assign(addresses, &built, &before);
        new.iter().for_each(|built| built.begin(&self.process.health));
        self.started_with
            .get_or_insert_with(|| settings.written.clone().without_users());
        let indices = self.running.take().map(|running| running.indices);
        self.running = Some(Running {
            indices: renumbered(indices.unwrap_or_default(), &before, &settings),
            settings: Arc::new(settings),
            built,
            open,
        });
        changes
    }

    /// Sends the clients of each address to its service, and closes the other listeners. Returns
    /// the range of the listeners of each service.
    fn assign(&mut self, addresses: Addresses, built: &[Arc<Built>], before: &[Option<usize>]) -> Vec<Range<usize>> {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().map(Some).collect();
        let (mut planned, mut ranges) = (
            addresses.planned.into_iter().peekable(),
            Vec::with_capacity(built.len()),
        );
        for (service, is_kept) in addresses.is_kept.into_iter().enumerate() {
            let first = self.open.len();
            if let (true, Some(before), Some(running)) = (is_kept, before[service], &self.running) {
                let kept = open[running.open[before].clone()].iter_mut();
                self.open.extend(kept.filter_map(Option::take));
            }
            while let Some(planned) = planned.next_if(|planned| planned.service == service) {
                self.assign_one(planned, &mut open, built);
            }
            ranges.push(first..self.open.len());
        }
        drop(open);
        while self.accepting.try_join_next().is_some() {}
        ranges
    }

    fn assign_one(&mut self, planned: Planned, open: &mut [Option<OpenAddress>], built: &[Arc<Built>]) {
        let to = Assignment {
            service: Arc::clone(&built[planned.service].service),
            port_index: planned.port_index,
        };
        match planned.listeners {
            Listeners::Open(index) => {
                if let Some(mut kept) = open[index].take() {
                    kept.assign(planned.address, &to);
                    self.open.push(kept);
                }
            }
            Listeners::New(bound) => {
                let line = |bound: &Bound| bound.line(&to.service.name, planned.purpose);
                self.unannounced.extend(bound.iter().map(line));
                let (address, accepting) = (planned.address, &mut self.accepting);
                self.open
                    .push(self.acceptor.open(address, planned.purpose, bound, &to, accepting));
            }
        }
    }

    fn limit_sessions(&self, settings: &Settings, sockets: usize) {
        let shares = Descriptors::divide(self.process.descriptors, sockets);
        let most = shares.sessions();
        if most < FEW_SESSIONS {
            let room = count(most, "session");
            tracing::warn!("the limit on descriptors (--nofile) leaves room for only {room}: {shares}");
        } else {
            tracing::debug!("{shares}");
        }
        let max = settings.limits.max_conns.map_or(most, |asked| {
            if asked.get() > most {
                tracing::warn!(
                    "--max-conns {asked} is lowered to {most}, because of the limit on descriptors (--nofile): {shares}"
                );
            }
            asked.get().min(most)
        });
        let has_others = settings
            .services
            .iter()
            .any(|service| service.transport == Transport::Streams);
        let datagrams = datagram_sessions(max, has_others);
        let admission = &self.process.admission;
        admission.limit_datagrams(datagrams, datagram_ports());
        admission.set(max, settings.limits.max_conns_per_ip);
    }

    /// Shows the services to the operator, and then logs the new listeners: a reader of the log may
    /// ask for them at once.
    pub(super) fn show(&mut self, overview: &Overview) {
        overview.serve(self.served(), self.settings().cloned());
        for line in std::mem::take(&mut self.unannounced) {
            announce(Level::INFO, &line);
        }
    }

    /// Returns the services that run now, with the addresses of their listeners.
    fn served(&self) -> Vec<Served> {
        let running = self.running.iter();
        let all = running.flat_map(|running| running.built.iter().zip(&running.open));
        let served = all.map(|(built, open)| Served {
            service: Arc::clone(&built.service),
            listen: self.open[open.clone()].iter().flat_map(OpenAddress::describe).collect(),
        });
        served.collect()
    }

    /// Closes the listeners of the service with this name. The returned future waits until they are
    /// closed, so that another program can use their addresses. Sessions may finish.
    pub(super) fn drain(&self, name: &str, by: &By) -> impl Future<Output = ()> + Send + use<> {
        let built = self.running.iter().flat_map(|running| &running.built);
        self.drains.fetch_add(1, Ordering::Relaxed);
        for built in built.filter(|built| *built.service.name == *name) {
            if built.service.accepting.stop() {
                tracing::info!(
                    service = name,
                    "admin: the service accepts no new clients, sessions may finish{by}"
                );
            }
        }
        let open = self.open.iter().filter(|open| open.service() == name);
        let closed: Vec<_> = open.map(OpenAddress::closed).collect();
        async move {
            for closed in closed {
                closed.await;
            }
        }
    }

    /// Returns the open listeners of all services.
    pub(super) fn listeners(&self) -> impl Iterator<Item = Offered> {
        self.open.iter().map(OpenAddress::listeners)
    }

    /// Returns the names of the users of each service that has users, as records show them.
    pub(super) fn users(&self) -> HashMap<Arc<str>, HashSet<Box<str>>> {
        let services = self.settings().into_iter().flat_map(|settings| &settings.services);
        let users = services.filter_map(|service| Some((Arc::clone(&service.name), service.user_names()?)));
        users.collect()
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Returns a token for sessions of another process, which may arrive until the drain has ended.
    pub(super) fn maybe_alive(&self) -> MaybeAlive {
        self.acceptor.maybe_alive()
    }

    /// Returns the time between two records of an open session, as it is and as it changes.
    pub(super) fn record_interval(&self) -> watch::Receiver<Option<Duration>> {
        self.record_interval.subscribe()
    }

    /// Returns the settings in force.
    pub(super) fn settings(&self) -> Option<&Arc<Settings>> {
        self.running.as_ref().map(|running| &running.settings)
    }

    /// Waits until every accept task has closed its listener, so that the next program can use the
    /// address. The tasks end when the program no longer serves.
    pub(super) async fn close(mut self) {
        while self.accepting.join_next().await.is_some() {}
    }
}

/// Returns the index of each service, from those that the services had before.
fn renumbered(
    mut indices: HashMap<Arc<str>, usize>,
    before: &[Option<usize>],
    settings: &Settings,
) -> HashMap<Arc<str>, usize> {
    let mut places = vec![None; indices.len()];
    for (index, before) in before.iter().enumerate() {
        if let Some(before) = before {
            places[*before] = Some(index);
        }
    }
    indices.retain(|_, index| places[*index].map(|place| *index = place).is_some());
    let names = settings.services.iter().map(|service| Arc::clone(&service.name));
    let new = names.zip(0..).zip(before).filter(|(_, before)| before.is_none());
    indices.extend(new.map(|(new, _)| new));
    indices
}
