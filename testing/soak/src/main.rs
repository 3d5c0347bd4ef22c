//! Puts minutes or hours of load on the program. The run verifies every byte and watches the
//! program's memory, descriptors, pipes and CPU time.

#![forbid(unsafe_code)]

mod load;
mod pattern;
mod peer;
mod plan;
mod program;
mod stuck;
mod tally;
mod watch;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep};

use load::{Load, Until};
use pattern::Pattern;
use plan::Session;
use program::{Program, Usage};
use spliceway_machine as machine;
use watch::{COLUMNS, Finding, Sample, Weight};

const GIB: f64 = (1 << 30) as f64;
/// The most connections. The longest listener queue (`net.core.somaxconn`) holds this many.
const CONNECTIONS_MAX: u32 = 4096;

/// Puts minutes or hours of load on the program, verifies every byte, and watches the program's
/// memory, descriptors, pipes and CPU time.
#[derive(Parser, Debug)]
struct Options {
    /// Stop after this many GiB, both directions together [default: no limit]
    #[arg(long, value_parser = positive)]
    gib: Option<f64>,
    /// Begin no connection after this many minutes [default: 1, or no limit if `--gib` is given]
    #[arg(long, value_parser = positive)]
    minutes: Option<f64>,
    /// Concurrent connections: a mix of all kinds; 1 is a single bulk transfer
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=u64::from(CONNECTIONS_MAX)))]
    conns: u64,
    /// Send half of the bytes of the single transfer in each direction
    #[arg(long)]
    both_ways: bool,
    /// Seed for all random values [default: the clock]
    #[arg(long)]
    seed: Option<u64>,
}

fn positive(typed: &str) -> Result<f64, String> {
    let number = typed
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

impl Options {
    fn bytes(&self) -> u64 {
        self.gib.map_or(u64::MAX, |gib| (gib * GIB) as u64)
    }

    fn time(&self) -> Option<Duration> {
        let minutes = self.minutes.or(self.gib.is_none().then_some(1.0));
        minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes))
    }

    /// Returns the time between two samples. A run has at least about 20 samples, even on a fast
    /// machine that moves 5 GiB per second. It has no more samples than a person would read.
    fn between_looks(&self) -> Duration {
        let by_time = self.time().map(|time| time / 40);
        let by_bytes = self.gib.map(|gib| Duration::from_secs_f64(gib / 100.0));
        let between = by_time.into_iter().chain(by_bytes).min();
        between
            .unwrap_or_default()
            .clamp(Duration::from_millis(50), Duration::from_secs(5))
    }

    fn single(&self) -> Option<Session> {
        let (bytes, cut) = (self.bytes(), self.time().map(|time| Instant::now() + time));
        let down = if self.both_ways { bytes / 2 } else { 0 };
        (self.conns == 1).then(|| Session::bulk(0, bytes - down, down, cut))
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spliceway-soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    // The parent waits for this process, so a signal that ends the parent must end this process
    // too. `Drop` then ends the program.
    set_parent_process_death_signal(Some(Signal::TERM))?;
    raise_descriptor_limit(options.conns)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            outcome = soak(options, &conditions) => outcome,
            _ = interrupt.recv() => Err(io::Error::other("interrupted: the program was ended without a verdict")),
            _ = terminate.recv() => Err(io::Error::other("terminated: the program was ended without a verdict")),
        }
    })
}

/// Raises the descriptor limit, which the program inherits. This process holds both outer ends of
/// every connection.
fn raise_descriptor_limit(connections: u64) -> io::Result<()> {
    /// Standard streams, runtimes, listeners, and the program's pipes, which use 1/16 of the limit.
    const BESIDE: u64 = 512;
    machine::raise_descriptor_limit(3 * connections + BESIDE)
}

/// Runs the phases in order. Returns an error if a check failed.
#[expect(clippy::print_stdout, reason = "the report is this program's result")]
async fn soak(options: &Options, conditions: &str) -> io::Result<()> {
    let seed = options.seed.unwrap_or_else(clock);
    println!("soak --conns {} --seed {seed}: {options:?}", options.conns);
    println!("{}; {conditions}", machine::describe());
    let listener = listen()?;
    let program = Program::start(listener.local_addr()?)?;
    // The first scrape allocates memory that later scrapes reuse.
    program.scrape().await?;
    let baseline = settle(&program, None).await?;
    let pattern = Pattern::new(seed);
    let mut findings = watch::judge_stuck(&stuck::run(&program, &listener, &pattern).await?);
    settle(&program, Some(&baseline)).await?;

    let until = Until {
        bytes: options.bytes(),
        time: options.time().map(|time| Instant::now() + time),
    };
    let load = Arc::new(Load::new(seed, pattern, program.address, until, options.single()));
    let samples = observe(&program, &baseline, options, &load, &listener).await?;
    let after = settle(&program, Some(&baseline)).await?;
    let metrics = program.scrape().await?;
    let status = program.end().await?;

    println!("\nsessions: {:?}", load.tally.kinds());
    println!("events of the program: {:?}", metrics.events);
    findings.push(watch::judge_content(&load.tally));
    findings.extend(watch::judge_drift(&samples, options.conns));
    let sessions = stuck::CONNECTIONS + load.tally.sessions();
    findings.extend(watch::judge_rest(&baseline, &after, &metrics, sessions));
    findings.push(watch::finding(
        status.success(),
        format!("the program after TERM: {status}"),
    ));
    conclude(&findings)
}

/// Returns a listener whose queue holds all connections of a run, because they may all arrive at
/// once. If a queue is too short, the kernel answers with SYN cookies. It later sends resets that
/// no peer caused.
fn listen() -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    socket.listen(CONNECTIONS_MAX)
}

fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Runs the load, and samples the program meanwhile.
#[expect(clippy::print_stdout, reason = "the report is this program's result")]
async fn observe(
    program: &Program,
    baseline: &Usage,
    options: &Options,
    load: &Arc<Load>,
    listener: &TcpListener,
) -> io::Result<Vec<Sample>> {
    println!("{COLUMNS}");
    let started = Instant::now();
    let mut running = pin!(Arc::clone(load).run(options.conns, listener));
    let mut looks = interval(options.between_looks());
    let mut samples: Vec<Sample> = Vec::new();
    let mut last = Sample::default();
    loop {
        tokio::select! {
            ended = &mut running => {
                ended?;
                return Ok(samples);
            }
            _ = looks.tick() => {}
        }
        let sample = Sample {
            elapsed: started.elapsed(),
            sessions: load.tally.sessions(),
            bytes: load.tally.bytes(),
            usage: program.usage()?,
            metrics: program.scrape().await?,
        };
        println!("{}", sample.line(&last, baseline));
        last = sample.clone();
        samples.push(sample);
    }
}

/// Waits until the program holds no more than at the start and has no session. Returns the usage at
/// that time, or the usage at the end of the wait.
async fn settle(program: &Program, baseline: Option<&Usage>) -> io::Result<Usage> {
    /// The longest wait. The program closes idle pipes after 10 s.
    const PATIENCE: Duration = Duration::from_secs(20);
    let started = Instant::now();
    loop {
        // After this pause, the connection of the previous scrape is gone.
        sleep(Duration::from_millis(100)).await;
        let usage = program.usage()?;
        let metrics = program.scrape().await?;
        let back = baseline.is_none_or(|baseline| usage.descriptors <= baseline.descriptors);
        if (back && metrics.active == 0 && metrics.pages == 0) || started.elapsed() > PATIENCE {
            return Ok(usage);
        }
    }
}

#[expect(clippy::print_stdout, reason = "the report is this program's result")]
fn conclude(findings: &[Finding]) -> io::Result<()> {
    for finding in findings {
        let word = match finding.weight {
            Weight::Good => "ok  ",
            Weight::Warning => "WARN",
            Weight::Bad => "FAIL",
        };
        println!("{word} {}", finding.text);
    }
    match findings.iter().filter(|finding| finding.weight == Weight::Bad).count() {
        0 => Ok(()),
        bad => Err(io::Error::other(format!(
            "soak: {bad} of {} checks failed",
            findings.len()
        ))),
    }
}
