//! `forward --udp`: datagrams of many clients, each with a session of its own.

mod limits;
mod moved;
mod programs;
mod running;

use std::net::{SocketAddr, UdpSocket};
use std::thread;

use crate::admin::Socket;
use crate::harness::{PATIENCE, Program, assert_same, pattern, refused_to_start};
use spliceway_net::{Net, Offloads};

/// Returns a socket whose reads wait at most [`PATIENCE`], and its address.
fn socket(address: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Runs `work` on a machine of its own, on which a port that was free a moment ago still is free.
/// Returns `None` if the machine provides no namespaces.
fn alone<T>(work: impl FnOnce() -> T) -> Option<T> {
    Some(Net::chain(1, Offloads::On)?.node(0).inside(work))
}

/// Returns an address at which nothing receives.
fn free() -> SocketAddr {
    socket("127.0.0.1:0").1
}

/// Starts a forwarder of datagrams with a metrics listener.
fn forward(target: SocketAddr, arguments: &[&str]) -> Program {
    Program::forward(target, &[&["--udp"], arguments].concat())
}

/// Returns a client of this program, on another port of its address.
fn client(program: &Program) -> UdpSocket {
    client_at("127.0.0.1:0", program)
}

fn client_at(address: &str, program: &Program) -> UdpSocket {
    let (socket, _) = socket(address);
    socket.connect(program.address).unwrap();
    socket
}

fn received(socket: &UdpSocket) -> Vec<u8> {
    received_from(socket).0
}

fn received_from(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut bytes = vec![0; 65_536];
    let (length, from) = socket.recv_from(&mut bytes).unwrap();
    bytes.truncate(length);
    (bytes, from)
}

/// Starts a target that returns each datagram with `mark` in front.
fn marking(address: &str, mark: u8) -> SocketAddr {
    let (socket, address) = socket(address);
    socket.set_read_timeout(None).unwrap();
    thread::spawn(move || {
        loop {
            let (bytes, from) = received_from(&socket);
            let _ = socket.send_to(&[&[mark], &bytes[..]].concat(), from);
        }
    });
    address
}

/// Asserts that the target with this mark answers the client.
fn assert_answered(client: &UdpSocket, mark: char, data: &str) {
    client.send(data.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(received(client)).unwrap(), format!("{mark}{data}"));
}

#[test]
fn datagrams_of_any_length_keep_their_bytes_order_and_boundaries() {
    for host in ["127.0.0.1", "[::1]"] {
        let (target, address) = socket(&format!("{host}:0"));
        let listens = format!("{host}:0");
        let to = address.to_string();
        let mut program = Program::start(&[
            "forward",
            "--udp",
            "-l",
            &listens,
            "-r",
            &to,
            "--metrics",
            "127.0.0.1:0",
        ]);
        let client = client_at(&listens, &program);
        let longest = 65_507;
        let mut lengths = vec![0, 1, 1_200, 1_200, 1_200, 7, 0, 0, 1_452, 1_453, 4_000, longest, 2];
        lengths.extend([100; 40]);
        let datagrams: Vec<_> = (0..).zip(lengths).map(|(seed, length)| pattern(seed, length)).collect();
        let mut source = None;
        // A few at a time, because the kernel's buffers are bounded.
        for some in datagrams.chunks(4) {
            some.iter()
                .for_each(|datagram| assert_eq!(client.send(datagram).unwrap(), datagram.len()));
            for datagram in some {
                let (bytes, from) = received_from(&target);
                assert_same(&bytes, datagram);
                assert_eq!(*source.get_or_insert(from), from, "one socket");
            }
            for datagram in some {
                target.send_to(datagram, source.unwrap()).unwrap();
            }
            some.iter()
                .for_each(|datagram| assert_same(&received(&client), datagram));
        }
        let bytes: usize = datagrams.iter().map(Vec::len).sum();
        for direction in ["direction=\"up\"", "direction=\"down\""] {
            let count = datagrams.len() as u64;
            program.await_sum("spliceway_datagrams_total", &[direction], count);
            assert_eq!(
                program.sum("spliceway_datagram_bytes_total", &[direction]),
                bytes as u64
            );
        }
        assert_eq!(program.lines_with("end="), 0);
    }
}

#[test]
fn each_client_has_its_own_socket_towards_the_target() {
    let (target, address) = socket("127.0.0.1:0");
    let program = forward(address, &[]);
    let clients: Vec<_> = (0..20).map(|_| client(&program)).collect();
    for turn in [1, 2] {
        for (number, client) in clients.iter().enumerate() {
            client.send(format!("{number} {turn}").as_bytes()).unwrap();
        }
        let asked: Vec<_> = clients.iter().map(|_| received_from(&target)).collect();
        let sources: std::collections::HashSet<_> = asked.iter().map(|(_, from)| *from).collect();
        assert_eq!(sources.len(), clients.len());
        // In another order.
        for (data, from) in asked.iter().rev() {
            target.send_to(data, from).unwrap();
        }
        for (number, client) in clients.iter().enumerate() {
            assert_eq!(received(client), format!("{number} {turn}").as_bytes());
        }
    }
    assert_eq!(program.sum("spliceway_connections_active", &[]), 20);
}

#[test]
fn an_answer_comes_from_the_address_that_the_client_reached() {
    let target = marking("127.0.0.1:0", b'a');
    for (listens, reached) in [("0.0.0.0:0", "127.0.0.7"), (":0", "127.0.0.7"), (":0", "::1")] {
        let program = Program::start(&["forward", "--udp", "-l", listens, "-r", &target.to_string()]);
        let family = if reached.contains(':') {
            "[::1]:0"
        } else {
            "127.0.0.1:0"
        };
        let (client, _) = socket(family);
        let reached = SocketAddr::new(reached.parse().unwrap(), program.address.port());
        for data in [&b"one"[..], b"two"] {
            client.send_to(data, reached).unwrap();
            assert_eq!(received_from(&client), ([b"a", data].concat(), reached));
        }
    }
}

/// A forged client gets no more than what the target sends to it.
#[test]
fn a_client_gets_exactly_the_datagrams_of_its_target() {
    let (admin, (target, address)) = (Socket::new(), socket("127.0.0.1:0"));
    let mut program = forward(address, &["--admin", &admin.address()]);
    let client = client(&program);
    client.send(b"question").unwrap();
    let (_, session) = received_from(&target);
    let (stranger, _) = socket("127.0.0.1:0");
    stranger.send_to(b"from elsewhere", session).unwrap();
    target.send_to(b"answer", session).unwrap();
    assert_eq!(received(&client), b"answer");
    assert_eq!(admin.ask("DELETE", "/v1/sessions/1").0, 202);
    let record = program.line("end=closed_by_admin");
    assert!(record.contains("datagrams_up=1 datagrams_down=1"), "{record}");
    // The session has ended, and nothing leads to the client any more.
    target.send_to(b"late", session).unwrap();
    client.send(b"again").unwrap();
    let (_, session) = received_from(&target);
    target.send_to(b"second answer", session).unwrap();
    assert_eq!(received(&client), b"second answer");
    assert_eq!(program.sum("spliceway_datagrams_total", &["direction=\"down\""]), 2);
}

#[test]
fn a_silent_session_ends_and_its_client_may_begin_another_one() {
    let (target, address) = socket("127.0.0.1:0");
    let mut program = forward(address, &["--udp-timeout", "200ms"]);
    let client = client(&program);
    for data in [b"a", b"b"] {
        client.send(data).unwrap();
        assert_eq!(received(&target), data);
        let record = program.line("end=idle");
        assert!(record.contains("datagrams_up=1 datagrams_down=0"), "{record}");
    }
}

#[test]
fn a_target_at_which_nothing_receives_ends_the_session() {
    let (target, address) = socket("127.0.0.1:0");
    let mut program = forward(address, &[]);
    let client = client(&program);
    client.send(b"a").unwrap();
    let (_, session) = received_from(&target);
    target.send_to(b"b", session).unwrap();
    received(&client);
    drop(target);
    client.send(b"c").unwrap();
    let record = program.line("end=");
    assert!(record.contains("end=reset_by_upstream"), "{record}");
    client.send(b"d").unwrap();
    let record = program.line("end=");
    assert!(record.contains("end=connect_failed:ECONNREFUSED"), "{record}");
    assert_eq!(program.sum("spliceway_connections_active", &[]), 0);
}

#[test]
fn a_name_is_looked_up_for_each_session_and_datagrams_wait_for_it() {
    let (target, address) = socket("127.0.0.1:0");
    let to = format!("localhost:{}", address.port());
    let program = Program::start(&["forward", "--udp", "-l", "127.0.0.1:0", "-r", &to]);
    for _ in 0..2 {
        let client = client(&program);
        let sent: Vec<_> = (0..50).map(|seed| pattern(seed, 100)).collect();
        sent.iter()
            .for_each(|datagram| assert_eq!(client.send(datagram).unwrap(), datagram.len()));
        sent.iter()
            .for_each(|datagram| assert_eq!(&received(&target), datagram));
    }
}

#[test]
fn each_datagram_begins_with_a_proxy_header_that_names_the_client() {
    let (target, address) = socket("127.0.0.1:0");
    let program = forward(address, &["--send-proxy", "v2"]);
    let client = client(&program);
    let (from, to) = (client.local_addr().unwrap(), program.address);
    let header = [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x12\x00\x0c\x7f\0\0\x01\x7f\0\0\x01"[..],
        &from.port().to_be_bytes(),
        &to.port().to_be_bytes(),
    ]
    .concat();
    for data in [&b"first"[..], b"", &[7; 1_400], &[8; 1_400]] {
        client.send(data).unwrap();
        assert_eq!(received(&target), [&header[..], data].concat());
    }
    program.await_sum("spliceway_datagram_bytes_total", &["direction=\"up\""], 2805);
    assert_eq!(
        program.sum("spliceway_datagram_bytes_total", &[]),
        2805,
        "without headers"
    );
}

#[test]
fn what_needs_connections_is_refused_for_datagrams() {
    let target = free().to_string();
    for (arguments, expected) in [
        (&["-l", "unix:/tmp/a"][..], "--listen: expected an address and a port"),
        (
            &["--send-proxy", "v1"],
            "--send-proxy: has no header for datagrams: expected v2",
        ),
        (
            &["-x", "socks5://127.0.0.1"],
            "--upstream-proxy: is only for connections",
        ),
        (&["--udp-timeout", "0"], "expected a time longer than 0"),
    ] {
        let all = [&["forward", "--udp", "-l", "127.0.0.1:0", "-r", &target], arguments].concat();
        let message = refused_to_start(&all);
        assert!(message.contains(expected), "{message}");
    }
    let message = refused_to_start(&["forward", "-l", "127.0.0.1:0", "-r", &target, "--udp-timeout", "1s"]);
    assert!(message.contains("--udp"), "{message}");
}
