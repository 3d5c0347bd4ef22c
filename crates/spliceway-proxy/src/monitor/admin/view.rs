//! What the admin socket says of this program: its values as the types of the JSON.

use std::time::{Duration, SystemTime};

use spliceway_operator::api::{AcmeStatus, CrlStatus, SessionView, StaleStatus, TlsStatus};
use spliceway_protocol::Spoken;
use tokio::time::Instant;

use crate::kit::clock;
use crate::session::{Phase, Session};
use crate::tls::server::Terminator;

/// The names for which ACME issues certificates that the status of a service has at most.
const ACME_NAMES_MAX: usize = 100;

/// Returns what the operator sees of a session.
pub(super) fn session(session: &Session, now: Instant) -> SessionView {
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
        Phase::Followed(_) => "closing",
    };
    SessionView {
        id: session.id,
        service: session.service.to_string(),
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
        tls: facts.tls_version().map(str::to_owned),
        kernel_tls: facts.kernel_tls().map(str::to_owned),
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

/// Returns what the operator sees of the certificates of a service.
pub(crate) fn tls(terminator: &Terminator) -> TlsStatus {
    let first = terminator.first_to_expire(1).pop();
    let (file, expires) = first.map_or_else(
        || (String::new(), SystemTime::UNIX_EPOCH),
        |(file, valid)| (file, valid.to),
    );
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let until = |time: SystemTime| match time.duration_since(SystemTime::now()) {
        Ok(time) => seconds(time),
        Err(past) => -seconds(past.duration()),
    };
    let crl = terminator.crls().into_iter().min_by_key(|(_, expires)| *expires);
    TlsStatus {
        certificates: terminator.certificates() as u64,
        file,
        expires: clock::rfc3339_seconds(expires).to_string(),
        expires_in_seconds: until(expires),
        crl: crl.map(|(file, expires)| CrlStatus {
            file,
            expires: clock::rfc3339_seconds(expires).to_string(),
            expires_in_seconds: until(expires),
        }),
        stale: terminator.stale().map(|stale| StaleStatus {
            since: clock::rfc3339_seconds(stale.since).to_string(),
            why: stale.why.to_string(),
        }),
        acme: acme(terminator),
    }
}

/// Returns what the operator sees of the names for which ACME issues certificates. Those whose last
/// try failed come first.
fn acme(terminator: &Terminator) -> Vec<AcmeStatus> {
    let pairs = terminator.pairs();
    let time = |time| clock::rfc3339_seconds(time).to_string();
    let names = terminator.acme().map_or(&[][..], |acme| &acme.names);
    let status = names.iter().map(|name| {
        let next = terminator.counts().next_try(name);
        AcmeStatus {
            name: name.to_string(),
            expires: pairs.validity(name).map(|valid| time(valid.to)),
            next_try: next.as_ref().map(|next| time(next.at)),
            why: next.and_then(|next| next.why),
        }
    });
    let mut status: Vec<_> = status.collect();
    status.sort_by_key(|name| name.why.is_none());
    status.truncate(ACME_NAMES_MAX);
    status
}

/// Returns a time as RFC 3339, in UTC.
pub(crate) fn when(time: Option<SystemTime>) -> String {
    clock::rfc3339_millis(time.unwrap_or(SystemTime::UNIX_EPOCH)).to_string()
}
