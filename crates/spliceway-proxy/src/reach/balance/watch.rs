//! The tasks of a balancer: checks of its backends at intervals, and lookups of its names.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use spliceway_protocol::address::Target;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::backend::Backend;
use super::balancer::{Balancer, Entry};
use super::check::CheckSettings;
use super::members::watch_name;
use super::probe::{Probe, Unhealthy};
use super::settings::Members;
use crate::reach::dial::{Destination, DialRequest, Dialer, TlsRequest};
use crate::tls::client::PeerName;

/// The most checks of a service that run at the same time. Each needs a descriptor.
const RUNNING_MAX: usize = 32;

/// A certificate that expires within this time causes a warning.
const SOON: Duration = DAY.saturating_mul(14);
/// The time after which a warning is repeated.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Balancer {
    /// Returns whether there are names to look up, or backends to check.
    pub(crate) fn needs_tasks(&self) -> bool {
        self.settings.check.is_some() || self.names().next().is_some()
    }

    /// Looks up the names again and again, and checks the backends. Never returns.
    pub(crate) async fn watch(self: Arc<Self>, dialer: Dialer) {
        let mut tasks = JoinSet::new();
        if let Some(check) = &self.settings.check {
            tasks.spawn(watch_checks(Arc::clone(&self), check.clone(), dialer.clone()));
        }
        for name in self.names() {
            tasks.spawn(watch_name(Arc::clone(&self), name.clone(), dialer.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    /// Records the result of a check.
    pub(super) fn record_check(
        self: &Arc<Self>,
        backend: &Backend,
        settings: &CheckSettings,
        result: Result<(), Unhealthy>,
    ) {
        let changed = backend.record_check(&result, settings);
        let (service, backend) = (self.service(), backend.name());
        match (changed, result) {
            (Some(true), _) => tracing::info!(service, backend, "a backend is up again"),
            (Some(false), Err(error)) => tracing::warn!(service, backend, %error, "a backend is down"),
            _ => return,
        }
        // Clients that wait may get this backend now, or a backup in its place.
        self.serve_queue();
    }

    /// Returns the backends with their targets, and with the hosts that their checks ask for. The
    /// first port of a range stands for all.
    pub(super) fn targets(&self) -> Vec<(Arc<Backend>, Destination, Target)> {
        // A server may serve several names, so an address of a name is asked for the name.
        let check = |entry: &Entry| {
            let (target, tls) = (entry.settings.targets.nth(0), entry.settings.tls.clone());
            let name = self.names().find(|name| name.name == entry.group);
            let name = name.filter(|name| name.members == Members::EachAddress);
            let host = name.map_or_else(|| target.clone(), |name| name.targets.nth(0));
            (Arc::clone(&entry.backend), Destination { target, tls }, host)
        };
        self.inner.lock().entries.iter().map(check).collect()
    }
}

/// Checks the backends of a balancer, and follows changes of its members. Never returns.
async fn watch_checks(balancer: Arc<Balancer>, settings: CheckSettings, dialer: Dialer) {
    let (settings, permits) = (Arc::new(settings), Arc::new(Semaphore::new(RUNNING_MAX)));
    let mut running: Vec<(Arc<Backend>, AbortHandle)> = Vec::new();
    let mut tasks = JoinSet::new();
    loop {
        let current = balancer.targets();
        running.retain(|(backend, task)| {
            let stays = current.iter().any(|(one, ..)| Arc::ptr_eq(one, backend));
            if !stays {
                task.abort();
            }
            stays
        });
        for (backend, to, host) in current {
            if running.iter().any(|(one, _)| Arc::ptr_eq(one, &backend)) {
                continue;
            }
            let tls = match settings.probe {
                Probe::Tls => Some(to.tls.unwrap_or_else(|| PeerName::of(&host))),
                // It says hello itself, and accepts any certificate.
                Probe::TlsHello => None,
                Probe::Connect | Probe::Http(..) | Probe::Send(..) => to.tls,
            };
            let task = Task {
                balancer: Arc::clone(&balancer),
                settings: Arc::clone(&settings),
                backend: Arc::clone(&backend),
                tls,
                target: to.target,
                host,
                dialer: dialer.clone(),
                permits: Arc::clone(&permits),
            };
            running.push((backend, tasks.spawn(task.run())));
        }
        tokio::select! {
            () = balancer.members_changed.notified() => {}
            Some(Err(error)) = tasks.join_next() => if error.is_panic() {
                std::panic::resume_unwind(error.into_panic());
            },
        }
    }
}

/// The checks of one backend.
struct Task {
    balancer: Arc<Balancer>,
    settings: Arc<CheckSettings>,
    backend: Arc<Backend>,
    target: Target,
    /// The name that its certificate must have. `None` means that the check has no TLS.
    tls: Option<PeerName>,
    /// What a check of HTTP asks for.
    host: Target,
    dialer: Dialer,
    permits: Arc<Semaphore>,
}

/// When the operator was told that the certificate of a backend will expire.
#[derive(Default)]
struct ExpiryWarning(Option<Instant>);

impl ExpiryWarning {
    /// Returns what the operator should know, if that is not told already.
    fn about(&mut self, expires: SystemTime) -> Option<String> {
        let left = expires.duration_since(SystemTime::now());
        let was_told = self.0.is_some_and(|told| told.elapsed() < DAY);
        if was_told || left.as_ref().is_ok_and(|left| *left >= SOON) {
            return None;
        }
        self.0 = Some(Instant::now());
        Some(match left {
            Ok(left) => format!("expires in {} days", left.as_secs() / DAY.as_secs()),
            Err(_) => "has expired".to_owned(),
        })
    }
}

impl Task {
    async fn run(self) {
        // The first check comes soon. After it, the checks of many backends are spread over the
        // whole interval.
        let mut wait = self.settings.interval.mul_f64(rand::random_range(0.0..0.1));
        let mut shortest = 0.1;
        let mut expiry = ExpiryWarning::default();
        loop {
            sleep(wait).await;
            match self.check(&mut expiry).await {
                // With this, all backends would be down, and none of them is at fault.
                Err(Unhealthy::Unreachable(error)) if error.is_of_this_machine() => {
                    let (service, target) = (self.balancer.service(), &self.target);
                    tracing::debug!(service, %target, %error, "a check cannot run");
                }
                checked => self.balancer.record_check(&self.backend, &self.settings, checked),
            }
            wait = self.settings.interval.mul_f64(rand::random_range(shortest..1.1));
            shortest = 0.9;
        }
    }

    async fn check(&self, expiry: &mut ExpiryWarning) -> Result<(), Unhealthy> {
        let _permit = self.permits.acquire().await;
        let check = async {
            let introduction = &self.settings.introduction[..];
            let request = DialRequest {
                tls: self.tls.as_ref().map(|name| TlsRequest {
                    name,
                    introduction,
                    protocol: None,
                    is_check: true,
                }),
                ..DialRequest::default()
            };
            let dialed = self.dialer.dial_for(&self.target, request).await;
            let dialed = dialed.map_err(Unhealthy::Unreachable)?;
            let expires = dialed.tls.as_ref().and_then(|tls| tls.agreed.expires);
            if let Some(when) = expires.and_then(|expires| expiry.about(expires)) {
                let (service, target) = (self.balancer.service(), &self.target);
                tracing::warn!(service, %target, "the certificate of a backend {when}");
            }
            // With TLS, the backend has the introduction.
            let introduction = if self.tls.is_some() { &[] } else { introduction };
            self.settings.probe.run(dialed, introduction, &self.host).await
        };
        let checked = timeout(self.settings.interval, check).await;
        checked.unwrap_or(Err(Unhealthy::TooSlow))
    }
}
