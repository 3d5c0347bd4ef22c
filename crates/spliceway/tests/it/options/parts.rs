//! A relay returns its streams, and the bytes in flight between them.

use std::future::poll_fn;
use std::task::Poll;

use spliceway::{Engine, Relay, RelayOptions};
use tokio::net::UnixStream;

use super::every_way;
use crate::support::pattern::Pattern;
use crate::support::{MIB, guard, turns};

#[tokio::test]
async fn a_relay_that_is_taken_apart_loses_no_byte() {
    every_way(async |variant| {
        let ((near, near_end), (far_end, far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let (a, b) = if variant.swapped {
            (far_end, near_end)
        } else {
            (near_end, far_end)
        };
        let options = RelayOptions::new().engine(variant.engine);
        let mut relay = Relay::with_options(a, b, options.clone());
        // Polls until the relay holds bytes that its sink does not accept.
        let (mut sent, mut idle) = (Pattern::new(1), 0);
        while idle < 8 {
            let bytes = sent.take(MIB as usize);
            let written = near.try_write(&bytes).unwrap_or(0);
            sent.unsend(bytes.len() - written);
            idle = if written == 0 { idle + 1 } else { 0 };
            turns(2).await;
            poll_fn(|cx| {
                let polled = std::pin::Pin::new(&mut relay).poll(cx);
                assert!(polled.is_pending());
                Poll::Ready(())
            })
            .await;
        }
        let stats = relay.stats();
        let parts = relay.into_parts().unwrap();
        let (forth, back) = if variant.swapped {
            (parts.b_to_a, parts.a_to_b)
        } else {
            (parts.a_to_b, parts.b_to_a)
        };
        assert!(
            !forth.is_empty() && back.is_empty(),
            "{variant:?}: {} and {}",
            forth.len(),
            back.len()
        );
        assert_eq!(stats.snapshot().lost(), 0);

        // Another relay continues.
        let options = if variant.swapped {
            options.b_to_a_prefix(forth)
        } else {
            options.a_to_b_prefix(forth)
        };
        let relay = tokio::spawn(Relay::with_options(parts.a, parts.b, options));
        let (mut near, mut far) = (near, far);
        let (mut wanted, end) = (Pattern::new(1), sent.at() + MIB);
        guard(async { tokio::join!(sent.send(&mut near, MIB), wanted.expect(&mut far, end)) }).await;
        drop((near, far));
        guard(relay).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_prefix_that_was_not_delivered_is_among_the_parts() {
    let ((_near, a), (b, _far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let options = RelayOptions::new()
        .engine(Engine::Copy)
        .a_to_b_prefix("first")
        .b_to_a_prefix("back");
    let parts = Relay::with_options(a, b, options).into_parts().unwrap();
    assert_eq!((&parts.a_to_b[..], &parts.b_to_a[..]), (&b"first"[..], &b"back"[..]));
}

#[tokio::test]
async fn a_summary_prints_as_one_line() {
    let ((near, a), (b, mut far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let relay = Relay::with_options(a, b, RelayOptions::new().a_to_b_prefix("hello"));
    let stats = relay.stats();
    assert_eq!(stats.snapshot().to_string(), "a to b 0 bytes, b to a 0 bytes: running");
    let relay = tokio::spawn(relay);
    let mut hello = [0; 5];
    guard(tokio::io::AsyncReadExt::read_exact(&mut far, &mut hello))
        .await
        .unwrap();
    drop((near, far));
    let summary = guard(relay).await.unwrap().unwrap();
    assert_eq!(summary.to_string(), "a to b 5 bytes, b to a 0 bytes: ended");
}
