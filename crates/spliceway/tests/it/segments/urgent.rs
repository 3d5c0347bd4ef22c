//! Urgent bytes in the middle of segments, and at the end.

use spliceway_net::{Family, Net, Offloads};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::rig;
use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, both_ways_and_engines};
use crate::support::{MIB, finish, send_urgent};

#[tokio::test]
async fn urgent_bytes_in_bulk_both_ways_stop_nothing_and_hide_nothing() {
    const ROUNDS: u64 = 4;
    for offloads in Offloads::ALL {
        let Some(net) = Net::of_three(offloads) else { return };
        both_ways_and_engines(async |setup| {
            let Rig { near, far, relay, .. } = rig(&net, setup, Family::V4);
            let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
            let stream = async |out: &mut OwnedWriteHalf, from: &mut OwnedReadHalf, seed: u64| {
                let (mut sent, mut wanted) = (Pattern::new(seed), Pattern::new(seed));
                for _ in 0..ROUNDS {
                    let send = async {
                        sent.send(out, MIB + seed).await;
                        send_urgent(out.as_ref()).await;
                        sent.send(out, MIB / 2).await;
                    };
                    tokio::join!(send, wanted.expect(from, MIB + seed + MIB / 2));
                }
                // The last byte of the stream is urgent too.
                send_urgent(out.as_ref()).await;
                finish(out.as_ref());
                let total = wanted.at();
                wanted.expect_end(from, total).await;
                total
            };
            let bytes = tokio::join!(
                stream(&mut near_out, &mut far_in, 5),
                stream(&mut far_out, &mut near_in, 6)
            );
            let moved = relay.end().await;
            assert_eq!(moved.bytes(), bytes);
            for way in [moved.forth, moved.back] {
                assert!(way.spliced > way.bytes / 2, "{moved:?}");
            }
        })
        .await;
    }
}
