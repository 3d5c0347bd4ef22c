//! What `spliceway doctor` says where zero copy works, and where something is in its way.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use serde_json::Value;
use spliceway_net::has_tool;

const DOCTOR: &str = env!("CARGO_BIN_EXE_spliceway");
/// Denies splice(2) to itself, and executes its arguments.
const DENY_SPLICE: &str = "
import ctypes, os, platform, struct, sys
number = {'x86_64': 275, 'aarch64': 76}[platform.machine()]
load, compare, answer = 0x20, 0x15, 0x06
rules = [(load, 0, 0, 0), (compare, 0, 1, number), (answer, 0, 0, 0x50001), (answer, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack('HP', len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

/// The answer of `spliceway doctor --json`.
struct Answer {
    code: Option<i32>,
    /// `None` if the checks cannot tell.
    zero_copy: Option<bool>,
    checks: HashMap<String, Value>,
}

impl Answer {
    fn of(output: Output) -> Self {
        let text = String::from_utf8(output.stdout).unwrap();
        let json: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        let checks = json["checks"].as_array().unwrap().iter();
        Self {
            code: output.status.code(),
            zero_copy: json["zero_copy"].as_bool(),
            checks: checks
                .map(|check| (check["check"].as_str().unwrap().to_owned(), check.clone()))
                .collect(),
        }
    }

    fn verdict(&self, check: &str) -> &str {
        self.checks[check]["verdict"].as_str().unwrap()
    }

    fn text(&self, check: &str, field: &str) -> &str {
        self.checks[check][field].as_str().unwrap()
    }
}

fn doctor() -> Command {
    let mut command = Command::new(DOCTOR);
    command.args(["doctor", "--json"]);
    command
}

fn run(mut command: Command) -> Answer {
    Answer::of(command.output().unwrap())
}

/// A copy of the program that every user may execute, and a user who owns no other process.
struct OtherUser {
    program: PathBuf,
    user: u32,
}

impl OtherUser {
    /// Returns `None` without root, and says that the test is skipped.
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::getuid().is_root() {
            eprintln!("{name} skipped: it needs root, to become a user whose limits nobody else uses");
            return None;
        }
        // Tests that run at the same time are different users.
        static USERS: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id() * 8 + USERS.fetch_add(1, Ordering::Relaxed);
        let user = 20_000 + number % 40_000;
        let program = env::temp_dir().join(format!("spliceway-doctor-{}-{name}", std::process::id()));
        Some(Self { program, user })
    }

    fn copy_of(&self, program: &Path) -> Command {
        fs::copy(program, &self.program).unwrap();
        let mut command = Command::new(&self.program);
        command.uid(self.user).gid(self.user).current_dir("/");
        command
    }
}

impl Drop for OtherUser {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.program);
    }
}

#[test]
fn doctor_finds_the_behaviour_of_the_kernel_that_the_relay_relies_on() {
    let answer = run(doctor());
    assert_eq!((answer.code, answer.zero_copy), (Some(0), Some(true)));
    for check in [
        "splice",
        "socket-kinds",
        "new-pipe",
        "pool",
        "pipe-rounding",
        "slots",
        "length",
        "nonblock-pipe",
        "nonblock-socket",
        "urgent-mark",
        "false-end",
    ] {
        assert_eq!(answer.verdict(check), "ok", "{}", answer.checks[check]);
    }
    // These measure time, or depend on the machine.
    for check in [
        "one-call",
        "stall",
        "more",
        "descriptors",
        "tcp-buffers",
        "congestion",
        "kernel",
    ] {
        assert!(
            ["ok", "differs"].contains(&answer.verdict(check)),
            "{}",
            answer.checks[check]
        );
    }
    let page = include_str!("../../../../docs/splice.md");
    for check in answer.checks.keys() {
        assert!(
            page.contains(&format!("[{check}]")),
            "docs/splice.md does not explain {check}"
        );
    }
    assert_eq!(
        answer.text("pipe-rounding", "observed"),
        "2048→4096 4096→4096 8192→8192 12288→16384 16384→16384 20480→32768"
    );
}

#[test]
fn doctor_prints_at_most_80_columns_and_no_colours_into_a_file() {
    for (arguments, lines) in [(&["doctor"][..], 5..=20), (&["doctor", "-v"], 60..=150)] {
        let output = Command::new(DOCTOR).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("Zero copy works here."), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        assert!(lines.contains(&text.lines().count()), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn doctor_shows_what_needs_attention_and_counts_the_rest() {
    if !has_tool("prlimit", "util-linux") {
        return;
    }
    let mut command = Command::new("prlimit");
    let output = command.args(["--nofile=256:256", DOCTOR, "doctor"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "differs the limit on descriptors: hard limit 256: 83 sessions → LimitNOFILE=1048576",
        "ok Zero copy: 2 of 2 checks",
        "`-v` shows every check",
    ] {
        assert!(words.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("[splice]"), "{text}");
}

#[test]
fn doctor_says_that_a_filter_denies_splice() {
    if !has_tool("python3", "python3") {
        return;
    }
    let mut command = Command::new("python3");
    command.args(["-c", DENY_SPLICE, DOCTOR, "doctor", "--json"]);
    let answer = run(command);
    assert_eq!((answer.code, answer.zero_copy), (Some(1), Some(false)));
    assert_eq!(answer.verdict("splice"), "differs");
    assert!(answer.text("splice", "observed").contains("EPERM"));
    assert!(answer.text("splice", "advice").contains("SystemCallFilter="));
    assert_eq!(answer.verdict("new-pipe"), "ok");
    // Without splice, an experiment says nothing about the kernel.
    for check in ["socket-kinds", "slots", "nonblock-socket", "false-end", "more"] {
        assert_eq!(answer.verdict(check), "cannot-tell", "{}", answer.checks[check]);
    }
}

#[test]
fn doctor_needs_no_privileges_and_can_use_up_the_pipes_of_its_user() {
    let Some(other) = OtherUser::new("unprivileged") else {
        return;
    };
    let mut command = other.copy_of(Path::new(DOCTOR));
    command.args(["doctor", "--json", "--exhaust"]);
    let answer = run(command);
    assert_eq!((answer.code, answer.zero_copy), (Some(0), Some(true)));
    assert_eq!(answer.text("capabilities", "observed"), "none");
    let soft: usize = fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    if soft > 0 {
        let pool = answer.text("pool", "observed");
        assert!(pool.ends_with(&format!(" and {} pages", soft / 2)), "{pool}");
        assert_eq!(
            answer.verdict("pipe-exhaust"),
            "ok",
            "{}",
            answer.checks["pipe-exhaust"]
        );
        let left = format!("There were {soft} pages left for this user.");
        assert!(answer.text("pipe-exhaust", "consequence").starts_with(&left));
    }
}

/// The limit counts the pages of a user, so a second process of that user holds them.
#[test]
fn doctor_says_that_the_soft_limit_on_pipe_pages_is_reached() {
    const NAME: &str = "doctor::doctor_says_that_the_soft_limit_on_pipe_pages_is_reached";
    const PROGRAM: &str = "SPLICEWAY_TEST_DOCTOR";
    if let Some(program) = env::var_os(PROGRAM) {
        let mut held = Vec::new();
        while let Ok((outlet, inlet)) = pipe_with(PipeFlags::CLOEXEC) {
            if fcntl_getpipe_size(&inlet).unwrap() < 64 << 10 {
                break;
            }
            let _ = fcntl_setpipe_size(&inlet, 1 << 20);
            held.push((outlet, inlet));
        }
        let output = Command::new(program).args(["doctor", "--json"]).output().unwrap();
        let answer = Answer::of(output);
        assert_eq!((answer.code, answer.zero_copy), (Some(1), Some(false)));
        assert_eq!(answer.verdict("splice"), "ok");
        assert_eq!(answer.verdict("new-pipe"), "differs");
        assert_eq!(answer.text("new-pipe", "observed"), "8192 bytes");
        let advice = answer.text("new-pipe", "advice");
        assert!(advice.contains("sysctl -w fs.pipe-user-pages-soft="), "{advice}");
        assert_eq!(answer.verdict("pool"), "differs");
        return;
    }
    let (Some(other), Some(tests)) = (OtherUser::new("soft"), OtherUser::new("soft-tests")) else {
        return;
    };
    if fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").unwrap().trim() == "0" {
        eprintln!("skipped: no soft limit on this machine");
        return;
    }
    let _copied = other.copy_of(Path::new(DOCTOR));
    let mut command = tests.copy_of(&env::current_exe().unwrap());
    let output = command
        .args([NAME, "--exact", "--nocapture"])
        .env(PROGRAM, &other.program)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn doctor_works_with_few_descriptors_and_says_how_to_get_more() {
    if !has_tool("prlimit", "util-linux") {
        return;
    }
    let mut command = Command::new("prlimit");
    command.args(["--nofile=256:256", DOCTOR, "doctor", "--json"]);
    let answer = run(command);
    assert_eq!((answer.code, answer.zero_copy), (Some(0), Some(true)));
    assert_eq!(answer.verdict("descriptors"), "differs");
    assert!(answer.text("descriptors", "observed").ends_with(": 83 sessions"));
    assert!(answer.text("descriptors", "advice").starts_with("LimitNOFILE="));
}

#[test]
fn doctor_works_if_it_can_start_no_thread() {
    if !has_tool("prlimit", "util-linux") {
        return;
    }
    let Some(other) = OtherUser::new("threads") else {
        return;
    };
    let program = other.copy_of(Path::new(DOCTOR));
    let mut command = Command::new("prlimit");
    command.arg("--nproc=1:1").arg(program.get_program());
    command.args(["doctor", "--json"]).uid(other.user).gid(other.user);
    let answer = run(command);
    assert_eq!((answer.code, answer.zero_copy), (Some(0), Some(true)));
    assert_eq!(answer.verdict("more"), "cannot-tell");
}

#[test]
fn doctor_says_that_there_are_no_pipes() {
    if !has_tool("strace", "strace") {
        return;
    }
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "inject=pipe2:error=EMFILE"]);
    command.args([DOCTOR, "doctor", "--json"]);
    let answer = run(command);
    assert_eq!((answer.code, answer.zero_copy), (Some(1), Some(false)));
    assert_eq!(answer.verdict("splice"), "cannot-tell");
    assert_eq!(answer.text("new-pipe", "observed"), "EMFILE");
}

#[test]
fn doctor_says_that_there_is_no_loopback() {
    if !has_tool("unshare", "util-linux") || !rustix::process::getuid().is_root() {
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["--net", DOCTOR, "doctor", "--json"]);
    let answer = run(command);
    assert_eq!((answer.code, answer.zero_copy), (Some(0), Some(true)));
    assert!(answer.text("splice", "observed").starts_with("Unix sockets"));
    assert_eq!(answer.verdict("socket-kinds"), "cannot-tell");
    assert_eq!(answer.verdict("urgent-mark"), "cannot-tell");
    assert!(
        answer
            .text("urgent-mark", "observed")
            .contains("is the interface lo up?")
    );
}
