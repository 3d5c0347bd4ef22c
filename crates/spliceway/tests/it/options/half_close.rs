use rustix::net::sockopt;
use spliceway::{EndReason, Engine, HalfClose, Relay, RelayOptions};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;

use super::{Done, Line, every_way};
use crate::support::pattern::Pattern;
use crate::support::{KIB, MIB, finish, guard, send_urgent, tcp, tcp_small, turns};

#[tokio::test]
async fn an_end_is_passed_on_and_the_other_direction_continues() {
    every_way(async |variant| {
        let Line {
            mut near,
            mut far,
            relay,
        } = variant.start(RelayOptions::new().half_close(HalfClose::Propagate));
        let scenario = async {
            finish(&near);
            Pattern::new(1).expect_end(&mut far, 0).await;
            let mut answer = Pattern::new(2);
            tokio::join!(answer.send(&mut far, 8 * MIB), async {
                Pattern::new(2).expect(&mut near, 8 * MIB).await;
            });
            finish(&far);
            let done = relay.end().await;
            assert_eq!((done.end, done.back.bytes), (EndReason::Ended, 8 * MIB));
            assert!(done.forth.eof && done.back.eof);
        };
        guard(scenario).await;
    })
    .await;
}

/// One stream ends while the other direction is stuck in the middle of its stream. The bytes that
/// its source has received by then still arrive.
#[tokio::test]
async fn closing_both_at_the_first_end_delivers_all_received_bytes() {
    every_way(async |variant| {
        let ((mut near, mut near_end), (mut far, mut far_end)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        // The relay's socket to the near peer accepts few bytes at a time. So most of the far
        // peer's bytes are still in the relay's other socket when the near peer ends.
        sockopt::set_socket_send_buffer_size(&near_end, 8 << 10).unwrap();
        let (a, b) = if variant.swapped {
            (&mut far_end, &mut near_end)
        } else {
            (&mut near_end, &mut far_end)
        };
        let relay = Relay::with_options(
            a,
            b,
            RelayOptions::new()
                .engine(variant.engine)
                .half_close(HalfClose::CloseBoth),
        );
        // This is less than a socket holds, so that all bytes are there before the end. It is also
        // more than one receive returns.
        Pattern::new(3).send(&mut far, 150 * KIB).await;
        Pattern::new(4).send(&mut near, 100 * KIB).await;
        finish(&near);
        let forth = Pattern::new(4).expect_end(&mut far, 100 * KIB);
        let back = Pattern::new(3).expect_end(&mut near, 150 * KIB);
        let (summary, (), ()) = guard(async { tokio::join!(relay, forth, back) }).await;
        let done = Done::of(summary.unwrap(), variant.swapped);
        assert_eq!(
            (done.end, done.forth.bytes, done.back.bytes),
            (EndReason::Ended, 100 * KIB, 150 * KIB)
        );
        assert!(done.forth.eof && !done.back.eof, "only one stream has ended");
    })
    .await;
}

/// The other side never stops sending, and the relay does not wait for it.
#[tokio::test]
async fn closing_both_does_not_wait_for_a_sender_without_end() {
    every_way(async |variant| {
        let Line { mut near, far, relay } = variant.start(RelayOptions::new().half_close(HalfClose::CloseBoth));
        let sending = tokio::spawn(async move {
            let (mut far, mut pattern) = (far, Pattern::new(5));
            while far.write_all(&pattern.take(64 << 10)).await.is_ok() {}
        });
        let scenario = async {
            let mut wanted = Pattern::new(5);
            wanted.expect(&mut near, MIB).await;
            finish(&near);
            let broken = wanted.expect_until_broken(&mut near).await;
            assert!(broken.is_none(), "{broken:?}");
            let done = relay.end().await;
            assert_eq!((done.end, done.back.bytes), (EndReason::Ended, wanted.at()));
            assert_eq!(done.back.spliced > 0, variant.splices());
            sending.await.unwrap();
        };
        guard(scenario).await;
    })
    .await;
}

/// If a stream is not a socket, the bytes that it can return immediately count as received.
#[tokio::test]
async fn closing_both_delivers_the_bytes_that_copied_streams_received() {
    for swapped in [false, true] {
        let ((mut near, near_end), (mut far, far_end)) = (tokio::io::duplex(2 << 20), tokio::io::duplex(2 << 20));
        Pattern::new(6).send(&mut far, MIB).await;
        near.shutdown().await.unwrap();
        let (a, b) = if swapped {
            (far_end, near_end)
        } else {
            (near_end, far_end)
        };
        let relay = Relay::with_options(a, b, RelayOptions::new().half_close(HalfClose::CloseBoth));
        let receive = Pattern::new(6).expect_end(&mut near, MIB);
        let (summary, ()) = guard(async { tokio::join!(relay, receive) }).await;
        assert_eq!(Done::of(summary.unwrap(), swapped).back.bytes, MIB);
    }
}

/// The received bytes do not end at an urgent mark.
#[tokio::test]
async fn closing_both_delivers_bulk_around_an_urgent_mark() {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        let ((near, mut near_end), (mut far, mut far_end)) = (tcp_small().await, tcp().await);
        let relay = Relay::with_options(
            &mut near_end,
            &mut far_end,
            RelayOptions::new().engine(engine).half_close(HalfClose::CloseBoth),
        );
        let mut sent = Pattern::new(7);
        sent.send(&mut far, 100 * KIB).await;
        send_urgent(&far).await;
        sent.send(&mut far, 50 * KIB).await;
        finish(&near);
        let mut near = near;
        let receive = Pattern::new(7).expect_end(&mut near, 150 * KIB);
        let (summary, ()) = guard(async { tokio::join!(relay, receive) }).await;
        assert_eq!(summary.unwrap().b_to_a.bytes, 150 * KIB, "{engine:?}");
    }
}

/// The mark stops a receive. In the same poll, the relay finds that the other stream has ended.
#[tokio::test]
async fn closing_both_delivers_bytes_after_an_urgent_mark() {
    for swapped in [false, true] {
        for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
            let ((mut near, near_end), (mut far, far_end)) = (tcp().await, tcp().await);
            let mut sent = Pattern::new(9);
            sent.send(&mut far, 3).await;
            send_urgent(&far).await;
            sent.send(&mut far, 3).await;
            finish(&near);
            for end in [&near_end, &far_end] {
                end.readable().await.unwrap();
            }
            let (a, b) = if swapped {
                (far_end, near_end)
            } else {
                (near_end, far_end)
            };
            let relay = Relay::with_options(
                a,
                b,
                RelayOptions::new().engine(engine).half_close(HalfClose::CloseBoth),
            );
            let receive = Pattern::new(9).expect_end(&mut near, 6);
            let (summary, ()) = guard(async { tokio::join!(relay, receive) }).await;
            assert_eq!(Done::of(summary.unwrap(), swapped).back.bytes, 6, "{engine:?}");
        }
    }
}

/// The other direction ends while a writer holds unflushed bytes, and before the relay has read the
/// reader's buffer.
#[tokio::test]
async fn closing_both_delivers_buffered_bytes() {
    let ((mut near, near_end), (mut far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    Pattern::new(8).send(&mut far, 3000).await;
    let mut far_end = BufReader::new(far_end);
    far_end.fill_buf().await.unwrap();
    // The near peer reads nothing yet, and has no room for the bytes that its writer holds.
    let filling = vec![1; 1 << 20];
    let mut held = 0;
    while let Ok(written) = near_end.try_write(&filling) {
        held += written as u64;
    }
    let mut near_end = BufWriter::new(near_end);
    near_end.write_all(&[2; 100]).await.unwrap();
    finish(&near);
    let relay = Relay::with_options(near_end, far_end, RelayOptions::new().half_close(HalfClose::CloseBoth));
    let receive = async {
        turns(20).await;
        near.read_exact(&mut vec![0; held as usize + 100]).await.unwrap();
        Pattern::new(8).expect_end(&mut near, 3000).await;
    };
    let (summary, ()) = guard(async { tokio::join!(relay, receive) }).await;
    assert_eq!(summary.unwrap().b_to_a.bytes, 3000);
}
