//! Connections of HTTP clients that carry many requests.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::clients::{read_head, read_message};
use crate::harness::{Program, accept, assert_same, is_closed, listen, pattern, read_all, read_exactly, refusing};

// What ends a kept connection, and what each request passes.
mod limits;
// Requests and answers that wait for a rate limit.
mod rates;
// Connections to targets that end or speak out of turn.
mod reuse;
// Messages that readers may end at different places.
mod smuggling;

/// An answer with the body "done".
const DONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";

/// Returns a request without a body.
fn get(target: SocketAddr, path: &str) -> String {
    format!("GET http://{target}{path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// Reads a request without a body on the connection of a target, and answers it.
fn serve(target: &mut TcpStream, path: &str) {
    let head = read_head(target);
    assert!(head.starts_with(&format!("GET {path} HTTP/1.")), "{head}");
    target.write_all(DONE.as_bytes()).unwrap();
}

/// Asserts that the client gets the answer of [`serve`], and that its connection stays open.
fn assert_done(client: &mut TcpStream) {
    let answer = read_message(client);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\r\nConnection: keep-alive\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\ndone"), "{answer}");
}

/// Returns a client whose first request has been answered, and the connection of its target.
fn kept(program: &Program, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = program.connect();
    let address = listener.local_addr().unwrap();
    client.write_all(get(address, "/first").as_bytes()).unwrap();
    let mut target = accept(listener);
    serve(&mut target, "/first");
    assert_done(&mut client);
    (client, target)
}

#[test]
fn requests_for_one_target_use_one_connection() {
    for kind in ["http", "mixed"] {
        let mut program = Program::proxy(kind, &[]);
        let (listener, address) = listen();
        let (mut client, mut target) = kept(&program, &listener);
        for (method, fields, body) in [
            ("GET", "", ""),
            ("POST", "Content-Length: 5\r\n", "hello"),
            (
                "PUT",
                "Transfer-Encoding: chunked\r\n",
                "5\r\nhello\r\n0\r\nX: y\r\n\r\n",
            ),
            ("GET", "", ""),
        ] {
            let head = format!("{method} http://{address}/x HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            client.write_all([&head, body].concat().as_bytes()).unwrap();
            let head = read_head(&mut target);
            assert!(head.starts_with(&format!("{method} /x HTTP/1.1\r\n")), "{head}");
            assert_eq!(read_exactly(&mut target, body.len()), body.as_bytes());
            target.write_all(DONE.as_bytes()).unwrap();
            assert_done(&mut client);
        }
        drop(client);
        assert_eq!(read_all(&target), b"", "its connection ends with that of the client");
        let records = [(); 5].map(|()| program.line("end=answered"));
        for (number, record) in records.iter().enumerate() {
            assert!(
                record.contains(&format!("target={address} upstream={address} ")),
                "{record}"
            );
            assert_eq!(record.contains("connect_ms="), number == 0, "{record}");
        }
        assert_eq!(program.sum("spliceway_connections_total", &["end=\"answered\""]), 5);
        assert_eq!(
            program.sum("spliceway_connections_total", &[]),
            5,
            "its end is no session"
        );
        assert_eq!(program.sum("spliceway_connect_seconds_count", &[]), 1);
    }
}

#[test]
fn each_request_reaches_its_own_target() {
    let mut program = Program::proxy("http", &[]);
    let (first, second) = (listen(), listen());
    let mut client = program.connect();
    let mut before: Option<TcpStream> = None;
    for (listener, address) in [&first, &second, &first, &second] {
        client.write_all(get(*address, "/a").as_bytes()).unwrap();
        let mut target = accept(listener);
        serve(&mut target, "/a");
        assert_done(&mut client);
        if let Some(before) = before.replace(target) {
            assert_eq!(read_all(&before), b"", "only the last target is kept");
        }
        program.line(&format!("target={address} "));
    }
}

#[test]
fn requests_that_arrive_together_are_answered_in_order() {
    let program = Program::proxy("http", &[]);
    let (first, second) = (listen(), listen());
    let mut client = program.connect();
    let chunked = format!(
        "POST http://{}/c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        first.1
    );
    let length = format!(
        "POST http://{}/d HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        second.1
    );
    // The last request does not fit into the buffer for heads.
    let long = get(second.1, &format!("/{}", "x".repeat(3000)));
    let all = [get(first.1, "/a"), get(first.1, "/b"), chunked, length, long].concat();
    client.write_all(all.as_bytes()).unwrap();
    let mut target = accept(&first.0);
    serve(&mut target, "/a");
    serve(&mut target, "/b");
    assert!(read_head(&mut target).starts_with("POST /c "));
    assert_eq!(read_exactly(&mut target, 13), b"3\r\nabc\r\n0\r\n\r\n");
    target.write_all(DONE.as_bytes()).unwrap();
    let mut target = accept(&second.0);
    assert!(read_head(&mut target).starts_with("POST /d "));
    assert_eq!(read_exactly(&mut target, 3), b"abc");
    target.write_all(DONE.as_bytes()).unwrap();
    serve(&mut target, &format!("/{}", "x".repeat(3000)));
    for _ in 0..5 {
        assert_done(&mut client);
    }
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), b"");
}

#[test]
fn a_connection_stays_open_as_both_sides_say() {
    let program = Program::proxy("http", &[]);
    for (version, asked, answered, stays) in [
        ("1.1", "", "", true),
        ("1.1", "", "Connection: close\r\n", true),
        ("1.1", "Connection: close\r\n", "", false),
        ("1.1", "Proxy-Connection: close\r\n", "", false),
        ("1.0", "", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", "", true),
        ("1.0", "Proxy-Connection: Keep-Alive\r\n", "Connection: close\r\n", true),
    ] {
        let (listener, address) = listen();
        let mut client = program.connect();
        write!(client, "GET http://{address}/ HTTP/{version}\r\nHost: a\r\n{asked}\r\n").unwrap();
        let mut target = accept(&listener);
        let head = read_head(&mut target);
        let connection = if stays { "keep-alive" } else { "close" };
        assert!(head.contains(&format!("\r\nConnection: {connection}\r\n")), "{head}");
        write!(target, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{answered}\r\nok").unwrap();
        assert_eq!(
            read_message(&mut client),
            format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: {connection}\r\n\r\nok")
        );
        if !stays {
            assert!(is_closed(&mut client), "{version} {asked:?} {answered:?}");
            continue;
        }
        client.write_all(get(address, "/next").as_bytes()).unwrap();
        if answered.is_empty() {
            serve(&mut target, "/next");
        } else {
            assert_eq!(read_all(&target), b"");
            serve(&mut accept(&listener), "/next");
        }
        assert_done(&mut client);
    }
}

/// Such a client would wait for more after the last chunk.
#[test]
fn a_chunked_answer_to_http_1_0_ends_with_the_connection() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(
        client,
        "GET http://{address}/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    )
    .unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    let body = "4\r\ndone\r\n0\r\n\r\n";
    write!(target, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}").unwrap();
    assert!(read_head(&mut client).ends_with("\r\nConnection: close\r\n\r\n"));
    target.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), body.as_bytes());
}

#[test]
fn an_answer_without_a_body_is_followed_by_the_next_one() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    for (method, head) in [
        ("HEAD", "200 OK\r\nContent-Length: 1000"),
        ("HEAD", "200 OK\r\nTransfer-Encoding: chunked"),
        ("HEAD", "200 OK\r\nX: y"),
        ("GET", "204 No Content\r\nX: y"),
        ("GET", "304 Not Modified\r\nContent-Length: 1000"),
        ("GET", "200 OK\r\nContent-Length: 0"),
    ] {
        write!(client, "{method} http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert!(read_head(&mut target).starts_with(method));
        write!(target, "HTTP/1.1 {head}\r\n\r\n").unwrap();
        assert_eq!(
            read_head(&mut client),
            format!("HTTP/1.1 {head}\r\nConnection: keep-alive\r\n\r\n")
        );
    }
    client.write_all(get(address, "/last").as_bytes()).unwrap();
    serve(&mut target, "/last");
    assert_done(&mut client);
}

#[test]
fn bodies_of_a_known_end_pass_both_ways_byte_by_byte() {
    let program = Program::proxy("http", &["--splice", "on"]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    let bytes = pattern(3, 2_000_000);
    let chunks: Vec<u8> = bytes
        .chunks(70_001)
        .flat_map(|part| [format!("{:x};a=b\r\n", part.len()).as_bytes(), part, b"\r\n"].concat())
        .chain(*b"0\r\nTrailer: 1\r\n\r\n")
        .collect();
    let before = program.sum("spliceway_bytes_total", &["path=\"splice\""]);
    for (field, body) in [
        (format!("Content-Length: {}", bytes.len()), &bytes),
        ("Transfer-Encoding: chunked".to_owned(), &chunks),
        (format!("Content-Length: {}", bytes.len()), &bytes),
    ] {
        let head = format!("PUT http://{address}/ HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        let mut sender = client.try_clone().unwrap();
        let sent = [head.as_bytes(), &body[..]].concat();
        let sending = std::thread::spawn(move || sender.write_all(&sent).unwrap());
        read_head(&mut target);
        assert_same(&read_exactly(&mut target, body.len()), body);
        sending.join().unwrap();
        let answer = [format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n").as_bytes(), &body[..]].concat();
        let mut answering = target.try_clone().unwrap();
        let answering = std::thread::spawn(move || answering.write_all(&answer).unwrap());
        assert!(read_head(&mut client).ends_with("\r\nConnection: keep-alive\r\n\r\n"));
        assert_same(&read_exactly(&mut client, body.len()), body);
        answering.join().unwrap();
    }
    // Two of the bodies have a length. Each of them passes once in each direction.
    let spliced = program.sum("spliceway_bytes_total", &["path=\"splice\""]) - before;
    assert!(spliced >= 4 * 2_000_000 / 2, "{spliced}");
}

#[test]
fn an_interim_answer_comes_before_the_body_on_a_kept_connection() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    for (fields, body) in [
        ("Content-Length: 5\r\n", "hello"),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        write!(
            client,
            "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{fields}\r\n"
        )
        .unwrap();
        assert!(read_head(&mut target).contains("\r\nExpect: 100-continue\r\n"));
        target.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        assert_eq!(read_head(&mut client), "HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(body.as_bytes()).unwrap();
        assert_eq!(read_exactly(&mut target, body.len()), body.as_bytes());
        target.write_all(DONE.as_bytes()).unwrap();
        assert_done(&mut client);
    }
    // The client may send the body after this answer, or its next request.
    write!(
        client,
        "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    )
    .unwrap();
    read_head(&mut target);
    target
        .write_all(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    assert!(read_head(&mut client).ends_with("\r\nConnection: close\r\n\r\n"));
}

/// What follows the request is then for another protocol.
#[test]
fn a_later_request_may_ask_for_a_tunnel() {
    let mut program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    for early in ["", "early"] {
        let (mut client, target) = kept(&program, &listener);
        write!(client, "CONNECT {address} HTTP/1.1\r\nHost: a\r\n\r\n{early}").unwrap();
        assert_eq!(read_all(&target), b"", "the tunnel has a connection of its own");
        let mut target = accept(&listener);
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
        client.write_all(b" and more").unwrap();
        assert_eq!(
            read_exactly(&mut target, early.len() + 9),
            format!("{early} and more").as_bytes()
        );
        drop(target);
        assert_eq!(read_all(&client), b"");
        drop(client);
        program.line("end=upstream_eof");
    }
    let (mut client, _) = kept(&program, &listener);
    write!(
        client,
        "GET http://{address}/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n"
    )
    .unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    let switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\n\r\n";
    target.write_all(switching.as_bytes()).unwrap();
    assert_eq!(read_head(&mut client), switching);
    client.write_all(b"hello").unwrap();
    assert_eq!(read_exactly(&mut target, 5), b"hello");
}

#[test]
fn a_request_that_fails_is_followed_by_the_next_one_if_its_end_is_certain() {
    let program = Program::proxy("http", &["--to-deny", "127.0.0.2"]);
    let (listener, address) = listen();
    let (gone, large) = (refusing(), "x".repeat(100_000));
    for (target, status, fields, body, stays) in [
        (gone.to_string(), 502, "", "", true),
        (gone.to_string(), 502, "Content-Length: 5\r\n", "hello", true),
        (
            gone.to_string(),
            502,
            "Transfer-Encoding: chunked\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            true,
        ),
        ("127.0.0.2:1".to_owned(), 403, "Content-Length: 5\r\n", "hello", true),
        (
            "127.0.0.2:1".to_owned(),
            403,
            "Content-Length: 100000\r\n",
            &large,
            false,
        ),
        (
            gone.to_string(),
            502,
            "Content-Length: 5\r\nExpect: 100-continue\r\n",
            "hello",
            false,
        ),
        (gone.to_string(), 502, "Connection: close\r\n", "", false),
    ] {
        let (mut client, _) = kept(&program, &listener);
        let request = format!("PUT http://{target}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}");
        let next = get(address, "/next");
        // The proxy may have closed the connection before it has read everything.
        let _ = client.write_all([&request[..], &next].concat().as_bytes());
        let answer = read_message(&mut client);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let connection = if stays { "keep-alive" } else { "close" };
        assert!(
            answer.contains(&format!("\r\nConnection: {connection}\r\n")),
            "{answer}"
        );
        if stays {
            serve(&mut accept(&listener), "/next");
            assert_done(&mut client);
        } else {
            assert!(is_closed(&mut client), "{fields:?}");
        }
    }
    let mut client = program.connect();
    write!(client, "HEAD http://{gone}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 502 "));
    client.write_all(get(address, "/next").as_bytes()).unwrap();
    serve(&mut accept(&listener), "/next");
    assert_done(&mut client);
}

/// The target answers, and the client has not sent all of its body yet.
#[test]
fn an_early_answer_keeps_the_connection_only_if_its_target_reads_on() {
    let program = Program::proxy("http", &[]);
    for closes in [false, true] {
        let (listener, address) = listen();
        let (mut client, mut target) = kept(&program, &listener);
        write!(
            client,
            "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello"
        )
        .unwrap();
        read_head(&mut target);
        assert_eq!(read_exactly(&mut target, 5), b"hello");
        let (field, connection) = match closes {
            true => ("Connection: close\r\n", "close"),
            false => ("", "keep-alive"),
        };
        write!(target, "HTTP/1.1 401 No\r\nContent-Length: 2\r\n{field}\r\nno").unwrap();
        let answer = read_message(&mut client);
        assert!(
            answer.contains(&format!("\r\nConnection: {connection}\r\n")),
            "{answer}"
        );
        if closes {
            drop(target);
            assert_eq!(read_all(&client), b"");
            continue;
        }
        let next = get(address, "/next");
        client.write_all(["world", &next].concat().as_bytes()).unwrap();
        assert_eq!(read_exactly(&mut target, 5), b"world");
        serve(&mut target, "/next");
        assert_done(&mut client);
    }
}
