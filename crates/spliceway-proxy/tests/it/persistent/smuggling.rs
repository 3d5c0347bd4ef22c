//! A message that readers may end at different places must not be followed by another one on the
//! same connection, whether it comes first or later.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::{assert_done, get, kept, serve};
use crate::clients::{read_head, read_message};
use crate::harness::{Program, TextFile, accept, is_closed, listen, read_all, was_reached};

/// What an attacker hides behind the end of an ambiguous message.
const HIDDEN: &str = "GET http://hidden.test/hidden HTTP/1.1\r\nHost: a\r\n\r\n";

/// Where the ambiguous message is on its connection.
#[derive(Clone, Copy, Debug)]
enum Position {
    First,
    Later,
    /// Directly behind another request.
    Pipelined,
}

const POSITIONS: [Position; 3] = [Position::First, Position::Later, Position::Pipelined];

/// Sends `request` in a position. Returns the client, whose earlier requests are answered.
fn sent(program: &Program, listener: &TcpListener, position: Position, request: &str) -> TcpStream {
    let address = listener.local_addr().unwrap();
    let (mut client, before) = match position {
        Position::First => (program.connect(), String::new()),
        Position::Later => (kept(program, listener).0, String::new()),
        Position::Pipelined => (program.connect(), get(address, "/first")),
    };
    client
        .write_all([&before, request, HIDDEN].concat().as_bytes())
        .unwrap();
    if !before.is_empty() {
        serve(&mut accept(listener), "/first");
        assert_done(&mut client);
    }
    client
}

#[test]
fn a_request_that_is_ambiguous_is_refused_in_each_position() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let fields = [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4\r\ncontent-length: 4",
        "Content-Length: 4, 4",
        "Content-Length: +4",
        "Content-Length: 0x4",
        "Content-Length:",
        "Content-Length: 18446744073709551616",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Connection: Content-Length\r\nContent-Length: 4",
        "X: a\r\n b",
        "X: a\r\n\tb",
        "X : a",
        " X: a",
        "Content-Length : 4",
        "Transfer-Encoding\t: chunked",
        "X: a\rContent-Length: 4",
        "X: a\r\r\nContent-Length: 4",
        "X: a\0",
        "Transfer-Encoding: \x0bchunked",
        "X",
        ": a",
        "Host: a\r\nHost: b",
    ];
    for fields in fields {
        for position in POSITIONS {
            let request = format!("POST http://{address}/x HTTP/1.1\r\n{fields}\r\n\r\n");
            let mut client = sent(&program, &listener, position, &request);
            let answer = read_message(&mut client);
            assert!(
                answer.starts_with("HTTP/1.1 400 ") && answer.contains("\r\nConnection: close\r\n"),
                "{fields:?} {position:?}: {answer}"
            );
            assert!(is_closed(&mut client), "{fields:?} {position:?}");
        }
    }
    assert!(!was_reached(&listener));
}

/// Some readers do not end a line there. The request itself has one meaning, and is served.
#[test]
fn a_request_with_a_bare_line_feed_is_the_last_one() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    for head in [
        format!("GET http://{address}/x HTTP/1.1\nHost: a\r\n\r\n"),
        format!("GET http://{address}/x HTTP/1.1\r\nHost: a\r\nX: b\n\r\n"),
        format!("GET http://{address}/x HTTP/1.1\r\nHost: a\r\n\n"),
    ] {
        for position in POSITIONS {
            let mut client = program.connect();
            if let Position::Later = position {
                client = kept(&program, &listener).0;
            }
            client.write_all([&head, HIDDEN].concat().as_bytes()).unwrap();
            let mut target = accept(&listener);
            assert!(read_head(&mut target).contains("\r\nConnection: close\r\n"));
            target
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .unwrap();
            assert!(read_message(&mut client).contains("\r\nConnection: close\r\n"));
            assert!(is_closed(&mut client), "{head:?}");
            assert_eq!(read_all(&target), b"");
        }
    }
}

#[test]
fn a_body_that_is_not_valid_chunked_encoding_is_followed_by_nothing() {
    let program = Program::proxy("http", &[]);
    for body in [
        "\r\n",
        "g\r\n",
        "-1\r\n",
        "+1\r\n",
        "0x1\r\n",
        "1\n",
        "1;a\n",
        " 1\r\n",
        "5 0\r\n",
        "1 \n",
        "1\r\r\n",
        "1\r\nab",
        "1\r\na\n",
        "1\r\na\r1",
        "0\r\n\n",
        "0\r\na: b\n",
        "0\r\nGET http://hidden.test/hidden HTTP/1.1\r\n\r\n",
        "0\r\na: b\r\n c\r\n\r\n",
        "1;\0\r\n",
        "1000000000000000\r\n",
    ] {
        for position in POSITIONS {
            for at_once in [true, false] {
                let (listener, address) = listen();
                let head = format!("POST http://{address}/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
                let (mut client, mut target) = match position {
                    Position::First => (program.connect(), None),
                    _ => {
                        let (client, target) = kept(&program, &listener);
                        (client, Some(target))
                    }
                };
                if at_once {
                    client.write_all([&head, body, HIDDEN].concat().as_bytes()).unwrap();
                    let answer = read_message(&mut client);
                    assert!(answer.starts_with("HTTP/1.1 400 "), "{body:?} {position:?}: {answer}");
                } else {
                    client.write_all(head.as_bytes()).unwrap();
                    let target = target.get_or_insert_with(|| accept(&listener));
                    assert!(read_head(target).starts_with("POST /x "));
                    client.write_all([body, HIDDEN].concat().as_bytes()).unwrap();
                }
                assert!(is_closed(&mut client), "{body:?} {position:?}");
                if let Some(mut target) = target {
                    let said = read_until_closed(&mut target);
                    assert!(!said.contains("hidden"), "{body:?} {position:?}: {said}");
                }
            }
        }
    }
}

/// The client may have sent the beginning of its tunnel before the answer to CONNECT.
#[test]
fn bytes_behind_a_refused_connect_are_no_request() {
    let users = TextFile::new("ann:wonder\n");
    let program = Program::proxy("http", &["--auth-file", users.path()]);
    let (listener, address) = listen();
    let connect = format!("CONNECT {address} HTTP/1.1\r\nHost: a\r\n\r\n");
    let request = format!(
        "GET http://{address}/hidden HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic YW5uOndvbmRlcg==\r\n\r\n"
    );
    let mut client = program.connect();
    client.write_all([&connect[..], &request].concat().as_bytes()).unwrap();
    let answer = read_message(&mut client);
    assert!(
        answer.starts_with("HTTP/1.1 407 ") && answer.contains("\r\nConnection: close\r\n"),
        "{answer}"
    );
    assert!(is_closed(&mut client));
    assert!(!was_reached(&listener));
    // A client that waits for the answer keeps its connection.
    listener.set_nonblocking(false).unwrap();
    let mut client = program.connect();
    client.write_all(connect.as_bytes()).unwrap();
    assert!(read_message(&mut client).contains("\r\nConnection: keep-alive\r\n"));
    client.write_all(request.as_bytes()).unwrap();
    serve(&mut accept(&listener), "/hidden");
    assert_done(&mut client);
}

/// Reads to the end, or to a reset.
fn read_until_closed(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let _ = std::io::Read::read_to_end(stream, &mut said);
    String::from_utf8_lossy(&said).into_owned()
}

/// Serves the earlier request, if there is one, and answers the next one with `answer`.
fn answered(program: &Program, listener: &TcpListener, is_later: bool, answer: &str) -> (TcpStream, TcpStream) {
    let address: SocketAddr = listener.local_addr().unwrap();
    let (mut client, mut target) = if is_later {
        kept(program, listener)
    } else {
        let mut client = program.connect();
        client.write_all(get(address, "/first").as_bytes()).unwrap();
        let mut target = accept(listener);
        // The connection of the target has no earlier request.
        read_head(&mut target);
        target.write_all(answer.as_bytes()).unwrap();
        return (client, target);
    };
    client.write_all(get(address, "/x").as_bytes()).unwrap();
    read_head(&mut target);
    target.write_all(answer.as_bytes()).unwrap();
    (client, target)
}

#[test]
fn an_answer_that_is_ambiguous_is_the_last_one_in_each_position() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    for start in [
        "200 OK\r\nContent-Length: 4\r\nContent-Length: 4",
        "200 OK\r\nContent-Length: 4, 4",
        "200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked",
        "200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "200 OK\r\nTransfer-Encoding: chunked, identity",
        "200 OK\r\nTransfer-Encoding: gzip, chunked",
        "200 OK\r\nTransfer-Encoding : chunked",
        "200 OK\r\nContent-Length : 4",
        "200 OK\r\nContent-Length: 4\r\nX: a\r\n b",
        "200 OK\r\nX: a\nContent-Length: 4",
        "200 OK\nContent-Length: 4",
        "200 OK\r\nContent-Length: 4\r\nX: \0",
        "200 OK\r\nX: a\rContent-Length: 4",
        "200 OK\r\nContent-Length: 4\r\nnonsense",
        "200 OK\r\nConnection: Content-Length\r\nContent-Length: 4",
        "204 No Content\r\nContent-Length: 4",
        "204 No Content\r\nTransfer-Encoding: chunked",
        "304 Not Modified\r\nTransfer-Encoding: chunked",
        "103 Hints\r\nContent-Length: 4\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4",
        "100 Continue\r\n\nHTTP/1.1 200 OK\r\nContent-Length: 4",
    ] {
        for is_later in [false, true] {
            let hidden = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhidden";
            let answer = format!("HTTP/1.1 {start}\r\n\r\ndone{hidden}");
            let (mut client, mut target) = answered(&program, &listener, is_later, &answer);
            let next = get(address, "/next");
            client.write_all(next.as_bytes()).unwrap();
            target.shutdown(std::net::Shutdown::Write).unwrap();
            let said = read_until_closed(&mut client);
            assert!(said.contains("Connection: close\r\n"), "{start:?}: {said}");
            assert!(!said.contains("keep-alive"), "{start:?}: {said}");
            let received = read_until_closed(&mut target);
            assert_eq!(received, "", "{start:?}: the target gets no other request");
        }
    }
    assert!(!was_reached(&listener), "the client's next request is not served");
}

/// RFC 9112 section 6.3: a proxy must answer 502, and close the connection of the target.
#[test]
fn an_answer_without_a_valid_length_becomes_502_in_each_position() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    for start in [
        "200 OK\r\nContent-Length: 4\r\nContent-Length: 5",
        "200 OK\r\nContent-Length: +4",
        "200 OK\r\nContent-Length:",
        "101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x",
    ] {
        for is_later in [false, true] {
            let hidden = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhidden";
            let answer = format!("HTTP/1.1 {start}\r\n\r\ndone{hidden}");
            let (mut client, mut target) = answered(&program, &listener, is_later, &answer);
            let said = read_message(&mut client);
            assert!(said.starts_with("HTTP/1.1 502 "), "{start:?}: {said}");
            assert!(said.contains("\r\nConnection: keep-alive\r\n"), "{start:?}: {said}");
            assert_eq!(read_until_closed(&mut target), "", "{start:?}");
            client.write_all(get(address, "/next").as_bytes()).unwrap();
            serve(&mut accept(&listener), "/next");
            assert_done(&mut client);
        }
    }
}

#[test]
fn a_chunked_answer_that_is_not_valid_breaks_the_client_s_connection() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    for body in [
        "g\r\n",
        "+1\r\n",
        "0x1\r\n",
        "1\n",
        " 1\r\n",
        "5 0\r\n",
        "1\r\nab",
        "1\r\na\n",
        "0\r\n\n",
        "0\r\na: b\n",
    ] {
        for is_later in [false, true] {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let hidden = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhidden";
            let answer = [head, body, hidden].concat();
            let (mut client, mut target) = answered(&program, &listener, is_later, &answer);
            // The client may find the connection closed.
            let _ = client.write_all(get(address, "/next").as_bytes());
            let said = read_until_closed(&mut client);
            assert!(!said.contains("hidden"), "{body:?}: {said}");
            assert_eq!(read_until_closed(&mut target), "", "{body:?}");
        }
    }
    assert!(!was_reached(&listener));
}
