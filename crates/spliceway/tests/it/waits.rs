use spliceway::{Engine, RateLimit, Relay, RelayOptions, TcpInfo, Waits};
use tokio::io::AsyncWriteExt;

use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, Setup, both_ways};
use crate::support::{MIB, finish, guard, tcp, turns};

/// Lets the relay run until the wait that `of` selects has grown, and asserts that no other wait of
/// that direction has.
async fn assert_only_grows(now: impl Fn() -> Waits, of: fn(&mut Waits) -> &mut std::time::Duration) {
    let mut before = now();
    let mut after = now();
    while *of(&mut after) == *of(&mut before) {
        turns(1).await;
        after = now();
    }
    *of(&mut before) = Default::default();
    *of(&mut after) = Default::default();
    assert_eq!(before, after);
}

async fn assert_forth(rig: &Rig, of: fn(&mut Waits) -> &mut std::time::Duration) {
    assert_only_grows(|| rig.relay.waits().0, of).await;
}

async fn assert_back(rig: &Rig, of: fn(&mut Waits) -> &mut std::time::Duration) {
    assert_only_grows(|| rig.relay.waits().1, of).await;
}

/// Copies or splices, in both directions.
async fn every_way(mut scenario: impl AsyncFnMut(Setup)) {
    for engine in [Engine::Splice, Engine::Copy] {
        both_ways(async |setup| scenario(Setup { engine, ..setup }).await).await;
    }
}

#[tokio::test]
async fn a_direction_waits_for_its_source_and_then_for_its_sink() {
    every_way(async |setup| {
        let rig = setup.small().start().await;
        turns(10).await;
        assert_forth(&rig, |waits| &mut waits.source).await;
        rig.push_until_stuck(&mut Pattern::new(1), None).await;
        assert_forth(&rig, |waits| &mut waits.sink).await;
        assert_back(&rig, |waits| &mut waits.source).await;
    })
    .await;
}

#[tokio::test]
async fn a_limited_direction_waits_for_its_rate() {
    every_way(async |setup| {
        let limit = RateLimit::with_burst(1, 1);
        let mut rig = setup.options(RelayOptions::new().rate_limit(&limit)).start().await;
        rig.near.write_all(b"12345").await.unwrap();
        let mut first = [0];
        tokio::io::AsyncReadExt::read_exact(&mut rig.far, &mut first)
            .await
            .unwrap();
        turns(10).await;
        assert_forth(&rig, |waits| &mut waits.rate_limit).await;
    })
    .await;
}

#[tokio::test]
async fn a_direction_that_has_ended_waits_for_the_other_one() {
    every_way(async |setup| {
        let mut rig = setup.start().await;
        finish(&rig.near);
        Pattern::new(1).expect_end(&mut rig.far, 0).await;
        assert_forth(&rig, |waits| &mut waits.other_direction).await;
        assert_back(&rig, |waits| &mut waits.source).await;
        finish(&rig.far);
        let (stats, swapped) = (rig.relay.stats.clone(), rig.relay.swapped);
        rig.relay.end().await;
        let waits = stats.waits();
        let back = if swapped { waits.a_to_b } else { waits.b_to_a };
        assert_eq!(back.other_direction, Default::default());
        assert_eq!(waits, stats.waits(), "a relay that has ended waits for nothing");
    })
    .await;
}

#[tokio::test]
async fn streams_that_are_not_sockets_have_the_same_waits() {
    guard(async {
        let ((mut near, a), (_far, b)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        let relay = Relay::new(a, b);
        let stats = relay.stats();
        let running = tokio::spawn(relay);
        let forth = || stats.waits().a_to_b;
        turns(10).await;
        assert_only_grows(forth, |waits| &mut waits.source).await;
        // The far end accepts 64 bytes, and the relay holds the next ones.
        near.write_all(&[1; 64 + 8]).await.unwrap();
        turns(10).await;
        assert_only_grows(forth, |waits| &mut waits.sink).await;
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        let ended = forth();
        turns(10).await;
        assert_eq!(ended, forth(), "a relay that was dropped waits for nothing");
    })
    .await;
}

#[tokio::test]
async fn tcp_info_tells_whether_the_reader_was_slow() {
    guard(async {
        let (near, far) = tcp().await;
        let (mut sent, wanted) = (Pattern::new(2), Pattern::new(2));
        let mut quiet = 0;
        while quiet < 100 {
            let is_full = crate::support::rig::push(&near, &mut sent) == 0;
            quiet = if is_full { quiet + 1 } else { 0 };
            turns(1).await;
        }
        // The kernel counts in its ticks, of 1 ms to 10 ms.
        while TcpInfo::of(&near).unwrap().receive_window_limited.is_zero() {
            turns(1).await;
        }
        finish(&near);
        let mut far = far;
        wanted.expect_end(&mut far, sent.at()).await;
        assert!(sent.at() > MIB / 4);
        let info = TcpInfo::of(&near).unwrap();
        assert!(info.rtt > Default::default() && info.delivery_rate > 0, "{info:?}");
        assert!(info.busy >= info.receive_window_limited + info.send_buffer_limited);
        let other = TcpInfo::of(&far).unwrap();
        assert_eq!(other.receive_window_limited, Default::default());
        // The answer outlives the connection.
        drop(far);
        assert!(TcpInfo::of(&near).unwrap().busy >= info.busy);
        let (unix, _) = tokio::net::UnixStream::pair().unwrap();
        assert!(TcpInfo::of(&unix).is_err());
    })
    .await;
}
