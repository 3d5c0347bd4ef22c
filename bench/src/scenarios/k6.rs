//! A file over HTTP, fetched by k6 over and over, on a new connection each time: the published experiment, by its own tool.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::arms::Arm;
use crate::http::{self, Server};
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::GIB;
use crate::servers::{Folder, unless_installed};

/// Of the file: 100 MB.
const BYTES: u64 = 100_000_000;

pub(crate) struct K6 {
    /// Of each run: the last fetch goes on until it is done.
    pub(crate) seconds: u64,
}

impl Scenario for K6 {
    fn id(&self) -> String {
        "k6".into()
    }

    fn title(&self) -> String {
        format!(
            "k6, 1 virtual user, {} MB over HTTP on a new connection each, {} s",
            BYTES / 1_000_000,
            self.seconds
        )
    }

    fn figures(&self) -> &'static [Figure] {
        const { &[Figure::lower("CPU", "s/GiB", 3), Figure::higher("rate", "MB/s", 0)] }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        if let Some(why) = unless_installed("k6") {
            return Err(io::Error::other(why));
        }
        let server = Server::start(BYTES)?;
        let relay = Relay::start(arm, server.address)?;
        let before = relay.cpu_time()?;
        let fetched = self.fetch(relay.address)?;
        let cpu = (relay.cpu_time()? - before).as_secs_f64();
        Ok(vec![cpu * GIB / fetched.bytes, fetched.bytes / 1e6 / fetched.seconds])
    }
}

impl K6 {
    /// Has k6 fetch, on the cores of this thread.
    fn fetch(&self, from: SocketAddr) -> io::Result<Fetched> {
        let files = Folder::new()?;
        let [script, summary, errors] = ["script.js", "summary", "errors"].map(|name| files.path().join(name));
        fs::write(&script, self.script(from))?;
        let mut command = Command::new("k6");
        command
            // Nothing to the makers of k6, no interface for others to control it by.
            .args(["run", "--quiet", "--no-color", "--no-usage-report", "--address", ""])
            .arg(&script)
            .env("K6_NO_USAGE_REPORT", "true")
            .env("K6_AUTO_EXTENSION_RESOLUTION", "false")
            .current_dir(files.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&errors)?);
        let patience = Duration::from_secs(self.seconds) + 2 * http::PATIENCE;
        let succeeded = Running(command.spawn()?).wait(patience)?;
        if !succeeded {
            let errors = fs::read_to_string(&errors)?;
            return Err(io::Error::other(format!(
                "k6: {}",
                errors.lines().last().unwrap_or_default()
            )));
        }
        Fetched::parse(&fs::read_to_string(summary)?)
    }

    /// Its summary is a line of four numbers.
    fn script(&self, from: SocketAddr) -> String {
        let seconds = self.seconds;
        format!(
            "import http from 'k6/http';
export const options = {{
  vus: 1,
  duration: '{seconds}s',
  noConnectionReuse: true,
  discardResponseBodies: true,
}};
export default function () {{
  http.get('http://{from}/');
}}
export function handleSummary(data) {{
  const of = data.metrics;
  const numbers = [
    of.data_received.values.count,
    data.state.testRunDurationMs,
    of.http_reqs.values.count,
    of.http_req_failed.values.rate,
  ];
  return {{ summary: numbers.join(' ') }};
}}
"
        )
    }
}

struct Fetched {
    bytes: f64,
    seconds: f64,
}

impl Fetched {
    fn parse(summary: &str) -> io::Result<Self> {
        let numbers: Vec<f64> = summary.split(' ').filter_map(|number| number.parse().ok()).collect();
        match numbers[..] {
            [bytes, milliseconds, requests, failed]
                if failed == 0.0 && requests > 0.0 && bytes >= requests * BYTES as f64 =>
            {
                Ok(Self {
                    bytes,
                    seconds: milliseconds / 1e3,
                })
            }
            _ => Err(io::Error::other(format!(
                "k6 did not fetch all (bytes, ms, requests, share of failures): {summary}"
            ))),
        }
    }
}

/// Killed where it is not waited for.
struct Running(Child);

impl Running {
    /// Whether it succeeded.
    fn wait(mut self, patience: Duration) -> io::Result<bool> {
        let process = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty())?;
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        // Readable when it has ended.
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience))? {
            0 => Err(io::Error::new(io::ErrorKind::TimedOut, "k6 does not end")),
            _ => Ok(self.0.wait()?.success()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_fetches_that_failed_is_an_error() {
        assert!(Fetched::parse("200000300 2000.5 2 0").is_ok_and(|fetched| fetched.seconds == 2.0005));
        for summary in [
            "",
            "0 2000 0 0",
            "200000300 2000 2 0.5",
            "199999999 2000 2 0",
            "undefined 2000 2 0",
        ] {
            assert!(Fetched::parse(summary).is_err(), "{summary}");
        }
    }
}
