//! Checks that build the code in special ways, for example for loom, miri and the thread sanitizer.
//!
//! Each check has its own target folder, because different flags need different builds. The steps
//! select tests by name. They omit tests that such a build cannot run, or cannot run in a
//! reasonable time.

use std::process::{Command, Stdio};

use super::{Step, Task, step};

/// This check runs with stable Rust.
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

/// Checks before the first step whether the nightly toolchain has the components that the task's
/// steps need.
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
        // Some components have the target in their names: `miri-x86_64-unknown-linux-gnu`, but
        // `rust-src`.
        listed.lines().any(|line| line.starts_with(component))
    })
}
