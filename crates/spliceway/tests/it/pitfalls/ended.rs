//! Ends and resets.

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::pattern::{Loop, Pattern};
use crate::support::rig::{Rig, both_ways, both_ways_and_engines};
use crate::support::{BULK, KIB, finish, reset, tcp};

/// This fits in the first window of a connection, so all bytes have left the sender before the
/// reset. A reset discards unsent bytes.
const FIRST_FLIGHT: u64 = 40 * KIB;

#[tokio::test]
async fn data_before_a_reset_is_delivered_and_the_reset_is_an_error() {
    for bytes in [9, FIRST_FLIGHT] {
        both_ways_and_engines(async |setup| {
            let pool = spliceway::PipePool::new(setup.limits.clone());
            let (mut laid, relay) = setup.lay_out(pool).await;
            // Everything arrives before the relay starts: first the data, then the reset.
            Pattern::new(1).send(&mut laid.near, bytes).await;
            let (placeholder, _) = tcp().await;
            reset(std::mem::replace(&mut laid.near, placeholder));
            breaks_after(laid.run(relay), Pattern::new(1), bytes).await;
        })
        .await;
    }
}

#[tokio::test]
async fn spliced_data_before_a_reset_is_delivered() {
    both_ways_and_engines(async |setup| {
        let mut rig = setup.start().await;
        let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
        tokio::join!(sent.send(&mut rig.near, BULK), wanted.expect(&mut rig.far, BULK));
        sent.send(&mut rig.near, FIRST_FLIGHT).await;
        let (placeholder, _) = tcp().await;
        reset(std::mem::replace(&mut rig.near, placeholder));
        breaks_after(rig, wanted, BULK + FIRST_FLIGHT).await;
    })
    .await;
}

/// Checks that the far peer receives all bytes. The relay fails with the near peer's reset, and
/// closes the far connection.
async fn breaks_after(rig: Rig, mut wanted: Pattern, bytes: u64) {
    let Rig {
        mut far, relay, pool, ..
    } = rig;
    let told = wanted.expect_until_broken(&mut far).await;
    assert!(told.is_none_or(|error| error.kind() == ErrorKind::ConnectionReset));
    assert_eq!(wanted.at(), bytes);
    let (moved, error) = relay.broken().await;
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(moved.bytes(), (bytes, 0));
    assert!(!moved.forth.eof && !moved.back.eof);
    assert_eq!(pool.stats().lent, 0);
}

#[tokio::test]
async fn a_reset_in_a_splice_run_closes_both_sides_and_its_pipe() {
    both_ways_and_engines(async |setup| {
        let Rig {
            mut near,
            mut far,
            relay,
            pool,
        } = setup.start().await;
        let (mut sent, mut wanted) = (Pattern::new(2), Pattern::new(2));
        tokio::join!(sent.send(&mut near, BULK), wanted.expect(&mut far, BULK));
        assert!(relay.moved().forth.spliced > 0);
        reset(near);
        wanted.expect_until_broken(&mut far).await;
        let (moved, error) = relay.broken().await;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(moved.bytes(), (BULK, 0));
        assert_eq!(pool.stats().lent, 0);
    })
    .await;
}

#[tokio::test]
async fn a_reset_sink_is_an_error_and_only_delivered_bytes_count() {
    both_ways_and_engines(async |setup| {
        let rig = setup.small().start().await;
        let mut sent = Pattern::new(3);
        rig.push_until_stuck(&mut sent, None).await;
        let held = rig.relay.moved();
        let Rig {
            mut near,
            far,
            relay,
            pool,
        } = rig;
        let was_lent = pool.stats().lent;
        assert!(was_lent == 1 || held.forth.spliced == 0, "{held:?}");
        reset(far);
        let (moved, error) = relay.broken().await;
        assert!(
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            "{error:?}"
        );
        assert!(
            moved.forth.bytes < sent.at() && moved.forth.bytes >= held.forth.bytes,
            "{moved:?}"
        );
        let stats = pool.stats();
        assert_eq!(stats.lent, 0, "{stats:?}");
        assert!(stats.closed_dirty >= was_lent as u64, "{stats:?}");
        // The relay had not read all data from the near peer, so its close is a reset.
        let error = near.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    })
    .await;
}

#[tokio::test]
async fn a_reset_of_one_peer_while_the_other_is_idle_ends_the_relay() {
    both_ways_and_engines(async |setup| {
        let Rig {
            mut near,
            mut far,
            relay,
            ..
        } = setup.start().await;
        near.write_all(b"x").await.unwrap();
        far.read_exact(&mut [0]).await.unwrap();
        reset(near);
        let (moved, error) = relay.broken().await;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(moved.bytes(), (1, 0));
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "the other connection is closed");
    })
    .await;
}

#[tokio::test]
async fn immediate_ends_of_both_peers_end_the_relay() {
    for before_the_first_poll in [false, true] {
        both_ways_and_engines(async |setup| {
            let pool = spliceway::PipePool::new(setup.limits.clone());
            let (laid, relay) = setup.lay_out(pool).await;
            if before_the_first_poll {
                finish(&laid.near);
                finish(&laid.far);
            }
            let mut rig = laid.run(relay);
            if !before_the_first_poll {
                crate::support::turns(3).await;
                finish(&rig.near);
                finish(&rig.far);
            }
            assert_eq!(rig.near.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(rig.far.read(&mut [0]).await.unwrap(), 0);
            let moved = rig.relay.end().await;
            assert_eq!(moved.bytes(), (0, 0));
            assert!(moved.forth.eof && moved.back.eof);
        })
        .await;
    }
}

#[tokio::test]
async fn immediate_closes_and_resets_of_both_peers_end_the_relay() {
    both_ways_and_engines(async |setup| {
        let Rig { near, far, relay, .. } = setup.clone().start().await;
        drop((near, far));
        assert_eq!(relay.end().await.bytes(), (0, 0));

        let Rig { near, far, relay, .. } = setup.start().await;
        reset(near);
        reset(far);
        let (moved, error) = relay.broken().await;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(moved.bytes(), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn a_simultaneous_close_after_bulk_loses_nothing() {
    both_ways_and_engines(async |setup| {
        let Rig { near, far, relay, pool } = setup.start().await;
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
        let send = async |out: &mut tokio::net::tcp::OwnedWriteHalf, seed| {
            Pattern::new(seed).send(out, BULK).await;
            finish(out.as_ref());
        };
        tokio::join!(
            send(&mut near_out, 4),
            send(&mut far_out, 5),
            Pattern::new(4).expect_end(&mut far_in, BULK),
            Pattern::new(5).expect_end(&mut near_in, BULK)
        );
        let moved = relay.end().await;
        assert_eq!(moved.bytes(), (BULK, BULK));
        assert!(
            moved.forth.spliced > BULK / 2 && moved.back.spliced > BULK / 2,
            "{moved:?}"
        );
        assert_eq!(pool.stats().lent, 0);
    })
    .await;
}

#[tokio::test]
async fn a_tail_of_any_size_after_a_splice_run_arrives_with_and_without_an_end() {
    for tail in [1, 100, 1448, 16 << 10, (64 << 10) - 1] {
        both_ways_and_engines(async |setup| {
            let mut rig = setup.start().await;
            let (mut sent, mut wanted) = (Pattern::new(6), Pattern::new(6));
            tokio::join!(sent.send(&mut rig.near, BULK), wanted.expect(&mut rig.far, BULK));
            // The tail arrives alone, at an idle relay …
            sent.send(&mut rig.near, tail).await;
            wanted.expect(&mut rig.far, tail).await;
            // … and directly after bulk, followed by the end.
            let bulk_and_tail = async {
                sent.send(&mut rig.near, BULK + tail).await;
                finish(&rig.near);
            };
            tokio::join!(bulk_and_tail, wanted.expect_end(&mut rig.far, 2 * (BULK + tail)));
            drop(rig.far);
            let moved = rig.relay.end().await;
            assert_eq!(moved.bytes(), (2 * (BULK + tail), 0));
            assert!(moved.forth.spliced > BULK, "{moved:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn an_end_after_a_half_close_is_an_end_and_not_a_reset() {
    both_ways(async |setup| {
        let mut rig = setup.start().await;
        finish(&rig.far);
        assert_eq!(rig.near.read(&mut [0]).await.unwrap(), 0);
        Pattern::new(7).send(&mut rig.near, 100).await;
        // Data, end and hang-up arrive in one wake-up.
        drop(rig.near);
        Pattern::new(7).expect_end(&mut rig.far, 100).await;
        assert_eq!(rig.relay.end().await.bytes(), (100, 0));
    })
    .await;
}

#[tokio::test]
async fn last_data_and_end_in_one_wake_up_are_an_end_and_not_a_reset() {
    for bytes in [1, 1448, FIRST_FLIGHT] {
        for half_closed in [false, true] {
            both_ways_and_engines(async |setup| {
                let mut rig = setup.start().await;
                if half_closed {
                    // The near peer's close is then a hang-up for the relay, because both
                    // directions have ended.
                    finish(&rig.far);
                    assert_eq!(rig.near.read(&mut [0]).await.unwrap(), 0);
                }
                Pattern::new(8).send(&mut rig.near, bytes).await;
                drop(rig.near);
                Pattern::new(8).expect_end(&mut rig.far, bytes).await;
                drop(rig.far);
                let moved = rig.relay.end().await;
                assert_eq!(moved.bytes(), (bytes, 0));
                assert!(moved.forth.eof && moved.back.eof);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_answer_of_64_mib_arrives_whole_after_a_half_close() {
    const ANSWER: u64 = 64 << 20;
    let answer = Loop::new(9);
    for sent_before_the_end in [0, BULK] {
        both_ways(async |setup| {
            let mut rig = setup.start().await;
            let (mut sent, mut wanted) = (answer.clone(), answer.clone());
            tokio::join!(
                sent.send(&mut rig.far, sent_before_the_end),
                wanted.expect(&mut rig.near, sent_before_the_end)
            );
            finish(&rig.near);
            assert_eq!(rig.far.read(&mut [0]).await.unwrap(), 0);
            let rest = async {
                sent.send(&mut rig.far, ANSWER - sent_before_the_end).await;
                finish(&rig.far);
            };
            tokio::join!(rest, wanted.expect(&mut rig.near, ANSWER - sent_before_the_end));
            assert_eq!(rig.near.read(&mut [0]).await.unwrap(), 0);
            let moved = rig.relay.end().await;
            assert_eq!(moved.bytes(), (0, ANSWER));
            assert!(moved.back.spliced > ANSWER / 100 * 95, "{moved:?}");
        })
        .await;
    }
}
