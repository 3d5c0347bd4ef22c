//! A stop, or the drain of a service, during an upgrade. A stop wins at every step, and a second
//! one hurries.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::Value;

use super::ask;
use super::fake::{New, Next};
use super::outside::Sockets;
use crate::harness::{PATIENCE, Program, echo, is_closed, let_pass};

/// The exit code after a stop that cut sessions.
const CUT: i32 = 3;

/// Returns the process that prepares to take over.
fn prepares(program: &mut Program) -> Pid {
    let line = program.line(" prepares to take over");
    let (_, rest) = line.split_once("process ").unwrap();
    Pid::from_raw(rest.split(' ').next().unwrap().parse().unwrap()).unwrap()
}

/// Waits until the process is gone.
fn await_end(process: Pid) {
    let until = Instant::now() + PATIENCE;
    while test_kill_process(process).is_ok() {
        assert!(Instant::now() < until, "it does not end");
        let_pass(Duration::from_millis(2));
    }
}

#[test]
fn a_stop_ends_a_new_process_that_hangs_and_drains_as_usual() {
    let echo = echo("127.0.0.1:0").to_string();
    for (name, script, is_hurried) in [
        ("hangs", "exec sleep 1000", false),
        ("deaf", "trap '' TERM; exec sleep 1000", false),
        ("hurried", "trap '' TERM; exec sleep 1000", true),
    ] {
        let next = Next::new(name);
        let mut program = next.start(&["forward", "-l", "127.0.0.1:0", "-r", &echo]);
        let mut client = program.connect();
        ask(&mut client, 1);
        next.is_script(script);
        program.signal(Signal::USR2);
        let new = prepares(&mut program);
        program.terminate();
        program.line("asked to stop during an upgrade");
        program.line("draining: 1 session");
        // Its sockets keep the listener open.
        await_end(new);
        assert!(TcpStream::connect(program.address).is_err(), "no new clients");
        ask(&mut client, 2);
        if is_hurried {
            program.terminate();
        } else {
            drop(client);
        }
        assert_eq!(program.exit().code(), Some(if is_hurried { CUT } else { 0 }));
    }
}

/// A program with two sessions, of which the new process is offered both.
struct Moving {
    next: Next,
    sockets: Sockets,
    program: Program,
    clients: [TcpStream; 2],
    new: New,
    pid: Pid,
}

impl Moving {
    /// Starts an upgrade to a process that the test plays, and lets it serve.
    fn new(name: &str) -> Self {
        let (next, sockets, echo) = (Next::new(name), Sockets::new(name), echo("127.0.0.1:0").to_string());
        let path = sockets.address("clients");
        let mut program = next.start(&["forward", "-l", "127.0.0.1:0", "-l", &path, "-r", &echo]);
        let clients = [1, 2].map(|seed| {
            let mut client = program.connect();
            ask(&mut client, seed);
            client
        });
        next.is_played();
        program.signal(Signal::USR2);
        let pid = prepares(&mut program);
        let mut new = next.accept();
        new.hear_one("prepare");
        new.say(r#""ready""#);
        new.hear_one("serve");
        new.say(r#""serving""#);
        Self {
            next,
            sockets,
            program,
            clients,
            new,
            pid,
        }
    }

    fn session(&mut self) -> Value {
        let (message, _) = self.new.hear_one("session");
        let message: Value = serde_json::from_str(&message).unwrap();
        message["session"]["id"].clone()
    }

    /// Takes the first session, and refuses the second one, after `between`.
    fn answer(&mut self, between: impl FnOnce(&mut Program)) {
        let (taken, refused) = (self.session(), self.session());
        self.new.say(&format!(r#"{{"taken":{{"session":{taken}}}}}"#));
        between(&mut self.program);
        let refuses = format!(r#"{{"not_taken":{{"session":{refused},"why":"full"}}}}"#);
        self.new.say(&refuses);
    }
}

fn stop(program: &mut Program) {
    program.terminate();
    program.line("asked to stop during an upgrade");
}

#[test]
fn a_stop_while_sessions_move_lets_those_of_both_processes_finish() {
    for is_hurried in [false, true] {
        let mut moving = Moving::new(if is_hurried { "moving-hurried" } else { "moving" });
        moving.answer(stop);
        moving.new.hear_one("stop");
        let [mut gone, mut kept] = moving.clients;
        // The test has dropped the sockets of the session that it has taken.
        assert!(is_closed(&mut gone));
        ask(&mut kept, 3);
        drop(kept);
        moving.program.line("drained: every session has ended");
        assert!(!moving.program.has_ended(), "it waits for the new process");
        if is_hurried {
            // The new process gets the signal.
            moving.program.terminate();
        } else {
            drop(moving.new);
        }
        assert!(moving.program.exit().success());
        await_end(moving.pid);
        assert!(!moving.sockets.folder.0.join("clients").exists());
        drop(moving.next);
    }
}

#[test]
fn a_stop_when_the_new_process_begins_to_accept_stops_both() {
    let mut moving = Moving::new("accepting");
    moving.answer(|_| {});
    moving.new.hear_one("accept");
    stop(&mut moving.program);
    moving.new.say(r#""accepting""#);
    moving.new.hear_one("stop");
    drop((moving.clients, moving.new));
    assert!(moving.program.exit().success());
    await_end(moving.pid);
}

#[test]
fn a_drain_ends_an_upgrade_that_hangs_and_status_never_waits() {
    let (next, sockets, echo) = (Next::new("drained"), Sockets::new("drained"), echo("127.0.0.1:0"));
    let mut program = next.start(&[
        "forward",
        "-l",
        "127.0.0.1:0",
        "-r",
        &echo.to_string(),
        "--admin",
        &sockets.admin.address(),
    ]);
    let mut client = program.connect();
    ask(&mut client, 1);
    next.is_script("exec sleep 1000");
    program.signal(Signal::USR2);
    let new = prepares(&mut program);
    let (code, answer) = sockets.admin.ask("POST", "/v1/reload");
    assert_eq!(code, 503, "{answer}");
    assert_eq!(answer["error"], "an upgrade runs: try again when it has ended");
    let (code, status) = sockets.admin.ask("GET", "/v1/status");
    assert_eq!((code, &status["services"][0]["state"]), (200, &"accepting".into()));
    let (code, answer) = sockets.admin.ask("POST", "/v1/services/forward/drain");
    assert_eq!((code, &answer["done"]), (200, &"forward accepts no new clients".into()));
    assert!(TcpStream::connect(program.address).is_err());
    let line = program.line("the upgrade failed, and this process serves on: ");
    assert!(line.contains("forward was drained meanwhile"), "{line}");
    await_end(new);
    ask(&mut client, 2);
}
