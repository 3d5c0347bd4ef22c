//! The series of metrics: their names, and where their values come from.
//!
//! A new series has a line in [`COUNTERS`] or [`GAUGES`], and a function here adds its value.

use std::sync::Arc;
use std::time::SystemTime;

use spliceway::{PipePool, Reason, Scope};

use super::samples::Samples;
use super::services::AllTraffic;
use crate::access::accounts::Accounts;
use crate::access::admission::Admission;
use crate::reach::balance::{BackendState, Balancer, Failure};
use crate::tls::server::Terminator;

/// The counters, each with its help text. The names of metrics have `_total` at their end.
pub(super) const COUNTERS: &[(&str, &str)] = &[
    ("accept_errors", "Failed calls of accept(2), by errno"),
    (
        "log_lines_dropped",
        "Lines dropped because the reader or the disk was too slow or a write failed, by log",
    ),
    (
        "log_reopens",
        "Signals to open the file of the access log again, by result",
    ),
    ("reloads", "Reloads of the configuration, by result"),
    ("upgrades", "Hand-overs to a new process, by result"),
    ("connections", "Sessions that have ended, by end reason"),
    ("refused", "Clients that the proxy itself refused, by reason"),
    ("bytes", "Bytes delivered, by path; up is from client to target"),
    (
        "lost_bytes",
        "Bytes read from one side and not delivered to the other when the session ended",
    ),
    ("mirror_sessions", "Copies for an observer that have ended, by result"),
    (
        "mirror_bytes",
        "Bytes that observers got; counted after each 1 MiB and at the end of a copy",
    ),
    ("fallback", "Relay directions that copied instead of spliced, by reason"),
    ("datagrams", "Datagrams delivered; up is from client to target"),
    ("datagram_bytes", "Bytes of data in delivered datagrams"),
    ("datagrams_dropped", "Datagrams dropped, by reason"),
    ("dns_queries", "Queries of DNS clients, by result"),
    (
        "tls_handshakes",
        "TLS handshakes with clients that succeeded, by version, resumption and certificate of the client",
    ),
    (
        "tls_handshake_failures",
        "TLS handshakes with clients that failed, by reason",
    ),
    (
        "kernel_tls",
        "TLS connections that the kernel should take over, by result",
    ),
    ("acme_tries", "Certificates that were ordered by ACME, by result"),
    ("tls_reloads", "Changed certificates that were read again, by result"),
    (
        "admission_waits",
        "Times that a listener had to wait for a session to end",
    ),
    (
        "pool",
        "Events of the pipe pool; denied_* counts pipes that it could not lend",
    ),
    ("quota_writes", "Updates of the quota file, by result"),
    ("user_bytes", "Bytes of users with limits, in both directions"),
    (
        "user_refused",
        "Sessions of named users with limits that the proxy refused",
    ),
    ("backend_connections", "Connections to a backend that succeeded"),
    ("backend_failures", "Failures of a backend, by reason"),
    ("backend_checks", "Checks of a backend, by result"),
    (
        "backend_ejections",
        "Times that a backend was ejected because it failed",
    ),
];

/// The gauges, each with its help text.
pub(super) const GAUGES: &[(&str, &str)] = &[
    ("connections_active", "Sessions that are open now, including handshakes"),
    (
        "connections_max",
        "Limit on open sessions; further clients wait to be accepted",
    ),
    (
        "last_reload_refused",
        "1 if the last reload of the configuration was refused",
    ),
    (
        "tls_certificate_expires_seconds",
        "Time at which a certificate expires, in seconds since 1970; of the certificates that expire first",
    ),
    (
        "tls_certificate_lifetime_seconds",
        "Time for which a certificate is valid in all; of the certificates that expire first",
    ),
    ("tls_certificates", "Certificates that a service has for its clients"),
    (
        "tls_certificates_stale",
        "1 if the previous TLS files stay in force, because the changed files cannot be used",
    ),
    (
        "tls_crl_expires_seconds",
        "Time at which a list of revoked certificates ends, in seconds since 1970",
    ),
    ("pipes", "Open pipes, by state"),
    ("pipe_pages", "Memory pages of all open pipes"),
    (
        "quota_unsaved_bytes",
        "Bytes that count for quotas and are not in the quota file",
    ),
    (
        "user_sessions",
        "Sessions of users with limits; users without a label of their own share an empty one",
    ),
    (
        "user_quota_used_bytes",
        "Bytes that a named user has used of a quota, by period",
    ),
    ("user_quota_bytes", "The quota of a named user, by period"),
    (
        "backend_up",
        "Whether a backend gets clients: 1, or 0 while it is ejected, down or draining",
    ),
    (
        "backend_sessions",
        "Open sessions of a backend, including those that are connecting",
    ),
    (
        "backend_waiting",
        "Clients that wait for a backend, because all are full",
    ),
];

/// The number of sessions that have begun. Metrics do not show it.
pub(crate) const BEGUN: &str = "sessions";

/// The certificates of a service whose expiry metrics show. With a thousand certificates, those
/// that end first matter to an alert.
const EXPIRIES_MAX: usize = 32;

/// What this process counts now.
#[derive(Debug, Default)]
pub(super) struct Now {
    pub(super) counters: Samples,
    pub(super) gauges: Samples,
}

impl Now {
    pub(super) async fn traffic(&mut self, all: &AllTraffic) {
        let Self { counters, gauges } = self;
        for name in ["connections", "refused", "datagrams_dropped"] {
            counters.declare(name);
        }
        let mut fallbacks = all.earlier_fallbacks();
        for traffic in all.all() {
            let label = ("service", traffic.service());
            let totals = traffic.totals().await;
            gauges.add("connections_active", &[label], traffic.active());
            counters.add(BEGUN, &[label], totals.sessions);
            let outcomes = traffic.outcomes();
            for (end, count) in outcomes.ended {
                counters.add("connections", &[label, ("end", &end.to_string())], count);
            }
            for (reason, count) in outcomes.refused {
                counters.add("refused", &[label, ("reason", reason.as_str())], count);
            }
            let (bytes, datagrams) = (totals.bytes, totals.datagrams);
            for (name, paths, passed) in [("up", bytes.up, datagrams.up), ("down", bytes.down, datagrams.down)] {
                let labels = [label, ("direction", name)];
                for (path, count) in [("splice", paths.splice), ("copy", paths.copy)] {
                    counters.add("bytes", &[label, ("direction", name), ("path", path)], count);
                }
                counters.add("lost_bytes", &labels, paths.lost);
                counters.add("datagrams", &labels, passed.datagrams);
                counters.add("datagram_bytes", &labels, passed.bytes);
            }
            if let Some(mirrors) = traffic.known_mirrors() {
                counters.add("mirror_bytes", &[label], mirrors.bytes());
                for (result, count) in mirrors.results() {
                    counters.add("mirror_sessions", &[label, ("result", result.as_str())], count);
                }
            }
            for (reason, count) in datagrams.drops() {
                counters.add("datagrams_dropped", &[label, ("reason", reason.as_str())], count);
            }
            for (result, count) in traffic.dns_queries() {
                counters.add("dns_queries", &[label, ("result", result)], count);
            }
            let sums = fallbacks.iter_mut().zip(totals.fallbacks);
            sums.for_each(|(sum, count)| *sum += count);
        }
        for (reason, count) in Reason::ALL.into_iter().zip(fallbacks) {
            counters.add("fallback", &[("reason", reason.as_str())], count);
        }
    }

    pub(super) fn admission(&mut self, admission: &Admission) {
        self.gauges.add("connections_max", &[], admission.max() as u64);
        self.counters.add("admission_waits", &[], admission.waits());
    }

    pub(super) fn log(&mut self) {
        for (log, count) in crate::log::dropped() {
            self.counters.add("log_lines_dropped", &[("log", log)], count);
        }
        for (result, count) in crate::log::reopens() {
            self.counters.add("log_reopens", &[("result", result)], count);
        }
    }

    pub(super) fn pool(&mut self) {
        let stats = PipePool::global().stats();
        for (state, count) in [("lent", stats.lent), ("idle", stats.idle)] {
            self.gauges.add("pipes", &[("state", state)], count as u64);
        }
        self.gauges.add("pipe_pages", &[], stats.pages as u64);
        let mut event = |name: &str, count: u64| self.counters.add("pool", &[("event", name)], count);
        event("created", stats.created);
        event("reused", stats.reused);
        event("closed_dirty", stats.closed_dirty);
        event("closed_idle", stats.closed_idle);
        // Reasons that last for a while and do not belong to one relay have a series that is 0
        // before the first denial. Only such reasons can come from the pool.
        for reason in Reason::ALL {
            let denied = stats.denied.iter().find(|(denied, _)| *denied == reason);
            if denied.is_some() || reason.scope() != Scope::Relay {
                event(&format!("denied_{reason}"), denied.map_or(0, |(_, count)| *count));
            }
        }
    }

    pub(super) fn users(&mut self, accounts: &Accounts) {
        let Self { counters, gauges } = self;
        let (users, unsaved) = accounts.sums();
        if let Some(updates) = accounts.updates() {
            for (result, count) in updates {
                counters.add("quota_writes", &[("result", result)], count);
            }
            gauges.add("quota_unsaved_bytes", &[], unsaved);
        }
        for sums in &users {
            let label = ("user", &*sums.user);
            gauges.add("user_sessions", &[label], sums.sessions);
            counters.add("user_bytes", &[label], sums.counted);
            counters.add("user_refused", &[label], sums.refused);
            for (period, used, quota) in sums.quotas() {
                gauges.add("user_quota_used_bytes", &[label, ("period", period)], used);
                gauges.add("user_quota_bytes", &[label, ("period", period)], quota);
            }
        }
    }

    /// Adds what is known about the TLS of each service.
    pub(super) fn tls(&mut self, terminators: &[(Arc<str>, Arc<Terminator>)]) {
        let Self { counters, gauges } = self;
        for (service, terminator) in terminators {
            let service = ("service", &**service);
            let counts = terminator.counts();
            for (kind, count) in counts.handshakes() {
                let labels = [
                    service,
                    ("version", kind.version),
                    ("resumed", kind.resumed),
                    ("client_cert", kind.client_cert),
                ];
                counters.add("tls_handshakes", &labels, count);
            }
            for (reason, count) in counts.failures() {
                counters.add("tls_handshake_failures", &[service, ("reason", reason)], count);
            }
            for (result, count) in counts.reloads() {
                counters.add("tls_reloads", &[service, ("result", result)], count);
            }
            if terminator.acme().is_some() {
                for (result, count) in counts.acme_tries() {
                    counters.add("acme_tries", &[service, ("result", result)], count);
                }
            }
            gauges.add("tls_certificates", &[service], terminator.certificates() as u64);
            let is_stale = terminator.stale().is_some();
            gauges.add("tls_certificates_stale", &[service], is_stale.into());
            for (file, valid) in terminator.first_to_expire(EXPIRIES_MAX) {
                let expires = valid.to.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let labels = [service, ("file", &*file)];
                gauges.add("tls_certificate_expires_seconds", &labels, expires.as_secs());
                let lifetime = valid.to.duration_since(valid.from).unwrap_or_default();
                gauges.add("tls_certificate_lifetime_seconds", &labels, lifetime.as_secs());
            }
            for (file, expires) in terminator.crls() {
                let expires = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let labels = [service, ("file", &*file)];
                gauges.add("tls_crl_expires_seconds", &labels, expires.as_secs());
            }
        }
    }

    /// Adds the backends of each service, as they are now. A backend that a reload removes has no
    /// series any more.
    pub(super) fn backends(&mut self, balancers: &[Arc<Balancer>]) {
        let Self { counters, gauges } = self;
        for balancer in balancers {
            let service = ("service", balancer.service());
            gauges.add("backend_waiting", &[service], balancer.waiting() as u64);
            for backend in balancer.status() {
                let labels = [service, ("backend", &*backend.name)];
                let [service, name] = labels;
                gauges.add("backend_up", &labels, (backend.state == BackendState::Up).into());
                gauges.add("backend_sessions", &labels, backend.sessions.into());
                counters.add("backend_connections", &labels, backend.connections);
                counters.add("backend_ejections", &labels, backend.ejections);
                for (failure, count) in Failure::ALL.into_iter().zip(backend.failures) {
                    counters.add(
                        "backend_failures",
                        &[service, name, ("reason", failure.as_str())],
                        count,
                    );
                }
                for (result, count) in ["good", "failed"].into_iter().zip(backend.checks) {
                    counters.add("backend_checks", &[service, name, ("result", result)], count);
                }
            }
        }
    }
}
