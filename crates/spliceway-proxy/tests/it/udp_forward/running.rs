//! Sessions while the program reloads, drains, or hands over.

use super::{alone, assert_answered, client, forward, free, marking, received, received_from, socket};
use crate::admin::Socket;
use crate::drain::CUT;
use crate::handover::upgrade;
use crate::harness::{PATIENCE, Program, TextFile, connect, echo, read_exactly};
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const DROPPED: &str = "spliceway_datagrams_dropped_total";

#[test]
fn after_term_sessions_continue_until_the_drain_timeout_and_none_begins() {
    let mut program = forward(marking("127.0.0.1:0", b'a'), &["--drain-timeout", "500ms"]);
    let known = client(&program);
    assert_answered(&known, 'a', "before");
    program.terminate();
    program.line("draining: no new clients");
    client(&program).send(b"new").unwrap();
    // Datagrams are received in order, so the new client's was received before this one.
    assert_answered(&known, 'a', "after");
    let record = program.line("end=");
    assert!(
        record.contains("datagrams_up=2") && record.contains("end=drained"),
        "{record}"
    );
    assert_eq!(program.exit().code(), Some(CUT));
    assert_eq!(program.lines_with("end="), 1);
}

#[test]
fn a_program_without_sessions_ends_immediately() {
    let mut program = forward(marking("127.0.0.1:0", b'a'), &["--drain-timeout", "1h"]);
    program.terminate();
    assert_eq!(program.exit().code(), Some(0));
}

fn file(services: &[String]) -> String {
    services
        .iter()
        .fold("[admin]\nmetrics = \"127.0.0.1:0\"\n".to_owned(), |text, service| {
            text + service
        })
}

fn service(name: &str, listen: SocketAddr, to: SocketAddr, more: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nkind = \"forward\"\nlisten = \"{listen}\"\nto = \"{to}\"\n{more}\n")
}

#[test]
fn a_reload_keeps_the_port_and_its_sessions_and_changes_the_target() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let targets = [b'a', b'b'].map(|mark| marking("127.0.0.1:0", mark));
    let text = |to| file(&[service("dns", any, to, "udp = true")]);
    let file = TextFile::new(&text(targets[0]));
    let mut program = Program::run(&file);
    let (old, new) = (client(&program), client(&program));
    assert_answered(&old, 'a', "1");
    file.write(&text(targets[1]));
    assert!(program.reload().contains("changed dns"));
    assert_answered(&old, 'a', "2");
    assert_answered(&new, 'b', "1");
}

#[test]
fn tcp_and_udp_of_one_port_are_two_services() {
    alone(|| {
        let (tcp, udp, port) = (echo("127.0.0.1:0"), marking("127.0.0.1:0", b'u'), free());
        let both = [service("tcp", port, tcp, ""), service("udp", port, udp, "udp = true")];
        let program = Program::run(&TextFile::new(&file(&both)));
        let mut connection = connect(port);
        connection.write_all(b"stream").unwrap();
        assert_eq!(read_exactly(&mut connection, 6), b"stream");
        assert_answered(&client(&program), 'u', "datagram");
        for name in ["tcp", "udp"] {
            let label = format!("service=\"{name}\"");
            assert_eq!(program.sum("spliceway_connections_active", &[&label]), 1, "{name}");
        }
    });
}

#[test]
fn an_operator_sees_sessions_and_may_drain_the_service() {
    let admin = Socket::new();
    let (target, address) = socket("127.0.0.1:0");
    let program = forward(address, &["--admin", &admin.address()]);
    let known = client(&program);
    known.send(b"12345").unwrap();
    let (_, session) = received_from(&target);
    target.send_to(b"123", session).unwrap();
    received(&known);
    // The datagram is counted after it is sent.
    program.await_sum("spliceway_datagrams_total", &["direction=\"down\""], 1);
    let (_, page) = admin.ask("GET", "/v1/sessions");
    let seen = &page["sessions"][0];
    assert_eq!(seen["client"], known.local_addr().unwrap().to_string());
    assert_eq!(
        (&seen["dialled"], &seen["state"]),
        (&address.to_string().into(), &"relay".into())
    );
    assert_eq!((&seen["bytes_up"], &seen["bytes_down"]), (&5.into(), &3.into()));
    let (_, status) = admin.ask("GET", "/v1/status");
    assert_eq!(status["services"][0]["datagrams_up"], 1);
    assert_eq!(status["services"][0]["bytes_up"], 5);
    assert_eq!(admin.ask("POST", "/v1/services/udp/drain").0, 200);
    client(&program).send(b"new").unwrap();
    program.await_sum(DROPPED, &["reason=\"draining\""], 1);
    known.send(b"still").unwrap();
    assert_eq!(received_from(&target), (b"still".to_vec(), session));
}

#[test]
fn a_drained_service_may_be_reloaded_while_its_sessions_continue() {
    let admin = Socket::new();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let target = marking("127.0.0.1:0", b'a');
    let text = format!(
        "{}socket = \"{}\"\n{}",
        file(&[]),
        admin.address(),
        service("dns", any, target, "udp = true")
    );
    let file = TextFile::new(&text);
    let mut program = Program::run(&file);
    let known = client(&program);
    for _ in 0..2 {
        assert_answered(&known, 'a', "1");
        assert_eq!(admin.ask("POST", "/v1/services/dns/drain").0, 200);
        assert_answered(&known, 'a', "2");
        assert!(program.reload().contains("reloaded"));
        assert_answered(&client(&program), 'a', "new");
    }
    assert_answered(&known, 'a', "3");
    assert_eq!(program.sum("spliceway_connections_active", &[]), 3);
}

/// A datagram of a new client waits in the socket, which both processes have.
#[test]
fn an_upgrade_loses_no_datagram_of_a_new_client() {
    // Each client has a session. At the limit on sessions, the program drops the datagrams of new
    // clients, and a busy machine may be slow to upgrade.
    const CLIENTS_MAX: usize = 2000;
    let mut program = forward(marking("127.0.0.1:0", b'a'), &[]);
    let known = client(&program);
    assert_answered(&known, 'a', "before");
    let (is_over, listen) = (AtomicBool::new(false), program.address);
    let next = thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut count = 0;
            while count < CLIENTS_MAX && (!is_over.load(Ordering::Relaxed) || count == 0) {
                let (client, _) = socket("127.0.0.1:0");
                client.connect(listen).unwrap();
                assert_answered(&client, 'a', "new");
                count += 1;
            }
        });
        let next = upgrade(&mut program, None);
        is_over.store(true, Ordering::Relaxed);
        clients.join().unwrap();
        next
    });
    assert_answered(&known, 'a', "after");
    assert!(next.lives());
}

#[test]
fn a_backend_at_which_nothing_receives_is_ejected() {
    let a = marking("127.0.0.1:0", b'a').to_string();
    // Port because nothing receives there.
    let mut arguments = vec!["forward", "--udp", "-l", "127.0.0.1:0", "-r", "127.0.0.9:9", "-r", &a];
    arguments.extend(["--balance", "first", "--eject-after", "1", "--eject-time", "1h"]);
    let mut program = Program::start(&arguments);
    client(&program).send(b"lost").unwrap();
    program.line("a backend is ejected");
    assert_answered(&client(&program), 'a', "next");
}

#[test]
fn a_silent_backend_is_back_after_its_ejection_for_all_clients() {
    let Some(()) = alone(eject_a_silent_backend) else {
        return;
    };
}

fn eject_a_silent_backend() {
    let (other, silent) = (marking("127.0.0.1:0", b'a').to_string(), free());
    let first = silent.to_string();
    let mut arguments = vec!["forward", "--udp", "-l", "127.0.0.1:0", "-r", &first, "-r", &other];
    arguments.extend([
        "--balance",
        "first",
        "--eject-after",
        "1",
        "--eject-time",
        "1s",
        "--udp-timeout",
        "10m",
    ]);
    let mut program = Program::start(&arguments);
    client(&program).send(b"lost").unwrap();
    program.line("a backend is ejected");
    let silent = UdpSocket::bind(silent).unwrap();
    silent.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // These clients keep their sessions.
    let mut clients = Vec::new();
    for mark in [b'1', b'2'] {
        let mut bytes = [0; 1];
        while bytes != [mark] {
            assert!(Instant::now() < deadline, "client {} was not served", mark as char);
            let client = client(&program);
            client.send(&[mark]).unwrap();
            clients.push(client);
            let _or_timeout = silent.recv(&mut bytes);
        }
    }
}

#[test]
fn a_session_stays_with_its_backend_and_others_get_the_other_one() {
    let [a, b] = [b'a', b'b'].map(|mark| marking("127.0.0.1:0", mark).to_string());
    let arguments = [
        "forward",
        "--udp",
        "-l",
        "127.0.0.1:0",
        "-r",
        &a,
        "-r",
        &b,
        "--balance",
        "round-robin",
    ];
    let program = Program::start(&arguments);
    let clients: Vec<_> = (0..6).map(|_| client(&program)).collect();
    for data in ["1", "2"] {
        for (client, mark) in clients.iter().zip("ababab".chars()) {
            assert_answered(client, mark, data);
        }
    }
}
