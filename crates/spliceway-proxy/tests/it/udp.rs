use std::fs;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use crate::clients::{GREETING, greeted, ip_request};
use crate::drain::CUT;
use crate::harness::{PATIENCE, Program, TextFile, read_all, read_exactly};
use spliceway_net::{Net, Offloads};

/// Returns a socket whose reads wait at most [`PATIENCE`], and its address.
pub(crate) fn socket(address: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Starts a target that returns each datagram in upper case.
pub(crate) fn shouting(address: &str) -> SocketAddr {
    let (socket, address) = socket(address);
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let answer = bytes[..length].to_ascii_uppercase();
            let _ = socket.send_to(&answer, from);
        }
    });
    address
}

/// Returns the connection that holds an association, and the address to send datagrams to.
pub(crate) fn associated(program: &Program) -> (TcpStream, SocketAddr) {
    associated_by(greeted(program))
}

/// Does the same for a client that may send its request.
pub(crate) fn associated_by(mut client: TcpStream) -> (TcpStream, SocketAddr) {
    client.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let reply = read_exactly(&mut client, 10);
    assert_eq!(reply[..4], [5, 0, 0, 1]);
    let ip: [u8; 4] = reply[4..8].try_into().unwrap();
    (client, (ip, u16::from_be_bytes([reply[8], reply[9]])).into())
}

/// Returns a datagram to `target` as a client sends it. A datagram from `target` has the same form
/// when the proxy sends it to the client.
pub(crate) fn wrapped(target: SocketAddr, data: &[u8]) -> Vec<u8> {
    [&[0, 0, 0], &ip_request(target)[3..], data].concat()
}

pub(crate) fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut bytes = [0; 2048];
    let length = socket.recv(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

#[test]
fn datagrams_pass_both_ways_and_the_record_counts_them() {
    let mut program = Program::socks5(&[]);
    let (target, other) = (shouting("127.0.0.1:0"), shouting("127.0.0.1:0"));
    let (client, relay) = associated(&program);
    assert_eq!(relay.ip(), program.address.ip(), "the address that the client reached");
    let (socket, _) = socket("127.0.0.1:0");
    for (number, target) in [target, other, target].into_iter().enumerate() {
        let data = format!("datagram {number}");
        socket.send_to(&wrapped(target, data.as_bytes()), relay).unwrap();
        assert_eq!(received(&socket), wrapped(target, data.to_uppercase().as_bytes()));
    }
    assert_eq!(program.sum("spliceway_datagrams_total", &["direction=\"up\""]), 3);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), b"");
    let record = program.line("end=client_eof");
    for field in [
        "datagrams_up=3",
        "datagrams_down=3",
        "datagram_bytes_up=30",
        "datagrams_dropped=0",
    ] {
        assert!(record.contains(field), "{field} in {record}");
    }
}

#[test]
fn a_name_is_looked_up_and_ipv6_works() {
    let program = Program::socks5(&[]);
    let (target, sixth) = (shouting("127.0.0.1:0"), shouting("[::1]:0"));
    let (_client, relay) = associated(&program);
    let (socket, _) = socket("127.0.0.1:0");
    let name = b"localhost";
    let length = u8::try_from(name.len()).unwrap();
    let named = [
        &[0, 0, 0, 3, length],
        &name[..],
        &target.port().to_be_bytes(),
        b"by name",
    ]
    .concat();
    socket.send_to(&named, relay).unwrap();
    assert_eq!(received(&socket), wrapped(target, b"BY NAME"));
    socket.send_to(&wrapped(sixth, b"sixth"), relay).unwrap();
    assert_eq!(received(&socket), wrapped(sixth, b"SIXTH"));
}

#[test]
fn fragments_strangers_and_refused_targets_are_dropped_and_counted() {
    let program = Program::public("socks5", &["--open"]);
    let (inside, address) = socket("127.0.0.1:0");
    let (_client, relay) = associated(&program);
    let (own, _) = socket("127.0.0.1:0");
    let (stranger, _) = socket("127.0.0.1:0");
    own.send_to(&wrapped(address, b"loopback"), relay).unwrap();
    let mut fragment = wrapped(address, b"fragment");
    fragment[2] = 1;
    own.send_to(&fragment, relay).unwrap();
    stranger.send_to(&wrapped(address, b"stranger"), relay).unwrap();
    for (reason, count) in [("denied", 1), ("fragment", 1), ("source", 1)] {
        program.await_sum(
            "spliceway_datagrams_dropped_total",
            &[&format!("reason=\"{reason}\"")],
            count,
        );
    }
    assert_eq!(program.sum("spliceway_datagrams_total", &[]), 0);
    inside.set_nonblocking(true).unwrap();
    assert!(inside.recv(&mut [0; 16]).is_err());
}

#[test]
fn associations_leave_a_quarter_of_the_ports_to_others() {
    if let Some(net) = Net::chain(1, Offloads::On) {
        net.node(0).inside(|| {
            // 15 of these 20 ports are for datagrams. An association has 2.
            fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40019").unwrap();
            // Port because the other ports are counted.
            let target = shouting("127.0.0.1:9000");
            let program = Program::socks5(&[]);
            let mut open: Vec<_> = (0..7).map(|_| answered(&program, target)).collect();
            assert_eq!(refused(&program), 1);
            let others: Vec<_> = (0..5).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
            drop((open.pop(), others));
            program.await_sum("spliceway_connections_active", &[], 6);
            answered(&program, target);
        });
    }
}

/// Returns an association through which a datagram has passed.
fn answered(program: &Program, target: SocketAddr) -> TcpStream {
    // Port because the other ports are counted. A process that another test starts may still have a
    // copy of the last socket, so each one has another port.
    static NEXT: AtomicU16 = AtomicU16::new(41_000);
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    let (connection, relay) = associated(program);
    let (socket, _) = socket(&format!("127.0.0.1:{port}"));
    socket.send_to(&wrapped(target, b"a"), relay).unwrap();
    assert_eq!(received(&socket), wrapped(target, b"A"));
    connection
}

/// Returns the code with which an association is refused.
fn refused(program: &Program) -> u8 {
    let mut client = greeted(program);
    client.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    read_exactly(&mut client, 10)[1]
}

#[test]
fn without_a_password_there_is_no_association() {
    let users = TextFile::new("ann:a\n");
    let program = Program::socks5(&["--auth-file", users.path()]);
    let mut client = program.connect();
    client
        .write_all(&[&GREETING[..], &[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]].concat())
        .unwrap();
    assert_eq!(read_all(&client), [5, 0xFF]);
}

#[test]
fn an_association_holds_its_descriptors_no_longer_than_its_connection() {
    let mut program = Program::socks5(&[]);
    let target = shouting("127.0.0.1:0");
    let (socket, _) = socket("127.0.0.1:0");
    let before = program.descriptors();
    for _ in 0..3 {
        let (client, relay) = associated(&program);
        socket.send_to(&wrapped(target, b"a"), relay).unwrap();
        received(&socket);
        drop(client);
        program.line("end=client_eof");
    }
    assert_eq!(program.descriptors(), before);
}

#[test]
fn associations_end_immediately_after_the_drain_timeout() {
    let mut program = Program::socks5(&["--drain-timeout", "50ms"]);
    let (client, _) = associated(&program);
    program.terminate();
    assert!(program.line("end=").contains("end=drained"));
    assert_eq!(read_all(&client), b"");
    assert_eq!(program.exit().code(), Some(CUT));
}
