//! Clients that leave, or finish, before the program has reached their target.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::clients::{GREETING, ip_request, name_request, read_head, socks4_request};
use crate::harness::{PATIENCE, Program, accept, let_pass, listen, read_all, read_exactly};

/// A connect timeout that is longer than the tests' own deadlines, so it never ends a wait.
const PATIENT: [&str; 2] = ["--connect-timeout", "60s"];

/// Returns a listener with a full backlog. A connection to it is never established.
pub(crate) fn silent() -> ((Socket, TcpStream), SocketAddr) {
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    silent.listen(0).unwrap();
    let address = silent.local_addr().unwrap().as_socket().unwrap();
    ((silent, TcpStream::connect(address).unwrap()), address)
}

/// Waits until the program has at most `count` open descriptors.
pub(crate) fn await_descriptors(program: &Program, count: usize) {
    let until = Instant::now() + PATIENCE;
    while program.descriptors() > count {
        assert!(
            Instant::now() < until,
            "{} descriptors, {count} expected",
            program.descriptors()
        );
        let_pass(Duration::from_millis(2));
    }
}

/// Lets clients send `words`, read `answered` bytes and leave. They leave with a reset if
/// `is_reset` is set.
fn leave(program: &Program, words: &[u8], answered: usize, is_reset: bool) {
    const CLIENTS: u64 = 20;
    let before = program.descriptors();
    let began = program.sum("spliceway_connections_total", &[]);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = program.connect();
            client.write_all(words).unwrap();
            // A socket that is closed with unread bytes sends a reset.
            read_exactly(&mut client, answered);
            client
        })
        .collect();
    program.await_sum("spliceway_connections_active", &[], CLIENTS);
    for client in clients {
        if is_reset {
            SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
    program.await_sum("spliceway_connections_total", &[], began + CLIENTS);
    let end = if is_reset {
        "end=\"reset_by_client\""
    } else {
        "end=\"client_eof\""
    };
    program.await_sum("spliceway_connections_total", &[end], CLIENTS);
    await_descriptors(program, before);
}

#[test]
fn a_client_that_leaves_while_its_target_is_dialled_frees_its_session() {
    let (_silent, address) = silent();
    for (words, answered) in [
        ([&GREETING[..], &ip_request(address)].concat(), 2),
        (socks4_request(address, "", None), 0),
        (format!("CONNECT {address} HTTP/1.1\r\n\r\n").into_bytes(), 0),
    ] {
        for is_reset in [false, true] {
            leave(&Program::proxy("mixed", &PATIENT), &words, answered, is_reset);
        }
    }
}

#[test]
fn a_client_that_leaves_during_a_lookup_frees_its_session() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = silent.local_addr().unwrap().to_string();
    let program = Program::socks5(&[&PATIENT[..], &["--dns", &server]].concat());
    leave(
        &program,
        &[&GREETING[..], &name_request("slow.example.", 80)].concat(),
        2,
        false,
    );
}

#[test]
fn a_client_that_leaves_while_an_upstream_is_silent_frees_its_session() {
    let (upstream, address) = listen();
    let url = format!("socks5h://{address}");
    let program = Program::socks5(&[&PATIENT[..], &["-x", &url]].concat());
    leave(
        &program,
        &[&GREETING[..], &name_request("a.example", 80)].concat(),
        2,
        false,
    );
    drop(upstream);
}

#[test]
fn a_reset_ends_a_session_whose_early_data_is_unread() {
    let (_silent, address) = silent();
    let program = Program::socks5(&PATIENT);
    leave(
        &program,
        &[&GREETING[..], &ip_request(address), &[7; 5000]].concat(),
        2,
        true,
    );
    let forward = Program::forward(address, &PATIENT);
    leave(&forward, b"early", 0, true);
}

/// Speaks SOCKS5 as the upstream proxy of a program whose client has finished, and sends a banner.
/// Returns the bytes that arrived for the target.
fn serve_late(upstream: &TcpListener) -> Vec<u8> {
    let mut stream = accept(upstream);
    read_exactly(&mut stream, GREETING.len());
    stream.write_all(&[5, 0]).unwrap();
    read_exactly(&mut stream, 10);
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    stream.write_all(b"banner").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    read_all(&stream)
}

#[test]
fn a_client_that_finishes_with_early_data_unread_is_served() {
    let (upstream, address) = listen();
    let program = Program::socks5(&["-x", &format!("socks5://{address}")]);
    for early in [1, 5000] {
        let mut client = program.connect();
        let target = ip_request(([192, 0, 2, 1], 80).into());
        let early = vec![7; early];
        client.write_all(&[&GREETING[..], &target, &early].concat()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(serve_late(&upstream), early);
        assert!(read_all(&client).ends_with(b"banner"));
    }
}

#[test]
fn a_client_of_a_forwarder_that_finishes_first_reads_its_banner() {
    let (upstream, address) = listen();
    let url = format!("socks5://{address}");
    let program = Program::forward(([192, 0, 2, 1], 80).into(), &["-x", &url]);
    let client = program.connect();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(serve_late(&upstream), b"");
    assert_eq!(read_all(&client), b"banner");
}

#[test]
fn a_whole_request_over_http_is_served_after_its_client_has_finished() {
    let (upstream, address) = listen();
    let program = Program::proxy("http", &["-x", &format!("socks5://{address}")]);
    let mut client = program.connect();
    client
        .write_all(b"GET http://192.0.2.1/ HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut stream = accept(&upstream);
    read_exactly(&mut stream, GREETING.len());
    stream.write_all(&[5, 0]).unwrap();
    read_exactly(&mut stream, 10);
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    // A close while the request is unread would send a reset.
    read_head(&mut stream);
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbody").unwrap();
    drop(stream);
    assert!(read_all(&client).ends_with(b"body"));
}

#[test]
fn a_client_that_leaves_while_it_binds_frees_its_listener() {
    let program = Program::socks5(&PATIENT);
    let bind = [5, 2, 0, 1, 0, 0, 0, 0, 0, 0];
    leave(&program, &[&GREETING[..], &bind].concat(), 12, false);
    leave(
        &Program::socks5(&PATIENT),
        &[&GREETING[..], &bind, b"early"].concat(),
        12,
        true,
    );
}
