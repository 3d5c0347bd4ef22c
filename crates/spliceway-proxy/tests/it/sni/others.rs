//! Old TLS clients, and clients that do not speak TLS at all.

use std::io::Write;
use std::net::Shutdown;

use super::{alert, extension, long, named, router, send};
use crate::harness::{accept, assert_same, connect, is_closed, listen, read_all, read_exactly, was_reached};

/// Returns a hello of this version in a record of that version, with these extensions.
fn old(record: u8, version: u8, extensions: &[u8]) -> Vec<u8> {
    let end = if extensions.is_empty() {
        Vec::new()
    } else {
        long(extensions)
    };
    let body = [&[3, version][..], &[7; 32], &[0], &long(&[0, 5]), &[2, 1, 0], &end].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[22, 3, record][..], &long(&[&[1][..], &length[1..], &body].concat())].concat()
}

/// The first bytes of clients that do not speak TLS.
const WITHOUT_TLS: [&[u8]; 5] = [
    b"SSH-2.0-OpenSSH_9.2p1\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x05\x01\x00",
    b"\x15\x03\x01\0\x02\x02\x28",
    b"\x16",
];

#[test]
fn old_tls_clients_reach_the_target_of_their_name() {
    let (listener, target) = listen();
    let (others, default) = listen();
    let name = extension(0, &long(&[&[0][..], &long(b"example.com")].concat()));
    let program = router(&[("example.com", target)], &["--default-target", &default.to_string()]);
    for (sent, is_named) in [
        // SSL 3.0.
        (old(0, 0, &[]), false),
        // TLS 1.0.
        (old(1, 1, &name), true),
        // TLS 1.1.
        (old(0, 2, &name), true),
        // TLS 1.2 without signature_algorithms.
        (old(1, 3, &name), true),
        (
            // A hello of SSL 2.0.
            [&[0x80, 46, 1, 3, 1, 0, 21, 0, 0, 0, 16][..], &[7; 37]].concat(),
            false,
        ),
        // no name.
        (named(""), false),
    ] {
        let _client = send(&program, &sent);
        let mut target = accept(if is_named { &listener } else { &others });
        assert_same(&read_exactly(&mut target, sent.len()), &sent);
        drop(target);
    }
    assert!(!was_reached(&listener) && !was_reached(&others));
}

#[test]
fn clients_without_tls_have_their_own_target_or_the_default_or_none() {
    let (secure, route) = listen();
    let (plain, not_tls) = listen();
    let (rest, default) = listen();
    let to_plain = [
        "--not-tls",
        &not_tls.to_string(),
        "--default-target",
        &default.to_string(),
    ];
    for (arguments, expected) in [
        (&to_plain[..], Some(&plain)),
        (&to_plain[2..], Some(&rest)),
        (&[], None),
    ] {
        let program = router(&[("example.com", route)], arguments);
        for sent in WITHOUT_TLS {
            let mut client = send(&program, sent);
            client.shutdown(Shutdown::Write).unwrap();
            // One byte of a record could still be TLS.
            let is_undecided = sent.len() == 1;
            let Some(expected) = expected.filter(|_| !is_undecided) else {
                assert!(is_closed(&mut client), "{}", sent.escape_ascii());
                continue;
            };
            let target = accept(expected);
            assert_same(&read_all(&target), sent);
            (&target).write_all(b"answer").unwrap();
            drop(target);
            assert_eq!(read_all(&client), b"answer");
        }
        let refused = if expected.is_some() { 0 } else { 4 };
        program.await_sum("spliceway_refused_total", &["tls_missing"], refused);
        assert_eq!(program.sum("spliceway_refused_total", &["tls_missing"]), refused);
        // TLS clients without a route do not get there.
        let refusal = read_all(&send(
            &router(&[("example.com", route)], &["--not-tls", &not_tls.to_string()]),
            &named("a.test"),
        ));
        assert_eq!(refusal, alert(112));
    }
    assert!(
        [&secure, &plain, &rest]
            .into_iter()
            .all(|listener| !was_reached(listener))
    );
}

#[test]
fn bytes_of_a_client_without_tls_arrive_whole_however_they_are_cut() {
    let (plain, not_tls) = listen();
    let (_secure, route) = listen();
    let program = router(
        &[("example.com", route)],
        &["--not-tls", &not_tls.to_string(), "--send-proxy", "v1"],
    );
    for sent in &WITHOUT_TLS[..4] {
        for cut in 1..sent.len() {
            let client = connect(program.address);
            client.set_nodelay(true).unwrap();
            (&client).write_all(&sent[..cut]).unwrap();
            (&client).write_all(&sent[cut..]).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let received = read_all(&accept(&plain));
            assert!(
                received.starts_with(b"PROXY TCP4 127.0.0.1 "),
                "{}",
                received.escape_ascii()
            );
            let head = received.windows(2).position(|end| end == b"\r\n").unwrap() + 2;
            assert_same(&received[head..], sent);
        }
    }
}

#[test]
fn a_silent_client_gets_the_server_that_speaks_first() {
    let (plain, not_tls) = listen();
    let (_secure, route) = listen();
    let patience = ["--handshake-timeout", "50ms"];
    let program = router(
        &[("example.com", route)],
        &[&["--not-tls", &not_tls.to_string()], &patience[..]].concat(),
    );
    let client = program.connect();
    let mut server = accept(&plain);
    server.write_all(b"220 ready").unwrap();
    let mut client = client;
    assert_eq!(read_exactly(&mut client, 9), b"220 ready");
    client.write_all(b"QUIT").unwrap();
    assert_eq!(read_exactly(&mut server, 4), b"QUIT");
    // A TLS client that is slow is no silent client.
    assert!(is_closed(&mut send(&program, &named("example.com")[..40])));
    program.await_sum("spliceway_refused_total", &["handshake_timeout"], 1);
    // A TLS server would wait, too.
    let (rest, default) = listen();
    let program = router(
        &[("example.com", route)],
        &[&["--default-target", &default.to_string()], &patience[..]].concat(),
    );
    assert!(is_closed(&mut program.connect()));
    program.await_sum("spliceway_refused_total", &["handshake_timeout"], 1);
    assert!(!was_reached(&rest) && !was_reached(&plain));
}
