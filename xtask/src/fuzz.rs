//! `cargo xtask fuzz [--seconds N] [--at-once N] [target…]`: runs each fuzz target for some time,
//! and reports its executions and coverage.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use super::checks;

/// A fixed version, so that a new release does not change the results.
const INSTALL: &str =
    "rustup toolchain install nightly --profile minimal\n    cargo install cargo-fuzz --locked --version 0.13.2";

/// Every target in fuzz/Cargo.toml.
const TARGETS: &str = "relay splicer socks5 socks5_datagram socks4 http http_answer http_chunks upstream proxy_header tls sniff dns \
     pem address target_rule";

const DEFAULT_SECONDS: u32 = 60;
/// A time longer than any scenario that ends, in seconds. A scenario that waits in vain for bytes
/// also ends within this time, as a finding.
const TIMEOUT_SECONDS: u32 = 60;

/// The number of last lines to show with a finding. They contain the input and the failure.
const SHOWN_LINES: usize = 150;
/// The number of lines to show of the first panic. One line may be a whole scenario.
const PANIC_LINES: usize = 6;
const PANIC_COLUMNS: usize = 6_000;

/// A script that prepares the fuzzer's own network, whose loopback does not delay acknowledgements.
/// Otherwise, each acknowledgement takes 40 ms if the send buffer is small, and the fuzzer spends
/// most of its time on these delays.
const OWN_NETWORK: &str = "ip link set lo up
for net in 127.0.0.0/8 127.0.0.1; do ip route replace local $net dev lo table local quickack 1 || exit; done
exec \"$@\"";

pub(crate) const USAGE: &str = "  fuzz [--seconds N] [--at-once N] [target…]
              runs each fuzz target for N seconds (60), N of them at once (1); needs nightly and cargo-fuzz
";

/// The result of a run, in libFuzzer's terms.
#[derive(Default)]
struct Run {
    executions: u64,
    per_second: u64,
    coverage: u64,
    features: u64,
    /// The first lines of the first panic, which `last_lines` may no longer contain.
    panic: Vec<String>,
    last_lines: VecDeque<String>,
}

struct Options {
    seconds: u32,
    at_once: u32,
    targets: Vec<&'static str>,
}

pub(crate) fn run(words: &[String], root: &Path) -> Result<(), String> {
    let options = options(words)?;
    checks::require(
        "cargo-fuzz or the nightly toolchain",
        "cargo +nightly fuzz --version",
        INSTALL,
    )?;
    let network = own_network();
    build(root)?;
    eprintln!(
        "{:<16}{:>12}{:>9}{:>8}{:>8}",
        "target", "executions", "exec/s", "cov", "ft"
    );
    let waiting = Mutex::new(options.targets.into_iter());
    let next = || waiting.lock().expect("no thread panics").next();
    let findings = Mutex::new(Vec::new());
    let run_targets = || {
        while let Some(target) = next() {
            let (run, clean) = Run::of(target, options.seconds, &network, root)?;
            run.show(target, clean);
            if !clean {
                findings.lock().expect("no thread panics").push(target);
            }
        }
        Ok::<_, String>(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..options.at_once).map(|_| scope.spawn(run_targets)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let findings = findings.into_inner().expect("no thread panics");
    if findings.is_empty() {
        return Ok(());
    }
    Err(format!(
        "xtask: fuzz: findings in {findings:?}; the inputs are in fuzz/artifacts, and `cargo +nightly fuzz fmt TARGET INPUT` shows one"
    ))
}

fn options(words: &[String]) -> Result<Options, String> {
    let mut options = Options {
        seconds: DEFAULT_SECONDS,
        at_once: 1,
        targets: Vec::new(),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = match word.as_str() {
            "--seconds" => &mut options.seconds,
            "--at-once" => &mut options.at_once,
            _ => {
                let known = TARGETS.split(' ').find(|target| target == word);
                let unknown = || format!("xtask: fuzz: no target `{word}`; the targets are {TARGETS}");
                options.targets.push(known.ok_or_else(unknown)?);
                continue;
            }
        };
        let given = words.next().and_then(|number| number.parse().ok());
        *number = given
            .filter(|number| *number > 0)
            .ok_or_else(|| format!("xtask: fuzz: {word} wants a number above 0"))?;
    }
    if options.targets.is_empty() {
        options.targets = TARGETS.split(' ').collect();
    }
    Ok(options)
}

/// Returns the words to put before a command so that it runs in its own network. Returns no words
/// if this user is not permitted to create a network.
fn own_network() -> Vec<&'static str> {
    let unshare = |options: &[&'static str]| -> Vec<&'static str> {
        let shell = ["sh", "-c", OWN_NETWORK, "sh"];
        ["unshare", "--net"]
            .into_iter()
            .chain(options.iter().copied())
            .chain(shell)
            .collect()
    };
    let works = |words: &Vec<&str>| {
        let mut tried = Command::new(words[0]);
        let tried = tried.args(&words[1..]).arg("true");
        tried.output().is_ok_and(|tried| tried.status.success())
    };
    let found = [unshare(&[]), unshare(&["--map-root-user"])].into_iter().find(works);
    found.unwrap_or_else(|| {
        eprintln!("xtask: fuzz: no network of its own (unshare, ip): expect a third of the speed");
        Vec::new()
    })
}

/// Builds the targets in the current network, before the fuzzer runs in its own network.
fn build(root: &Path) -> Result<(), String> {
    let built = Command::new("cargo")
        .args(["+nightly", "fuzz", "build", "--sanitizer", "none"])
        .current_dir(root)
        .status();
    match built {
        Ok(status) if status.success() => Ok(()),
        _ => Err("xtask: fuzz: the targets do not build".into()),
    }
}

impl Run {
    /// Runs the target. Returns the result, and whether there was no finding.
    fn of(target: &str, seconds: u32, network: &[&str], root: &Path) -> Result<(Self, bool), String> {
        // New inputs stay outside the repository. Each run also reads the few inputs in the
        // repository.
        let found = root.join("target/fuzz-corpus").join(target);
        fs::create_dir_all(&found).map_err(|error| format!("xtask: fuzz: {}: {error}", found.display()))?;
        let cargo = ["cargo", "+nightly", "fuzz", "run", "--sanitizer", "none", target];
        let mut words = network.iter().copied().chain(cargo);
        let mut fuzzer = Command::new(words.next().expect("cargo at least"))
            .args(words)
            .arg(found)
            .arg(root.join("fuzz/corpus").join(target))
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={TIMEOUT_SECONDS}"))
            .arg("-print_final_stats=1")
            .current_dir(root)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("xtask: fuzz: cannot start cargo: {error}"))?;
        let mut run = Self::default();
        let said = fuzzer.stderr.take().expect("it is piped");
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            run.take(line);
        }
        let status = fuzzer.wait().map_err(|error| format!("xtask: fuzz: {error}"))?;
        Ok((run, status.success()))
    }

    fn show(self, target: &str, clean: bool) {
        eprintln!(
            "{target:<16}{:>12}{:>9}{:>8}{:>8}{}",
            self.executions,
            self.per_second,
            self.coverage,
            self.features,
            if clean { "" } else { "  FINDING" }
        );
        if !clean {
            let lines: Vec<String> = self.panic.into_iter().chain(self.last_lines).collect();
            eprintln!("{}", lines.join("\n"));
        }
    }

    fn take(&mut self, line: String) {
        let number_after = |key: &str| -> Option<u64> {
            let rest = line.split_once(key)?.1.trim_start();
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        for (key, value) in [
            ("stat::number_of_executed_units:", &mut self.executions),
            ("stat::average_exec_per_sec:", &mut self.per_second),
            (" cov: ", &mut self.coverage),
            (" ft: ", &mut self.features),
        ] {
            *value = number_after(key).unwrap_or(*value);
        }
        if line.contains("panicked at") || (1..PANIC_LINES).contains(&self.panic.len()) {
            self.panic.push(line.chars().take(PANIC_COLUMNS).collect());
        }
        if self.last_lines.len() == SHOWN_LINES {
            self.last_lines.pop_front();
        }
        self.last_lines.push_back(line);
    }
}
