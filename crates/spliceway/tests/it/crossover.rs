//! Messages between what is always copied and what is always spliced: they go both ways, as it is measured which is cheaper.

use std::thread;

use spliceway::{PipePool, Relay};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};

use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{guard, tcp};

/// Twice as many messages, more than there are before and in the first trial on a thread.
const TRIPS: u64 = 300;

#[test]
fn messages_of_8_to_64_kib_are_copied_and_spliced_and_arrive_byte_by_byte() {
    for bytes in [9_000, 20_000, 40_000, 60_000] {
        // Each thread measures.
        let (spliced, copied) = thread::spawn(move || runtime().block_on(trips(bytes))).join().unwrap();
        assert_eq!(spliced + copied, 2 * TRIPS * bytes);
        assert!(
            spliced > 0 && copied > 0,
            "{spliced} and {copied} of {bytes} bytes each"
        );
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[tokio::test]
async fn messages_below_8_kib_are_never_spliced() {
    assert_eq!(trips(8 * 1024 - 1).await.0, 0);
}

/// Round trips of messages of so many bytes: how many were spliced, and how many copied.
async fn trips(bytes: u64) -> (u64, u64) {
    let pool = PipePool::new(limits());
    let ((mut near, a), (mut far, b)) = (tcp().await, tcp().await);
    let relay = tokio::spawn(Relay::new(a, b).pool(&pool));
    let (mut requests, mut answers) = (Pattern::new(1), Pattern::new(2));
    guard(async {
        for _ in 0..TRIPS {
            pass(&mut near, &mut far, &mut requests, bytes).await;
            pass(&mut far, &mut near, &mut answers, bytes).await;
            assert_eq!(pool.stats().lent, 0);
        }
    })
    .await;
    drop((near, far));
    let summary = relay.await.unwrap().unwrap();
    let ways = [summary.a_to_b, summary.b_to_a];
    (
        ways.map(|way| way.spliced).iter().sum(),
        ways.map(|way| way.copied).iter().sum(),
    )
}

async fn pass(
    from: &mut (impl AsyncWrite + Unpin),
    to: &mut (impl AsyncRead + Unpin),
    pattern: &mut Pattern,
    bytes: u64,
) {
    let mut expected = *pattern;
    tokio::join!(pattern.send(from, bytes), expected.expect(to, bytes));
}
