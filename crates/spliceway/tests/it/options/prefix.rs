use std::time::Duration;

use bytes::Bytes;
use spliceway::{Relay, RelayOptions};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;

use super::{Line, every_way};
use crate::support::pattern::Pattern;
use crate::support::{KIB, MIB, finish, guard, turns};

#[tokio::test]
async fn a_prefix_goes_first_both_ways_and_bulk_after_it_is_spliced() {
    for length in [1, 100 * KIB] {
        every_way(async |variant| {
            // Near to far is a to b, or b to a. Each direction gets the prefix of its own stream.
            let (mut forth, mut back) = (Pattern::new(1), Pattern::new(2));
            let (forth_prefix, back_prefix) = (forth.take(length as usize), back.take(length as usize));
            let (a_to_b, b_to_a) = if variant.swapped {
                (back_prefix, forth_prefix)
            } else {
                (forth_prefix, back_prefix)
            };
            let options = RelayOptions::new().a_to_b_prefix(a_to_b).b_to_a_prefix(b_to_a);
            let Line { near, far, relay } = variant.start(options);
            let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
            let send_forth = async {
                forth.send(&mut near_out, 4 * MIB).await;
                finish(near_out.as_ref());
            };
            let send_back = async {
                back.send(&mut far_out, 4 * MIB).await;
                finish(far_out.as_ref());
            };
            let total = length + 4 * MIB;
            let receive_forth = Pattern::new(1).expect_end(&mut far_in, total);
            let receive_back = Pattern::new(2).expect_end(&mut near_in, total);
            guard(async { tokio::join!(send_forth, send_back, receive_forth, receive_back) }).await;
            let done = guard(relay.end()).await;
            assert_eq!((done.forth.bytes, done.back.bytes), (total, total));
            assert_eq!(done.forth.spliced > 2 * MIB, variant.splices(), "{:?}", done.forth);
        })
        .await;
    }
}

/// A peer that waits for the prefix sends nothing itself, so the relay must not wait for its bytes.
#[tokio::test]
async fn a_prefix_is_not_held_back_until_its_stream_brings_more() {
    every_way(async |variant| {
        let prefix = Pattern::new(3).take(1000);
        let options = RelayOptions::new().a_to_b_prefix(prefix.clone()).b_to_a_prefix(prefix);
        let Line { near, mut far, relay } = variant.start(options);
        guard(Pattern::new(3).expect(&mut far, 1000)).await;
        drop((near, far));
        drop(relay);
    })
    .await;
}

/// Otherwise an idle relay would hold its client's first bytes until it ends.
#[tokio::test]
async fn a_prefix_that_was_delivered_is_not_kept() {
    every_way(async |variant| {
        let prefix = Bytes::from(Pattern::new(7).take(1000));
        let options = RelayOptions::new()
            .a_to_b_prefix(prefix.clone())
            .b_to_a_prefix(prefix.clone());
        let Line { near, mut far, relay } = variant.start(options);
        guard(Pattern::new(7).expect(&mut far, 1000)).await;
        turns(20).await;
        assert!(prefix.is_unique() && !relay.task.is_finished());
        drop(near);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_prefix_that_is_not_delivered_is_lost_and_counted() {
    every_way(async |variant| {
        let prefix = Pattern::new(8).take(4 * MIB as usize);
        let options = RelayOptions::new().idle_timeout(Duration::from_secs(1));
        let options = options.a_to_b_prefix(prefix.clone()).b_to_a_prefix(prefix);
        let Line { near, mut far, relay } = variant.start(options);
        let done = relay.end().await;
        assert_eq!(done.forth.bytes + done.forth.lost, 4 * MIB);
        Pattern::new(8).expect_end(&mut far, done.forth.bytes).await;
        drop(near);
    })
    .await;
}

#[tokio::test]
async fn a_prefix_does_not_count_towards_the_limit() {
    every_way(async |variant| {
        let mut stream = Pattern::new(4);
        let prefix = stream.take(1000);
        let options = RelayOptions::new().a_to_b_limit(0).b_to_a_limit(0);
        let options = options.a_to_b_prefix(prefix.clone()).b_to_a_prefix(prefix);
        let Line { near, mut far, relay } = variant.start(options);
        guard(Pattern::new(4).expect_end(&mut far, 1000)).await;
        assert_eq!(guard(relay.end()).await.forth.bytes, 1000);
        drop(near);
    })
    .await;
}

#[tokio::test]
async fn a_prefix_goes_before_buffered_bytes() {
    let ((mut near, near_end), (mut far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let mut stream = Pattern::new(6);
    let prefix = stream.take(1000);
    stream.send(&mut near, 1000).await;
    let mut near_end = BufReader::new(near_end);
    near_end.fill_buf().await.unwrap();
    stream.send(&mut near, 1000).await;
    drop(near);
    let relay = Relay::with_options(near_end, far_end, RelayOptions::new().a_to_b_prefix(prefix));
    let receive = async {
        Pattern::new(6).expect_end(&mut far, 3000).await;
        drop(far);
    };
    let (summary, ()) = guard(async { tokio::join!(relay, receive) }).await;
    assert_eq!(summary.unwrap().a_to_b.bytes, 3000);
}

#[tokio::test]
async fn streams_that_are_not_sockets_have_prefixes_too() {
    let ((mut near, near_end), (mut far, far_end)) = (tokio::io::duplex(64), tokio::io::duplex(64));
    let mut stream = Pattern::new(5);
    let relay = Relay::with_options(
        near_end,
        far_end,
        RelayOptions::new().a_to_b_prefix(stream.take(20_000)),
    );
    let send = async {
        stream.send(&mut near, 20_000).await;
        drop(near);
    };
    let receive = async {
        Pattern::new(5).expect_end(&mut far, 40_000).await;
        drop(far);
    };
    let (summary, (), ()) = guard(async { tokio::join!(relay, send, receive) }).await;
    assert_eq!(summary.unwrap().a_to_b.bytes, 40_000);
}
