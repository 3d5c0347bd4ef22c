//! Checks the network that the other tests rely on: frames of 1,500 bytes without offloads, and a
//! receiver that joins them with GRO.

use spliceway_net::{Family, Net, Offloads, SEGMENT};

use super::connected;
use crate::support::guard;
use crate::support::pattern::Pattern;
use crate::support::{MIB, finish};

#[tokio::test]
async fn offloads_decide_how_many_frames_cross_and_how_many_the_receiver_sees() {
    const BYTES: u64 = 8 * MIB;
    let full_segments = BYTES / SEGMENT as u64;
    for offloads in Offloads::ALL {
        let Some(net) = Net::chain(2, offloads) else { return };
        let (mut sender, mut receiver) = connected(&net, 0, 1, Family::V4);
        let send = async {
            Pattern::new(1).send(&mut sender, BYTES).await;
            finish(&sender);
        };
        guard(async { tokio::join!(send, Pattern::new(1).expect_end(&mut receiver, BYTES)) }).await;
        let crossed = net.node(0).frames_sent("right");
        let seen = net.node(1).counter("InReceives");
        let told = format!("{offloads:?}: {crossed} frames crossed, {seen} seen, {full_segments} full segments");
        match offloads {
            Offloads::On => assert!(crossed < full_segments / 4, "{told}"),
            Offloads::Off => assert!(crossed >= full_segments && seen >= full_segments, "{told}"),
            Offloads::Gro => assert!(crossed >= full_segments && seen < full_segments / 2, "{told}"),
        }
    }
}
