//! The sockets below hyper's upgraded connections. Each peer sends bytes together with its part of
//! the handshake: the near peer after its CONNECT, and the far peer after its answer.
//!
//! ```text
//!   near ── CONNECT, bytes ─▶ hyper's server │ relay │ hyper's client ◀─ 200, bytes ── far
//! ```

use std::cell::Cell;
use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, Response, client, server, service::service_fn};
use hyper_util::rt::TokioIo;
use spliceway::{Relay, RelayOptions, RelaySummary, upgraded};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::UnixStream;

use crate::support::pattern::Pattern;
use crate::support::{BULK, Duplex, guard, tcp};

/// The number of bytes that each peer sends with its part of the handshake, in one write that hyper
/// reads in one call.
const EARLY: u64 = 1000;
/// At least this many of the 24 MiB are spliced, once the relay has recognised the flow as bulk.
const SPLICED: u64 = BULK / 2;

type Parts<S> = (S, Bytes);

#[tokio::test]
async fn bytes_after_a_tcp_handshake_arrive_first_and_once_and_bulk_is_spliced() {
    for swapped in [false, true] {
        let (near, far) = (tcp().await, tcp().await);
        let done = guard(tunnel(near, far, swapped, |upgraded| {
            upgraded::into_tcp(upgraded).unwrap()
        }))
        .await;
        assert!(
            done.a_to_b.spliced > SPLICED && done.b_to_a.spliced > SPLICED,
            "{done:?}"
        );
    }
}

#[tokio::test]
async fn bytes_after_a_unix_handshake_arrive_first_and_once() {
    for swapped in [false, true] {
        let (near, far) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let take = |upgraded| {
            let upgraded = upgraded::into_tcp(upgraded).expect_err("it is a Unix socket");
            upgraded::into_unix(upgraded).unwrap()
        };
        let done = guard(tunnel(near, far, swapped, take)).await;
        assert!(
            done.a_to_b.spliced > SPLICED && done.b_to_a.spliced > SPLICED,
            "{done:?}"
        );
    }
}

#[tokio::test]
async fn a_connection_that_is_not_a_socket_is_returned_whole_and_relays() {
    for swapped in [false, true] {
        let (near, far): ((DuplexStream, _), (DuplexStream, _)) = (duplex(1 << 16), duplex(1 << 16));
        let give_back = |upgraded| {
            let upgraded = upgraded::into_tcp(upgraded).expect_err("it is no socket");
            let upgraded = upgraded::into_unix(upgraded).expect_err("it is no socket");
            (TokioIo::new(upgraded), Bytes::new())
        };
        let done = guard(tunnel(near, far, swapped, give_back)).await;
        assert_eq!((done.a_to_b.spliced, done.b_to_a.spliced), (0, 0));
    }
}

/// Upgrades both connections and relays between the streams that `take` returns. Checks each stream
/// from its first byte to its end.
async fn tunnel<S: Duplex + 'static, T: Duplex>(
    (mut near, near_end): (S, S),
    (mut far, far_end): (S, S),
    swapped: bool,
    take: impl Fn(Upgraded) -> Parts<T>,
) -> RelaySummary {
    let (mut forth, mut back) = (Pattern::new(1), Pattern::new(2));
    let request = [
        b"CONNECT a.test:1 HTTP/1.1\r\nHost: a.test\r\n\r\n",
        &forth.take(EARLY as usize)[..],
    ]
    .concat();
    near.write_all(&request).await.unwrap();
    let client = accept_connect(near_end).await;
    let agree = async {
        read_head(&mut far).await;
        let agreed = [b"HTTP/1.1 200 OK\r\n\r\n", &back.take(EARLY as usize)[..]].concat();
        far.write_all(&agreed).await.unwrap();
    };
    let (server, ()) = tokio::join!(send_connect(far_end), agree);
    read_head(&mut near).await;

    let ((client, client_early), (server, server_early)) = (take(client), take(server));
    let relay = async {
        let relayed = if swapped {
            Relay::with_options(
                server,
                client,
                RelayOptions::new()
                    .a_to_b_prefix(server_early)
                    .b_to_a_prefix(client_early),
            )
            .await
        } else {
            Relay::with_options(
                client,
                server,
                RelayOptions::new()
                    .a_to_b_prefix(client_early)
                    .b_to_a_prefix(server_early),
            )
            .await
        };
        relayed.unwrap()
    };
    let near = talk(near, forth, Pattern::new(2));
    let far = talk(far, back, Pattern::new(1));
    let (done, (), ()) = tokio::join!(relay, near, far);
    assert_eq!((done.a_to_b.bytes, done.b_to_a.bytes), (EARLY + BULK, EARLY + BULK));
    done
}

/// Runs one peer after its handshake: sends the rest of its stream, and receives the whole stream
/// of the other peer.
async fn talk(stream: impl Duplex, mut own: Pattern, other: Pattern) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let send = async {
        own.send(&mut writer, BULK).await;
        writer.shutdown().await.unwrap();
    };
    tokio::join!(send, other.expect_end(&mut reader, EARLY + BULK));
}

/// Runs a server that accepts the first request on `stream`, which is CONNECT.
async fn accept_connect(stream: impl Duplex + 'static) -> Upgraded {
    let upgrade: Cell<Option<OnUpgrade>> = Cell::new(None);
    let agree = service_fn(|request: Request<_>| {
        assert_eq!(request.method(), Method::CONNECT);
        upgrade.set(Some(hyper::upgrade::on(request)));
        ready(Ok::<_, Infallible>(Response::new(String::new())))
    });
    let connection = server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), agree);
    connection.with_upgrades().await.unwrap();
    upgrade.take().expect("a request was served").await.unwrap()
}

/// Runs a client that asks for a tunnel on `stream`, and gets it.
async fn send_connect(stream: impl Duplex + 'static) -> Upgraded {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let request = Request::connect("b.test:1").body(String::new()).unwrap();
    let ask = async {
        let response = sender.send_request(request).await.unwrap();
        hyper::upgrade::on(response).await.unwrap()
    };
    let (upgraded, ended) = tokio::join!(ask, connection.with_upgrades());
    ended.unwrap();
    upgraded
}

/// Reads a message head, and not one byte more.
async fn read_head(stream: &mut impl Duplex) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
}
