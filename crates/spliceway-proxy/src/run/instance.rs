//! The services and listeners that run now, and their change to other settings.
//!
//! ```text
//!   Settings ─ prepare: bind, check, build ─▶ Plan ─ commit: assign, open, close ─▶ Report
//!                         └─ error: everything new is dropped, nothing has changed
//! ```

mod build;
mod finishing;
mod sockets;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use spliceway_protocol::address::ListenAddress;
use tokio::task::JoinSet;

use crate::access::accounts::Accounts;
use crate::access::admission::Admission;
use crate::access::gate::Gate;
use crate::access::policy::OwnListeners;
use crate::kit::alive::Alive;
use crate::kit::health::Health;
use crate::kit::limits::{Descriptors, datagram_ports, datagram_sessions};
use crate::log::{self, announce};
use crate::metrics::Metrics;
use crate::monitor::overview::Served;
use crate::net::listener::Transport;
use crate::run::handover::{Adopted, Offered};
use crate::run::report::Report;
use crate::run::serve::CannotRun;
use crate::session::sessions::Sessions;
use crate::settings::exposure::{Clients, Reach, check_open};
use crate::settings::{ServiceSettings, Settings};
use build::{Before, Built, build};
use finishing::Finishing;
use sockets::{Assignment, Bound, OpenAddress};

/// A limit of fewer sessions than this is probably a mistake, and causes a warning.
const FEW_SESSIONS: usize = 64;

/// What all services share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) health: Health,
    pub(crate) admission: Arc<Admission>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) own: OwnListeners,
    pub(crate) adopted: Arc<Adopted>,
    pub(crate) finishing: Arc<Finishing>,
    pub(crate) gate: Gate,
    pub(crate) alive: Alive,
    /// The number of descriptors that this process may open.
    pub(crate) descriptors: usize,
}

/// The services and listeners that run now.
pub(crate) struct Instance {
    shared: Shared,
    /// The settings in force, and the service of each of their services. `None` before the start.
    running: Option<(Settings, Vec<Built>)>,
    open: Vec<OpenAddress>,
    accepting: JoinSet<()>,
}

/// Checked settings, with everything bound and built that they need. Dropping a plan undoes it.
pub(crate) struct Plan {
    settings: Settings,
    built: Vec<Built>,
    places: Vec<Place>,
    report: Report,
}

/// One address to listen on.
struct Place {
    address: ListenAddress,
    port_index: u16,
    /// The index of the service.
    service: usize,
    at: At,
}

enum At {
    /// The index of listeners that are open.
    Open(usize),
    New(Vec<Bound>),
}

impl Plan {
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }
}

impl Instance {
    pub(crate) fn new(shared: Shared) -> Self {
        Self {
            shared,
            running: None,
            open: Vec::new(),
            accepting: JoinSet::new(),
        }
    }

    /// Binds the listeners that `settings` need and this instance does not have, and builds the
    /// services. Nothing that runs changes. Cancel safe: what was bound is closed.
    ///
    /// # Errors
    /// Returns an error if a listener cannot be bound, or if the settings are not safe.
    pub(crate) async fn prepare(&self, mut settings: Settings) -> Result<Plan, CannotRun> {
        self.continue_users(&mut settings);
        let places = self.places(&settings).await?;
        let shares = Descriptors::of(self.shared.descriptors, self.sockets(&places));
        // The services share these descriptors evenly.
        let transient = shares.transient() / settings.services.len().max(1);
        let mut built = Vec::new();
        for (index, service) in settings.services.iter().enumerate() {
            let reach = places
                .iter()
                .filter(|place| place.service == index)
                .flat_map(|place| self.reach(place));
            let clients = Clients::of(service, reach);
            check_open(service, clients).map_err(CannotRun::Unsafe)?;
            let before = self.before(service);
            built.push(build(
                &settings,
                service,
                clients,
                before.as_ref(),
                &self.shared,
                transient,
            )?);
        }
        let report = self.report(&settings, &places);
        Ok(Plan {
            settings,
            built,
            places,
            report,
        })
    }

    /// Keeps the users whose text is unchanged, because they know which passwords are right.
    fn continue_users(&self, settings: &mut Settings) {
        for service in &mut settings.services {
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
        let (settings, built) = self.running.as_ref()?;
        let mut running = settings.services.iter().zip(built);
        let (service, built) = running.find(|(before, _)| before.name == service.name)?;
        Some(Before {
            built,
            settings,
            service,
        })
    }

    /// Finds or binds the listeners of all services, or none. A run with only some of its listeners
    /// would look as if it worked.
    async fn places(&self, settings: &Settings) -> Result<Vec<Place>, CannotRun> {
        let mut is_taken = vec![false; self.open.len()];
        let mut places = Vec::new();
        for (service, settled) in settings.services.iter().enumerate() {
            for range in &settled.listen {
                for (port_index, address) in (0..=u16::MAX).zip(range.iter()) {
                    let mut open = self.open.iter().zip(&is_taken);
                    let found = open.position(|(open, is_taken)| {
                        !is_taken && open.is_accepting() && open.is_at(&address, settled.name, settled.transport)
                    });
                    let at = match found {
                        Some(index) => {
                            is_taken[index] = true;
                            self.open[index].check(settled)?;
                            At::Open(index)
                        }
                        None => At::New(Bound::bind(&address, settled, &self.shared).await?),
                    };
                    places.push(Place {
                        address,
                        port_index,
                        service,
                        at,
                    });
                }
            }
        }
        Ok(places)
    }

    /// Returns the number of listeners.
    fn sockets(&self, places: &[Place]) -> usize {
        let sockets = places.iter().map(|place| match &place.at {
            At::Open(index) => self.open[*index].sockets.len(),
            At::New(bound) => bound.len(),
        });
        sockets.sum()
    }

    fn reach(&self, place: &Place) -> Vec<Reach> {
        match &place.at {
            At::Open(index) => self.open[*index].reach_as(&place.address),
            At::New(bound) => bound.iter().map(Bound::reach).collect(),
        }
    }

    fn report(&self, settings: &Settings, places: &[Place]) -> Report {
        let mut report = Report::default();
        for service in &settings.services {
            match self.before(service) {
                None => report.added.push(service.name),
                Some(before) => {
                    if !build::is_unchanged(settings, service, &before) {
                        report.changed.push(service.name);
                    }
                    if let Some(users) = &before.service.users {
                        let missing = users.missing_in(service.users.as_deref()).into_iter();
                        report.removed_users.extend(missing.map(|user| (service.name, user)));
                    }
                }
            }
        }
        let is_open = |index| {
            places
                .iter()
                .any(|place| matches!(place.at, At::Open(at) if at == index))
        };
        let open = self.open.iter().enumerate();
        let closed = open.filter(|(index, open)| open.is_accepting() && !is_open(*index));
        report.closed = closed.map(|(_, open)| open.to_string()).collect();
        report.opened = places
            .iter()
            .filter_map(|place| match &place.at {
                At::New(bound) => Some(bound.iter().map(Bound::describe)),
                At::Open(_) => None,
            })
            .flatten()
            .collect();
        if let Some((before, _)) = &self.running {
            let is_here = |name| settings.services.iter().any(|service| service.name == name);
            let names = before.services.iter().map(|service| service.name);
            report.removed = names.filter(|name| !is_here(*name)).collect();
            report.needs_restart = settings.fixed_differences(before);
            report.has_other_users_limits = settings.users != before.users;
        }
        report
    }

    /// Returns the name of a service that an operator has drained since the plan was made, if there
    /// is one. The plan would send clients to listeners that are closed.
    pub(crate) fn drained_since(&self, plan: &Plan) -> Option<&'static str> {
        let is_closed = |place: &&Place| matches!(place.at, At::Open(index) if !self.open[index].is_accepting());
        let places = plan.places.iter().filter(is_closed);
        let closed = places.map(|place| plan.settings.services[place.service].name);
        let built = plan.built.iter().filter(|built| !built.service.accepting.is_on());
        closed.chain(built.map(|built| built.service.name)).next()
    }

    /// Puts a plan into force. Clients that are accepted from now on get the new rules. Running
    /// sessions keep the rules that they began with.
    pub(crate) fn commit(&mut self, plan: Plan) -> Report {
        let Plan {
            settings,
            built,
            places,
            report,
        } = plan;
        if let Some((before, _)) = &self.running
            && before.log.level != settings.log.level
        {
            log::set_level(settings.log.level);
        }
        settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.limit_sessions(&settings, self.sockets(&places));
        self.shared.accounts.set(&settings.users);
        built.iter().for_each(Built::takes_over);
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().map(Some).collect();
        for place in places {
            let to = Assignment {
                service: Arc::clone(&built[place.service].service),
                port_index: place.port_index,
            };
            match place.at {
                At::Open(index) => {
                    if let Some(mut kept) = open[index].take() {
                        kept.assign(place.address, &to);
                        self.open.push(kept);
                    }
                }
                At::New(bound) => {
                    for bound in &bound {
                        announce(&format_args!("{} listening on {}", to.service.name, bound.describe()));
                    }
                    let accepting = &mut self.accepting;
                    let opened = OpenAddress::open(place.address, bound, &to, &self.shared, accepting);
                    self.open.push(opened);
                }
            }
        }
        // The rest of the listeners close now.
        drop(open);
        while self.accepting.try_join_next().is_some() {}
        built.iter().for_each(|built| built.begin(&self.shared.health));
        self.running = Some((settings, built));
        report
    }

    fn limit_sessions(&self, settings: &Settings, sockets: usize) {
        let shares = Descriptors::of(self.shared.descriptors, sockets);
        let most = shares.sessions();
        match most < FEW_SESSIONS {
            true => tracing::warn!("only {most} sessions fit into the limit on descriptors (--nofile): {shares}"),
            false => tracing::debug!("{shares}"),
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
        self.shared.admission.limit_datagrams(datagrams, datagram_ports());
        self.shared.admission.set(max, settings.limits.max_conns_per_ip);
    }

    /// Returns the services that run now, with the addresses of their listeners.
    pub(crate) fn served(&self) -> Vec<Served> {
        let built = self.running.iter().flat_map(|(_, built)| built);
        let served = built.map(|built| Served {
            service: Arc::clone(&built.service),
            listen: self
                .open
                .iter()
                .filter(|open| open.service() == built.service.name)
                .flat_map(OpenAddress::describe)
                .collect(),
        });
        served.collect()
    }

    /// Closes the listeners of the service with this name. The returned future waits until they are
    /// closed, so that another program can use their addresses. Sessions may finish.
    pub(crate) fn drain(&self, name: &str) -> impl Future<Output = ()> + Send + use<> {
        let built = self.running.iter().flat_map(|(_, built)| built);
        for built in built.filter(|built| built.service.name == name) {
            if built.service.accepting.stop() {
                tracing::info!(
                    service = name,
                    "admin: the service accepts no new clients, sessions may finish"
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
    pub(crate) fn listeners(&self) -> impl Iterator<Item = Offered> {
        self.open.iter().map(OpenAddress::listeners)
    }

    /// Returns the names of the users of each service that has users, as records show them.
    pub(crate) fn users(&self) -> HashMap<&'static str, HashSet<Box<str>>> {
        let services = self.settings().into_iter().flat_map(|settings| &settings.services);
        let users = services.filter_map(|service| Some((service.name, service.users.as_ref()?.names())));
        users.collect()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Returns the settings in force.
    pub(crate) fn settings(&self) -> Option<&Settings> {
        self.running.as_ref().map(|(settings, _)| settings)
    }

    /// Waits until every accept task has closed its listener, so that the next program can use the
    /// address. The tasks end when the program no longer serves.
    pub(crate) async fn close(mut self) {
        while self.accepting.join_next().await.is_some() {}
    }
}
