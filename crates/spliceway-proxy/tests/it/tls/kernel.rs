//! TLS in the kernel. Where the kernel has none, sessions stay in user space.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use socket2::SockRef;
use spliceway::{KernelTls, TlsCipher};

use super::LARGE;
use super::client::{Client, Config, Pair, TLS12, TLS13};
use super::server::{ANY, Authority, Server, Speaks};
use crate::harness::{
    Program, accept, assert_same, listen, pattern, read_all, read_exactly, refused_to_start, send_and_finish,
};

/// The kernel seems to have TLS until it gets a socket, which it refuses.
const PROBED: (&str, &str) = ("SPLICEWAY_TEST_KTLS_PROBED", "1");

/// The bytes in each direction of a test in an emulated kernel.
const SOME: usize = 1 << 20;

/// The bytes that an end sends alone, before both ends send at once. It is then certain that a
/// switch finds its place.
const ALONE: usize = 300_000;

/// Returns whether the kernel can take TLS over.
pub(super) fn can_switch() -> bool {
    TlsCipher::ALL.iter().any(|cipher| KernelTls::probe(*cipher).is_ok())
}

/// Returns whether the kernel has no TLS at all.
fn refuses_sockets() -> bool {
    KernelTls::probe(TlsCipher::Aes128Gcm).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Starts a forwarder that gives connections to the kernel after `after` bytes. Returns `None` if
/// the kernel cannot take them.
pub(super) fn switching(target: &str, after: &str, more: &[&str]) -> Option<Program> {
    can_switch().then(|| Program::start_with(&[("SPLICEWAY_TEST_KTLS_AFTER", after)], &arguments(target, more)))
}

pub(super) fn switched(program: &Program) -> u64 {
    program.sum("spliceway_kernel_tls_total", &["result=\"switched\""])
}

/// The arguments of a forwarder that may give TLS to the kernel.
fn arguments<'a>(target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["forward", "-l", "127.0.0.1:0", "-r", target, "--metrics", "127.0.0.1:0"];
    [&all[..], &["--ktls", "on"], more].concat()
}

#[test]
fn a_kernel_without_tls_is_refused_or_not_used() {
    if can_switch() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let said = refused_to_start(&arguments(&target.to_string(), &pair.arguments()));
    for part in ["ktls", "is on, and the kernel refuses TLS", "or write \"auto\""] {
        assert!(said.contains(part), "{said}");
    }
    let more = [&pair.arguments()[..], &["--ktls", "auto"]].concat();
    let mut program = Program::forward(target, &more);
    let warned = program
        .lines_so_far()
        .iter()
        .any(|line| line.contains("TLS stays in the program"));
    assert!(warned, "{:?}", program.lines_so_far());
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let target = thread::spawn(move || {
        let target = accept(&listener);
        assert_same(&read_all(&target), &pattern(1, LARGE));
        send_and_finish(&target, &pattern(2, LARGE));
    });
    assert_same(&client.exchange(&pattern(1, LARGE)).unwrap(), &pattern(2, LARGE));
    target.join().unwrap();
    let record = program.line("bytes_up=");
    assert!(!record.contains("kernel_tls="), "{record}");
    assert_eq!(program.sum("spliceway_kernel_tls_total", &[]), 0);
}

#[test]
fn a_client_whose_socket_the_kernel_refuses_continues_exactly() {
    if !refuses_sockets() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    for (after, splice) in [("1", "auto"), ("100000", "off"), ("250000", "auto")] {
        let after = ("SPLICEWAY_TEST_KTLS_AFTER", after);
        let more = [&pair.arguments()[..], &["--splice", splice]].concat();
        let program = Program::start_with(&[PROBED, after], &arguments(&target.to_string(), &more));
        for tries in 1..=3 {
            let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
            let target = accept(&listener);
            thread::scope(|scope| {
                scope.spawn(|| talk_as_plain_end(target, LARGE, 2));
                talk_as_tls_end(&mut client, LARGE, 1, true);
            });
            assert_eq!(refused(&program), tries, "{after:?}");
        }
    }
}

/// Sends a part alone, with or without new keys, then sends and receives the rest at once. The
/// other end does the same in [`talk_as_plain_end`] or here. `number` identifies what is sent: 1 by
/// the end that begins, 2 by the other one.
fn talk_as_tls_end(end: &mut Client, size: usize, number: u64, updates_keys: bool) {
    let (own, other) = (pattern(number, size), pattern(3 - number, size));
    let (head, rest) = own.split_at(ALONE);
    if number == 2 {
        assert_same(&end.receive(ALONE), &other[..ALONE]);
    }
    for part in head.chunks(100_000) {
        if updates_keys {
            end.update_keys();
        }
        end.send(part);
    }
    if number == 1 {
        assert_same(&end.receive(ALONE), &other[..ALONE]);
    }
    assert_same(&end.exchange(rest).unwrap(), &other[ALONE..]);
}

fn talk_as_plain_end(mut end: TcpStream, size: usize, number: u64) {
    let (own, other) = (pattern(number, size), pattern(3 - number, size));
    if number == 2 {
        assert_same(&read_exactly(&mut end, ALONE), &other[..ALONE]);
    }
    end.write_all(&own[..ALONE]).unwrap();
    if number == 1 {
        assert_same(&read_exactly(&mut end, ALONE), &other[..ALONE]);
    }
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&end, &own[ALONE..]));
        assert_same(&read_all(&end), &other[ALONE..]);
    });
}

/// Relays between an end of TLS that is the target, and a client of any kind.
fn talk_with_target(program: &Program, server: &Server, pair: Option<&Pair>, size: usize) {
    thread::scope(|scope| {
        scope.spawn(|| talk_as_tls_end(&mut server.accept(), size, 2, false));
        match pair {
            None => talk_as_plain_end(program.connect(), size, 1),
            Some(pair) => {
                let mut client = Client::connect(program, &Config::new(pair).versions(TLS13)).unwrap();
                talk_as_tls_end(&mut client, size, 1, false);
            }
        }
    });
}

fn refused(program: &Program) -> u64 {
    program.sum("spliceway_kernel_tls_total", &["result=\"refused\""])
}

#[test]
fn a_target_whose_socket_the_kernel_refuses_continues_exactly() {
    if !refuses_sockets() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let authority = Authority::new("Test CA");
    let (issued, ca) = (authority.issue(&["127.0.0.1"]), authority.file());
    for ends_client_tls in [false, true] {
        let server = Server::speaking(&issued, Speaks { versions: TLS13, ..ANY });
        let target = server.target();
        let of_client = pair.arguments();
        let mut more = vec!["--target-tls-ca", ca.path()];
        if ends_client_tls {
            more.extend(of_client);
        }
        let after = ("SPLICEWAY_TEST_KTLS_AFTER", "200000");
        let program = Program::start_with(&[PROBED, after], &arguments(&target, &more));
        talk_with_target(&program, &server, ends_client_tls.then_some(&pair), LARGE);
        assert_eq!(refused(&program), 1 + u64::from(ends_client_tls));
    }
}

#[test]
fn a_client_of_tls_1_2_stays_in_user_space() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let after = ("SPLICEWAY_TEST_KTLS_AFTER", "0");
    let program = Program::start_with(&[PROBED, after], &arguments(&target.to_string(), &pair.arguments()));
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS12)).unwrap();
    let target = accept(&listener);
    client.send(b"question");
    client.finish();
    assert_eq!(read_all(&target), b"question");
    send_and_finish(&target, b"answer");
    assert_eq!(client.rest().unwrap(), b"answer");
    assert_eq!(program.sum("spliceway_kernel_tls_total", &["result=\"version\""]), 1);
}

#[test]
fn a_client_in_the_kernel_gets_and_sends_every_byte() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    for (after, splice) in [("1", "auto"), ("100000", "on"), ("250000", "off")] {
        let more = [&pair.arguments()[..], &["--splice", splice]].concat();
        let Some(mut program) = switching(&target.to_string(), after, &more) else {
            return;
        };
        for updates in 0..3 {
            let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
            let target = accept(&listener);
            thread::scope(|scope| {
                scope.spawn(|| talk_as_plain_end(target, SOME, 2));
                talk_as_tls_end(&mut client, SOME, 1, updates > 0);
            });
            let record = program.line("bytes_up=").replace('"', "");
            let counts = format!(" bytes_up={SOME} bytes_down={SOME} ");
            for field in [" kernel_tls=client ", &counts, "_eof", " tls=1.3 "] {
                assert!(record.contains(field), "{field}: {record}");
            }
            assert!(!record.contains("truncated="), "{record}");
        }
        assert_eq!(switched(&program), 3);
    }
}

#[test]
fn a_target_in_the_kernel_gets_and_sends_every_byte() {
    let pair = Pair::new(&["a.test"]);
    let authority = Authority::new("Test CA");
    let (issued, ca) = (authority.issue(&["127.0.0.1"]), authority.file());
    for ends_client_tls in [false, true] {
        let server = Server::speaking(&issued, Speaks { versions: TLS13, ..ANY });
        let of_client = pair.arguments();
        let mut more = vec!["--target-tls-ca", ca.path()];
        if ends_client_tls {
            more.extend(of_client);
        }
        let Some(mut program) = switching(&server.target(), "100000", &more) else {
            return;
        };
        talk_with_target(&program, &server, ends_client_tls.then_some(&pair), SOME);
        let record = program.line("bytes_up=").replace('"', "");
        let sides = if ends_client_tls { "both" } else { "target" };
        assert!(record.contains(&format!(" kernel_tls={sides} ")), "{record}");
        assert_eq!(switched(&program), 1 + u64::from(ends_client_tls));
    }
}

/// Exchanges messages, so that both sides are between two records.
fn talk(client: &mut Client, target: &mut TcpStream) {
    for _ in 0..3 {
        client.send(b"question");
        assert_eq!(read_exactly(target, 8), b"question");
        target.write_all(b"answer").unwrap();
        assert_eq!(client.receive(6), b"answer");
    }
}

#[test]
fn a_client_in_the_kernel_that_ends_badly_is_no_regular_end() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let Some(mut program) = switching(&target.to_string(), "1", &pair.arguments()) else {
        return;
    };
    for is_reset in [false, true] {
        let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
        let mut target = accept(&listener);
        talk(&mut client, &mut target);
        let socket = client.into_socket();
        if is_reset {
            SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(socket);
        let read = target.read(&mut [0; 9]);
        if is_reset {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
        } else {
            assert_eq!(read.unwrap(), 0);
        }
        drop(target);
        let record = program.line("bytes_up=").replace('"', "");
        assert!(record.contains(" kernel_tls=client "), "{record}");
        assert_eq!(record.contains(" truncated=yes"), !is_reset, "{record}");
        assert_eq!(record.contains("end=reset_by_client"), is_reset, "{record}");
    }
}

#[test]
fn a_reset_of_the_target_reaches_a_client_in_the_kernel() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let Some(mut program) = switching(&target.to_string(), "1", &pair.arguments()) else {
        return;
    };
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
    let mut target = accept(&listener);
    talk(&mut client, &mut target);
    SockRef::from(&target).set_linger(Some(Duration::ZERO)).unwrap();
    drop(target);
    let error = client.rest().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let record = program.line("bytes_up=").replace('"', "");
    assert!(record.contains(" kernel_tls=client "), "{record}");
    assert!(record.contains("end=reset_by_upstream"), "{record}");
}

#[test]
fn a_cut_stream_stays_cut_between_two_ends_in_the_kernel() {
    let pair = Pair::new(&["a.test"]);
    let authority = Authority::new("Test CA");
    let (issued, ca) = (authority.issue(&["127.0.0.1"]), authority.file());
    let server = Server::speaking(&issued, Speaks { versions: TLS13, ..ANY });
    let more = [&pair.arguments()[..], &["--target-tls-ca", ca.path()]].concat();
    let Some(mut program) = switching(&server.target(), "1", &more) else {
        return;
    };
    for is_announced in [true, false] {
        let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
        let mut target = server.accept();
        for _ in 0..3 {
            client.send(b"question");
            assert_eq!(target.receive(8), b"question");
            target.send(b"answer");
            assert_eq!(client.receive(6), b"answer");
        }
        if is_announced {
            client.finish();
            assert_eq!(target.rest().unwrap(), b"");
            drop(target);
            drop(client);
        } else {
            drop(client.into_socket());
            assert_eq!(target.rest().unwrap_err().kind(), ErrorKind::UnexpectedEof);
            drop(target);
        }
        let record = program.line("bytes_up=").replace('"', "");
        assert!(record.contains(" kernel_tls=both "), "{record}");
        assert_eq!(record.contains(" truncated=yes"), !is_announced, "{record}");
    }
}
