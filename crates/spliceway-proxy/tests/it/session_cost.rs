//! The system calls of a session, counted from outside with strace.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use spliceway_net::has_tool;

use crate::harness::{Program, TextFile, accept, listen, read_all, read_exactly};

/// The calls of one session of `forward` with one request and one answer: the name of each call,
/// and its maximum count. The table in `docs/design/007-the-cost-of-a-session.md` gives the reason
/// for each call.
const CALLS: &[(&str, usize)] = &[
    ("accept4", 2),
    ("socket", 1),
    ("connect", 1),
    ("setsockopt", 4),
    ("getsockopt", 3),
    ("epoll_ctl", 4),
    ("recvfrom", 5),
    ("sendto", 2),
    ("shutdown", 2),
    ("close", 2),
    ("poll", 2),
    // In a debug build, the standard library checks each descriptor before it closes it.
    ("fcntl", 2),
];

/// Returns the calls of a run of `forward` with this number of sessions, one after another.
fn calls_of(sessions: usize) -> BTreeMap<String, usize> {
    let (listener, target) = listen();
    let trace = TextFile::new("");
    let mut strace = Command::new("strace");
    // With -D, the program is this test's child, and strace is not.
    strace.args(["-D", "-f", "-o", trace.path(), env!("CARGO_BIN_EXE_spliceway")]);
    strace.args([
        "forward",
        "-l",
        "127.0.0.1:0",
        "-r",
        &target.to_string(),
        "--workers",
        "1",
    ]);
    let mut program = Program::spawn(strace, false);
    for _ in 0..sessions {
        let mut client = program.connect();
        client.write_all(b"request").unwrap();
        let mut target = accept(&listener);
        assert_eq!(read_exactly(&mut target, 7), b"request");
        target.write_all(&[7; 1024]).unwrap();
        drop(target);
        assert_eq!(read_all(&client).len(), 1024);
        drop(client);
        program.line("end=upstream_eof");
    }
    program.terminate();
    assert!(program.exit().success());
    let mut calls = BTreeMap::new();
    let mut text = String::new();
    fs::File::open(trace.path()).unwrap().read_to_string(&mut text).unwrap();
    for line in text.lines() {
        // `1234 close(5) = 0`. A line with `<... close resumed>` is the second line of a call.
        let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
        let name = call.split('(').next().unwrap_or_default();
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

#[test]
fn a_session_of_a_forwarder_makes_no_more_than_these_calls() {
    const SESSIONS: usize = 20;
    if !has_tool("strace", "strace") {
        return;
    }
    let (few, many) = (calls_of(1), calls_of(1 + SESSIONS));
    let per_session = |name: &str| {
        let count = |calls: &BTreeMap<String, usize>| calls.get(name).copied().unwrap_or(0);
        // The result is rounded to the nearest whole number, because a few calls depend on time.
        (count(&many).saturating_sub(count(&few)) + SESSIONS / 2) / SESSIONS
    };
    for (name, most) in CALLS {
        let calls = per_session(name);
        assert!(calls <= *most, "{name}: {calls} calls per session, at most {most}");
    }
    // How often a thread waits depends on time.
    let waits = ["epoll_wait", "futex", "write", "restart_syscall"];
    let known = |name: &str| waits.contains(&name) || CALLS.iter().any(|(known, _)| *known == name);
    for name in many.keys().filter(|name| !known(name)) {
        assert_eq!(per_session(name), 0, "{name}");
    }
}
