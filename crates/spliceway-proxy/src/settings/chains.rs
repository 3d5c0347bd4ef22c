//! Checks the services whose targets are services of the same configuration.

use std::sync::Arc;

use spliceway_protocol::Spoken;
use spliceway_protocol::address::Target;

use super::distinct::Distinct;
use super::faults::{Fault, Faults};
use super::service::{Kind, ServiceSettings};
use crate::reach::dial::UpstreamProxy;
use crate::settings::config::{List, Value};
use crate::settings::exposure::Reach;

/// A target of a service that is another service.
struct Hop {
    to: usize,
    key: &'static str,
    at: Option<usize>,
}

/// The most services in a search for a proxy. While the program runs, hops have a limit, and a
/// proxy refuses clients of other machines that arrive by hops.
const SERVICES_MAX: usize = 64;

/// Checks that no target leads back to its service, and that no service opens a proxy to strangers.
pub(super) fn check(services: &[Arc<ServiceSettings>], distinct: &Distinct, faults: &mut Faults) {
    let hops: Vec<Vec<Hop>> = services.iter().map(|service| hops(service, distinct)).collect();
    let mut states = vec![State::New; services.len()];
    for start in 0..services.len() {
        if let Some((key, at, names)) = find_loop(start, services, &hops, &mut states) {
            let problem = format!("leads back to the same service ({names}): expected another target");
            faults.add(Fault::new(at, key, problem));
        }
    }
    for (service, hops) in services.iter().zip(&hops) {
        let is_http = service.dial.upstreams.first().is_some_and(UpstreamProxy::speaks_http);
        let to_http = |hop: &&Hop| services[hop.to].kind.protocols().contains(&Spoken::Http);
        if let Some(Hop { to, key, at }) = hops.iter().find(to_http).filter(|_| is_http) {
            let name = &services[*to].name;
            let problem = format!(
                "leads to `{name}`, which refuses HTTP requests that have passed this program: \
                 expected socks5://, or a proxy elsewhere"
            );
            faults.add(Fault::new(*at, *key, problem));
        }
    }
    for service in 0..services.len() {
        if let Some((Hop { key, at, .. }, to)) = opened_by(service, services, &hops) {
            let problem = format!(
                "makes everybody a local client of the proxy `{}`: restrict access to one of the two \
                 (--auth-file for the proxy, --allow here), or allow everybody (--open for the proxy)",
                services[to].name
            );
            faults.add(Fault::new(*at, *key, problem));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// The search is behind this service.
    Open,
    Done,
}

/// The key and the location of a target, and the names of the services in the loop.
type Loop = (&'static str, Option<usize>, String);

/// Follows all targets from `start`, without recursion: a file has room for 60,000 services.
fn find_loop(start: usize, services: &[Arc<ServiceSettings>], hops: &[Vec<Hop>], states: &mut [State]) -> Option<Loop> {
    let mut path = vec![(start, 0)];
    while let Some((service, next)) = path.last_mut() {
        let service = *service;
        if states[service] == State::Done {
            path.pop();
            continue;
        }
        states[service] = State::Open;
        let Some(hop) = hops[service].get(*next) else {
            states[service] = State::Done;
            path.pop();
            continue;
        };
        *next += 1;
        if states[hop.to] == State::Open {
            let begin = path.iter().position(|(one, _)| *one == hop.to)?;
            let indices = path[begin..].iter().map(|(one, _)| *one).chain([hop.to]);
            let names: Vec<_> = indices.map(|one| &*services[one].name).collect();
            // Further loops through these services are found when this one is no more.
            path.iter().for_each(|(one, _)| states[*one] = State::Done);
            return Some((hop.key, hop.at, names.join(", ")));
        }
        path.push((hop.to, 0));
    }
    None
}

/// Returns the targets that are services, in the order of the configuration.
fn hops(service: &ServiceSettings, distinct: &Distinct) -> Vec<Hop> {
    let mut targets: Vec<(Target, &'static str, Option<usize>)> = Vec::new();
    if let Some(proxy) = service.dial.upstreams.first() {
        // The other proxies and the targets are connected to from there.
        let at = service.config.upstream_proxy.as_ref().and_then(List::at);
        targets.push((proxy.address().clone(), "upstream_proxy", at));
    } else if let Kind::Forward(first) = &service.kind {
        let at = service.config.to.as_ref().and_then(List::at);
        let backends = service.balance.iter().flat_map(|balance| &balance.backends);
        let ranges = std::iter::once(first).chain(backends.map(|backend| &backend.targets));
        let all = ranges.flat_map(|range| (0..range.count).map(|offset| range.nth(offset)));
        targets.extend(all.map(|target| (target, "to", at)));
    } else if let Kind::Sni(routes) = &service.kind {
        let at = service.config.route.as_ref().and_then(List::at);
        targets.extend(routes.targets().map(|to| (to.target.clone(), "route", at)));
        let others = [
            (
                "default_target",
                routes.default_target(),
                &service.config.default_target,
            ),
            ("not_tls", routes.silent_target(), &service.config.not_tls),
        ];
        for (key, target, value) in others {
            let at = value.as_ref().and_then(Value::at);
            targets.extend(target.map(|to| (to.target.clone(), key, at)));
        }
    }
    let hop = |(target, key, at): (Target, _, _)| {
        distinct
            .service_at(service.transport, &target)
            .map(|to| Hop { to, key, at })
    };
    targets.into_iter().filter_map(hop).collect()
}

/// Returns the proxy that strangers who reach this service could use over some hops, and the first
/// hop there.
fn opened_by<'a>(from: usize, services: &[Arc<ServiceSettings>], hops: &'a [Vec<Hop>]) -> Option<(&'a Hop, usize)> {
    let (mut seen, mut next) = (
        vec![from],
        hops[from].iter().map(|hop| (hop, hop.to)).collect::<Vec<_>>(),
    );
    while let Some((first, service)) = next.pop() {
        if opens(&services[from], &services[service]) {
            return Some((first, service));
        }
        // More services than hops are allowed need no search.
        if seen.len() < SERVICES_MAX && !seen.contains(&service) {
            seen.push(service);
            next.extend(hops[service].iter().map(|hop| (first, hop.to)));
        }
    }
    None
}

/// Returns whether strangers who reach `service` could use the proxy `to`, which takes them for
/// clients on this machine.
fn opens(service: &ServiceSettings, to: &ServiceSettings) -> bool {
    if !to.is_unguarded_proxy() || service.clients.names_who_may() {
        return false;
    }
    let is_far = |range: &spliceway_protocol::address::ListenRange| {
        Reach::of_address(&range.first).is_some_and(|reach| reach != Reach::Local)
    };
    service.accept_proxy.is_some() || service.listen.iter().any(is_far)
}
