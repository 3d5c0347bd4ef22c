//! Copies of what clients send, for an observer that never delays a session.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use crate::handover::upgrade;
use crate::harness::{
    Program, accept, assert_same, assert_spliced, echo, listen, pattern, read_all, read_exactly, refusing,
    send_and_finish, was_reached,
};
use crate::sni::named;

const RESULTS: &str = "spliceway_mirror_sessions_total";
const BYTES: &str = "spliceway_mirror_bytes_total";
/// More than all buffers on the way to an observer hold.
const LARGE: usize = 48 << 20;

fn mirrored(target: SocketAddr, observer: SocketAddr, arguments: &[&str]) -> Program {
    let observer = observer.to_string();
    Program::forward(target, &[&["--mirror", &observer], arguments].concat())
}

/// Sends bytes to an echo and checks that all of them come back.
fn round_trip(client: &TcpStream, sent: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(client, sent));
        assert_same(&read_all(client), sent);
    });
}

#[test]
fn the_observer_gets_what_each_client_sends_and_its_end() {
    let (observers, observer) = listen();
    let program = mirrored(echo("127.0.0.1:0"), observer, &[]);
    let mut total = 0;
    for seed in 1..=5 {
        let mut client = program.connect();
        let mut observer = accept(&observers);
        let sent = pattern(seed, 20 * 64 * 1024);
        total += sent.len() as u64;
        // The next piece follows when the observer has this one, so it is never too slow.
        for piece in sent.chunks(64 << 10) {
            client.write_all(piece).unwrap();
            assert_same(&read_exactly(&mut client, piece.len()), piece);
            assert_same(&read_exactly(&mut observer, piece.len()), piece);
        }
        // Bytes are counted before the end.
        program.await_sum(BYTES, &[], total - sent.len() as u64 + (1 << 20));
        // What an observer says is dropped, and neither that nor its end cuts its copy.
        observer.write_all(b"noted").unwrap();
        if seed % 2 == 0 {
            observer.shutdown(Shutdown::Write).unwrap();
        }
        client.write_all(b"last").unwrap();
        assert_eq!(read_exactly(&mut observer, 4), b"last");
        total += 4;
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&client), b"last");
        assert!(read_all(&observer).is_empty());
        if seed % 2 == 1 {
            // The connection waits for the observer.
            observer.write_all(b"read").unwrap();
            assert_eq!(program.sum(RESULTS, &[]), seed - 1);
        }
        drop(observer);
        program.await_sum(RESULTS, &["service=\"forward\"", "result=\"complete\""], seed);
    }
    assert_eq!(program.sum(BYTES, &[]), total);
    assert_eq!(program.sum(RESULTS, &[]), 5);
    let up = |path| program.sum("spliceway_bytes_total", &["direction=\"up\"", path]);
    assert_spliced(up("path=\"splice\""), total);
}

/// A router reads the hello before it knows the target. The PROXY header goes to both.
#[test]
fn the_observer_of_a_router_gets_the_hello() {
    let (observers, observer) = listen();
    let (targets, target) = listen();
    let route = format!("example.com={target}");
    let arguments = ["-l", "127.0.0.1:0", "--route", &route, "--send-proxy", "v1"];
    let observer = observer.to_string();
    let program = Program::start(&[&["sni"], &arguments[..], &["--mirror", &observer]].concat());
    let mut client = program.connect();
    client.write_all(&named("example.com")).unwrap();
    let (target, observer) = (accept(&targets), accept(&observers));
    send_and_finish(&client, b"more");
    let sent = read_all(&target);
    assert!(sent.starts_with(b"PROXY TCP4 127.0.0.1 ") && sent.ends_with(b"more"));
    assert_same(&read_all(&observer), &sent);
}

#[test]
fn a_share_of_the_sessions_is_mirrored_at_even_distances() {
    for (share, chosen) in [
        ("0", &[][..]),
        ("25", &[0, 4]),
        ("40", &[0, 3, 5]),
        ("100", &[0, 1, 2, 3, 4, 5]),
    ] {
        let (observers, observer) = listen();
        let program = mirrored(echo("127.0.0.1:0"), observer, &["--mirror-share", share]);
        for number in 0..6_u8 {
            let mut client = program.connect();
            client.write_all(&[number]).unwrap();
            assert_eq!(read_exactly(&mut client, 1), [number]);
        }
        for number in chosen {
            assert_eq!(read_exactly(&mut accept(&observers), 1), [*number], "{share} %");
        }
        assert!(!was_reached(&observers), "{share} %");
    }
}

/// Runs a large session. Meanwhile it holds what `observe` returns. Returns the result of the copy.
fn result_with<T>(observer: SocketAddr, observe: impl FnOnce() -> T) -> String {
    let program = mirrored(echo("127.0.0.1:0"), observer, &[]);
    let sent = pattern(1, LARGE);
    let client = program.connect();
    let held = thread::scope(|scope| {
        scope.spawn(|| round_trip(&client, &sent));
        observe()
    });
    drop((client, held));
    program.await_sum(RESULTS, &[], 1);
    assert_eq!(
        program.sum("spliceway_bytes_total", &["direction=\"up\""]),
        LARGE as u64
    );
    let results = ["complete", "cut", "lost", "closed", "unreachable", "limit"];
    let has = |result: &&str| program.sum(RESULTS, &[&format!("result=\"{result}\"")]) == 1;
    results.into_iter().filter(has).collect()
}

#[test]
fn a_session_does_not_notice_that_there_is_no_observer() {
    assert_eq!(result_with(refusing(), || ()), "unreachable");
}

#[test]
fn a_session_does_not_notice_an_observer_that_closes() {
    let (observers, observer) = listen();
    let result = result_with(observer, || drop(accept(&observers)));
    assert!(["closed", "lost"].contains(&&*result), "{result}");
}

#[test]
fn a_session_does_not_notice_an_observer_that_does_not_read() {
    let (observers, observer) = listen();
    assert_eq!(result_with(observer, || accept(&observers)), "lost");
}

/// The client has not finished, so the observer must not believe that it has the whole stream.
#[test]
fn the_end_of_the_program_cuts_its_copies() {
    let (observers, observer) = listen();
    let mut program = mirrored(echo("127.0.0.1:0"), observer, &[]);
    let mut client = program.connect();
    client.write_all(b"first").unwrap();
    let mut observer = accept(&observers);
    assert_eq!(read_exactly(&mut observer, 5), b"first");
    program.kill();
    let cut = observer.read(&mut [0]).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
}

/// The bytes are on their way when the session ends, and the reset comes after them.
#[test]
fn the_observer_of_a_cut_session_gets_all_that_the_client_has_sent() {
    let (observers, observer) = listen();
    let program = mirrored(echo("127.0.0.1:0"), observer, &[]);
    let sent = pattern(1, 768 << 10);
    let mut client = program.connect();
    let mut observer = accept(&observers);
    for piece in sent.chunks(64 << 10) {
        client.write_all(piece).unwrap();
        assert_same(&read_exactly(&mut client, piece.len()), piece);
    }
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    program.await_end("reset_by_client");
    assert_same(&read_exactly(&mut observer, sent.len()), &sent);
    let cut = observer.read(&mut [0]).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
    program.await_sum(RESULTS, &["result=\"cut\""], 1);
}

#[test]
fn above_the_limit_a_session_has_no_copy_and_the_metrics_count_it() {
    let (observers, observer) = listen();
    let program = mirrored(echo("127.0.0.1:0"), observer, &["--nofile", "200"]);
    let first = program.connect();
    let held = accept(&observers);
    // One for each 128 descriptors.
    round_trip(&program.connect(), b"second");
    program.await_sum(RESULTS, &["result=\"limit\""], 1);
    assert!(!was_reached(&observers));
    send_and_finish(&first, b"first");
    assert_eq!(
        (read_all(&first), read_all(&held)),
        (b"first".to_vec(), b"first".to_vec())
    );
    drop((first, held));
    program.await_sum(RESULTS, &["result=\"complete\""], 1);
    // The first copy has given its place back.
    observers.set_nonblocking(false).unwrap();
    let third = program.connect();
    send_and_finish(&third, b"third");
    assert_eq!(read_all(&accept(&observers)), b"third");
}

/// The program would be its own observer, whose sessions would have copies too.
#[test]
fn a_listener_of_the_program_is_no_observer() {
    let (targets, target) = listen();
    let own = refusing().to_string();
    let (target, metrics) = (target.to_string(), ["--metrics", "127.0.0.1:0"]);
    let arguments = ["forward", "-l", &own, "-r", &target, "--mirror", &own];
    let program = Program::start(&[&arguments[..], &metrics].concat());
    drop(program.connect());
    drop(accept(&targets));
    program.await_sum(RESULTS, &["result=\"unreachable\""], 1);
    program.await_sum("spliceway_connections_total", &[], 1);
}

/// The other process has no copy, so the observer must not believe that the stream has ended.
#[test]
fn a_session_that_moves_to_another_process_cuts_its_copy() {
    let (observers, observer) = listen();
    let mut program = mirrored(echo("127.0.0.1:0"), observer, &[]);
    let mut client = program.connect();
    client.write_all(b"first").unwrap();
    let mut observer = accept(&observers);
    assert_eq!(read_exactly(&mut client, 5), b"first");
    assert_eq!(read_exactly(&mut observer, 5), b"first");
    let process = upgrade(&mut program, None);
    let cut = observer.read(&mut [0]).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
    client.write_all(b"second").unwrap();
    assert_eq!(read_exactly(&mut client, 6), b"second");
    // The sessions of the next process have copies.
    let mut next = program.connect();
    next.write_all(b"third").unwrap();
    assert_eq!(read_exactly(&mut accept(&observers), 5), b"third");
    drop(process);
}
