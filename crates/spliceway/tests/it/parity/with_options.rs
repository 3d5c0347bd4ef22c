//! `copy_with_options` does the same as `copy`, with a limit, a rate limit, a pool and the counts.

use std::time::Duration;

use spliceway::{CopyOptions, Engine, PipePool, PipeSize, RateLimit, Reason, SizeClass};
use tokio::time::Instant;

use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{KIB, MIB, guard, tcp};

#[tokio::test]
async fn a_copy_uses_its_limit_pool_and_prefix_and_returns_its_counts() {
    let ((mut near, mut from), (mut to, mut far)) = (tcp().await, tcp().await);
    let pool = PipePool::new(limits());
    let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
    let prefix = sent.take(1000);
    let options = CopyOptions::new()
        .prefix(prefix)
        .limit(2 * MIB)
        .pool(&pool)
        .pipe_size(PipeSize::Fixed(SizeClass::Kib64));
    let copied = guard(async {
        let (copied, (), ()) = tokio::join!(
            spliceway::copy_with_options(&mut from, &mut to, &options),
            sent.send(&mut near, 3 * MIB),
            wanted.expect(&mut far, 2 * MIB + 1000),
        );
        copied.unwrap()
    })
    .await;
    assert_eq!(copied.bytes, 2 * MIB + 1000);
    assert!(copied.spliced > MIB && !copied.eof, "{copied:?}");
    assert_eq!(pool.stats().lent, 0);
    assert!(pool.stats().created > 0);
    // The bytes after the limit can still be read.
    wanted.expect(&mut from, 1000).await;
}

#[tokio::test]
async fn a_copy_that_may_not_splice_reports_the_reason() {
    let ((near, mut from), (mut to, mut far)) = (tcp().await, tcp().await);
    let mut near = near;
    let (mut sent, mut wanted) = (Pattern::new(2), Pattern::new(2));
    let options = CopyOptions::new().engine(Engine::Copy);
    let sending = async {
        sent.send(&mut near, MIB).await;
        drop(near);
    };
    let copied = guard(async {
        let (copied, (), ()) = tokio::join!(
            spliceway::copy_with_options(&mut from, &mut to, &options),
            sending,
            wanted.expect(&mut far, MIB),
        );
        copied.unwrap()
    })
    .await;
    assert_eq!((copied.spliced, copied.copied, copied.eof), (0, MIB, true));
    assert_eq!(copied.fallback, Some(Reason::Disabled));
}

#[tokio::test(start_paused = true)]
async fn a_copy_keeps_to_its_rate() {
    let ((mut near, mut from), (mut to, mut far)) = (unix(), unix());
    let (mut sent, mut wanted) = (Pattern::new(3), Pattern::new(3));
    let options = CopyOptions::new()
        .limit(100 * KIB)
        .rate_limit(&RateLimit::with_burst(10 * KIB, KIB));
    let started = Instant::now();
    let (copied, (), ()) = tokio::join!(
        spliceway::copy_with_options(&mut from, &mut to, &options),
        sent.send(&mut near, 100 * KIB),
        wanted.expect(&mut far, 100 * KIB),
    );
    assert_eq!(copied.unwrap().bytes, 100 * KIB);
    let took = started.elapsed();
    let expected = Duration::from_millis(9_900);
    assert!(
        took >= expected && took < expected + Duration::from_millis(500),
        "{took:?}"
    );
}

fn unix() -> (tokio::net::UnixStream, tokio::net::UnixStream) {
    tokio::net::UnixStream::pair().unwrap()
}
