use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::clients::{exchange, read_head, read_message};
use crate::harness::{
    Program, accept, assert_same, echo, is_closed, let_pass, listen, pattern, read_all, read_exactly, refusing,
    send_and_finish,
};

/// Sends these bytes as a client, and returns the answer.
fn answer(program: &Program, request: &[u8]) -> String {
    let mut client = program.connect();
    client.write_all(request).unwrap();
    read_message(&mut client)
}

/// Starts a server that answers one request. The thread returns the head that the server received,
/// and the `body` bytes after the head.
fn serve_once(listener: TcpListener, body: usize, response: &'static [u8]) -> thread::JoinHandle<(String, Vec<u8>)> {
    thread::spawn(move || {
        let mut stream = accept(&listener);
        let head = read_head(&mut stream);
        let body = read_exactly(&mut stream, body);
        stream.write_all(response).unwrap();
        (head, body)
    })
}

#[test]
fn connect_relays_both_ways_and_early_data_is_not_lost() {
    let program = Program::proxy("http", &[]);
    let target = echo("127.0.0.1:0");
    for host in [target.to_string(), format!("localhost:{}", target.port())] {
        let mut client = program.connect();
        write!(client, "CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
        exchange(client);
        let mut client = program.connect();
        let early = pattern(3, 20_000);
        client
            .write_all(&[format!("CONNECT {host} HTTP/1.0\r\n\r\n").as_bytes(), &early].concat())
            .unwrap();
        read_head(&mut client);
        assert_same(&read_exactly(&mut client, early.len()), &early);
    }
}

#[test]
fn an_ipv6_target_is_reached() {
    let program = Program::proxy("http", &[]);
    let target = echo("[::1]:0");
    let mut client = program.connect();
    write!(client, "CONNECT {target} HTTP/1.1\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
    exchange(client);
}

#[test]
fn a_forwarded_request_omits_fields_for_the_proxy() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let server = serve_once(listener, 5, b"HTTP/1.1 204 No Content\r\n\r\n");
    let request = format!(
        "POST http://{address}/path?query=1 HTTP/1.1\r\nHost: elsewhere\r\nProxy-Connection: keep-alive\r\nConnection: X-Private\r\n\
         X-Private: 1\r\nProxy-Authorization: Basic x\r\nKeep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\nX-Kept: yes\r\n\
         Content-Length: 5\r\n\r\nhello"
    );
    let answer = answer(&program, request.as_bytes());
    assert_eq!(answer, "HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n");
    let (head, body) = server.join().unwrap();
    assert!(head.starts_with("POST /path?query=1 HTTP/1.1\r\n"), "{head}");
    assert_eq!(body, b"hello");
    let low = head.to_ascii_lowercase();
    for gone in ["proxy-", "x-private", "keep-alive: ", "te:", "upgrade", "elsewhere"] {
        assert!(!low.contains(gone), "{gone} in {head}");
    }
    for there in [
        &format!("host: {address}\r\n"),
        "x-kept: yes\r\n",
        "content-length: 5\r\n",
        "connection: keep-alive\r\n",
        "via: 1.1 ",
    ] {
        assert_eq!(low.matches(there).count(), 1, "{there} in {head}");
    }
}

#[test]
fn a_large_body_passes_both_ways() {
    let program = Program::proxy("http", &["--splice", "on"]);
    let (listener, address) = listen();
    let sent = pattern(11, 3_000_000);
    let expected = sent.clone();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        read_head(&mut stream);
        let body = read_exactly(&mut stream, expected.len());
        assert_same(&body, &expected);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        send_and_finish(&stream, &body);
    });
    let mut client = program.connect();
    let head = format!(
        "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        sent.len()
    );
    client.write_all(&[head.as_bytes(), &sent].concat()).unwrap();
    read_head(&mut client);
    let mut body = Vec::new();
    client.read_to_end(&mut body).unwrap();
    assert_same(&body, &sent);
    server.join().unwrap();
    let spliced = program.sum("spliceway_bytes_total", &["path=\"splice\""]);
    assert!(spliced >= 95 * 2 * 3_000_000 / 100, "{spliced}");
}

#[test]
fn a_head_may_be_split_at_every_byte() {
    let program = Program::proxy("http", &[]);
    let target = echo("127.0.0.1:0");
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\nearly");
    let request = request.as_bytes();
    for split in 1..request.len() {
        let mut client = program.connect();
        client.set_nodelay(true).unwrap();
        client.write_all(&request[..split]).unwrap();
        client.write_all(&request[split..]).unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
        assert_eq!(read_exactly(&mut client, 5), b"early");
    }
}

#[test]
fn an_unreachable_target_has_its_status_and_a_line_with_the_reason() {
    let program = Program::proxy("http", &["--connect-timeout", "300ms"]);
    let nobody = format!("{}.invalid", "x".repeat(64));
    let full = full_backlog();
    for (target, status) in [
        (refusing().to_string(), "502"),
        (format!("{nobody}:80"), "502"),
        (full.address.to_string(), "504"),
    ] {
        let get = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n");
        // The second GET stands for bytes of the tunnel, which are no request.
        for (request, connection) in [
            (format!("CONNECT {target} HTTP/1.1\r\n\r\n{get}"), "close"),
            (get, "keep-alive"),
        ] {
            let answer = answer(&program, request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
            let connection = format!("Connection: {connection}");
            assert!(head.contains(&connection) && body.lines().count() == 1, "{answer}");
        }
    }
}

/// A listener that does not answer a SYN, because its queue is full.
struct FullBacklog {
    address: SocketAddr,
    _held: (socket2::Socket, Vec<TcpStream>),
}

fn full_backlog() -> FullBacklog {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let soon = std::time::Duration::from_millis(200);
    let queued = std::iter::from_fn(|| TcpStream::connect_timeout(&address, soon).ok()).collect();
    FullBacklog {
        address,
        _held: (socket, queued),
    }
}

#[test]
fn an_invalid_proxy_request_is_a_bad_request() {
    let program = Program::proxy("http", &[]);
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a HTTP/1.1\r\n\r\n",
        "CONNECT a:0x50 HTTP/1.1\r\n\r\n",
        "CONNECT http://a:80/ HTTP/1.1\r\n\r\n",
        "GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://user:secret@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http:///path HTTP/1.1\r\nHost: a\r\n\r\n",
        "nonsense\r\n\r\n",
        // In these cases, two readers would see different requests.
        "POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    ] {
        let answer = answer(&program, request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?}: {answer:?}");
    }
    assert_eq!(program.sum("spliceway_connect_seconds_count", &[]), 0);
}

#[test]
fn a_head_that_does_not_end_is_refused_at_its_limit() {
    let program = Program::proxy("http", &[]);
    let mut client = program.connect();
    // The proxy may end the connection with its answer before it has read all of these bytes.
    let _ = client.write_all(b"GET http://a/ HTTP/1.1\r\nHost: a\r\nX: ");
    let _ = client.write_all(&[b'x'; 40_000]);
    assert!(
        String::from_utf8(read_all(&client))
            .unwrap()
            .starts_with("HTTP/1.1 431 ")
    );
}

/// The target cannot end the connection of the client, and the client cannot end that of the
/// target.
#[test]
fn an_answer_of_a_known_length_ends_before_its_connection() {
    let program = Program::proxy("http", &["--splice", "on"]);
    let (listener, address) = listen();
    let body = pattern(4, 300_000);
    let sent = body.clone();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        read_head(&mut stream);
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        let head =
            "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\nConnection: keep-alive\r\nKeep-Alive: timeout=60\r\n\r\n";
        stream
            .write_all(&[hints.as_bytes(), head.as_bytes(), &sent].concat())
            .unwrap();
        // The proxy keeps the connection for as long as the client does.
        assert_eq!(read_all(&stream), b"");
    });
    let mut client = program.connect();
    write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    assert_eq!(read_head(&mut client), "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    assert_eq!(
        read_head(&mut client),
        "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\nConnection: keep-alive\r\n\r\n"
    );
    assert_same(&read_exactly(&mut client, body.len()), &body);
    program.await_end("answered");
    drop(client);
    program.await_sum("spliceway_bytes_total", &["path=\"splice\""], 300_000 / 2);
    drop(program);
    server.join().unwrap();
}

/// A client's next request may be for another target, and may contain secrets for that target.
#[test]
fn bytes_after_a_request_do_not_reach_its_target() {
    let program = Program::proxy("http", &[]);
    for (fields, body) in [
        ("", ""),
        ("Content-Length: 5\r\n", "hello"),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        for at_once in [true, false] {
            let (listener, address) = listen();
            let mut client = program.connect();
            let first = format!("PUT http://{address}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}");
            let next = "GET http://other/ HTTP/1.1\r\nCookie: secret\r\n\r\n";
            if at_once {
                client.write_all(&[first.as_bytes(), next.as_bytes()].concat()).unwrap();
            } else {
                client.write_all(first.as_bytes()).unwrap();
            }
            let mut target = accept(&listener);
            read_head(&mut target);
            assert_eq!(read_exactly(&mut target, body.len()), body.as_bytes());
            if !at_once {
                client.write_all(next.as_bytes()).unwrap();
            }
            target
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
                .unwrap();
            assert!(read_head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
            assert_eq!(read_exactly(&mut client, 4), b"done");
            drop(client);
            target.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(read_all(&target), b"", "{fields:?}, at once: {at_once}");
        }
    }
}

#[test]
fn a_target_that_does_not_answer_is_a_bad_gateway() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    drop(target);
    assert!(read_message(&mut client).starts_with("HTTP/1.1 502 "));
    program.await_end("upstream_eof");
}

/// A close with unread bytes sends a reset, and the client loses all bytes that it has not read
/// yet.
#[test]
fn a_client_that_sends_too_much_receives_the_whole_answer() {
    let program = Program::proxy("http", &[]);
    for (fields, body) in [("", ""), ("Content-Length: 5\r\n", "hello")] {
        let (listener, address) = listen();
        let mut client = program.connect();
        write!(
            client,
            "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}"
        )
        .unwrap();
        let sent = pattern(9, 8 << 20);
        let expected = sent.clone();
        let server = thread::spawn(move || {
            let mut target = accept(&listener);
            read_head(&mut target);
            read_exactly(&mut target, body.len());
            target.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            send_and_finish(&target, &sent);
        });
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
        client.write_all(b"\r\nand more of it").unwrap();
        assert_same(&read_all(&client), &expected);
        server.join().unwrap();
    }
}

/// A client that does not learn about the end would wait for bytes that never arrive.
#[test]
fn an_answer_that_breaks_off_ends_for_its_client_immediately() {
    let program = Program::proxy("http", &["--half-close-timeout", "1h"]);
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    target
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
        .unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(read_exactly(&mut client, 4), b"part");
    socket2::SockRef::from(&target)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(target);
    assert!(is_closed(&mut client));
    program.await_end("reset_by_upstream");
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let program = Program::proxy("http", &["--half-close-timeout", "100ms"]);
    for fields in ["", "Content-Length: 5\r\n"] {
        let (listener, address) = listen();
        let mut client = program.connect();
        let body = if fields.is_empty() { "" } else { "hello" };
        write!(
            client,
            "PUT http://{address}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}"
        )
        .unwrap();
        let mut target = accept(&listener);
        read_head(&mut target);
        read_exactly(&mut target, body.len());
        drop(client);
        assert!(is_closed(&mut target), "{fields:?}");
    }
}

/// A client that reuses the connection would wait for an answer for ever.
#[test]
fn an_answer_that_clients_accept_is_marked_whatever_its_fields_are() {
    let program = Program::proxy("http", &[]);
    let many: String = (0..300).map(|number| format!("X-{number}: 1\r\n")).collect();
    for (fields, connection) in [
        (&many[..], "keep-alive"),
        // Other readers may find another end of the body.
        ("X : 1\r\n", "close"),
        ("X: 1\r\n 2\r\n", "close"),
        ("no field\r\n", "close"),
    ] {
        let (listener, address) = listen();
        let mut client = program.connect();
        write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut target = accept(&listener);
        read_head(&mut target);
        write!(target, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n{fields}\r\nhello").unwrap();
        let head = read_head(&mut client);
        assert!(head.contains(&format!("\r\nConnection: {connection}\r\n")), "{head}");
        assert_eq!(read_exactly(&mut client, 5), b"hello");
    }
}

/// The target may send bytes that are not HTTP, and the client must receive them.
#[test]
fn an_answer_that_is_not_http_passes_unchanged() {
    let program = Program::proxy("http", &[]);
    for said in [&b"<html>0.9</html>"[..], b"HTTP/2 200\r\nno field\r\n\r\nbody"] {
        let (listener, address) = listen();
        let mut client = program.connect();
        write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut target = accept(&listener);
        read_head(&mut target);
        send_and_finish(&target, said);
        assert_same(&read_all(&client), said);
    }
}

/// The client has sent its request but has not closed its side, so only the idle timeout applies.
#[test]
fn the_first_byte_of_an_answer_may_take_up_to_the_idle_timeout() {
    let program = Program::proxy("http", &["--half-close-timeout", "100ms"]);
    let (listener, address) = listen();
    let mut client = program.connect();
    write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    let_pass(Duration::from_millis(400));
    target.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    send_and_finish(&target, b"late");
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(read_all(&client), b"late");
}
