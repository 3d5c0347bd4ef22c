//! The repository's own commands: `cargo xtask ci` runs every check that a change must pass.
#![forbid(unsafe_code)]

mod api;
mod checks;
mod fuzz;

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let outcome = match words.split_first() {
        Some((word, rest)) if word == "api" => api::run(rest, root()),
        Some((word, rest)) if word == "fuzz" => fuzz::run(rest, root()),
        Some((word, rest)) => match task(word) {
            Some(task) if rest.is_empty() || task.takes_words() => task.run(rest),
            _ => Err(usage()),
        },
        None => Err(usage()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// A `cargo xtask` command: steps that run in order until one of them fails.
struct Task {
    name: &'static str,
    purpose: &'static str,
    steps: &'static [Step],
}

/// One command line, whose words are separated by spaces, and an optional environment variable.
/// [`REST`] at the end of a task's last step represents the words after the task's name.
struct Step {
    variable: Option<(&'static str, &'static str)>,
    line: &'static str,
}

/// The placeholder for the words after the task's name. A task without this placeholder accepts no
/// words.
const REST: &str = "…";

/// Within a task, the cheapest steps come first, so that they find a mistake before the long steps
/// run.
const TASKS: &[Task] = &[
    Task {
        name: "ci",
        purpose: "every check that a change must pass",
        steps: &[
            // Cargo.lock records the tested versions. A manifest that no longer agrees with it
            // fails here, and not on a user's machine.
            step("cargo fetch --locked"),
            step("cargo fmt --all --check"),
            step("cargo deny check bans licenses sources"),
            step("cargo clippy --workspace --all-targets -- -D warnings"),
            // The program without TLS. The examples are here because with them, the step shares
            // the builds of the step before.
            step("cargo clippy --workspace --bins --examples --no-default-features -- -D warnings"),
            step("cargo test --workspace"),
            // The first build documents private items, for readers of the source code. The second
            // build does not, because documentation for users must not link to private items. Only
            // the second build enables the libraries' features.
            docs("cargo doc --workspace --no-deps --document-private-items"),
            docs("cargo doc --workspace --no-deps --features spliceway/hyper"),
        ],
    },
    Task {
        name: "tidy",
        purpose: "the rules of this repository (part of the tests)",
        steps: &[step("cargo test --package xtask --test tidy")],
    },
    Task {
        name: "advisories",
        purpose: "known faults of the dependencies",
        // This check is not part of `ci`. It fetches a database, so it needs a network, and it can
        // fail without any change in the repository.
        steps: &[step("cargo deny check advisories")],
    },
    Task {
        name: "interop",
        purpose: "third-party clients use the program; see `interop --help`",
        steps: &[
            // This is a debug build, because it checks assertions.
            step("cargo build --package spliceway-proxy --package spliceway-interop --bins --examples"),
            step("python3 testing/interop/run.py …"),
        ],
    },
    Task {
        name: "attack",
        purpose: "attacks the program, and checks clients and resources; see `attack --help`",
        steps: &[
            step("cargo build --release --package spliceway-proxy"),
            step("cargo run --release --package spliceway-attack -- …"),
        ],
    },
    Task {
        name: "soak",
        purpose: "byte-exact load on the program, and growth of its resources; see `soak --help`",
        steps: &[
            step("cargo build --release --package spliceway-proxy"),
            step("cargo run --release --package spliceway-soak -- …"),
        ],
    },
    Task {
        name: "guest",
        purpose: "the tests in other kernels, by emulation; see `guest --help`",
        steps: &[step("cargo run --package spliceway-guest -- …")],
    },
    Task {
        name: "bench",
        purpose: "measures spliceway and its peers: `field`, `lab`, `tls`, `validate`, `report`; see `bench --help`",
        steps: &[
            step("cargo build --release --package spliceway-proxy"),
            step("cargo run --release --package spliceway-bench --features peers -- …"),
        ],
    },
    Task {
        name: "instructions",
        purpose: "instructions of a relay against a baseline; `--check` or `--bless`",
        steps: &[step("cargo run --release --package spliceway-instructions -- …")],
    },
    checks::LOOM,
    checks::MIRI,
    checks::TSAN,
    checks::RELEASE,
];

fn task(name: &str) -> Option<&'static Task> {
    TASKS.iter().find(|task| task.name == name)
}

const fn step(line: &'static str) -> Step {
    Step { variable: None, line }
}

const fn docs(line: &'static str) -> Step {
    Step {
        variable: Some(("RUSTDOCFLAGS", "-D warnings")),
        line,
    }
}

impl Task {
    fn takes_words(&self) -> bool {
        self.steps.last().is_some_and(Step::takes_words)
    }

    fn run(&self, rest: &[String]) -> Result<(), String> {
        checks::find_tools(self)?;
        let started = Instant::now();
        for step in self.steps {
            step.run(rest)?;
        }
        eprintln!(
            "xtask: {}: all {} steps passed in {} s",
            self.name,
            self.steps.len(),
            started.elapsed().as_secs()
        );
        Ok(())
    }
}

impl Step {
    fn takes_words(&self) -> bool {
        self.line.ends_with(REST)
    }

    fn run(&self, rest: &[String]) -> Result<(), String> {
        eprintln!("\n$ {self}");
        let started = Instant::now();
        let status = self
            .command(rest)
            .status()
            .map_err(|error| format!("xtask: cannot start `{self}`: {error}"))?;
        if !status.success() {
            return Err(format!("xtask: `{self}` failed ({status})"));
        }
        eprintln!("xtask: passed in {} s", started.elapsed().as_secs());
        Ok(())
    }

    fn command(&self, rest: &[String]) -> Command {
        let line = checks::with_msrv(self.line);
        let mut words = line.split_whitespace().filter(|word| *word != REST);
        let program = words.next().expect("a step is not empty");
        let mut command = Command::new(program);
        command.args(words).envs(self.variable).current_dir(root());
        if self.takes_words() {
            command.args(rest);
        }
        command
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((name, value)) = self.variable {
            write!(f, "{name}=\"{value}\" ")?;
        }
        f.write_str(&checks::with_msrv(self.line))
    }
}

fn usage() -> String {
    let tasks: String = TASKS
        .iter()
        .map(|task| format!("  {:<14}{}\n", task.name, task.purpose))
        .collect();
    format!("usage: cargo xtask <task>\n\n{tasks}{}{}", api::USAGE, fuzz::USAGE)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is in the root of the repository")
}
