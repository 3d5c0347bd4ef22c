//! If a relay gets no pipe, it copies and gives the reason. It splices again when it gets a pipe.

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spliceway::{Engine, PipePool, Reason, SizeClass};

use crate::support::child::{block_on, in_child, open_descriptors};
use crate::support::pattern::Pattern;
use crate::support::rig::{Moved, Rig, Setup, both_ways, limits};
use crate::support::{BULK, finish};

/// A rig in use. The far peer has received all bytes that the near peer has sent.
struct InUse {
    rig: Rig,
    sent: Pattern,
    wanted: Pattern,
}

impl InUse {
    fn new(rig: Rig) -> Self {
        Self {
            rig,
            sent: Pattern::new(1),
            wanted: Pattern::new(1),
        }
    }

    /// Sends bulk from the near peer to the far peer. Returns the relay's counts since its start.
    async fn bulk(&mut self) -> Moved {
        tokio::join!(
            self.sent.send(&mut self.rig.near, BULK),
            self.wanted.expect(&mut self.rig.far, BULK)
        );
        self.rig.relay.moved()
    }

    async fn end(self) {
        let pool = self.rig.pool.clone();
        self.end_in_shared_pool().await;
        assert_eq!(pool.stats().lent, 0);
    }

    async fn end_in_shared_pool(self) {
        finish(&self.rig.near);
        let mut far = self.rig.far;
        self.wanted.expect_end(&mut far, self.wanted.at()).await;
        drop(far);
        assert_eq!(self.rig.relay.end().await.bytes(), (self.wanted.at(), 0));
    }
}

#[tokio::test]
async fn a_pool_without_room_makes_the_relay_copy_with_a_reason() {
    for (limits, reason) in [
        (limits().with_max_pipes(0), Reason::PipeBudget),
        (limits().with_max_pages(0), Reason::PageBudget),
        (limits().with_max_pages(15), Reason::PageBudget),
    ] {
        both_ways(async |setup| {
            let mut relay = InUse::new(setup.limits(limits.clone()).start().await);
            let moved = relay.bulk().await;
            assert_eq!((moved.forth.spliced, moved.forth.copied), (0, BULK));
            assert_eq!(moved.forth.fallback, Some(reason));
            let stats = relay.rig.pool.stats();
            assert_eq!((stats.created, stats.denied.len()), (0, 1), "{stats:?}");
            let (denied, times) = stats.denied[0];
            assert_eq!(denied, reason);
            // The relay asks again from time to time, but not for every full buffer.
            assert!(times > 1 && times < BULK / (256 << 10), "{stats:?}");
            relay.end().await;
        })
        .await;
    }
}

#[tokio::test]
async fn splicing_returns_when_the_pool_has_a_pipe_again() {
    both_ways(async |setup| {
        let pool = PipePool::new(limits().with_max_pipes(1));
        let only = pool.acquire(SizeClass::Kib64).unwrap();
        let mut relay = InUse::new(setup.start_in(pool).await);
        let without = relay.bulk().await;
        assert_eq!(
            (without.forth.spliced, without.forth.fallback),
            (0, Some(Reason::PipeBudget))
        );
        drop(only);
        let with = relay.bulk().await;
        assert!(with.forth.spliced > BULK / 2, "{with:?}");
        relay.end().await;
    })
    .await;
}

#[tokio::test]
async fn one_pipe_between_many_relays_loses_nothing() {
    let pool = PipePool::new(limits().with_max_pipes(1));
    let mut relays = tokio::task::JoinSet::new();
    for swapped in [false, true, false, true, false, true] {
        let pool = pool.clone();
        relays.spawn(async move {
            let mut relay = InUse::new(Setup::new(swapped).start_in(pool).await);
            let moved = relay.bulk().await;
            relay.end_in_shared_pool().await;
            moved.forth.spliced
        });
    }
    let mut spliced = 0;
    while let Some(relay) = crate::support::guard(relays.join_next()).await {
        spliced += relay.unwrap();
    }
    assert!(spliced > 0);
    assert_eq!(pool.stats().lent, 0);
}

#[test]
fn without_descriptors_for_a_pipe_the_relay_copies_until_there_are_some() {
    const NAME: &str = "pitfalls::limits::without_descriptors_for_a_pipe_the_relay_copies_until_there_are_some";
    in_child(NAME, None, || {
        for swapped in [false, true] {
            block_on(async {
                let mut relay = InUse::new(Setup::new(swapped).start().await);
                let normal = getrlimit(Resource::Nofile);
                let soft = Some(open_descriptors() as u64 + 8);
                let lowered = Rlimit {
                    current: soft,
                    ..normal
                };
                setrlimit(Resource::Nofile, lowered).unwrap();
                let mut all = Vec::new();
                while let Ok(file) = File::open("/dev/null") {
                    all.push(file);
                }
                // One descriptor is not enough for a pipe.
                all.pop();
                let without = relay.bulk().await;
                assert_eq!((without.forth.spliced, without.forth.copied), (0, BULK));
                assert_eq!(without.forth.fallback, Some(Reason::ProcessDescriptors));
                let denied = relay.rig.pool.stats().denied;
                assert!(matches!(denied[..], [(Reason::ProcessDescriptors, 1..)]), "{denied:?}");

                setrlimit(Resource::Nofile, normal).unwrap();
                let with = relay.bulk().await;
                assert!(with.forth.spliced > BULK / 2, "{with:?}");
                drop(all);
                relay.end().await;
            });
        }
    });
}

#[test]
fn with_pipes_of_two_slots_the_relay_copies() {
    const NAME: &str = "pitfalls::limits::with_pipes_of_two_slots_the_relay_copies";
    let soft: usize = std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    if std::env::var_os("SPLICEWAY_TEST_CHILD").is_none() && (!rustix::process::geteuid().is_root() || soft == 0) {
        eprintln!("skipped: it takes root to become a user of its own, and a soft limit on pipe pages");
        return;
    }
    // This test uses its own user, because all processes of a user share the limit.
    let uid = 1_000_000 + std::process::id();
    in_child(NAME, Some(uid), || {
        block_on(async {
            let hogs = take_all_pages(soft);
            let unbounded = limits().with_max_pipes(10_000).with_max_pages(10 * soft);
            let mut relay = InUse::new(Setup::new(false).limits(unbounded).start().await);
            let without = relay.bulk().await;
            assert_eq!((without.forth.spliced, without.forth.copied), (0, BULK));
            assert_eq!(without.forth.fallback, Some(Reason::Undersized));
            let stats = relay.rig.pool.stats();
            assert_eq!((stats.lent, stats.idle, stats.pages), (0, 0, 0), "{stats:?}");
            drop(hogs);
            let with = relay.bulk().await;
            assert!(with.forth.spliced > BULK / 2, "{with:?}");
            relay.end().await;
        });
    });
}

/// Makes pipes until the kernel gives the next one only two slots.
fn take_all_pages(soft: usize) -> Vec<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    let mut hogs = Vec::new();
    loop {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let size = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        if size <= 2 * rustix::param::page_size() {
            return hogs;
        }
        // Near the limit, the kernel refuses this size. Small pipes then use up the remaining
        // pages.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, 1 << 20);
        hogs.push((reader, writer));
        assert!(hogs.len() <= soft, "this user has no limit");
    }
}

#[tokio::test]
async fn a_relay_with_the_copy_engine_asks_for_no_pipe() {
    both_ways(async |setup| {
        let setup = Setup {
            engine: Engine::Copy,
            ..setup
        };
        let mut relay = InUse::new(setup.limits(limits().with_max_pipes(0)).start().await);
        let moved = relay.bulk().await;
        assert_eq!(moved.forth.fallback, Some(Reason::Disabled));
        assert!(relay.rig.pool.stats().denied.is_empty());
        relay.end().await;
    })
    .await;
}
