use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use rustix::net::SendFlags;
use spliceway_core::copy;

use crate::support::{self, Family, Socket, assert_same, pattern, tcp_pair};

/// Copies all bytes that `send` writes from one blocking connection to another. Returns the
/// received bytes and the summary.
fn carry(from: Family, to: Family, send: impl FnOnce(&Socket) + Send) -> (Vec<u8>, spliceway_core::DirectionSummary) {
    let ((client, source), (sink, server)) = (from.pair(), to.pair());
    thread::scope(|scope| {
        scope.spawn(move || {
            send(&client);
            client.finish();
        });
        let received = scope.spawn(move || {
            let mut got = Vec::new();
            (&server).read_to_end(&mut got).expect("read");
            got
        });
        let summary = copy(&source, &sink).expect("copied");
        sink.finish();
        (received.join().expect("received"), summary)
    })
}

#[test]
fn sixteen_mib_arrive_byte_for_byte_and_mostly_spliced() {
    let sent = pattern(1, 16 << 20);
    for (from, to) in [
        (Family::Tcp, Family::Tcp),
        (Family::Tcp, Family::Unix),
        (Family::Unix, Family::Tcp),
        (Family::Unix, Family::Unix),
    ] {
        let (got, summary) = carry(from, to, |mut client| client.write_all(&sent).expect("write"));
        assert_same(&got, &sent);
        assert_eq!(summary.bytes, sent.len() as u64);
        assert!(summary.spliced > summary.copied, "{from:?} to {to:?}: {summary:?}");
    }
}

#[test]
fn a_small_message_is_copied() {
    let (got, summary) = carry(Family::Tcp, Family::Tcp, |mut client| {
        client.write_all(b"a message").expect("write");
    });
    assert_same(&got, b"a message");
    assert_eq!((summary.copied, summary.spliced, summary.fallback), (9, 0, None));
}

#[test]
fn an_immediate_end_copies_nothing() {
    for family in Family::BOTH {
        let (got, summary) = carry(family, family, |_| {});
        assert_eq!((got.len(), summary.bytes), (0, 0));
    }
}

#[test]
fn an_urgent_byte_in_the_middle_stalls_nothing_and_cuts_nothing_off() {
    let sent = pattern(2, 4 << 20);
    let (got, _) = carry(Family::Tcp, Family::Tcp, |mut client| {
        let (first, second) = sent.split_at(sent.len() / 2);
        client.write_all(first).expect("write");
        rustix::net::send(client, b"!", SendFlags::OOB).expect("send");
        client.write_all(second).expect("write");
    });
    assert_same(&got, &sent);
}

#[test]
fn data_before_a_reset_is_copied_and_the_reset_is_an_error() {
    let ((client, source), (sink, mut server)) = (tcp_pair(), tcp_pair());
    (&client).write_all(b"bytes").expect("write");
    support::await_queued(&source, 5);
    support::reset(client);
    support::await_ready(&source, rustix::event::PollFlags::empty());
    let error = copy(&source, &sink).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    drop(sink);
    let mut got = Vec::new();
    server.read_to_end(&mut got).expect("read");
    assert_same(&got, b"bytes");
}

#[test]
fn a_sink_that_is_reset_is_an_error() {
    let ((client, source), (sink, server)) = (tcp_pair(), tcp_pair());
    (&client).write_all(b"bytes").expect("write");
    support::reset(server);
    support::await_ready(&sink, rustix::event::PollFlags::empty());
    let error = copy(&source, &sink).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn the_sink_is_left_open() {
    let ((client, source), (mut sink, mut server)) = (tcp_pair(), tcp_pair());
    drop(client);
    copy(&source, &sink).expect("copied");
    sink.write_all(b"more").expect("write");
    let mut got = [0; 4];
    server.read_exact(&mut got).expect("read");
    assert_eq!(&got, b"more");
}

#[test]
fn a_source_that_is_silent_until_its_timeout_gives_would_block() {
    let would_block = |source: &TcpStream| {
        let (sink, _server) = tcp_pair();
        copy(source, &sink).expect_err("nothing to copy").kind()
    };
    let (_client, source) = tcp_pair();
    source
        .set_read_timeout(Some(Duration::from_millis(1)))
        .expect("SO_RCVTIMEO");
    assert_eq!(would_block(&source), io::ErrorKind::WouldBlock);
    let (_client, source) = tcp_pair();
    source.set_nonblocking(true).expect("FIONBIO");
    assert_eq!(would_block(&source), io::ErrorKind::WouldBlock);
}
