//! Builds a service from its settings, and continues what it shares with its predecessor.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use spliceway::{Peer, RelayOptions};
use tokio::sync::oneshot;

use crate::access::admission::Dials;
use crate::access::auth::Penalties;
use crate::access::policy::{PrivateTargets, TargetAccess, TargetPolicy, TargetRules};
use crate::access::rates::RateLimits;
use crate::kit::alive::Accepting;
use crate::kit::health::Health;
use crate::net::listener::Transport;
use crate::reach::balance::Balancer;
use crate::reach::dial::{DialRequest, Dialer};
use crate::session;
use crate::session::Mirroring;
use crate::session::Process;
use crate::session::Service;
use crate::settings::exposure::Clients;
use crate::settings::{ServiceSettings, SessionSettings, Settings, UserTargets};
use crate::tls::acme::{self, Connect};
use crate::tls::client::Originator;

/// A service that runs, and the settings that it was built from.
pub(super) struct Built {
    pub(super) service: Arc<Service>,
    clients: Clients,
    /// The number of descriptors that its dialer may use.
    transient: usize,
    /// Dropping it stops the tasks of the service.
    tasks: OnceLock<Vec<oneshot::Sender<()>>>,
}

/// The parts that a service takes over from the service of the same name before it.
pub(super) struct Before<'a> {
    pub(super) built: &'a Arc<Built>,
    pub(super) settings: &'a Settings,
    pub(super) service: &'a Arc<ServiceSettings>,
}

impl Drop for Built {
    fn drop(&mut self) {
        self.service.in_force.stop();
    }
}

impl Before<'_> {
    /// Returns whether an operator has drained the service, and a change of others leaves it so. A
    /// reload reads it again, and opens its listeners.
    pub(super) fn stays_drained(&self, service: &Arc<ServiceSettings>) -> bool {
        Arc::ptr_eq(service, self.service) && !self.built.service.accepting.is_on()
    }

    /// Returns whether the service continues with its listeners as they are, because nothing of it
    /// was read again.
    pub(super) fn is_kept(&self, settings: &Settings, service: &Arc<ServiceSettings>, transient: usize) -> bool {
        Arc::ptr_eq(service, self.service)
            && settings.sessions == self.settings.sessions
            && self.built.transient == transient
            && self.built.service.accepting.is_on()
    }
}

/// Builds a service. Rate limits, penalties, users and the dialer continue if their settings are
/// unchanged. If nothing has changed, the service itself continues.
pub(super) fn build(
    process: &Arc<Process>,
    settings: &Settings,
    service: &Arc<ServiceSettings>,
    clients: Clients,
    transient: usize,
    before: Option<&Before<'_>>,
) -> std::io::Result<Arc<Built>> {
    if let Some(before) = before
        && is_unchanged(settings, service, before)
        && (before.built.clients, before.built.transient) == (clients, transient)
        // A service that an operator has drained accepts clients again.
        && before.built.service.accepting.is_on()
    {
        return Ok(Arc::clone(before.built));
    }
    let traffic = process.metrics.traffic(&service.name);
    for reason in session::refusals(service) {
        traffic.may_refuse(reason);
    }
    if !service.dns_listen.is_empty() {
        traffic.may_answer_dns();
    }
    let policy = |access: &TargetAccess| policy(service, access, clients, process);
    let originator = originator(service, before);
    let dialer = dialer(service, policy(&service.targets), before, transient)?.with_tls(originator);
    let of_user = |user: &UserTargets| (user.name.clone(), dialer.with_policy(policy(&user.targets)));
    let user_dialers = service.user_targets.iter().map(of_user).collect();
    let balancer = service.balance.as_ref().map(|balance| {
        let before = before.and_then(|before| before.built.service.balancer.as_deref());
        Balancer::new(Arc::clone(&service.name), balance, before)
    });
    let tls = service.tls.clone().map(|tls| {
        let before = before.and_then(|before| before.built.service.tls.as_deref());
        before.map_or_else(|| Arc::clone(&tls), |before| Arc::new(tls.continued(before)))
    });
    let mirroring = service.mirror.as_ref().map(|mirror| {
        let dialer = for_operator(&dialer, process);
        Mirroring::new(mirror, dialer, process.descriptors, Arc::clone(traffic.mirrors()))
    });
    let service = Service {
        process: Arc::clone(process),
        name: Arc::clone(&service.name),
        kind: service.kind.clone(),
        settings: settings.sessions,
        relays_of_new_sockets: of_new_sockets(&relays(&settings.sessions)),
        relays: relays(&settings.sessions),
        clients: service.clients.clone(),
        is_private: clients == Clients::Local,
        is_only_for_this_machine: clients == Clients::Local && service.is_unguarded_proxy(),
        users: service.users.clone(),
        penalties: penalties(service, before),
        accept_proxy: service.accept_proxy.clone(),
        tls,
        send_proxy: service.send_proxy,
        mirroring,
        dialer,
        user_dialers,
        host_users: Arc::clone(&service.host_users),
        balancer,
        dials: dials(settings, before),
        rates: rates(service, before),
        advertise: service.advertise,
        traffic,
        failures: Mutex::default(),
        accepting: Accepting::new(),
        in_force: Accepting::new(),
    };
    Ok(Arc::new(Built {
        service: Arc::new(service),
        clients,
        transient,
        tasks: OnceLock::new(),
    }))
}

/// Returns the originator of the service before, if servers would notice no difference. It keeps
/// the sessions of TLS that can be resumed.
fn originator(service: &ServiceSettings, before: Option<&Before<'_>>) -> Option<Arc<Originator>> {
    let new = service.originator.clone()?;
    let before = before.and_then(|before| before.built.service.dialer.originator());
    Some(match before {
        Some(before) if new.is_like(before) => Arc::clone(before),
        _ => new,
    })
}

/// Returns the failed logins that the service before knows, if their setting is unchanged.
fn penalties(service: &ServiceSettings, before: Option<&Before<'_>>) -> Arc<Penalties> {
    let before = before.filter(|before| before.service.auth_penalty == service.auth_penalty);
    before.map_or_else(
        || Arc::new(Penalties::new(service.auth_penalty)),
        |before| Arc::clone(&before.built.service.penalties),
    )
}

/// Returns the counts of connecting clients of the service before, if their limit is unchanged.
fn dials(settings: &Settings, before: Option<&Before<'_>>) -> Arc<Dials> {
    let most = settings.sessions.max_dials_per_ip;
    let before = before.filter(|before| before.settings.sessions.max_dials_per_ip == most);
    before.map_or_else(
        || Arc::new(Dials::new(most)),
        |before| Arc::clone(&before.built.service.dials),
    )
}

/// Returns the rate limits of the service before, if they are unchanged.
fn rates(service: &ServiceSettings, before: Option<&Before<'_>>) -> Arc<RateLimits> {
    let of = |service: &ServiceSettings| (service.rates_in, service.rates_out);
    let before = before.filter(|before| of(before.service) == of(service));
    before.map_or_else(
        || RateLimits::new(service.rates_in, service.rates_out),
        |before| Arc::clone(&before.built.service.rates),
    )
}

impl Built {
    /// Takes over the clients that wait for a backend of the replaced service.
    pub(super) fn put_in_force(&self) {
        if let Some(balancer) = &self.service.balancer {
            balancer.put_in_force();
        }
    }

    /// Starts the tasks of the service, unless they run. They stop when the service is replaced.
    pub(super) fn begin(&self, health: &Health) {
        self.tasks.get_or_init(|| {
            let (service, mut stops) = (&self.service, Vec::new());
            if let Some(balancer) = service.balancer.as_ref().filter(|balancer| balancer.needs_tasks()) {
                let task = Arc::clone(balancer).watch(service.dialer.clone());
                stops.push(spawn(health, "backends", &service.name, task));
            }
            if let Some(tls) = &service.tls {
                let task = Arc::clone(tls).watch(Arc::clone(&service.name));
                stops.push(spawn(health, "certificates", &service.name, task));
                if tls.acme().is_some() {
                    let task = acme::keep(Arc::clone(tls), connect_by(service), Arc::clone(&service.name));
                    stops.push(spawn(health, "renewals", &service.name, task));
                }
            }
            if let Some(originator) = service.dialer.originator() {
                let task = Arc::clone(originator).watch(Arc::clone(&service.name));
                stops.push(spawn(health, "certificates for targets", &service.name, task));
            }
            stops
        });
    }
}

/// Returns the dialer for servers that the operator has named.
fn for_operator(dialer: &Dialer, process: &Process) -> Dialer {
    let access = TargetAccess {
        private: PrivateTargets::All,
        rules: TargetRules::default(),
    };
    dialer.with_policy(TargetPolicy::of_access(&access, true, process.own.clone()))
}

/// Returns how the service connects to a server that the operator has named.
fn connect_by(service: &Service) -> Connect {
    let dialer = for_operator(&service.dialer, &service.process);
    Arc::new(move |target| {
        let dialer = dialer.clone();
        Box::pin(async move {
            let dialed = dialer.dial_for(&target, DialRequest::default()).await;
            let dialed = dialed.map_err(|error| std::io::Error::other(error.to_string()))?;
            Ok(dialed.stream)
        })
    })
}

/// Starts a task that stops when the result is dropped.
fn spawn(
    health: &Health,
    what: &str,
    service: &str,
    task: impl Future<Output = ()> + Send + 'static,
) -> oneshot::Sender<()> {
    let (stop, stopped) = oneshot::channel();
    health.spawn_until(stopped, &format!("the task that watches the {what} of {service}"), task);
    stop
}

fn policy(service: &ServiceSettings, access: &TargetAccess, clients: Clients, process: &Process) -> TargetPolicy {
    // A rule for a name does not open private addresses: whoever controls the DNS of the name
    // chooses them. That holds for clients on this machine too.
    let are_local = clients == Clients::Local && !service.kind.reads_names();
    let policy = TargetPolicy::of_access(access, are_local, process.own.clone());
    match service.transport {
        Transport::Streams if service.kind.has_fixed_targets() => policy.with_hops(),
        Transport::Streams => policy,
        Transport::Datagrams => policy.for_datagrams(),
    }
}

/// Returns a dialer that shares the name cache of the service before, if it would connect in the
/// same way, or a new one.
fn dialer(
    service: &ServiceSettings,
    policy: TargetPolicy,
    before: Option<&Before<'_>>,
    transient: usize,
) -> std::io::Result<Dialer> {
    if let Some(before) = before
        && before.service.dial == service.dial
        && before.built.transient == transient
    {
        return Ok(before.built.service.dialer.with_policy(policy));
    }
    Dialer::new(service.dial.clone(), policy, transient)
}

/// Keeps the parts of the settings before that are equal. Users know which passwords are right, and
/// millions of rules would be in memory twice: in the service that continues, and in its settings.
pub(super) fn continue_parts(service: &mut ServiceSettings, before: &ServiceSettings) {
    if let (Some(users), Some(before)) = (&mut service.users, &before.users)
        && users.are_unchanged(before)
    {
        *users = Arc::clone(before);
    }
    if service.targets == before.targets {
        service.targets = before.targets.clone();
    }
    if service.user_targets == before.user_targets {
        service.user_targets = Arc::clone(&before.user_targets);
    }
}

/// Returns whether sessions of the service would have the same rules.
pub(super) fn is_unchanged(settings: &Settings, service: &Arc<ServiceSettings>, before: &Before<'_>) -> bool {
    if Arc::ptr_eq(service, before.service) && settings.sessions == before.settings.sessions {
        // It was not read again.
        return true;
    }
    let users = |service: &ServiceSettings| service.users.as_ref().map(Arc::as_ptr);
    users(service) == users(before.service)
        // The files of rules may be others.
        && service.targets == before.service.targets
        && service.user_targets == before.service.user_targets
        && service.host_users == before.service.host_users
        && service.clients.networks() == before.service.clients.networks()
        && service.config == before.service.config
        && has_same_certificates(service, before)
        && settings.sessions == before.settings.sessions
}

fn has_same_certificates(service: &ServiceSettings, before: &Before<'_>) -> bool {
    let is_same_to_clients = match (&service.tls, &before.service.tls) {
        (Some(tls), Some(before)) => tls.is_like(before),
        (None, None) => true,
        _ => false,
    };
    let is_same_to_targets = match (&service.originator, before.built.service.dialer.originator()) {
        (Some(tls), Some(before)) => tls.is_like(before),
        (None, None) => true,
        _ => false,
    };
    is_same_to_clients && is_same_to_targets
}

/// Returns the options of relays to a new socket: see [`Service::relays_of_new_sockets`].
fn of_new_sockets(relays: &RelayOptions) -> [RelayOptions; 2] {
    let to_new = relays.clone().new_socket(Peer::B);
    [to_new.clone(), to_new.new_socket(Peer::A)]
}

/// Returns the options of relays.
fn relays(settings: &SessionSettings) -> RelayOptions {
    RelayOptions::new()
        .engine(settings.engine)
        .pipe_size(settings.pipe_size)
        .early_answers_to(Peer::A)
        .pass_resets(true)
        .idle_timeout(settings.timeouts.idle)
        .half_close_timeout(settings.timeouts.half_close)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Given, Source};

    /// Reads a service whose clients may reach these targets.
    fn read(allowed: &str) -> ServiceSettings {
        let path = std::env::temp_dir().join(format!("spliceway-parts-{}.toml", std::process::id()));
        let text = format!(
            "[[client]]\nname = \"a\"\nfrom = \"10.0.0.0/8\"\nto_allow = \"{allowed}\"\n\
             [[service]]\nkind = \"http\"\nlisten = \"127.0.0.1:0\"\nclients = \"optional\"\nto_allow = \"{allowed}\"\n"
        );
        std::fs::write(&path, text).unwrap();
        let mut settings = Source::Files(path.clone()).settings(Given::default()).unwrap();
        std::fs::remove_file(path).unwrap();
        Arc::into_inner(settings.services.remove(0)).unwrap()
    }

    #[test]
    fn equal_rules_are_in_memory_once_after_a_reload() {
        let before = read("a.example");
        let lists = |service: &ServiceSettings| service.targets.rules.allow.clone().unwrap();
        for (allowed, is_shared) in [("a.example", true), ("b.example", false)] {
            let mut service = read(allowed);
            assert!(!lists(&service).shares_a_list_with(&lists(&before)));
            continue_parts(&mut service, &before);
            assert_eq!(Arc::ptr_eq(&service.user_targets, &before.user_targets), is_shared);
            assert_eq!(lists(&service).shares_a_list_with(&lists(&before)), is_shared);
        }
    }
}
