//! Probes that measure the effect on honest clients, and the program's resources, during an attack.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::Stage;
use crate::client::{self, PROBE, Target};
use crate::program::{NEWCOMERS, SECRET, Usage};

/// An honest client's longest wait. The program's own deadlines are shorter.
const PATIENCE: Duration = Duration::from_secs(10);

/// The behaviour of the honest clients during an attack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// A known user requests an address.
    Address,
    /// A known user requests a name that the program has to look up.
    Name,
    /// A user who has not logged in before requests an address.
    Newcomer,
}

/// The latencies of a probe in ascending order, and the number of failures.
#[derive(Default)]
pub(crate) struct Latencies {
    sorted: Vec<Duration>,
    pub(crate) failed: usize,
    /// Why the first failed probe failed.
    pub(crate) why: Option<String>,
}

impl Latencies {
    pub(crate) fn of(mut sorted: Vec<Duration>) -> Self {
        sorted.sort_unstable();
        Self {
            sorted,
            ..Self::default()
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.sorted.len() + self.failed
    }

    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted
            .get((self.sorted.len() * percent / 100).min(last))
            .copied()
            .unwrap_or_default()
    }
}

/// Makes one connection of each kind that the attack makes. With [`Probe::Newcomer`], no user logs
/// in, because that attack measures the memory of password hashes.
pub(crate) async fn warm_up(stage: &Arc<Stage>, probe: Probe) -> io::Result<()> {
    get(Arc::clone(stage), "/metrics").await?;
    if probe != Probe::Newcomer {
        trip(Arc::clone(stage), Probe::Address, 0).await?;
        let mut stream = client::connect(client::attacker(0), stage.program.address).await?;
        client::request(&mut stream, "attacker", SECRET, &Target::Address(stage.servers.echo)).await?;
        client::accepted(&mut stream).await?;
    }
    // Sleeps because the program closes its ends a moment later, and no event marks that time.
    sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// Makes round trips through the program until the attack is over. They start at fixed times, so
/// that a slow trip does not hide the next one.
pub(crate) fn trips(stage: &Arc<Stage>, probe: Probe) -> JoinHandle<Latencies> {
    let pace = Duration::from_millis(match probe {
        // Each newcomer requires one check of a password hash.
        Probe::Newcomer => 500,
        _ => 25,
    });
    let stage = Arc::clone(stage);
    tokio::spawn(async move { repeat(&stage.on, pace, |number| trip(Arc::clone(&stage), probe, number)).await })
}

/// Requests `/healthz` until the attack is over.
pub(crate) fn health(stage: &Arc<Stage>) -> JoinHandle<Latencies> {
    let stage = Arc::clone(stage);
    let once = |stage| async {
        let answer = get(stage, "/healthz").await?;
        match answer.starts_with("HTTP/1.1 200 ") {
            true => Ok(()),
            false => Err(io::Error::other(answer.lines().next().unwrap_or_default().to_owned())),
        }
    };
    tokio::spawn(async move { repeat(&stage.on, Duration::from_millis(100), |_| once(Arc::clone(&stage))).await })
}

pub(crate) async fn is_ready(stage: &Arc<Stage>) -> bool {
    let answer = timeout(PATIENCE, get(Arc::clone(stage), "/readyz")).await;
    matches!(answer, Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200 "))
}

/// Measures the highest memory use and the highest number of descriptors until the attack is over.
pub(crate) fn peak(stage: &Arc<Stage>, start: Usage) -> JoinHandle<Usage> {
    let stage = Arc::clone(stage);
    tokio::spawn(async move {
        let mut peak = start;
        while stage.on.load(Ordering::Relaxed) {
            // All other probes notice if the program has exited.
            if let Ok(usage) = stage.program.usage() {
                peak.rss_kib = peak.rss_kib.max(usage.rss_kib);
                peak.descriptors = peak.descriptors.max(usage.descriptors);
            }
            // Sleeps because a change in memory does not cause an event, and the kernel does not
            // record the highest number of descriptors.
            sleep(Duration::from_millis(50)).await;
        }
        peak
    })
}

/// Does something at a fixed pace as long as `on` is set. Returns how long each time took.
pub(crate) async fn repeat<F>(on: &AtomicBool, pace: Duration, mut once: impl FnMut(usize) -> F) -> Latencies
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut ticks = interval(pace);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut running = JoinSet::new();
    let mut number = 0;
    while on.load(Ordering::Relaxed) {
        ticks.tick().await;
        let (started, one) = (Instant::now(), once(number));
        running.spawn(async move {
            let outcome = timeout(PATIENCE, one)
                .await
                .unwrap_or_else(|late| Err(io::Error::other(late)));
            (started.elapsed(), outcome)
        });
        number += 1;
    }
    let mut latencies = Latencies::default();
    for (took, outcome) in running.join_all().await {
        match outcome {
            Ok(()) => latencies.sorted.push(took),
            Err(why) => {
                latencies.failed += 1;
                latencies.why.get_or_insert_with(|| why.to_string());
            }
        }
    }
    latencies.sorted.sort_unstable();
    latencies
}

/// Sends bytes through the program to the echo server and back, compares them, and closes both
/// ends.
async fn trip(stage: Arc<Stage>, probe: Probe, number: usize) -> io::Result<()> {
    let echo = stage.servers.echo;
    let target = match probe {
        Probe::Name => Target::Name(format!("good{number}.test"), echo.port()),
        _ => Target::Address(echo),
    };
    // The program checks one password at a time for each address. Newcomers with one address would
    // wait for each other.
    let (name, from) = match probe {
        Probe::Newcomer => (format!("newcomer{}", number % NEWCOMERS), client::newcomer(number)),
        _ => ("probe".to_owned(), PROBE),
    };
    let mut stream = client::connect(from, stage.program.address).await?;
    client::request(&mut stream, &name, SECRET, &target).await?;
    client::accepted(&mut stream).await?;
    let sent: Vec<u8> = (number..number + 256).map(|at| at.to_le_bytes()[0]).collect();
    stream.write_all(&sent).await?;
    stream.shutdown().await?;
    let mut returned = Vec::new();
    stream.read_to_end(&mut returned).await?;
    match returned == sent {
        true => Ok(()),
        false => Err(io::Error::other("other bytes came back")),
    }
}

async fn get(stage: Arc<Stage>, path: &str) -> io::Result<String> {
    let mut stream = client::connect(PROBE, stage.program.metrics).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: attack\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
