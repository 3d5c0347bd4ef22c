//! Tests that need a process to themselves: for their descriptors, their limits or their user.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use rustix::process::{Resource, getrlimit, getuid, setrlimit};

use super::TempFile;

/// Names the one test a child runs.
const CHILD: &str = "SPLICEWAY_TEST_CHILD";

/// One child runs at a time, as children count and use up what is shared. (Also, a copy of a
/// program cannot be run while a process that was forked meanwhile still has it open for writing.)
static ONE_CHILD: Mutex<()> = Mutex::new(());

/// Runs `body` in a process where nothing else runs: the test `name` (its path in this binary),
/// started anew.
pub(crate) fn alone(name: &str, body: impl FnOnce()) {
    if is_child_for(name) {
        return body();
    }
    let _one = ONE_CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    let program = env::current_exe().expect("this program");
    run(Command::new(program), name);
}

/// Runs `body` like [`alone`], as a user without privileges who owns no other process. Only root
/// can do so. For other users, the test says so and skips.
pub(crate) fn unprivileged(name: &str, body: impl FnOnce()) {
    if is_child_for(name) {
        return body();
    }
    if !getuid().is_root() {
        eprintln!("{name} skipped: it needs root, to become a user whose limits nobody else uses");
        return;
    }
    let _one = ONE_CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    // A copy of this program where every user can execute it, which a build directory need not
    // allow.
    let program = TempFile::new("program");
    fs::copy(env::current_exe().expect("this program"), &program.path).expect("a copy of this program");
    let mut command = Command::new(&program.path);
    let nobody_else = 20_000 + std::process::id() % 40_000;
    command.uid(nobody_else).gid(nobody_else).current_dir("/");
    run(command, name);
}

/// Lowers this process's soft limit on descriptors, or raises it as far as it goes.
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
    // One of them was the directory being read.
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

/// Opens pipes until this user may have no more pages. Where there is no limit, prints a line that
/// says so, and returns `None`.
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
    // The largest pipes come first. The rest of the pages is less than one of them has, and goes to
    // pipes of 16 pages and of 2.
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
