//! The state of the whole program, for the admin socket and the status page: totals, and rates over
//! the last seconds.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use spliceway::{PipePool, Reason};
use spliceway_operator::api::{self, Health};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::kit::clock;
use crate::kit::health::State;
use crate::metrics::{Times, Totals, Traffic};
use crate::monitor::admin::view;
use crate::monitor::earlier;
use crate::monitor::history::{self, History, Point};
use crate::monitor::recent::{self, LastMinute};
use crate::reach::balance::{BackendState, BackendStatus};
use crate::session::{Process, Service, Session};
use crate::settings::Settings;

/// The time between two samples. Rates are over [`SAMPLES`] of them.
const EVERY: Duration = Duration::from_secs(1);
const SAMPLES: usize = 5;
/// The most sessions that are looked at after one sample, for their idle time. It takes about 3 ms.
const OBSERVED_MAX: usize = 16_384;

/// The users of one status. `spliceway users` lists all of them.
const USERS: usize = 10;
/// The services of a status page: those that need the operator come first. A page with thousands
/// of rows does not help, and its browser could not draw them once per second.
const PAGE_SERVICES_MAX: usize = 100;
/// The services that are described before other tasks of the worker run.
const SLICE: usize = 64;

const DRAINING: &str = "draining";
/// The state of a service that the configuration no longer has, and that still has sessions.
const REMOVED: &str = "removed";

/// Everything that describes the state of this run.
pub(crate) struct Overview {
    pub(crate) process: Arc<Process>,
    /// The services that run now. A reload replaces them.
    services: Mutex<Arc<Vec<Served>>>,
    /// The settings in force. `None` before the start.
    settings: Mutex<Option<Arc<Settings>>>,
    started: Instant,
    /// The name of the machine.
    host: String,
    /// The last samples, the newest first.
    samples: Mutex<VecDeque<Arc<Sample>>>,
    history: Mutex<History>,
    last_minute: Mutex<LastMinute>,
}

/// The reader of a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Operator,
    /// A reader without a login.
    Anyone,
}

/// A service and its listeners.
pub(crate) struct Served {
    pub(crate) service: Arc<Service>,
    pub(crate) listen: Vec<Arc<str>>,
}

/// The totals of each service at about one moment, by the name of the service.
struct Sample {
    at: Instant,
    totals: HashMap<Arc<str>, Totals>,
    connects: Times,
}

impl Overview {
    pub(crate) fn new(process: Arc<Process>) -> Self {
        let started = Instant::now();
        Self {
            process,
            services: Mutex::default(),
            settings: Mutex::default(),
            started,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            samples: Mutex::default(),
            history: Mutex::default(),
            last_minute: Mutex::new(LastMinute::new(started)),
        }
    }

    /// Records the services that run from now on, and their settings.
    pub(crate) fn serve(&self, services: Vec<Served>, settings: Option<Arc<Settings>>) {
        let balancers = services.iter().filter_map(|served| served.service.balancer.clone());
        self.process.metrics.balance(balancers.collect());
        let terminators = services.iter().filter_map(|served| {
            let service = &served.service;
            Some((Arc::clone(&service.name), Arc::clone(service.tls.as_ref()?)))
        });
        self.process.metrics.terminate(terminators.collect());
        *self.services.lock() = Arc::new(services);
        *self.settings.lock() = settings;
        // A reload has freed the settings before, which may have a million rules.
        self.process.sessions.heap().trim_soon();
    }

    /// Returns the services that run now.
    pub(crate) fn services(&self) -> Arc<Vec<Served>> {
        Arc::clone(&self.services.lock())
    }

    /// Returns the settings in force.
    pub(crate) fn settings(&self) -> Option<Arc<Settings>> {
        self.settings.lock().clone()
    }

    /// Takes samples until it is dropped.
    pub(super) async fn watch(&self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut slot = 0;
        loop {
            ticks.tick().await;
            let sample = Arc::new(self.sample().await);
            let before = self.samples.lock().front().cloned();
            if let Some(before) = before.filter(|before| before.at < sample.at) {
                self.history.lock().push(self.point(&sample, &before));
            }
            let all = self.process.metrics.all_traffic();
            self.last_minute.lock().record(&all, sample.at);
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
            totals.insert(traffic.name(), traffic.totals().await);
        }
        Sample {
            at: Instant::now(),
            totals,
            connects: self.process.metrics.connect_times(),
        }
    }

    /// Returns what happened between two samples, over all services.
    fn point(&self, now: &Sample, before: &Sample) -> Point {
        let time = now.at - before.at;
        let none = Totals::default();
        let (mut failed, mut refused, mut all) = (0, 0, api::Rates::default());
        for (service, totals) in &now.totals {
            let before = before.totals.get(service).unwrap_or(&none);
            failed += totals.failed.saturating_sub(before.failed);
            refused += totals.refused.saturating_sub(before.refused);
            all = sum_of_rates([all, rates(totals, before, time)].iter());
        }
        let per_second = |count: u64| (count as f64 / time.as_secs_f64()) as f32;
        let connects = now.connects.since(&before.connects);
        let millis = |seconds: f64| (seconds * 1000.0) as f32;
        let pipes = pipes();
        Point {
            at: history::unix(SystemTime::now()),
            up: all.bytes_up as f32,
            down: all.bytes_down as f32,
            open: u32::try_from(self.process.metrics.open()).unwrap_or(u32::MAX),
            new: all.sessions as f32,
            failed: per_second(failed),
            refused: per_second(refused),
            connect: connects.map_or(f32::NAN, |times| millis(times.mean)),
            connect_most: connects.map_or(f32::NAN, |times| millis(times.most)),
            // Without a byte, this is not a number.
            spliced: (100.0 * all.spliced / (all.bytes_up + all.bytes_down)) as f32,
            lent: u32::try_from(pipes.lent).unwrap_or(u32::MAX),
            idle: u32::try_from(pipes.idle).unwrap_or(u32::MAX),
        }
    }

    /// Returns the time of the last sample, if there is one.
    pub(super) fn sampled(&self) -> Option<Instant> {
        self.samples.lock().front().map(|sample| sample.at)
    }

    /// Returns the last second.
    pub(super) fn last_point(&self) -> Option<Point> {
        self.history.lock().last()
    }

    /// Returns the last 10 minutes.
    pub(super) fn points(&self) -> Vec<Point> {
        self.history.lock().points()
    }

    /// Returns the state now.
    pub(super) async fn status(&self) -> api::Status {
        let sample = self.sample().await;
        self.status_at(&sample, Reader::Operator).await
    }

    /// Returns the state at the last sample, without what only the operator may see: listeners,
    /// backends, the process, and which part has failed. The services that need the operator come
    /// first.
    pub(super) async fn aggregates(&self) -> api::Status {
        let Some(sample) = self.samples.lock().front().cloned() else {
            return api::Status::default();
        };
        let mut status = self.status_at(&sample, Reader::Anyone).await;
        status.state = self.process.health.state().name().to_owned();
        status.pid = None;
        status.services.sort_by_key(|service| service.health);
        let left_out = status.services.len().saturating_sub(PAGE_SERVICES_MAX);
        status.services.truncate(PAGE_SERVICES_MAX);
        status.services_left_out = left_out as u64;
        status
    }

    async fn status_at(&self, sample: &Sample, reader: Reader) -> api::Status {
        let services = self.services_at(sample, reader).await;
        let sum = |of: fn(&api::ServiceStatus) -> u64| services.iter().map(of).sum();
        let uptime = sample.at.saturating_duration_since(self.started);
        let limits = PipePool::global().limits();
        let mut status = api::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.host.clone(),
            pid: Some(std::process::id()),
            time: history::unix(SystemTime::now()),
            started: view::when(SystemTime::now().checked_sub(self.started.elapsed())),
            uptime_seconds: uptime.as_secs_f64(),
            ready: self.is_ready(),
            state: self.process.health.state().to_string(),
            sessions: api::SessionCounts {
                active: sum(|service| service.sessions.active),
                total: sum(|service| service.sessions.total),
                waits: self.process.admission.waits(),
            },
            rates: sum_of_rates(services.iter().map(|service| &service.rates)),
            recent: recent::sum(services.iter().map(|service| &service.recent)),
            services,
            services_left_out: 0,
            pipes: pipes(),
            fallbacks: fallbacks(&sample.totals),
            limits: api::Limits {
                sessions: self.process.admission.max() as u64,
                descriptors: self.process.descriptors as u64,
                pipes: limits.max_pipes as u64,
                pipe_pages: limits.max_pages as u64,
            },
            log: api::LogStatus {
                level: crate::log::level(),
                lines_dropped: crate::log::dropped().iter().map(|(_, count)| count).sum(),
            },
            quotas_are_saved: self.process.accounts.are_saved(),
            users: match reader {
                Reader::Operator => self.process.accounts.statuses("", USERS),
                Reader::Anyone => Vec::new(),
            },
        };
        self.process
            .metrics
            .with_earlier(|earlier| earlier::continue_status(&mut status, earlier));
        status
    }

    async fn services_at(&self, sample: &Sample, reader: Reader) -> Vec<api::ServiceStatus> {
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
            let mut counts = counts(traffic, sample.totals.get(name)?, before);
            counts.recent = self.last_minute.lock().of(traffic, Instant::now());
            counts.health = Health::of(&counts.recent, None);
            Some(counts)
        };
        let mut services = Vec::with_capacity(served.len());
        for slice in served.chunks(SLICE) {
            let running = slice.iter().filter_map(|served| {
                let counts = counts(&served.service.traffic)?;
                let mut status = service(served, reader, counts);
                if state != State::Serving {
                    status.state = DRAINING.to_owned();
                }
                Some(status)
            });
            services.extend(running);
            tokio::task::yield_now().await;
        }
        let is_served: HashSet<_> = served.iter().map(|served| &*served.service.name).collect();
        for traffic in self.process.metrics.all_traffic() {
            if traffic.active() > 0 && !is_served.contains(traffic.service()) {
                let removed = counts(&traffic).map(|counts| api::ServiceStatus {
                    state: REMOVED.to_owned(),
                    ..counts
                });
                services.extend(removed);
            }
        }
        services
    }

    /// Returns whether the program serves, and at least one service accepts clients. A program that
    /// has no service waits for one from its operator.
    pub(super) fn is_ready(&self) -> bool {
        let services = self.services();
        let accepts = match &**services {
            [] => self.settings().is_some(),
            services => services.iter().any(|served| served.service.accepting.is_on()),
        };
        accepts && self.process.health.state() == State::Serving
    }

    /// Returns whether the program drains, and another one may serve in its place.
    pub(super) fn is_draining(&self) -> bool {
        self.process.health.state() == State::Draining
    }
}

/// Returns the state of a service that runs, with these counts.
fn service(served: &Served, reader: Reader, counts: api::ServiceStatus) -> api::ServiceStatus {
    let service = &served.service;
    let is_accepting = service.accepting.is_on();
    let backends = service.balancer.as_ref().map(|balancer| balancer.status());
    let backend_counts = backends.as_deref().map(backend_counts);
    let mut status = api::ServiceStatus {
        state: if is_accepting { "accepting" } else { DRAINING }.to_owned(),
        health: Health::of(&counts.recent, backend_counts),
        backend_counts,
        waiting: service
            .balancer
            .as_ref()
            .map_or(0, |balancer| balancer.waiting() as u64),
        ..counts
    };
    if reader == Reader::Operator {
        status.listen = served.listen.iter().map(ToString::to_string).collect();
        status.backends = backends.into_iter().flatten().map(backend).collect();
        status.tls = service.tls.as_deref().map(view::tls);
    }
    status
}

fn backend_counts(backends: &[BackendStatus]) -> api::BackendCounts {
    let count = |state| backends.iter().filter(|backend| backend.state == state).count() as u64;
    api::BackendCounts {
        up: count(BackendState::Up),
        draining: count(BackendState::Draining),
        all: backends.len() as u64,
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
        trouble: status.trouble.map(|trouble| api::Trouble {
            since: clock::rfc3339_seconds(trouble.since).to_string(),
            for_seconds: trouble.since.elapsed().unwrap_or_default().as_secs(),
            why: trouble.why.into(),
        }),
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

fn sum_of_rates<'a>(services: impl Iterator<Item = &'a api::Rates>) -> api::Rates {
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

fn fallbacks(totals: &HashMap<Arc<str>, Totals>) -> Vec<api::ReasonCount> {
    let counts = Reason::ALL
        .into_iter()
        .enumerate()
        .map(|(index, reason)| api::ReasonCount {
            reason: reason.to_string(),
            count: totals.values().map(|totals| totals.fallbacks[index]).sum(),
        });
    counts.collect()
}
