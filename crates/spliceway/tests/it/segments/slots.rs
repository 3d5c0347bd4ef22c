//! Sixteen segments fill the slots of a pipe that has room for the bytes of 45 segments.

use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use spliceway_core::{Fill, Pipe};
use spliceway_net::{Family, Net, Offloads, SEGMENT};
use tokio::net::TcpStream;

use super::{block_until_queued, connected, send_in_turn, watched_rig};
use crate::support::pattern::Pattern;
use crate::support::rig::both_ways_and_engines;
use crate::support::{finish, turns};

/// The slots of a pipe of 64 KiB.
const SLOTS: usize = 16;
const BEFORE: usize = 512 * SEGMENT;
/// Two and a half times the segments that a pipe holds. They fit in a receiver's first window.
const SEGMENTS: usize = 40;
const BYTES: u64 = (SEGMENTS * SEGMENT) as u64;

#[tokio::test]
async fn bytes_after_a_fill_that_slots_stopped_arrive_unprompted() {
    for offloads in Offloads::ALL {
        let Some(net) = Net::of_three(offloads) else { return };
        both_ways_and_engines(async |setup| {
            let (mut rig, source) = watched_rig(&net, setup);
            let (mut twin, mut twin_end) = connected(&net, 0, 1, Family::V4);
            let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
            let (mut twin_sent, mut twin_wanted) = (Pattern::new(2), Pattern::new(2));
            // The flow is bulk, so that either engine starts with a fill when there are bytes. It
            // consists of segments, so that its pipe is small.
            let segments = (&mut rig.near, &mut sent);
            tokio::join!(
                send_in_turn(segments, (&mut twin, &mut twin_sent), BEFORE / SEGMENT, SEGMENT),
                wanted.expect(&mut rig.far, BEFORE as u64),
                twin_wanted.expect(&mut twin_end, BEFORE as u64)
            );
            turns(3).await;
            let spliced = rig.relay.moved().forth.spliced;
            assert!(spliced > 0);

            // The test sends on both streams in turn, so that consecutive segments of a stream are
            // not adjacent in memory. All segments arrive before the relay is polled.
            for _ in 0..SEGMENTS {
                send_now(&rig.near, &sent.take(SEGMENT));
                send_now(&twin, &twin_sent.take(SEGMENT));
            }
            block_until_queued(&source, BYTES, PollFlags::IN);
            block_until_queued(&twin_end, BYTES, PollFlags::IN);
            drop(source);
            let mut pipe = Pipe::new().unwrap();
            // The arrangement worked: slots stopped the fill, even if two segments share a slot.
            let filled = pipe.fill_from(&twin_end).unwrap();
            assert!(
                matches!(filled, Fill::Moved(bytes) if (bytes as u64) < BYTES),
                "{filled:?}"
            );

            wanted.expect(&mut rig.far, BYTES).await;
            let moved = rig.relay.moved();
            assert_eq!(moved.bytes(), (BEFORE as u64 + BYTES, 0));
            assert_eq!(moved.forth.spliced - spliced, BYTES, "{moved:?}");
            // The pipes were small all the time. A larger pipe would have held all bytes.
            let stats = rig.pool.stats();
            assert_eq!(stats.pages, SLOTS * stats.idle, "{stats:?}");
            finish(&rig.near);
            wanted.expect_end(&mut rig.far, BEFORE as u64 + BYTES).await;
        })
        .await;
    }
}

/// Sends all bytes without a poll of this thread's relay. Acknowledgements make room, and do not
/// need the relay.
fn send_now(socket: &TcpStream, mut bytes: &[u8]) {
    let until = Instant::now() + Duration::from_secs(30);
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::AGAIN) => {
                assert!(Instant::now() < until, "no room");
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}
