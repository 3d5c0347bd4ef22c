//! Targets that answer an upload and close before they have read all of it, and peers that reset.
//! The tests cover every mode.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::clients::{greeted, ip_request, read_head, socks4_request};
use crate::harness::{Program, accept, assert_same, listen, pattern, read_exactly};

/// The way in which a client reaches its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    Socks5,
    Socks4,
    Connect,
    /// A request for an absolute URI, with a body of a known length.
    Uri,
    /// A request for an absolute URI, with a chunked body.
    Chunks,
}

impl Mode {
    const ALL: [Self; 6] = [
        Self::Forward,
        Self::Socks5,
        Self::Socks4,
        Self::Connect,
        Self::Uri,
        Self::Chunks,
    ];

    fn start(self, target: SocketAddr, arguments: &[&str]) -> Program {
        match self {
            Self::Forward => Program::forward(target, arguments),
            _ => Program::proxy("mixed", arguments),
        }
    }

    /// Returns a client that has sent the head of its request, and the piece that its body repeats.
    fn ask(self, program: &Program, target: SocketAddr) -> (TcpStream, Vec<u8>) {
        let mut client = match self {
            Self::Socks5 => {
                let mut client = greeted(program);
                client.write_all(&ip_request(target)).unwrap();
                read_exactly(&mut client, 10);
                client
            }
            _ => program.connect(),
        };
        if self == Self::Socks4 {
            client.write_all(&socks4_request(target, "ann", None)).unwrap();
            read_exactly(&mut client, 8);
        }
        if self == Self::Connect {
            write!(client, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
            read_head(&mut client);
        }
        let uri = match self {
            Self::Uri | Self::Chunks => format!("http://{target}/"),
            _ => "/".to_owned(),
        };
        let (framing, body) = match self {
            Self::Chunks => (
                "Transfer-Encoding: chunked",
                [b"10000\r\n", &[b'x'; 1 << 16][..], b"\r\n"].concat(),
            ),
            _ => ("Content-Length: 1000000000", vec![b'x'; 1 << 16]),
        };
        write!(client, "POST {uri} HTTP/1.1\r\nHost: {target}\r\n{framing}\r\n\r\n").unwrap();
        (client, body)
    }
}

const HEAD: &[u8] = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n\r\n";

/// Answers each of `clients` clients after the beginning of its upload has arrived. Then closes the
/// connection with the remaining bytes unread.
fn answer_early(listener: TcpListener, clients: usize, answer: Vec<u8>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for _ in 0..clients {
            let mut stream = accept(&listener);
            read_head(&mut stream);
            read_exactly(&mut stream, 100_000);
            // The answer is one piece. Nagle's algorithm would hold back a second piece, and the
            // reset would discard it.
            stream.write_all(&[HEAD, &answer].concat()).unwrap();
        }
    })
}

/// Writes until a write fails, then reads, like a client that reads the answer only after its
/// upload.
fn upload_then_read(mut client: TcpStream, body: &[u8]) -> Vec<u8> {
    let written = (0..).take_while(|_| client.write_all(body).is_ok()).count();
    assert!(written < 10_000, "the upload goes on without end");
    let mut answer = Vec::new();
    // After a reset, a client can still read the bytes that have arrived.
    let _ = client.read_to_end(&mut answer);
    answer
}

fn is_answered_early(modes: &[Mode], arguments: &[&str], clients: usize) {
    let answer = pattern(1, 20_000);
    for &mode in modes {
        let (listener, target) = listen();
        let target_ends = answer_early(listener, clients, answer.clone());
        let program = mode.start(target, arguments);
        for _ in 0..clients {
            let (client, body) = mode.ask(&program, target);
            let got = upload_then_read(client, &body);
            let (_, got) = got.split_at(
                got.windows(4)
                    .position(|four| four == b"\r\n\r\n")
                    .map_or(0, |at| at + 4),
            );
            assert_same(got, &answer);
        }
        target_ends.join().unwrap();
        let ended = ["end=\"reset_by_upstream\""];
        program.await_sum("spliceway_connections_total", &ended, clients as u64);
    }
}

#[test]
fn an_early_answer_reaches_its_client_in_every_mode() {
    is_answered_early(&Mode::ALL, &[], 4);
}

#[test]
fn an_early_answer_reaches_its_client_without_splicing_too() {
    is_answered_early(&Mode::ALL, &["--splice", "off"], 4);
}

#[test]
fn an_early_answer_reaches_its_client_through_other_proxies() {
    for (kind, scheme) in [("socks5", "socks5h"), ("http", "http")] {
        let upstream = Program::proxy(kind, &[]);
        let url = format!("{scheme}://{}", upstream.address);
        is_answered_early(&[Mode::Forward, Mode::Socks5, Mode::Uri], &["-x", &url], 2);
    }
}

/// In this test, the sides are swapped. A client leaves before it has read the whole answer. The
/// target still receives the bytes that the client sent.
#[test]
fn the_last_bytes_of_a_client_reach_a_target_that_still_sends() {
    for splice in ["auto", "off"] {
        let (listener, address) = listen();
        let program = Program::forward(address, &["--splice", splice]);
        let (mut client, mut target) = (program.connect(), accept(&listener));
        let chunk = [b'x'; 1 << 16];
        let sending = thread::spawn(move || {
            let written = (0..).take_while(|_| target.write_all(&chunk).is_ok()).count();
            assert!(written < 10_000, "the download goes on without end");
            let mut said = Vec::new();
            let _ = target.read_to_end(&mut said);
            said
        });
        read_exactly(&mut client, 1 << 20);
        client.write_all(b"enough").unwrap();
        drop(client);
        assert_eq!(sending.join().unwrap(), b"enough");
        program.await_end("reset_by_client");
    }
}

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

fn is_reset(stream: &mut TcpStream) -> bool {
    stream
        .read(&mut [0])
        .is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// Without the reset, an answer that ends with its connection would seem complete.
#[test]
fn a_reset_of_a_target_is_a_reset_for_its_client_in_every_mode() {
    for mode in Mode::ALL {
        let (listener, address) = listen();
        let program = mode.start(address, &[]);
        let (mut client, _) = mode.ask(&program, address);
        let mut target = accept(&listener);
        read_head(&mut target);
        target.write_all(b"HTTP/1.1 200 OK\r\n\r\nthe beginning").unwrap();
        read_head(&mut client);
        assert_eq!(read_exactly(&mut client, 13), b"the beginning");
        reset(target);
        assert!(is_reset(&mut client), "{mode:?}");
        program.await_end("reset_by_upstream");
    }
}

#[test]
fn a_reset_of_a_client_is_a_reset_for_its_target_in_every_mode() {
    for mode in Mode::ALL {
        let (listener, address) = listen();
        let program = mode.start(address, &[]);
        let (mut client, body) = mode.ask(&program, address);
        client.write_all(&body).unwrap();
        let mut target = accept(&listener);
        read_head(&mut target);
        read_exactly(&mut target, body.len());
        reset(client);
        assert!(is_reset(&mut target), "{mode:?}");
        program.await_end("reset_by_client");
    }
}

/// The proxy does not relay the bytes after a request. Such bytes do not turn a truncated answer
/// into an early answer.
#[test]
fn a_reset_is_passed_on_to_a_client_that_has_sent_too_much() {
    let (listener, address) = listen();
    let program = Program::proxy("http", &[]);
    let mut client = program.connect();
    write!(client, "GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut target = accept(&listener);
    read_head(&mut target);
    target.write_all(b"HTTP/1.1 200 OK\r\n\r\nthe beginning").unwrap();
    read_head(&mut client);
    read_exactly(&mut client, 13);
    client.write_all(b"\r\nand more of it").unwrap();
    reset(target);
    assert!(is_reset(&mut client));
}
