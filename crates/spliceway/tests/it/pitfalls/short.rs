//! Short writes, small messages, bursts, and chains of relays. All bytes arrive immediately, and
//! most bulk is spliced.

use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_send_buffer_size;
use spliceway::{Engine, PipePool, Relay, RelayOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::support::pattern::{Loop, Pattern};
use crate::support::rig::{both_ways, both_ways_and_engines, limits};
use crate::support::{Duplex, KIB, MIB, finish, guard, tcp};

/// Sends in both directions through a relay. The peers read small pieces of odd sizes.
async fn in_little_pieces(near: impl Duplex, far: impl Duplex, bytes: u64) {
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (tokio::io::split(near), tokio::io::split(far));
    let send = async |out: &mut tokio::io::WriteHalf<_>, seed| {
        Pattern::new(seed).send(out, bytes).await;
        out.shutdown().await.unwrap();
    };
    let send_back = async |out: &mut tokio::io::WriteHalf<_>, seed| {
        Pattern::new(seed).send(out, bytes).await;
        out.shutdown().await.unwrap();
    };
    tokio::join!(
        send(&mut near_out, 1),
        send_back(&mut far_out, 2),
        read_little(&mut far_in, 1, bytes),
        read_little(&mut near_in, 2, bytes)
    );
}

async fn read_little(from: &mut (impl tokio::io::AsyncRead + Unpin), seed: u64, bytes: u64) {
    let mut wanted = Pattern::new(seed);
    let mut buf = [0; 3001];
    loop {
        // Reads 1, 1001, 2001 or 3001 bytes, and never a whole page.
        let most = (wanted.at() % 4) as usize * 1000 + 1;
        match from.read(&mut buf[..most]).await.unwrap() {
            0 => break,
            got => wanted.check(&buf[..got]),
        }
    }
    assert_eq!(wanted.at(), bytes);
}

#[tokio::test]
async fn sinks_that_accept_few_bytes_at_a_time_get_every_byte() {
    const BYTES: u64 = MIB / 2;
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        for swapped in [false, true] {
            let pool = PipePool::new(limits());
            let ((near, a), (far, b)) = (tcp().await, tcp().await);
            for end in [&a, &b] {
                // The kernel raises this to its minimum, 4,608 bytes. So each drain of a pipe needs
                // many calls.
                set_socket_send_buffer_size(end, 1).unwrap();
            }
            let (a, b) = if swapped { (b, a) } else { (a, b) };
            let relay = tokio::spawn(Relay::with_options(
                a,
                b,
                RelayOptions::new().engine(engine).pool(&pool),
            ));
            guard(in_little_pieces(near, far, BYTES)).await;
            let summary = relay.await.unwrap().unwrap();
            for way in [summary.a_to_b, summary.b_to_a] {
                assert_eq!((way.bytes, way.spliced + way.copied), (BYTES, BYTES));
                assert_eq!(way.spliced > 0, engine != Engine::Copy, "{way:?}");
            }
            let ((near, a), (far, b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
            for end in [&a, &b] {
                set_socket_send_buffer_size(end, 1).unwrap();
            }
            let relay = tokio::spawn(Relay::with_options(
                a,
                b,
                RelayOptions::new().engine(engine).pool(&pool),
            ));
            guard(in_little_pieces(near, far, BYTES)).await;
            let summary = relay.await.unwrap().unwrap();
            assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (BYTES, BYTES));
            assert_eq!(pool.stats().lent, 0);
        }
    }
}

#[tokio::test]
async fn a_request_and_its_answer_of_any_size_take_no_delayed_acknowledgement() {
    const TRIPS: usize = 20;
    for bytes in [1, 100, 1400, 16 * KIB, 64 * KIB] {
        both_ways_and_engines(async |setup| {
            let mut rig = setup.start().await;
            let (mut asked, mut question) = (Pattern::new(3), Pattern::new(3));
            let (mut said, mut answer) = (Pattern::new(4), Pattern::new(4));
            let mut took = Vec::new();
            for _ in 0..TRIPS {
                let start = Instant::now();
                tokio::join!(asked.send(&mut rig.near, bytes), question.expect(&mut rig.far, bytes));
                tokio::join!(said.send(&mut rig.far, bytes), answer.expect(&mut rig.near, bytes));
                took.push(start.elapsed());
            }
            took.sort_unstable();
            // The peers and the relay share this thread. Load may lengthen a round trip, but it
            // does not add 40 or 200 ms to every second one.
            assert!(took[TRIPS / 2] < Duration::from_millis(20), "{bytes} bytes: {took:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_sender_that_pauses_after_each_burst_is_spliced_to_95_percent() {
    const BURST: u64 = 256 * KIB;
    const BURSTS: u64 = 64;
    both_ways(async |setup| {
        let mut rig = setup.start().await;
        let (mut sent, mut wanted) = (Pattern::new(5), Pattern::new(5));
        for _ in 0..BURSTS {
            tokio::join!(sent.send(&mut rig.near, BURST), wanted.expect(&mut rig.far, BURST));
            // Waits until the relay has probed for more and sleeps.
            crate::support::turns(3).await;
        }
        let forth = rig.relay.moved().forth;
        assert_eq!(forth.bytes, BURSTS * BURST);
        assert!(forth.spliced * 100 >= forth.bytes * 95, "{forth:?}");
    })
    .await;
}

#[tokio::test]
async fn a_chain_of_relays_splices_in_every_link() {
    const LINKS: usize = 4;
    const BYTES: u64 = 16 * MIB;
    for engine in [Engine::Auto, Engine::Splice] {
        let pool = PipePool::new(limits());
        let (near, mut end) = tcp().await;
        let mut links = Vec::new();
        let far = loop {
            let (next_near, next_end): (TcpStream, TcpStream) = tcp().await;
            // The order of a relay's ends alternates from link to link.
            let (a, b) = if links.len() % 2 == 0 {
                (end, next_near)
            } else {
                (next_near, end)
            };
            let options = RelayOptions::new().engine(engine).pool(&pool);
            links.push(tokio::spawn(Relay::with_options(a, b, options)));
            if links.len() == LINKS {
                break next_end;
            }
            end = next_end;
        };
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
        let send = async |out: &mut tokio::net::tcp::OwnedWriteHalf, seed| {
            Pattern::new(seed).send(out, BYTES).await;
            finish(out.as_ref());
        };
        guard(async {
            tokio::join!(
                send(&mut near_out, 6),
                send(&mut far_out, 7),
                Pattern::new(6).expect_end(&mut far_in, BYTES),
                Pattern::new(7).expect_end(&mut near_in, BYTES)
            )
        })
        .await;
        for link in links {
            let summary = link.await.unwrap().unwrap();
            for way in [summary.a_to_b, summary.b_to_a] {
                assert_eq!(way.bytes, BYTES);
                assert!(way.spliced > BYTES / 2, "{way:?}");
            }
        }
        assert_eq!(pool.stats().lent, 0);
    }
}

/// `cargo xtask soak` does this for hours. This test is its first second.
#[tokio::test]
async fn half_a_gibibyte_on_one_connection_at_equal_speeds_arrives() {
    const BYTES: u64 = 512 * MIB;
    both_ways(async |setup| {
        let mut rig = setup.start().await;
        let mut sent = Loop::new(8);
        let mut wanted = sent.clone();
        tokio::join!(sent.send(&mut rig.near, BYTES), wanted.expect(&mut rig.far, BYTES));
        drop(rig.near);
        assert_eq!(rig.far.read(&mut [0]).await.unwrap(), 0);
        drop(rig.far);
        let forth = rig.relay.end().await.forth;
        assert_eq!(forth.bytes, BYTES);
        assert!(forth.spliced * 100 >= forth.bytes * 95, "{forth:?}");
    })
    .await;
}
