//! One run of the program, from the first listener to the last session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use spliceway::RelayOptions;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admission::Admission;
use crate::announce;
use crate::auth::Penalties;
use crate::dial::Dialer;
use crate::drain::{Alive, Drain, Drained, StopSignals};
use crate::limits::Descriptors;
use crate::listener::{self, Listener};
use crate::metrics::{Metrics, Traffic, http};
use crate::policy::{OwnListeners, TargetPolicy, Targets};
use crate::rates::RateLimits;
use crate::session::{self, Arrival, Service};
use crate::settings::{ServiceSettings, Settings};

/// What sessions that the drain timeout cuts have to deliver what they hold: 256 KiB, what is held for a sink that is slow, at 1 Mbit/s.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a run did not begin.
#[derive(Debug)]
pub(crate) enum CannotRun {
    /// It is not what it was told to be that stands in the way, but the system.
    System(io::Error),
    /// What it was told is not safe to do.
    Unsafe(String),
}

/// A listener, and which of its service's ports it has: the first, the second …
struct Bound {
    listener: Listener,
    port_index: u16,
}

/// Serves until asked to stop and for the drain timeout at most after that. Sessions that are left then deliver what they hold, and
/// those that cannot end with the runtime. `descriptors` is how many this process may open.
///
/// # Errors
/// A listener that cannot be had, or should not. Nothing after that ends a run.
pub(crate) async fn run(settings: Settings, descriptors: usize) -> Result<(), CannotRun> {
    let mut signals = StopSignals::new()?;
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let bound = bind(&settings).await?;
    let own = own_listeners(&bound)?;
    let shares = Descriptors::of(descriptors, bound.iter().map(Vec::len).sum());
    let admission = admission(&settings, &shares);
    // Services share them, evenly.
    let passing = shares.passing() / settings.services.len().max(1);
    let (services, metrics) = services(&settings, &bound, &own, &admission, passing)?;
    let (stop, stopping) = watch::channel(false);
    if let Some(address) = &settings.metrics {
        for listener in listener::bind(address).await? {
            own.add(&listener)?;
            announce(&format_args!("metrics listening on {}", listener.describe()));
            tokio::spawn(http::serve(listener, Arc::clone(&metrics), stopping.clone()));
        }
    }
    let (alive, drain) = Drain::new();
    let mut accepting = JoinSet::new();
    for (service, bound) in services.iter().zip(bound) {
        for bound in bound {
            announce(&format_args!(
                "{} listening on {}",
                service.kind.name(),
                bound.listener.describe()
            ));
            accepting.spawn(accept(
                bound,
                Arc::clone(service),
                Arc::clone(&admission),
                stopping.clone(),
                alive.clone(),
            ));
        }
    }
    drop(alive);

    signals.next().await;
    stop.send_replace(true);
    // Each closes its listener first, so that the next program can have the address.
    while accepting.join_next().await.is_some() {}
    tracing::info!(limit = ?settings.timeouts.drain, "draining: no new clients, sessions may finish");
    finish(drain, settings.timeouts.drain, &services, &mut signals).await;
    Ok(())
}

/// Lets sessions finish within `limit`.
async fn finish(mut drain: Drain, limit: Duration, services: &[Arc<Service>], signals: &mut StopSignals) {
    let mut drained = drain.wait(limit, signals).await;
    if drained == Drained::TimeUp {
        let transfers: usize = services.iter().map(|service| service.traffic.cancel(LAST_WORDS)).sum();
        tracing::warn!(
            transfers,
            "the drain timeout is over: sessions that are left are cut, and deliver what they hold if they can"
        );
        drained = drain.wait(LAST_WORDS, signals).await;
    }
    match drained {
        Drained::Empty => tracing::info!("drained: every session has ended"),
        Drained::TimeUp => tracing::warn!("some could not: their records say what is lost"),
        Drained::Hurried => tracing::warn!("asked to stop again: sessions that are left are cut at once"),
    }
}

/// Every listener of each service, or none: a run that serves half of what it was told to would pass for one that works.
async fn bind(settings: &Settings) -> io::Result<Vec<Vec<Bound>>> {
    let mut services = Vec::new();
    for service in &settings.services {
        let mut bound = Vec::new();
        for range in &service.listen {
            for (port_index, address) in (0..=u16::MAX).zip(range.iter()) {
                let listeners = listener::bind(&address).await?;
                bound.extend(listeners.into_iter().map(|listener| Bound { listener, port_index }));
            }
        }
        services.push(bound);
    }
    Ok(services)
}

fn own_listeners(bound: &[Vec<Bound>]) -> io::Result<OwnListeners> {
    let own = OwnListeners::default();
    for bound in bound.iter().flatten() {
        own.add(&bound.listener)?;
    }
    Ok(own)
}

fn admission(settings: &Settings, shares: &Descriptors) -> Arc<Admission> {
    tracing::debug!("{shares}");
    let most = shares.sessions();
    let max = settings.limits.max_conns.map_or(most, |asked| {
        if asked.get() > most {
            tracing::warn!(
                asked,
                "--max-conns is more than there are descriptors for: {most}; {shares}"
            );
        }
        asked.get().min(most)
    });
    Admission::new("sessions", max, settings.limits.max_conns_per_ip)
}

fn services(
    settings: &Settings,
    bound: &[Vec<Bound>],
    own: &OwnListeners,
    admission: &Arc<Admission>,
    passing: usize,
) -> Result<(Vec<Arc<Service>>, Arc<Metrics>), CannotRun> {
    let traffic: Vec<_> = settings
        .services
        .iter()
        .map(|service| Arc::new(Traffic::new(service.kind.name())))
        .collect();
    let metrics = Arc::new(Metrics::new(traffic.clone(), Arc::clone(admission)));
    let mut services = Vec::new();
    for ((settled, bound), traffic) in settings.services.iter().zip(bound).zip(traffic) {
        for reason in session::refusals(settled) {
            metrics.may_refuse(settled.kind.name(), reason);
        }
        let clients_are_local = bound.iter().all(|bound| is_local(&bound.listener));
        check_open(settled, clients_are_local)?;
        let targets = match clients_are_local || settled.allow_private {
            true => Targets::Everything,
            false => Targets::Public,
        };
        services.push(Arc::new(Service {
            kind: settled.kind.clone(),
            timeouts: settings.timeouts,
            relays: relays(settings),
            clients: settled.clients.clone(),
            users: settled.users.clone(),
            penalties: Penalties::default(),
            accept_proxy: settled.accept_proxy.clone(),
            send_proxy: settled.send_proxy,
            dialer: Dialer::new(settled.dial.clone(), TargetPolicy::new(targets, own.clone()), passing)?,
            rates: RateLimits::new(settled.rates_in, settled.rates_out),
            advertise: settled.advertise,
            metrics: Arc::clone(&metrics),
            traffic,
        }));
    }
    Ok((services, metrics))
}

pub(crate) fn relays(settings: &Settings) -> RelayOptions {
    RelayOptions::new()
        .engine(settings.engine)
        .pipe_size(settings.pipe_size)
        .rests(settings.rests)
        .idle_timeout(settings.timeouts.idle)
        .half_close_timeout(settings.timeouts.half_close)
}

/// Clients of this machine alone can reach it.
fn is_local(listener: &Listener) -> bool {
    let is_loopback = |address: SocketAddr| address.ip().to_canonical().is_loopback();
    matches!(listener, Listener::Unix(..)) || listener.local_addr().is_some_and(is_loopback)
}

/// A proxy that anybody can use is used by anybody, within hours.
fn check_open(service: &ServiceSettings, clients_are_local: bool) -> Result<(), CannotRun> {
    let is_guarded = service.users.is_some() || service.clients.names_who_may();
    if clients_are_local || is_guarded || service.open {
        return Ok(());
    }
    Err(CannotRun::Unsafe(format!(
        "{} listens on an address that other machines can reach, and would serve all of them: say who may use it (--auth-file, --allow), \
         or that everybody may (--open)",
        service.kind.name()
    )))
}

async fn accept(
    bound: Bound,
    service: Arc<Service>,
    admission: Arc<Admission>,
    mut stopping: watch::Receiver<bool>,
    alive: Alive,
) {
    let metrics = Arc::clone(&service.metrics);
    let stop = async move {
        // An error would mean that the sender is gone, and with it the run.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    let Bound { listener, port_index } = bound;
    listener::accept(listener, &admission, &metrics, stop, |accepted, permit| {
        let arrival = Arrival {
            accepted,
            port_index,
            permit,
        };
        tokio::spawn(session::run(arrival, Arc::clone(&service), alive.clone()));
    })
    .await;
}

impl From<io::Error> for CannotRun {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for CannotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Unsafe(why) => f.write_str(why),
        }
    }
}
