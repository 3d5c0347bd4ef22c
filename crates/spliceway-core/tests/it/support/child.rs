//! Runs tests that need a separate process, because of its descriptors, its limits or its user.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use rustix::process::{Resource, getrlimit, getuid, setrlimit};

use super::TempFile;

/// The environment variable that names the test that a child runs.
const CHILD: &str = "SPLICEWAY_TEST_CHILD";

/// Only one child runs at a time, because children count and use up shared resources. (There is a
/// second reason: a copy of a program cannot be executed while another forked process has the copy
/// open for writing.)
static ONE_CHILD: Mutex<()> = Mutex::new(());

/// Runs `body` in a process where nothing else runs. This function starts this binary again, and
/// the new process runs only the test `name` (its path in the binary).
pub(crate) fn alone(name: &str, body: impl FnOnce()) {
    if is_child_for(name) {
        return body();
    }
    let _one = ONE_CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    let program = env::current_exe().expect("this program");
    run(Command::new(program), name);
}

/// Does the same as [`alone`], but as an unprivileged user who owns no other process. Only root can
/// do this. For other users, the function prints a message and skips the test.
pub(crate) fn unprivileged(name: &str, body: impl FnOnce()) {
    if is_child_for(name) {
        return body();
    }
    if !getuid().is_root() {
        eprintln!("{name} skipped: it needs root, to become a user whose limits nobody else uses");
        return;
    }
    let _one = ONE_CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    // The copy is in a directory where every user can execute it. A build directory might not allow
    // this.
    let program = TempFile::new("program");
    fs::copy(env::current_exe().expect("this program"), &program.path).expect("a copy of this program");
    let mut command = Command::new(&program.path);
    let nobody_else = 20_000 + std::process::id() % 40_000;
    command.uid(nobody_else).gid(nobody_else).current_dir("/");
    run(command, name);
}

/// Sets this process's soft limit on descriptors, but not above the hard limit.
pub(crate) fn limit_descriptors(soft: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(limit.maximum.map_or(soft, |hard| soft.min(hard)));
    setrlimit(Resource::Nofile, limit).expect("RLIMIT_NOFILE");
}

/// Returns this process's open descriptors, in order.
pub(crate) fn descriptors() -> Vec<u32> {
    let listed = fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    let numbers = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut open: Vec<u32> = numbers.collect();
    // One of them was the listed directory itself, which is closed now.
    open.retain(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).is_ok());
    open.sort_unstable();
    open
}

fn is_child_for(name: &str) -> bool {
    env::var_os(CHILD).is_some_and(|child| child == name)
}

fn run(mut command: Command, name: &str) {
    let output = command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .output()
        .expect("the child starts");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "there is no test {name}:\n{out}");
}

/// Opens pipes until this user reaches the soft limit on pages. If there is no limit, prints a
/// message and returns `None`.
pub(crate) fn fill_the_soft_limit() -> Option<Vec<(OwnedFd, OwnedFd)>> {
    let soft: usize = fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    if soft == 0 {
        eprintln!("skipped: no soft limit on this machine");
        return None;
    }
    limit_descriptors(u64::MAX);
    let mut held = Vec::new();
    // The largest pipes come first. When the kernel does not allow another one, the remaining pages
    // go to pipes of 16 pages.
    loop {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("pipe2");
        let born = fcntl_getpipe_size(&writer).expect("F_GETPIPE_SZ");
        if born < 64 << 10 {
            return Some(held);
        }
        let _ = fcntl_setpipe_size(&writer, 1 << 20);
        held.push((reader, writer));
    }
}
