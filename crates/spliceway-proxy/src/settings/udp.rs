//! Checks the settings of a service that forwards datagrams.

use super::faults::{Fault, Faults};
use crate::net::listener::Transport;
use crate::reach::balance::BackendSettings;
use crate::settings::config::{self, List, Value};
use spliceway_protocol::address::{ListenAddress, Target};
use spliceway_protocol::proxy;

/// Checks that nothing in `service` needs connections.
pub(super) fn check(service: &config::Service, backends: &[BackendSettings], faults: &mut Faults) {
    let keeps_client = service.transparent_source.as_ref().filter(|keep| keep.parsed());
    let connections = [
        ("mirror", service.mirror.as_ref().map(Value::at)),
        ("accept_proxy", service.accept_proxy.as_ref().map(Value::at)),
        ("upstream_proxy", service.upstream_proxy.as_ref().map(List::at)),
        ("transparent_source", keeps_client.map(Value::at)),
    ];
    for (key, at) in connections.into_iter().filter_map(|(key, at)| Some((key, at?))) {
        let why = "is only for connections, and this service forwards datagrams (--udp)";
        faults.add(Fault::new(at, key, why));
    }
    let version = service.send_proxy.as_ref();
    if let Some(version) = version.filter(|version| version.parsed() != proxy::Version::V2) {
        let why = "has no header for datagrams: expected v2, because the service forwards datagrams (--udp)";
        faults.add(Fault::new(version.at(), "send_proxy", why));
    }
    let at = service.listen.as_ref().and_then(List::at);
    let mut listens = service.listen.iter().flat_map(|listen| listen.iter());
    let unix = "expected an address and a port, because the service forwards datagrams (--udp)";
    if listens.any(|range| matches!(range.parsed().first, ListenAddress::Unix { .. })) {
        faults.add(Fault::new(at, "listen", unix));
    }
    if backends
        .iter()
        .any(|backend| matches!(backend.targets.first, Target::Unix(_)))
    {
        faults.add(Fault::new(service.to.as_ref().and_then(List::at), "to", unix));
    }
}

pub(super) fn transport(service: &config::Service) -> Transport {
    if service.udp() {
        Transport::Datagrams
    } else {
        Transport::Streams
    }
}
