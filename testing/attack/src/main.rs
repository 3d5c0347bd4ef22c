//! `cargo xtask attack`: attacks the real program and measures the effect on honest clients.
//!
//! Each attack gets a fresh program. Three probes run during the attack. One sends bytes through
//! the program with valid credentials, one requests `/healthz`, and one reads the process's memory
//! and descriptors. Afterwards, the program's resources must be as before, and SIGTERM must end the
//! program cleanly. Some cases are no attacks, but [changes] of thousands of services.
#![forbid(unsafe_code)]

mod attacks;
mod changes;
mod client;
mod place;
mod probe;
mod program;
mod servers;
mod table;
mod tls;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};

use attacks::{ATTACKS, Attack};
use place::Place;
use program::Program;
use servers::Servers;
use table::Outcome;

const HELP: &str = "\
Attacks the program and fails if honest clients, memory, descriptors or CPU suffer.

usage: cargo xtask attack [--quick] [--program PATH] [WORD…]

  --quick         a minute instead of fifteen
  --program PATH  attack this build instead of the release build
  WORD            only attacks that have one of these words in their name

Everything stays on loopback, in a network namespace of its own where that is permitted.";

/// The command-line options.
#[derive(Default)]
struct Options {
    quick: bool,
    program: Option<String>,
    words: Vec<String>,
}

/// The program, the servers and the state of one attack.
pub(crate) struct Stage {
    program: Program,
    servers: Servers,
    tls: tls::Attackers,
    /// Connections that the attack has made so far.
    attempts: AtomicU64,
    /// Whether the attack is still running.
    on: AtomicBool,
}

#[expect(clippy::print_stdout, reason = "the table is the result")]
fn main() -> ExitCode {
    let mut options = Options::default();
    let mut typed = std::env::args().skip(1);
    while let Some(word) = typed.next() {
        match word.as_str() {
            "--quick" => options.quick = true,
            "--program" => options.program = typed.next(),
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            word if word.starts_with('-') => {
                eprintln!("unknown option {word}\n\n{HELP}");
                return ExitCode::from(2);
            }
            _ => options.words.push(word),
        }
    }
    match run(&options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("attack: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the table is the result")]
fn run(options: &Options) -> io::Result<ExitCode> {
    let place = match place::isolate()? {
        place::Isolation::Inside(place) => place,
        place::Isolation::Ended(code) => return Ok(code),
    };
    // The attack must not delay the probes that measure it, so each has its own runtime.
    let (attacking, honest) = (runtime()?, runtime()?);
    println!("{place}\n{}", table::head());
    let (mut count, mut failures) = (0, Vec::new());
    for attack in ATTACKS.iter().filter(|attack| options.wants(attack.name)) {
        count += 1;
        match honest.block_on(stage(attack, options, &place, attacking.handle())) {
            Ok(outcome) => {
                println!("{}", outcome.row());
                failures.extend(outcome.failures());
            }
            // The program did not start, or it exited early.
            Err(error) => failures.push(format!("{}: {error}", attack.name)),
        }
    }
    for case in changes::CASES.iter().filter(|case| options.wants(case.name)) {
        count += 1;
        let (path, changing) = (options.program.as_deref(), attacking.handle());
        match honest.block_on(changes::run(case, options.quick, path, &place, changing)) {
            Ok(outcome) => {
                println!("{}", outcome.rows());
                failures.extend(outcome.failures());
            }
            Err(error) => failures.push(format!("{}: {error}", case.name)),
        }
    }
    if count == 0 {
        return Err(io::Error::other("no attack has such a name"));
    }
    println!("\nA number in parentheses is the limit of the number before it.");
    for failure in &failures {
        println!("FAIL {failure}");
    }
    Ok(if failures.is_empty() {
        println!("ok: {count} attacks held");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// Runs one attack on one program, from the program's start to its exit.
async fn stage(attack: &'static Attack, options: &Options, place: &Place, attacking: &Handle) -> io::Result<Outcome> {
    let servers = Servers::start().await?;
    let program = Program::start(options.program.as_deref(), &servers, attack, place).await?;
    let stage = Arc::new(Stage {
        program,
        servers,
        tls: tls::Attackers::new()?,
        attempts: AtomicU64::new(0),
        on: AtomicBool::new(true),
    });
    // The first connections allocate memory that later connections reuse.
    probe::warm_up(&stage, attack.probe).await?;
    let before = stage.program.usage()?;
    let started = Instant::now();
    let (probes, health) = (probe::trips(&stage, attack.probe), probe::health(&stage));
    let peak = probe::peak(&stage, before);
    attacks::run(attack, options.quick, &stage, attacking).await;
    stage.on.store(false, Ordering::Relaxed);
    let (probes, health) = (probes.await?, health.await?);
    let lasted = started.elapsed();
    let (after, ready) = settle(&stage, before.descriptors).await?;
    let peak = peak.await?;
    let attempts = stage.attempts.load(Ordering::Relaxed);
    let ended = stage.program.end().await?;
    Ok(Outcome {
        attack,
        quick: options.quick,
        attempts,
        lasted,
        probes,
        health,
        before,
        peak,
        after,
        ready,
        ended,
    })
}

/// Waits until the program holds no more descriptors than before the attack, and checks whether it
/// is ready. Stops waiting after the deadline.
async fn settle(stage: &Arc<Stage>, descriptors: usize) -> io::Result<(program::Usage, bool)> {
    /// The program closes idle pipes after 10 s. All deadlines in its configuration are shorter.
    const DEADLINE: Duration = Duration::from_secs(15);
    let started = Instant::now();
    loop {
        // Sleeps because closing a descriptor does not cause an event.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let usage = stage.program.usage()?;
        if usage.descriptors <= descriptors || started.elapsed() > DEADLINE {
            return Ok((usage, probe::is_ready(stage).await));
        }
    }
}
