use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::time::Duration;

use spliceway::{EndReason, Engine, RateLimit, Relay, RelayOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;

use super::{Line, Variant, every_way, pass};
use crate::support::pattern::Pattern;
use crate::support::{KIB, MIB, finish};

const TIMEOUT: Duration = Duration::from_secs(8);

/// Asserts that the relay ended as precisely as the documentation states.
#[track_caller]
fn assert_silence(since: Instant) {
    let silent = since.elapsed();
    let (least, most) = (TIMEOUT, TIMEOUT * 9 / 8 + Duration::from_millis(10));
    assert!((least..=most).contains(&silent), "ended after {silent:?}");
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_relay_at_the_idle_timeout() {
    every_way(async |variant| {
        let start = Instant::now();
        let Line { relay, .. } = &mut variant.start(RelayOptions::new().idle_timeout(TIMEOUT));
        let done = (&mut relay.task).await.unwrap().unwrap();
        assert_eq!(done.end, EndReason::IdleTimeout);
        assert_silence(start);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn occasional_bytes_in_either_direction_prevent_the_idle_timeout() {
    every_way(async |variant| {
        let Line {
            mut near,
            mut far,
            relay,
        } = variant.start(RelayOptions::new().idle_timeout(TIMEOUT));
        let (mut forth, mut back) = (Pattern::new(1), Pattern::new(2));
        let (mut wanted_forth, mut wanted_back) = (Pattern::new(1), Pattern::new(2));
        for _ in 0..20 {
            pass(TIMEOUT * 3 / 4).await;
            forth.send(&mut near, 1).await;
            wanted_forth.expect(&mut far, 1).await;
        }
        for _ in 0..20 {
            pass(TIMEOUT * 3 / 4).await;
            back.send(&mut far, 1).await;
            wanted_back.expect(&mut near, 1).await;
        }
        let last = Instant::now();
        let done = relay.end().await;
        assert_eq!(
            (done.end, done.forth.bytes, done.back.bytes),
            (EndReason::IdleTimeout, 20, 20)
        );
        assert_silence(last);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_half_close_timeout_counts_silence_from_the_first_end() {
    every_way(async |variant| {
        let Line {
            mut near,
            mut far,
            relay,
        } = variant.start(RelayOptions::new().half_close_timeout(TIMEOUT));
        let (mut back, mut wanted) = (Pattern::new(3), Pattern::new(3));
        // Both streams are open, and silent for a long time.
        pass(TIMEOUT * 10).await;
        finish(&near);
        Pattern::new(4).expect_end(&mut far, 0).await;
        for _ in 0..10 {
            pass(TIMEOUT * 3 / 4).await;
            back.send(&mut far, 100 * KIB).await;
            wanted.expect(&mut near, 100 * KIB).await;
        }
        let last = Instant::now();
        let done = relay.end().await;
        assert_eq!((done.end, done.back.bytes), (EndReason::HalfCloseTimeout, 1000 * KIB));
        assert!(done.forth.eof && !done.back.eof);
        assert_silence(last);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_shorter_of_two_timeouts_ends_a_half_closed_relay() {
    for (idle, half_close, reason) in [
        (TIMEOUT, 10 * TIMEOUT, EndReason::IdleTimeout),
        (10 * TIMEOUT, TIMEOUT, EndReason::HalfCloseTimeout),
    ] {
        every_way(async |variant| {
            let options = RelayOptions::new().idle_timeout(idle).half_close_timeout(half_close);
            let Line { near, far, relay } = variant.start(options);
            finish(&near);
            let start = Instant::now();
            assert_eq!(relay.end().await.end, reason);
            assert_silence(start);
            drop((near, far));
        })
        .await;
    }
}

/// The far peer never reads. Bytes that are stuck at the timeout were read from the source, so they
/// are lost and counted.
#[tokio::test(start_paused = true)]
async fn bytes_in_flight_at_a_timeout_are_lost_and_counted() {
    every_way(async |variant| {
        let Line {
            mut near,
            mut far,
            relay,
        } = variant.start(RelayOptions::new().idle_timeout(TIMEOUT));
        let sending = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let bytes = Pattern::new(5).take(16 * MIB as usize);
            let mut sent = 0;
            while let Ok(count) = near.write(&bytes[sent..]).await {
                sent += count;
            }
            sent as u64
        });
        let done = relay.end().await;
        assert_eq!(done.end, EndReason::IdleTimeout);
        assert!(done.forth.lost > 0, "{:?}", done.forth);
        let mut wanted = Pattern::new(5);
        let broken = wanted.expect_until_broken(&mut far).await;
        assert!(broken.is_none(), "{broken:?}");
        assert_eq!(wanted.at(), done.forth.bytes);
        // Bytes that were sent, but neither delivered nor lost, were in the source's socket, which
        // is closed.
        assert!(sending.await.unwrap() >= done.forth.bytes + done.forth.lost);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_end_does_not_restart_the_idle_timeout() {
    every_way(async |variant| {
        let start = Instant::now();
        let Line { near, far, relay } = variant.start(RelayOptions::new().idle_timeout(TIMEOUT));
        pass(TIMEOUT * 7 / 8).await;
        finish(&near);
        assert_eq!(relay.end().await.end, EndReason::IdleTimeout);
        assert_silence(start);
        drop(far);
    })
    .await;
}

/// A timeout in a configuration file is optional. Its `Option` can be passed unchanged.
#[tokio::test(start_paused = true)]
async fn a_timeout_of_none_removes_an_earlier_timeout() {
    every_way(async |variant| {
        let options = RelayOptions::new().idle_timeout(TIMEOUT).half_close_timeout(TIMEOUT);
        let options = options.idle_timeout(None).half_close_timeout(None);
        let Line { near, mut far, relay } = variant.start(options);
        pass(TIMEOUT * 10).await;
        finish(&near);
        pass(TIMEOUT * 10).await;
        Pattern::new(6).send(&mut far, 1).await;
        finish(&far);
        let done = relay.end().await;
        assert_eq!((done.end, done.back.bytes), (EndReason::Ended, 1));
        drop(near);
    })
    .await;
}

/// Each relay gets one byte in 20 s, and always has more to send.
#[tokio::test(start_paused = true)]
async fn a_relay_held_back_by_a_shared_rate_limit_is_not_idle() {
    for engine in [Engine::Auto, Engine::Copy] {
        let limit = RateLimit::with_burst(1, 1);
        let options = RelayOptions::new().idle_timeout(TIMEOUT).rate_limit(&limit);
        let lines: Vec<_> = (0..20)
            .map(|number| {
                let variant = Variant {
                    engine,
                    swapped: number % 2 == 0,
                };
                variant.start(options.clone())
            })
            .collect();
        for Line { near, far, .. } in &lines {
            assert_eq!(near.try_write(b"abc").unwrap(), 3);
            finish(near);
            finish(far);
        }
        for Line { relay, near, far } in lines {
            let done = relay.end().await;
            assert_eq!((done.end, done.forth.bytes), (EndReason::Ended, 3));
            drop((near, far));
        }
    }
}

/// A relay that copies asks the limit before it knows whether its reader has bytes. The wait for a
/// grant is therefore not a sign of traffic.
#[tokio::test(start_paused = true)]
async fn an_idle_relay_that_copies_ends_even_if_its_rate_limit_is_exhausted() {
    let limit = RateLimit::with_burst(1, 1);
    let ((mut near, a), (mut far, b)) = (tokio::io::duplex(64), tokio::io::duplex(64));
    let options = RelayOptions::new().idle_timeout(TIMEOUT).a_to_b_rate_limit(&limit);
    let relay = tokio::spawn(Relay::with_options(a, b, options));
    near.write_all(b"x").await.unwrap();
    far.read_exact(&mut [0]).await.unwrap();
    limit.charge(1_000_000);
    // The relay is polled, and the idle direction asks for a grant.
    far.write_all(b"y").await.unwrap();
    near.read_exact(&mut [0]).await.unwrap();
    let start = Instant::now();
    let summary = relay.await.unwrap().unwrap();
    assert_eq!(summary.end, EndReason::IdleTimeout);
    assert!(start.elapsed() <= TIMEOUT * 2, "{:?}", start.elapsed());
}

/// A direction that has not read yet may have bytes to read.
#[tokio::test(start_paused = true)]
async fn a_copying_relay_that_waits_for_its_first_grant_is_not_idle() {
    let limit = RateLimit::with_burst(1, 1);
    limit.charge(2 * TIMEOUT.as_secs());
    let ((mut near, a), (mut far, b)) = (tokio::io::duplex(64), tokio::io::duplex(64));
    let options = RelayOptions::new().idle_timeout(TIMEOUT).a_to_b_rate_limit(&limit);
    let relay = tokio::spawn(Relay::with_options(a, b, options));
    near.write_all(b"x").await.unwrap();
    far.read_exact(&mut [0]).await.unwrap();
    relay.abort();
}

/// A timer that is polled without tokio budget is not registered. Every second poll comes from a
/// task that has used up its budget.
#[tokio::test(start_paused = true)]
async fn a_task_that_used_its_budget_up_loses_no_timeout() {
    every_way(async |variant| {
        let ((_near, a), (_far, b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let mut relay = Relay::with_options(a, b, RelayOptions::new().engine(variant.engine).idle_timeout(TIMEOUT));
        let (start, mut polls) = (Instant::now(), 0);
        let ended = poll_fn(|cx| {
            polls += 1;
            if polls % 2 == u32::from(variant.swapped) {
                while pin!(consume_budget()).poll(cx).is_ready() {}
            }
            Pin::new(&mut relay).poll(cx)
        });
        let ended = tokio::time::timeout(4 * TIMEOUT, ended)
            .await
            .expect("a timer was lost");
        assert_eq!(ended.unwrap().end, EndReason::IdleTimeout);
        assert_silence(start);
    })
    .await;
}
