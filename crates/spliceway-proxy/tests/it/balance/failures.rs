//! Backends that fail, and backends that are full.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use super::{backend, forward, greeted, serve, shares};
use crate::harness::{Program, TextFile, is_closed, listen, read_exactly, refusing};

/// A backend that resets each connection after its first byte.
fn resetting() -> SocketAddr {
    let (listener, address) = listen();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0]);
            let _ = socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO));
        }
    });
    address
}

fn up(program: &Program, backend: SocketAddr) -> u64 {
    program.sum("spliceway_backend_up", &[&format!("backend=\"{backend}\"")])
}

#[test]
fn a_dead_backend_is_ejected_and_returns_when_it_serves_again() {
    let (dead, alive) = (refusing(), backend(b'a'));
    let backends = [dead.to_string(), alive.to_string()];
    let mut program = forward(&backends, &["--balance", "first", "--eject-time", "100ms"]);
    assert_eq!((up(&program, dead), up(&program, alive)), (1, 1));
    assert_eq!(shares(&program, 3), BTreeMap::from([('a', 3)]));
    let line = program.line("a backend is ejected");
    assert!(
        line.contains(&format!("backend=\"{dead}\"")) && line.contains("reason=\"connect\""),
        "{line}"
    );
    assert_eq!((up(&program, dead), up(&program, alive)), (0, 1));
    let listener = TcpListener::bind(dead).unwrap();
    thread::spawn(move || serve(&listener, b'b'));
    // Each round takes a client, and the first one after the ejection tries.
    while greeted(&program).1 != 'b' {}
    let failures = |reason: &str| program.sum("spliceway_backend_failures_total", &[&format!("reason=\"{reason}\"")]);
    assert!(failures("connect") >= 3 && failures("early_end") == 0);
    let alive = format!("backend=\"{alive}\"");
    assert!(program.sum("spliceway_backend_connections_total", &[&alive]) >= 3);
}

#[test]
fn a_backend_that_resets_its_clients_is_ejected() {
    let (resets, alive) = (resetting(), backend(b'a'));
    let backends = [resets.to_string(), alive.to_string()];
    let mut program = forward(&backends, &["--balance", "first", "--eject-after", "2"]);
    for _ in 0..2 {
        let mut client = program.connect();
        client.write_all(b"a").unwrap();
        assert!(is_closed(&mut client));
    }
    let line = program.line("a backend is ejected");
    assert!(line.contains("reason=\"early_end\""), "{line}");
    assert_eq!(shares(&program, 5), BTreeMap::from([('a', 5)]));
}

#[test]
fn without_ejection_a_dead_backend_is_tried_each_time() {
    let (dead, alive) = (refusing(), backend(b'a'));
    let backends = [dead.to_string(), alive.to_string()];
    let mut program = forward(&backends, &["--balance", "first", "--eject-after", "0"]);
    assert_eq!(shares(&program, 10), BTreeMap::from([('a', 10)]));
    let dead = format!("backend=\"{dead}\"");
    assert_eq!(program.sum("spliceway_backend_failures_total", &[&dead]), 10);
    assert!(program.line(" end=").contains("retries=1"));
}

#[test]
fn a_client_waits_for_a_place_and_one_too_many_is_refused() {
    let only = format!("{},max-conns=1", backend(b'a'));
    let mut program = forward(&[only], &["--queue", "1"]);
    let (first, _) = greeted(&program);
    let mut second = program.connect();
    second.write_all(b"early").unwrap();
    program.await_sum("spliceway_backend_waiting", &[], 1);
    assert!(is_closed(&mut program.connect()));
    assert!(program.line(" end=").contains("end=denied:queue_full"));
    drop(first);
    assert_eq!(read_exactly(&mut second, 6), b"aearly");
}

#[test]
fn a_client_that_waits_gets_a_backend_that_a_reload_adds() {
    let [a, b] = [b'a', b'b'].map(backend);
    let text = |backends: &[SocketAddr]| {
        let of = |to: &SocketAddr| format!("[[service.backend]]\nto = \"{to}\"\nmax_conns = 1\n");
        let backends: String = backends.iter().map(of).collect();
        format!(
            "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n{backends}"
        )
    };
    let file = TextFile::new(&text(&[a]));
    let mut program = Program::run(&file);
    let (first, _) = greeted(&program);
    let mut clients = [(); 2].map(|()| program.connect());
    program.await_sum("spliceway_backend_waiting", &[], 2);
    file.write(&text(&[a, b]));
    assert!(program.reload().contains("changed forward"));
    let of_b = format!("backend=\"{b}\"");
    program.await_sum("spliceway_backend_connections_total", &[&of_b], 1);
    drop(first);
    let mut letters = clients.each_mut().map(|client| read_exactly(client, 1)[0]);
    letters.sort_unstable();
    assert_eq!(letters, *b"ab");
}

#[test]
fn a_client_that_waits_too_long_is_refused() {
    let only = format!("{},max-conns=1", backend(b'a'));
    let mut program = forward(&[only], &["--connect-timeout", "50ms"]);
    let (_first, _) = greeted(&program);
    assert!(is_closed(&mut program.connect()));
    assert!(program.line(" end=").contains("end=denied:queue_timeout"));
}

#[test]
fn the_status_shows_each_backend() {
    let (dead, alive) = (refusing(), backend(b'a'));
    let socket = TextFile::new("");
    let admin = format!("unix:{}.sock", socket.path());
    let backends = [dead.to_string(), format!("{alive},backup,weight=2")];
    let program = forward(
        &backends,
        &["--eject-after", "1", "--eject-max", "50", "--admin", &admin],
    );
    let (_client, _) = greeted(&program);
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(["status", "--admin", &admin])
        .output()
        .unwrap();
    let text = String::from_utf8(status.stdout).unwrap();
    for line in [
        format!("  to {dead}  ejected, active 0, connected 0, failed 1"),
        format!("  to {alive}  up, backup, weight 2, active 1, connected 1, failed 0"),
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
    }
    let _ = std::fs::remove_file(&admin["unix:".len()..]);
}
