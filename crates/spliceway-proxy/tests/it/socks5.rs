use std::io::Write;
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::clients::{AGREED, GREETING, exchange, greeted, ip_request, name_request};
use crate::harness::{
    Program, accept, assert_same, connect, echo, is_closed, let_pass, listen, pattern, read_all, read_exactly,
    refusing, send_and_finish,
};

/// Returns the code of the reply to `request`. After a failure, the connection must end.
fn reply_code(program: &Program, request: &[u8]) -> u8 {
    let mut client = greeted(program);
    client.write_all(request).unwrap();
    let reply = read_exactly(&mut client, 10);
    assert_eq!((reply[0], reply[2]), (5, 0));
    if reply[1] != 0 {
        assert_eq!(reply[3..], [1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            read_all(&client),
            b"",
            "nothing follows, and it ends by FIN, not by reset"
        );
    }
    reply[1]
}

#[test]
fn the_reply_names_the_socket_that_reached_an_ipv4_target() {
    let program = Program::socks5(&[]);
    let (listener, address) = listen();
    let mut client = greeted(&program);
    client.write_all(&ip_request(address)).unwrap();
    let reply = read_exactly(&mut client, 10);
    let mut target = accept(&listener);
    let from = target.peer_addr().unwrap();
    assert_eq!(reply[..8], [5, 0, 0, 1, 127, 0, 0, 1]);
    assert_eq!(reply[8..], from.port().to_be_bytes());
    client.write_all(b"ping").unwrap();
    assert_eq!(read_exactly(&mut target, 4), b"ping");
}

#[test]
fn an_ipv6_target_is_reached() {
    let program = Program::socks5(&[]);
    let address = echo("[::1]:0");
    let mut client = greeted(&program);
    client.write_all(&ip_request(address)).unwrap();
    let reply = read_exactly(&mut client, 22);
    assert_eq!(reply[..4], [5, 0, 0, 4]);
    assert_eq!(reply[4..20], Ipv6Addr::LOCALHOST.octets());
    exchange(client);
}

#[test]
fn a_target_by_name_is_reached() {
    let mut program = Program::socks5(&[]);
    let address = echo("127.0.0.1:0");
    for name in ["localhost", "127.0.0.1"] {
        let mut client = greeted(&program);
        client.write_all(&name_request(name, address.port())).unwrap();
        assert_eq!(read_exactly(&mut client, 10)[..2], [5, 0]);
        exchange(client);
        assert!(
            program
                .line("end=client_eof")
                .contains(&format!("target={name}:{}", address.port()))
        );
    }
}

/// The first reply names the address to connect to, and the second one the peer.
#[test]
fn bind_waits_for_one_connection_and_relays_it() {
    let program = Program::socks5(&[]);
    let mut client = greeted(&program);
    client.write_all(&[5, 2, 0, 1, 127, 0, 0, 1, 0, 0]).unwrap();
    let port_of = |reply: &[u8]| {
        assert_eq!(reply[..8], [5, 0, 0, 1, 127, 0, 0, 1]);
        u16::from_be_bytes([reply[8], reply[9]])
    };
    let bound = port_of(&read_exactly(&mut client, 10));
    let mut peer = TcpStream::connect(("127.0.0.1", bound)).unwrap();
    let connected = port_of(&read_exactly(&mut client, 10));
    assert_eq!(connected, peer.local_addr().unwrap().port());
    peer.write_all(b"hello").unwrap();
    assert_eq!(read_exactly(&mut client, 5), b"hello");
    client.write_all(b"back").unwrap();
    assert_eq!(read_exactly(&mut peer, 4), b"back");
}

#[test]
fn bind_relays_every_byte_of_both_sides_and_their_ends() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        let mut program = Program::start(&["socks5", "-l", listen]);
        let mut client = greeted(&program);
        // Port because a peer may connect from another one.
        let mut request = ip_request(SocketAddr::new(program.address.ip(), 20));
        request[1] = 2;
        let length = request.len();
        client.write_all(&request).unwrap();
        let reply = read_exactly(&mut client, length);
        assert_eq!(reply[..4], [5, 0, 0, request[3]]);
        let (ip, port) = reply[4..].split_at(length - 6);
        assert_eq!(ip, &request[4..length - 2], "the address that the client reached");
        let bound = SocketAddr::new(program.address.ip(), u16::from_be_bytes(port.try_into().unwrap()));
        let peer = connect(bound);
        // The first bytes of the peer may be there before the client knows of it.
        let (up, down) = (pattern(1, 300_000), pattern(2, 400_000));
        thread::scope(|scope| {
            scope.spawn(|| send_and_finish(&peer, &down));
            let reply = read_exactly(&mut client, length);
            let expected = [&[5, 0, 0][..], &ip_request(peer.local_addr().unwrap())[3..]].concat();
            assert_eq!(reply, expected, "the second reply names the peer");
            scope.spawn(|| send_and_finish(&client, &up));
            scope.spawn(|| assert_same(&read_all(&client), &down));
            assert_same(&read_all(&peer), &up);
        });
        let record = program.line("end=");
        assert!(record.contains("bytes_up=300000 bytes_down=400000"), "{record}");
        assert!(record.contains("_eof"), "{record}");
    }
}

#[test]
fn messages_may_be_split_at_every_byte() {
    let program = Program::socks5(&[]);
    let address = echo("127.0.0.1:0");
    let request = name_request("localhost", address.port());
    for split in 1..GREETING.len() + request.len() {
        let mut client = program.connect();
        client.set_nodelay(true).unwrap();
        // The answer to the greeting separates the two messages. The client sends the pieces of one
        // message without a pause.
        for piece in pieces(&GREETING, split) {
            client.write_all(piece).unwrap();
        }
        assert_eq!(read_exactly(&mut client, 2), AGREED);
        for piece in pieces(&request, split.saturating_sub(GREETING.len())) {
            client.write_all(piece).unwrap();
        }
        assert_eq!(read_exactly(&mut client, 10)[..2], [5, 0]);
    }
    let mut client = program.connect();
    client.set_nodelay(true).unwrap();
    for byte in [&GREETING[..], &request, b"early"].concat() {
        client.write_all(&[byte]).unwrap();
    }
    assert_eq!(read_exactly(&mut client, 2), AGREED);
    read_exactly(&mut client, 10);
    assert_eq!(read_exactly(&mut client, 5), b"early");
}

fn pieces(message: &[u8], split: usize) -> [&[u8]; 2] {
    let (first, second) = message.split_at(split.min(message.len()));
    [first, second]
}

#[test]
fn everything_in_one_write_works_and_early_data_reaches_the_target() {
    let program = Program::socks5(&[]);
    let (listener, address) = listen();
    // The sizes are smaller than the handshake's buffer, larger than that buffer, and much larger
    // than any buffer.
    for early in [1, 300, 600, 5_000, 200_000] {
        let mut client = program.connect();
        let early = pattern(early as u64, early);
        client
            .write_all(&[&GREETING[..], &ip_request(address), &early].concat())
            .unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut target = accept(&listener);
        assert_same(&read_all(&target), &early);
        target.write_all(b"late").unwrap();
        drop(target);
        assert_eq!(read_all(&client)[..2], AGREED);
    }
}

#[test]
fn failures_to_connect_have_their_reply_codes() {
    let program = Program::socks5(&["--connect-timeout", "300ms"]);
    assert_eq!(reply_code(&program, &ip_request(refusing())), 0x05);
    // The program does not ask a name server about a label of more than 63 bytes. It does not send
    // a packet to a multicast group.
    assert_eq!(
        reply_code(&program, &name_request(&format!("{}.invalid", "x".repeat(64)), 80)),
        0x04
    );
    assert_eq!(reply_code(&program, &name_request(&"a".repeat(255), 80)), 0x04);
    assert_eq!(reply_code(&program, &ip_request(([224, 0, 0, 1], 80).into())), 0x03);
    assert_eq!(reply_code(&program, &name_request("", 80)), 0x01);
    assert_eq!(reply_code(&program, &name_request("a b", 80)), 0x01);
    let full = full_backlog();
    assert_eq!(reply_code(&program, &ip_request(full.1)), 0x06);
    for end in ["ECONNREFUSED", "unresolved", "ENETUNREACH", "ETIMEDOUT"] {
        program.await_end(&format!("connect_failed:{end}"));
    }
}

/// Returns a listener that does not answer a SYN, because its queue is full.
fn full_backlog() -> (Socket, SocketAddr, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let soon = Duration::from_millis(200);
    let queued = std::iter::from_fn(|| TcpStream::connect_timeout(&address, soon).ok()).collect();
    (socket, address, queued)
}

#[test]
fn an_unsupported_request_is_refused_with_its_code() {
    let program = Program::socks5(&[]);
    let address = refusing();
    for command in [0, 4, 9] {
        let mut request = ip_request(address);
        request[1] = command;
        assert_eq!(reply_code(&program, &request), 0x07);
    }
    // Bytes that the proxy does not read must not turn the reply into a reset.
    assert_eq!(
        reply_code(&program, &[&[5, 1, 0, 2][..], &pattern(5, 40_000)].concat()),
        0x08
    );
    program.await_sum("spliceway_refused_total", &["reason=\"command\""], 3);
    program.await_sum("spliceway_refused_total", &["reason=\"address_type\""], 1);
    program.await_sum("spliceway_connections_total", &["end=\"denied:command\""], 3);
}

#[test]
fn without_a_common_method_the_answer_is_ff() {
    let program = Program::socks5(&[]);
    for greeting in [&[5, 1, 2][..], &[5, 0], &[5, 3, 1, 2, 0x80]] {
        let mut client = program.connect();
        client.write_all(&[greeting, &ip_request(refusing())].concat()).unwrap();
        assert_eq!(read_all(&client), [5, 0xFF]);
    }
    program.await_sum("spliceway_refused_total", &["reason=\"method\""], 3);
}

#[test]
fn another_protocol_gets_no_answer() {
    let program = Program::socks5(&[]);
    let mut client = program.connect();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(read_all(&client), b"");
    program.await_end("denied:version");
}

#[test]
fn a_slow_handshake_ends_at_its_deadline_at_any_stage() {
    let program = Program::socks5(&["--handshake-timeout", "300ms"]);
    let request = ip_request(refusing());
    for said in [
        &[][..],
        &GREETING[..1],
        &GREETING,
        &[&GREETING[..], &request[..9]].concat(),
    ] {
        let mut client = program.connect();
        let started = Instant::now();
        client.write_all(said).unwrap();
        read_all(&client);
        let took = started.elapsed();
        assert!(
            took >= Duration::from_millis(290) && took < Duration::from_secs(5),
            "{took:?} after {said:?}"
        );
    }
    program.await_sum("spliceway_refused_total", &["reason=\"handshake_timeout\""], 4);
}

#[test]
fn the_handshake_deadline_does_not_apply_to_the_relay() {
    let program = Program::socks5(&["--handshake-timeout", "50ms"]);
    let mut client = greeted(&program);
    client.write_all(&ip_request(echo("127.0.0.1:0"))).unwrap();
    read_exactly(&mut client, 10);
    let_pass(Duration::from_millis(150));
    exchange(client);
}

#[test]
fn a_client_that_leaves_during_the_handshake_frees_its_session() {
    let program = Program::socks5(&[]);
    let mut client = program.connect();
    client.write_all(&GREETING[..1]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(is_closed(&mut client));
    program.await_end("client_eof");
    assert_eq!(program.sum("spliceway_connections_active", &[]), 0);
}
