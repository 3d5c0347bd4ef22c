//! Turns a configuration into settings: checks it whole, and fills in the defaults.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::acme;
use super::backends::{backends, balance};
use super::chains;
use super::distinct::Distinct;
use super::program::{Limits, SessionSettings, Settings, Timeouts};
use super::service::{AcceptProxy, Kind, ServiceSettings};
use super::target_tls::{self, Servers};
use super::targets::Lists;
use super::tls;
use super::udp;
use super::user_limits::{check_saved, host_users, user_limits};
use super::users::users;
use crate::access::policy::ClientPolicy;
use crate::access::rates::Rates;
use crate::log::{AccessLog, LogSettings};
use crate::net::listener::{KEEPALIVE, Transport};
use crate::net::outgoing::SocketSettings;
use crate::net::transparent::Interception;
use crate::reach::dial::{CHAIN_MAX, DialSettings};
use crate::reach::sni::Routes;
use crate::settings::config::{self, Choice, Config, Key, KindArg, List, Rate, Table, Value, Word, all, parsed};
use crate::settings::exposure::{Clients, Reach, check_open};
use crate::settings::origin::{Fault, Origin};
use spliceway_protocol::address::ListenAddress;

/// Where settings come from. A reload reads them again.
#[derive(Debug)]
pub(crate) enum Source {
    CommandLine(Box<Config>),
    /// A file, or a directory of files.
    Files(PathBuf),
}

impl Source {
    /// Returns the settings as they are now. Files are read again, and user files too.
    ///
    /// # Errors
    /// Returns the first fault, with its flag or its location in a file.
    pub(crate) fn settings(&self) -> Result<Settings, String> {
        match self {
            Self::CommandLine(config) => settle(config, &Origin::CommandLine),
            Self::Files(path) => {
                let (config, sources) = config::source::read(path, &config::source::variable)?;
                settle(&config, &Origin::Files(sources))
            }
        }
    }
}

/// Checks `config`, which comes from `origin`, and reads the user files that it names.
///
/// # Errors
/// Returns the first fault, with its location.
pub(crate) fn settle(config: &Config, origin: &Origin) -> Result<Settings, String> {
    let mut warnings = Vec::new();
    let settled = settings(config, origin, &mut warnings).map_err(|fault| origin.show(&fault))?;
    let warnings = warnings.iter().map(|fault| origin.show(fault)).collect();
    Ok(Settings { warnings, ..settled })
}

fn settings(config: &Config, origin: &Origin, warnings: &mut Vec<Fault>) -> Result<Settings, Fault> {
    let Config {
        log,
        timeouts,
        limits,
        engine,
        admin,
        acme,
        defaults,
        user,
        service,
    } = config;
    let (mut services, mut distinct) = (Vec::new(), Distinct::default());
    let mut lists = Lists::new(user);
    for table in service {
        let location = table.span().start;
        let service = table.get_ref().clone().or(defaults);
        let settled = settle_service(service, location, config, origin, &mut lists, warnings)?;
        distinct.add(&settled, origin)?;
        services.push(settled);
    }
    if services.is_empty() {
        return Err(Fault::new(
            None,
            "",
            "there is no service: expected a table [[service]]",
        ));
    }
    chains::check(&services, &distinct)?;
    check_saved(config, origin)?;
    let users = user_limits(&defaults.user, user, &services, origin, warnings)?;
    Ok(Settings {
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
        log: log_settings(log, origin)?,
        record_interval: unless_zero(log.record_interval()),
        written: Config {
            log: log.clone(),
            limits: limits.clone(),
            engine: engine.clone(),
            admin: admin.clone(),
            acme: acme.clone(),
            ..Config::default()
        },
        metrics: parsed(&admin.metrics),
        status_page: status_page(admin)?,
        admin: parsed(&admin.socket),
        pid_file: admin.pid_file.as_ref().map(|file| path(file, origin)),
        acme_http: acme::listener(acme, origin)?,
        warnings: Vec::new(),
    })
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
        spin: engine.spin(),
        max_dials_per_ip: limits.max_dials_per_ip(),
    }
}

/// Returns the names of the status page, or `None` if there is no such page.
fn status_page(admin: &config::Admin) -> Result<Option<Vec<Box<str>>>, Fault> {
    let is_on = admin.status_page();
    if is_on && admin.metrics.is_none() {
        let at = admin.status_page.as_ref().and_then(Value::at);
        return Err(Fault::new(at, "status_page", "needs the address of metrics"));
    }
    if !is_on && let Some(hosts) = &admin.status_host {
        return Err(Fault::new(hosts.at(), "status_host", "needs status_page = true"));
    }
    Ok(is_on.then(|| all(&admin.status_host)))
}

fn unless_zero(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

fn settle_service(
    service: config::Service,
    location: usize,
    config: &Config,
    origin: &Origin,
    lists: &mut Lists<'_>,
    warnings: &mut Vec<Fault>,
) -> Result<ServiceSettings, Fault> {
    let kind = kind(&service, location)?;
    let has_fixed_targets = kind.has_fixed_targets();
    let missing = "is missing: expected the address to listen on, such as listen = \":1080\"";
    let listen = service.listen.as_ref();
    let listen = listen.ok_or_else(|| Fault::new(Some(location), "listen", missing))?;
    let is_forward = matches!(kind, Kind::Forward(_));
    let backends = if is_forward { backends(&service)? } else { Vec::new() };
    let users = users(&service, origin, warnings)?.map(Arc::new);
    let transport = transport(&service);
    if transport == Transport::Datagrams {
        udp::check(&service, &backends)?;
    }
    let tls = tls::terminator(&service, &config.acme, origin, warnings)?.map(Arc::new);
    // Any name may be in a certificate.
    let has_certificates = tls.as_ref().is_some_and(|tls| tls.clients().is_some());
    let is_any_user = !has_fixed_targets && has_certificates;
    let is_user = |name: &[u8]| users.as_ref().map_or(is_any_user, |users| users.know(name));
    let (targets, user_targets) = lists.targets(&service, is_user, origin)?;
    let dial = dial(&service, config.timeouts.connect())?;
    let probe = service.check.as_ref().map(Value::parsed);
    let servers = Servers {
        kind: &kind,
        backends: &backends,
        upstreams: &dial.upstreams,
        check: probe.as_ref(),
    };
    let originator = target_tls::originator(&service, &servers, origin, warnings)?.map(Arc::new);
    let settled = ServiceSettings {
        name: match (&service.name, transport) {
            (Some(name), _) => interned(&name.parsed()),
            (None, Transport::Datagrams) => "udp",
            (None, Transport::Streams) => kind.name(),
        },
        listen: listen.parsed(),
        transport,
        clients: ClientPolicy::new(all(&service.allow), all(&service.deny)),
        host_users: host_users(&config.user, users.is_none() && has_certificates, origin)?,
        users,
        targets,
        user_targets,
        auth_penalty: if has_fixed_targets {
            Duration::ZERO
        } else {
            service.auth_penalty()
        },
        // The operator has chosen the targets, and clients cannot choose others.
        open: has_fixed_targets || service.open(),
        accept_proxy: accept_proxy(&service)?,
        tls,
        send_proxy: parsed(&service.send_proxy),
        originator,
        dial,
        balance: balance(&service, backends)?,
        rates_in: rates("rate_in", &service.rate_in)?,
        rates_out: rates("rate_out", &service.rate_out)?,
        advertise: parsed(&service.advertise),
        kind,
        config: service,
    };
    check_exposure(&settled)?;
    if matches!(settled.kind, Kind::Transparent(_)) && settled.targets.rules.have_names() {
        let config = &settled.config;
        let at = config.to_deny.as_ref().or(config.to_allow.as_ref()).and_then(List::at);
        let why =
            "must not have names, here and in to_allow: kind = \"transparent\" only sees the addresses of targets";
        return Err(Fault::new(at, "to_deny", why));
    }
    warnings.extend(unchecked_names(&settled));
    Ok(settled)
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

/// Checks what the addresses show before they are bound. The sockets may show more.
fn check_exposure(service: &ServiceSettings) -> Result<(), Fault> {
    let reach = service
        .listen
        .iter()
        .filter_map(|range| Reach::of_address(&range.first));
    let at = service.config.listen.as_ref().and_then(List::at);
    check_open(service, Clients::of_service(service, reach)).map_err(|wrong| Fault::new(at, "listen", wrong))
}

/// Checks that services of this kind have each key that is given.
fn check_kind(service: &config::Service, kind: KindArg) -> Result<(), Fault> {
    // Every kind of service may say that it does not forward datagrams.
    let is_off = |key: &Key| key.name == "udp" && !service.udp();
    let mut wrong = service.given().filter(|(key, _)| !key.is_of(kind) && !is_off(key));
    let Some((key, at)) = wrong.next() else {
        return Ok(());
    };
    let name = Value::<Choice<KindArg>>::chosen;
    let why = match (key.kinds(), kind) {
        ([KindArg::Forward], KindArg::Sni) => {
            "is only for kind = \"forward\": write `route` and `default_target`".to_owned()
        }
        ([KindArg::Forward], _) => {
            "is only for kind = \"forward\": remove it, because the clients of a proxy name the target".to_owned()
        }
        ([only], _) => format!("is only for kind = {:?}: remove it", name(*only)),
        ([one, other], _) => format!("is only for kind = {:?} and {:?}: remove it", name(*one), name(*other)),
        (_, KindArg::Transparent) => {
            "is not for kind = \"transparent\": remove it, because its clients do not know that there is a proxy"
                .to_owned()
        }
        _ => format!(
            "is not for kind = {:?}: remove it. `allow` and `deny` restrict the clients of such a service",
            name(kind)
        ),
    };
    Err(Fault::new(at, key.name, why))
}

/// Checks what a key of transparent proxying contradicts.
fn check_transparent(service: &config::Service, kind: KindArg) -> Result<(), Fault> {
    let keeps_client = service.transparent_source.as_ref().filter(|keep| keep.parsed());
    if let Some(keep) = keeps_client.filter(|_| service.upstream_proxy.is_some() || service.bind_source.is_some()) {
        let why = "contradicts upstream_proxy and bind_source: a target sees only one source";
        return Err(Fault::new(keep.at(), "transparent_source", why));
    }
    if kind != KindArg::Transparent {
        return Ok(());
    }
    if let Some(accept) = &service.accept_proxy {
        let why = "is not for kind = \"transparent\": a redirected connection has no PROXY header";
        return Err(Fault::new(accept.at(), "accept_proxy", why));
    }
    let mut listen = service.listen.iter().flat_map(|listen| listen.iter());
    if let Some(unix) = listen.find(|range| matches!(range.parsed().first, ListenAddress::Unix { .. })) {
        let why = "is a Unix socket: expected an address and a port, because a firewall redirects TCP connections";
        return Err(Fault::new(unix.at(), "listen", why));
    }
    Ok(())
}

pub(super) fn kind(service: &config::Service, location: usize) -> Result<Kind, Fault> {
    let missing = |key, expected: String| Fault::new(Some(location), key, format!("is missing: {expected}"));
    let Some(kind) = service.kind.as_ref().map(Value::parsed) else {
        let kinds = Choice::<KindArg>::choices().join(", ");
        return Err(missing(
            "kind",
            format!("expected one of {kinds}, such as kind = \"socks5\""),
        ));
    };
    check_kind(service, kind)?;
    check_transparent(service, kind)?;
    Ok(match kind {
        KindArg::Forward => {
            let expected = "expected the target, such as to = \"example.com:80\"";
            let first = backends(service)?.into_iter().next();
            Kind::Forward(first.ok_or_else(|| missing("to", expected.to_owned()))?.targets)
        }
        KindArg::Sni => {
            let expected = "expected routes, such as route = \"example.com=10.0.0.7:443\"";
            let routes = routes(service)?;
            Kind::Sni(routes.ok_or_else(|| missing("route", expected.to_owned()))?)
        }
        KindArg::Socks5 => Kind::Socks5,
        KindArg::Http => Kind::Http,
        KindArg::Transparent if service.tproxy() => Kind::Transparent(Interception::Tproxy),
        KindArg::Transparent => Kind::Transparent(Interception::Redirect),
        KindArg::Mixed => Kind::Mixed,
    })
}

fn transport(service: &config::Service) -> Transport {
    if service.udp() {
        Transport::Datagrams
    } else {
        Transport::Streams
    }
}

/// Returns the routes of TLS clients, or `None` if there is no route.
fn routes(service: &config::Service) -> Result<Option<Arc<Routes>>, Fault> {
    let Some(listed) = &service.route else {
        return Ok(None);
    };
    let routes = Routes::new(listed.parsed()).map_err(|index| {
        let problem = format!(
            "has the name and the protocol of {} twice: remove one of them",
            listed[index].text()
        );
        Fault::new(listed[index].at(), "route", problem)
    })?;
    let others = (parsed(&service.default_target), parsed(&service.not_tls));
    Ok(Some(Arc::new(routes.with_others(others.0, others.1))))
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

pub(super) fn dial(service: &config::Service, timeout: Duration) -> Result<DialSettings, Fault> {
    let mut upstreams = Vec::new();
    for url in service.upstream_proxy.iter().flat_map(|list| list.iter()) {
        let fault = |expected| Fault::new(url.at(), "upstream_proxy", expected);
        upstreams.push(url.parsed().map_err(fault)?);
        if upstreams.len() > CHAIN_MAX {
            return Err(fault(format!("expected a chain of at most {CHAIN_MAX} proxies")));
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
            return Err(Fault::new(ip.at(), "bind_source", expected));
        }
    }
    Ok(DialSettings {
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
    })
}

/// Returns the name as a label of metrics. A name is never forgotten, because counters never go
/// back. So the memory for names grows only with new names.
fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}
