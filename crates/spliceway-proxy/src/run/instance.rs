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
use std::sync::Arc;
use std::time::Duration;

use spliceway_operator::text::count;
use spliceway_protocol::address::ListenAddress;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Level;

use crate::kit::alive::{Alive, MaybeAlive};
use crate::kit::limits::{Descriptors, datagram_ports, datagram_sessions};
use crate::log::{self, announce};
use crate::monitor::control::By;
use crate::monitor::overview::Served;
use crate::net::adopted::Offered;
use crate::net::listener::Transport;
use crate::run::startup::CannotRun;
use crate::session::Process;
use crate::settings::config::Config;
use crate::settings::exposure::{Clients, Reach, check_open};
use crate::settings::{ServiceSettings, Settings};
use build::{Before, Built, build};
pub(super) use changes::Changes;
use sockets::{Acceptor, Assignment, Bound, OpenAddress, hash_of};

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
    open: Vec<OpenAddress>,
    accepting: JoinSet<()>,
}

/// What is in force. A program may have 10,000 services, so they are found by their names.
struct Running {
    settings: Arc<Settings>,
    /// The service of each of the services in the settings.
    built: Vec<Built>,
    /// The index of each service.
    indices: HashMap<&'static str, usize>,
}

/// Checked settings, with everything bound and built that they need. Dropping a plan undoes it.
pub(super) struct Plan {
    settings: Settings,
    built: Vec<Built>,
    addresses: Vec<Planned>,
    changes: Changes,
}

/// One address to listen on.
struct Planned {
    address: ListenAddress,
    port_index: u16,
    /// The index of the service.
    service: usize,
    listeners: Listeners,
}

enum Listeners {
    /// The index of listeners that are open.
    Open(usize),
    New(Vec<Bound>),
}

impl Listeners {
    fn open(&self) -> Option<usize> {
        match self {
            Self::Open(index) => Some(*index),
            Self::New(_) => None,
        }
    }

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
            accepting: JoinSet::new(),
        }
    }

    /// Binds the listeners that `settings` need and this instance does not have, and builds the
    /// services. Nothing that runs changes. Cancel safe: what was bound is closed.
    ///
    /// # Errors
    /// Returns an error if a listener cannot be bound, or if the settings are not safe.
    pub(super) async fn plan(&self, mut settings: Settings) -> Result<Plan, CannotRun> {
        self.continue_users(&mut settings);
        let addresses = self.addresses(&settings).await?;
        let shares = Descriptors::divide(self.process.descriptors, self.sockets(&addresses));
        // The services share these descriptors evenly. The divisor is a power of two, so that few
        // new services change the share of the others.
        let transient = shares.transient() / settings.services.len().next_power_of_two();
        let (mut built, mut left) = (Vec::with_capacity(settings.services.len()), &addresses[..]);
        for (index, service) in settings.services.iter().enumerate() {
            // The addresses are in the order of the services.
            let own = left.iter().take_while(|address| address.service == index).count();
            let (own, others) = left.split_at(own);
            left = others;
            let before = self.before(service);
            if let Some(before) = before.as_ref().filter(|before| before.stays_drained(service)) {
                built.push(before.built.clone());
                continue;
            }
            let reach = own.iter().flat_map(|address| self.reach(address));
            let clients = Clients::of_service(service, reach);
            check_open(service, clients).map_err(CannotRun::Unsafe)?;
            let process = &self.process;
            built.push(build(process, &settings, service, clients, transient, before.as_ref())?);
        }
        Ok(Plan {
            changes: self.changes(&settings, &addresses),
            settings,
            built,
            addresses,
        })
    }

    /// Keeps the users whose text is unchanged, because they know which passwords are right.
    fn continue_users(&self, settings: &mut Settings) {
        // A service that was not read again is shared, and has its users.
        for service in settings.services.iter_mut().filter_map(Arc::get_mut) {
            let before = self.before(service).and_then(|before| before.service.users.clone());
            if let (Some(users), Some(before)) = (&mut service.users, before)
                && users.are_unchanged(&before)
            {
                *users = before;
            }
        }
    }

    /// Returns the service of the same name that runs now.
    fn before(&self, service: &ServiceSettings) -> Option<Before<'_>> {
        let running = self.running.as_ref()?;
        let index = *running.indices.get(service.name)?;
        Some(Before {
            built: running.built.get(index)?,
            settings: &running.settings,
            service: running.settings.services.get(index)?,
        })
    }

    /// Finds or binds the listeners of all services, or none. A run with only some of its listeners
    /// would look as if it worked.
    async fn addresses(&self, settings: &Settings) -> Result<Vec<Planned>, CannotRun> {
        let mut is_taken = vec![false; self.open.len()];
        let mut by_hash: Vec<_> = (0..)
            .zip(&self.open)
            .map(|(index, open)| (open.hash(), index))
            .collect();
        by_hash.sort_unstable();
        let mut addresses = Vec::new();
        for (service, settled) in settings.services.iter().enumerate() {
            if self.before(settled).is_some_and(|before| before.stays_drained(settled)) {
                continue;
            }
            for range in &settled.listen {
                for (port_index, address) in (0..=u16::MAX).zip(range.iter()) {
                    let hash = hash_of(&address);
                    let first = by_hash.partition_point(|(one, _)| *one < hash);
                    let like = by_hash[first..].iter().take_while(|(one, _)| *one == hash);
                    let found = like.map(|(_, index)| *index).find(|&index| {
                        let open: &OpenAddress = &self.open[index];
                        !is_taken[index] && open.is_accepting() && open.is_at(&address, settled.name, settled.transport)
                    });
                    let listeners = match found {
                        Some(index) => {
                            is_taken[index] = true;
                            self.open[index].check(settled)?;
                            Listeners::Open(index)
                        }
                        None => Listeners::New(self.acceptor.bind(&address, settled).await?),
                    };
                    addresses.push(Planned {
                        address,
                        port_index,
                        service,
                        listeners,
                    });
                }
            }
        }
        Ok(addresses)
    }

    /// Returns the number of listeners.
    fn sockets(&self, addresses: &[Planned]) -> usize {
        let sockets = addresses.iter().map(|address| match &address.listeners {
            Listeners::Open(index) => self.open[*index].sockets.len(),
            Listeners::New(bound) => bound.len(),
        });
        sockets.sum()
    }

    fn reach(&self, planned: &Planned) -> Vec<Reach> {
        match &planned.listeners {
            Listeners::Open(index) => self.open[*index].reach_as(&planned.address),
            Listeners::New(bound) => bound.iter().map(Bound::reach).collect(),
        }
    }

    fn changes(&self, settings: &Settings, addresses: &[Planned]) -> Changes {
        let mut changes = Changes::default();
        for service in &settings.services {
            match self.before(service) {
                None => changes.added.push(service.name),
                Some(before) => {
                    if !build::is_unchanged(settings, service, &before) {
                        changes.changed.push(service.name);
                    }
                    if let Some(users) = &before.service.users {
                        let missing = users.missing_in(service.users.as_deref()).into_iter();
                        changes.removed_users.extend(missing.map(|user| (service.name, user)));
                    }
                }
            }
        }
        let stays = addresses.iter().filter_map(|address| address.listeners.open());
        let stays: HashSet<usize> = stays.collect();
        let open = self.open.iter().enumerate();
        let closed = open.filter(|(index, open)| open.is_accepting() && !stays.contains(index));
        changes.closed = closed.map(|(_, open)| open.to_string()).collect();
        let new = addresses.iter().flat_map(|address| address.listeners.bound());
        changes.opened = new.map(Bound::describe).collect();
        if let Some(Running { settings: before, .. }) = &self.running {
            let here: HashSet<_> = settings.services.iter().map(|service| service.name).collect();
            let names = before.services.iter().map(|service| service.name);
            changes.removed = names.filter(|name| !here.contains(name)).collect();
            changes.has_other_users_limits = settings.users != before.users;
            changes.has_other_tokens = settings.tokens() != before.tokens();
        }
        if let Some(started_with) = &self.started_with {
            changes.needs_restart = settings.written.fixed_differences(started_with);
        }
        changes
    }

    /// Returns the name of a service that an operator has drained since the plan was made, if there
    /// is one. The plan would send clients to listeners that are closed.
    pub(super) fn drained_since(&self, plan: &Plan) -> Option<&'static str> {
        let is_closed = |planned: &&Planned| matches!(planned.listeners, Listeners::Open(index) if !self.open[index].is_accepting());
        let closed = plan.addresses.iter().filter(is_closed);
        let closed = closed.map(|planned| plan.settings.services[planned.service].name);
        let listening: HashSet<usize> = plan.addresses.iter().map(|planned| planned.service).collect();
        let built = plan.built.iter().enumerate();
        let built = built.filter(|(index, built)| listening.contains(index) && !built.service.accepting.is_on());
        let built = built.map(|(_, built)| built);
        closed.chain(built.map(|built| built.service.name)).next()
    }

    /// Puts a plan into force. Clients that are accepted from now on get the new rules. Running
    /// sessions keep the rules that they began with.
    pub(super) fn commit(&mut self, plan: Plan) -> Changes {
        let Plan {
            settings,
            built,
            addresses,
            changes,
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
        self.limit_sessions(&settings, self.sockets(&addresses));
        self.process.accounts.set(&settings.users);
        built.iter().for_each(Built::put_in_force);
        self.assign(addresses, &built);
        built.iter().for_each(|built| built.begin(&self.process.health));
        self.started_with.get_or_insert_with(|| settings.written.clone());
        let names = settings.services.iter().map(|service| service.name);
        self.running = Some(Running {
            indices: names.zip(0..).collect(),
            settings: Arc::new(settings),
            built,
        });
        changes
    }

    /// Sends the clients of each address to its service, and closes the other listeners.
    fn assign(&mut self, addresses: Vec<Planned>, built: &[Built]) {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().map(Some).collect();
        for planned in addresses {
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
                    for bound in &bound {
                        let (name, address) = (&to.service.name, bound.describe());
                        announce(Level::INFO, &format_args!("{name} listening on {address}"));
                    }
                    let opened = self.acceptor.open(planned.address, bound, &to, &mut self.accepting);
                    self.open.push(opened);
                }
            }
        }
        drop(open);
        while self.accepting.try_join_next().is_some() {}
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

    /// Returns the services that run now, with the addresses of their listeners.
    pub(super) fn served(&self) -> Vec<Served> {
        let mut listen: HashMap<_, Vec<String>> = HashMap::new();
        for open in &self.open {
            listen.entry(open.service()).or_default().extend(open.describe());
        }
        let built = self.running.iter().flat_map(|running| &running.built);
        let served = built.map(|built| Served {
            service: Arc::clone(&built.service),
            listen: listen.remove(built.service.name).unwrap_or_default(),
        });
        served.collect()
    }

    /// Closes the listeners of the service with this name. The returned future waits until they are
    /// closed, so that another program can use their addresses. Sessions may finish.
    pub(super) fn drain(&self, name: &str, by: &By) -> impl Future<Output = ()> + Send + use<> {
        let built = self.running.iter().flat_map(|running| &running.built);
        for built in built.filter(|built| built.service.name == name) {
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
    pub(super) fn users(&self) -> HashMap<&'static str, HashSet<Box<str>>> {
        let services = self.settings().into_iter().flat_map(|settings| &settings.services);
        let users = services.filter_map(|service| Some((service.name, service.users.as_ref()?.names())));
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
