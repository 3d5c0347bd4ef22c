//! Clients that do not finish their handshake, or that attack it.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustls::{ClientConnection, HandshakeKind};

use super::client::{Client, Config, Pair, TLS12, TLS13};
use super::service;
use crate::harness::{Program, echo, is_closed, listen, read_all, refusing, was_reached};

/// The head of a record of a handshake with this length.
fn record(length: usize) -> Vec<u8> {
    let mut head = vec![22, 3, 1];
    head.extend(u16::try_from(length).unwrap().to_be_bytes());
    head
}

/// Returns a whole hello of a real client.
fn hello() -> &'static [u8] {
    include_bytes!("../../../../spliceway-protocol/src/tls/hellos/openssl.bin")
}

/// Sends bytes, and returns the answer up to the end of the connection.
fn answer(program: &Program, bytes: &[u8]) -> Vec<u8> {
    let mut client = program.connect();
    let _ = client.write_all(bytes);
    let mut answer = Vec::new();
    // A reset may follow the answer.
    let _ = client.read_to_end(&mut answer);
    answer
}

fn denied(program: &Program, reason: &str) -> u64 {
    program.sum("spliceway_connections_total", &[&format!("end=\"denied:{reason}\"")])
}

#[test]
fn bytes_that_are_no_tls_are_answered_with_an_alert_and_reach_no_target() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("forward", target, &pair, &[]);
    let endless = [record(4), vec![1, 0xff, 0xff, 0xff], record(1 << 14), vec![0; 1 << 14]].concat();
    let zeros = [record(1 << 14), vec![0; 1 << 14]].concat();
    let unfinished = [&record(4)[..], &[1, 0, 0xff, 0xf0], &zeros, &zeros].concat();
    let empty = record(0).repeat(100);
    for (name, bytes) in [
        ("a hello of 64 KiB", unfinished),
        ("empty records", empty),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("a hello of 16 MiB", endless),
        ("a record that is too long", [record(0xffff), vec![1; 0xffff]].concat()),
        ("an empty record", record(0)),
        ("data before a hello", b"\x17\x03\x03\x00\x01x".to_vec()),
        (
            "a hello of SSL 2",
            b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80".to_vec(),
        ),
        (
            "a hello that is cut in its fields",
            b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03".to_vec(),
        ),
    ] {
        let answer = answer(&program, &bytes);
        assert!(answer.is_empty() || answer[0] == 21, "{name}: {answer:?}");
        let line = program.line("end=");
        assert!(line.contains("denied:tls_handshake"), "{name}: {line}");
        assert!(line.contains("cause="), "{name}: {line}");
    }
    assert_eq!(denied(&program, "tls_handshake"), 9);
    assert!(!was_reached(&listener));
}

#[test]
fn an_early_end_and_a_silent_client_are_recorded() {
    let pair = Pair::new(&["a.test"]);
    let mut program = service("socks5", refusing(), &pair, &["--handshake-timeout", "300ms"]);
    for sent in [&b""[..], b"\x16\x03", hello()] {
        let mut client = program.connect();
        client.write_all(sent).unwrap();
        drop(client);
        let line = program.line("end=");
        assert!(
            line.contains("end=client_eof") || line.contains("end=reset_by_client"),
            "{line}"
        );
    }
    for sent in [&b""[..], b"\x16\x03"] {
        let mut client = program.connect();
        client.write_all(sent).unwrap();
        assert!(is_closed(&mut client));
        assert!(program.line("end=").contains("denied:handshake_timeout"));
    }
    // This client is silent after its hello.
    let mut client = program.connect();
    client.write_all(hello()).unwrap();
    assert_eq!(read_all(&client)[0], 22);
    assert!(program.line("end=").contains("denied:handshake_timeout"));
    assert_eq!(denied(&program, "handshake_timeout"), 3);
}

#[test]
fn a_client_that_refuses_the_certificate_is_recorded() {
    let (pair, other) = (Pair::new(&["a.test"]), Pair::new(&["a.test"]));
    let mut program = service("forward", refusing(), &pair, &[]);
    Client::connect(&program, &Config::new(&other))
        .err()
        .expect("the certificate is unknown");
    let line = program.line("end=");
    assert!(
        line.contains("denied:tls_alert") && line.contains("the client refuses"),
        "{line}"
    );
    assert!(line.contains(" sni=\"a.test\" "), "{line}");
}

#[test]
fn a_handshake_byte_by_byte_and_a_hello_in_many_records_succeed() {
    let pair = Pair::new(&["a.test"]);
    let program = service("forward", echo("127.0.0.1:0"), &pair, &[]);
    for (versions, is_cut) in [(TLS12, false), (TLS13, false), (TLS12, true), (TLS13, true)] {
        let (config, name) = Config::new(&pair).versions(versions).parts();
        let mut socket = program.connect();
        socket.set_nodelay(true).unwrap();
        let mut session = ClientConnection::new(config, name).unwrap();
        while session.is_handshaking() || session.wants_write() {
            let mut bytes = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut bytes).unwrap();
            }
            if is_cut && bytes.starts_with(&[22]) && bytes[5] == 1 {
                // Each record has one byte of the hello.
                bytes = bytes[5..]
                    .iter()
                    .flat_map(|byte| [record(1), vec![*byte]].concat())
                    .collect();
            }
            bytes.chunks(1).for_each(|byte| socket.write_all(byte).unwrap());
            if session.is_handshaking() {
                assert!(session.read_tls(&mut socket).unwrap() > 0);
                session.process_new_packets().unwrap();
            }
        }
        let mut stream = rustls::StreamOwned::new(session, socket);
        stream.write_all(b"abc").unwrap();
        let mut echoed = [0; 3];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(&echoed, b"abc");
    }
}

#[test]
fn thousands_of_silent_handshakes_cost_little_and_leave_nothing() {
    const CLIENTS: usize = 1000;
    const BYTES_EACH: u64 = 40 << 10;
    let pair = Pair::new(&["a.test"]);
    let program = service("forward", echo("127.0.0.1:0"), &pair, &[]);
    let exchange = || {
        let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
        assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
    };
    exchange();
    program.await_sum("spliceway_connections_total", &[], 1);
    let (descriptors, memory) = (program.descriptors(), program.resident_bytes());
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = program.connect();
            client.write_all(hello()).unwrap();
            // The server has answered, and waits.
            client.read_exact(&mut [0; 5]).unwrap();
            client
        })
        .collect();
    exchange();
    let grown = program.resident_bytes().saturating_sub(memory);
    assert!(
        grown < CLIENTS as u64 * BYTES_EACH,
        "{grown} bytes for {CLIENTS} handshakes"
    );
    drop(clients);
    program.await_sum("spliceway_connections_total", &[], CLIENTS as u64 + 2);
    assert!(
        program.descriptors() <= descriptors + 1,
        "{} > {descriptors}",
        program.descriptors()
    );
}

#[test]
fn early_data_is_not_offered() {
    let pair = Pair::new(&["a.test"]);
    let program = service("forward", echo("127.0.0.1:0"), &pair, &[]);
    let config = Config::new(&pair).early_data();
    for _ in 0..2 {
        let mut client = Client::connect(&program, &config).unwrap();
        assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
    }
    let (config, name) = config.parts();
    let mut session = ClientConnection::new(config, name).unwrap();
    assert!(session.early_data().is_none());
    assert_ne!(session.handshake_kind(), Some(HandshakeKind::Full));
}

#[test]
fn new_keys_are_made_and_a_flood_of_requests_ends_the_session() {
    // The number that rustls accepts without data in between.
    const REQUESTS_MAX: usize = 32;
    let pair = Pair::new(&["a.test"]);
    let mut program = service("forward", echo("127.0.0.1:0"), &pair, &[]);
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
    for byte in 0..100 {
        client.update_keys();
        client.send(&[byte]);
        assert_eq!(client.receive(1), [byte]);
    }
    for _ in 0..=REQUESTS_MAX {
        client.update_keys();
    }
    client.send(b"");
    client.rest().expect_err("the session has ended");
    let line = program.line("bytes_up=");
    assert!(
        line.contains("bytes_up=100 bytes_down=100") && line.contains("too many key update requests"),
        "{line}"
    );
}
