//! Decides what a client is told, and records what it is not told.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::kit::outcome::SessionEnd;
use crate::kit::refusal::Refusal;
use crate::log::{self, LogThrottle};
use crate::metrics::DnsResult;
use crate::reach::dial::{DialError, Family, LookupError};
use crate::session::service::Service;
use crate::settings::{Kind, Naming};
use spliceway_protocol::dns::{Query, RecordType, Reply};

/// How long an answer is valid, in seconds. The program has a cache, and answers quickly. So a
/// change of the rules applies soon, and no address is used much longer than its own server says.
const TTL_SECONDS: u32 = 5;
/// The time in which a refused name has one record.
const RECORD_EVERY: Duration = Duration::from_secs(3600);
/// The most names with a record in this time. They need 300 KiB.
const RECORDED_MAX: usize = 1024;

/// How to answer a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Now(Reply<'static>),
    /// Look up the addresses of this family.
    LookUp(Family),
    /// Look them up although no rule allows the name, because the service learns.
    Learn(Family),
}

/// What a lookup has found.
pub(super) enum Found {
    Addresses(Vec<IpAddr>),
    NoSuchName,
    Failed,
}

impl Found {
    pub(super) fn reply(&self) -> Reply<'_> {
        match self {
            Self::Addresses(addresses) => Reply::Addresses(addresses, TTL_SECONDS),
            Self::NoSuchName => Reply::NoSuchName,
            Self::Failed => Reply::Failed,
        }
    }
}

/// Decides by the rules how to answer a query, and counts and records what is refused.
pub(super) fn decide(service: &Service, recorded: &Recorded, client: SocketAddr, query: &Query) -> Decision {
    let learns = matches!(service.kind, Kind::Transparent(_, Naming::Learning));
    let policy = service.dialer_of_client(client.ip()).policy();
    let name = query.name.as_deref();
    let is_allowed = name.is_some_and(|name| policy.allows_name_somewhere(name));
    // The port is not known. Most clients want this one.
    let denied = name.and_then(|name| policy.allows_name(name, 443).err());
    if !is_allowed && (!learns || name.is_none() || denied.is_some()) {
        service.traffic.dns(DnsResult::Refused);
        if let Some(name) = name {
            let cause = match denied {
                Some(denied) => format!("{name} is {denied}"),
                None => format!("no rule allows {name}"),
            };
            recorded.add(service, client, name, Refusal::TargetRule, &cause);
        }
        return Decision::Now(Reply::Blocked);
    }
    match query.record_type {
        RecordType::V4 if is_allowed => Decision::LookUp(Family::V4),
        RecordType::V6 if is_allowed => Decision::LookUp(Family::V6),
        RecordType::V4 => Decision::Learn(Family::V4),
        RecordType::V6 => Decision::Learn(Family::V6),
        RecordType::Other => {
            let result = if is_allowed {
                DnsResult::Answered
            } else {
                DnsResult::WouldRefuse
            };
            service.traffic.dns(result);
            Decision::Now(Reply::Addresses(&[], TTL_SECONDS))
        }
    }
}

/// Looks up what was decided.
pub(super) async fn look_up(
    service: &Service,
    recorded: &Recorded,
    client: SocketAddr,
    query: &Query,
    decision: Decision,
) -> Found {
    let name = query.name.as_deref().unwrap_or_default();
    let dialer = service.dialer_of_client(client.ip());
    let found = match decision {
        Decision::LookUp(family) => dialer.addresses_for_client(name, family, client.ip()).await,
        Decision::Learn(family) => {
            let dialer = dialer.allowing_unlisted();
            dialer.addresses_for_client(name, family, client.ip()).await
        }
        Decision::Now(_) => Ok(Vec::new()),
    };
    let answered = match decision {
        Decision::Learn(_) => DnsResult::WouldRefuse,
        Decision::LookUp(_) | Decision::Now(_) => DnsResult::Answered,
    };
    let (result, found) = match found {
        Ok(addresses) => (answered, Found::Addresses(addresses)),
        Err(DialError::Unresolved(LookupError::NoAddress)) => (answered, Found::NoSuchName),
        Err(DialError::Denied(denied, ip)) => {
            let cause = ip.map_or_else(
                || denied.to_string(),
                |ip| format!("{name} has the address {ip}, {denied}"),
            );
            recorded.add(service, client, name, Refusal::from(&denied), &cause);
            (DnsResult::Filtered, Found::Addresses(Vec::new()))
        }
        Err(error) => {
            recorded.failed(&service.name, name, &error);
            (DnsResult::Failed, Found::Failed)
        }
    };
    service.traffic.dns(result);
    found
}

/// The refused names that have a record. A client can ask for any number of names, but each has one
/// record in an hour, and there are at most [`RECORDED_MAX`].
#[derive(Default)]
pub(super) struct Recorded {
    names: Mutex<Names>,
    failures: Mutex<LogThrottle>,
}

#[derive(Default)]
struct Names {
    /// Services and names.
    recorded: HashSet<(Arc<str>, Box<str>)>,
    since: Option<Instant>,
}

impl Recorded {
    /// Writes a record, unless the name has one.
    fn add(&self, service: &Service, client: SocketAddr, name: &str, reason: Refusal, cause: &str) {
        let key = (Arc::clone(&service.name), name.into());
        if !self.names.lock().admit(key, Instant::now()) {
            return;
        }
        log::record(false, |line| {
            line.text("service", &service.name);
            line.address("client", &client);
            line.word("protocol", "dns");
            line.display("target", &name);
            line.display("end", &SessionEnd::Denied(reason));
            line.text("cause", cause);
        });
    }

    /// Logs that a lookup has failed, now and then.
    fn failed(&self, service: &str, name: &str, error: &DialError) {
        if self.failures.lock().admits(Instant::now()) {
            tracing::warn!(service, name, %error, "cannot look up a name for a client");
        }
    }
}

impl Names {
    fn admit(&mut self, key: (Arc<str>, Box<str>), now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since >= RECORD_EVERY) {
            (self.recorded, self.since) = (HashSet::new(), Some(now));
        }
        if self.recorded.len() == RECORDED_MAX || !self.recorded.insert(key) {
            return false;
        }
        if self.recorded.len() == RECORDED_MAX {
            tracing::warn!(
                max = RECORDED_MAX,
                "further refused names of DNS have no record in this hour"
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_record_in_an_hour_and_their_number_is_limited() {
        let (mut names, start) = (Names::default(), Instant::now());
        let mut admits = |service: &str, name: &str, now| names.admit((service.into(), name.into()), now);
        assert!(admits("s", "a", start) && !admits("s", "a", start) && admits("t", "a", start));
        for name in 2..RECORDED_MAX {
            assert!(admits("s", &name.to_string(), start));
        }
        let end = start + RECORD_EVERY;
        assert!(!admits("s", "b", end - Duration::from_secs(1)), "the limit");
        assert!(admits("s", "a", end) && admits("s", "b", end) && !admits("s", "b", end));
    }
}
