//! Runs a test in a process of its own: the test binary starts itself for that test.

use std::os::unix::process::CommandExt;
use std::process::Command;

const CHILD: &str = "SPLICEWAY_TEST_CHILD";

/// Runs `body` in a process of its own, as this user or another one. Returns the output. `test` is
/// the calling test's full name.
pub(crate) fn in_child(test: &str, uid: Option<u32>, body: impl FnOnce()) -> String {
    if std::env::var_os(CHILD).is_some_and(|name| name == test) {
        body();
        return String::new();
    }
    let mut child = Command::new("/proc/self/exe");
    child
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, test);
    if let Some(uid) = uid {
        child.uid(uid);
    }
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test} in its own process: {}\n{said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said.into_owned()
}

/// Returns the number of descriptors open in this process now.
pub(crate) fn open_descriptors() -> usize {
    // One of them is the directory itself.
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Runs `body` on a new runtime with one thread.
pub(crate) fn block_on<T>(body: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(super::guard(body))
}
