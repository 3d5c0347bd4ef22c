//! A pipe has slots, and each slot holds one fragment, however small. A pipe may be full in slots
//! and almost empty in bytes.

use std::time::{Duration, Instant};

use spliceway::{Engine, PipeSize, RelayOptions, SizeClass};
use tokio::io::AsyncReadExt;

use crate::support::pattern::Pattern;
use crate::support::rig::{Setup, both_ways, both_ways_and_engines};
use crate::support::{BULK, finish, write_apart};

/// The maximum time for a trip without a cork. If a drain asks for more bytes than a pipe with full
/// slots holds, the kernel corks the end for 200 ms, every time.
const AT_ONCE: Duration = Duration::from_millis(20);
const TRIPS: usize = 4;

#[tokio::test]
async fn the_last_byte_of_exactly_filled_slots_leaves_immediately() {
    for slots in [15, 16, 17, 32, 33] {
        both_ways(async |setup| {
            let mut fastest = Duration::MAX;
            for _ in 0..TRIPS {
                fastest = fastest.min(trip(setup.clone(), slots).await);
            }
            assert!(fastest < AT_ONCE, "{slots} slots: {fastest:?} at best");
        })
        .await;
    }
}

/// Runs one trip. This many small segments are queued when the relay starts. Returns the time until
/// the far peer has the last byte.
async fn trip(setup: Setup, slots: usize) -> Duration {
    const BYTES: usize = 100;
    let setup = Setup {
        engine: Engine::Splice,
        options: RelayOptions::new().pipe_size(PipeSize::Fixed(SizeClass::Kib64)),
        ..setup
    };
    let pool = spliceway::PipePool::new(setup.limits.clone());
    let (laid, relay) = setup.lay_out(pool).await;
    let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
    write_apart(&laid.near, &sent.take(slots * BYTES), BYTES);
    let start = Instant::now();
    let mut rig = laid.run(relay);
    wanted.expect(&mut rig.far, (slots * BYTES) as u64).await;
    let took = start.elapsed();
    assert_eq!(rig.relay.moved().forth.spliced, wanted.at());
    took
}

/// The size of an Ethernet segment. 16 of them, 23,168 bytes, fill the slots of a pipe of 64 KiB.
const SEGMENT: usize = 1448;
/// More segments than two pipes have slots. They fit in the window of a new connection.
const SEGMENTS: usize = 40;

#[tokio::test]
async fn pipes_with_full_slots_stall_nothing() {
    both_ways_and_engines(async |setup| {
        let options = RelayOptions::new().pipe_size(PipeSize::Fixed(SizeClass::Kib64));
        let mut rig = setup.options(options).start().await;
        let (mut sent, mut wanted) = (Pattern::new(2), Pattern::new(2));
        // The flow is bulk, so that either engine splices the following segments.
        tokio::join!(sent.send(&mut rig.near, BULK), wanted.expect(&mut rig.far, BULK));
        for _ in 0..5 {
            let before = rig.relay.moved().forth;
            // No byte follows these segments, so no other event wakes the relay.
            write_apart(&rig.near, &sent.take(SEGMENTS * SEGMENT), SEGMENT);
            wanted.expect(&mut rig.far, sent.at() - wanted.at()).await;
            let after = rig.relay.moved().forth;
            assert!(after.spliced > before.spliced, "{after:?}");
        }
        write_apart(&rig.near, &sent.take(SEGMENTS * SEGMENT), SEGMENT);
        finish(&rig.near);
        wanted.expect_end(&mut rig.far, sent.at()).await;
        finish(&rig.far);
        assert_eq!(rig.near.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(rig.relay.end().await.bytes(), (sent.at(), 0));
        assert_eq!(rig.pool.stats().lent, 0);
    })
    .await;
}
