//! The state of the whole program, for the admin socket and the status page: totals, and rates over
//! the last seconds.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use spliceway::{PipePool, Reason};
use spliceway_operator::api;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::kit::health::State;
use crate::metrics::{Totals, Traffic};
use crate::monitor::admin::view;
use crate::monitor::earlier;
use crate::reach::balance::{BackendState, BackendStatus};
use crate::session::{Process, Service, Session};

/// The time between two samples. Rates are over [`SAMPLES`] of them.
const EVERY: Duration = Duration::from_secs(1);
const SAMPLES: usize = 5;
/// The most sessions that are looked at after one sample, for their idle time. It takes about 3 ms.
const OBSERVED_MAX: usize = 16_384;

/// The users of one status. `spliceway users` lists all of them.
const USERS: usize = 10;

const DRAINING: &str = "draining";
/// The state of a service that the configuration no longer has, and that still has sessions.
const REMOVED: &str = "removed";

/// Everything that describes the state of this run.
pub(crate) struct Overview {
    pub(crate) process: Arc<Process>,
    /// The services that run now. A reload replaces them.
    services: Mutex<Arc<Vec<Served>>>,
    started: Instant,
    /// The last samples, the oldest first.
    samples: Mutex<VecDeque<Sample>>,
}

/// A service and its listeners.
pub(crate) struct Served {
    pub(crate) service: Arc<Service>,
    pub(crate) listen: Vec<String>,
}

/// The totals of each service at about one moment, by the name of the service.
#[derive(Clone)]
struct Sample {
    at: Instant,
    totals: HashMap<&'static str, Totals>,
}

impl Overview {
    pub(crate) fn new(process: Arc<Process>) -> Self {
        Self {
            process,
            services: Mutex::default(),
            started: Instant::now(),
            samples: Mutex::default(),
        }
    }

    /// Records the services that run from now on.
    pub(crate) fn serve(&self, services: Vec<Served>) {
        let balancers = services.iter().filter_map(|served| served.service.balancer.clone());
        self.process.metrics.balance(balancers.collect());
        let terminators = services.iter().filter_map(|served| {
            let service = &served.service;
            Some((service.name, Arc::clone(service.tls.as_ref()?)))
        });
        self.process.metrics.terminate(terminators.collect());
        *self.services.lock() = Arc::new(services);
        // A reload has freed the settings before, which may have a million rules.
        self.process.sessions.heap().trim_soon();
    }

    /// Returns the services that run now.
    pub(crate) fn services(&self) -> Arc<Vec<Served>> {
        Arc::clone(&self.services.lock())
    }

    /// Takes samples until it is dropped.
    pub(super) async fn watch(&self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut slot = 0;
        loop {
            ticks.tick().await;
            let sample = self.sample().await;
            {
                let mut samples = self.samples.lock();
                samples.truncate(SAMPLES);
                samples.push_front(sample);
            }
            slot = self.observe(slot).await;
        }
    }

    /// Looks at sessions from `slot` on, so that their idle times are known. Returns where to
    /// continue.
    async fn observe(&self, slot: usize) -> usize {
        let (now, mut observed) = (Instant::now(), 0);
        let visit = |slot, session: &Arc<Session>| {
            if observed == OBSERVED_MAX {
                return ControlFlow::Break(slot);
            }
            session.observe(now);
            observed += 1;
            ControlFlow::Continue(())
        };
        let continued = self.process.sessions.visit(slot, visit).await;
        continued.break_value().unwrap_or(0)
    }

    async fn sample(&self) -> Sample {
        let mut totals = HashMap::new();
        for traffic in self.process.metrics.all_traffic() {
            totals.insert(traffic.service(), traffic.totals().await);
        }
        Sample {
            at: Instant::now(),
            totals,
        }
    }

    /// Returns the state now.
    pub(crate) async fn status(&self) -> api::Status {
        let sample = self.sample().await;
        self.status_at(&sample)
    }

    /// Returns the state at the last sample, without what only the operator may see: listeners,
    /// backends, the process, and which part has failed.
    pub(super) fn aggregates(&self) -> api::Status {
        let Some(sample) = self.samples.lock().front().cloned() else {
            return api::Status::default();
        };
        let mut status = self.status_at(&sample);
        status.state = self.process.health.state().name().to_owned();
        status.pid = None;
        status.users.clear();
        for service in &mut status.services {
            service.listen.clear();
            service.backends.clear();
            service.tls = None;
        }
        status
    }

    fn status_at(&self, sample: &Sample) -> api::Status {
        let state = self.process.health.state();
        let before = self.samples.lock().back().cloned();
        let before = before.filter(|before| before.at < sample.at);
        let served = self.services();
        // A service that was added after the sample is in the next one.
        let counts = |traffic: &Traffic| {
            let name = traffic.service();
            let before = before.as_ref().and_then(|before| {
                let totals = before.totals.get(name)?;
                Some((totals, sample.at - before.at))
            });
            Some(counts(traffic, sample.totals.get(name)?, before))
        };
        let running = served.iter().filter_map(|served| {
            let mut status = service(served, counts(&served.service.traffic)?);
            if state != State::Serving {
                status.state = DRAINING.to_owned();
            }
            Some(status)
        });
        let known = self.process.metrics.all_traffic();
        let is_served = |name| served.iter().any(|served| served.service.name == name);
        let removed = known
            .iter()
            .filter(|traffic| traffic.active() > 0 && !is_served(traffic.service()));
        let removed = removed.filter_map(|traffic| {
            Some(api::ServiceStatus {
                state: REMOVED.to_owned(),
                ..counts(traffic)?
            })
        });
        let services: Vec<_> = running.chain(removed).collect();
        let sum = |of: fn(&api::ServiceStatus) -> u64| services.iter().map(of).sum();
        let uptime = sample.at.saturating_duration_since(self.started);
        let mut status = api::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: Some(std::process::id()),
            started: view::when(SystemTime::now().checked_sub(self.started.elapsed())),
            uptime_seconds: uptime.as_secs_f64(),
            ready: self.is_ready(),
            state: state.to_string(),
            sessions: api::SessionCounts {
                active: sum(|service| service.sessions.active),
                total: sum(|service| service.sessions.total),
                waits: self.process.admission.waits(),
            },
            rates: all(services.iter().map(|service| &service.rates)),
            services,
            pipes: pipes(),
            fallbacks: fallbacks(&sample.totals),
            limits: api::Limits {
                sessions: self.process.admission.max() as u64,
                descriptors: self.process.descriptors as u64,
                pipes: PipePool::global().limits().max_pipes as u64,
                pipe_pages: PipePool::global().limits().max_pages as u64,
            },
            log: api::LogStatus {
                level: crate::log::level(),
                lines_dropped: crate::log::dropped().iter().map(|(_, count)| count).sum(),
            },
            quotas_are_saved: self.process.accounts.are_saved(),
            users: self.process.accounts.statuses("", USERS),
        };
        self.process
            .metrics
            .with_earlier(|earlier| earlier::continue_status(&mut status, earlier));
        status
    }

    /// Returns whether the program serves, and at least one service accepts clients.
    pub(super) fn is_ready(&self) -> bool {
        let accepts = self.services().iter().any(|served| served.service.accepting.is_on());
        accepts && self.process.health.state() == State::Serving
    }

    /// Returns whether the program drains, and another one may serve in its place.
    pub(super) fn is_draining(&self) -> bool {
        self.process.health.state() == State::Draining
    }
}

/// Returns the state of a service that runs, with these counts.
fn service(served: &Served, counts: api::ServiceStatus) -> api::ServiceStatus {
    let service = &served.service;
    api::ServiceStatus {
        listen: served.listen.clone(),
        state: if service.accepting.is_on() {
            "accepting"
        } else {
            DRAINING
        }
        .to_owned(),
        backends: service
            .balancer
            .iter()
            .flat_map(|balancer| balancer.status())
            .map(backend)
            .collect(),
        waiting: service
            .balancer
            .as_ref()
            .map_or(0, |balancer| balancer.waiting() as u64),
        tls: service.tls.as_deref().map(view::tls),
        ..counts
    }
}

/// Returns what a service has counted, whether or not it runs.
fn counts(traffic: &Traffic, totals: &Totals, before: Option<(&Totals, Duration)>) -> api::ServiceStatus {
    let (up, down) = (totals.bytes.up, totals.bytes.down);
    api::ServiceStatus {
        name: traffic.service().to_owned(),
        sessions: api::SessionCounts {
            active: traffic.active(),
            total: totals.sessions,
            waits: 0,
        },
        bytes_up: bytes_up(totals),
        bytes_down: bytes_down(totals),
        spliced_up: up.splice,
        spliced_down: down.splice,
        lost_up: up.lost,
        lost_down: down.lost,
        datagrams_up: totals.datagrams.up.datagrams,
        datagrams_down: totals.datagrams.down.datagrams,
        rates: before.map_or_else(api::Rates::default, |(before, time)| rates(totals, before, time)),
        ..api::ServiceStatus::default()
    }
}

fn backend(status: BackendStatus) -> api::Backend {
    api::Backend {
        name: status.name.into(),
        state: match status.state {
            BackendState::Up => "up",
            BackendState::Draining => "draining",
            BackendState::Ejected => "ejected",
            BackendState::Down => "down",
        }
        .to_owned(),
        weight: status.weight,
        backup: status.is_backup,
        sessions: status.sessions.into(),
        connections: status.connections,
        failures: status.failures.iter().sum(),
        ejections: status.ejections,
    }
}

/// Returns the bytes of connections and datagrams that targets have received.
fn bytes_up(totals: &Totals) -> u64 {
    totals.bytes.up.splice + totals.bytes.up.copy + totals.datagrams.up.bytes
}

/// Returns the bytes of connections and datagrams that clients have received.
fn bytes_down(totals: &Totals) -> u64 {
    totals.bytes.down.splice + totals.bytes.down.copy + totals.datagrams.down.bytes
}

fn rates(now: &Totals, before: &Totals, time: Duration) -> api::Rates {
    let seconds = time.as_secs_f64();
    let per_second = |count: fn(&Totals) -> u64| count(now).saturating_sub(count(before)) as f64 / seconds;
    api::Rates {
        over_seconds: seconds,
        bytes_up: per_second(bytes_up),
        bytes_down: per_second(bytes_down),
        spliced: per_second(|totals| totals.bytes.up.splice + totals.bytes.down.splice),
        sessions: per_second(|totals| totals.sessions),
    }
}

fn all<'a>(services: impl Iterator<Item = &'a api::Rates>) -> api::Rates {
    services.fold(api::Rates::default(), |sum, rates| api::Rates {
        over_seconds: rates.over_seconds,
        bytes_up: sum.bytes_up + rates.bytes_up,
        bytes_down: sum.bytes_down + rates.bytes_down,
        spliced: sum.spliced + rates.spliced,
        sessions: sum.sessions + rates.sessions,
    })
}

fn pipes() -> api::Pipes {
    let stats = PipePool::global().stats();
    api::Pipes {
        lent: stats.lent as u64,
        idle: stats.idle as u64,
        pages: stats.pages as u64,
        created: stats.created,
        reused: stats.reused,
        denied: stats.denied.iter().map(|(_, count)| count).sum(),
    }
}

fn fallbacks(totals: &HashMap<&str, Totals>) -> Vec<api::Fallback> {
    let counts = Reason::ALL
        .into_iter()
        .enumerate()
        .map(|(index, reason)| api::Fallback {
            reason: reason.to_string(),
            count: totals.values().map(|totals| totals.fallbacks[index]).sum(),
        });
    counts.collect()
}
