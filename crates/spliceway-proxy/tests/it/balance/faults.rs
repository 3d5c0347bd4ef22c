//! What clients see of backends that fail for real, and that the operator sees it too.
//!
//! A backend that is killed or stopped is a process of its own: a second spliceway in front of a
//! thread of this one.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::checks::{http, letter};
use super::{backend, forward, greeted, shares};
use crate::admin::Socket;
use crate::harness::{
    PATIENCE, Program, is_closed, let_pass, listen, read_exactly, refusing, was_reached, with_patience,
};

/// What a backend does with each connection that it accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    /// It answers a check, or greets the client with its letter and returns what it receives.
    Serves,
    /// It resets the connection.
    Resets,
    /// It begins an answer, and finishes it when it serves again.
    Stalls,
}

/// A backend in a thread of the test, whose behaviour can change.
struct Backend {
    address: SocketAddr,
    behaviour: Arc<(Mutex<Behaviour>, Condvar)>,
}

impl Backend {
    fn start(letter: u8) -> Self {
        let (listener, address) = listen();
        let behaviour = Arc::new((Mutex::new(Behaviour::Serves), Condvar::new()));
        let shared = Arc::clone(&behaviour);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                thread::spawn(move || drop(serve(with_patience(stream), letter, &shared)));
            }
        });
        Self { address, behaviour }
    }

    fn becomes(&self, behaviour: Behaviour) {
        *self.behaviour.0.lock().unwrap() = behaviour;
        self.behaviour.1.notify_all();
    }
}

fn serve(mut stream: TcpStream, letter: u8, (behaviour, changed): &(Mutex<Behaviour>, Condvar)) -> std::io::Result<()> {
    let now = *behaviour.lock().unwrap();
    if now == Behaviour::Resets {
        return socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
    let mut request = [0; 256];
    let length = stream.read(&mut request)?;
    let is_check = request[..length].starts_with(b"GET /up ");
    if now == Behaviour::Stalls {
        stream.write_all(b"HTTP/1.")?;
        let stalled = behaviour.lock().unwrap();
        drop(changed.wait_while(stalled, |now| *now == Behaviour::Stalls).unwrap());
    }
    match is_check {
        true => stream.write_all(b"HTTP/1.1 204 Fine\r\n\r\n"),
        false => stream.write_all(&[letter]),
    }
}

/// A backend that is a process. Its sessions end in a thread of the test.
fn process(address: SocketAddr, behind: SocketAddr) -> Program {
    let (address, behind) = (address.to_string(), behind.to_string());
    Program::start(&["forward", "-l", &address, "-r", &behind, "--metrics", "127.0.0.1:0"])
}

fn new_process(behind: SocketAddr) -> Program {
    process(([127, 0, 0, 1], 0).into(), behind)
}

/// Returns the state of a backend as `spliceway status` shows it.
fn state(socket: &Socket, backend: SocketAddr) -> String {
    let (_, status) = socket.ask("GET", "/v1/status");
    let backends = status["services"][0]["backends"].as_array().unwrap().clone();
    let of_backend = |one: &serde_json::Value| one["name"] == backend.to_string();
    backends.into_iter().find(of_backend).unwrap()["state"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Waits until a backend has this state in the status and in the metrics.
fn await_state(program: &Program, socket: &Socket, backend: SocketAddr, expected: &str) {
    let until = Instant::now() + PATIENCE;
    while state(socket, backend) != expected {
        assert!(Instant::now() < until, "{}", state(socket, backend));
        let_pass(Duration::from_millis(10));
    }
    let up = program.sum("spliceway_backend_up", &[&format!("backend=\"{backend}\"")]);
    assert_eq!(up, u64::from(expected == "up"));
}

/// Serves clients one after another until one gets this backend. No client may fail.
fn await_share(program: &Program, letter: char) {
    let until = Instant::now() + PATIENCE;
    while greeted(program).1 != letter {
        assert!(Instant::now() < until, "{letter} gets no clients");
        let_pass(Duration::from_millis(10));
    }
}

#[test]
fn no_new_client_fails_when_a_backend_is_killed_and_started_again() {
    let socket = Socket::new();
    let (mut a, b) = (new_process(backend(b'a')), backend(b'b'));
    let address = a.address;
    let backends = [address.to_string(), b.to_string()];
    let options = ["--balance", "round-robin", "--eject-time", "50ms"];
    let mut program = forward(&backends, &[&options[..], &["--admin", &socket.address()]].concat());
    let (mut of_a, letter) = greeted(&program);
    let (mut of_b, other) = greeted(&program);
    assert_eq!((letter, other), ('a', 'b'));

    a.kill();
    assert!(is_closed(&mut of_a));
    assert_eq!(shares(&program, 8), BTreeMap::from([('b', 8)]));
    let line = program.line("a backend is ejected");
    assert!(line.contains(&format!("backend=\"{address}\"")), "{line}");
    await_state(&program, &socket, address, "ejected");

    let _a = process(address, backend(b'a'));
    await_share(&program, 'a');
    await_state(&program, &socket, address, "up");
    of_b.write_all(b"all the time").unwrap();
    assert_eq!(read_exactly(&mut of_b, 12), b"all the time");
    assert!(!program.get("/metrics").contains("end=\"connect_failed"));
}

/// Asserts that checks without an answer take the first backend down, and that clients get `b`.
fn assert_down(program: &mut Program, socket: &Socket, address: SocketAddr) {
    let line = program.line("a backend is down");
    let expected = format!("backend=\"{address}\"");
    assert!(line.contains(&expected) && line.contains("no answer in time"), "{line}");
    assert_eq!([(); 4].map(|()| letter(program)), ['b'; 4]);
    await_state(program, socket, address, "down");
}

/// Asserts that clients get the first backend again.
fn assert_up_again(program: &mut Program, socket: &Socket, address: SocketAddr) {
    program.line("a backend is up again");
    assert_eq!(letter(program), 'a');
    await_state(program, socket, address, "up");
}

/// Before the checks have noticed, clients of the frozen process wait. So none connects before.
#[test]
fn a_frozen_process_gets_no_clients_until_it_runs_again() {
    let socket = Socket::new();
    let ((behind, _), (b, _)) = (http(b'a'), http(b'b'));
    let a = new_process(behind);
    let backends = [a.address.to_string(), b.to_string()];
    // A healthy backend has this time to answer, and this machine may be busy.
    let checks = ["--check", "http:/up", "--check-interval", "400ms", "--check-fall", "2"];
    let options = ["--balance", "first", "--admin", &socket.address()];
    let mut program = forward(&backends, &[&checks[..], &options].concat());
    assert_eq!(letter(&program), 'a');

    a.signal(Signal::STOP);
    assert_down(&mut program, &socket, a.address);
    a.signal(Signal::CONT);
    assert_up_again(&mut program, &socket, a.address);
}

/// The limit is for the whole check: a byte now and then does not prolong it.
#[test]
fn a_backend_that_answers_too_slowly_is_down_until_it_is_fast_again() {
    let socket = Socket::new();
    let (a, b) = (Backend::start(b'a'), Backend::start(b'b'));
    let backends = [&a, &b].map(|backend| backend.address.to_string());
    let checks = ["--check", "http:/up", "--check-interval", "400ms", "--check-fall", "2"];
    let options = ["--balance", "first", "--admin", &socket.address()];
    let mut program = forward(&backends, &[&checks[..], &options].concat());
    assert_eq!(letter(&program), 'a');

    a.becomes(Behaviour::Stalls);
    assert_down(&mut program, &socket, a.address);
    a.becomes(Behaviour::Serves);
    assert_up_again(&mut program, &socket, a.address);
}

/// A reset may arrive while the connection is being made, and then the client gets another backend.
#[test]
fn few_clients_see_the_resets_of_a_backend_before_it_is_ejected() {
    let socket = Socket::new();
    let (a, b) = (Backend::start(b'a'), Backend::start(b'b'));
    let backends = [&a, &b].map(|backend| backend.address.to_string());
    let ejects = ["--eject-after", "2", "--eject-time", "50ms"];
    let options = ["--balance", "first", "--admin", &socket.address()];
    let mut program = forward(&backends, &[&ejects[..], &options].concat());
    assert_eq!(letter(&program), 'a');

    a.becomes(Behaviour::Resets);
    let try_it = |program: &Program| {
        let mut client = program.connect();
        // A client whose session is over cannot write.
        let _ = client.write_all(b"?");
        let mut letter = [0];
        matches!(client.read(&mut letter), Ok(1)).then_some(char::from(letter[0]))
    };
    program.line(" end=");
    let mut failed = 0;
    for _ in 0..2 {
        failed += usize::from(try_it(&program) != Some('b'));
        // The failure counts when the session has ended.
        program.line(" end=");
    }
    assert_eq!(program.lines_with("a backend is ejected"), 1);
    await_state(&program, &socket, a.address, "ejected");
    let failures = |reason: &str| program.sum("spliceway_backend_failures_total", &[&format!("reason=\"{reason}\"")]);
    assert_eq!(failures("early_end"), failed as u64);
    assert!(failures("connect") + failures("early_end") >= 2);

    a.becomes(Behaviour::Serves);
    let until = Instant::now() + PATIENCE;
    while letter(&program) != 'a' {
        assert!(Instant::now() < until, "it does not return");
        let_pass(Duration::from_millis(10));
    }
    await_state(&program, &socket, a.address, "up");
}

#[test]
fn no_other_backend_is_tried_once_a_connection_stands() {
    let ((a, address), (b, spare)) = (listen(), listen());
    let backends = [address, spare].map(|backend| backend.to_string());
    for options in [&[][..], &["--send-proxy", "v2"]] {
        let mut program = forward(&backends, &[&["--balance", "first"], options].concat());
        let mut client = program.connect();
        client.write_all(b"once").unwrap();
        let mut stream = crate::harness::accept(&a);
        assert_eq!(stream.read(&mut [0]).unwrap(), 1);
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(stream);
        assert!(is_closed(&mut client));
        drop(client);
        let record = program.line(" end=");
        assert!(
            record.contains("end=reset_by_upstream") && !record.contains("retries"),
            "{record}"
        );
    }
    assert!(!was_reached(&b), "a byte of the client may have been used");
}

#[test]
fn backups_are_tried_in_order_after_the_other_backends() {
    let (dead, spare) = (refusing(), refusing());
    let backends = [
        format!("{},backup", backend(b'x')),
        dead.to_string(),
        format!("{},backup", backend(b'y')),
        spare.to_string(),
    ];
    let mut program = forward(&backends, &["--balance", "first", "--eject-max", "50"]);
    for _ in 0..6 {
        assert_eq!(greeted(&program).1, 'x');
    }
    let record = program.line(" end=");
    assert!(record.contains(" retries=2"), "{record}");
    let failures = |backend: SocketAddr| {
        let label = format!("backend=\"{backend}\"");
        program.sum("spliceway_backend_failures_total", &[&label])
    };
    assert_eq!((failures(dead), failures(spare)), (3, 3), "then they are ejected");
}
