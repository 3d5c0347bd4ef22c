//! Child processes of a test. Each child is the same test binary in another role, and exchanges
//! lines with the test.
// A child prints lines for its test, and a skipped test prints the reason.
#![allow(clippy::print_stdout)]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

/// Marks a child's own lines among the lines of its test harness.
const MARK: &str = "said: ";
/// Longer than any test with child processes takes, even on a slow machine.
const GUARD: Duration = Duration::from_secs(300);
const ROLE: &str = "SPLICEWAY_TEST_ROLE";

/// A running child. Dropping it kills the child.
pub(crate) struct Role {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Dropped with the role, before another process can get the same process id.
    _alive: mpsc::Sender<()>,
}

impl Role {
    /// Starts the test function `test`, by its full name, as `role`. If `uid` is given, the child
    /// runs as that user. This function starts `/proc/self/exe`, because that user may have no
    /// access to the binary's directory.
    pub(crate) fn start(test: &str, role: &str, uid: Option<u32>) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        Self::spawn(command)
    }

    /// Starts the role under strace, which writes every call of every thread to `output`.
    pub(crate) fn start_traced(test: &str, role: &str, output: &Path) -> Self {
        let mut command = Command::new("strace");
        command
            .args(["-f", "-s", "16", "-o"])
            .arg(output)
            .arg(env::current_exe().unwrap());
        command
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut process = command.spawn().unwrap();
        let (alive, ended) = mpsc::channel::<()>();
        let id = Pid::from_child(&process);
        thread::spawn(move || {
            // A test that hangs prints nothing. If its child is killed, the test prints where it
            // waited.
            if ended.recv_timeout(GUARD) == Err(RecvTimeoutError::Timeout) {
                let _ = kill_process(id, Signal::KILL);
            }
        });
        let (input, output) = (
            process.stdin.take().unwrap(),
            BufReader::new(process.stdout.take().unwrap()),
        );
        Self {
            process,
            input,
            output,
            _alive: alive,
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Returns the child's next line.
    pub(crate) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the child ended early");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim().to_owned();
            }
        }
    }

    /// Waits until the child has ended without being killed.
    pub(crate) fn wait(&mut self) {
        // Reads the rest of the output, because an unread pipe could fill up and block the child.
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        assert!(self.process.wait().unwrap().success());
    }

    /// Returns the numbers in the child's next line.
    pub(crate) fn numbers(&mut self) -> Vec<usize> {
        let line = self.line();
        println!("{line}");
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the role in a child process. Returns `None` in the test's own process, where the
/// function that plays roles does nothing.
pub(crate) fn own() -> Option<String> {
    env::var(ROLE).ok()
}

/// Sends a line to the test. A child calls this.
pub(crate) fn say(line: &str) {
    println!("{MARK}{line}");
}

/// Waits for the test's next line. A child calls this.
pub(crate) fn heard() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Raises the descriptor limit as far as possible.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .unwrap();
}
