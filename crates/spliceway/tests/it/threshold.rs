//! Messages below the splice threshold are copied, and larger ones are spliced.

use spliceway::{PipePool, Relay, RelayOptions};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{guard, tcp};

const TRIPS: u64 = 50;

#[tokio::test]
async fn messages_are_spliced_from_16_kib_on_and_arrive_byte_by_byte() {
    for (bytes, is_spliced) in [
        (100, false),
        (16_383, false),
        (16_384, true),
        (40_000, true),
        (60_000, true),
    ] {
        let (spliced, copied) = trips(bytes).await;
        assert_eq!(spliced + copied, 2 * TRIPS * bytes);
        if is_spliced {
            // The first message of each direction shows the relay how large messages are. A message
            // may arrive in parts, and a part may be copied.
            assert!(spliced > copied, "{spliced} and {copied} of {bytes} bytes each");
        } else {
            assert_eq!(spliced, 0, "of {bytes} bytes each");
        }
    }
}

/// Sends messages of this size in round trips. Returns how many bytes were spliced, and how many
/// were copied.
async fn trips(bytes: u64) -> (u64, u64) {
    let pool = PipePool::new(limits());
    let ((mut near, a), (mut far, b)) = (tcp().await, tcp().await);
    let relay = tokio::spawn(Relay::with_options(a, b, RelayOptions::new().pool(&pool)));
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
