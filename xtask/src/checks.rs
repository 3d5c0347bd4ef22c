//! Checks that build the code in ways of their own: loom, miri and the thread sanitizer.
//!
//! Each has a target folder of its own, as other flags make other builds. Tests that such a build
//! cannot run, or not in time, are left out by name.

use std::process::{Command, Stdio};

use super::{Step, Task, step};

/// With stable Rust.
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
        // Optimized a little: the patterns that tests compare take minutes otherwise. The sanitizer
        // does not support threads that begin after a fork.
        rustflags(
            "-Zsanitizer=thread",
            "cargo +nightly test --config profile.dev.opt-level=1 -Zbuild-std --target x86_64-unknown-linux-gnu \
             --target-dir target/tsan --package spliceway-core --test it -- pool --skip fork",
        ),
        // The others run on one thread each, move far more, or count system calls, to which the
        // sanitizer adds its own.
        rustflags(
            "-Zsanitizer=thread",
            "cargo +nightly test --config profile.dev.opt-level=1 -Zbuild-std --target x86_64-unknown-linux-gnu \
             --target-dir target/tsan --package spliceway --test it -- pitfalls::limits pitfalls::counted pitfalls::ended",
        ),
    ],
};

/// What publishing needs. `+MSRV` stands for the toolchain of `rust-version`.
pub(crate) const RELEASE: Task = Task {
    name: "release",
    purpose: "packages, minimum versions, docs.rs and other systems (MSRV and nightly toolchains)",
    steps: &[
        step(
            "cargo publish --dry-run --allow-dirty --package spliceway-core --package spliceway \
             --package spliceway-protocol --package spliceway-proxy",
        ),
        step("cargo +MSRV check --target-dir target/msrv --package spliceway --all-features --package spliceway-proxy"),
        step(
            "cargo +nightly check -Zdirect-minimal-versions --config resolver.lockfile-path=\"target/minimal/Cargo.lock\" \
             --target-dir target/minimal --package spliceway --all-features --package spliceway-proxy",
        ),
        Step {
            variable: Some(("RUSTDOCFLAGS", "--cfg docsrs -D warnings")),
            line: "cargo +nightly doc --target-dir target/docsrs --no-deps --all-features --package spliceway-core \
                   --package spliceway --package spliceway-protocol",
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

/// Checks before the first step whether there is a nightly toolchain with what the task's steps
/// need of it.
pub(crate) fn find_nightly(task: &Task) -> Result<(), String> {
    for (sign, component) in [("+nightly miri", "miri"), ("-Zbuild-std", "rust-src")] {
        let needed = task.steps.iter().any(|step| step.line.contains(sign));
        if needed && !has_component(component) {
            return Err(format!(
                "xtask: {}: {component} of the nightly toolchain is missing; install it with\n\n    \
                 rustup toolchain install nightly --profile minimal --component {component}\n",
                task.name
            ));
        }
    }
    Ok(())
}

fn has_component(component: &str) -> bool {
    let listed = Command::new("rustup")
        .args(["component", "list", "--installed", "--toolchain", "nightly"])
        .stderr(Stdio::null())
        .output();
    listed.is_ok_and(|listed| {
        let listed = String::from_utf8_lossy(&listed.stdout);
        // `miri-x86_64-unknown-linux-gnu`, but `rust-src`.
        listed.lines().any(|line| line.starts_with(component))
    })
}
