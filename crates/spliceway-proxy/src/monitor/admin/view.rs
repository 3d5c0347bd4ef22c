//! What the admin socket says of this program: its values as the types of the JSON.

use std::time::{Duration, SystemTime};

use spliceway_operator::api::{ServiceStatus, SessionView, Status};
use spliceway_protocol::Spoken;
use tokio::time::Instant;

use crate::kit::clock;
use crate::session::sessions::{Phase, Session};

/// Returns what the operator sees of a session.
pub(crate) fn session(session: &Session, now: Instant) -> SessionView {
    let duration = now.saturating_duration_since(session.started);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let facts = session.facts();
    let relayed = facts.relayed();
    let (mut up, mut down) = (relayed.a_to_b.bytes, relayed.b_to_a.bytes);
    if let Phase::Datagrams(stats) = &facts.phase {
        let passed = stats.snapshot();
        (up, down) = (passed.up.bytes, passed.down.bytes);
    }
    let state = match &facts.phase {
        _ if facts.closed.is_some() => "closing",
        Phase::Handshake => "handshake",
        Phase::Dial => "dial",
        Phase::Relay(..) | Phase::Datagrams(_) => "relay",
    };
    SessionView {
        id: session.id,
        service: session.service.to_owned(),
        client: facts
            .client
            .map_or_else(|| "unix".to_owned(), |client| client.to_string()),
        user: facts.user.as_deref().map(str::to_owned),
        quota_used: facts
            .account
            .as_ref()
            .and_then(|entered| entered.account().quota_used()),
        protocol: facts.protocol.map(Spoken::name).map(str::to_owned),
        sni: facts.server_name.as_deref().map(str::to_owned),
        target: facts.target.as_ref().map(ToString::to_string),
        dialled: facts.dialled.map(|address| address.to_string()),
        started: when(SystemTime::now().checked_sub(duration)),
        duration_ms: millis(duration),
        connect_ms: facts.connect.map(millis),
        state: state.to_owned(),
        idle_ms: facts.idle(now).map(millis),
        bytes_up: up,
        bytes_down: down,
        spliced_up: relayed.a_to_b.spliced,
        spliced_down: relayed.b_to_a.spliced,
        fallback_up: relayed.a_to_b.fallback.map(|reason| reason.to_string()),
        fallback_down: relayed.b_to_a.fallback.map(|reason| reason.to_string()),
    }
}

/// Returns a time as RFC 3339, in UTC.
pub(crate) fn when(time: Option<SystemTime>) -> String {
    clock::rfc3339_millis(time.unwrap_or(SystemTime::UNIX_EPOCH)).to_string()
}

/// Adds the counts of an earlier process, which has handed over to this one. What describes the
/// process or the moment stays.
pub(crate) fn continue_status(status: &mut Status, before: &Status) {
    for service in &mut status.services {
        if let Some(before) = before.services.iter().find(|before| before.name == service.name) {
            continue_service(service, before);
        }
    }
    let totals = status.services.iter().map(|service| service.sessions.total);
    status.sessions.total = totals.fold(0, u64::saturating_add);
    add(&mut status.sessions.waits, before.sessions.waits);
    add(&mut status.pipes.created, before.pipes.created);
    add(&mut status.pipes.reused, before.pipes.reused);
    add(&mut status.pipes.denied, before.pipes.denied);
    add(&mut status.log.lines_dropped, before.log.lines_dropped);
    for fallback in &before.fallbacks {
        match status.fallbacks.iter_mut().find(|own| own.reason == fallback.reason) {
            Some(own) => add(&mut own.count, fallback.count),
            None => status.fallbacks.push(fallback.clone()),
        }
    }
}

fn continue_service(service: &mut ServiceStatus, before: &ServiceStatus) {
    add(&mut service.sessions.total, before.sessions.total);
    add(&mut service.bytes_up, before.bytes_up);
    add(&mut service.bytes_down, before.bytes_down);
    add(&mut service.spliced_up, before.spliced_up);
    add(&mut service.spliced_down, before.spliced_down);
    add(&mut service.lost_up, before.lost_up);
    add(&mut service.lost_down, before.lost_down);
    add(&mut service.datagrams_up, before.datagrams_up);
    add(&mut service.datagrams_down, before.datagrams_down);
    for backend in &mut service.backends {
        if let Some(before) = before.backends.iter().find(|before| before.name == backend.name) {
            add(&mut backend.connections, before.connections);
            add(&mut backend.failures, before.failures);
            add(&mut backend.ejections, before.ejections);
        }
    }
}

fn add(count: &mut u64, before: u64) {
    *count = count.saturating_add(before);
}
