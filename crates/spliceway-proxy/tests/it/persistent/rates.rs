//! Rate limits of HTTP clients whose requests and answers are small. No test measures the time that
//! something may take at most, so a busy machine does not make one fail.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::{DONE, assert_done, get, kept, serve};
use crate::admin::Socket;
use crate::clients::{read_head, read_message};
use crate::drain::CUT;
use crate::handover::upgrade;
use crate::harness::{Program, TextFile, accept, connect, listen, read_all, read_exactly};

const RATE: usize = 20_000;
const REQUESTS: usize = 20;
/// The size of each body in bytes.
const BODY: usize = 600;

/// Serves targets until its clients leave: reads requests with a body of [`BODY`] bytes, or without
/// one, and answers each of them.
fn target(answer: &[u8]) -> SocketAddr {
    let (listener, address) = listen();
    let answer = answer.to_vec();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let answer = answer.clone();
            thread::spawn(move || {
                while stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0) {
                    if read_head(&mut stream).starts_with("PUT ") {
                        read_exactly(&mut stream, BODY);
                    }
                    stream.write_all(&answer).unwrap();
                }
            });
        }
    });
    address
}

/// Sends requests on several connections, and reads their answers.
fn send(program: SocketAddr, request: &[u8], connections: usize) {
    let requests = REQUESTS / connections;
    thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let mut client = connect(program);
                for _ in 0..requests {
                    client.write_all(request).unwrap();
                    let answer = read_message(&mut client);
                    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
                }
            });
        }
    });
}

/// Returns the shortest time in which the last of these messages may pass. It waits for those
/// before it, except for a burst.
fn least(messages: usize, bytes: u64) -> Duration {
    let before = bytes as f64 - bytes as f64 / messages as f64 - RATE as f64 / 10.0;
    Duration::from_secs_f64(before / RATE as f64)
}

#[test]
fn small_messages_pass_no_faster_than_the_rate_of_any_scope() {
    let passwords = TextFile::new("ann:wonder\n");
    let (body, wide) = (String::from_utf8(vec![b'x'; BODY]).unwrap(), "x".repeat(BODY));
    let with_length = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n{body}");
    let only_head = format!("HTTP/1.1 204 No Content\r\nX: {wide}\r\n\r\n");
    let put = format!("Content-Length: {BODY}\r\n\r\n{body}");
    let by_ann = "Proxy-Authorization: Basic YW5uOndvbmRlcg==\r\n\r\n";
    let cookie = format!("Cookie: {wide}\r\n\r\n");
    let cases: [(&[&str], &str, &str, &str, usize); 11] = [
        (&["--rate-out", "20KB:connection"], "GET", "\r\n", &with_length, 1),
        (&["--rate-out", "20KB:connection"], "PUT", &put, &with_length, 1),
        (&["--rate-out", "20KB:connection"], "GET", "\r\n", &only_head, 1),
        (&["--rate-out", "20KB:client"], "GET", "\r\n", &with_length, 4),
        (&["--rate-out", "20KB:client"], "GET", "\r\n", &with_length, REQUESTS),
        (&["--rate-out", "20KB"], "HEAD", "\r\n", &only_head, 4),
        (
            &["--rate-out", "9MB:connection", "--rate-out", "20KB:client"],
            "GET",
            "\r\n",
            &with_length,
            4,
        ),
        (
            &["--user-rate-out", "20KB", "--auth-file", passwords.path()],
            "GET",
            by_ann,
            &with_length,
            4,
        ),
        (&["--rate-in", "20KB:connection"], "GET", &cookie, DONE, 1),
        (&["--rate-in", "20KB:client"], "PUT", &put, DONE, 4),
        (&["--rate-in", "20KB"], "GET", &cookie, DONE, REQUESTS),
    ];
    thread::scope(|scope| {
        for (arguments, method, rest, answer, connections) in cases {
            scope.spawn(move || {
                let (program, target) = (Program::proxy("http", arguments), target(answer.as_bytes()));
                let request = format!("{method} http://{target}/ HTTP/1.1\r\nHost: a\r\n{rest}");
                let started = Instant::now();
                send(program.address, request.as_bytes(), connections);
                let took = started.elapsed();
                let direction = if arguments.join(" ").contains("rate-in") {
                    "up"
                } else {
                    "down"
                };
                let bytes = program.sum("spliceway_bytes_total", &[&format!("direction=\"{direction}\"")]);
                let least = least(REQUESTS, bytes);
                assert!(
                    took >= least,
                    "{arguments:?} {method} on {connections}: {bytes} bytes took {took:?}"
                );
                assert!(least > Duration::from_millis(400), "{least:?} would prove little");
            });
        }
    });
}

/// The head and the body of an answer for a client have 66 bytes.
const DONE_BYTES: u64 = 66;

/// Returns a client and a target whose second request, or its answer, waits for the rate.
fn waiting(program: &Program, argument: &str) -> (TcpStream, TcpStream) {
    let (listener, address) = listen();
    let (mut client, mut target) = kept(program, &listener);
    client.write_all(get(address, "/second").as_bytes()).unwrap();
    if argument == "--rate-out" {
        serve(&mut target, "/second");
    }
    program.await_sum("spliceway_connections_total", &[], 1);
    program.await_sum("spliceway_connections_active", &[], 1);
    (client, target)
}

#[test]
fn a_client_that_leaves_while_it_waits_ends_its_session() {
    for argument in ["--rate-in", "--rate-out"] {
        let mut program = Program::proxy("http", &[argument, "1B:connection"]);
        let (client, target) = waiting(&program, argument);
        program.line("end=answered");
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let record = program.line("end=");
        assert!(
            record.contains("bytes_down=0 ") && record.contains("end=reset_by_client"),
            "{record}"
        );
        assert_eq!(read_all(&target), b"", "{argument}");
    }
}

#[test]
fn a_wait_ends_with_the_time_of_its_session_and_by_order() {
    for argument in ["--rate-in", "--rate-out"] {
        let socket = Socket::new();
        let admin = socket.address();
        let mut program = Program::proxy("http", &[argument, "1B:connection", "--admin", &admin]);
        let (client, _target) = waiting(&program, argument);
        program.line("end=answered");
        let sessions = socket.await_sessions(|sessions| sessions.len() == 1);
        let path = format!("/v1/sessions/{}", sessions[0]["id"]);
        assert_eq!(socket.ask("DELETE", &path).0, 202);
        program.line("end=closed_by_admin");
        assert_eq!(read_all(&client), b"");

        let limits = [argument, "1B:connection", "--max-session", "1s"];
        let mut program = Program::proxy("http", &limits);
        let (client, _target) = waiting(&program, argument);
        program.line("end=answered");
        program.line("end=max_session");
        assert_eq!(read_all(&client), b"");
        drop(client);

        let limits = [argument, "1B:connection", "--half-close-timeout", "100ms"];
        let mut program = Program::proxy("http", &limits);
        let (client, _target) = waiting(&program, argument);
        client.shutdown(Shutdown::Write).unwrap();
        program.line("end=half_close_timeout");
        assert_eq!(read_all(&client), b"");
        drop(client);

        let mut program = Program::proxy("http", &[argument, "1B:connection", "--drain-timeout", "100ms"]);
        let (_client, _target) = waiting(&program, argument);
        program.terminate();
        assert_eq!(program.exit().code(), Some(CUT));
        program.line("end=drained");
    }
}

/// The client has sent its request, so a stop, an upgrade and its own end do not cost it the
/// answer.
#[test]
fn an_answer_that_waits_is_delivered_whatever_ends_the_connection() {
    for argument in ["--rate-in", "--rate-out"] {
        for how in ["stop", "upgrade", "end"] {
            let mut program = Program::proxy("http", &[argument, "100B:connection"]);
            let (mut client, mut target) = waiting(&program, argument);
            let mut next = None;
            match how {
                "stop" => program.terminate(),
                "upgrade" => next = Some(upgrade(&mut program, None)),
                _ => client.shutdown(Shutdown::Write).unwrap(),
            }
            if argument == "--rate-in" {
                serve(&mut target, "/second");
            }
            let answer = read_message(&mut client);
            assert!(
                answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\ndone"),
                "{how}: {answer}"
            );
            assert_eq!(read_all(&client), b"", "{argument}, {how}");
            assert_eq!(read_all(&target), b"", "{argument}, {how}");
            drop((client, target));
            if how != "end" {
                assert!(program.exit().success(), "{argument}, {how}");
            }
            drop(next);
        }
    }
}

/// Neither side is idle: the limit holds them back.
#[test]
fn a_wait_for_the_rate_is_no_idle_time() {
    for (argument, rate, field) in [
        ("--rate-in", 15, " limited_up_ms="),
        ("--rate-out", 30, " limited_down_ms="),
    ] {
        let limit = format!("{rate}B:connection");
        let mut program = Program::proxy("http", &[argument, &limit, "--idle-timeout", "1s"]);
        let started = Instant::now();
        let (mut client, mut target) = waiting(&program, argument);
        if argument == "--rate-in" {
            serve(&mut target, "/second");
        }
        assert_done(&mut client);
        let took = started.elapsed();
        assert!(
            took > Duration::from_millis(1500),
            "{argument}: {took:?} would prove little"
        );
        assert!(!program.line("end=answered").contains(" limited_"));
        let record = program.line("end=answered");
        assert!(record.contains(field), "{record}");
    }
}

#[test]
fn requests_that_arrive_together_are_answered_in_order_and_at_the_rate() {
    let program = Program::proxy("http", &["--rate-out", "200B:connection"]);
    let (listener, address) = listen();
    let mut client = program.connect();
    let started = Instant::now();
    let requests: String = (0..5).map(|number| get(address, &format!("/{number}"))).collect();
    client.write_all(requests.as_bytes()).unwrap();
    let serving = thread::spawn(move || {
        let mut target = accept(&listener);
        for number in 0..5 {
            let head = read_head(&mut target);
            assert!(head.starts_with(&format!("GET /{number} ")), "{head}");
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nno {number}");
            target.write_all(answer.as_bytes()).unwrap();
        }
        target
    });
    for number in 0..5 {
        let answer = read_message(&mut client);
        assert!(answer.ends_with(&format!("\r\n\r\nno {number}")), "{answer}");
        // The answers before this one have passed, except for a burst of 20 bytes.
        let least = Duration::from_millis((number * DONE_BYTES).saturating_sub(20) * 5);
        assert!(started.elapsed() >= least, "{number}: {:?}", started.elapsed());
    }
    drop(serving.join().unwrap());
}

#[test]
fn a_tunnel_on_a_kept_connection_owes_what_its_requests_have_used() {
    let program = Program::proxy("http", &["--rate-out", "100B:connection"]);
    let (listener, address) = listen();
    let started = Instant::now();
    let (mut client, _) = kept(&program, &listener);
    write!(client, "CONNECT {address} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut target = accept(&listener);
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
    target.write_all(b"x").unwrap();
    assert_eq!(read_exactly(&mut client, 1), b"x");
    assert!(started.elapsed() >= Duration::from_millis((DONE_BYTES - 10) * 10));
}
