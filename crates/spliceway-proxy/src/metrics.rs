//! The metrics for Prometheus.
//!
//! The session counters change when an event happens. The byte counters do not, because each relay
//! counts its own bytes. A scrape adds the bytes of the running relays to those of the ended relays
//! ([`Traffic`]).

mod backends;
mod continued;
mod exposition;
mod process;
mod series;
mod services;
mod traffic;

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use crate::access::accounts::{Accounts, UserSeries};
use crate::access::admission::Admission;
use crate::kit::outcome::SessionEnd;
use crate::reach::balance::Balancer;
use backends::Backends;
use continued::Continued;
pub(crate) use exposition::Exposition;
pub(crate) use process::Process;
use series::LiveSeries;
use services::AllTraffic;
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
    connect_seconds: Histogram,
    accept_errors: Family<ErrnoLabel, Counter>,
    reloads: Family<ReloadLabel, Counter>,
    admission: Arc<Admission>,
    accounts: Arc<Accounts>,
    /// The traffic of each service that has series.
    traffic: AllTraffic,
    /// The backends of the services that run now.
    balancers: Mutex<Vec<Arc<Balancer>>>,
    /// The counters of the process that has handed over to this one.
    continued: Continued,
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

    /// Returns the traffic of the service with this name. A name that still has series continues.
    pub(crate) fn traffic(&self, service: &'static str) -> Arc<Traffic> {
        self.sweep();
        self.traffic.of(service)
    }

    /// Returns the traffic of all services that have series.
    pub(crate) fn all_traffic(&self) -> Vec<Arc<Traffic>> {
        self.traffic.all()
    }

    /// Removes the series of services that are gone.
    fn sweep(&self) {
        self.traffic.sweep(Instant::now());
    }

    /// Records the balancers of the services that run from now on.
    pub(crate) fn balance(&self, balancers: Vec<Arc<Balancer>>) {
        *self.balancers.lock() = balancers;
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

    /// Returns the number of open sessions of all services.
    pub(crate) fn open(&self) -> u64 {
        self.traffic.all().iter().map(|traffic| traffic.active()).sum()
    }

    /// Returns the number of sessions that the stop of the program has cut. A session that is still
    /// open at the end is one of them.
    pub(crate) fn cut(&self) -> u64 {
        let all = self.traffic.all();
        let drained: u64 = all.iter().map(|traffic| traffic.ended(SessionEnd::Drained)).sum();
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
        self.sweep();
        let mut live = Registry::with_prefix(PREFIX);
        let series = LiveSeries::new(&self.traffic, Arc::clone(&self.admission)).await;
        live.register_collector(Box::new(series));
        live.register_collector(Box::new(UserSeries(Arc::clone(&self.accounts))));
        let balancers = self.balancers.lock();
        live.register_collector(Box::new(Backends::of(&balancers)));
        drop(balancers);
        let mut text = String::new();
        text::encode_registry(&mut text, &self.registry)?;
        text::encode_registry(&mut text, &live)?;
        let services: Vec<_> = self.traffic.all().iter().map(|traffic| traffic.service()).collect();
        Ok(self.continued.add_to(text, &services, Instant::now()))
    }

    /// Continues from the [totals](Self::totals) of an earlier process.
    pub(crate) fn continue_from(&self, totals: &str) {
        self.continued.replace(totals, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::refusal::Refusal;

    #[tokio::test]
    async fn the_series_have_the_documented_names() {
        let admission = Admission::new("sessions", 10, None);
        let metrics = Metrics::new(admission, Arc::default());
        let traffic = metrics.traffic("socks5");
        metrics.reloaded(false);
        traffic.session_began();
        traffic.session_began();
        traffic.session_ended(SessionEnd::ConnectFailed("ECONNREFUSED"));
        traffic.session_began();
        traffic.session_ended(SessionEnd::Denied(Refusal::Command));
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
