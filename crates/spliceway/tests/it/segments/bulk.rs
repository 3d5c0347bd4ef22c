//! Bulk in both directions at the same time.

use spliceway::{PipePool, SizeClass};
use spliceway_net::{Family, Net, Offloads, SEGMENT};
use tokio::net::tcp::OwnedWriteHalf;

use super::{connected, rig, send_in_turn};
use crate::support::pattern::Pattern;
use crate::support::rig::{Moved, Rig, both_ways};
use crate::support::{MIB, finish};

#[tokio::test]
async fn simultaneous_bulk_is_exact_and_spliced_with_offloads() {
    bulk_is_exact_and_spliced(Offloads::On, 64 * MIB).await;
}

#[tokio::test]
async fn simultaneous_bulk_is_exact_and_spliced_without_offloads() {
    bulk_is_exact_and_spliced(Offloads::Off, 24 * MIB).await;
}

#[tokio::test]
async fn simultaneous_bulk_is_exact_and_spliced_with_gro_alone() {
    bulk_is_exact_and_spliced(Offloads::Gro, 24 * MIB).await;
}

async fn bulk_is_exact_and_spliced(offloads: Offloads, bytes: u64) {
    let Some(net) = Net::of_three(offloads) else { return };
    both_ways(async |setup| {
        // Each order of the ends uses another address family.
        let family = if setup.swapped { Family::V6 } else { Family::V4 };
        let Rig { near, far, relay, pool } = rig(&net, setup, family);
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
        let send = async |out: &mut OwnedWriteHalf, seed| {
            Pattern::new(seed).send(out, bytes).await;
            finish(out.as_ref());
        };
        tokio::join!(
            send(&mut near_out, 1),
            send(&mut far_out, 2),
            Pattern::new(1).expect_end(&mut far_in, bytes),
            Pattern::new(2).expect_end(&mut near_in, bytes)
        );
        assert_spliced(relay.end().await, bytes);
        assert_eq!(pool.stats().lent, 0);
    })
    .await;
}

fn assert_spliced(moved: Moved, bytes: u64) {
    for way in [moved.forth, moved.back] {
        assert_eq!((way.bytes, way.eof, way.fallback), (bytes, true, None), "{moved:?}");
        assert!(way.spliced >= bytes / 10 * 9, "{moved:?}");
    }
}

#[tokio::test]
async fn segment_sized_fragments_are_spliced_through_pipes_of_64_kib_alone() {
    const SEGMENTS: usize = 4 << 10;
    const BYTES: u64 = (SEGMENTS * SEGMENT) as u64;
    for offloads in Offloads::ALL {
        let Some(net) = Net::of_three(offloads) else { return };
        both_ways(async |setup| {
            let Rig { near, far, relay, pool } = rig(&net, setup, Family::V4);
            let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
            let send = async {
                let (mut forth, mut back) = (Pattern::new(1), Pattern::new(2));
                send_in_turn(
                    (&mut near_out, &mut forth),
                    (&mut far_out, &mut back),
                    SEGMENTS,
                    SEGMENT,
                )
                .await;
                finish(near_out.as_ref());
                finish(far_out.as_ref());
            };
            tokio::join!(
                send,
                Pattern::new(1).expect_end(&mut far_in, BYTES),
                Pattern::new(2).expect_end(&mut near_in, BYTES)
            );
            assert_spliced(relay.end().await, BYTES);
            let stats = pool.stats();
            assert!(stats.created > 0);
            assert_eq!(
                bytes_of(stats.pages),
                stats.idle * SizeClass::Kib64.bytes(),
                "{stats:?}"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn a_pipe_grows_with_large_fragments_and_shrinks_again_with_segments() {
    const SEGMENTS: usize = 2 << 10;
    const BYTES: u64 = (SEGMENTS * SEGMENT) as u64;
    let Some(net) = Net::of_three(Offloads::On) else { return };
    both_ways(async |setup| {
        let mut rig = rig(&net, setup, Family::V4);
        let (mut other, mut other_end) = connected(&net, 0, 1, Family::V4);
        let mut other_in_turn = (Pattern::new(2), Pattern::new(2));
        let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
        for _ in 0..2 {
            // In the first pass, the pipe size settles. In the second pass, the new pipes show the
            // size.
            for _ in 0..2 {
                close_idle(&rig.pool);
                tokio::join!(sent.send(&mut rig.near, 4 * MIB), wanted.expect(&mut rig.far, 4 * MIB));
            }
            let stats = rig.pool.stats();
            assert!(bytes_of(stats.pages) >= SizeClass::Kib256.bytes(), "{stats:?}");
            for _ in 0..2 {
                close_idle(&rig.pool);
                let segments = (&mut rig.near, &mut sent);
                let others = (&mut other, &mut other_in_turn.0);
                tokio::join!(
                    send_in_turn(segments, others, SEGMENTS, SEGMENT),
                    wanted.expect(&mut rig.far, BYTES),
                    other_in_turn.1.expect(&mut other_end, BYTES)
                );
            }
            let stats = rig.pool.stats();
            assert!(stats.idle > 0);
            assert_eq!(
                bytes_of(stats.pages),
                stats.idle * SizeClass::Kib64.bytes(),
                "{stats:?}"
            );
        }
    })
    .await;
}

fn bytes_of(pages: usize) -> usize {
    pages * rustix::param::page_size()
}

/// Closes the idle pipes, so that every pipe that is opened later belongs to later bytes.
fn close_idle(pool: &PipePool) {
    for class in SizeClass::ALL {
        let created = pool.stats().created;
        while pool.stats().created == created {
            pool.acquire(class).unwrap().discard();
        }
    }
    assert_eq!((pool.stats().idle, pool.stats().pages), (0, 0));
}
