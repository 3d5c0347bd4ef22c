//! Checks that build the code in special ways, for example for loom, miri and the thread sanitizer.
//!
//! Each check has its own target folder, because different flags need different builds. The steps
//! omit tests that such a build cannot run in a reasonable time.

use std::process::{Command, Stdio};

use super::{Step, Task, step};

pub(crate) const LOOM: Task = Task {
    name: "loom",
    purpose: "the pool's protocols between threads, in every interleaving",
    steps: &[rustflags(
        "--cfg loom",
        "cargo test --release --target-dir target/loom --package spliceway-core --lib loom_tests",
    )],
};

pub(crate) const MIRI: Task = Task {
    name: "miri",
    purpose: "undefined behaviour, where no system call is made (nightly)",
    steps: &[
        step("cargo +nightly miri test --target-dir target/miri --package spliceway --lib"),
        step("cargo +nightly miri test --target-dir target/miri --package spliceway-core --test it -- transfer::"),
    ],
};

pub(crate) const TSAN: Task = Task {
    name: "tsan",
    purpose: "data races, in tests of the pool and of the relay (nightly)",
    steps: &[
        // The build is slightly optimized. Otherwise, the tests need minutes to compare patterns.
        // The sanitizer does not support threads that start after a fork.
        rustflags(
            "-Zsanitizer=thread",
            "cargo +nightly test --config profile.dev.opt-level=1 -Zbuild-std --target x86_64-unknown-linux-gnu \
             --target-dir target/tsan --package spliceway-core --test it -- pool --skip fork",
        ),
        // The other tests run on one thread, move far more bytes, or count system calls. The
        // sanitizer adds its own system calls.
        rustflags(
            "-Zsanitizer=thread",
            "cargo +nightly test --config profile.dev.opt-level=1 -Zbuild-std --target x86_64-unknown-linux-gnu \
             --target-dir target/tsan --package spliceway --test it -- pitfalls::limits pitfalls::counted pitfalls::ended",
        ),
    ],
};

/// The checks before a release. `+MSRV` means the toolchain of `rust-version`.
pub(crate) const RELEASE: Task = Task {
    name: "release",
    purpose: "packages, minimum versions, docs.rs and other systems (MSRV and nightly toolchains)",
    steps: &[
        // Nobody debugs these builds.
        step(
            "cargo --config profile.dev.debug=0 --config profile.dev.incremental=false publish --dry-run \
             --allow-dirty --package spliceway-core --package spliceway --package spliceway-protocol \
             --package spliceway-load --package spliceway-lab --package spliceway-operator --package spliceway-proxy",
        ),
        step("cargo +MSRV check --target-dir target/msrv --package spliceway --all-features --package spliceway-proxy"),
        step(
            "cargo +nightly check -Zdirect-minimal-versions --config resolver.lockfile-path=\"target/minimal/Cargo.lock\" \
             --target-dir target/minimal --package spliceway --all-features --package spliceway-proxy",
        ),
        Step {
            variable: Some(("RUSTDOCFLAGS", "--cfg docsrs -D warnings")),
            line: "cargo +nightly doc --target-dir target/docsrs --no-deps --all-features --package spliceway-core \
                   --package spliceway --package spliceway-protocol --package spliceway-load",
        },
        rustflags(
            "-D warnings",
            "cargo check --target-dir target/elsewhere --package spliceway --target x86_64-apple-darwin",
        ),
        rustflags(
            "-D warnings",
            "cargo check --target-dir target/elsewhere --package spliceway --target x86_64-pc-windows-gnu",
        ),
    ],
};

const fn rustflags(flags: &'static str, line: &'static str) -> Step {
    Step {
        variable: Some(("RUSTFLAGS", flags)),
        line,
    }
}

/// A tool or a toolchain, the words of a step that need it, a shell command that finds it, and the
/// command that installs it. `MSRV` means the version of `rust-version`.
const TOOLS: &[(&str, &str, &str, &str)] = &[
    (
        "cargo-deny",
        "cargo deny",
        "cargo deny --version",
        "cargo install cargo-deny --locked --version 0.20.2",
    ),
    (
        "the nightly toolchain",
        "+nightly",
        "cargo +nightly --version",
        "rustup toolchain install nightly --profile minimal",
    ),
    (
        "miri of the nightly toolchain",
        "+nightly miri",
        "cargo +nightly miri --version",
        "rustup toolchain install nightly --profile minimal --component miri,rust-src",
    ),
    (
        "rust-src of the nightly toolchain",
        "-Zbuild-std",
        "test -d \"$(rustc +nightly --print sysroot)/lib/rustlib/src\"",
        "rustup toolchain install nightly --profile minimal --component rust-src",
    ),
    (
        "Rust MSRV",
        "+MSRV",
        "cargo +MSRV --version",
        "rustup toolchain install MSRV --profile minimal",
    ),
    (
        "the standard library of another system",
        "--target x86_64-",
        "cd \"$(rustc --print sysroot)/lib/rustlib\" && ls -d x86_64-apple-darwin x86_64-pc-windows-gnu",
        "rustup target add x86_64-apple-darwin x86_64-pc-windows-gnu",
    ),
];

/// Checks before the first step that every tool of the task is there.
pub(crate) fn find_tools(task: &Task) -> Result<(), String> {
    for (tool, words, probe, install) in TOOLS {
        if task.steps.iter().any(|step| step.line.contains(words)) {
            require(&with_msrv(tool), &with_msrv(probe), &with_msrv(install))?;
        }
    }
    Ok(())
}

/// Checks that a shell command succeeds, or names the tool that is missing.
pub(crate) fn require(tool: &str, probe: &str, install: &str) -> Result<(), String> {
    let found = Command::new("sh")
        .args(["-c", probe])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!("xtask: {tool} is missing; install it with\n\n    {install}\n")),
    }
}

pub(crate) fn with_msrv(text: &str) -> String {
    text.replace("MSRV", env!("CARGO_PKG_RUST_VERSION"))
}
