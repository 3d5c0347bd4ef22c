//! A relay reads exactly as many bytes as its limit allows. Afterwards, the caller can use both
//! streams again.

use spliceway::{Engine, Relay, RelayOptions, RelaySummary};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, BufStream};
use tokio::net::TcpStream;

use crate::support::pattern::Pattern;
use crate::support::{KIB, MIB, finish, guard, tcp};

const ENGINES: [Engine; 3] = [Engine::Auto, Engine::Splice, Engine::Copy];

/// The number of bytes that the source sends before it ends.
const STREAM: u64 = 3 * MIB + 77;

/// Returns a socket whose peer sends the stream of this seed, and then its end.
async fn streaming(seed: u64) -> TcpStream {
    let (mut client, source) = tcp().await;
    tokio::spawn(async move {
        Pattern::new(seed).send(&mut client, STREAM).await;
        finish(&client);
        // The connection stays open until the test is over, so that the relay sees the end that the
        // peer has sent.
        std::future::pending::<()>().await;
    });
    source
}

/// Relays from `source` to `sink`, and nothing back. The source is `a`, or `b` if `swapped`.
async fn limited(
    source: &mut TcpStream,
    sink: &mut TcpStream,
    limit: u64,
    engine: Engine,
    swapped: bool,
) -> RelaySummary {
    let relayed = if swapped {
        Relay::with_options(
            sink,
            source,
            RelayOptions::new().a_to_b_limit(0).b_to_a_limit(limit).engine(engine),
        )
        .await
    } else {
        Relay::with_options(
            source,
            sink,
            RelayOptions::new().a_to_b_limit(limit).b_to_a_limit(0).engine(engine),
        )
        .await
    };
    let mut summary = relayed.unwrap();
    if swapped {
        std::mem::swap(&mut summary.a_to_b, &mut summary.b_to_a);
    }
    summary
}

/// Runs a scenario with every engine, and with the source as `a` and as `b`.
async fn every_way(mut scenario: impl AsyncFnMut(Engine, bool)) {
    for engine in ENGINES {
        for swapped in [false, true] {
            guard(scenario(engine, swapped)).await;
        }
    }
}

/// The limits are below, around and above the size of a receive, and close to the length of the
/// stream.
#[tokio::test]
async fn the_bytes_after_a_limit_can_be_read_afterwards() {
    for limit in [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB, STREAM - 1, STREAM] {
        every_way(async |engine, swapped| {
            let (mut source, (mut sink, mut server)) = (streaming(1).await, tcp().await);
            let mut wanted = Pattern::new(1);
            let relay = limited(&mut source, &mut sink, limit, engine, swapped);
            let (summary, ()) = tokio::join!(relay, wanted.expect(&mut server, limit));
            assert_eq!(summary.a_to_b.bytes, limit, "{engine:?}");
            assert!(!summary.a_to_b.eof, "at its limit, not at its end: {engine:?} {limit}");
            if engine == Engine::Splice && limit >= MIB {
                assert!(summary.a_to_b.spliced > limit / 2, "{summary:?}");
            }
            wanted.expect_end(&mut source, STREAM).await;
            // The sink's stream has not ended.
            let mut more = Pattern::new(2);
            more.send(&mut sink, 1000).await;
            Pattern::new(2).expect(&mut server, 1000).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_limit_above_the_stream_changes_nothing() {
    every_way(async |engine, swapped| {
        let (mut source, (mut sink, mut server)) = (streaming(3).await, tcp().await);
        let relay = limited(&mut source, &mut sink, STREAM + 1, engine, swapped);
        let ((), summary) = tokio::join!(Pattern::new(3).expect_end(&mut server, STREAM), relay);
        assert_eq!((summary.a_to_b.bytes, summary.a_to_b.eof), (STREAM, true), "{engine:?}");
    })
    .await;
}

#[tokio::test]
async fn a_limit_on_a_stream_that_has_ended_is_an_end() {
    every_way(async |engine, swapped| {
        let ((client, mut source), (mut sink, mut server)) = (tcp().await, tcp().await);
        finish(&client);
        let summary = limited(&mut source, &mut sink, 10, engine, swapped).await;
        assert_eq!((summary.a_to_b.bytes, summary.a_to_b.eof), (0, true), "{engine:?}");
        Pattern::new(4).expect_end(&mut server, 0).await;
    })
    .await;
}

/// Runs one relay after another on the same streams, each with its own limit, as for a protocol
/// with length fields.
#[tokio::test]
async fn limits_in_a_row_cut_a_stream_into_pieces_without_a_seam() {
    every_way(async |engine, swapped| {
        let (mut source, (mut sink, mut server)) = (streaming(5).await, tcp().await);
        let relays = async {
            let mut total = 0;
            for piece in [1, 1000, 200 * KIB, 0, 64 * KIB, MIB].into_iter().cycle() {
                let summary = limited(&mut source, &mut sink, piece, engine, swapped).await;
                total += summary.a_to_b.bytes;
                if summary.a_to_b.eof {
                    return total;
                }
            }
            unreachable!("the stream ends")
        };
        let ((), total) = tokio::join!(Pattern::new(5).expect_end(&mut server, STREAM), relays);
        assert_eq!(total, STREAM);
    })
    .await;
}

#[tokio::test]
async fn buffered_bytes_count_and_those_beyond_the_limit_stay_buffered() {
    for limit in [0, 10, 100, 150] {
        let ((mut client, source), (mut sink, mut server)) = (tcp().await, tcp().await);
        let mut wanted = Pattern::new(6);
        Pattern::new(6).send(&mut client, 100).await;
        let mut source = BufReader::new(source);
        while source.buffer().len() < 100 {
            source.fill_buf().await.unwrap();
        }
        let mut rest = Pattern::new(6);
        rest.take(100);
        rest.send(&mut client, 900).await;
        let relay = Relay::with_options(
            &mut source,
            &mut sink,
            RelayOptions::new().a_to_b_limit(limit).b_to_a_limit(0),
        );
        assert_eq!(guard(relay).await.unwrap().a_to_b.bytes, limit);
        wanted.expect(&mut server, limit).await;
        finish(&client);
        wanted.expect_end(&mut source, 1000).await;
    }
}

#[tokio::test]
async fn bytes_in_a_buf_stream_beyond_the_limit_stay_in_it() {
    let ((mut client, source), (mut sink, mut server)) = (tcp().await, tcp().await);
    let mut wanted = Pattern::new(7);
    Pattern::new(7).send(&mut client, 100).await;
    finish(&client);
    let mut source = BufStream::new(source);
    for limit in [30, 0, 50] {
        let relay = Relay::with_options(
            &mut source,
            &mut sink,
            RelayOptions::new().a_to_b_limit(limit).b_to_a_limit(0),
        );
        assert_eq!(guard(relay).await.unwrap().a_to_b.bytes, limit);
        wanted.expect(&mut server, limit).await;
    }
    wanted.expect_end(&mut source, 100).await;
}

#[tokio::test]
async fn streams_that_are_not_sockets_have_the_same_limits() {
    for limit in [0, 1, 8 * KIB, 20_000] {
        let ((mut client, mut source), (mut sink, mut server)) =
            (tokio::io::duplex(32 << 10), tokio::io::duplex(32 << 10));
        let mut wanted = Pattern::new(8);
        let send = async {
            Pattern::new(8).send(&mut client, 20_000).await;
            drop(client);
        };
        let relay = async {
            let relay = Relay::with_options(
                &mut source,
                &mut sink,
                RelayOptions::new().a_to_b_limit(limit).b_to_a_limit(0),
            );
            let summary = relay.await.unwrap();
            assert_eq!(summary.a_to_b.bytes, limit);
            wanted.expect(&mut server, limit).await;
            let mut rest = Vec::new();
            source.read_to_end(&mut rest).await.unwrap();
            wanted.check(&rest);
            assert_eq!(wanted.at(), 20_000);
        };
        guard(async { tokio::join!(send, relay) }).await;
    }
}
