//! The relay waits for a sink that accepts nothing, and for nothing else.

use spliceway::Engine;
use tokio::io::AsyncReadExt;

use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, Setup, both_ways, both_ways_and_engines};
use crate::support::{finish, try_send};

#[tokio::test]
async fn an_end_at_a_blocked_sink_comes_after_all_bytes() {
    both_ways_and_engines(async |setup| {
        let mut rig = setup.small().start().await;
        let mut sent = Pattern::new(1);
        rig.push_until_stuck(&mut sent, None).await;
        finish(&rig.near);
        // The relay's socket has received the end, and the far peer has still read nothing.
        crate::support::turns(200).await;
        assert!(rig.relay.moved().forth.bytes < sent.at(), "the relay holds nothing");
        assert!(!rig.relay.moved().forth.eof);
        Pattern::new(1).expect_end(&mut rig.far, sent.at()).await;
        drop(rig.far);
        let moved = rig.relay.end().await;
        assert_eq!(moved.bytes(), (sent.at(), 0));
        assert!(moved.forth.spliced > 0, "{moved:?}");
    })
    .await;
}

#[tokio::test]
async fn the_end_waits_for_bytes_held_by_a_blocked_sink() {
    both_ways_and_engines(async |setup| {
        let mut rig = setup.small().start().await;
        let (mut forth, mut back) = (Pattern::new(2), Pattern::new(3));
        rig.push_until_stuck(&mut forth, Some(&mut back)).await;
        finish(&rig.near);
        finish(&rig.far);
        crate::support::turns(200).await;
        let moved = rig.relay.moved();
        assert!(
            moved.forth.bytes < forth.at() && moved.back.bytes < back.at(),
            "{moved:?}"
        );
        // One direction drains to its end while the other stays blocked.
        Pattern::new(2).expect_end(&mut rig.far, forth.at()).await;
        assert!(rig.relay.moved().back.bytes < back.at());
        Pattern::new(3).expect_end(&mut rig.near, back.at()).await;
        let moved = rig.relay.end().await;
        assert_eq!(moved.bytes(), (forth.at(), back.at()));
    })
    .await;
}

#[tokio::test]
async fn two_peers_that_only_send_cost_no_polls_and_then_get_everything() {
    both_ways_and_engines(async |setup| {
        let rig = setup.small().start().await;
        let (mut forth, mut back) = (Pattern::new(4), Pattern::new(5));
        rig.push_until_stuck(&mut forth, Some(&mut back)).await;
        rig.assert_sleeps(|| {
            let pushed = crate::support::rig::push(&rig.near, &mut forth);
            pushed + crate::support::rig::push(&rig.far, &mut back) > 0
        })
        .await;
        finish(&rig.near);
        finish(&rig.far);
        drained(rig, forth.at(), back.at()).await;
    })
    .await;
}

/// The time for which the sinks stay blocked in the test of CPU time. It is longer than any TCP
/// timer over loopback.
const BLOCKED: std::time::Duration = std::time::Duration::from_secs(2);

#[tokio::test]
async fn blocked_sinks_cost_no_cpu_time_and_then_get_every_byte() {
    let mut rigs = Vec::new();
    for both in [false, true] {
        for finished in [false, true] {
            for engine in [Engine::Splice, Engine::Auto] {
                let rig = Setup {
                    engine,
                    ..Setup::new(both ^ finished)
                }
                .small()
                .start()
                .await;
                let (mut forth, mut back) = (Pattern::new(4), Pattern::new(5));
                rig.push_until_stuck(&mut forth, both.then_some(&mut back)).await;
                if finished {
                    finish(&rig.near);
                    finish(&rig.far);
                }
                rigs.push((rig, forth.at(), back.at()));
            }
        }
    }
    let before = thread_time();
    // Sleeps because a blocked sink causes no event. The test shows that the wait costs no CPU
    // time.
    tokio::time::sleep(BLOCKED).await;
    let spent = thread_time() - before;
    // A relay that spins would use all of that time, or a share of it on a busy machine.
    assert!(spent < BLOCKED / 20, "{spent:?} in {BLOCKED:?} of waiting");
    for (rig, forth, back) in rigs {
        finish(&rig.near);
        finish(&rig.far);
        crate::support::guard(drained(rig, forth, back)).await;
    }
}

/// Returns the CPU time of this thread, which runs the relays.
fn thread_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

async fn drained(rig: Rig, forth: u64, back: u64) {
    let Rig {
        mut near,
        mut far,
        relay,
        pool,
    } = rig;
    tokio::join!(
        Pattern::new(4).expect_end(&mut far, forth),
        Pattern::new(5).expect_end(&mut near, back)
    );
    let moved = relay.end().await;
    assert_eq!(moved.bytes(), (forth, back));
    for way in [moved.forth, moved.back] {
        assert!(way.spliced > 0 || way.bytes == 0, "{moved:?}");
    }
    assert_eq!(pool.stats().lent, 0);
}

#[tokio::test]
async fn more_source_data_does_not_wake_a_relay_with_a_blocked_sink() {
    both_ways_and_engines(async |setup| {
        // The source's socket must keep room for the bytes that arrive one by one.
        let mut rig = setup.start().await;
        let mut sent = Pattern::new(6);
        push_until_the_relay_is_stuck(&rig, &mut sent).await;
        let mut dripped = 0;
        rig.assert_sleeps(|| {
            if dripped < 400 {
                assert_eq!(try_send(&rig.near, &sent.take(1)), 1, "the source has no room left");
                dripped += 1;
            }
            false
        })
        .await;
        assert!(dripped > 0);
        finish(&rig.near);
        Pattern::new(6).expect_end(&mut rig.far, sent.at()).await;
        drop(rig.far);
        assert_eq!(rig.relay.end().await.bytes(), (sent.at(), 0));
    })
    .await;
}

/// Sends in small steps, each only after the relay has delivered the previous one. So the source's
/// socket stays almost empty.
async fn push_until_the_relay_is_stuck(rig: &Rig, sent: &mut Pattern) {
    loop {
        let chunk = sent.take(64 << 10);
        let mut unsent = &chunk[..];
        while !unsent.is_empty() {
            unsent = &unsent[try_send(&rig.near, unsent)..];
            tokio::task::yield_now().await;
        }
        let mut waited = 0;
        while rig.relay.moved().forth.bytes < sent.at() {
            tokio::task::yield_now().await;
            waited += 1;
            if waited > 500 {
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_blocked_direction_lets_the_other_through() {
    both_ways(async |setup| {
        let mut rig = setup.small().start().await;
        let mut sent = Pattern::new(7);
        rig.push_until_stuck(&mut sent, None).await;
        let (mut back_sent, mut back) = (Pattern::new(8), Pattern::new(8));
        tokio::join!(
            back_sent.send(&mut rig.far, crate::support::BULK),
            back.expect(&mut rig.near, crate::support::BULK)
        );
        assert!(rig.relay.moved().back.spliced > 0);
        finish(&rig.near);
        Pattern::new(7).expect_end(&mut rig.far, sent.at()).await;
        drop(rig.far);
        rig.relay.end().await;
    })
    .await;
}

#[tokio::test]
async fn an_idle_relay_is_not_polled() {
    both_ways(async |setup| {
        let mut rig = setup.start().await;
        let (mut sent, mut wanted) = (Pattern::new(9), Pattern::new(9));
        tokio::join!(
            sent.send(&mut rig.near, 256 << 10),
            wanted.expect(&mut rig.far, 256 << 10)
        );
        rig.assert_sleeps(|| false).await;
        // The relay holds no pipe while it waits.
        assert_eq!(rig.pool.stats().lent, 0);
        drop(rig.far);
        assert_eq!(rig.near.read(&mut [0]).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_relay_that_moved_256_kib_and_is_idle_holds_no_pipe() {
    for engine in [Engine::Auto, Engine::Splice] {
        both_ways(async |setup| {
            let setup = crate::support::rig::Setup { engine, ..setup };
            let mut rig = setup.start().await;
            for seed in [10, 11] {
                let (mut sent, mut wanted) = (Pattern::new(seed), Pattern::new(seed));
                tokio::join!(
                    sent.send(&mut rig.near, 256 << 10),
                    wanted.expect(&mut rig.far, 256 << 10)
                );
                let (mut sent, mut wanted) = (Pattern::new(seed), Pattern::new(seed));
                tokio::join!(
                    sent.send(&mut rig.far, 256 << 10),
                    wanted.expect(&mut rig.near, 256 << 10)
                );
                rig.assert_sleeps(|| false).await;
                let stats = rig.pool.stats();
                assert_eq!(stats.lent, 0, "{stats:?}");
                assert_eq!(stats.closed_dirty, 0, "{stats:?}");
                assert!(stats.created > 0, "it never had one: {stats:?}");
            }
            assert!(!rig.relay.task.is_finished());
        })
        .await;
    }
}
