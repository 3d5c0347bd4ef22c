//! A client of the admin socket that adds, changes and removes thousands of services, beside
//! services with a steady load that must not notice.
//!
//! ```text
//!   load alone ─▶ load and changes: add, change, remove ─▶ load ends ─▶ resources as before?
//! ```

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::place::Place;
use crate::probe::{Latencies, repeat};
use crate::program::{Program, Usage, unused_addresses};
use crate::servers::Servers;
use crate::table::millis;

/// The services with a steady load.
const STEADY: usize = 20;
/// The time between two connections of the load: 500 per second.
const PACE: Duration = Duration::from_millis(2);
/// One connection in this number sends [`LONG`] bytes, which the program splices.
const LONG_EACH: usize = 16;
const LONG: usize = 64 << 10;
const SHORT: usize = 256;
/// The time of the load before the changes, the quick form first.
const ALONE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];
/// The longest time until the resources are as before. The program remembers the sessions of each
/// service for a minute, and gives memory back 5 s later.
const SETTLE: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(90)];

/// The descriptor limit: one for each of 10,020 listeners, and about 2,400 sessions.
const DESCRIPTORS: u64 = 20_000;
/// Descriptors that may be more than before: 20 sessions may end a moment later.
const DESCRIPTORS_MORE: usize = 40;
/// The part of the names that are used once before the measurement. The first changes allocate
/// memory that later changes reuse.
const WARM_UP: usize = 10;
/// The 99th percentile of a connection of the load, and the longest one, as for attacks. The
/// machine may have two cores, which the changes and other programs also use.
const LOAD_P99: Duration = Duration::from_millis(1000);
const LOAD_MAX: Duration = Duration::from_millis(2500);

pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The different names of services, the quick form first.
    names: [usize; 2],
    /// The services that are there at the same time, the quick form first.
    at_once: [usize; 2],
    /// The services that one request changes.
    batch: usize,
    /// The limit on the 99th percentile of a request.
    p99: Duration,
    /// The memory that may be more than before, the quick form first.
    rss_more_kib: [u64; 2],
}

/// The allocator keeps parts of pages that it cannot give back. A name that is never freed takes
/// about 80 bytes, so 100,000 of them take 8 MiB.
const MORE: u64 = 6 << 10;
/// 10,000 services at once leave 7 to 12 MiB in parts of pages. A leak of 2 KiB for each is more.
const MORE_OF_MANY: u64 = 16 << 10;

/// A change among 10,000 services takes about 25 ms of CPU time.
const ONE: Duration = Duration::from_millis(500);
/// A change of 100 services builds and drops 100 services, each in less than 1 ms.
const BATCH: Duration = Duration::from_millis(2000);

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "services: one by one",
        names: [500, 10_000],
        at_once: [500, 10_000],
        batch: 1,
        p99: ONE,
        rss_more_kib: [MORE, MORE_OF_MANY],
    },
    Case {
        name: "services: in batches",
        names: [1000, 10_000],
        at_once: [1000, 10_000],
        batch: 100,
        p99: BATCH,
        rss_more_kib: [MORE, MORE_OF_MANY],
    },
    Case {
        name: "services: new names",
        names: [10_000, 100_000],
        at_once: [100, 100],
        batch: 100,
        p99: BATCH,
        rss_more_kib: [MORE, MORE],
    },
];

/// What a request does to its services.
#[derive(Clone, Copy)]
enum Step {
    Add,
    Change,
    Remove,
}

const STEPS: [(Step, &str); 3] = [(Step::Add, "add"), (Step::Change, "change"), (Step::Remove, "remove")];

/// The program, and what asks it for changes.
struct Stage {
    program: Program,
    socket: PathBuf,
    steady: Vec<SocketAddr>,
    servers: Servers,
}

/// What one case has measured.
pub(crate) struct Outcome {
    case: &'static Case,
    names: usize,
    /// The times of requests, by step.
    changes: [Latencies; 3],
    alone: Latencies,
    during: Latencies,
    rss_more_kib: u64,
    before: Usage,
    most: Usage,
    after: Usage,
    ended: Result<Duration, String>,
}

/// Runs one case on one program, from the program's start to its exit.
pub(crate) async fn run(
    case: &'static Case,
    quick: bool,
    path: Option<&str>,
    place: &Place,
    changing: &Handle,
) -> io::Result<Outcome> {
    let form = usize::from(!quick);
    let stage = Arc::new(Stage::start(path, place).await?);
    let held = stage.hold().await?;
    let load = |on: &Arc<AtomicBool>| {
        let (stage, on) = (Arc::clone(&stage), Arc::clone(on));
        tokio::spawn(async move { repeat(&on, PACE, |number| exchange(stage.steady[number % STEADY], number)).await })
    };
    let names = case.names[form];
    stage.change_all(case, form, names..names + names / WARM_UP).await?;
    let on = Arc::new(AtomicBool::new(true));
    let alone = load(&on);
    // Sleeps because the load has a duration.
    sleep(ALONE[form]).await;
    on.store(false, Ordering::Relaxed);
    let alone = alone.await?;
    let before = stage.program.usage()?;
    on.store(true, Ordering::Relaxed);
    let during = load(&on);
    let changes = changing.spawn({
        let stage = Arc::clone(&stage);
        async move { stage.change_all(case, form, 0..names).await }
    });
    let changes = changes.await?;
    on.store(false, Ordering::Relaxed);
    let during = during.await?;
    let (changes, most) = changes?;
    for stream in held {
        trip(stream, LONG, 1).await?;
    }
    let after = stage.settle(before, case.rss_more_kib[form], SETTLE[form]).await?;
    Ok(Outcome {
        case,
        names,
        changes,
        alone,
        during,
        rss_more_kib: case.rss_more_kib[form],
        before,
        most,
        after,
        ended: stage.program.end().await?,
    })
}

impl Stage {
    async fn start(path: Option<&str>, place: &Place) -> io::Result<Self> {
        let (servers, socket) = (Servers::start().await?, place.folder.join("admin"));
        let steady = unused_addresses::<STEADY>().await?.to_vec();
        let mut config = format!(
            "[admin]\nsocket = \"unix:{}\"\n[limits]\nnofile = {DESCRIPTORS}\n",
            socket.display()
        );
        for (number, address) in steady.iter().enumerate() {
            config += &format!("[[service]]\nname = \"steady-{number}\"\nkind = \"forward\"\n");
            config += &format!("listen = \"{address}\"\nto = \"{}\"\n", servers.echo);
        }
        let program = Program::start_with(path, place, &config, &steady).await?;
        Ok(Self {
            program,
            socket,
            steady,
            servers,
        })
    }

    /// Opens a session of each steady service, which lasts as long as the changes.
    async fn hold(&self) -> io::Result<Vec<TcpStream>> {
        let mut held = Vec::new();
        for address in &self.steady {
            held.push(trip(TcpStream::connect(address).await?, SHORT, 0).await?);
        }
        Ok(held)
    }

    /// Adds, changes and removes the services with these numbers. Returns the times of each step,
    /// and the use of resources while all services were there.
    async fn change_all(&self, case: &Case, form: usize, names: Range<usize>) -> io::Result<([Latencies; 3], Usage)> {
        let (mut times, mut most) = ([const { Vec::new() }; 3], Usage::default());
        let at_once = case.at_once[form].min(names.len());
        for first in names.step_by(at_once) {
            for ((step, _), times) in STEPS.into_iter().zip(&mut times) {
                for first in (first..first + at_once).step_by(case.batch) {
                    let started = Instant::now();
                    self.change(step, first, case.batch).await?;
                    times.push(started.elapsed());
                }
                if matches!(step, Step::Change) {
                    let usage = self.program.usage()?;
                    most.rss_kib = most.rss_kib.max(usage.rss_kib);
                    most.descriptors = most.descriptors.max(usage.descriptors);
                }
            }
        }
        let listed = ask(&self.socket, "GET /v1/services", "")
            .await?
            .matches("\"place\":")
            .count();
        if listed != STEADY {
            return Err(io::Error::other(format!(
                "{listed} services are left, expected {STEADY}"
            )));
        }
        Ok((times.map(Latencies::of), most))
    }

    /// Sends one request.
    async fn change(&self, step: Step, first: usize, batch: usize) -> io::Result<()> {
        let table = table(step, &self.servers);
        if batch == 1 {
            let (method, body) = match step {
                Step::Add => ("PUT", table),
                Step::Change => ("PATCH", table),
                Step::Remove => ("DELETE", String::new()),
            };
            return ask(&self.socket, &format!("{method} /v1/services/name-{first}"), &body)
                .await
                .map(drop);
        }
        let all: Vec<_> = (first..first + batch)
            .map(|number| format!("\"name-{number}\":{table}"))
            .collect();
        let body = format!("{{{}}}", all.join(","));
        ask(&self.socket, "PATCH /v1/services", &body).await.map(drop)
    }

    /// Waits until the program uses as much as before. Returns what it uses then, or after the
    /// deadline.
    async fn settle(&self, before: Usage, more_kib: u64, deadline: Duration) -> io::Result<Usage> {
        let started = Instant::now();
        loop {
            // Sleeps because freed memory and closed descriptors do not cause an event.
            sleep(Duration::from_millis(250)).await;
            let usage = self.program.usage()?;
            let is_settled = usage.descriptors <= before.descriptors + DESCRIPTORS_MORE
                && usage.rss_kib <= before.rss_kib + more_kib;
            if is_settled || started.elapsed() > deadline {
                return Ok(usage);
            }
        }
    }
}

/// Returns the JSON for one service. Each has a port of its own, which the kernel chooses.
fn table(step: Step, servers: &Servers) -> String {
    let Servers { echo, early, .. } = servers;
    match step {
        Step::Add => format!(r#"{{"kind":"forward","listen":"127.0.0.1:0","to":"{echo}"}}"#),
        Step::Change => format!(r#"{{"to":["{echo},max-conns=50","{early},max-conns=10"]}}"#),
        Step::Remove => "null".to_owned(),
    }
}

/// Sends a request to the admin socket, and returns the answer if it says that the request is done.
async fn ask(socket: &Path, request: &str, body: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).await?;
    let length = body.len();
    let message = format!("{request} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(message.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.starts_with("HTTP/1.1 20") {
        return Ok(answer);
    }
    let answer: String = answer.chars().take(500).collect();
    Err(io::Error::other(format!("{request}: {answer}")))
}

/// Makes one connection of the load.
async fn exchange(address: SocketAddr, number: usize) -> io::Result<()> {
    let stream = TcpStream::connect(address).await?;
    let length = if number.is_multiple_of(LONG_EACH) { LONG } else { SHORT };
    let mut stream = trip(stream, length, number).await?;
    stream.shutdown().await?;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await?;
    if rest.is_empty() {
        return Ok(());
    }
    Err(io::Error::other("bytes came back twice"))
}

/// Sends bytes to the echo and compares what comes back.
async fn trip(mut stream: TcpStream, length: usize, number: usize) -> io::Result<TcpStream> {
    let sent: Vec<u8> = (number..number + length)
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect();
    let mut returned = vec![0; length];
    let (mut reader, mut writer) = stream.split();
    tokio::try_join!(writer.write_all(&sent), reader.read_exact(&mut returned))?;
    if returned == sent {
        return Ok(stream);
    }
    Err(io::Error::other("other bytes came back"))
}

impl Outcome {
    pub(crate) fn rows(&self) -> String {
        let mut rows = format!("{}: {} names\n", self.case.name, self.names);
        for ((_, step), times) in STEPS.iter().zip(&self.changes) {
            let limit = self.case.p99.as_millis();
            rows += &format!("  {step:<8} {}, limit of p99 {limit} ms\n", shown(times));
        }
        for (what, times) in [("alone", &self.alone), ("changes", &self.during)] {
            let (failed, limit) = (times.failed, LOAD_P99.as_millis());
            rows += &format!(
                "  load {what}: {}, failed {failed} (0), limit of p99 {limit} ms\n",
                shown(times)
            );
        }
        let Self {
            before, most, after, ..
        } = self;
        let mib = |usage: &Usage| usage.rss_kib as f64 / 1024.0;
        rows += &format!(
            "  RSS {:.1} MiB, with all services {:.1} MiB, after {:.1} MiB (+{} MiB)\n",
            mib(before),
            mib(most),
            mib(after),
            self.rss_more_kib >> 10,
        );
        rows += &format!(
            "  descriptors {}, with all services {}, after {} (+{DESCRIPTORS_MORE}); CPU {} ms",
            before.descriptors,
            most.descriptors,
            after.descriptors,
            millis(after.cpu.saturating_sub(before.cpu)),
        );
        rows
    }

    /// Describes the limits that were exceeded.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut check = |what: &str, value: u64, limit: u64| {
            if value > limit {
                failures.push(format!("{}: {what}: {value}, limit {limit}", self.case.name));
            }
        };
        for ((_, step), times) in STEPS.iter().zip(&self.changes) {
            let p99 = millis(times.percentile(99));
            check(&format!("p99 ms of a request to {step}"), p99, millis(self.case.p99));
        }
        for (what, times) in [("alone", &self.alone), ("during changes", &self.during)] {
            let p99 = millis(times.percentile(99));
            check(&format!("failed connections {what}"), times.failed as u64, 0);
            check(&format!("p99 ms of the load {what}"), p99, millis(LOAD_P99));
        }
        let longest = millis(self.during.percentile(100));
        check("max ms of the load during changes", longest, millis(LOAD_MAX));
        let Self { before, after, .. } = self;
        check(
            "KiB of RSS after the changes",
            after.rss_kib,
            before.rss_kib + self.rss_more_kib,
        );
        let most = before.descriptors + DESCRIPTORS_MORE;
        check("descriptors after the changes", after.descriptors as u64, most as u64);
        let whys = [&self.alone.why, &self.during.why].into_iter().flatten();
        failures.extend(whys.map(|why| format!("{}: first failed connection: {why}", self.case.name)));
        if let Err(why) = &self.ended {
            failures.push(format!("{}: TERM: {why}", self.case.name));
        }
        failures
    }
}

fn shown(times: &Latencies) -> String {
    let [p50, p99, most] = [50, 99, 100].map(|percent| times.percentile(percent).as_secs_f64() * 1000.0);
    format!(
        "{:>6}: p50 {p50:.1} ms, p99 {p99:.1} ms, max {most:.1} ms",
        times.count()
    )
}
