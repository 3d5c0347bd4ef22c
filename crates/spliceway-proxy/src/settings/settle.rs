//! Turns a configuration into settings: checks it whole, and fills in the defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::acme;
use super::admin::{remote_admin, status_page};
use super::ahead;
use super::backends::{backends, balance};
use super::chains;
use super::clients::{UserTables, client_policy, without_effect};
use super::distinct::Distinct;
use super::given::Given;
use super::hidden::Hidden;
use super::kind::kind;
use super::program::{Limits, SessionSettings, Settings, Timeouts};
use super::service::{AcceptProxy, Kind, MirrorSettings, Naming, ServiceSettings};
use super::target_tls::{self, Servers};
use super::targets::Lists;
use super::tls;
use super::udp;
use super::user_limits::{check_saved, host_users, user_limits};
use super::users::users;
use crate::access::auth::Users;
use crate::access::policy::ClientPolicy;
use crate::access::rates::Rates;
use crate::log::{AccessLog, LogSettings};
use crate::net::listener::{KEEPALIVE, Transport};
use crate::net::outgoing::SocketSettings;
use crate::reach::dial::{CHAIN_MAX, DialSettings};
use crate::settings::config::{self, Config, Environment, KindArg, List, Rate, Value, all, parsed};
use crate::settings::exposure::{Clients, Reach, check_open};
use crate::settings::faults::{Fault, Faults};
use crate::settings::origin::Origin;

/// Where settings come from. A reload reads them again.
#[derive(Debug)]
pub(crate) enum Source {
    CommandLine(Box<Config>),
    /// A file, or a directory of files.
    Files(PathBuf),
}

impl Source {
    /// Returns the settings as they are now. Files are read again, and user files too. `given` are
    /// further services, which were given at run time.
    ///
    /// # Errors
    /// Returns all faults, each with its flag or its location in a file, on a line of its own.
    pub(crate) fn settings(&self, given: Given) -> Result<Settings, String> {
        self.settings_with(given, &config::source::variable, Depth::Settings)
    }

    pub(crate) fn settings_with(
        &self,
        given: Given,
        environment: Environment<'_>,
        depth: Depth,
    ) -> Result<Settings, String> {
        let mut faults = Faults::default();
        let (mut config, origin) = match self {
            Self::CommandLine(config) => (Config::clone(config), Origin::CommandLine),
            Self::Files(path) => {
                let (config, sources) = config::source::read(path, environment, &mut faults)?;
                (config, Origin::Files(sources))
            }
        };
        config.service.extend(given.tables(given.names(), &mut faults));
        settle_with(&config, None, &Arc::new(origin).with(given), faults, depth)
    }
}

impl Settings {
    /// Returns the settings in which these services, and no others, are given at run time. The
    /// services that are not `changed` are those of these settings, and their files are not read
    /// again.
    ///
    /// # Errors
    /// Returns all faults, each with the service and the key.
    pub(super) fn with(&self, given: Given, changed: &BTreeSet<&str>) -> Result<Self, String> {
        let is_changed = |service: &&Arc<ServiceSettings>| changed.contains(&*service.name);
        let kept = self.services.iter().filter(|service| !is_changed(service));
        let kept: Vec<_> = kept.cloned().collect();
        let (mut config, mut faults) = (self.written.clone(), Faults::default());
        faults.hidden = self.hidden.clone();
        config.service = given.tables(changed.iter().copied(), &mut faults);
        let origin = self.origin.with(given);
        let mut settings = settle_with(&config, Some(&kept), &origin, faults, Depth::Settings)?;
        settings.remote_admin.clone_from(&self.remote_admin);
        // A service stays in its place.
        let new = settings.services.split_off(kept.len());
        let mut new: BTreeMap<_, _> = new.into_iter().map(|new| (Arc::clone(&new.name), new)).collect();
        let mut kept = std::mem::take(&mut settings.services).into_iter();
        let services = self.services.iter().filter_map(|before| {
            if is_changed(&before) {
                return new.remove(&before.name);
            }
            kept.next()
        });
        settings.services = services.collect();
        settings.services.extend(new.into_values());
        Ok(settings)
    }
}

impl Settings {
    /// Returns the settings with the services that were given to the process before this one.
    ///
    /// # Errors
    /// Returns all faults, each with the service and the key.
    pub(crate) fn joined(self, given: Given) -> Result<Self, String> {
        if given.is_empty() {
            return Ok(self);
        }
        let names: Vec<_> = given.names().map(str::to_owned).collect();
        let known = |service: &Arc<ServiceSettings>| given.get(&service.name).is_some();
        if let Some(service) = self.services.iter().find(|service| known(service)) {
            let why = "was also given at run time: remove one of them";
            return Err(format!("{} {why}", service.name));
        }
        let joined = self.with(given, &names.iter().map(String::as_str).collect())?;
        let warnings = self.warnings.into_iter().chain(joined.warnings).collect();
        Ok(Self { warnings, ..joined })
    }
}

/// Checks a file as a start would, and what the start needs of this machine too.
///
/// # Errors
/// Returns all faults, with their locations.
pub(crate) fn check(path: &Path) -> Result<Settings, String> {
    let source = Source::Files(path.to_owned());
    source.settings_with(Given::default(), &config::source::variable, Depth::Machine)
}

/// What is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Settings,
    /// Also what a start needs of this machine, such as folders. A start says itself what it lacks,
    /// and a reload does not need it.
    Machine,
}

/// Checks `config`, which comes from `origin`, and reads the user files that it names.
///
/// # Errors
/// Returns all faults, with their locations.
pub(crate) fn settle(config: &Config, origin: Origin) -> Result<Settings, String> {
    settle_with(config, None, &Arc::new(origin), Faults::default(), Depth::Settings)
}

/// Does what [`settle`] does for `config` and the services that are `kept`, if it is a change of
/// some services. Then there are only warnings about those. `faults` has what was wrong in the
/// files before.
fn settle_with(
    config: &Config,
    kept: Option<&[Arc<ServiceSettings>]>,
    origin: &Arc<Origin>,
    mut faults: Faults,
    depth: Depth,
) -> Result<Settings, String> {
    // With tables missing, much else would seem wrong.
    let known = kept.unwrap_or_default();
    let settings = faults
        .have_all_tables()
        .then(|| settings(config, kept, origin, &mut faults));
    let settings = settings.flatten();
    if let Some(settings) = &settings {
        let new = &settings.services[known.len()..];
        ahead::check(config, settings, new, origin, &mut faults);
        if depth == Depth::Machine {
            ahead::check_machine(config, settings, origin, &mut faults);
        }
    }
    match settings {
        Some(settings) if faults.is_empty() => {
            let is_new = |fault: &&Fault| kept.is_none() || fault.at.is_some_and(Given::has);
            let warnings = faults
                .shown_warnings()
                .iter()
                .filter(is_new)
                .map(|fault| origin.show(fault))
                .collect();
            let hidden = faults.hidden.without_places();
            Ok(Settings {
                warnings,
                hidden,
                ..settings
            })
        }
        _ => Err(origin.show_all(&faults.sorted())),
    }
}

/// Returns `None` only if there is a fault.
fn settings(
    config: &Config,
    kept: Option<&[Arc<ServiceSettings>]>,
    origin: &Arc<Origin>,
    faults: &mut Faults,
) -> Option<Settings> {
    let Config {
        log,
        timeouts,
        limits,
        engine,
        admin,
        acme,
        defaults,
        ..
    } = config;
    let mut distinct = Distinct::default();
    let tables = UserTables::new(config, origin, faults);
    let services = services(config, &tables, kept.unwrap_or_default(), origin, &mut distinct, faults);
    chains::check(&services, &distinct, faults);
    distinct.add_other("metrics", &admin.metrics, origin, faults);
    distinct.add_other("socket", &admin.socket, origin, faults);
    distinct.add_other("remote", &admin.remote, origin, faults);
    distinct.add_other("http", &acme.http, origin, faults);
    faults.keep(check_saved(config, origin));
    tls::check_kernel(engine, faults);
    let users = user_limits(&defaults.user, &tables, &services, origin, faults);
    let client_policies = services.iter().map(|service| &service.clients);
    faults.warnings.extend(without_effect(config, client_policies));
    let log_settings = faults.keep(log_settings(log, origin));
    let status_page = faults.keep(status_page(admin));
    let acme_http = faults.keep(acme::listener(acme, origin));
    // A change of services reads no other files. `Settings::with` then keeps the tokens.
    let remote_admin = kept.is_none().then(|| remote_admin(admin, origin, faults)).flatten();
    Some(Settings {
        services,
        users,
        sessions: sessions(config),
        drain: timeouts.drain(),
        limits: Limits {
            max_conns: parsed(&limits.max_conns),
            max_conns_per_ip: parsed(&limits.max_conns_per_ip),
            descriptors: parsed(&limits.nofile),
            quota_file: limits.quota_file.as_ref().map(|file| path(file, origin)),
        },
        workers: engine.workers(),
        log: log_settings?,
        record_interval: unless_zero(log.record_interval()),
        written: Config {
            log: log.clone(),
            timeouts: timeouts.clone(),
            limits: limits.clone(),
            engine: engine.clone(),
            admin: admin.clone(),
            acme: acme.clone(),
            defaults: defaults.clone(),
            user: config.user.clone(),
            client: config.client.clone(),
            service: Vec::new(),
        },
        origin: Arc::clone(origin),
        metrics: parsed(&admin.metrics),
        status_page: status_page?,
        admin: parsed(&admin.socket),
        remote_admin,
        pid_file: admin.pid_file.as_ref().map(|file| path(file, origin)),
        acme_http: acme_http?,
        warnings: Vec::new(),
        hidden: Hidden::default(),
    })
}

/// Returns the services that are `kept`, and those of `config`.
fn services(
    config: &Config,
    tables: &UserTables,
    kept: &[Arc<ServiceSettings>],
    origin: &Arc<Origin>,
    distinct: &mut Distinct,
    faults: &mut Faults,
) -> Vec<Arc<ServiceSettings>> {
    let mut services = Vec::new();
    let mut lists = Lists::new(tables);
    for settled in kept {
        distinct.add(services.len(), settled, origin, faults);
        services.push(Arc::clone(settled));
    }
    for table in &config.service {
        let location = table.span().start;
        let service = table.get_ref().clone().or(&config.defaults);
        faults.enter(Some(location));
        if let Some(settled) = settle_service(service, location, config, origin, &mut lists, faults) {
            distinct.add(services.len(), &settled, origin, faults);
            services.push(Arc::new(settled));
        }
    }
    faults.enter(None);
    if config.service.is_empty()
        && services.is_empty()
        && config.admin.socket.is_none()
        && config.admin.remote.is_none()
        && !faults.have_one_of(&["service", "socket"])
    {
        let expected =
            "there is no service: expected a table [[service]], or `socket` in [admin] to add services later";
        faults.add(Fault::new(None, "", expected));
    }
    services
}

fn path(file: &Value<config::File>, origin: &Origin) -> PathBuf {
    file.path(origin.folder_of(file.at()).as_deref())
}

fn log_settings(log: &config::Log, origin: &Origin) -> Result<LogSettings, Fault> {
    let access = log.access.as_ref().map_or_else(
        || log.access(),
        |access| access.destination(origin.folder_of(access.at()).as_deref()),
    );
    if let Some(format) = &log.access_format
        && matches!(access, AccessLog::Stderr | AccessLog::Off)
    {
        let needed = "needs a file, or `-`, as the place of the access log";
        return Err(Fault::new(format.at(), "access_format", needed));
    }
    Ok(LogSettings {
        level: log.level().into(),
        format: log.format().into(),
        access,
        access_format: parsed(&log.access_format).unwrap_or_else(|| log.format()).into(),
    })
}

fn sessions(config: &Config) -> SessionSettings {
    let Config {
        timeouts,
        limits,
        engine,
        ..
    } = config;
    SessionSettings {
        timeouts: Timeouts {
            handshake: timeouts.handshake(),
            connect: timeouts.connect(),
            idle: unless_zero(timeouts.idle()),
            half_close: unless_zero(timeouts.half_close()),
            udp: timeouts.udp(),
            max_session: unless_zero(limits.max_session()),
        },
        engine: engine.splice().into(),
        pipe_size: engine.pipe_size().into(),
        ktls_after: engine.ktls_after(),
        spin: engine.spin(),
        max_dials_per_ip: limits.max_dials_per_ip(),
    }
}

fn unless_zero(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

/// The keys that say who may use a service.
const GUARDS: [&str; 10] = [
    "auth",
    "auth_file",
    "allow",
    "clients",
    "accept_proxy",
    "proxy_from",
    "tls_cert",
    "tls_dir",
    "acme",
    "tls_client_ca",
];

/// Returns `None` if the service has no kind. After a fault, the settings are only good for the
/// search of further faults.
fn settle_service(
    service: config::Service,
    location: usize,
    config: &Config,
    origin: &Origin,
    lists: &mut Lists<'_>,
    faults: &mut Faults,
) -> Option<ServiceSettings> {
    let chosen = parsed(&service.kind);
    let backends = match chosen {
        Some(KindArg::Forward) => backends(&service, faults),
        _ => Vec::new(),
    };
    let kind = kind(&service, location, &backends, faults);
    let has_fixed_targets = matches!(chosen, Some(KindArg::Forward | KindArg::Sni));
    if service.listen.as_ref().is_none_or(|listen| listen.is_empty()) {
        let missing = "is missing: expected the address to listen on, such as listen = \":1080\"";
        faults.add(Fault::new(Some(location), "listen", missing));
    }
    let users = users(&service, origin, faults).map(Arc::new);
    let transport = udp::transport(&service);
    if transport == Transport::Datagrams {
        udp::check(&service, &backends, faults);
    }
    let tls = tls::terminator(&service, config, origin, faults).map(Arc::new);
    let has_certificates = tls.as_ref().is_some_and(|tls| tls.clients().is_some());
    let clients = client_policy(&service, transport, lists.networks(), faults);
    let is_user = is_user(users.as_deref(), &clients, has_certificates);
    let (targets, user_targets) = lists.targets(&service, is_user, origin, faults);
    let dial = dial(&service, config.timeouts.connect(), faults);
    let accept_proxy = faults.keep(accept_proxy(&service)).flatten();
    let balance = faults.keep(balance(&service, backends.clone())).flatten();
    let rates_in = faults.keep(rates("rate_in", &service.rate_in)).unwrap_or_default();
    let rates_out = faults.keep(rates("rate_out", &service.rate_out)).unwrap_or_default();
    let host_users = faults.keep(host_users(&config.user, users.is_none() && has_certificates, origin));
    let kind = kind?;
    let probe = service.check.as_ref().map(Value::parsed);
    let servers = Servers {
        kind: &kind,
        backends: &backends,
        upstreams: &dial.upstreams,
        check: probe.as_ref(),
    };
    let originator = target_tls::originator(&service, &servers, config, origin, &mut faults.warnings);
    let settled = ServiceSettings {
        name: name_of(&service, &kind, transport),
        listen: service.listen.as_ref().map(List::parsed).unwrap_or_default(),
        transport,
        dns_listen: all(&service.dns_listen),
        clients,
        host_users: host_users.unwrap_or_default(),
        users,
        targets,
        user_targets: user_targets.into(),
        auth_penalty: if has_fixed_targets {
            Duration::ZERO
        } else {
            service.auth_penalty()
        },
        // The operator has chosen the targets, and clients cannot choose others. A guard with a
        // fault has its own message.
        open: has_fixed_targets || service.open() || faults.have_one_of(&GUARDS),
        accept_proxy,
        tls,
        send_proxy: parsed(&service.send_proxy),
        originator: faults.keep(originator).flatten().map(Arc::new),
        mirror: faults.keep(mirror(&service)).flatten(),
        dial,
        balance,
        rates_in,
        rates_out,
        advertise: parsed(&service.advertise),
        kind,
        config: service,
    };
    check_together(&settled, faults);
    Some(settled)
}

/// Returns who is a user of a service. Any name may be in a certificate.
fn is_user(users: Option<&Users>, clients: &ClientPolicy, has_certificates: bool) -> impl Fn(&[u8]) -> bool {
    move |name| match users {
        Some(users) => users.know(name),
        None => has_certificates || clients.has_user(name),
    }
}

/// Checks what several settings of a service mean together.
fn check_together(settled: &ServiceSettings, faults: &mut Faults) {
    faults.keep(check_exposure(settled));
    if matches!(settled.kind, Kind::Transparent(_, Naming::Off)) && settled.targets.rules.have_names() {
        let config = &settled.config;
        let at = config.to_deny.as_ref().or(config.to_allow.as_ref()).and_then(List::at);
        let why = "must not have names, here and in to_allow, unless the service reads the names of servers (--names)";
        faults.add(Fault::new(at, "to_deny", why));
    }
    if matches!(settled.kind, Kind::Transparent(_, Naming::Off))
        && let Some(user) = settled.user_targets.iter().find(|user| user.targets.rules.have_names())
    {
        let at = settled.config.clients.as_ref().and_then(Value::at);
        let name = String::from_utf8_lossy(&user.name);
        let why = format!("{name} has rules with names, which the service does not read: expected names = true");
        faults.add(Fault::new(at, "clients", why));
    }
    faults.warnings.extend(unchecked_names(settled));
    faults.warnings.extend(unlisted_names(settled));
}

/// Returns a warning if names are refused because an upstream proxy would look them up.
fn unchecked_names(service: &ServiceSettings) -> Option<Fault> {
    let last = service.dial.upstreams.last()?;
    let is_doubtful = last.looks_up_names() && service.targets.rules.refuse_networks();
    is_doubtful.then(|| {
        let at = service.config.to_deny.as_ref().and_then(List::at);
        let problem = format!(
            "{last} looks up names, which could lead to a refused network, so names are refused; use socks5:// instead"
        );
        Fault::new(at, "to_deny", problem)
    })
}

/// Returns a warning if clients reach every name that no rule refuses. A service that learns has no
/// names yet.
fn unlisted_names(service: &ServiceSettings) -> Option<Fault> {
    let is_guard = matches!(service.kind, Kind::Transparent(_, Naming::On));
    (is_guard && service.has_clients_without_a_list()).then(|| {
        let at = service.config.names.as_ref().and_then(Value::at);
        let problem =
            "without to_allow, clients reach every name that to_deny does not refuse: list what they may reach";
        Fault::new(at, "names", problem)
    })
}

/// Checks what the addresses show before they are bound. The sockets may show more.
fn check_exposure(service: &ServiceSettings) -> Result<(), Fault> {
    let reach = service
        .listeners()
        .filter_map(|(range, _)| Reach::of_address(&range.first));
    let at = service.config.listen.as_ref().and_then(List::at);
    check_open(service, Clients::of_service(service, reach)).map_err(|wrong| Fault::new(at, "listen", wrong))
}

fn name_of(service: &config::Service, kind: &Kind, transport: Transport) -> Arc<str> {
    match (&service.name, transport) {
        (Some(name), _) => name.parsed().into(),
        (None, Transport::Datagrams) => "udp".into(),
        (None, Transport::Streams) => kind.name().into(),
    }
}

fn accept_proxy(service: &config::Service) -> Result<Option<AcceptProxy>, Fault> {
    match (&service.accept_proxy, &service.proxy_from) {
        (Some(versions), Some(from)) => Ok(Some(AcceptProxy {
            versions: versions.parsed(),
            from: from.parsed(),
        })),
        (None, None) => Ok(None),
        (Some(versions), None) => {
            let why =
                "needs proxy_from: expected the networks of the load balancers, such as proxy_from = \"10.0.0.0/8\"";
            Err(Fault::new(versions.at(), "accept_proxy", why))
        }
        (None, Some(from)) => {
            let why = "needs accept_proxy: expected the version of the PROXY header, such as accept_proxy = \"v2\"";
            Err(Fault::new(from.at(), "proxy_from", why))
        }
    }
}

fn rates(key: &'static str, list: &Option<List<Rate>>) -> Result<Rates, Fault> {
    let at = list.as_ref().and_then(List::at);
    let expected = "expected at most one rate for each connection, each client and the service";
    Rates::from_args(&all(list)).map_err(|wrong| Fault::new(at, key, format!("{wrong}: {expected}")))
}

fn mirror(service: &config::Service) -> Result<Option<MirrorSettings>, Fault> {
    match (&service.mirror, &service.mirror_share) {
        (None, Some(share)) => {
            let why = "needs mirror: expected an observer, such as mirror = \"10.0.0.9:9000\"";
            Err(Fault::new(share.at(), "mirror_share", why))
        }
        (observer, _) => Ok(observer.as_ref().map(|observer| MirrorSettings {
            observer: observer.parsed(),
            share: service.mirror_share(),
        })),
    }
}

pub(super) fn dial(service: &config::Service, timeout: Duration, faults: &mut Faults) -> DialSettings {
    let mut upstreams = Vec::new();
    for url in service.upstream_proxy.iter().flat_map(|list| list.iter()) {
        let fault = |expected| Fault::new(url.at(), "upstream_proxy", expected);
        upstreams.extend(faults.keep(url.parsed().map_err(fault)));
        if upstreams.len() > CHAIN_MAX {
            faults.add(fault(format!("expected a chain of at most {CHAIN_MAX} proxies")));
            break;
        }
    }
    let (mut source_v4, mut source_v6) = (None, None);
    for ip in service.bind_source.iter().flat_map(|list| list.iter()) {
        let before = match ip.parsed() {
            IpAddr::V4(ip) => source_v4.replace(ip).is_some(),
            IpAddr::V6(ip) => source_v6.replace(ip).is_some(),
        };
        if before {
            let expected = "expected at most one address of each family";
            faults.add(Fault::new(ip.at(), "bind_source", expected));
        }
    }
    DialSettings {
        resolver: service.dns(),
        sockets: SocketSettings {
            source_v4,
            source_v6,
            interface: parsed(&service.bind_interface).as_deref().map(Into::into),
            mark: parsed(&service.mark),
            keeps_client: service.transparent_source(),
            is_transparent: matches!(parsed(&service.kind), Some(KindArg::Transparent)),
            keepalive: Some(KEEPALIVE),
        },
        upstreams,
        timeout,
    }
}
