//! The kernel reports the last bytes, the FIN and the hang-up together.

use rustix::event::PollFlags;
use rustix::net::sockopt::socket_error;
use spliceway_net::{Net, Offloads};
use tokio::io::AsyncReadExt;

use super::{assert_no_reset, block_until_queued, watched_rig};
use crate::support::pattern::Pattern;
use crate::support::rig::both_ways_and_engines;
use crate::support::{KIB, MIB, finish, try_send, turns};

/// From one byte to as much as an early window accepts.
const LAST: [usize; 3] = [1, 1448, 40 << 10];

/// The peers see an end and no error, and no node has sent a reset.
#[tokio::test]
async fn last_data_and_fin_in_one_wake_up_arrive_as_data_and_fin() {
    for offloads in [Offloads::On, Offloads::Off] {
        let Some(net) = Net::of_three(offloads) else { return };
        for last in LAST {
            both_ways_and_engines(async |setup| {
                let (mut rig, source) = watched_rig(&net, setup);
                let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
                tokio::join!(sent.send(&mut rig.near, MIB), wanted.expect(&mut rig.far, MIB));
                turns(3).await;

                assert_eq!(try_send(&rig.near, &sent.take(last)), last);
                finish(&rig.near);
                block_until_queued(&source, last as u64, PollFlags::IN | PollFlags::RDHUP);
                drop(source);
                wanted.expect_end(&mut rig.far, sent.at()).await;

                // The other direction is open, so an answer and its end get through.
                Pattern::new(2).send(&mut rig.far, 100 * KIB).await;
                finish(&rig.far);
                Pattern::new(2).expect_end(&mut rig.near, 100 * KIB).await;
                assert_eq!(rig.relay.end().await.bytes(), (MIB + last as u64, 100 * KIB));
                for peer in [&rig.near, &rig.far] {
                    assert_eq!(socket_error(peer).unwrap(), Ok(()));
                }
            })
            .await;
        }
        assert_no_reset(&net);
    }
}

#[tokio::test]
async fn data_fin_and_hang_up_in_one_wake_up_arrive_in_order() {
    for offloads in [Offloads::On, Offloads::Off] {
        let Some(net) = Net::of_three(offloads) else { return };
        for last in LAST {
            both_ways_and_engines(async |setup| {
                let (mut rig, source) = watched_rig(&net, setup);
                // The far peer has ended and the near peer has seen that, so the near peer's end is
                // a hang-up.
                finish(&rig.far);
                assert_eq!(rig.near.read(&mut [0]).await.unwrap(), 0);
                let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
                tokio::join!(sent.send(&mut rig.near, MIB), wanted.expect(&mut rig.far, MIB));
                turns(3).await;

                assert_eq!(try_send(&rig.near, &sent.take(last)), last);
                finish(&rig.near);
                let told = PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP;
                block_until_queued(&source, last as u64, told);
                drop(source);
                wanted.expect_end(&mut rig.far, sent.at()).await;
                assert_eq!(rig.relay.end().await.bytes(), (MIB + last as u64, 0));
                for peer in [&rig.near, &rig.far] {
                    assert_eq!(socket_error(peer).unwrap(), Ok(()));
                }
            })
            .await;
        }
        assert_no_reset(&net);
    }
}
