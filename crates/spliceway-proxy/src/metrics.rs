//! The metrics for Prometheus.
//!
//! The session counters change when an event happens. The byte counters do not, because each relay
//! counts its own bytes. A scrape adds the bytes of the running relays to those of the ended relays
//! ([`Traffic`]).

mod backends;
mod continued;
mod process;
mod traffic;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::accounts::{Accounts, UserSeries};
use crate::admission::Admission;
use crate::balance::Balancer;
use crate::outcome::SessionEnd;
use backends::Backends;
use continued::Continued;
pub(crate) use process::Process;
use traffic::{AllTraffic, LiveSeries};
pub(crate) use traffic::{Totals, Traffic};

/// The upper bounds of the buckets for the connect time, in seconds. They range from a neighbour in
/// the same rack to the default connect timeout.
const CONNECT_BUCKETS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// What the name of every metric begins with.
const PREFIX: &str = "spliceway";
/// The values of `result` in the metric of reloads.
const RELOADED: &str = "ok";
const REFUSED: &str = "refused";

/// All metrics of this process.
pub(crate) struct Metrics {
    started: SystemTime,
    registry: Registry,
    active: Family<ServiceLabel, Gauge>,
    ended: Family<EndLabels, Counter>,
    refused: Family<RefusedLabels, Counter>,
    connect_seconds: Histogram,
    accept_errors: Family<ErrnoLabel, Counter>,
    reloads: Family<ReloadLabel, Counter>,
    admission: Arc<Admission>,
    accounts: Arc<Accounts>,
    /// The traffic of each service that there has been. A counter never goes back, so a removed
    /// service keeps its series.
    traffic: AllTraffic,
    /// The backends of the services that run now.
    balancers: Mutex<Vec<Arc<Balancer>>>,
    /// The counters of the process that has handed over to this one.
    continued: Continued,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabel {
    service: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    service: &'static str,
    end: SessionEnd,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    service: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrnoLabel {
    errno: &'static str,
}

impl Metrics {
    pub(crate) fn new(admission: Arc<Admission>, accounts: Arc<Accounts>) -> Self {
        let metrics = Self {
            started: SystemTime::now(),
            registry: Registry::with_prefix(PREFIX),
            active: Family::default(),
            ended: Family::default(),
            refused: Family::default(),
            connect_seconds: Histogram::new(CONNECT_BUCKETS),
            accept_errors: Family::default(),
            reloads: Family::default(),
            admission,
            accounts,
            traffic: AllTraffic::default(),
            balancers: Mutex::default(),
            continued: Continued::default(),
        };
        // This creates the series, so that they are 0 before the first reload.
        for result in [RELOADED, REFUSED] {
            drop(metrics.reloads.get_or_create(&ReloadLabel { result }));
        }
        metrics.registered()
    }

    /// Registers the metrics. The library appends `_total` to counters and the unit to the
    /// histogram.
    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        let version = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        registry.register("build", "The running build", Info::new(version.to_vec()));
        registry.register(
            "connections_active",
            "Sessions that are open now, including handshakes",
            self.active.clone(),
        );
        registry.register(
            "connections",
            "Sessions that have ended, by end reason",
            self.ended.clone(),
        );
        registry.register(
            "refused",
            "Clients that the proxy itself refused, by reason",
            self.refused.clone(),
        );
        registry.register_with_unit(
            "connect",
            "Time to look up and connect to a target, for successful attempts",
            Unit::Seconds,
            self.connect_seconds.clone(),
        );
        registry.register(
            "accept_errors",
            "Failed calls of accept(2), by errno",
            self.accept_errors.clone(),
        );
        registry.register(
            "log_lines_dropped",
            "Lines dropped because the reader or the disk was too slow or a write failed, by log",
            crate::log::dropped(),
        );
        registry.register(
            "log_reopens",
            "Signals to open the file of the access log again, by result",
            crate::log::reopens(),
        );
        registry.register(
            "reloads",
            "Reloads of the configuration, by result",
            self.reloads.clone(),
        );
        self
    }

    /// Returns the traffic of the service with this name. A name that was there before continues.
    pub(crate) fn traffic(&self, service: &'static str) -> Arc<Traffic> {
        // This creates the series, so that it is 0 before the first session.
        drop(self.active.get_or_create(&ServiceLabel { service }));
        self.traffic.of(service)
    }

    /// Records the balancers of the services that run from now on.
    pub(crate) fn balance(&self, balancers: Vec<Arc<Balancer>>) {
        *self.balancers.lock().unwrap_or_else(PoisonError::into_inner) = balancers;
    }

    /// Cancels all running relays and associations of all services, and returns their number. See
    /// [`Traffic::cancel`].
    pub(crate) fn cancel_all(&self, deadline: Duration) -> usize {
        self.traffic.all().iter().map(|traffic| traffic.cancel(deadline)).sum()
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    pub(crate) fn reloaded(&self, is_in_force: bool) {
        let result = if is_in_force { RELOADED } else { REFUSED };
        self.reloads.get_or_create(&ReloadLabel { result }).inc();
    }

    /// Creates the series for this reason, so that it is 0 before the first refusal.
    pub(crate) fn may_refuse(&self, service: &'static str, reason: &'static str) {
        drop(self.refused.get_or_create(&RefusedLabels { service, reason }));
    }

    pub(crate) fn session_began(&self, service: &'static str) {
        self.active.get_or_create(&ServiceLabel { service }).inc();
    }

    pub(crate) fn session_ended(&self, service: &'static str, end: SessionEnd) {
        self.active.get_or_create(&ServiceLabel { service }).dec();
        self.ended.get_or_create(&EndLabels { service, end }).inc();
        if let SessionEnd::Denied(reason) = end {
            self.refused.get_or_create(&RefusedLabels { service, reason }).inc();
        }
    }

    /// Records that a session arrives from another process.
    pub(crate) fn session_arrived(&self, service: &'static str) {
        self.active.get_or_create(&ServiceLabel { service }).inc();
    }

    /// Records that a session continues in another process, which counts its end.
    pub(crate) fn session_left(&self, service: &'static str) {
        self.active.get_or_create(&ServiceLabel { service }).dec();
    }

    /// Returns the number of open sessions of a service.
    pub(crate) fn active(&self, service: &'static str) -> u64 {
        let active = self.active.get_or_create(&ServiceLabel { service }).get();
        u64::try_from(active).unwrap_or(0)
    }

    /// Returns the number of open sessions of all services.
    pub(crate) fn open(&self) -> u64 {
        self.traffic
            .all()
            .iter()
            .map(|traffic| self.active(traffic.service()))
            .sum()
    }

    /// Returns the number of sessions that the stop of the program has cut. A session that is still
    /// open at the end is one of them.
    pub(crate) fn cut(&self) -> u64 {
        let end = SessionEnd::Drained;
        let of = |service| {
            self.ended
                .get(&EndLabels { service, end })
                .map_or(0, |count| count.get())
        };
        let drained: u64 = self.traffic.all().iter().map(|traffic| of(traffic.service())).sum();
        drained + self.open()
    }

    pub(crate) fn connected(&self, time: Duration) {
        self.connect_seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn accept_failed(&self, errno: &'static str) {
        self.accept_errors.get_or_create(&ErrnoLabel { errno }).inc();
    }

    /// Asks the kernel about this process, for [`Self::text`]. The call may block.
    pub(crate) fn process(&self) -> Process {
        Process::read(self.started)
    }

    /// Returns the current metrics in the OpenMetrics text format.
    pub(crate) async fn text(&self, process: Process) -> Result<String, fmt::Error> {
        let mut text = self.totals().await?;
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process));
        text::encode(&mut text, &registry)?;
        Ok(text)
    }

    /// Returns the metrics that do not describe the process. [`LiveSeries`] defines the names and
    /// help texts of those that it collects.
    pub(crate) async fn totals(&self) -> Result<String, fmt::Error> {
        let mut live = Registry::with_prefix(PREFIX);
        let series = LiveSeries::new(&self.traffic, Arc::clone(&self.admission)).await;
        live.register_collector(Box::new(series));
        live.register_collector(Box::new(UserSeries(Arc::clone(&self.accounts))));
        let balancers = self.balancers.lock().unwrap_or_else(PoisonError::into_inner);
        live.register_collector(Box::new(Backends::of(&balancers)));
        drop(balancers);
        let mut text = String::new();
        text::encode_registry(&mut text, &self.registry)?;
        text::encode_registry(&mut text, &live)?;
        Ok(self.continued.add_to(text))
    }

    /// Continues from the [totals](Self::totals) of an earlier process.
    pub(crate) fn continue_from(&self, totals: &str) {
        self.continued.replace(totals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_series_have_the_documented_names() {
        let admission = Admission::new("sessions", 10, None);
        let metrics = Metrics::new(admission, Arc::default());
        metrics.traffic("socks5");
        metrics.reloaded(false);
        metrics.session_began("socks5");
        metrics.session_began("socks5");
        metrics.session_ended("socks5", SessionEnd::ConnectFailed("ECONNREFUSED"));
        metrics.session_began("socks5");
        metrics.session_ended("socks5", SessionEnd::Denied("command"));
        metrics.connected(Duration::from_millis(3));
        metrics.accept_failed("EMFILE");
        let text = metrics.text(metrics.process()).await.unwrap();
        for line in [
            r#"spliceway_bytes_total{service="socks5",direction="up",path="splice"} 0"#,
            r#"spliceway_bytes_total{service="socks5",direction="down",path="copy"} 0"#,
            r#"spliceway_connections_active{service="socks5"} 1"#,
            r#"spliceway_connections_total{service="socks5",end="connect_failed:ECONNREFUSED"} 1"#,
            r#"spliceway_refused_total{service="socks5",reason="command"} 1"#,
            r#"spliceway_lost_bytes_total{service="socks5",direction="up"} 0"#,
            r#"spliceway_connect_seconds_bucket{le="0.005"} 1"#,
            "spliceway_connect_seconds_count 1",
            r#"spliceway_accept_errors_total{errno="EMFILE"} 1"#,
            r#"spliceway_fallback_total{reason="pipe_budget"} 0"#,
            r#"spliceway_pipes{state="lent"} 0"#,
            r#"spliceway_pipes{state="idle"} 0"#,
            r#"spliceway_datagrams_total{service="socks5",direction="up"} 0"#,
            "spliceway_connections_max 10",
            "spliceway_admission_waits_total 0",
            r#"spliceway_log_lines_dropped_total{log="main"} 0"#,
            r#"spliceway_log_lines_dropped_total{log="access"} 0"#,
            r#"spliceway_log_reopens_total{result="ok"} 0"#,
            r#"spliceway_log_reopens_total{result="failed"} 0"#,
            r#"spliceway_reloads_total{result="ok"} 0"#,
            r#"spliceway_reloads_total{result="refused"} 1"#,
            "spliceway_pipe_pages 0",
            r#"spliceway_pool_total{event="created"} 0"#,
            r#"spliceway_pool_total{event="denied_emfile"} 0"#,
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }
}
