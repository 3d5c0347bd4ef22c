use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::process::{Child, Command, Stdio};
use std::thread;

use spliceway_net::has_tool;

use crate::harness::{
    Program, accept, assert_same, connect, is_closed, listen, pattern, read_all, read_exactly, refusing,
    send_and_finish,
};

const LARGE: usize = (8 << 20) + 12_345;

#[test]
fn bytes_arrive_exactly_in_both_directions_at_the_same_time() {
    let (listener, address) = listen();
    let program = Program::forward(address, &[]);
    let client = program.connect();
    let target = accept(&listener);
    let (up, down) = (pattern(1, LARGE), pattern(2, LARGE));
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&client, &up));
        scope.spawn(|| send_and_finish(&target, &down));
        let received = scope.spawn(|| read_all(&target));
        assert_same(&read_all(&client), &down);
        assert_same(&received.join().unwrap(), &up);
    });
    let bytes = |direction| program.sum("spliceway_bytes_total", &[direction]);
    program.await_sum("spliceway_connections_total", &[], 1);
    assert_eq!(
        (bytes("direction=\"up\""), bytes("direction=\"down\"")),
        (LARGE as u64, LARGE as u64)
    );
    assert_eq!(program.sum("spliceway_connections_active", &[]), 0);
}

#[test]
fn a_client_that_finished_still_gets_a_large_answer() {
    let (listener, address) = listen();
    let program = Program::forward(address, &[]);
    let mut client = program.connect();
    let target = accept(&listener);
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&target), b"question");
    let answer = pattern(3, LARGE);
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&target, &answer));
        assert_same(&read_all(&client), &answer);
    });
    program.await_end("client_eof");
}

#[test]
fn a_target_that_finished_still_receives_the_bytes_of_its_client() {
    let (listener, address) = listen();
    let program = Program::forward(address, &[]);
    let client = program.connect();
    let mut target = accept(&listener);
    target.write_all(b"banner").unwrap();
    target.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), b"banner");
    let sent = pattern(4, LARGE);
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&client, &sent));
        assert_same(&read_all(&target), &sent);
    });
    program.await_end("upstream_eof");
}

#[test]
fn a_reset_ends_the_session_and_the_record_names_its_side() {
    let (listener, address) = listen();
    for (end, by_client) in [("reset_by_client", true), ("reset_by_upstream", false)] {
        let mut program = Program::forward(address, &[]);
        let (mut client, mut target) = (program.connect(), accept(&listener));
        client.write_all(b"a").unwrap();
        assert_eq!(read_exactly(&mut target, 1), b"a");
        let (resets, mut other) = if by_client { (client, target) } else { (target, client) };
        socket2::SockRef::from(&resets)
            .set_linger(Some(std::time::Duration::ZERO))
            .unwrap();
        drop(resets);
        assert!(is_closed(&mut other));
        program.await_end(end);
        assert!(program.line("end=").contains(end));
    }
}

#[test]
fn a_refused_target_ends_only_its_own_session() {
    let mut program = Program::forward(refusing(), &["--log-level", "warn"]);
    for refused in 1..=2 {
        assert!(is_closed(&mut program.connect()));
        program.await_sum(
            "spliceway_connections_total",
            &["end=\"connect_failed:ECONNREFUSED\""],
            refused,
        );
    }
    let line = program.line("connect_failed:ECONNREFUSED");
    assert!(
        line.contains("WARN") && line.contains("refused (os error 111)"),
        "{line}"
    );
    program.line("connect_failed:ECONNREFUSED");
    assert_eq!(program.lines_with("connect_failed"), 2, "one line for each");
}

#[test]
fn an_unresolvable_target_ends_only_its_own_session() {
    // This label exceeds the limit of 63 bytes, so the program does not ask a name server.
    let name = format!("{}.invalid:80", "x".repeat(64));
    let mut program = Program::start(&["-l", "127.0.0.1:0", "--to", &name]);
    for _ in 0..2 {
        assert!(is_closed(&mut program.connect()));
        let line = program.line("connect_failed:unresolved");
        assert!(
            line.contains("cannot look up the name") && line.contains(&name),
            "{line}"
        );
    }
}

#[test]
fn every_listener_serves_clients() {
    let (listener, address) = listen();
    let target = address.to_string();
    let mut program = Program::start(&["-l", "127.0.0.1:0", "-l", "[::1]:0", "-r", &target]);
    let second = program.line("listening on ");
    let second = second.rsplit(' ').next().unwrap().parse().unwrap();
    for address in [program.address, second] {
        let mut client = connect(address);
        let mut target = accept(&listener);
        client.write_all(b"ab").unwrap();
        assert_eq!(read_exactly(&mut target, 2), b"ab");
    }
}

#[test]
fn an_idle_session_holds_two_descriptors() {
    let (listener, address) = listen();
    // The test uses no metrics, because a scrape also holds a descriptor until both sides have
    // closed the connection.
    let program = Program::start(&["-l", "127.0.0.1:0", "-r", &address.to_string()]);
    let before = program.descriptors();
    let sessions: Vec<_> = (0..20)
        .map(|_| {
            let (mut client, mut target) = (program.connect(), accept(&listener));
            client.write_all(b"x").unwrap();
            assert_eq!(read_exactly(&mut target, 1), b"x");
            (client, target)
        })
        .collect();
    assert_eq!(program.descriptors(), before + 2 * sessions.len());
}

/// Direct connections keep this order. `iperf3 --bidir` and protocols with a data connection rely
/// on it.
#[test]
fn connections_reach_the_target_in_the_order_of_their_accepts() {
    let (listener, address) = listen();
    let program = Program::forward(address, &["--workers", "2", "--log-level", "warn"]);
    let swapped = (0..500).filter(|_| {
        let clients = [b"a", b"b"].map(|name| {
            let mut client = program.connect();
            client.write_all(name).unwrap();
            client
        });
        let mut targets = [accept(&listener), accept(&listener)];
        let names = targets.each_mut().map(|target| read_exactly(target, 1));
        drop(clients);
        names != [b"a", b"b"]
    });
    assert_eq!(swapped.count(), 0, "of 500 pairs");
}

/// The iperf3 server uses the first data connection for one direction and the second for the other.
/// If the connections swap places, both ends send and neither end reads.
#[test]
fn iperf3_bidir_moves_bytes_both_ways() {
    if !has_tool("iperf3", "iperf3") {
        return;
    }
    let address = refusing();
    let port = address.port().to_string();
    let server = Command::new("iperf3")
        .args(["--server", "--bind", "127.0.0.1", "--forceflush", "--port", &port])
        .stdout(Stdio::piped())
        .spawn();
    let mut server = KilledAtEnd(server.unwrap());
    let mut said = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("listening")));
    let program = Program::forward(address, &["--workers", "2", "--log-level", "warn"]);
    let port = program.address.port().to_string();
    for _ in 0..3 {
        let client = [
            "20",
            "iperf3",
            "--client",
            "127.0.0.1",
            "--bidir",
            "--bytes",
            "64M",
            "--port",
            &port,
        ];
        let output = Command::new("timeout").args(client).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// A process that is killed when this value is dropped.
pub(crate) struct KilledAtEnd(pub(crate) Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
