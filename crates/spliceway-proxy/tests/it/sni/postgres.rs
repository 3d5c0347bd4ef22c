//! Clients of PostgreSQL, which ask for TLS in their own protocol.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};

use super::{alert, hello, named, router, send};
use crate::harness::{Program, accept, assert_same, is_closed, listen, read_all, read_exactly, refusing, was_reached};

const ASKS: &[u8; 8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
const ASKS_FOR_GSSAPI: &[u8; 8] = b"\0\0\0\x08\x04\xd2\x16\x30";

/// Starts a router with two servers by name.
fn start(arguments: &[&str]) -> (Program, [TcpListener; 2]) {
    let ((one, one_at), (two, two_at)) = (listen(), listen());
    let arguments = [&["--starttls", "postgres"], arguments].concat();
    let program = router(&[("one.test", one_at), ("two.test", two_at)], &arguments);
    (program, [one, two])
}

/// Sends a message, and reads an answer of one byte.
fn ask(client: &mut TcpStream, message: &[u8]) -> u8 {
    client.write_all(message).unwrap();
    read_exactly(client, 1)[0]
}

/// Accepts a connection, reads the request, and agrees.
fn agree(server: &TcpListener) -> TcpStream {
    let mut server = accept(server);
    assert_eq!(&read_exactly(&mut server, 8), ASKS);
    server.write_all(b"S").unwrap();
    server
}

#[test]
fn a_client_that_asks_for_tls_reaches_the_server_of_its_name() {
    let (program, servers) = start(&[]);
    for (name, server) in [("one.test", &servers[0]), ("two.test", &servers[1])] {
        for size in [1, 1000] {
            let mut client = program.connect();
            assert_eq!(ask(&mut client, ASKS), b'S');
            client.set_nodelay(true).unwrap();
            for piece in named(name).chunks(size) {
                client.write_all(piece).unwrap();
            }
            let mut server = agree(server);
            assert_same(&read_exactly(&mut server, named(name).len()), &named(name));
            server.write_all(b"answer").unwrap();
            server.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_all(&client), b"answer");
        }
    }
}

#[test]
fn encryption_by_gssapi_is_declined_once() {
    let (program, servers) = start(&[]);
    let mut client = program.connect();
    assert_eq!(ask(&mut client, ASKS_FOR_GSSAPI), b'N');
    assert_eq!(ask(&mut client, ASKS), b'S');
    client.write_all(&named("two.test")).unwrap();
    agree(&servers[1]);
    let mut client = program.connect();
    assert_eq!(ask(&mut client, ASKS_FOR_GSSAPI), b'N');
    client.write_all(ASKS_FOR_GSSAPI).unwrap();
    assert!(is_closed(&mut client));
}

/// As with `sslnegotiation=direct`.
#[test]
fn a_client_that_begins_with_tls_reaches_a_server_that_is_not_asked() {
    let (program, servers) = start(&[]);
    let _client = send(&program, &named("one.test"));
    assert_same(
        &read_exactly(&mut accept(&servers[0]), named("one.test").len()),
        &named("one.test"),
    );
}

#[test]
fn a_wrong_order_is_refused_and_reaches_no_server() {
    let target = refusing().to_string();
    let (mut program, servers) = start(&["--not-tls", &target]);
    for (what, pieces, answer, reason) in [
        (
            "a hello behind the request",
            vec![[&ASKS[..], &named("one.test")].concat()],
            &b""[..],
            "tls_malformed",
        ),
        (
            "two requests at once",
            vec![[&ASKS[..], ASKS].concat()],
            b"",
            "tls_malformed",
        ),
        (
            "a second request",
            vec![ASKS.to_vec(), ASKS.to_vec()],
            b"S",
            "tls_missing",
        ),
        (
            "no TLS after the answer",
            vec![ASKS.to_vec(), b"\0\0\0\x09\0\x03\0\0\0".to_vec()],
            b"S",
            "tls_missing",
        ),
    ] {
        let mut client = program.connect();
        for (index, piece) in pieces.iter().enumerate() {
            client.write_all(piece).unwrap();
            if index == 0 {
                assert_eq!(read_exactly(&mut client, answer.len()), answer, "{what}");
            }
        }
        assert!(is_closed(&mut client), "{what}");
        drop(client);
        program.line(&format!("end=denied:{reason}"));
    }
    assert!(servers.iter().all(|server| !was_reached(server)));
}

#[test]
fn a_refused_name_gets_its_alert_after_the_answer() {
    let (program, _servers) = start(&[]);
    for (sent, description) in [(named("other.test"), 112), (hello(None, &[], 0), 109)] {
        let mut client = program.connect();
        assert_eq!(ask(&mut client, ASKS), b'S');
        client.write_all(&sent).unwrap();
        assert_eq!(read_all(&client), alert(description));
    }
}

#[test]
fn a_server_that_does_not_agree_ends_the_session() {
    let (mut program, servers) = start(&[]);
    for (answer, end) in [(&b"N"[..], "tls_missing"), (b"E", "tls_missing"), (b"", "tls_closed")] {
        let mut client = program.connect();
        assert_eq!(ask(&mut client, ASKS), b'S');
        client.write_all(&named("one.test")).unwrap();
        let mut server = accept(&servers[0]);
        assert_eq!(&read_exactly(&mut server, 8), ASKS);
        server.write_all(answer).unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        assert!(is_closed(&mut client));
        program.line(&format!("end=connect_failed:{end}"));
        // The server got nothing else.
        assert_eq!(read_all(&server), b"");
    }
}

#[test]
fn a_client_without_encryption_reaches_the_server_for_such_clients() {
    let (plain, plain_at) = listen();
    let (program, _servers) = start(&["--not-tls", &plain_at.to_string()]);
    let start = b"\0\0\0\x09\0\x03\0\0\0";
    let _client = send(&program, start);
    assert_eq!(&read_exactly(&mut accept(&plain), start.len()), start);
}
