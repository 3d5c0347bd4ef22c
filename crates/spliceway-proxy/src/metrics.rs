//! The metrics for Prometheus.
//!
//! The session counters change when an event happens. The byte counters do not, because each relay
//! counts its own bytes. A scrape adds the bytes of the running relays to those of the ended relays
//! ([`Traffic`]). It also adds the counters of the process that has handed over to this one.

mod exposition;
mod histogram;
mod mirrors;
mod process;
mod samples;
mod series;
mod services;
mod traffic;

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::access::accounts::Accounts;
use crate::access::admission::Admission;
use crate::kit::outcome::SessionEnd;
use crate::net::kernel_support::Switch;
use crate::reach::balance::Balancer;
use crate::tls::server::Terminator;
pub(crate) use exposition::Exposition;
use histogram::Histogram;
pub(crate) use histogram::Times;
pub(crate) use mirrors::{MirrorCounts, MirrorResult};
pub(crate) use process::ProcessMetrics;
use samples::Labels;
pub(crate) use samples::Samples;
pub(crate) use series::BEGUN;
use series::Now;
use services::{AllTraffic, KEPT_FOR};
pub(crate) use traffic::{DnsResult, Totals, Traffic};

/// What the name of every metric begins with.
const PREFIX: &str = "spliceway";

/// All metrics of this process.
pub(crate) struct Metrics {
    started: SystemTime,
    connect_times: Histogram,
    tls_handshake_times: Histogram,
    /// What has become of TLS connections that the kernel should take over.
    switches: Mutex<BTreeMap<&'static str, u64>>,
    /// The failures of accept(2) by errno.
    accept_errors: Mutex<BTreeMap<&'static str, u64>>,
    /// The reloads that are in force, and those that were refused.
    reloaded: AtomicU64,
    refused: AtomicU64,
    /// Whether the last reload was refused.
    has_refused: AtomicBool,
    /// The upgrades that this process has taken over by, and those that it could not hand over by.
    upgraded: AtomicU64,
    not_upgraded: AtomicU64,
    admission: Arc<Admission>,
    accounts: Arc<Accounts>,
    /// The traffic of each service that has series.
    traffic: AllTraffic,
    /// The backends of the services that run now.
    balancers: Mutex<Vec<Arc<Balancer>>>,
    terminators: Mutex<Vec<(Arc<str>, Arc<Terminator>)>>,
    /// The counters of the process that has handed over to this one, and when they came.
    earlier: Mutex<(Samples, Option<Instant>)>,
    /// Whether a warning has said that they cannot be read.
    has_warned: AtomicBool,
}

impl Metrics {
    pub(crate) fn new(admission: Arc<Admission>, accounts: Arc<Accounts>) -> Self {
        Self {
            started: SystemTime::now(),
            connect_times: Histogram::default(),
            tls_handshake_times: Histogram::default(),
            switches: Mutex::default(),
            accept_errors: Mutex::default(),
            reloaded: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            upgraded: AtomicU64::new(0),
            not_upgraded: AtomicU64::new(0),
            admission,
            accounts,
            traffic: AllTraffic::default(),
            balancers: Mutex::default(),
            terminators: Mutex::default(),
            earlier: Mutex::default(),
            has_refused: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
        }
    }

    /// Returns the traffic of the service with this name. A name that still has series continues.
    pub(crate) fn traffic(&self, service: &str) -> Arc<Traffic> {
        self.traffic.of_service(service)
    }

    /// Returns the traffic of all services that have series.
    pub(crate) fn all_traffic(&self) -> Vec<Arc<Traffic>> {
        self.traffic.all()
    }

    /// Removes the series of services that are gone.
    fn sweep(&self) {
        self.traffic.sweep(Instant::now());
    }

    /// Records what terminates the TLS of the services that run from now on, by their names.
    pub(crate) fn terminate(&self, terminators: Vec<(Arc<str>, Arc<Terminator>)>) {
        *self.terminators.lock() = terminators;
    }

    /// Records the balancers of the services that run from now on.
    pub(crate) fn balance(&self, balancers: Vec<Arc<Balancer>>) {
        *self.balancers.lock() = balancers;
        self.sweep();
    }

    /// Cancels all running relays and associations of all services, and returns their number. See
    /// [`Traffic::cancel`].
    pub(crate) fn cancel_all(&self, deadline: Duration) -> usize {
        self.traffic.all().iter().map(|traffic| traffic.cancel(deadline)).sum()
    }

    pub(crate) fn reloaded(&self, is_in_force: bool) {
        let count = if is_in_force { &self.reloaded } else { &self.refused };
        count.fetch_add(1, Ordering::Relaxed);
        self.has_refused.store(!is_in_force, Ordering::Relaxed);
    }

    /// Records that this process has taken over from another one, or that its own hand-over has
    /// failed. So each upgrade counts once.
    pub(crate) fn upgraded(&self, is_done: bool) {
        let count = if is_done { &self.upgraded } else { &self.not_upgraded };
        count.fetch_add(1, Ordering::Relaxed);
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
        self.connect_times.observe(time);
    }

    /// Returns the times of connects so far.
    pub(crate) fn connect_times(&self) -> Times {
        self.connect_times.times()
    }

    /// Records the time of a TLS handshake that has succeeded.
    pub(crate) fn shook_hands(&self, time: Duration) {
        self.tls_handshake_times.observe(time);
    }

    /// Counts a TLS connection that the kernel should take over.
    pub(crate) fn switched(&self, result: Switch) {
        *self.switches.lock().entry(result.as_str()).or_insert(0) += 1;
    }

    pub(crate) fn accept_failed(&self, errno: &'static str) {
        *self.accept_errors.lock().entry(errno).or_insert(0) += 1;
    }

    /// Asks the kernel about this process, for [`Self::text`]. The call may block.
    pub(crate) fn process(&self) -> ProcessMetrics {
        ProcessMetrics::read(self.started)
    }

    /// Returns the current metrics in the OpenMetrics text format.
    pub(crate) async fn text(&self, process: ProcessMetrics) -> Result<String, fmt::Error> {
        let mut own = Registry::with_prefix(PREFIX);
        own.register_collector(Box::new(self.now().await));
        let mut text = String::new();
        text::encode_registry(&mut text, &own)?;
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process));
        text::encode(&mut text, &registry)?;
        Ok(text)
    }

    /// Returns all counters as JSON, for a process that [continues](Self::continue_from) them.
    pub(crate) async fn totals(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.now().await.counters)
    }

    /// Continues from the [totals](Self::totals) of an earlier process. Its last ones count.
    pub(crate) fn continue_from(&self, totals: &str) {
        match serde_json::from_str(totals) {
            Ok(counters) => *self.earlier.lock() = (counters, Some(Instant::now())),
            // The old process sends them several times.
            Err(error) if !self.has_warned.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "the old process has other counters: they begin again");
            }
            Err(_) => {}
        }
    }

    /// Passes on the counters of the process that has handed over to this one.
    pub(crate) fn with_earlier(&self, see: impl FnOnce(&Samples)) {
        see(&self.earlier.lock().0);
    }

    /// Returns what is counted now, together with the earlier process.
    async fn now(&self) -> Now {
        self.sweep();
        let mut now = Now::default();
        now.traffic(&self.traffic).await;
        now.admission(&self.admission);
        now.log();
        now.pool();
        now.users(&self.accounts);
        now.backends(&self.balancers.lock());
        let ends_tls = {
            let terminators = self.terminators.lock();
            now.tls(&terminators);
            !terminators.is_empty()
        };
        let has_refused = self.has_refused.load(Ordering::Relaxed);
        now.gauges.add("last_reload_refused", &[], has_refused.into());
        let counters = &mut now.counters;
        self.connect_times.count(&histogram::CONNECT, counters);
        if ends_tls {
            self.tls_handshake_times.count(&histogram::TLS_HANDSHAKE, counters);
        }
        for (result, count) in &*self.switches.lock() {
            counters.add("kernel_tls", &[("result", result)], *count);
        }
        for (errno, count) in &*self.accept_errors.lock() {
            counters.add("accept_errors", &[("errno", errno)], *count);
        }
        for (result, count) in [("ok", &self.reloaded), ("refused", &self.refused)] {
            counters.add("reloads", &[("result", result)], count.load(Ordering::Relaxed));
        }
        for (result, count) in [("ok", &self.upgraded), ("failed", &self.not_upgraded)] {
            counters.add("upgrades", &[("result", result)], count.load(Ordering::Relaxed));
        }
        let (earlier, since) = &*self.earlier.lock();
        let is_late = since.is_some_and(|since| since.elapsed() >= KEPT_FOR);
        let services = self.traffic.all().iter().map(|traffic| traffic.name()).collect();
        counters.add_earlier(earlier, |labels| is_late && is_gone(labels, &services));
        now
    }
}

/// Returns whether this process, with these services, can have no such sample any more. It has one
/// for every backend and every user that it knows.
fn is_gone(labels: &Labels, services: &HashSet<Arc<str>>) -> bool {
    labels.iter().any(|(name, value)| match &**name {
        "service" => !services.contains(value.as_str()),
        name => matches!(name, "backend" | "user"),
    })
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let build = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        encoder
            .encode_descriptor("build", "The running build", None, MetricType::Info)?
            .encode_info(&build)?;
        for names in [&histogram::CONNECT, &histogram::TLS_HANDSHAKE] {
            histogram::encode(names, &self.counters, &mut encoder)?;
        }
        self.counters
            .encode(&mut encoder, MetricType::Counter, series::COUNTERS)?;
        self.gauges.encode(&mut encoder, MetricType::Gauge, series::GAUGES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::outcome::ConnectFailure;
    use crate::kit::refusal::Refusal;
    use rustix::io::Errno;

    #[tokio::test]
    async fn the_series_have_the_documented_names() {
        let admission = Admission::new("sessions", 10, None);
        let metrics = Metrics::new(admission, Arc::default());
        let traffic = metrics.traffic("socks5");
        metrics.reloaded(false);
        traffic.session_began();
        traffic.session_began();
        traffic.session_ended(SessionEnd::ConnectFailed(ConnectFailure::System(Some(
            Errno::CONNREFUSED,
        ))));
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
            "spliceway_last_reload_refused 1",
            r#"spliceway_upgrades_total{result="ok"} 0"#,
            r#"spliceway_upgrades_total{result="failed"} 0"#,
            "spliceway_pipe_pages 0",
            r#"spliceway_pool_total{event="created"} 0"#,
            r#"spliceway_pool_total{event="denied_emfile"} 0"#,
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }

    fn metrics() -> Metrics {
        Metrics::new(Admission::new("sessions", 10, None), Arc::default())
    }

    fn session(metrics: &Metrics, service: &'static str) {
        let traffic = metrics.traffic(service);
        traffic.session_began();
        traffic.session_ended(SessionEnd::Idle);
    }

    #[tokio::test]
    async fn counters_and_histograms_continue_and_gauges_do_not() {
        let (before, now) = (metrics(), metrics());
        session(&before, "here");
        before.traffic("here").session_began();
        session(&now, "here");
        for (metrics, millis) in [(&before, 3), (&now, 4)] {
            metrics.accept_failed("EMFILE");
            metrics.connected(Duration::from_millis(millis));
        }
        now.continue_from(&before.totals().await.unwrap());
        // The text of an older process changes nothing.
        now.continue_from("# TYPE a counter\na_total 1\n");
        let text = now.text(ProcessMetrics::default()).await.unwrap();
        for line in [
            r#"spliceway_connections_active{service="here"} 0"#,
            r#"spliceway_connections_total{service="here",end="idle"} 2"#,
            r#"spliceway_accept_errors_total{errno="EMFILE"} 2"#,
            r#"spliceway_connect_seconds_bucket{le="0.0025"} 0"#,
            r#"spliceway_connect_seconds_bucket{le="0.005"} 2"#,
            r#"spliceway_connect_seconds_bucket{le="+Inf"} 2"#,
            "spliceway_connect_seconds_sum 0.007",
            "spliceway_connect_seconds_count 2",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_only_the_earlier_process_had_is_shown_for_a_while() {
        let (before, now) = (metrics(), metrics());
        session(&before, "here");
        session(&before, "gone");
        before.accept_failed("EMFILE");
        let _here = now.traffic("here");
        now.continue_from(&before.totals().await.unwrap());
        for is_late in [false, true] {
            let counters = now.now().await.counters;
            let idle = |service| counters.get("connections", &[("service", service), ("end", "idle")]);
            assert_eq!((idle("here"), idle("gone")), (1, u64::from(!is_late)));
            assert_eq!(counters.get("accept_errors", &[("errno", "EMFILE")]), 1);
            // Advances because the clock is paused.
            tokio::time::advance(KEPT_FOR).await;
        }
        let is_gone = |name: &'static str, value: &str| {
            is_gone(&vec![(name.into(), value.to_owned())], &HashSet::from(["here".into()]))
        };
        assert!(is_gone("service", "gone") && is_gone("backend", "here") && is_gone("user", "here"));
        assert!(!is_gone("service", "here") && !is_gone("errno", "EMFILE"));
    }
}
