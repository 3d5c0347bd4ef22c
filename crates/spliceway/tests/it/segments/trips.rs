//! Requests and responses wait for no TCP timer. A delayed acknowledgement takes 40 ms, and a cork
//! takes 200 ms.

use std::time::{Duration, Instant};

use spliceway::{Engine, PipePool};
use spliceway_net::{Family, Net, Offloads};

use super::{awaited, connected, rig, send_in_turn};
use crate::support::guard;
use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, Setup, both_ways};

/// The number of round trips. Each takes about 0.03 to 0.8 ms. With a relay that corks, each would
/// take at least 200 ms. With a relay that relies on acknowledgements, each would take 40 ms.
const TRIPS: usize = 15;
const LIMIT: Duration = Duration::from_millis(30);

/// The slots of a pipe of 64 KiB, and the bytes in each. Together they are less than a segment,
/// because the acknowledgement of a full segment would release the held bytes.
const SLOTS: usize = 16;
const PIECE: usize = 80;

#[tokio::test]
async fn request_and_response_of_any_size_wait_for_no_timer() {
    for offloads in Offloads::ALL {
        let Some(net) = Net::of_three(offloads) else { return };
        for engine in [Engine::Auto, Engine::Splice] {
            for (peers, relay) in [(true, true), (true, false), (false, true), (false, false)] {
                for size in [1, 100, 1400, 16 << 10, 64 << 10] {
                    let mut rig = rig_with_nodelay(&net, engine, peers, relay);
                    let what = format!("{offloads:?} {engine:?}, NODELAY at peers {peers}, at relay {relay}: {size} B");
                    let (mut forth, mut back) = (Pattern::new(1), Pattern::new(2));
                    trips(&what, async || {
                        let (mut wanted, mut answer) = (forth, back);
                        tokio::join!(forth.send(&mut rig.near, size), wanted.expect(&mut rig.far, size));
                        tokio::join!(back.send(&mut rig.far, size), answer.expect(&mut rig.near, size));
                    })
                    .await;
                    let moved = rig.relay.moved();
                    assert!(
                        engine == Engine::Auto || moved.forth.spliced * 2 > moved.forth.bytes,
                        "{moved:?}"
                    );
                }
            }
        }
    }
}

/// Makes a rig whose peers write each message with one call. With `NODELAY` or without it, a kernel
/// alone would then hold nothing back.
fn rig_with_nodelay(net: &Net, engine: Engine, peers: bool, relay: bool) -> Rig {
    let ends = [
        net.connect(0, 1, Family::V4).unwrap(),
        net.connect(2, 1, Family::V4).unwrap(),
    ];
    for (peer, relays_end) in &ends {
        peer.set_nodelay(peers).unwrap();
        relays_end.set_nodelay(relay).unwrap();
    }
    let setup = Setup {
        engine,
        ..Setup::new(false)
    };
    let pool = PipePool::new(setup.limits.clone());
    let [near, far] = ends.map(awaited);
    let (laid, relay) = setup.lay_between(pool, near, far);
    laid.run(relay)
}

/// The kernel corks if a call asks for more than such a pipe holds.
#[tokio::test]
async fn a_message_that_fills_every_slot_of_a_pipe_waits_for_no_timer() {
    for offloads in Offloads::ALL {
        let Some(net) = Net::of_three(offloads) else { return };
        both_ways(async |setup| {
            let setup = Setup {
                engine: Engine::Splice,
                ..setup
            };
            let what = format!("{offloads:?}");
            let mut rig = rig(&net, setup, Family::V4);
            let (mut other, mut other_end) = connected(&net, 0, 1, Family::V4);
            let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
            let (mut other_sent, mut other_wanted) = (Pattern::new(2), Pattern::new(2));
            trips(&what, async || {
                let bytes = (SLOTS * PIECE) as u64;
                let message = (&mut rig.near, &mut sent);
                send_in_turn(message, (&mut other, &mut other_sent), SLOTS, PIECE).await;
                wanted.expect(&mut rig.far, bytes).await;
                other_wanted.expect(&mut other_end, bytes).await;
            })
            .await;
            assert_eq!(rig.relay.moved().forth.spliced, wanted.at());
        })
        .await;
    }
}

/// Checks the median, so that other load on the machine does not fail the test.
async fn trips(what: &str, mut trip: impl AsyncFnMut()) {
    let mut took = Vec::new();
    for _ in 0..TRIPS {
        let started = Instant::now();
        guard(trip()).await;
        took.push(started.elapsed());
    }
    took.sort();
    assert!(took[TRIPS / 2] < LIMIT, "{what}: {took:?}");
}
