//! How the errors, ends and limits of a session pass between TLS and a socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use super::client::{Client, Config, Pair, TLS12, TLS13};
use super::service;
use crate::clients::read_head;
use crate::harness::{PATIENCE, Program, accept, assert_same, echo, listen, pattern, read_all, read_exactly};

/// Closes a connection with a reset.
fn reset(socket: TcpStream) {
    socket2::SockRef::from(&socket)
        .set_linger(Some(std::time::Duration::ZERO))
        .unwrap();
}

/// Returns how a read of a target ends.
fn end(mut target: &TcpStream) -> Result<usize, ErrorKind> {
    target.read_to_end(&mut Vec::new()).map_err(|error| error.kind())
}

#[test]
fn a_client_that_resets_resets_its_target() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("forward", target, &pair, &[]);
    for versions in [TLS12, TLS13] {
        let mut client = Client::connect(&program, &Config::new(&pair).versions(versions)).unwrap();
        let mut target = accept(&listener);
        client.send(b"part");
        assert_eq!(read_exactly(&mut target, 4), b"part");
        reset(client.into_socket());
        assert_eq!(end(&target), Err(ErrorKind::ConnectionReset));
        assert!(program.line("bytes_up=").contains("reset_by_client"));
    }
}

#[test]
fn a_target_that_resets_leaves_no_answer_that_looks_complete() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("forward", target, &pair, &[]);
    for versions in [TLS12, TLS13] {
        let mut client = Client::connect(&program, &Config::new(&pair).versions(versions)).unwrap();
        let mut target = accept(&listener);
        target.write_all(b"part").unwrap();
        assert_eq!(client.receive(4), b"part");
        reset(target);
        assert_eq!(client.rest().unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(program.line("bytes_up=").contains("reset_by_upstream"));
    }
}

#[test]
fn an_answer_that_is_cut_has_no_announced_end() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("http", target, &pair, &[]);
    let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n");
    for head in ["Content-Length: 9", "Transfer-Encoding: chunked", "Connection: close"] {
        let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
        client.send(request.as_bytes());
        let mut target = accept(&listener);
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.extend(read_exactly(&mut target, 1));
        }
        write!(target, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\npart").unwrap();
        client.receive_head();
        client.receive(7);
        reset(target);
        client.rest().expect_err(head);
        assert!(program.line("bytes_up=").contains("reset_by_upstream"), "{head}");
    }
}

#[test]
fn a_connection_carries_many_requests_of_http() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("http", target, &pair, &[]);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let mut server = None;
    for (framing, body) in [
        ("Content-Length: 0", ""),
        ("Content-Length: 5", "hello"),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let head = format!("POST http://{target}/ HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
        client.send([&head, body].concat().as_bytes());
        let server = server.get_or_insert_with(|| accept(&listener));
        assert!(read_head(server).starts_with("POST / HTTP/1.1\r\n"));
        assert_eq!(read_exactly(server, body.len()), body.as_bytes());
        write!(server, "HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{body}").unwrap();
        let head = client.receive_head();
        assert!(head.ends_with("\r\nConnection: keep-alive\r\n\r\n"), "{head}");
        assert_eq!(client.receive(body.len()), body.as_bytes());
        let record = program.line("end=answered");
        assert!(record.contains(" tls=\"1.3\" "), "{record}");
    }
    // A tunnel may follow.
    client.send(format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
    let mut server = accept(&listener);
    assert!(client.receive_head().starts_with("HTTP/1.1 200 "));
    client.send(b"hello");
    assert_eq!(read_exactly(&mut server, 5), b"hello");
    drop(server);
    assert_eq!(client.rest().unwrap(), b"");
    drop(client);
    assert!(program.line("end=").contains(" tls=\"1.3\" "));
}

#[test]
fn an_early_answer_reaches_a_client_that_still_sends() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let program = service("forward", target, &pair, &[]);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let mut target = accept(&listener);
    client.send(&pattern(1, 1000));
    read_exactly(&mut target, 1000);
    target.write_all(b"too large").unwrap();
    drop(target);
    // What the target does not read any more is discarded.
    client.send(&pattern(2, 1 << 20));
    assert_eq!(client.rest().unwrap(), b"too large");
}

#[test]
fn an_end_without_an_announcement_is_recorded_and_passed_on() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("forward", target, &pair, &[]);
    for versions in [TLS12, TLS13] {
        let mut client = Client::connect(&program, &Config::new(&pair).versions(versions)).unwrap();
        client.send(b"part");
        let target = accept(&listener);
        let socket = client.into_socket();
        socket.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&target), b"part");
        drop(target);
        let record = program.line("bytes_up=").replace('"', "");
        assert!(
            record.contains("truncated=yes") && record.contains("client_eof"),
            "{record}"
        );
    }
}

#[test]
fn a_silent_session_is_cut_without_an_announcement() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("forward", target, &pair, &["--idle-timeout", "300ms"]);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let _target = accept(&listener);
    client.send(b"part");
    assert_eq!(client.rest().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(program.line("bytes_up=").contains("end=idle"));
}

#[test]
fn a_rate_limit_holds_for_bytes_inside_of_tls() {
    const BYTES: usize = 300_000;
    let pair = Pair::new(&["a.test"]);
    let program = service("forward", echo("127.0.0.1:0"), &pair, &["--rate-in", "200KB"]);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let began = Instant::now();
    assert_same(&client.exchange(&pattern(1, BYTES)).unwrap(), &pattern(1, BYTES));
    assert!((1..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[test]
fn a_splice_only_service_copies_tls() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let program = service("http", target, &pair, &["--splice", "on"]);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    client.send(format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes());
    let mut server = accept(&listener);
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        seen.extend(read_exactly(&mut server, 1));
    }
    server
        .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        .unwrap();
    server.write_all(&pattern(5, 1 << 20)).unwrap();
    drop(server);
    client.receive_head();
    assert_same(&client.rest().unwrap(), &pattern(5, 1 << 20));
}

#[test]
fn a_stop_lets_a_session_finish_and_announces_its_end() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program: Program = service("forward", target, &pair, &["--drain-timeout", "15s"]);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let mut target = accept(&listener);
    client.send(b"x");
    read_exactly(&mut target, 1);
    program.terminate();
    program.line("draining");
    let began = Instant::now();
    target.write_all(b"last").unwrap();
    drop(target);
    assert_eq!(client.exchange(b"").unwrap(), b"last");
    assert!(program.exit().success() && began.elapsed() < PATIENCE);
}

/// The datagrams would pass in clear text.
#[test]
fn associations_are_refused_inside_of_tls_and_other_commands_are_not() {
    let pair = Pair::new(&["a.test"]);
    for kind in ["socks5", "mixed"] {
        let mut program = service(kind, echo("127.0.0.1:0"), &pair, &[]);
        for (command, expected) in [(3, 7), (2, 0)] {
            let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
            client.send(&[5, 1, 0]);
            assert_eq!(client.receive(2), [5, 0]);
            client.send(&[5, command, 0, 1, 0, 0, 0, 0, 0, 0]);
            assert_eq!(client.receive(10)[..2], [5, expected], "{kind}, {command}");
        }
        let record = program.line("end=");
        assert!(record.contains("end=denied:command"), "{record}");
    }
}
