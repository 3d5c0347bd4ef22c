//! One run of the program, from the first listener to the last session.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use spliceway::RelayOptions;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::announce;
use crate::drain::{Alive, Drain, Drained, StopSignals};
use crate::listener;
use crate::metrics::{Metrics, Traffic, http};
use crate::session::{self, Service};
use crate::settings::{ServiceSettings, Settings};

/// What sessions that the drain timeout cuts have to deliver what they hold: 256 KiB, what is held for a sink that is slow, at 1 Mbit/s.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves until asked to stop and for the drain timeout at most after that. Sessions that are left then deliver what they hold, and
/// those that cannot end with the runtime.
///
/// # Errors
/// A listener that cannot be had. Nothing after that ends a run.
pub(crate) async fn run(settings: Settings) -> io::Result<()> {
    let mut signals = StopSignals::new()?;
    let (services, metrics) = services(&settings);
    let bound = bind(&settings, &services).await?;
    let (stop, stopping) = watch::channel(false);
    if let Some(address) = &settings.metrics {
        for listener in listener::bind(address).await? {
            announce(&format_args!("metrics listening on {}", listener.local_addr()?));
            tokio::spawn(http::serve(listener, Arc::clone(&metrics), stopping.clone()));
        }
    }
    let (alive, drain) = Drain::new();
    let mut accepting = JoinSet::new();
    for (service, listener) in bound {
        announce(&format_args!(
            "{} listening on {}",
            service.kind.name(),
            listener.local_addr()?
        ));
        accepting.spawn(accept(listener, service, stopping.clone(), alive.clone()));
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

fn services(settings: &Settings) -> (Vec<Arc<Service>>, Arc<Metrics>) {
    let traffic: Vec<_> = settings
        .services
        .iter()
        .map(|service| Arc::new(Traffic::new(service.kind.name())))
        .collect();
    let metrics = Arc::new(Metrics::new(traffic.clone()));
    let relays = RelayOptions::new()
        .engine(settings.engine)
        .pipe_size(settings.pipe_size)
        .idle_timeout(settings.timeouts.idle)
        .half_close_timeout(settings.timeouts.half_close);
    for service in &settings.services {
        session::refusals(&service.kind).for_each(|reason| metrics.may_refuse(service.kind.name(), reason));
    }
    let service = |(settled, traffic): (&ServiceSettings, Arc<Traffic>)| {
        Arc::new(Service {
            kind: settled.kind.clone(),
            timeouts: settings.timeouts,
            relays: relays.clone(),
            metrics: Arc::clone(&metrics),
            traffic,
        })
    };
    (settings.services.iter().zip(traffic).map(service).collect(), metrics)
}

/// Every listener, or none: a run that serves half of what it was told to would pass for one that works.
async fn bind(settings: &Settings, services: &[Arc<Service>]) -> io::Result<Vec<(Arc<Service>, TcpListener)>> {
    let mut bound = Vec::new();
    for (service, settled) in services.iter().zip(&settings.services) {
        for address in &settled.listen {
            let listeners = listener::bind(address).await?;
            bound.extend(listeners.into_iter().map(|listener| (Arc::clone(service), listener)));
        }
    }
    Ok(bound)
}

async fn accept(listener: TcpListener, service: Arc<Service>, mut stopping: watch::Receiver<bool>, alive: Alive) {
    let metrics = Arc::clone(&service.metrics);
    let stop = async move {
        // An error would mean that the sender is gone, and with it the run.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    listener::accept(listener, &metrics, stop, |client, address| {
        tokio::spawn(session::run(client, address, Arc::clone(&service), alive.clone()));
    })
    .await;
}
