//! Finds what a start or the clients would show later: files for two things, rules without effect,
//! missing folders, and ports that only some users may have.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use spliceway_protocol::address::{ListenAddress, is_abstract};
use spliceway_protocol::rule::canonical_network;

use super::faults::{Fault, Faults};
use super::origin::Origin;
use super::program::Settings;
use super::service::ServiceSettings;
use crate::log::AccessLog;
use crate::settings::config::{Config, List, Network, Rule, RuleArg, Sources, Value};

/// The most rules of a list that are compared with those of another one.
const COMPARED_MAX: usize = 1000;
/// The folders in which a service manager creates one for each unit, and its settings.
const OF_UNITS: [(&str, &str); 3] = [
    ("/run", "RuntimeDirectory="),
    ("/var/lib", "StateDirectory="),
    ("/var/log", "LogsDirectory="),
];

/// A file that the configuration names: its key, the place of the key, and its path.
struct Named {
    key: &'static str,
    at: Option<usize>,
    path: PathBuf,
}

impl Named {
    fn new(key: &'static str, at: Option<usize>, path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        Self { key, at, path }
    }
}

/// Adds faults for files that have two uses, and warnings about rules without effect.
pub(super) fn check(
    config: &Config,
    settings: &Settings,
    services: &[Arc<ServiceSettings>],
    origin: &Origin,
    faults: &mut Faults,
) {
    check_files(config, settings, services, origin, faults);
    let (mut clients, mut targets) = (Vec::new(), Vec::new());
    for service in services {
        let (allow, deny) = (service.config.allow.as_ref(), service.config.deny.as_ref());
        // The lists of the defaults are those of many services.
        let place = (allow.and_then(List::at), deny.and_then(List::at));
        if !clients.contains(&place) && clients.len() < COMPARED_MAX {
            clients.push(place);
            check_clients(allow, deny, &mut faults.warnings);
        }
        let (allow, deny) = (service.config.to_allow.as_ref(), service.config.to_deny.as_ref());
        let place = (allow.and_then(List::at), deny.and_then(List::at));
        if !targets.contains(&place) && targets.len() < COMPARED_MAX {
            targets.push(place);
            check_targets(allow, deny, &mut faults.warnings);
        }
    }
}

/// Checks what the settings need of this machine and this user.
pub(super) fn check_machine(config: &Config, settings: &Settings, origin: &Origin, faults: &mut Faults) {
    for file in written(config, settings, &settings.services, origin) {
        check_folder(&file, faults);
    }
    faults
        .warnings
        .extend(settings.services.iter().filter_map(|service| closed_port(service)));
}

/// Returns the files that the program writes or creates.
fn written(config: &Config, settings: &Settings, services: &[Arc<ServiceSettings>], origin: &Origin) -> Vec<Named> {
    let mut all = Vec::new();
    if let (AccessLog::File(path), Some(value)) = (&settings.log.access, &config.log.access) {
        all.push(Named::new("access", value.at(), path));
    }
    for (key, file) in [
        ("pid_file", &config.admin.pid_file),
        ("quota_file", &config.limits.quota_file),
    ] {
        let folder = |at| origin.folder_of(at);
        let named = file
            .as_ref()
            .map(|file| Named::new(key, file.at(), &file.path(folder(file.at()).as_deref())));
        all.extend(named);
    }
    let admin = [("socket", &config.admin.socket), ("remote", &config.admin.remote)];
    let admin = admin
        .into_iter()
        .flat_map(|(key, socket)| socket.iter().map(move |value| (key, value.at(), value.parsed())));
    let listens = services.iter().flat_map(|service| service.config.listen.iter());
    let listens = listens.flat_map(|list| list.iter());
    let listens = listens.map(|value| ("listen", value.at(), value.parsed().first));
    for (key, at, address) in admin.chain(listens) {
        if let ListenAddress::Unix { path, .. } = address
            && !is_abstract(&path)
        {
            all.push(Named::new(key, at, &path));
        }
    }
    all
}

/// Returns the files that the program only reads.
fn read(services: &[Arc<ServiceSettings>], origin: &Origin) -> Vec<Named> {
    let mut all = Vec::new();
    for service in services {
        let config = &service.config;
        let single = [
            ("auth_file", &config.auth_file),
            ("tls_ticket_key", &config.tls_ticket_key),
            ("target_tls_ca", &config.target_tls_ca),
            ("target_tls_cert", &config.target_tls_cert),
            ("target_tls_key", &config.target_tls_key),
        ];
        let single = single
            .into_iter()
            .flat_map(|(key, file)| file.iter().map(move |file| (key, file)));
        let lists = [
            ("tls_cert", &config.tls_cert),
            ("tls_key", &config.tls_key),
            ("tls_client_ca", &config.tls_client_ca),
            ("tls_client_crl", &config.tls_client_crl),
        ];
        let lists = lists
            .into_iter()
            .flat_map(|(key, list)| list.iter().flat_map(|list| list.iter()).map(move |file| (key, file)));
        let all_of_service = single.chain(lists);
        all.extend(all_of_service.map(|(key, file)| {
            let path = file.path(origin.folder_of(file.at()).as_deref());
            Named::new(key, file.at(), &path)
        }));
    }
    all
}

/// Checks that what the program writes is no other file of the configuration.
fn check_files(
    config: &Config,
    settings: &Settings,
    services: &[Arc<ServiceSettings>],
    origin: &Origin,
    faults: &mut Faults,
) {
    let of_config = origin
        .files()
        .into_iter()
        .flat_map(Sources::paths)
        .map(|path| (Named::new("", None, path).path, "the configuration".to_owned()));
    let mut known: HashMap<PathBuf, String> = of_config.collect();
    let shown = |file: &Named| format!("{} at {}", file.key, origin.location(file.at));
    let tokens = config.admin.tokens.iter();
    let tokens = tokens.map(|file| Named::new("tokens", file.at(), &file.path(origin.folder_of(file.at()).as_deref())));
    for file in tokens.chain(read(services, origin)) {
        let shown = shown(&file);
        known.entry(file.path).or_insert(shown);
    }
    for file in written(config, settings, services, origin) {
        let (shown, key, at) = (shown(&file), file.key, file.at);
        match known.entry(file.path) {
            Entry::Vacant(entry) => drop(entry.insert(shown)),
            // Addresses that are taken have a fault of their own.
            Entry::Occupied(_) if matches!(key, "listen") => {}
            Entry::Occupied(entry) => {
                let problem = format!(
                    "{} is also the file of {}: expected a file of its own",
                    entry.key().display(),
                    entry.get()
                );
                faults.add(Fault::new(at, key, problem));
            }
        }
    }
}

/// Checks that the folder of a file exists, in which the program creates it.
fn check_folder(file: &Named, faults: &mut Faults) {
    let Some(folder) = file.path.parent() else { return };
    let shown = folder.display();
    let problem = match fs::metadata(folder) {
        Ok(found) if found.is_dir() => return,
        Ok(_) => format!("{shown} is no folder: expected the path of a file in a folder"),
        Err(error) if error.kind() == ErrorKind::NotFound => format!("the folder {shown} is missing: create it"),
        Err(error) => format!("the folder {shown} cannot be used: {error}"),
    };
    let of_unit = OF_UNITS
        .iter()
        .find(|(above, _)| folder.parent() == Some(Path::new(above)));
    let name = folder.file_name().unwrap_or_default().display();
    match of_unit {
        Some((_, setting)) => {
            let problem = format!("{problem}, or let the unit do it ({setting}{name})");
            faults.warnings.push(Fault::new(file.at, file.key, problem));
        }
        None => faults.add(Fault::new(file.at, file.key, problem)),
    }
}

/// Returns a warning if this user may not listen on a port of the service.
fn closed_port(service: &ServiceSettings) -> Option<Fault> {
    let is_closed = |port: u16| {
        // The socket never listens. The kernel first checks whether the port is open to the user.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
        let bound = socket.and_then(|socket| socket.bind(&address.into()));
        bound.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::ACCESS))
    };
    let config = &service.config;
    let listens = config.listen.iter().flat_map(|list| list.iter());
    let listens = listens.map(|value| ("listen", value.at(), value.parsed().first));
    let dns = config.dns_listen.iter().flat_map(|list| list.iter());
    let mut all = listens.chain(dns.map(|value| ("dns_listen", value.at(), value.parsed())));
    all.find_map(|(key, at, address)| {
        let port = match address {
            ListenAddress::Every(port) | ListenAddress::Name(_, port) => port,
            ListenAddress::Ip(address) => address.port(),
            ListenAddress::Unix { .. } | ListenAddress::Inherited(_) => 0,
        };
        if port == 0 || !is_closed(port) {
            return None;
        }
        let problem = format!(
            "this user may not listen on port {port}: start the program with CAP_NET_BIND_SERVICE \
             (AmbientCapabilities= of a unit, or setcap), or lower net.ipv4.ip_unprivileged_port_start"
        );
        Some(Fault::new(at, key, problem))
    })
}

/// Warns about networks that have no effect.
fn check_clients(allow: Option<&List<Network>>, deny: Option<&List<Network>>, warnings: &mut Vec<Fault>) {
    let nets = |list: Option<&List<Network>>| -> Vec<(IpNet, Option<usize>)> {
        let values = list.into_iter().flat_map(|list| list.iter()).take(COMPARED_MAX);
        values
            .map(|value| (canonical_network(value.parsed()), value.at()))
            .collect()
    };
    let (allow, deny) = (nets(allow), nets(deny));
    for (net, at) in &allow {
        if let Some((wider, _)) = deny.iter().find(|(wider, _)| wider.contains(net)) {
            let problem = format!("{net} has no effect, because deny has {wider}: remove one of them");
            warnings.push(Fault::new(*at, "allow", problem));
        }
    }
    for (key, list) in [("allow", &allow), ("deny", &deny)] {
        let twice = list.iter().enumerate();
        let twice = twice.filter(|(index, (net, _))| list[..*index].iter().any(|(other, _)| other == net));
        warnings.extend(twice.map(|(_, (net, at))| Fault::new(*at, key, format!("has {net} twice: remove one"))));
    }
}

/// Warns about rules that have no effect. An allow rule needs to be more specific than a deny rule.
fn check_targets(allow: Option<&List<Rule>>, deny: Option<&List<Rule>>, warnings: &mut Vec<Fault>) {
    fn rules(list: Option<&List<Rule>>) -> Vec<(&Value<Rule>, spliceway_protocol::rule::TargetRule)> {
        let values = list.into_iter().flat_map(|list| list.iter()).take(COMPARED_MAX);
        let rule = |value: &Value<Rule>| match value.parsed() {
            RuleArg::Rule(rule) => Some(rule),
            RuleArg::File(_) => None,
        };
        values.filter_map(|value| Some((value, rule(value)?))).collect()
    }
    let (allow, deny) = (rules(allow), rules(deny));
    for (value, rule) in &allow {
        if deny.iter().any(|(_, other)| other == rule) {
            let problem = format!(
                "{} has no effect, because to_deny has it too: remove one of them",
                value.text()
            );
            warnings.push(Fault::new(value.at(), "to_allow", problem));
        }
    }
    for (key, list) in [("to_allow", &allow), ("to_deny", &deny)] {
        let twice = list.iter().enumerate();
        let twice = twice.filter(|(index, (_, rule))| list[..*index].iter().any(|(_, other)| other == rule));
        warnings.extend(
            twice.map(|(_, (value, _))| Fault::new(value.at(), key, format!("has {} twice: remove one", value.text()))),
        );
    }
}
