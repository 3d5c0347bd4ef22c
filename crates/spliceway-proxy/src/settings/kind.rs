//! The kind of a service, and the keys that such a service has.

use std::sync::Arc;

use spliceway_protocol::address::ListenAddress;

use super::faults::{Fault, Faults};
use super::service::{Kind, Naming};
use crate::net::transparent::Interception;
use crate::reach::balance::BackendSettings;
use crate::reach::sni::{Routes, StartTls};
use crate::settings::config::{self, Choice, Key, KindArg, StartTlsArg, Table, Value, Word, parsed};

/// Returns the kind of a service, or `None` if it has no kind or no target.
pub(super) fn kind(
    service: &config::Service,
    location: usize,
    backends: &[BackendSettings],
    faults: &mut Faults,
) -> Option<Kind> {
    let missing = |key, expected: String| Fault::new(Some(location), key, format!("is missing: {expected}"));
    let Some(kind) = service.kind.as_ref().map(Value::parsed) else {
        let kinds = Choice::<KindArg>::choices().join(", ");
        faults.add(missing(
            "kind",
            format!("expected one of {kinds}, such as kind = \"socks5\""),
        ));
        return None;
    };
    check_kind(service, kind, faults);
    check_transparent(service, kind, faults);
    Some(match kind {
        KindArg::Forward => {
            let has_tables = service.backend.as_ref().is_some_and(|tables| !tables.is_empty());
            let has_backends = has_tables || faults.have_one_of(&["backend"]);
            if service.to.as_ref().is_none_or(|to| to.is_empty()) && !has_backends {
                let expected = "expected the target, such as to = \"example.com:80\"";
                faults.add(missing("to", expected.to_owned()));
            }
            Kind::Forward(backends.first()?.targets.clone())
        }
        KindArg::Sni => {
            if service.route.as_ref().is_none_or(|routes| routes.is_empty()) {
                let expected = "expected routes, such as route = \"example.com=10.0.0.7:443\"";
                faults.add(missing("route", expected.to_owned()));
            }
            Kind::Sni(Arc::new(routes(service, faults)))
        }
        KindArg::Socks5 => Kind::Socks5,
        KindArg::Http => Kind::Http,
        KindArg::Transparent if service.tproxy() => Kind::Transparent(Interception::Tproxy, naming(service)),
        KindArg::Transparent => Kind::Transparent(Interception::Redirect, naming(service)),
        KindArg::Mixed => Kind::Mixed,
    })
}

/// Checks that services of this kind have each key that is given.
fn check_kind(service: &config::Service, kind: KindArg, faults: &mut Faults) {
    // Every kind of service may say that it does not forward datagrams.
    let is_off = |key: &Key| key.name == "udp" && !service.udp();
    let wrong = service.given().filter(|(key, _)| !key.is_of(kind) && !is_off(key));
    let name = Value::<Choice<KindArg>>::chosen;
    for (key, at) in wrong {
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
        faults.add(Fault::new(at, key.name, why));
        faults.spoil(key.name, true);
    }
}

fn naming(service: &config::Service) -> Naming {
    match (service.names(), service.names_learn()) {
        (_, true) => Naming::Learning,
        (true, false) => Naming::On,
        (false, false) => Naming::Off,
    }
}

/// Checks what a key of transparent proxying contradicts.
fn check_transparent(service: &config::Service, kind: KindArg, faults: &mut Faults) {
    let keeps_client = service.transparent_source.as_ref().filter(|keep| keep.parsed());
    if let Some(keep) = keeps_client.filter(|_| service.upstream_proxy.is_some() || service.bind_source.is_some()) {
        let why = "contradicts upstream_proxy and bind_source: a target sees only one source";
        faults.add(Fault::new(keep.at(), "transparent_source", why));
    }
    if kind != KindArg::Transparent {
        return;
    }
    if let Some(accept) = &service.accept_proxy {
        let why = "is not for kind = \"transparent\": a redirected connection has no PROXY header";
        faults.add(Fault::new(accept.at(), "accept_proxy", why));
    }
    check_dns(service, faults);
    let listen = service.listen.iter().flat_map(|listen| listen.iter());
    for unix in listen.filter(|range| matches!(range.parsed().first, ListenAddress::Unix { .. })) {
        let why = "is a Unix socket: expected an address and a port, because a firewall redirects TCP connections";
        faults.add(Fault::new(unix.at(), "listen", why));
    }
}

/// Checks the addresses at which a service answers DNS queries.
fn check_dns(service: &config::Service, faults: &mut Faults) {
    let reads_names = naming(service) != Naming::Off;
    for address in service.dns_listen.iter().flat_map(|list| list.iter()) {
        let why = match address.parsed() {
            _ if !reads_names => "needs names: a client that gets an address by name must reach it by name (--names)",
            ListenAddress::Unix { .. } => "is a Unix socket: expected an address and a port, because DNS has no others",
            ListenAddress::Ip(own) if service.dns().has(own) => {
                "is also the server in dns: expected the address of another server there, which this one can ask"
            }
            _ => continue,
        };
        faults.add(Fault::new(address.at(), "dns_listen", why));
    }
}

/// Returns the routes of TLS clients, without those that others have already.
fn routes(service: &config::Service, faults: &mut Faults) -> Routes {
    let listed: Vec<_> = service.route.iter().flat_map(|routes| routes.iter()).collect();
    let (routes, twice) = Routes::new(listed.iter().map(|route| route.parsed()).collect());
    for (index, target) in twice {
        let (name, other) = listed[index].text().split_once('=').unwrap_or_default();
        let problem = format!("{name} has two routes ({target}, {other}): remove one of them");
        faults.add(Fault::new(listed[index].at(), "route", problem));
    }
    let others = (parsed(&service.default_target), parsed(&service.not_tls));
    if others.0.as_ref().is_some_and(|default| default.tls.is_some()) {
        let at = service.default_target.as_ref().and_then(Value::at);
        let why = "clients without a route speak TLS to this target themselves: remove tls://";
        faults.add(Fault::new(at, "default_target", why));
    }
    let starttls = parsed(&service.starttls).map(|StartTlsArg::Postgres| StartTls::Postgres);
    routes.with_others(others.0, others.1).with_starttls(starttls)
}
