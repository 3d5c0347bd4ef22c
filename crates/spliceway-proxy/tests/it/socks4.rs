use std::io::Write;
use std::net::Ipv4Addr;

use crate::clients::{exchange, socks4_request};
use crate::harness::{Program, accept, echo, listen, read_all, read_exactly, refusing};

const GRANTED: u8 = 90;
const REJECTED: u8 = 91;

#[test]
fn an_address_and_a_name_are_reached() {
    let mut program = Program::proxy("mixed", &[]);
    let target = echo("127.0.0.1:0");
    for name in [None, Some("localhost"), Some("127.0.0.1")] {
        let mut client = program.connect();
        client.write_all(&socks4_request(target, "ann", name)).unwrap();
        assert_eq!(read_exactly(&mut client, 8)[..2], [0, GRANTED]);
        exchange(client);
        let record = program.line("end=client_eof");
        let host = name.unwrap_or("127.0.0.1");
        assert!(
            record.contains("protocol=\"socks4\"") && record.contains(&format!("target={host}:{}", target.port())),
            "{record}"
        );
    }
}

#[test]
fn a_request_may_be_split_at_every_byte_and_early_data_may_follow() {
    let program = Program::proxy("mixed", &[]);
    let target = echo("127.0.0.1:0");
    let request = [&socks4_request(target, "ann", Some("localhost"))[..], b"early"].concat();
    for split in 1..request.len() {
        let mut client = program.connect();
        client.set_nodelay(true).unwrap();
        client.write_all(&request[..split]).unwrap();
        client.write_all(&request[split..]).unwrap();
        assert_eq!(read_exactly(&mut client, 8)[..2], [0, GRANTED]);
        assert_eq!(read_exactly(&mut client, 5), b"early");
    }
}

#[test]
fn failed_and_invalid_requests_are_rejected() {
    let program = Program::proxy("mixed", &[]);
    let associate = [&[4, 3][..], &socks4_request(refusing(), "", None)[2..]].concat();
    for request in [
        socks4_request(refusing(), "", None),
        socks4_request(refusing(), "", Some("")),
        socks4_request(refusing(), "", Some("a b")),
        socks4_request(refusing(), &"x".repeat(256), None),
        associate,
    ] {
        let mut client = program.connect();
        client.write_all(&request).unwrap();
        let answer = read_all(&client);
        assert_eq!((answer.len(), &answer[..2]), (8, &[0, REJECTED][..]), "{request:?}");
    }
}

/// The program sends the second reply when a peer connects. The reply names the peer.
#[test]
fn bind_waits_for_one_connection_and_relays_it() {
    let program = Program::proxy("mixed", &[]);
    let mut client = program.connect();
    let expected = (Ipv4Addr::LOCALHOST, 0).into();
    client
        .write_all(&[&[4, 2][..], &socks4_request(expected, "", None)[2..]].concat())
        .unwrap();
    let bound = read_exactly(&mut client, 8);
    assert_eq!(bound[..2], [0, GRANTED]);
    let port = u16::from_be_bytes([bound[2], bound[3]]);
    let mut peer = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(read_exactly(&mut client, 8)[..2], [0, GRANTED]);
    peer.write_all(b"hello").unwrap();
    assert_eq!(read_exactly(&mut client, 5), b"hello");
    client.write_all(b"back").unwrap();
    assert_eq!(read_exactly(&mut peer, 4), b"back");
}

#[test]
fn a_client_receives_the_last_bytes_and_the_end_of_its_target() {
    let program = Program::proxy("mixed", &[]);
    let (listener, address) = listen();
    let mut client = program.connect();
    client.write_all(&socks4_request(address, "", None)).unwrap();
    let mut target = accept(&listener);
    read_exactly(&mut client, 8);
    target.write_all(b"last").unwrap();
    drop(target);
    assert_eq!(read_all(&client), b"last");
}
