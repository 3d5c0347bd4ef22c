use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spliceway_net::has_tool;

use crate::harness::{
    Program, accept, assert_same, is_closed, listen, pattern, read_all, read_exactly, send_and_finish,
};

/// The exit code after a stop that cut sessions.
pub(crate) const CUT: i32 = 3;

/// Starts a program with one session that has moved a byte.
fn with_a_session(arguments: &[&str]) -> (Program, TcpStream, TcpStream) {
    let (listener, address) = listen();
    let program = Program::forward(address, arguments);
    let (mut client, mut target) = (program.connect(), accept(&listener));
    client.write_all(b"x").unwrap();
    assert_eq!(read_exactly(&mut target, 1), b"x");
    (program, client, target)
}

#[test]
fn an_idle_program_stops_immediately() {
    let (_listener, address) = listen();
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = Program::forward_with_hangup("--default-signal=HUP", address);
        program.signal(signal);
        assert_eq!(program.exit().code(), Some(0), "{signal:?}");
    }
}

/// When a terminal closes, both the kernel and the shell send SIGHUP. A service manager may also
/// send SIGTERM.
#[test]
fn a_closed_terminal_and_the_first_signal_after_it_cut_no_session() {
    if !has_tool("setsid", "util-linux") {
        return;
    }
    let (listener, address) = listen();
    for after in [&[Signal::HUP][..], &[Signal::TERM], &[Signal::HUP, Signal::INT]] {
        let (mut program, terminal) = Program::on_terminal(address);
        assert!(program.reload().contains("reloaded"), "the terminal is open");
        let (client, mut target) = (program.connect(), accept(&listener));
        (&client).write_all(b"x").unwrap();
        assert_eq!(read_exactly(&mut target, 1), b"x");
        drop(terminal);
        program.line("draining");
        for signal in after {
            program.signal(*signal);
        }
        // The program answers this request after it has received the signals.
        assert!(program.get("/readyz").starts_with("HTTP/1.1 503"));
        target.write_all(b"the rest").unwrap();
        target.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&client), b"the rest", "{after:?}");
        drop(client);
        assert_eq!(program.exit().code(), Some(0));
        assert_eq!(program.lines_with("end=drained"), 0, "{after:?}");
    }
}

#[test]
fn an_initially_ignored_hangup_stays_ignored() {
    let (_listener, address) = listen();
    let mut program = Program::forward_with_hangup("--ignore-signal=HUP", address);
    assert!(program.get("/readyz").starts_with("HTTP/1.1 200"), "it has started");
    assert!(program.ignores(Signal::HUP));
    program.terminate();
    assert_eq!(program.exit().code(), Some(0));
}

#[test]
fn a_drain_accepts_no_client_and_lets_a_transfer_finish() {
    let (mut program, client, mut target) = with_a_session(&[]);
    assert!(program.get("/readyz").starts_with("HTTP/1.1 200"));
    program.terminate();
    program.line("draining");
    assert!(program.line("draining: ").contains("draining: 1 session, longest "));
    assert!(TcpStream::connect(program.address).is_err(), "the listener is closed");
    assert!(TcpListener::bind(program.address).is_ok(), "and its address is free");
    assert!(program.get("/readyz").starts_with("HTTP/1.1 503"));
    let rest = pattern(1, 100_000);
    target.write_all(&rest).unwrap();
    target.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), rest);
    drop(client);
    assert_eq!(program.exit().code(), Some(0));
    assert_eq!(program.lines_with("end=drained"), 0);
}

#[test]
fn a_drain_under_load_lets_every_transfer_finish() {
    const SESSIONS: u64 = 12;
    const LENGTH: usize = 1 << 20;
    let (listener, address) = listen();
    let mut program = Program::forward(address, &[]);
    let mut sessions: Vec<_> = (0..SESSIONS)
        .map(|seed| (program.connect(), accept(&listener), pattern(seed, 2 * LENGTH)))
        .collect();
    let arrived = Barrier::new(sessions.len() + 1);
    thread::scope(|scope| {
        for (client, target, sent) in &mut sessions {
            let arrived = &arrived;
            scope.spawn(move || {
                let (client, target, sent) = (&*client, &*target, &sent[..]);
                thread::scope(|scope| {
                    scope.spawn(move || send_and_finish(target, sent));
                    let mut have = vec![0; LENGTH];
                    (&*client).read_exact(&mut have).unwrap();
                    // At this point, every transfer is half complete.
                    arrived.wait();
                    arrived.wait();
                    have.extend(read_all(client));
                    assert_same(&have, sent);
                });
                client.shutdown(Shutdown::Write).unwrap();
            });
        }
        arrived.wait();
        program.terminate();
        program.line("draining");
        arrived.wait();
    });
    assert_eq!(program.exit().code(), Some(0));
    for _ in 0..SESSIONS {
        program.line("end=upstream_eof");
    }
    assert_eq!(program.lines_with("end=drained"), 0);
}

#[test]
fn the_drain_timeout_cuts_unfinished_sessions() {
    let (mut program, mut client, _target) = with_a_session(&["--drain-timeout", "300ms"]);
    let started = Instant::now();
    program.terminate();
    assert!(is_closed(&mut client));
    assert!(started.elapsed() >= Duration::from_millis(290));
    assert_eq!(program.exit().code(), Some(CUT));
    let record = program.line("end=drained");
    assert!(
        record.contains("bytes_up=1"),
        "a session that is cut has its record: {record}"
    );
}

/// Starts a program with one session whose client does not read. The session has read as many bytes
/// from the target as it can. Also returns the bytes that the target sends.
fn with_a_stuck_download(arguments: &[&str]) -> (Program, TcpStream, TcpStream, Vec<u8>) {
    let (program, mut client, mut target) = with_a_session(arguments);
    // This is more than all queues between target and client hold. A receive queue can grow to 32
    // MiB if the host allows it.
    let sent = pattern(5, 64 << 20);
    target.write_all(b"y").unwrap();
    assert_eq!(read_exactly(&mut client, 1), b"y");
    target.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut taken = 0;
    while let Ok(count) = target.write(&sent[taken..]) {
        taken += count;
        assert!(taken < sent.len(), "it is stuck");
    }
    (program, client, target, sent)
}

fn number(record: &str, name: &str) -> Option<usize> {
    let (_, value) = record.split_once(&format!(" {name}="))?;
    value.split(' ').next()?.parse().ok()
}

#[test]
fn bytes_held_at_the_drain_timeout_reach_a_reading_client() {
    let (mut program, client, _target, sent) = with_a_stuck_download(&["--drain-timeout", "100ms", "--splice", "on"]);
    program.terminate();
    program.line("the drain timeout is over");
    let have = read_all(&client);
    assert_same(&have, &sent[..have.len()]);
    let record = program.line("end=drained");
    program.line("stopped: cut 1 session");
    assert_eq!(program.exit().code(), Some(CUT));
    // The target could still send, but the session does not wait for more bytes.
    assert_eq!(program.lines_with("did not end in time"), 0);
    assert_eq!(number(&record, "bytes_down"), Some(have.len() + 1), "{record}");
    assert_eq!(number(&record, "lost_down"), None, "{record}");
}

#[test]
fn bytes_that_cannot_be_delivered_are_recorded_as_lost() {
    for hurried in [false, true] {
        let limit = if hurried { "1h" } else { "0" };
        let (mut program, client, _target, sent) = with_a_stuck_download(&["--drain-timeout", limit]);
        program.terminate();
        program.line("draining");
        if hurried {
            program.terminate();
        }
        assert_eq!(program.exit().code(), Some(CUT));
        let record = program.line("end=drained");
        let have = read_all(&client);
        assert_same(&have, &sent[..have.len()]);
        assert_eq!(number(&record, "bytes_down"), Some(have.len() + 1), "{record}");
        assert!(number(&record, "lost_down") > Some(0), "{record}");
        assert_eq!(number(&record, "lost_up"), None, "{record}");
    }
}

#[test]
fn a_second_signal_stops_the_program_immediately() {
    let (mut program, mut client, _target) = with_a_session(&["--drain-timeout", "1h"]);
    program.terminate();
    program.line("draining");
    program.terminate();
    assert!(is_closed(&mut client));
    assert_eq!(program.exit().code(), Some(CUT));
    program.line("end=drained");
    program.line("stopped: cut 1 session");
}

#[test]
fn one_worker_drains_like_several_workers() {
    let (mut program, mut client, _target) = with_a_session(&["--workers", "1", "--drain-timeout", "0"]);
    program.terminate();
    assert!(is_closed(&mut client));
    assert_eq!(program.exit().code(), Some(CUT));
    program.line("end=drained");
}
