use std::io::Write;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::clients::{read_head, read_message};
use crate::harness::{Program, accept, listen, read_exactly, was_reached};

/// Sends these bytes as a client, and returns the answer.
fn answer(program: &Program, request: &[u8]) -> String {
    let mut client = program.connect();
    client.write_all(request).unwrap();
    read_message(&mut client)
}

/// Starts two proxies, each of which has the other as its upstream proxy.
fn loop_of_two(kind: &str) -> (Program, Program) {
    let (listener, first) = listen();
    let second = Program::proxy(kind, &["-x", &format!("http://{first}")]);
    let upstream = format!("http://{}", second.address);
    let arguments = [kind, "-l", "fd:web", "-x", &upstream, "--metrics", "127.0.0.1:0"];
    let mut first_program = Program::start_with_socket(OwnedFd::from(listener), "web", &arguments);
    first_program.address = first;
    (first_program, second)
}

#[test]
fn proxies_that_name_each_other_refuse_a_loop_immediately() {
    for kind in ["http", "mixed"] {
        let (first, second) = loop_of_two(kind);
        for request in [
            "GET http://192.0.2.1/ HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n",
            "CONNECT 192.0.2.1:80 HTTP/1.1\r\n\r\n",
        ] {
            let before = [first.descriptors(), second.descriptors()];
            let answer = answer(&first, request.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 508 "), "{answer}");
            assert!(answer.ends_with("so it goes in a circle.\n"), "{answer}");
            for (program, before) in [&first, &second].into_iter().zip(before) {
                assert!(program.descriptors() <= before + 8, "{before}");
            }
        }
        first.await_sum("spliceway_refused_total", &["reason=\"loop\""], 2);
        first.await_sum(
            "spliceway_connections_total",
            &["end=\"connect_failed:upstream_loop\""],
            1,
        );
    }
}

#[test]
fn a_record_of_a_refused_method_has_the_protocol() {
    let (users, none) = (&["--auth", "ann:wonder"][..], &[][..]);
    let socks4 = [4, 1, 0, 80, 192, 0, 2, 1, 0];
    for (kind, arguments, sent, answer, protocol, cause) in [
        (
            "socks5",
            users,
            &[5, 1, 0][..],
            [5, 0xFF],
            "socks5",
            "the client offers no password, and",
        ),
        (
            "mixed",
            users,
            &[5, 1, 0],
            [5, 0xFF],
            "socks5",
            "the client offers no password, and",
        ),
        (
            "socks5",
            none,
            &[5, 1, 2],
            [5, 0xFF],
            "socks5",
            "the client does not offer to come without",
        ),
        (
            "mixed",
            users,
            &socks4,
            [0, 91],
            "socks4",
            "SOCKS4 has no passwords, and",
        ),
    ] {
        let mut program = Program::proxy(kind, arguments);
        let mut client = program.connect();
        client.write_all(sent).unwrap();
        assert_eq!(read_exactly(&mut client, 2), answer);
        drop(client);
        let record = program.line("end=denied:method");
        assert!(record.contains(&format!("protocol=\"{protocol}\"")), "{record}");
        assert!(record.contains(&format!("cause=\"{cause}")), "{record}");
    }
}

#[test]
fn a_late_request_gets_a_408_and_a_silent_client_gets_no_answer() {
    for kind in ["http", "mixed"] {
        let program = Program::proxy(kind, &["--handshake-timeout", "200ms"]);
        for part in ["G", "GET http://192.0.2.1/ HTTP/1.1\r\nHost:"] {
            let answer = answer(&program, part.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        }
        // A silent client may be about to send its first request, and would mistake a 408 for the
        // answer.
        assert_eq!(answer(&program, b""), "");
        program.await_sum("spliceway_refused_total", &["reason=\"handshake_timeout\""], 3);
    }
}

#[test]
fn an_invalid_chunked_body_is_a_bad_request() {
    for kind in ["http", "mixed"] {
        let program = Program::proxy(kind, &[]);
        let (_listener, address) = listen();
        let head = format!("PUT http://{address}/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let answer = answer(&program, format!("{head}nonsense\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        program.await_end("denied:framing");
    }
}

#[test]
fn trace_and_options_respect_max_forwards() {
    let program = Program::proxy("mixed", &[]);
    for method in ["TRACE", "OPTIONS"] {
        let (listener, address) = listen();
        let request = |left: u8| {
            format!("{method} http://{address}/ HTTP/1.1\r\nHost: a\r\nCookie: secret\r\nMax-Forwards: {left}\r\n\r\n")
        };
        let ours = answer(&program, request(0).as_bytes());
        assert!(ours.starts_with("HTTP/1.1 200 "), "{ours}");
        assert!(!ours.contains("secret"), "{ours}");
        assert_eq!(
            ours.contains(&format!("TRACE http://{address}/ HTTP/1.1\r\n")),
            method == "TRACE"
        );
        assert!(!was_reached(&listener));
        listener.set_nonblocking(false).unwrap();
        let mut client = program.connect();
        client.write_all(request(1).as_bytes()).unwrap();
        let head = read_head(&mut accept(&listener));
        assert!(head.contains("\r\nMax-Forwards: 0\r\n"), "{head}");
    }
}

/// A connection would exceed its rate if the bytes that arrive with the head did not count.
#[test]
fn bytes_that_arrive_with_the_head_count_against_the_rate() {
    const RATE: usize = 5000;
    let program = Program::proxy("http", &["--rate-in", "5kB:connection"]);
    let (listener, address) = listen();
    let serve = |listener: &TcpListener, bytes: usize| read_exactly(&mut accept(listener), bytes);
    let body = [b'x'; 2500];
    let head = format!("CONNECT {address} HTTP/1.1\r\n\r\n");
    let started = Instant::now();
    let mut client = program.connect();
    client.write_all(&[head.as_bytes(), &body].concat()).unwrap();
    assert_eq!(serve(&listener, body.len()), body);
    // The bytes of a tenth of a second are available at the start.
    let least = Duration::from_secs_f64((body.len() - RATE / 10) as f64 / RATE as f64);
    assert!(started.elapsed() >= least, "{:?}", started.elapsed());
}
