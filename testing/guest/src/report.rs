//! What the console of a guest says about its suites, and the table.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::suites::Suite;

/// What happened in one guest.
pub(crate) struct Report {
    suites: Vec<Ended>,
    /// The suite that runs now, and its start.
    running: Option<(usize, Instant)>,
    troubles: Vec<String>,
    has_ended: bool,
}

/// What is known about one suite.
struct Ended {
    name: &'static str,
    passed: u32,
    failed: Vec<String>,
    skipped: u32,
    took: Duration,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    NotRun,
    Running,
    /// The exit status of the test program.
    Exit(String),
}

impl Report {
    pub(crate) fn new(suites: &[&Suite]) -> Self {
        let not_run = |suite: &&Suite| Ended {
            name: suite.name,
            passed: 0,
            failed: Vec::new(),
            skipped: 0,
            took: Duration::ZERO,
            state: State::NotRun,
        };
        Self {
            suites: suites.iter().map(not_run).collect(),
            running: None,
            troubles: Vec::new(),
            has_ended: false,
        }
    }

    /// Reads a line of the console, which arrived at this time.
    pub(crate) fn read(&mut self, line: &str, now: Instant) {
        match line.strip_prefix("guest: ") {
            Some(message) => self.message(message, now),
            None => {
                if let Some((index, _)) = self.running {
                    self.suites[index].read(line);
                }
            }
        }
    }

    fn message(&mut self, message: &str, now: Instant) {
        let words: Vec<&str> = message.split(' ').collect();
        match words[..] {
            ["begin", name] => {
                self.running = self
                    .suites
                    .iter()
                    .position(|suite| suite.name == name)
                    .map(|index| (index, now));
                if let Some((index, _)) = self.running {
                    self.suites[index].state = State::Running;
                }
            }
            ["end", _, status] => {
                if let Some((index, started)) = self.running.take() {
                    self.suites[index].took = now - started;
                    self.suites[index].state = State::Exit(status.to_owned());
                }
            }
            ["kernel", ..] => self.trouble(message.to_owned()),
            ["all", "ended"] => self.has_ended = true,
            _ => {}
        }
    }

    pub(crate) fn trouble(&mut self, what: String) {
        self.troubles.push(what);
    }
}

impl Ended {
    /// Reads a line of the test program.
    fn read(&mut self, line: &str) {
        if line.starts_with("skipped: ") {
            self.skipped += 1;
        } else if let Some(outcome) = line.strip_prefix("test ") {
            // What the test itself prints may be between its name and its outcome.
            if outcome.ends_with(" ... ok") {
                self.passed += 1;
            } else if let Some(name) = outcome.strip_suffix(" ... FAILED") {
                // A test that runs itself in a process of its own shows what that process printed.
                if !self.failed.iter().any(|failed| failed == name) {
                    self.failed.push(name.to_owned());
                }
            }
        }
    }

    /// Returns why the suite did not pass, or nothing if it passed.
    fn fault(&self) -> Option<String> {
        match &self.state {
            State::NotRun => Some("did not run".to_owned()),
            State::Running => Some("did not end".to_owned()),
            State::Exit(status) if status == "124" || status == "143" => Some("took too long".to_owned()),
            State::Exit(_) if !self.failed.is_empty() => Some(self.failed.join(", ")),
            State::Exit(status) if status != "0" => Some(format!("exit status {status}")),
            State::Exit(_) if self.passed == 0 => Some("ran no test".to_owned()),
            State::Exit(_) => None,
        }
    }
}

pub(crate) const COLUMNS: &str = "kernel  suite         passed  failed  skipped  seconds";

/// Prints the rows of a kernel. Returns whether everything passed.
#[expect(clippy::print_stdout, reason = "the table is this program's result")]
pub(crate) fn show(kernel: &str, version: &str, report: &Report, log: &Path) -> bool {
    for suite in &report.suites {
        println!(
            "{kernel:<8}{:<14}{:>6}{:>8}{:>9}{:>9}",
            suite.name,
            suite.passed - suite.skipped.min(suite.passed),
            suite.failed.len(),
            suite.skipped,
            suite.took.as_secs(),
        );
    }
    let faults = report
        .suites
        .iter()
        .filter_map(|suite| Some(format!("{}: {}", suite.name, suite.fault()?)));
    let mut faults: Vec<String> = faults.chain(report.troubles.iter().cloned()).collect();
    if !report.has_ended && report.troubles.is_empty() {
        faults.push("the guest ended early".to_owned());
    }
    for fault in &faults {
        println!("FAIL {kernel} ({version}): {fault}");
    }
    println!("{version}: the console is in {}", log.display());
    faults.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::SUITES;

    fn after(lines: &str) -> Report {
        let mut report = Report::new(&[&SUITES[0], &SUITES[1]]);
        lines.lines().for_each(|line| report.read(line, Instant::now()));
        report
    }

    #[test]
    fn outcomes_of_tests_are_counted_for_their_suite() {
        let report = after(
            "guest: begin kernel\ntest a ... ok\ntest b ... FAILED\nskipped: needs strace\nguest: end kernel 101\n\
             guest: begin core\ntest c ... ok\nguest: end core 0\nguest: all ended",
        );
        let [kernel, core] = &report.suites[..] else { panic!() };
        assert_eq!(
            (kernel.passed, &kernel.failed[..], kernel.skipped),
            (1, &["b".to_owned()][..], 1)
        );
        assert_eq!(kernel.fault().as_deref(), Some("b"));
        assert_eq!((core.passed, core.fault()), (1, None));
        assert!(report.has_ended);
    }

    #[test]
    fn suites_that_did_not_end_or_ran_nothing_are_faults() {
        let report = after("guest: begin kernel\nguest: end kernel 0\nguest: begin core\ntest c ... ok");
        let faults: Vec<_> = report.suites.iter().map(Ended::fault).collect();
        assert_eq!(faults, [Some("ran no test".to_owned()), Some("did not end".to_owned())]);
        assert!(!report.has_ended);
        assert_eq!(after("").suites[0].fault().as_deref(), Some("did not run"));
    }

    #[test]
    fn a_complaint_of_the_kernel_is_a_trouble() {
        let report = after("guest: kernel WARNING: CPU: 1 at net/core/skbuff.c");
        assert_eq!(report.troubles.len(), 1);
    }
}
