//! Requests that the proxy answers itself, and bytes behind a request.

use std::io::Write;
use std::net::SocketAddr;

use super::{DONE, assert_done, get, kept, serve};
use crate::clients::{read_head, read_message};
use crate::harness::{Program, TextFile, accept, is_closed, listen, read_all, read_exactly, refusing, was_reached};

fn denying(arguments: &[&str]) -> Program {
    Program::proxy("http", &[&["--to-deny", "127.0.0.2"], arguments].concat())
}

fn put(target: &str, fields: &str) -> String {
    format!("PUT http://{target}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")
}

/// The proxy reads the body up to 64 KiB. The client still gets the whole answer.
#[test]
fn a_long_body_of_a_refused_request_ends_the_connection_without_a_reset() {
    let program = denying(&[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    let chunk = format!("186a0\r\n{}\r\n0\r\n\r\n", "x".repeat(100_000));
    let request = put("127.0.0.2:1", "Transfer-Encoding: chunked");
    let next = get(address, "/next");
    client.write_all([request, chunk, next].concat().as_bytes()).unwrap();
    let answer = String::from_utf8(read_all(&client)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(answer.matches("HTTP/").count(), 1, "{answer}");
    assert!(!was_reached(&listener));
}

#[test]
fn a_body_of_a_refused_request_has_the_time_of_a_handshake() {
    let program = denying(&["--handshake-timeout", "200ms"]);
    let mut client = program.connect();
    client
        .write_all(put("127.0.0.2:1", "Content-Length: 5").as_bytes())
        .unwrap();
    assert!(read_message(&mut client).contains("\r\nConnection: keep-alive\r\n"));
    assert!(is_closed(&mut client));
}

#[test]
fn a_connection_carries_a_thousand_refused_requests() {
    let users = TextFile::new("ann:wonder\n");
    let program = Program::proxy("http", &["--auth-file", users.path()]);
    let mut client = program.connect();
    let request = get(refusing(), "/x");
    for number in 1..=1000 {
        client.write_all(request.as_bytes()).unwrap();
        let answer = read_message(&mut client);
        assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
        let connection = if number < 1000 { "keep-alive" } else { "close" };
        assert!(
            answer.contains(&format!("\r\nConnection: {connection}\r\n")),
            "{number}: {answer}"
        );
    }
    assert!(is_closed(&mut client));
}

/// The target leaves while the program drains, so the proxy answers for it.
#[test]
fn a_request_that_fails_during_a_drain_is_the_last_one() {
    let mut program = denying(&[]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    client
        .write_all(format!("POST http://{address}/x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").as_bytes())
        .unwrap();
    read_head(&mut target);
    program.terminate();
    program.line("draining");
    drop(target);
    let answer = read_message(&mut client);
    assert!(
        answer.starts_with("HTTP/1.1 502 ") && answer.contains("\r\nConnection: close\r\n"),
        "{answer}"
    );
    assert_eq!(read_all(&client), b"");
}

/// They may be the beginning of a tunnel.
#[test]
fn bytes_behind_a_connect_that_fails_are_no_request() {
    let program = denying(&[]);
    let (listener, address) = listen();
    for target in [refusing(), SocketAddr::from(([127, 0, 0, 2], 1))] {
        let mut client = program.connect();
        let connect = format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let hidden = get(address, "/hidden");
        client.write_all([connect, hidden].concat().as_bytes()).unwrap();
        let answer = read_message(&mut client);
        assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
        assert!(is_closed(&mut client));
    }
    assert!(!was_reached(&listener));
}

/// A close with unread bytes would be a reset.
#[test]
fn bytes_behind_the_last_request_do_not_destroy_its_answer() {
    let program = denying(&[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    let request = format!("GET http://{address}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client
        .write_all([request, "x".repeat(100_000)].concat().as_bytes())
        .unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    target.write_all(DONE.as_bytes()).unwrap();
    let answer = String::from_utf8(read_all(&client)).unwrap();
    assert!(answer.ends_with("\r\nConnection: close\r\n\r\ndone"), "{answer}");
}

/// One segment has the end of a body in chunks and the next request.
#[test]
fn a_request_directly_behind_the_last_chunk_is_served() {
    let program = denying(&[]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    let head = put(&address.to_string(), "Transfer-Encoding: chunked");
    client.write_all([&head, "3\r\nab"].concat().as_bytes()).unwrap();
    assert!(read_head(&mut target).starts_with("PUT / "));
    assert_eq!(read_exactly(&mut target, 5), b"3\r\nab");
    let rest = "c\r\n0\r\n\r\n";
    client
        .write_all([rest, &get(address, "/next")].concat().as_bytes())
        .unwrap();
    assert_eq!(read_exactly(&mut target, rest.len()), rest.as_bytes());
    target.write_all(DONE.as_bytes()).unwrap();
    assert_done(&mut client);
    serve(&mut target, "/next");
    assert_done(&mut client);
}

/// An idle connection to a target that has ended holds no descriptor.
#[test]
fn a_target_that_ends_while_idle_is_closed_at_once() {
    let program = denying(&[]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    target.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_closed(&mut target));
    client.write_all(get(address, "/next").as_bytes()).unwrap();
    serve(&mut accept(&listener), "/next");
    assert_done(&mut client);
}
