//! The totals of the process that has handed over to this one, as a part of the state.

use spliceway::Reason;
use spliceway_operator::api::{ServiceStatus, Status};

use crate::metrics::{BEGUN, Samples};
use crate::reach::balance::Failure;

/// Adds the counters of an earlier process. What describes the process or the moment stays.
pub(super) fn continue_status(status: &mut Status, earlier: &Samples) {
    for service in &mut status.services {
        continue_service(service, earlier);
    }
    let totals = status.services.iter().map(|service| service.sessions.total);
    status.sessions.total = totals.fold(0, u64::saturating_add);
    add(&mut status.sessions.waits, earlier.get("admission_waits", &[]));
    for log in ["main", "access"] {
        add(
            &mut status.log.lines_dropped,
            earlier.get("log_lines_dropped", &[("log", log)]),
        );
    }
    let event = |name: &str| earlier.get("pool", &[("event", name)]);
    add(&mut status.pipes.created, event("created"));
    add(&mut status.pipes.reused, event("reused"));
    for reason in Reason::ALL {
        add(&mut status.pipes.denied, event(&format!("denied_{reason}")));
    }
    for fallback in &mut status.fallbacks {
        add(
            &mut fallback.count,
            earlier.get("fallback", &[("reason", &fallback.reason)]),
        );
    }
    status.fallbacks.retain(|fallback| fallback.count > 0);
}

fn continue_service(service: &mut ServiceStatus, earlier: &Samples) {
    let label = ("service", &*service.name);
    let directions = ["up", "down"].map(|name| ("direction", name));
    let sums = |name: &str| directions.map(|direction| earlier.get(name, &[label, direction]));
    let bytes = |path: &str| directions.map(|direction| earlier.get("bytes", &[label, direction, ("path", path)]));
    let (spliced, copied) = (bytes("splice"), bytes("copy"));
    let (lost, datagrams, data) = (sums("lost_bytes"), sums("datagrams"), sums("datagram_bytes"));
    add(&mut service.sessions.total, earlier.get(BEGUN, &[label]));
    for (count, before) in [
        (&mut service.bytes_up, spliced[0] + copied[0] + data[0]),
        (&mut service.bytes_down, spliced[1] + copied[1] + data[1]),
        (&mut service.spliced_up, spliced[0]),
        (&mut service.spliced_down, spliced[1]),
        (&mut service.lost_up, lost[0]),
        (&mut service.lost_down, lost[1]),
        (&mut service.datagrams_up, datagrams[0]),
        (&mut service.datagrams_down, datagrams[1]),
    ] {
        add(count, before);
    }
    for backend in &mut service.backends {
        let name = ("backend", &*backend.name);
        add(
            &mut backend.connections,
            earlier.get("backend_connections", &[label, name]),
        );
        add(&mut backend.ejections, earlier.get("backend_ejections", &[label, name]));
        for failure in Failure::ALL {
            let labels = [label, name, ("reason", failure.as_str())];
            add(&mut backend.failures, earlier.get("backend_failures", &labels));
        }
    }
}

fn add(count: &mut u64, before: u64) {
    *count = count.saturating_add(before);
}
