//! What the admin socket says, as JSON. The commands `status` and `top` read the same types.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use spliceway_protocol::Spoken;
use tokio::time::Instant;

use crate::access::accounts::UserStatus;
use crate::kit::clock;
use crate::session::sessions::{Phase, Session};

/// The state of the program.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    pub(crate) started: String,
    pub(crate) uptime_seconds: f64,
    /// `serving`, `draining`, or `failed: PART`.
    pub(crate) state: String,
    pub(crate) ready: bool,
    pub(crate) sessions: SessionCounts,
    pub(crate) rates: Rates,
    pub(crate) services: Vec<ServiceStatus>,
    pub(crate) pipes: Pipes,
    /// Reasons for which directions copied, without those that never occurred.
    pub(crate) fallbacks: Vec<Fallback>,
    pub(crate) limits: Limits,
    pub(crate) log: LogStatus,
    /// Whether the last update of the quota file has worked. `None` if there is no such file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quotas_are_saved: Option<bool>,
    /// The first users with limits, in the order of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) users: Vec<UserStatus>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SessionCounts {
    pub(crate) active: u64,
    pub(crate) total: u64,
    /// How often a listener had to wait for a session to end.
    pub(crate) waits: u64,
}

/// What happened per second, over the last seconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rates {
    pub(crate) over_seconds: f64,
    pub(crate) bytes_up: f64,
    pub(crate) bytes_down: f64,
    /// The spliced bytes of both directions.
    pub(crate) spliced: f64,
    pub(crate) sessions: f64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceStatus {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) listen: Vec<String>,
    /// `accepting`, `draining`, or `removed` while sessions of a removed service still run.
    pub(crate) state: String,
    pub(crate) sessions: SessionCounts,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) spliced_up: u64,
    pub(crate) spliced_down: u64,
    pub(crate) lost_up: u64,
    pub(crate) lost_down: u64,
    pub(crate) datagrams_up: u64,
    pub(crate) datagrams_down: u64,
    pub(crate) rates: Rates,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) backends: Vec<Backend>,
    /// Clients that wait for a backend.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) waiting: u64,
}

/// One of several backends of a forwarder.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Backend {
    pub(crate) name: String,
    /// `up`, `draining`, `ejected` or `down`.
    pub(crate) state: String,
    pub(crate) weight: u32,
    pub(crate) backup: bool,
    pub(crate) sessions: u64,
    /// Connections, failures and ejections so far.
    pub(crate) connections: u64,
    pub(crate) failures: u64,
    pub(crate) ejections: u64,
}

/// The pipe pool.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pipes {
    pub(crate) lent: u64,
    pub(crate) idle: u64,
    pub(crate) pages: u64,
    pub(crate) created: u64,
    pub(crate) reused: u64,
    pub(crate) denied: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Fallback {
    pub(crate) reason: String,
    pub(crate) count: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Limits {
    pub(crate) sessions: u64,
    pub(crate) descriptors: u64,
    pub(crate) pipes: u64,
    pub(crate) pipe_pages: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LogStatus {
    pub(crate) level: String,
    pub(crate) lines_dropped: u64,
}

/// A page of the list of sessions.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SessionPage {
    pub(crate) sessions: Vec<SessionView>,
    /// The value of `after` for the next page.
    pub(crate) next: Option<usize>,
}

/// A page of the list of users.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UserPage {
    pub(crate) users: Vec<UserStatus>,
    /// The value of `after` for the next page.
    pub(crate) next: Option<String>,
}

/// One open session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SessionView {
    pub(crate) id: u64,
    pub(crate) service: String,
    /// An address and a port, or `unix`.
    pub(crate) client: String,
    pub(crate) user: Option<String>,
    /// The share of a quota that the user has used, in all sessions.
    pub(crate) quota_used: Option<f64>,
    pub(crate) protocol: Option<String>,
    /// The name of a server that a TLS client stated.
    pub(crate) sni: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) dialled: Option<String>,
    pub(crate) started: String,
    pub(crate) duration_ms: u64,
    pub(crate) connect_ms: Option<u64>,
    /// `handshake`, `dial`, `relay`, or `closing` after a request to close it.
    pub(crate) state: String,
    /// The time since bytes were last seen to move.
    pub(crate) idle_ms: Option<u64>,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    pub(crate) spliced_up: u64,
    pub(crate) spliced_down: u64,
    /// Why bytes that might have been spliced were copied.
    pub(crate) fallback_up: Option<String>,
    pub(crate) fallback_down: Option<String>,
}

/// An answer without data: what was done, or what is wrong.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    #[serde(rename = "done")]
    Done(String),
    #[serde(rename = "error")]
    Error(String),
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Status {
    /// Adds the counts of an earlier process, which has handed over to this one. What describes the
    /// process or the moment stays.
    pub(crate) fn continue_from(&mut self, before: &Self) {
        for service in &mut self.services {
            if let Some(before) = before.services.iter().find(|before| before.name == service.name) {
                service.continue_from(before);
            }
        }
        let totals = self.services.iter().map(|service| service.sessions.total);
        self.sessions.total = totals.fold(0, u64::saturating_add);
        add(&mut self.sessions.waits, before.sessions.waits);
        add(&mut self.pipes.created, before.pipes.created);
        add(&mut self.pipes.reused, before.pipes.reused);
        add(&mut self.pipes.denied, before.pipes.denied);
        add(&mut self.log.lines_dropped, before.log.lines_dropped);
        for fallback in &before.fallbacks {
            match self.fallbacks.iter_mut().find(|own| own.reason == fallback.reason) {
                Some(own) => add(&mut own.count, fallback.count),
                None => self.fallbacks.push(fallback.clone()),
            }
        }
    }
}

impl ServiceStatus {
    fn continue_from(&mut self, before: &Self) {
        add(&mut self.sessions.total, before.sessions.total);
        add(&mut self.bytes_up, before.bytes_up);
        add(&mut self.bytes_down, before.bytes_down);
        add(&mut self.spliced_up, before.spliced_up);
        add(&mut self.spliced_down, before.spliced_down);
        add(&mut self.lost_up, before.lost_up);
        add(&mut self.lost_down, before.lost_down);
        add(&mut self.datagrams_up, before.datagrams_up);
        add(&mut self.datagrams_down, before.datagrams_down);
        for backend in &mut self.backends {
            if let Some(before) = before.backends.iter().find(|before| before.name == backend.name) {
                add(&mut backend.connections, before.connections);
                add(&mut backend.failures, before.failures);
                add(&mut backend.ejections, before.ejections);
            }
        }
    }
}

fn add(count: &mut u64, before: u64) {
    *count = count.saturating_add(before);
}

impl SessionView {
    pub(crate) fn of(session: &Session, now: Instant) -> Self {
        let duration = now.saturating_duration_since(session.started);
        let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
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
        Self {
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
}

/// Returns a time as RFC 3339, in UTC.
pub(crate) fn when(time: Option<SystemTime>) -> String {
    clock::rfc3339_millis(time.unwrap_or(SystemTime::UNIX_EPOCH)).to_string()
}
