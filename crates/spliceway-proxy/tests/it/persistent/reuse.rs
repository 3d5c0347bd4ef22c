use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{DONE, assert_done, get, kept, serve};
use crate::clients::{read_head, read_message};
use crate::harness::{Program, accept, is_closed, listen, read_all, read_exactly, was_reached};

#[test]
fn a_target_that_has_ended_or_spoken_while_idle_is_not_used_again() {
    let program = Program::proxy("http", &[]);
    let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
    for (said, ends) in [("", true), (poison, false), ("x", false), ("x", true)] {
        let (listener, address) = listen();
        let (mut client, mut target) = kept(&program, &listener);
        target.write_all(said.as_bytes()).unwrap();
        if ends {
            target.shutdown(std::net::Shutdown::Write).unwrap();
        }
        client.write_all(get(address, "/next").as_bytes()).unwrap();
        serve(&mut accept(&listener), "/next");
        assert_done(&mut client);
        assert!(is_closed(&mut target), "{said:?}");
    }
}

/// The bytes after an answer are not a part of it, and could pass for the answer to the next
/// request.
#[test]
fn a_target_that_says_more_than_its_answer_is_not_used_again() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ndone\r\n0\r\n\r\n";
    let empty = "HTTP/1.1 204 No Content\r\n\r\n";
    for answer in [DONE, chunked, empty] {
        for body in ["", "hello"] {
            let mut client = program.connect();
            write!(
                client,
                "POST http://{address}/ HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
            let mut target = accept(&listener);
            read_head(&mut target);
            read_exactly(&mut target, body.len());
            target.write_all([answer, answer].concat().as_bytes()).unwrap();
            let head = read_head(&mut client);
            assert!(head.ends_with("\r\nConnection: keep-alive\r\n\r\n"), "{head}");
            let (_, rest) = answer.split_once("\r\n\r\n").unwrap();
            assert_eq!(read_exactly(&mut client, rest.len()), rest.as_bytes());
            client.write_all(get(address, "/next").as_bytes()).unwrap();
            serve(&mut accept(&listener), "/next");
            assert_done(&mut client);
            assert!(is_closed(&mut target));
        }
    }
}

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

/// The target closes its connection while the request is on its way.
#[test]
fn a_request_is_repeated_once_if_that_is_safe_and_no_byte_was_answered() {
    let program = Program::proxy("http", &[]);
    for (method, resets, is_repeated) in [
        ("GET", false, true),
        ("GET", true, true),
        ("HEAD", false, true),
        ("DELETE", false, true),
        ("POST", false, false),
        ("PATCH", true, false),
    ] {
        let (listener, address) = listen();
        let (mut client, mut target) = kept(&program, &listener);
        write!(client, "{method} http://{address}/x HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert!(read_head(&mut target).starts_with(method));
        if resets {
            reset(target);
        } else {
            drop(target);
        }
        if is_repeated {
            let mut target = accept(&listener);
            assert!(read_head(&mut target).starts_with(&format!("{method} /x HTTP/1.1\r\n")));
            // The second attempt is the last one.
            drop(target);
        }
        let answer = read_head(&mut client);
        assert!(
            answer.starts_with("HTTP/1.1 502 ") && answer.ends_with("\r\nConnection: keep-alive\r\n\r\n"),
            "{answer}"
        );
        assert!(!was_reached(&listener), "{method}");
    }
}

#[test]
fn a_request_is_not_repeated_on_a_new_connection_or_after_a_byte() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    client.write_all(get(address, "/").as_bytes()).unwrap();
    drop(read_head(&mut accept(&listener)));
    assert!(read_message(&mut client).starts_with("HTTP/1.1 502 "));
    assert!(!was_reached(&listener));
    listener.set_nonblocking(false).unwrap();
    let (mut client, mut target) = kept(&program, &listener);
    client.write_all(get(address, "/").as_bytes()).unwrap();
    read_head(&mut target);
    target.write_all(b"HTTP/1.1 2").unwrap();
    drop(target);
    assert!(read_message(&mut client).starts_with("HTTP/1.1 502 "));
    assert!(!was_reached(&listener));
}

#[test]
fn a_target_that_ends_before_the_head_of_its_answer_is_answered_for() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    for (fields, body) in [
        ("", ""),
        ("Content-Length: 5\r\n", "hello"),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        for part in ["", "HTTP/1.1 200 OK\r\nContent-Le"] {
            for resets in [false, true] {
                let mut client = program.connect();
                write!(
                    client,
                    "POST http://{address}/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}"
                )
                .unwrap();
                let mut target = accept(&listener);
                read_head(&mut target);
                read_exactly(&mut target, body.len());
                target.write_all(part.as_bytes()).unwrap();
                if resets {
                    reset(target);
                } else {
                    drop(target);
                }
                let answer = read_message(&mut client);
                assert!(
                    answer.starts_with("HTTP/1.1 502 "),
                    "{fields:?} {part:?} {resets}: {answer}"
                );
            }
        }
    }
}

#[test]
fn a_body_that_breaks_off_ends_the_connection_of_its_client() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    for (head, resets) in [
        ("Content-Length: 9\r\n\r\npart", false),
        ("Content-Length: 9\r\n\r\npart", true),
        ("Transfer-Encoding: chunked\r\n\r\n9\r\npart", false),
        ("Transfer-Encoding: chunked\r\n\r\n9\r\npart", true),
    ] {
        let (mut client, mut target) = kept(&program, &listener);
        client.write_all(get(address, "/next").as_bytes()).unwrap();
        read_head(&mut target);
        write!(target, "HTTP/1.1 200 OK\r\n{head}").unwrap();
        read_head(&mut client);
        let (_, body) = head.split_once("\r\n\r\n").unwrap();
        assert_eq!(read_exactly(&mut client, body.len()), body.as_bytes());
        if resets {
            reset(target);
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{head:?}");
        } else {
            drop(target);
            assert_eq!(read_all(&client), b"", "{head:?}");
        }
    }
}

#[test]
fn connections_to_targets_are_not_shared_between_clients() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let (_client, mut target) = kept(&program, &listener);
    let mut other = program.connect();
    other.write_all(get(address, "/other").as_bytes()).unwrap();
    serve(&mut accept(&listener), "/other");
    assert_done(&mut other);
    target.set_nonblocking(true).unwrap();
    assert_eq!(target.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// The parent serves each target, but the proxy uses its connection for one target at a time.
#[test]
fn a_connection_to_an_upstream_proxy_is_used_again() {
    let (listener, address) = listen();
    let program = Program::proxy("http", &["-x", &format!("http://ann:pw@{address}")]);
    let mut client = program.connect();
    let request = |host: &str| format!("GET http://{host}/x HTTP/1.1\r\nHost: a\r\n\r\n");
    let expect = |proxy: &mut TcpStream, host: &str| {
        let head = read_head(proxy);
        let start = format!("GET http://{host}/x HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Basic YW5uOnB3\r\n");
        assert!(head.starts_with(&start), "{head}");
    };
    client.write_all(request("a.test").as_bytes()).unwrap();
    let mut proxy = accept(&listener);
    expect(&mut proxy, "a.test");
    proxy.write_all(DONE.as_bytes()).unwrap();
    assert_done(&mut client);
    // The connection ends while the second request is on its way.
    client.write_all(request("a.test").as_bytes()).unwrap();
    expect(&mut proxy, "a.test");
    drop(proxy);
    let mut proxy = accept(&listener);
    expect(&mut proxy, "a.test");
    proxy.write_all(DONE.as_bytes()).unwrap();
    assert_done(&mut client);
    client.write_all(request("b.test").as_bytes()).unwrap();
    let mut proxy = accept(&listener);
    expect(&mut proxy, "b.test");
    proxy.write_all(DONE.as_bytes()).unwrap();
    assert_done(&mut client);
}

#[test]
fn each_connection_to_a_target_begins_with_one_proxy_header() {
    let program = Program::proxy("http", &["--send-proxy", "v1"]);
    let (listener, address) = listen();
    let mut client = program.connect();
    let header = |client: &TcpStream, program: &Program| {
        let (client, port) = (client.local_addr().unwrap(), program.address.port());
        format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {port}\r\n", client.port())
    };
    client.write_all(get(address, "/a").as_bytes()).unwrap();
    let mut target = accept(&listener);
    let expected = header(&client, &program);
    assert_eq!(read_exactly(&mut target, expected.len()), expected.as_bytes());
    serve(&mut target, "/a");
    assert_done(&mut client);
    client.write_all(get(address, "/b").as_bytes()).unwrap();
    assert!(
        read_head(&mut target).starts_with("GET /b "),
        "the header is not repeated"
    );
    drop(target);
    let mut target = accept(&listener);
    assert_eq!(read_exactly(&mut target, expected.len()), expected.as_bytes());
    serve(&mut target, "/b");
    assert_done(&mut client);
}
