//! The system calls, the allocations and the memory of a session, counted from outside.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use rustix::process::Signal;
use spliceway_net::has_tool;

use crate::clients::{AGREED, GREETING, ip_request, read_head};
use crate::harness::{Program, TextFile, accept, listen, read_all, read_exactly};

/// The calls of one session of `forward` with one request and one answer: the name of each call,
/// and its maximum count. The table in `docs/design/007-the-cost-of-a-session.md` gives the reason
/// for each call.
const CALLS: &[(&str, usize)] = &[
    ("accept4", 2),
    ("socket", 1),
    ("connect", 1),
    // A connection to itself is refused.
    ("getsockname", 1),
    ("setsockopt", 4),
    ("getsockopt", 1),
    ("epoll_ctl", 4),
    ("recvfrom", 4),
    ("sendto", 2),
    ("shutdown", 2),
    ("close", 2),
    ("poll", 2),
    // In a debug build, the standard library checks each descriptor before it closes it.
    ("fcntl", 2),
];

/// The most allocations of one session of `forward`. A message causes none.
const ALLOCATIONS: usize = 14;

/// The most bytes that an idle session has allocated, in each kind of service. The table in
/// `docs/design/019-memory-of-a-session.md` says for what.
const IDLE_BYTES: usize = 2250;

/// Runs `forward` under `tool` with this number of sessions, one after another, and this number of
/// requests in each session.
fn run(mut tool: Command, sessions: usize, requests: usize) {
    let (listener, target) = listen();
    tool.arg(env!("CARGO_BIN_EXE_spliceway"));
    tool.args(["forward", "-l", "127.0.0.1:0", "-r"]);
    tool.args([&target.to_string(), "--workers", "1"]);
    let mut program = Program::spawn(tool, false);
    for _ in 0..sessions {
        let mut client = program.connect();
        client.write_all(b"request").unwrap();
        let mut target = accept(&listener);
        assert_eq!(read_exactly(&mut target, 7), b"request");
        for _ in 1..requests {
            target.write_all(b"answer").unwrap();
            assert_eq!(read_exactly(&mut client, 6), b"answer");
            client.write_all(b"request").unwrap();
            assert_eq!(read_exactly(&mut target, 7), b"request");
        }
        target.write_all(&[7; 1024]).unwrap();
        drop(target);
        assert_eq!(read_all(&client).len(), 1024);
        drop(client);
        program.line("end=upstream_eof");
    }
    program.terminate();
    assert!(program.exit().success());
}

/// Returns the system calls of such a run with one request in each session.
fn calls_of(sessions: usize) -> BTreeMap<String, usize> {
    let trace = TextFile::new("");
    let mut strace = Command::new("strace");
    // With -D, the program is this test's child, and strace is not.
    strace.args(["-D", "-f", "-o", trace.path()]);
    run(strace, sessions, 1);
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

/// Returns the number of allocations of such a run, which valgrind counts.
fn allocations_of(sessions: usize, requests: usize) -> usize {
    let report = TextFile::new("");
    run(valgrind(&report), sessions, requests);
    // `total heap usage: 1,234 allocs, 1,200 frees, 123,456 bytes allocated`
    number_between(&report, "total heap usage: ", " allocs")
}

/// Returns a command that writes what valgrind counts to `report`.
fn valgrind(report: &TextFile) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg(format!("--log-file={}", report.path()));
    // Only the counts are needed, so valgrind does not search for leaks or undefined values.
    valgrind.args(["--leak-check=no", "--undef-value-errors=no"]);
    valgrind
}

/// Returns the number between two texts of a report.
fn number_between(report: &TextFile, before: &str, after: &str) -> usize {
    let report = fs::read_to_string(report.path()).unwrap();
    let (_, number) = report.split_once(before).expect(&report);
    let (number, _) = number.split_once(after).expect(&report);
    number.replace(',', "").parse().unwrap()
}

#[test]
fn a_session_makes_few_allocations_and_a_message_makes_none() {
    const MORE: usize = 20;
    if !has_tool("valgrind", "valgrind") {
        return;
    }
    let one = allocations_of(1, 1);
    let of_session = (allocations_of(1 + MORE, 1).saturating_sub(one) + MORE / 2) / MORE;
    assert!(of_session <= ALLOCATIONS, "{of_session} allocations per session");
    let of_message = (allocations_of(1, 1 + MORE).saturating_sub(one) + MORE / 2) / MORE;
    assert_eq!(of_message, 0, "allocations per message");
}

/// Returns the number of bytes that a program of this kind has allocated while this number of
/// sessions are idle. valgrind counts them.
fn bytes_with(kind: &str, sessions: usize) -> usize {
    let report = TextFile::new("");
    let mut valgrind = valgrind(&report);
    valgrind.arg(env!("CARGO_BIN_EXE_spliceway"));
    valgrind.args([kind, "-l", "127.0.0.1:0", "--workers", "1"]);
    let (listener, target) = listen();
    if kind == "forward" {
        valgrind.args(["-r", &target.to_string()]);
    }
    let mut program = Program::spawn(valgrind, false);
    let idle: Vec<_> = (0..sessions)
        .map(|_| {
            let mut client = program.connect();
            match kind {
                "http" => {
                    write!(client, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
                    read_head(&mut client);
                }
                "socks5" => {
                    client.write_all(&GREETING).unwrap();
                    read_exactly(&mut client, AGREED.len());
                    client.write_all(&ip_request(target)).unwrap();
                    read_exactly(&mut client, 10);
                }
                _ => {}
            }
            let mut target = accept(&listener);
            client.write_all(b"request").unwrap();
            assert_eq!(read_exactly(&mut target, 7), b"request");
            target.write_all(b"answer").unwrap();
            assert_eq!(read_exactly(&mut client, 6), b"answer");
            (client, target)
        })
        .collect();
    // The program does not handle this signal, so valgrind counts what the sessions have.
    program.signal(Signal::ALARM);
    assert!(!program.exit().success());
    drop(idle);
    // `in use at exit: 123,456 bytes in 1,234 blocks`
    number_between(&report, "in use at exit: ", " bytes")
}

#[test]
fn an_idle_session_of_each_kind_holds_a_bounded_number_of_bytes() {
    // The lists of open sessions have room for a power of two.
    const FEW: usize = 32;
    const MANY: usize = 64;
    if !has_tool("valgrind", "valgrind") {
        return;
    }
    for kind in ["forward", "http", "socks5"] {
        let (few, many) = (bytes_with(kind, FEW), bytes_with(kind, MANY));
        let of_session = (many - few) / (MANY - FEW);
        assert!(of_session <= IDLE_BYTES, "{kind}: {of_session} bytes per idle session");
        println!("{kind}: {of_session} bytes per idle session");
    }
}
