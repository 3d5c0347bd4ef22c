//! A running Prometheus, and its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::harness::{Folder, PATIENCE, address_in, connect, let_pass};

/// The time between two scrapes, and between two evaluations of the rules.
const INTERVAL: &str = "500ms";

/// A Prometheus with a folder of its own. It is killed when this value is dropped.
pub(super) struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: Folder,
}

/// The samples of a series: the time in seconds since 1970, and the value.
pub(super) type Samples = Vec<(f64, f64)>;

/// A series of an answer.
pub(super) struct Series {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) samples: Samples,
}

impl Prometheus {
    /// Starts it with these rules. It scrapes the addresses, which have these names as `instance`.
    pub(super) fn start(targets: &[(&str, SocketAddr)], rules: &str) -> Self {
        let folder = Folder::new("prometheus");
        let mut config = format!(
            "global: {{scrape_interval: {INTERVAL}, evaluation_interval: {INTERVAL}}}\n\
             rule_files: [rules.yml]\nscrape_configs:\n  - job_name: spliceway\n    static_configs:\n"
        );
        for (name, address) in targets {
            writeln!(
                config,
                "      - {{targets: [\"{address}\"], labels: {{instance: {name}}}}}"
            )
            .unwrap();
        }
        folder.file("rules.yml", rules);
        folder.file("prometheus.yml", &config);
        let mut child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.0.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.0.join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut seen = Vec::new();
        let mut line_with = |text: &str| {
            for line in log.by_ref() {
                seen.push(line);
                if seen.last().unwrap().contains(text) {
                    return seen.last().unwrap().clone();
                }
            }
            panic!("no {text:?} in {seen:#?}");
        };
        let line = line_with("msg=\"Listening on\"");
        let (_, address) = line.rsplit_once("address=").unwrap();
        let address = address_in(address);
        line_with("Server is ready");
        thread::spawn(move || log.for_each(drop));
        Self {
            child,
            address,
            _folder: folder,
        }
    }

    /// Returns the data of an answer.
    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let mut query = String::new();
        for (name, value) in parameters {
            write!(query, "&{name}=").unwrap();
            value.bytes().for_each(|byte| write!(query, "%{byte:02x}").unwrap());
        }
        let mut stream = connect(self.address);
        // The answers to this version are not in chunks.
        write!(stream, "GET /api/v1/{path}?{query} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{path} {parameters:?}: {answer}");
        serde_json::from_str::<Value>(body).unwrap()["data"].take()
    }

    /// Returns the series of an expression from this time on, with one sample for each interval.
    pub(super) fn range(&self, expression: &str, from: f64) -> Vec<Series> {
        let (from, to) = (from.to_string(), now().to_string());
        let parameters = [("query", expression), ("start", &from), ("end", &to), ("step", "0.5")];
        let data = self.ask("query_range", &parameters);
        let number = |value: &Value| {
            value
                .as_f64()
                .unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
        };
        let series = |series: &Value| Series {
            labels: serde_json::from_value(series["metric"].clone()).unwrap(),
            samples: series["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|sample| (number(&sample[0]), number(&sample[1])))
                .collect(),
        };
        data["result"].as_array().unwrap().iter().map(series).collect()
    }

    /// Returns the alerts that have fired since this time.
    pub(super) fn fired(&self, from: f64) -> BTreeSet<String> {
        let series = self.range("ALERTS{alertstate=\"firing\"}", from);
        series
            .into_iter()
            .map(|mut series| series.labels.remove("alertname").unwrap())
            .collect()
    }

    /// Waits until an expression has a value.
    pub(super) fn await_that(&self, expression: &str) {
        let until = Instant::now() + PATIENCE;
        while self.ask("query", &[("query", expression)])["result"]
            .as_array()
            .unwrap()
            .is_empty()
        {
            assert!(Instant::now() < until, "{expression}");
            let_pass(std::time::Duration::from_millis(50));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
