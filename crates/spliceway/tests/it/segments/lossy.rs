//! A network that loses some segments, and delays others until later segments have passed them.
// A skipped test prints the reason.
#![allow(clippy::print_stdout)]

use spliceway_net::{Family, Net, Offloads};

use super::rig;
use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, both_ways};
use crate::support::{MIB, finish};

#[tokio::test]
async fn bulk_over_a_network_that_loses_and_reorders_is_exact_and_spliced() {
    const BYTES: u64 = 3 * MIB;
    for offloads in [Offloads::Off, Offloads::Gro] {
        let Some(net) = Net::of_three(offloads) else { return };
        if let Err(why) = net.lose_and_reorder() {
            println!("skipped: {why}");
            return;
        }
        both_ways(async |setup| {
            let Rig { near, far, relay, pool } = rig(&net, setup, Family::V4);
            let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
            let request = async {
                Pattern::new(1).send(&mut near_out, BYTES).await;
                finish(near_out.as_ref());
            };
            let answer = async {
                Pattern::new(2).send(&mut far_out, BYTES / 2).await;
                finish(far_out.as_ref());
            };
            tokio::join!(
                request,
                answer,
                Pattern::new(1).expect_end(&mut far_in, BYTES),
                Pattern::new(2).expect_end(&mut near_in, BYTES / 2)
            );
            let moved = relay.end().await;
            assert_eq!(moved.bytes(), (BYTES, BYTES / 2));
            for way in [moved.forth, moved.back] {
                // After losses, a flow may consist mostly of small messages.
                assert!(way.spliced > 0, "{moved:?}");
            }
            assert_eq!(pool.stats().lent, 0);
        })
        .await;
        let counted = |name| net.nodes().iter().map(|node| node.counter(name)).sum::<u64>();
        assert!(counted("RetransSegs") > 0, "nothing was lost");
        assert!(counted("TCPOFOQueue") > 0, "nothing was out of order");
    }
}
