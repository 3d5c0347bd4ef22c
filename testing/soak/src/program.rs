//! The program under load: `spliceway forward` as a child process, with the kernel's figures and
//! the program's metrics.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use spliceway_machine::accounts;

/// The longest wait for a start or an end. A start takes milliseconds. At an end, the program has
/// no work left.
const PATIENCE: Duration = Duration::from_secs(20);

/// The running program. Dropping it kills it.
pub(super) struct Program {
    process: Child,
    pub(super) address: SocketAddr,
    metrics: SocketAddr,
}

/// The kernel's figures about the process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) rss_kib: u64,
    pub(super) anon_kib: u64,
    pub(super) descriptors: usize,
    /// Descriptors that are one end of a pipe.
    pub(super) pipe_ends: usize,
    pub(super) cpu: Duration,
}

/// The process's own figures.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    pub(super) spliced: u64,
    pub(super) copied: u64,
    pub(super) pages: u64,
    /// Pipes that the pool has lent.
    pub(super) lent: u64,
    /// The number of current sessions, and the number that have ended.
    pub(super) active: u64,
    pub(super) ended: u64,
    /// All kinds of counted events that have happened.
    pub(super) events: BTreeMap<String, u64>,
}

impl Program {
    /// Starts the program from the folder of this executable, with `upstream` as its target.
    pub(super) fn start(upstream: SocketAddr) -> io::Result<Self> {
        let path = env::current_exe()?.with_file_name("spliceway");
        let mut process = Command::new(&path)
            .args(["forward", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
            .args(["--remote", &upstream.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::other(format!("cannot start {}: {error}", path.display())))?;
        let lines = follow(process.stderr.take().expect("piped"));
        let mut program = Self {
            process,
            address: SocketAddr::from(([0; 4], 0)),
            metrics: SocketAddr::from(([0; 4], 0)),
        };
        program.metrics = address_in(&lines)?;
        program.address = address_in(&lines)?;
        Ok(program)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn usage(&self) -> io::Result<Usage> {
        let folder = format!("/proc/{}", self.pid());
        let status = fs::read_to_string(format!("{folder}/status"))?;
        let mut usage = Usage {
            rss_kib: kib(&status, "VmRSS:")?,
            anon_kib: kib(&status, "RssAnon:")?,
            cpu: accounts::cpu_time(self.pid())?,
            ..Usage::default()
        };
        for descriptor in fs::read_dir(format!("{folder}/fd"))? {
            usage.descriptors += 1;
            // A descriptor that was closed since the listing counts as open, but not as a pipe end.
            let target = fs::read_link(descriptor?.path()).unwrap_or_default();
            usage.pipe_ends += usize::from(target.to_string_lossy().starts_with("pipe:"));
        }
        Ok(usage)
    }

    pub(super) async fn scrape(&self) -> io::Result<Metrics> {
        let scrape = async {
            let mut socket = TcpStream::connect(self.metrics).await?;
            let request = b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n";
            socket.write_all(request).await?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await?;
            Ok::<_, io::Error>(answer)
        };
        let answer = timeout(PATIENCE, scrape).await;
        Ok(parse(
            &answer.map_err(|_| io::Error::other("/metrics did not answer"))??,
        ))
    }

    /// Asks the program to exit, as a service manager does.
    pub(super) async fn end(mut self) -> io::Result<ExitStatus> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        let ended = async {
            loop {
                if let Some(status) = self.process.try_wait()? {
                    return Ok(status);
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, ended)
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the program did not end after TERM")))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may already have exited, which is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads stderr to the end, so that the program never waits for its log to be read. Prints the
/// lines that matter.
fn follow(stderr: ChildStderr) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if line.contains(" listening on ") {
                // A receiver that is gone does not need the line.
                let _ = sender.send(line);
            } else if line.contains(" WARN ") || line.contains(" ERROR ") || line.contains("panicked") {
                eprintln!("spliceway: {line}");
            }
        }
    });
    lines
}

fn address_in(lines: &mpsc::Receiver<String>) -> io::Result<SocketAddr> {
    let line = lines.recv_timeout(PATIENCE).map_err(io::Error::other)?;
    let address = line.rsplit(' ').next().unwrap_or_default();
    address.parse().map_err(io::Error::other)
}

fn kib(status: &str, field: &str) -> io::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("no {field} in /proc/PID/status")))
}

/// Counters by kind. The kind is their last label.
const EVENTS: [&str; 5] = [
    "spliceway_connections_total",
    "spliceway_fallback_total",
    "spliceway_refused_total",
    "spliceway_accept_errors_total",
    "spliceway_pool_total",
];

fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::default();
    for line in text.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let Ok(value) = value.parse::<u64>() else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        match name {
            "spliceway_bytes_total" if labels.contains("\"splice\"") => metrics.spliced += value,
            "spliceway_bytes_total" => metrics.copied += value,
            "spliceway_pipe_pages" => metrics.pages = value,
            "spliceway_pipes" if labels.contains("\"lent\"") => metrics.lent = value,
            "spliceway_connections_active" => metrics.active += value,
            "spliceway_connections_total" => metrics.ended += value,
            _ => {}
        }
        if value > 0 && labels.contains('=') && EVENTS.contains(&name) {
            let kind = labels.rsplit('"').nth(1).unwrap_or_default();
            let family = name.trim_start_matches("spliceway_").trim_end_matches("_total");
            metrics.events.insert(format!("{family} {kind}"), value);
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_the_program_are_read() {
        let metrics = parse(concat!(
            "# TYPE spliceway_bytes counter\n",
            "spliceway_bytes_total{service=\"forward\",direction=\"up\",path=\"splice\"} 40\n",
            "spliceway_bytes_total{service=\"forward\",direction=\"down\",path=\"splice\"} 2\n",
            "spliceway_bytes_total{service=\"forward\",direction=\"down\",path=\"copy\"} 3\n",
            "spliceway_pipe_pages 64\n",
            "spliceway_connections_active{service=\"forward\"} 5\n",
            "spliceway_pipes{state=\"idle\"} 9\n",
            "spliceway_pipes{state=\"lent\"} 6\n",
            "spliceway_connections_total{service=\"forward\",end=\"client_eof\"} 7\n",
            "spliceway_connections_total{service=\"forward\",end=\"idle_timeout\"} 1\n",
        ));
        assert_eq!((metrics.spliced, metrics.copied), (42, 3));
        assert_eq!((metrics.pages, metrics.active), (64, 5));
        assert_eq!((metrics.lent, metrics.ended), (6, 8));
        assert_eq!(metrics.events["connections client_eof"], 7);
    }
}
