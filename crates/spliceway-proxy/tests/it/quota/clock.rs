//! A clock that is wrong. `faketime` has a library that gives the program another clock.

use std::process::Command;

use super::*;
use spliceway_net::has_tool;

/// The program with a clock that a file sets.
struct Clock {
    quotas: Quotas,
    file: PathBuf,
    library: String,
}

impl Clock {
    /// Returns `None` without faketime, and says that the test is skipped.
    fn new(name: &str, limits: &str) -> Option<Self> {
        if !has_tool("faketime", "faketime") {
            return None;
        }
        let output = Command::new("faketime")
            .args(["-f", "+0", "printenv", "LD_PRELOAD"])
            .output()
            .unwrap();
        let quotas = Quotas::new(name, "socks5", limits);
        Some(Self {
            file: quotas.folder.0.join("clock"),
            library: String::from_utf8(output.stdout).unwrap().trim().to_owned(),
            quotas,
        })
    }

    fn set(&self, time: &str) {
        fs::write(self.file.with_extension("new"), time).unwrap();
        fs::rename(self.file.with_extension("new"), &self.file).unwrap();
    }

    fn run(&self) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.env("LD_PRELOAD", &self.library);
        command.env("FAKETIME_TIMESTAMP_FILE", &self.file);
        command.envs([("FAKETIME_NO_CACHE", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]);
        command.args(["run", "-c", self.quotas.config.path()]);
        Program::spawn(command, true)
    }
}

/// Waits until the program has looked at the clock.
fn await_used(program: &Program, bytes: u64) {
    await_that(program, "used", |program| used(program) == bytes);
}

#[test]
fn a_clock_that_was_ahead_or_behind_loses_no_byte() {
    let Some(clock) = Clock::new("clock", &ann("\"1MB/day\"")) else {
        return;
    };
    let target = echo("127.0.0.1:0");
    clock.set("+0");
    let mut program = clock.run();
    exchange(&mut session(&program, "ann", target), 100_000);
    await_saved(&program, 200_000);
    // It jumps forward and back while the program runs.
    clock.set("+60d");
    await_used(&program, 0);
    exchange(&mut session(&program, "ann", target), 50_000);
    await_saved(&program, 100_000);
    clock.set("+0");
    await_used(&program, 300_000);
    program.kill();
    // It is wrong at the start, and right later.
    clock.set("+60d");
    let mut program = clock.run();
    exchange(&mut session(&program, "ann", target), 5000);
    await_saved(&program, 110_000);
    program.terminate();
    program.exit();
    clock.set("+0");
    let mut program = clock.run();
    assert_eq!(used(&program), 310_000);
    exchange(&mut session(&program, "ann", target), 345_000);
    assert_eq!(ask(&program, "ann", target).1, 2, "the quota is used up");
    await_saved(&program, MB);
    program.kill();
    clock.set("-40d");
    let program = clock.run();
    assert_eq!(
        ask(&program, "ann", target).1,
        2,
        "a clock that is set back frees nothing"
    );
    clock.set("+0");
    await_used(&program, MB);
}

#[test]
fn no_clock_makes_the_program_panic() {
    let Some(clock) = Clock::new("panic", &ann("\"1MB/day\"")) else {
        return;
    };
    let target = echo("127.0.0.1:0");
    clock.set("+0");
    let mut program = clock.run();
    for (time, shown) in [("@1960-01-01 00:00:00", "1970-01-01T"), ("+8500y", "9999-12-31T")] {
        clock.set(time);
        drop(session(&program, "ann", target));
        let record = program.line("end=client_eof");
        assert!(record.contains(shown), "{record}");
        let output = clock.quotas.socket.command(&["status"]);
        assert_eq!(output.status.code(), Some(1), "{time}");
        // The metrics are on another listener of the same kind.
        assert!(program.get("/metrics").contains("no valid date"), "{time}");
    }
    clock.set("+0");
    assert_eq!(clock.quotas.socket.command(&["status"]).status.code(), Some(0));
    assert_eq!(program.lines_with("panicked"), 0);
}
