//! One run of the program, from the first listener to the last session.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use spliceway::{Peer, RelayOptions};
use tokio::task::JoinSet;

use crate::admission::{Admission, Dials};
use crate::auth::Penalties;
use crate::control::Control;
use crate::dial::Dialer;
use crate::drain::{Accepting, Alive, Drain, Drained, StopSignals};
use crate::health::{Health, State};
use crate::limits::Descriptors;
use crate::listener::{self, Listener};
use crate::log::{self, announce};
use crate::metrics::{Metrics, Traffic};
use crate::monitoring;
use crate::overview::{Overview, Served};
use crate::policy::{OwnListeners, TargetPolicy, Targets};
use crate::rates::RateLimits;
use crate::service::Service;
use crate::session::{self, Arrival};
use crate::sessions::Sessions;
use crate::settings::{ServiceSettings, Settings};

/// The time in which sessions that the drain timeout cuts may deliver the bytes that they hold. At
/// 1 Mbit/s, it is enough for 256 KiB, the most that a session holds for a slow sink.
const FLUSH_GRACE: Duration = Duration::from_secs(2);

/// A limit of fewer sessions than this is probably a mistake, and causes a warning.
const FEW_SESSIONS: usize = 64;

/// The reason why a run did not begin or ended without a signal.
#[derive(Debug)]
pub(crate) enum CannotRun {
    /// The system prevents the run. The settings are not the cause.
    System(io::Error),
    /// The settings are not safe.
    Unsafe(String),
    /// An essential part of the program has ended. The value names the part.
    Failed(Arc<str>),
}

/// A listener, and the position of its port in the range: 0 for the first port.
struct Bound {
    listener: Listener,
    port_index: u16,
}

/// Serves until a signal asks the program to stop, and then for at most the drain timeout. The
/// remaining sessions then deliver the bytes that they hold. Sessions that cannot deliver them in
/// time end with the runtime. `descriptors` is the number of descriptors that this process may
/// open.
///
/// # Errors
/// Returns an error if a listener cannot be opened or is not safe, or if a part of the program ends
/// unexpectedly later.
pub(crate) async fn run(settings: Settings, descriptors: usize, health: &Health) -> Result<(), CannotRun> {
    let mut signals = StopSignals::new()?;
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let bound = bind(&settings).await?;
    let own = own_listeners(&bound)?;
    let shares = Descriptors::of(descriptors, bound.iter().map(Vec::len).sum());
    let admission = admission(&settings, &shares);
    // The services share these descriptors evenly.
    let transient = shares.transient() / settings.services.len().max(1);
    let (services, metrics) = services(&settings, &bound, &own, &admission, transient)?;
    let overview = Arc::new(Overview::new(
        served(&services, &bound),
        Arc::clone(&admission),
        metrics,
        health.clone(),
        descriptors,
    ));
    let (control, mut commands) = Control::new();
    monitoring::start(&settings, &own, overview, control).await?;
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
                health.clone(),
                alive.clone(),
            ));
        }
    }
    drop(alive);

    loop {
        tokio::select! {
            () = signals.next() => break health.drain(),
            _ = health.stopped() => break,
            Some(command) = commands.recv() => command.unsupported(),
        }
    }
    drop(commands);
    if let State::Failed(part) = health.state() {
        tracing::error!("{part} ended unexpectedly: the program stops");
    }
    // Each accept task closes its listener before it ends, so the next program can use the address.
    while accepting.join_next().await.is_some() {}
    tracing::info!(limit = ?settings.timeouts.drain, "draining: no new clients are accepted, sessions may finish");
    finish(drain, settings.timeouts.drain, &services, &mut signals).await;
    match health.state() {
        State::Failed(part) => Err(CannotRun::Failed(part)),
        _ => Ok(()),
    }
}

fn served(services: &[Arc<Service>], bound: &[Vec<Bound>]) -> Vec<Served> {
    let served = |(service, bound): (&Arc<Service>, &Vec<Bound>)| Served {
        service: Arc::clone(service),
        listen: bound.iter().map(|bound| bound.listener.describe()).collect(),
    };
    services.iter().zip(bound).map(served).collect()
}

/// Lets sessions finish within `limit`.
async fn finish(mut drain: Drain, limit: Duration, services: &[Arc<Service>], signals: &mut StopSignals) {
    let mut drained = drain.wait(limit, signals).await;
    if drained == Drained::TimeUp {
        let transfers: usize = services.iter().map(|service| service.traffic.cancel(FLUSH_GRACE)).sum();
        tracing::warn!(
            transfers,
            "the drain timeout is over: the remaining sessions are cut, and deliver what they still hold if they can"
        );
        drained = drain.wait(FLUSH_GRACE, signals).await;
    }
    match drained {
        Drained::Empty => tracing::info!("drained: every session has ended"),
        Drained::TimeUp => tracing::warn!("some sessions did not end in time: their records show any lost bytes"),
        Drained::Hurried => {
            log::hurry();
            tracing::warn!("asked to stop again: the remaining sessions are cut now");
        }
    }
}

/// Opens every listener of each service, or none. A run with only some of its listeners would look
/// as if it worked.
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
    let most = shares.sessions();
    match most < FEW_SESSIONS {
        true => tracing::warn!("only {most} sessions fit into the limit on descriptors (--nofile): {shares}"),
        false => tracing::debug!("{shares}"),
    }
    let max = settings.limits.max_conns.map_or(most, |asked| {
        if asked.get() > most {
            tracing::warn!(
                "--max-conns {asked} is lowered to {most}, because of the limit on descriptors (--nofile): {shares}"
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
    transient: usize,
) -> Result<(Vec<Arc<Service>>, Arc<Metrics>), CannotRun> {
    let traffic: Vec<_> = settings
        .services
        .iter()
        .map(|service| Arc::new(Traffic::new(service.kind.name())))
        .collect();
    let metrics = Arc::new(Metrics::new(traffic.clone(), Arc::clone(admission)));
    let (mut services, sessions) = (Vec::new(), Arc::<Sessions>::default());
    for ((settled, bound), traffic) in settings.services.iter().zip(bound).zip(traffic) {
        for reason in session::refusals(settled) {
            metrics.may_refuse(settled.kind.name(), reason);
        }
        let clients = Clients::of(settled, bound);
        check_open(settled, clients)?;
        let targets = match clients == Clients::Local || settled.allow_private {
            true => Targets::Everything,
            false => Targets::Public,
        };
        services.push(Arc::new(Service {
            kind: settled.kind.clone(),
            timeouts: settings.timeouts,
            relays: relays(settings),
            engine: settings.engine,
            spin: settings.spin,
            clients: settled.clients.clone(),
            users: settled.users.clone(),
            penalties: Penalties::new(settled.auth_penalty),
            accept_proxy: settled.accept_proxy.clone(),
            send_proxy: settled.send_proxy,
            dials: Dials::new(settings.limits.max_dials_per_ip),
            dialer: Dialer::new(settled.dial.clone(), TargetPolicy::new(targets, own.clone()), transient)?,
            rates: RateLimits::new(settled.rates_in, settled.rates_out),
            advertise: settled.advertise,
            metrics: Arc::clone(&metrics),
            traffic,
            sessions: Arc::clone(&sessions),
            accepting: Accepting::new(),
        }));
    }
    Ok((services, metrics))
}

pub(crate) fn relays(settings: &Settings) -> RelayOptions {
    RelayOptions::new()
        .engine(settings.engine)
        .pipe_size(settings.pipe_size)
        .early_answers_to(Peer::A)
        .pass_resets(true)
        .idle_timeout(settings.timeouts.idle)
        .half_close_timeout(settings.timeouts.half_close)
}

/// The origin of a service's clients, as far as its listeners show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// This machine. These clients can reach whatever the program can reach.
    Local,
    /// Other machines.
    Remote,
    /// Any address that a load balancer names. The load balancer may be on this machine, but its
    /// clients need not be.
    BehindBalancer,
    /// A Unix socket that other users may open. A client there has no address.
    SharedSocket,
}

impl Clients {
    fn of(service: &ServiceSettings, bound: &[Bound]) -> Self {
        if service.accept_proxy.is_some() {
            return Self::BehindBalancer;
        }
        let shared = bound.iter().filter(|bound| !bound.listener.is_local());
        // A shared socket takes precedence over a network address, because `--allow` does not apply
        // to it.
        shared.fold(Self::Local, |clients, bound| match bound.listener {
            Listener::Unix(..) => Self::SharedSocket,
            Listener::Tcp(_) if clients == Self::SharedSocket => clients,
            Listener::Tcp(_) => Self::Remote,
        })
    }
}

/// Returns an error if anybody could use the proxy and the settings do not permit this. Strangers
/// find and use an open proxy within hours.
fn check_open(service: &ServiceSettings, clients: Clients) -> Result<(), CannotRun> {
    let has_networks = service.clients.names_who_may();
    let (is_guarded, why, who) = match clients {
        Clients::Local => return Ok(()),
        Clients::Remote => (
            has_networks,
            "listens on an address that other machines can reach",
            "(--auth-file, --allow)",
        ),
        Clients::BehindBalancer => (
            has_networks,
            "accepts clients from a load balancer (--accept-proxy), which may pass on clients of other machines",
            "(--auth-file, --allow)",
        ),
        Clients::SharedSocket => (
            false,
            "listens on a Unix socket that other users may open",
            "(--auth-file, or mode=0600 for the socket)",
        ),
    };
    if is_guarded || service.users.is_some() || service.open {
        return Ok(());
    }
    Err(CannotRun::Unsafe(format!(
        "{} {why}, and would serve everybody: restrict access {who}, or allow everybody (--open)",
        service.kind.name()
    )))
}

async fn accept(bound: Bound, service: Arc<Service>, admission: Arc<Admission>, health: Health, alive: Alive) {
    let metrics = Arc::clone(&service.metrics);
    let Bound { listener, port_index } = bound;
    let guard = health.guard(&format!(
        "the {} listener on {}",
        service.kind.name(),
        listener.describe()
    ));
    let stopping = Arc::clone(&service);
    let stop = async move {
        tokio::select! {
            _ = health.stopped() => {}
            () = stopping.accepting.stopped() => {}
        }
    };
    listener::accept(listener, &admission, &metrics, stop, |accepted, permit| {
        let arrival = Arrival {
            accepted,
            port_index,
            permit,
        };
        if let Some((opening, session)) = session::begin(arrival, Arc::clone(&service)) {
            let task = tokio::spawn(session::run(opening, alive.clone()));
            session.runs_in(task.abort_handle());
        }
    })
    .await;
    guard.release();
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
            Self::Failed(part) => write!(f, "{part} ended unexpectedly"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::task::JoinHandle;

    /// A log writer that panics once, at the line about the limit on sessions. An earlier log
    /// implementation panicked when it could not write a line.
    struct Panics;

    static PANICKED: AtomicBool = AtomicBool::new(false);

    impl Write for Panics {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let fails = String::from_utf8_lossy(line).contains("the limit on sessions is reached");
            assert!(!fails || PANICKED.swap(true, Ordering::Relaxed), "as a test");
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn reach<T>(path: &Path, running: &JoinHandle<T>) -> UnixStream {
        loop {
            assert!(!running.is_finished(), "it does not listen");
            if let Ok(stream) = UnixStream::connect(path).await {
                return stream;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_accept_task_that_panics_ends_readiness_and_the_run() {
        let folder = std::env::temp_dir().join(format!("spliceway-serve-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (clients, metrics) = (folder.join("clients"), folder.join("metrics"));
        let settings = crate::cli::typed(&format!(
            "spliceway socks5 --open --max-conns 1 -l unix:{} --metrics unix:{}",
            clients.display(),
            metrics.display()
        ));
        let subscriber = tracing_subscriber::fmt().with_writer(|| Panics).with_ansi(false);
        let _log = tracing::subscriber::set_default(subscriber.finish());
        let health = Health::new();
        let running = tokio::spawn({
            let health = health.clone();
            async move { run(settings.unwrap(), 1000, &health).await }
        });
        // This session uses the only place, and the program logs this.
        let session = reach(&clients, &running).await;
        let listener = format!("the socks5 listener on unix:{}", clients.display());
        assert_eq!(health.stopped().await, State::Failed(listener.as_str().into()));
        let mut probe = reach(&metrics, &running).await;
        probe
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.ends_with(&format!("failed: {listener}\n")), "{answer}");
        drop(session);
        let ended = running.await.unwrap();
        assert!(matches!(ended, Err(CannotRun::Failed(part)) if *part == *listener));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The runtime of the program shares its sessions between the workers. So no session belongs to
    /// one worker, and each worker can serve all of them.
    #[test]
    fn one_stuck_worker_of_two_stops_no_accepts_and_no_sessions() {
        const SESSIONS: usize = 1000;
        crate::limits::raise_descriptors(None).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let folder = std::env::temp_dir().join(format!("spliceway-stuck-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (clients, target) = (folder.join("clients"), folder.join("target"));
        let settings = crate::cli::typed(&format!(
            "spliceway forward -l unix:{} -r unix:{}",
            clients.display(),
            target.display()
        ));
        let target = std::os::unix::net::UnixListener::bind(&target).unwrap();
        let running = runtime.spawn(async move { run(settings.unwrap(), 100_000, &Health::new()).await });
        let (unstick, stuck) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            begun.send(()).unwrap();
            // This blocks the worker.
            let _ = stuck.recv();
        });
        begins.recv().unwrap();
        let connect = || loop {
            assert!(!running.is_finished(), "it does not listen");
            if let Ok(stream) = std::os::unix::net::UnixStream::connect(&clients) {
                return stream;
            }
            std::thread::yield_now();
        };
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|_| {
                let client = connect();
                (client, target.accept().unwrap().0)
            })
            .collect();
        for (client, target) in &sessions {
            for (mut from, mut to) in [(client, target), (target, client)] {
                from.write_all(b"message").unwrap();
                let mut message = [0; 7];
                std::io::Read::read_exact(&mut to, &mut message).unwrap();
                assert_eq!(&message, b"message");
            }
        }
        drop(unstick);
        drop(sessions);
        running.abort();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
