//! Users' programs through each relay: PostgreSQL, Redis, iperf3, and nginx at fixed request rates.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spliceway_load::Estimate;
use spliceway_machine as machine;

use crate::contender::{self, AGAIN, Contender, OURS, REFERENCE};
use crate::figures::Figures;
use crate::meter::{CoreTime, undisturbed};
use crate::servers::{self, Folder};
use crate::site::{CLIENT, SERVER, Site};
use crate::stop::Rule;
use crate::{LOAD_CORE, RELAY_CORE, summary};

/// A client that reaches a server through the relay.
struct Workload {
    title: &'static str,
    server: Kind,
    /// The client's command line. `HOST` and `PORT` stand for the relay's address and port.
    client: &'static str,
    unit: &'static str,
    /// Finds the figure in the client's output.
    parse: fn(&str) -> Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Postgres,
    Redis,
    Iperf3,
    /// nginx, for vegeta.
    Nginx,
    /// nginx, for k6.
    Files,
}

const PGBENCH: &str = "pgbench -h HOST -p PORT -U bench -n -T 1 -j 1";
const SELECT: &str = "-S -M prepared";
/// k6 does not send a usage report to its makers, and does not open a control interface.
const K6: &str = "k6 run --quiet --no-usage-report --address= -e TARGET=HOST:PORT -";
const VEGETA: &str = "vegeta attack -duration=1s -timeout=5s";

/// Returns the titles of all workloads.
pub(crate) fn titles() -> Vec<&'static str> {
    workloads().into_iter().map(|one| one.title).collect()
}

fn workloads() -> Vec<Workload> {
    let of = |title, server, client: String, unit, parse: fn(&str) -> Option<f64>| Workload {
        title,
        server,
        client: client.leak(),
        unit,
        parse,
    };
    let pgbench = |title, words: &str| {
        of(
            title,
            Kind::Postgres,
            format!("{PGBENCH} {words} postgres"),
            "transactions/s",
            transactions,
        )
    };
    let redis = |title, words: &str| {
        let client = format!("redis-benchmark -h HOST -p PORT -c 50 --csv {words}");
        of(title, Kind::Redis, client, "requests/s", requests)
    };
    let iperf3 = |title, words: &str| {
        of(
            title,
            Kind::Iperf3,
            format!("iperf3 -c HOST -p PORT -t 1 -J {words}"),
            "Gbit/s",
            gigabits,
        )
    };
    let vegeta = |title, words: &str| of(title, Kind::Nginx, format!("{VEGETA} {words}"), "p99, µs", p99);
    vec![
        pgbench("pgbench -S, 1 client", &format!("{SELECT} -c 1")),
        pgbench("pgbench -S, 4 clients", &format!("{SELECT} -c 4")),
        pgbench("pgbench -S, 32 clients", &format!("{SELECT} -c 32")),
        pgbench("pgbench -S, 4 clients that reconnect", &format!("{SELECT} -c 4 -C")),
        pgbench("pgbench like TPC-B, 4 clients", "-M prepared -c 4"),
        redis("redis-benchmark GET, 50 clients", "-n 30000 -t get"),
        redis("redis-benchmark GET, pipeline of 16", "-n 300000 -P 16 -t get"),
        redis("redis-benchmark GET, 64 KiB values", "-n 10000 -d 65536 -t set,get"),
        iperf3("iperf3, 1 stream", ""),
        iperf3("iperf3, 4 streams", "-P 4"),
        iperf3("iperf3, reverse", "-R"),
        iperf3("iperf3, both ways", "--bidir"),
        vegeta("nginx, 10 KiB, 1,000 requests/s", "-rate=1000 10k"),
        vegeta("nginx, 1 MiB, 100 requests/s", "-rate=100 1m"),
        of(
            "k6, 100 MB on a new connection each",
            Kind::Files,
            K6.into(),
            "MB/s",
            megabytes,
        ),
    ]
}

/// Measures each workload through each relay. Returns a table of the clients' figures and a table
/// of the relay's CPU time.
pub(crate) fn measure(site: &Site, rule: Rule, only: &[String], contenders: &[String]) -> io::Result<Vec<Figures>> {
    let mut all = Vec::new();
    let is_asked = |one: &Workload| only.is_empty() || only.iter().any(|name| one.title.starts_with(name.as_str()));
    let workloads: Vec<Workload> = workloads().into_iter().filter(is_asked).collect();
    for kind in [Kind::Postgres, Kind::Redis, Kind::Iperf3, Kind::Nginx, Kind::Files] {
        if workloads.iter().all(|one| one.server != kind) {
            continue;
        }
        let missing = match kind {
            Kind::Nginx => servers::unless_installed("vegeta"),
            Kind::Files => servers::unless_installed("k6"),
            _ => None,
        };
        let server = match missing.map_or_else(|| Server::start(site, kind), |why| Err(io::Error::other(why))) {
            Ok(server) => server,
            Err(error) => {
                eprintln!("{}: {error}", kind.name());
                continue;
            }
        };
        for workload in workloads.iter().filter(|one| one.server == kind) {
            let began = Instant::now();
            all.extend(through_all(site, workload, &server, rule, contenders));
            eprintln!("F10 {}: {:.0} s", workload.title, began.elapsed().as_secs_f64());
        }
    }
    Ok(all)
}

fn through_all(site: &Site, workload: &Workload, server: &Server, rule: Rule, only: &[String]) -> [Figures; 2] {
    let mut figures = Figures::new(
        workload.title,
        workload.unit,
        if workload.unit == "Gbit/s" { 2 } else { 0 },
    );
    let mut cpu = Figures::new(format!("{}, CPU", workload.title), "% of the relay's core", 0);
    let mut contenders = contender::asked(contender::of_programs(), only);
    for round in 0..rule.most {
        if round >= rule.least {
            let compared = [OURS, AGAIN, REFERENCE, figures.best_peer().unwrap_or(REFERENCE)];
            let ratios = compared[2..].iter().filter_map(|to| figures.sampled(OURS, to));
            let ratios: Vec<Estimate> = ratios.collect();
            if !summary::compares(workload.title) || rule.is_narrow(&ratios, figures.control(), 1.0) {
                break;
            }
            contenders.retain(|contender| compared.contains(&contender.name.as_str()));
        }
        let mut failed = Vec::new();
        for contender in &contenders {
            match undisturbed(rule.attempts, || run(site, workload, server, contender)) {
                Ok(((value, busy), _)) => {
                    figures.add(&contender.name, value);
                    if !contender.kind.shares_cores() {
                        cpu.add(&contender.name, busy * 100.0);
                    }
                }
                Err(error) => {
                    figures.skip(&contender.name, error.to_string());
                    failed.push(contender.name.clone());
                }
            }
        }
        contenders.retain(|contender| !failed.contains(&contender.name));
        // Every other round runs in reverse order, so that drift affects all contenders.
        contenders.reverse();
    }
    [figures, cpu]
}

/// Returns the client's figure, and the fraction of the client's time during which the relay's core
/// was busy.
fn run(site: &Site, workload: &Workload, server: &Server, contender: &Contender) -> io::Result<(f64, f64)> {
    let relay = site.relay(contender, server.address)?;
    let (host, port) = (relay.address.ip().to_string(), relay.address.port().to_string());
    let mut words = workload
        .client
        .split(' ')
        .map(|word| word.replace("HOST", &host).replace("PORT", &port));
    let program = words.next().expect("a client has a name");
    let mut arguments: Vec<String> = words.collect();
    let mut input = String::new();
    if workload.server == Kind::Nginx {
        let file = arguments.pop().expect("the file to ask for");
        input = format!("GET http://{host}:{port}/{file}\n");
    }
    if workload.server == Kind::Files {
        input = include_str!("../peers/k6.js").into();
    }
    let mut command = Command::new(program);
    command.args(arguments);
    let mut pinned = servers::on_core(LOAD_CORE, &command);
    pinned
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (before, began) = (CoreTime::now(RELAY_CORE)?, Instant::now());
    let mut client = site.node(CLIENT).inside(|| pinned.spawn())?;
    io::Write::write_all(&mut client.stdin.take().expect("piped"), input.as_bytes())?;
    let output = client.wait_with_output()?;
    let wall = began.elapsed().as_secs_f64();
    let idle = (CoreTime::now(RELAY_CORE)?.idle - before.idle).as_secs_f64();
    let said = match workload.server {
        Kind::Nginx => report(&output.stdout)?,
        _ => String::from_utf8_lossy(&output.stdout).into_owned(),
    };
    match (workload.parse)(&said) {
        Some(value) => Ok((value, 1.0 - idle / wall)),
        None => Err(io::Error::other(
            String::from_utf8_lossy(&[said.as_bytes(), &output.stderr].concat())
                .lines()
                .last()
                .unwrap_or("the client printed nothing")
                .to_owned(),
        )),
    }
}

/// Returns vegeta's own report about its results.
fn report(results: &[u8]) -> io::Result<String> {
    let mut child = Command::new("vegeta")
        .args(["report", "-type=json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    io::Write::write_all(&mut child.stdin.take().expect("piped"), results)?;
    Ok(String::from_utf8_lossy(&child.wait_with_output()?.stdout).into_owned())
}

/// Parses `tps = 31234.567 (without initial connection time)`.
fn transactions(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix("tps = "))?;
    line.split(' ').next()?.parse().ok()
}

/// Parses the last line with figures: `"GET","12345.67",…`.
fn requests(said: &str) -> Option<f64> {
    let line = said.lines().rev().find(|line| line.starts_with("\"GET"))?;
    line.split("\",\"").nth(1)?.parse().ok()
}

fn gigabits(said: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(said).ok()?;
    let of = |sum: &str| report["end"][sum]["bits_per_second"].as_f64();
    Some((of("sum_received")? + of("sum_received_bidir_reverse").unwrap_or(0.0)) / 1e9)
}

/// Parses the output of `peers/k6.js`.
fn megabytes(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.strip_prefix("rate ")?.parse().ok())
}

/// Returns `None` for a run in which a request failed.
fn p99(said: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(said).ok()?;
    let is_complete = report["success"].as_f64() == Some(1.0);
    report["latencies"]["99th"]
        .as_f64()
        .filter(|_| is_complete)
        .map(|nanos| nanos / 1e3)
}

/// A running server, in its namespace and on the load's core. Dropping it stops it.
struct Server {
    child: Child,
    address: SocketAddr,
    _files: Folder,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Redis => "Redis",
            Self::Iperf3 => "iperf3",
            Self::Nginx => "nginx and vegeta",
            Self::Files => "nginx and k6",
        }
    }
}

/// An unprivileged user, because PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

impl Server {
    fn start(site: &Site, kind: Kind) -> io::Result<Self> {
        let files = Folder::new()?;
        let (_, host) = site.addresses();
        let address = SocketAddr::new(host, PORT);
        let command = kind.command(address, files.path())?;
        let mut pinned = servers::on_core(LOAD_CORE, &command);
        pinned.stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self {
            child: site.node(SERVER).inside(|| pinned.spawn())?,
            address,
            _files: files,
        };
        let patience = Instant::now() + Duration::from_secs(10);
        while !site.node(SERVER).inside(|| machine::is_listening_any(PORT))? {
            if Instant::now() > patience {
                return Err(io::Error::other("the server does not listen"));
            }
            std::thread::yield_now();
        }
        if kind == Kind::Postgres {
            let words = format!("-i -q -s 10 -h {host} -p {PORT} -U bench postgres");
            succeed(
                site.node(SERVER)
                    .inside(|| Command::new("pgbench").args(words.split(' ')).output())?,
            )?;
        }
        Ok(server)
    }
}

/// The port of every server. Each has its own namespace.
const PORT: u16 = 5000;

impl Kind {
    /// Returns the command that starts the server in the foreground. Its files are in `folder`.
    fn command(self, address: SocketAddr, folder: &Path) -> io::Result<Command> {
        let (host, path) = (address.ip(), folder.display());
        match self {
            Self::Postgres => {
                let data = folder.join("data");
                fs::create_dir(&data)?;
                for path in [folder, &data] {
                    chown(path, Some(NOBODY), Some(NOBODY))?;
                }
                let init = format!("-D {path}/data -U bench -A trust -N --no-locale");
                succeed(as_nobody(&postgres("initdb")?, &init).output()?)?;
                fs::write(data.join("pg_hba.conf"), "host all all 0.0.0.0/0 trust\n")?;
                let run = format!("-D {path}/data -h {host} -p {PORT} -c fsync=off -c unix_socket_directories=");
                Ok(as_nobody(&postgres("postgres")?, &run))
            }
            Self::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--save", ""]);
                command.args(format!("--protected-mode no --bind {host} --port {PORT}").split(' '));
                Ok(command)
            }
            Self::Iperf3 => {
                let mut command = Command::new("iperf3");
                command.args(["-s", "-p", &PORT.to_string()]);
                Ok(command)
            }
            Self::Nginx | Self::Files => {
                File::create(folder.join("large"))?.set_len(100_000_000)?;
                fs::write(folder.join("10k"), vec![7; 10 << 10])?;
                fs::write(folder.join("1m"), vec![7; 1 << 20])?;
                let configuration = format!(
                    "daemon off; worker_processes 1; user root; pid {path}/pid; error_log stderr emerg;
events {{}} http {{ access_log off; sendfile on; keepalive_requests 1000000;
  server {{ listen {address}; root {path}; }} }}\n"
                );
                fs::write(folder.join("nginx.conf"), configuration)?;
                let mut command = Command::new("nginx");
                command.args(format!("-e /dev/null -p {path} -c {path}/nginx.conf").split(' '));
                Ok(command)
            }
        }
    }
}

fn succeed(output: Output) -> io::Result<()> {
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // PostgreSQL and nginx then stop their own child processes.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let _ = self.child.wait();
    }
}

/// Returns the path of a PostgreSQL program: on `PATH`, or in Debian's folder for it.
fn postgres(program: &str) -> io::Result<PathBuf> {
    if servers::unless_installed(program).is_none() {
        return Ok(program.into());
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|version| version.path().join("bin").join(program))
        .collect();
    found.sort();
    found
        .pop()
        .filter(|path| path.is_file())
        .ok_or_else(|| io::Error::other(format!("needs {program} (Debian package postgresql)")))
}

fn as_nobody(program: &Path, words: &str) -> Command {
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.arg(program).args(words.split(' '));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_the_output_of_clients() {
        let said = "latency average = 0.1 ms\ntps = 31234.567 (without initial connection time)\n";
        assert_eq!(transactions(said), Some(31234.567));
        let said = "\"test\",\"rps\"\n\"SET\",\"1.5\",\"0\"\n\"GET\",\"12345.67\",\"0.1\"\n";
        assert_eq!(requests(said), Some(12345.67));
        let said =
            r#"{"end":{"sum_received":{"bits_per_second":2e9},"sum_received_bidir_reverse":{"bits_per_second":1e9}}}"#;
        assert_eq!(gigabits(said), Some(3.0));
        assert_eq!(p99(r#"{"latencies":{"99th":1500000},"success":1}"#), Some(1500.0));
        assert_eq!(p99(r#"{"latencies":{"99th":1500000},"success":0.99}"#), None);
        assert_eq!(transactions("pgbench: error"), None);
    }
}
