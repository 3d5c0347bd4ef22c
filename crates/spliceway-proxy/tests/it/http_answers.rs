//! Answers to requests with a body, whether or not the target closes its connection. The tests also
//! cover requests for another protocol.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::clients::read_head;
use crate::harness::{Program, accept, assert_same, is_closed, listen, pattern, read_all, read_exactly, was_reached};

/// The fields and the bytes of requests whose body has 5 bytes.
const BODIES: [(&str, &str); 2] = [
    ("Content-Length: 5\r\n", "hello"),
    ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
];

/// Sends a request with these fields and this body. Returns the client, and the target once it has
/// received the request.
fn put(program: &Program, fields: &str, body: &str) -> (TcpStream, TcpStream) {
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(
        client,
        "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}"
    )
    .unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    assert_eq!(read_exactly(&mut target, body.len()), body.as_bytes());
    (client, target)
}

/// If an answer without a known end did not end the connection, the client would wait for more.
#[test]
fn an_answer_to_a_body_ends_as_its_head_says() {
    for kind in ["http", "mixed"] {
        let program = Program::proxy(kind, &[]);
        for (fields, body) in BODIES {
            for at_once in [true, false] {
                let (listener, address) = listen();
                let mut client = program.connect();
                let head = format!("POST http://{address}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
                let mut target;
                if at_once {
                    client.write_all([&head, body].concat().as_bytes()).unwrap();
                    target = accept(&listener);
                    read_head(&mut target);
                } else {
                    client.write_all(head.as_bytes()).unwrap();
                    target = accept(&listener);
                    read_head(&mut target);
                    client.write_all(body.as_bytes()).unwrap();
                }
                assert_eq!(read_exactly(&mut target, body.len()), body.as_bytes());
                // The first answer has an end of its own, and the second one ends with its
                // connection.
                for (field, connection) in [("Content-Length: 4\r\n", "keep-alive"), ("", "close")] {
                    let head = format!("HTTP/1.1 200 OK\r\n{field}Connection: ");
                    target
                        .write_all([&head, "keep-alive\r\n\r\ndo"].concat().as_bytes())
                        .unwrap();
                    assert_eq!(read_head(&mut client), format!("{head}{connection}\r\n\r\n"));
                    assert_eq!(read_exactly(&mut client, 2), b"do");
                    target.write_all(b"ne").unwrap();
                    assert_eq!(read_exactly(&mut client, 2), b"ne");
                    if connection == "keep-alive" {
                        write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                        read_head(&mut target);
                    }
                }
                target.shutdown(Shutdown::Write).unwrap();
                assert_eq!(read_all(&client), b"", "{kind}, {fields:?}, at once: {at_once}");
            }
        }
    }
}

#[test]
fn an_interim_answer_comes_before_the_body_that_waits_for_it() {
    let program = Program::proxy("http", &[]);
    for (fields, body) in BODIES {
        let (listener, address) = listen();
        let mut client = program.connect();
        write!(
            client,
            "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{fields}\r\n"
        )
        .unwrap();
        let mut target = accept(&listener);
        assert!(read_head(&mut target).contains("Expect: 100-continue\r\n"));
        target.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        assert_eq!(read_head(&mut client), "HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(body.as_bytes()).unwrap();
        assert_eq!(read_exactly(&mut target, body.len()), body.as_bytes());
        target.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        assert_eq!(
            read_head(&mut client),
            "HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n"
        );
    }
}

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
const DONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";

/// The target sends its answer after the client has told that it has the hints.
#[test]
fn an_interim_answer_reaches_the_client_before_the_next_one_is_sent() {
    for arguments in [&[][..], &["--rate-out", "1MB:client"]] {
        let mut program = Program::proxy("http", arguments);
        let (listener, address) = listen();
        let mut client = program.connect();
        for fields in ["", "Connection: close\r\n"] {
            write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n").unwrap();
        }
        let mut target = accept(&listener);
        for connection in ["keep-alive", "close"] {
            let up = read_head(&mut target).len();
            for _ in 0..2 {
                target.write_all(HINTS.as_bytes()).unwrap();
                assert_eq!(read_head(&mut client), HINTS);
            }
            // These hints come together with the answer.
            target.write_all([HINTS, DONE].concat().as_bytes()).unwrap();
            assert_eq!(read_head(&mut client), HINTS);
            let head = read_head(&mut client);
            assert!(
                head.ends_with(&format!("\r\nConnection: {connection}\r\n\r\n")),
                "{head}"
            );
            assert_eq!(read_exactly(&mut client, 4), b"done");
            if connection == "close" {
                client.shutdown(Shutdown::Write).unwrap();
            }
            let (record, down) = (program.line("end=answered"), 3 * HINTS.len() + head.len() + 4);
            assert!(
                record.contains(&format!("bytes_up={up} bytes_down={down} ")),
                "{record}"
            );
        }
        let total = (6 * HINTS.len() + 2 * DONE.len() + "Connection: keep-alive\r\nConnection: close\r\n".len()) as u64;
        assert_eq!(program.sum("spliceway_bytes_total", &["direction=\"down\""]), total);
    }
}

/// The head of an interim answer may come in parts, and any number of them may come.
#[test]
fn interim_answers_pass_in_any_number_and_not_in_parts() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    // All of them together exceed the limit on a head.
    let long = format!("HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n", "x".repeat(10_000));
    for _ in 0..10 {
        target.write_all(long.as_bytes()).unwrap();
        assert_eq!(read_head(&mut client), long);
    }
    let (half, rest) = HINTS.split_at(30);
    target.write_all([HINTS, half].concat().as_bytes()).unwrap();
    assert_eq!(read_head(&mut client), HINTS);
    target.write_all([rest, DONE].concat().as_bytes()).unwrap();
    assert_eq!(read_head(&mut client), HINTS);
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
}

/// The target is not read while its answers wait for the client.
#[test]
fn a_client_that_reads_no_interim_answer_is_idle() {
    let mut program = Program::proxy("http", &["--idle-timeout", "300ms"]);
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    // The buffers of the sockets hold only a part of this.
    let hints = format!("HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n", "x".repeat(60_000));
    while target.write_all(hints.as_bytes()).is_ok() {}
    program.line("end=idle");
    let received = String::from_utf8(read_all(&client)).unwrap();
    assert!(received.starts_with(&hints) && !received.contains(" 504 "));
}

#[test]
fn a_client_of_http_1_0_gets_no_interim_answer() {
    let program = Program::proxy("http", &[]);
    for (method, fields, body) in [("GET", "", ""), ("PUT", "Content-Length: 5\r\n", "hello")] {
        let (listener, address) = listen();
        let mut client = program.connect();
        write!(client, "{method} http://{address}/ HTTP/1.0\r\n{fields}\r\n{body}").unwrap();
        let mut target = accept(&listener);
        read_head(&mut target);
        read_exactly(&mut target, body.len());
        target.write_all([HINTS, DONE].concat().as_bytes()).unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "), "{method}");
    }
}

#[test]
fn a_request_with_an_interim_answer_is_not_sent_again() {
    let mut program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    let request = format!("GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    target.write_all(DONE.as_bytes()).unwrap();
    read_head(&mut client);
    read_exactly(&mut client, 4);
    client.write_all(request.as_bytes()).unwrap();
    read_head(&mut target);
    target.write_all(HINTS.as_bytes()).unwrap();
    assert_eq!(read_head(&mut client), HINTS);
    drop(target);
    assert!(read_head(&mut client).starts_with("HTTP/1.1 502 "));
    program.line("end=answered");
    program.line("end=upstream_eof");
    assert!(!was_reached(&listener));
}

/// The record of a request whose client got an answer of the proxy names what the target has done.
#[test]
fn a_record_tells_why_the_proxy_has_answered_in_place_of_the_target() {
    let mut program = Program::proxy("http", &["--idle-timeout", "300ms"]);
    let two_lengths = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ndone";
    for (fields, body) in [("", ""), BODIES[0], BODIES[1]] {
        for (said, then, status, end) in [
            ("", "end", 502, "end=upstream_eof"),
            ("HTTP/1.1 200 OK\r\n", "end", 502, "end=upstream_eof"),
            (HINTS, "end", 502, "end=upstream_eof"),
            ("", "reset", 502, "end=reset_by_upstream"),
            ("HTTP/1.1 200 OK\r\n", "reset", 502, "end=reset_by_upstream"),
            // With a body, the relay ends without an answer.
            ("", "silence", 504, "end=idle"),
            (two_lengths, "silence", 502, "end=bad_answer cause=\"the length "),
            (SWITCHING, "silence", 502, "end=bad_answer cause=\"the answer switches "),
        ] {
            if end == "end=idle" && !body.is_empty() {
                continue;
            }
            let (mut client, mut target) = put(&program, fields, body);
            target.write_all(said.as_bytes()).unwrap();
            match then {
                "end" => target.shutdown(Shutdown::Write).unwrap(),
                "reset" => {
                    socket2::SockRef::from(&target)
                        .set_linger(Some(std::time::Duration::ZERO))
                        .unwrap();
                    drop(target);
                }
                _ => {}
            }
            let mut answer = read_head(&mut client);
            if said == HINTS {
                assert_eq!(answer, HINTS);
                answer = read_head(&mut client);
            }
            let what = format!("{fields:?}, {said:?}, {then}: {answer}");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}");
            drop(client);
            let record = program.line("end=");
            assert!(record.contains(end), "{what}: {record}");
        }
    }
}

/// The target answers while it reads. Neither direction waits for the end of the other direction.
#[test]
fn an_answer_passes_while_the_body_is_still_being_sent() {
    let program = Program::proxy("http", &[]);
    for chunked in [false, true] {
        let (listener, address) = listen();
        let mut client = program.connect();
        let part = pattern(5, 4096);
        let (fields, piece, end) = match chunked {
            false => ("Content-Length: 16384", part.clone(), &b""[..]),
            true => (
                "Transfer-Encoding: chunked",
                [b"1000\r\n", &part[..], b"\r\n"].concat(),
                &b"0\r\n\r\n"[..],
            ),
        };
        write!(client, "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n").unwrap();
        let mut target = accept(&listener);
        read_head(&mut target);
        for turn in 0..4 {
            client.write_all(&piece).unwrap();
            if turn == 3 {
                client.write_all(end).unwrap();
            }
            assert_same(&read_exactly(&mut target, piece.len()), &piece);
            if turn == 0 {
                target
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 16384\r\n\r\n")
                    .unwrap();
                assert_eq!(
                    read_head(&mut client),
                    "HTTP/1.1 200 OK\r\nContent-Length: 16384\r\nConnection: keep-alive\r\n\r\n"
                );
            }
            target.write_all(&part).unwrap();
            assert_same(&read_exactly(&mut client, part.len()), &part);
        }
        assert_eq!(read_exactly(&mut target, end.len()), end);
        write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_head(&mut target);
    }
}

/// The proxy copies the bytes that it cannot splice, and splices the rest.
#[test]
fn a_long_answer_to_a_body_is_complete_and_spliced() {
    let program = Program::proxy("http", &["--splice", "on"]);
    let answer = pattern(8, 2 << 20);
    for (fields, body) in BODIES {
        let before = program.sum("spliceway_bytes_total", &["path=\"splice\""]);
        let (mut client, mut target) = put(&program, fields, body);
        target.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
        let expected = answer.clone();
        let reading = std::thread::spawn(move || assert_same(&read_all(&client), &expected));
        target.write_all(&answer).unwrap();
        drop(target);
        reading.join().unwrap();
        program.await_end("upstream_eof");
        let spliced = program.sum("spliceway_bytes_total", &["path=\"splice\""]) - before;
        // After a splice that finds nothing, a receive may bring up to 64 KiB that have just
        // arrived.
        assert!(spliced >= 1 << 20, "{spliced}");
    }
}

#[test]
fn a_target_that_does_not_answer_a_body_is_a_bad_gateway() {
    let program = Program::proxy("http", &[]);
    for (fields, body) in BODIES {
        let (client, target) = put(&program, fields, body);
        drop(target);
        let answer = String::from_utf8(read_all(&client)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    }
}

/// The record counts every byte of a request and of its answer once.
#[test]
fn a_record_has_all_bytes_of_a_request_with_a_body() {
    let mut program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(
        client,
        "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
    )
    .unwrap();
    let mut target = accept(&listener);
    let up = read_head(&mut target).len() + read_exactly(&mut target, 5).len();
    target.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    let down = read_head(&mut client).len() + 100_000;
    target.write_all(&pattern(2, 100_000)).unwrap();
    drop(target);
    assert_eq!(read_all(&client).len(), 100_000);
    drop(client);
    let record = program.line("end=upstream_eof");
    assert!(
        record.contains(&format!("bytes_up={up} bytes_down={down} ")),
        "{record}"
    );
    assert_eq!(program.sum("spliceway_bytes_total", &["direction=\"up\""]), up as u64);
    assert_eq!(
        program.sum("spliceway_bytes_total", &["direction=\"down\""]),
        down as u64
    );
}

const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\n\r\n";

/// Returns a client that has asked for another protocol, the target, and the head that the target
/// received.
fn asking_to_upgrade(program: &Program, protocols: &str, early: &str) -> (TcpStream, TcpStream, String) {
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(
        client,
        "GET http://{address}/chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: {protocols}\r\n\
         Sec-WebSocket-Key: dGhl\r\n\r\n{early}"
    )
    .unwrap();
    let mut target = accept(&listener);
    let head = read_head(&mut target);
    (client, target, head)
}

#[test]
fn an_upgraded_request_becomes_a_tunnel_both_ways() {
    for (kind, arguments) in [("http", &[][..]), ("mixed", &[]), ("http", &["--splice", "on"])] {
        let program = Program::proxy(kind, arguments);
        for early in ["", "early"] {
            let (mut client, mut target, head) = asking_to_upgrade(&program, "chat, h2c", early);
            assert!(
                head.contains("Upgrade: chat\r\nConnection: Upgrade\r\n\r\n")
                    && head.contains("Sec-WebSocket-Key: dGhl\r\n"),
                "{head}"
            );
            assert!(!head.contains("keep-alive") && !head.contains("h2c"), "{head}");
            target.write_all([SWITCHING, "first"].concat().as_bytes()).unwrap();
            assert_eq!(read_head(&mut client), SWITCHING);
            assert_eq!(read_exactly(&mut client, 5), b"first");
            assert_eq!(read_exactly(&mut target, early.len()), early.as_bytes());
            for turn in 0..3 {
                let said = pattern(turn, 100_000);
                let (mut from, to) = match turn % 2 {
                    0 => (client.try_clone().unwrap(), &mut target),
                    _ => (target.try_clone().unwrap(), &mut client),
                };
                let sending = said.clone();
                let sender = std::thread::spawn(move || from.write_all(&sending).unwrap());
                assert_same(&read_exactly(to, said.len()), &said);
                sender.join().unwrap();
            }
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(target.read(&mut [0]).unwrap(), 0);
            target.write_all(b"last").unwrap();
            drop(target);
            assert_eq!(read_all(&client), b"last");
        }
        program.await_sum("spliceway_connections_total", &["end=\"client_eof\""], 2);
    }
}

#[test]
fn an_upgrade_that_the_target_declines_is_an_ordinary_request() {
    let program = Program::proxy("http", &[]);
    let (mut client, mut target, _) = asking_to_upgrade(&program, "chat", "");
    target
        .write_all(
            b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: talk\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nno",
        )
        .unwrap();
    assert_eq!(
        read_head(&mut client),
        "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(read_exactly(&mut client, 2), b"no");
    client
        .write_all(b"GET http://other/ HTTP/1.1\r\nCookie: secret\r\n\r\n")
        .unwrap();
    drop(client);
    target.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&target), b"", "what follows is not for this target");
}

#[test]
fn an_invalid_upgrade_or_one_to_http_is_not_passed_on() {
    let program = Program::proxy("http", &[]);
    for (method, version, fields) in [
        (
            "GET",
            1,
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n",
        ),
        ("GET", 1, "Connection: Upgrade\r\nUpgrade: HTTP/2.0\r\n"),
        ("GET", 1, "Upgrade: websocket\r\n"),
        ("GET", 0, "Connection: Upgrade\r\nUpgrade: websocket\r\n"),
        (
            "POST",
            1,
            "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n",
        ),
    ] {
        let (listener, address) = listen();
        let mut client = program.connect();
        write!(
            client,
            "{method} http://{address}/ HTTP/1.{version}\r\nHost: a\r\n{fields}\r\n"
        )
        .unwrap();
        let head = read_head(&mut accept(&listener)).to_ascii_lowercase();
        let connection = if version == 1 { "keep-alive" } else { "close" };
        let connection = format!("connection: {connection}\r\n");
        assert!(
            !head.contains("upgrade") && !head.contains("http2") && head.contains(&connection),
            "{head}"
        );
    }
}

#[test]
fn a_client_that_leaves_before_its_upgrade_ends_the_request() {
    let program = Program::proxy("http", &[]);
    let (client, mut target, _) = asking_to_upgrade(&program, "chat", "early");
    socket2::SockRef::from(&client)
        .set_linger(Some(std::time::Duration::ZERO))
        .unwrap();
    drop(client);
    assert!(is_closed(&mut target));
    program.await_end("reset_by_client");
}
