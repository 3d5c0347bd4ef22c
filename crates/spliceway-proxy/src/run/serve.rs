//! One run of the program, from the first listener to the last session.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use spliceway_operator::text;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::access::gate::Gate;
use crate::kit::health::{Health, State};
use crate::kit::{created, pid_file};
use crate::log;
use crate::monitor::control::Control;
use crate::monitor::overview::Overview;
use crate::monitor::servers;
use crate::net::adopted::Offered;
use crate::run::drain::{self, Drain, Drained, Signals};
use crate::run::handover::{OldProcess, Program, Successor, Upgrade};
use crate::run::instance::{Instance, Plan};
use crate::run::notify::{Manager, Message};
use crate::run::orders::{End, Next, Orders};
use crate::run::startup::CannotRun;
use crate::session::{self, Process};
use crate::settings::{Settings, Source};

/// The time in which sessions that the drain timeout cuts may deliver the bytes that they hold. At
/// 1 Mbit/s, it is enough for 256 KiB, the most that a session holds for a slow sink.
const FLUSH_GRACE: Duration = Duration::from_secs(2);

/// The time between two reports on a drain.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Serves until a signal asks the program to stop, and then for at most the drain timeout. The
/// remaining sessions then deliver the bytes that they hold. Sessions that cannot deliver them in
/// time end with the runtime. `descriptors` is the number of descriptors that this process may
/// open. A reload reads `source` again. The metrics of the process tell how many sessions were cut,
/// once the runtime has ended.
///
/// # Errors
/// Returns an error if a listener cannot be opened or is not safe, or if a part of the program ends
/// unexpectedly later.
pub(super) async fn run(
    settings: Settings,
    source: Source,
    successor: Option<Successor>,
    descriptors: usize,
    health: &Health,
) -> Result<Arc<Process>, CannotRun> {
    let program = Arc::new(Program::of_this_process()?);
    let mut signals = Signals::new(matches!(source, Source::Files(_)))?;
    let takes_over = successor.is_some();
    // A process that takes over accepts no clients until the old one does not accept them any more.
    let process = Process::new(health.clone(), Gate::new(!takes_over), descriptors);
    let overview = Arc::new(Overview::new(Arc::clone(&process)));
    let (control, commands) = Control::new();
    let manager = Arc::new(Manager::from_environment(takes_over));
    let (alive, drain) = Drain::new();
    let mut instance = Instance::new(Arc::clone(&process), alive);
    let begun = tokio::select! {
        biased;
        begun = begin(&mut instance, settings, successor, &overview, control, &manager) => begun.map(Some),
        () = signals.stop() => Ok(None),
    };
    let Some(monitors) = begun? else {
        tracing::info!("asked to stop before it serves");
        return Ok(process);
    };
    // A process that takes over does this later, at its commit.
    if !takes_over {
        created::keep();
        pid_file::publish();
        manager
            .tell(Message::Ready(&drain::serving(process.metrics.open())))
            .await;
    }
    health.spawn("the task that tells the service manager", {
        let (manager, process) = (Arc::clone(&manager), Arc::clone(&process));
        async move {
            let status = || drain::serving(process.metrics.open());
            manager.watch(&process.health, status).await;
        }
    });
    let upgrade = Upgrade {
        program,
        manager: Arc::clone(&manager),
        monitors,
    };
    let orders = Orders {
        source: Arc::new(source),
        overview: &overview,
        upgrade: &upgrade,
        commands,
        signals: &mut signals,
        waiting: VecDeque::new(),
    };
    let end = orders.carry_out(&mut instance).await;
    manager.tell(Message::Stopping(&health.state().to_string())).await;
    if let State::Failed(part) = health.state() {
        tracing::error!("{part} ended unexpectedly: the program stops");
    }
    stop(instance, drain, end, &overview, &mut signals, &manager).await;
    if let State::Failed(part) = health.state() {
        process.accounts.finish();
        return Err(CannotRun::Failed(part));
    }
    Ok(process)
}

/// Opens all listeners and starts the services, or takes both over from another process. Returns
/// the listeners for the operator.
async fn begin(
    instance: &mut Instance,
    settings: Settings,
    successor: Option<Successor>,
    overview: &Arc<Overview>,
    control: Control,
    manager: &Arc<Manager>,
) -> Result<Vec<Offered>, CannotRun> {
    let process = Arc::clone(&overview.process);
    let mut old = match successor {
        Some(successor) => Some(successor.receive(&process).await?),
        None => None,
    };
    let given = old.as_mut().map(OldProcess::given).unwrap_or_default();
    let ready = async {
        let settings = settings.joined(given).map_err(CannotRun::Unsafe)?;
        let (plan, monitors) = open(instance, settings, old.is_some(), overview, control).await?;
        if let Some(old) = &mut old {
            old.ready(&process).await?;
        }
        Ok((plan, monitors))
    };
    let (plan, monitors) = match ready.await {
        Ok(ready) => ready,
        Err(error) => {
            // The old process learns why.
            if let Some(old) = &mut old {
                old.refuse(&error).await;
            }
            return Err(error);
        }
    };
    instance.commit(plan);
    instance.show(overview);
    end_sessions_in_time(&process);
    record_open_sessions(&process, instance.record_interval());
    if let Some(old) = old {
        let old = old.receive_state(instance.maybe_alive(), Arc::clone(overview), Arc::clone(manager));
        tokio::spawn(async move {
            old.await;
            process.accounts.share(false).await;
        });
    }
    Ok(monitors)
}

/// Opens the listeners of services and those for the operator, and reads the quotas.
async fn open(
    instance: &Instance,
    settings: Settings,
    takes_over: bool,
    overview: &Arc<Overview>,
    control: Control,
) -> Result<(Plan, Vec<Offered>), CannotRun> {
    load_accounts(&settings, &overview.process, takes_over).await?;
    prepare_pid_file(&settings).await?;
    let plan = instance.plan(settings).await?;
    let monitors = servers::start(plan.settings(), overview, control).await?;
    Ok((plan, monitors))
}

/// Writes the pid file beside its place. The file may be on a slow disk.
async fn prepare_pid_file(settings: &Settings) -> io::Result<()> {
    let Some(path) = settings.pid_file.clone() else {
        return Ok(());
    };
    let prepared = tokio::task::spawn_blocking(move || pid_file::prepare(&path)).await;
    prepared.map_err(io::Error::other)?
}

/// Starts the tasks that end sessions at a quota, and after the longest time.
fn end_sessions_in_time(process: &Process) {
    let sessions = Arc::clone(&process.sessions);
    let keeping = Arc::clone(&process.accounts).keep(move || {
        let sessions = Arc::clone(&sessions);
        async move { sessions.close_used_up().await }
    });
    process.health.spawn("the task that keeps quotas", keeping);
    let expiring = Arc::clone(&process.sessions).expire();
    process.health.spawn("the task that ends long sessions", expiring);
}

/// Starts the task that writes records of open sessions. It also writes them during a drain.
fn record_open_sessions(process: &Process, interval: watch::Receiver<Option<Duration>>) {
    let sessions = Arc::clone(&process.sessions);
    let recording = async move { session::write_open(&sessions, interval).await };
    process
        .health
        .spawn("the task that writes records of open sessions", recording);
}

/// Reads what users have used of their quotas. The file may be on a slow disk.
async fn load_accounts(settings: &Settings, process: &Process, is_shared: bool) -> io::Result<()> {
    let Some(path) = settings.limits.quota_file.clone() else {
        return Ok(());
    };
    let accounts = Arc::clone(&process.accounts);
    let loaded = tokio::task::spawn_blocking(move || created::watch(&path, || accounts.load(&path, is_shared))).await;
    loaded.map_err(io::Error::other)?.map_err(io::Error::other)
}

/// Closes the listeners, and lets sessions finish: those of this process, and those that a new
/// process has taken.
async fn stop(
    instance: Instance,
    drain: Drain,
    end: End,
    overview: &Overview,
    signals: &mut Signals,
    manager: &Manager,
) {
    let limit = instance.settings().map_or(Duration::ZERO, |settings| settings.drain);
    let mut next = end.next;
    if let Next::Interrupted(handover) = &mut next {
        handover.request_stop().await;
    }
    instance.close().await;
    tracing::info!(limit = %drain::shown(limit), "draining: no new clients are accepted, sessions may finish");
    // An upgrade that was given up has used some of the time.
    let left = limit.saturating_sub(end.at.elapsed());
    let drained = finish(drain, left, overview, signals, manager);
    match next {
        Next::Nobody => {
            drained.await;
        }
        Next::GivenUp(handover) => {
            // The sockets of the new process keep the listeners open.
            tokio::join!(handover.dismiss(), drained);
        }
        Next::HandedOver(handover) => {
            let drained = async {
                drained.await;
            };
            handover.finish(overview, drained).await;
        }
        Next::Interrupted(handover) => {
            if drained.await == Drained::Hurried {
                signals.hurry_later();
            }
            handover.wait_until(end.at + limit, signals.hurry()).await;
        }
    }
}

/// Lets sessions finish within `limit`.
async fn finish(
    mut drain: Drain,
    limit: Duration,
    overview: &Overview,
    signals: &mut Signals,
    manager: &Manager,
) -> Drained {
    let mut drained = drain.wait(limit, signals, tell_progress(overview, manager)).await;
    let is_over = drained == Drained::TimeUp;
    if is_over {
        let transfers = overview.process.metrics.cancel_all(FLUSH_GRACE);
        tracing::warn!(
            transfers,
            "the drain timeout is over: the remaining sessions are cut, and deliver what they still hold if they can"
        );
        drained = drain.wait(FLUSH_GRACE, signals, pending()).await;
    }
    match drained {
        // The last line says how many sessions were cut.
        Drained::Empty if is_over => {}
        Drained::Empty => tracing::info!("drained: every session has ended"),
        Drained::TimeUp => tracing::warn!("some sessions did not end in time: their records show any lost bytes"),
        Drained::Hurried => {
            log::hurry();
            tracing::warn!("asked to stop again: the remaining sessions are cut now");
        }
    }
    drained
}

/// Tells how many sessions are left, now and every few seconds.
async fn tell_progress(overview: &Overview, manager: &Manager) -> Infallible {
    let mut ticks = interval(REPORT_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (left, oldest) = overview.process.sessions.survey().await;
        let Some(oldest) = oldest else { continue };
        let (sessions, longest) = (text::count(left, "session"), text::time(oldest.elapsed()));
        let text = format!("draining: {sessions}, longest {longest}");
        tracing::info!("{text}");
        manager.tell(Message::Stopping(&text)).await;
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
            async move {
                let source = Source::Files("/nowhere".into());
                run(settings.unwrap(), source, None, 1000, &health).await
            }
        });
        // This session uses the only permit, and the program logs this.
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
        assert!(answer.ends_with("\r\n\r\nfailed\n"), "{answer}");
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
        crate::kit::limits::raise_descriptors(None).unwrap();
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
        let running = runtime.spawn(async move {
            let source = Source::Files("/nowhere".into());
            run(settings.unwrap(), source, None, 100_000, &Health::new()).await
        });
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
