use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use spliceway_core::{Limits, Pipe, PipePool, Reason, SizeClass};
use spliceway_faults::in_fork;

use crate::support::{GUARD, await_that, child};

fn limits() -> Limits {
    Limits::of_this_process().with_max_pipes(1_000).with_max_pages(100_000)
}

/// Returns the number of threads in this process that close idle pipes.
fn reapers() -> usize {
    let threads = fs::read_dir("/proc/self/task").expect("/proc/self/task");
    let names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "spliceway-pool").count()
}

#[test]
fn closed_pipes_and_dropped_pools_free_their_descriptors() {
    let test = "pool_process::closed_pipes_and_dropped_pools_free_their_descriptors";
    child::alone(test, || {
        let before = child::descriptors();
        let pool = PipePool::new(limits());
        let pipes: Vec<_> = (0..20)
            .map(|_| pool.acquire(SizeClass::Kib64).expect("a pipe"))
            .collect();
        let lent_on = pool.acquire(SizeClass::Kib64).expect("a pipe");
        assert_eq!(child::descriptors().len(), before.len() + 2 * 21);
        drop(pipes);
        assert_eq!(
            child::descriptors().len(),
            before.len() + 2 * 21,
            "idle on both shelves"
        );
        pool.acquire(SizeClass::Kib64).expect("a pipe").discard();
        assert_eq!(child::descriptors().len(), before.len() + 2 * 20);
        let clone = pool.clone();
        drop(pool);
        assert_eq!(child::descriptors().len(), before.len() + 2 * 20, "a clone is the pool");
        drop(clone);
        assert_eq!(child::descriptors().len(), before.len() + 2, "the lent one is left");
        drop(lent_on);
        assert_eq!(child::descriptors(), before);
    });
}

#[test]
fn the_reaper_ends_with_the_last_idle_pipe_and_starts_again() {
    let test = "pool_process::the_reaper_ends_with_the_last_idle_pipe_and_starts_again";
    child::alone(test, || {
        let pool = PipePool::new(limits().with_idle_timeout(Duration::from_millis(20)));
        let before = child::descriptors();
        assert_eq!(reapers(), 0);
        for round in 1..=3 {
            let pipe = pool.acquire(SizeClass::Kib64).expect("a pipe");
            assert_eq!(reapers(), 0, "nothing is idle");
            drop(pipe);
            await_that("a pipe is closed", || pool.stats().closed_idle == round);
            await_that("the thread ends", || reapers() == 0);
            assert_eq!(child::descriptors(), before);
        }
    });
}

#[test]
fn a_thread_that_ends_without_idle_pipes_starts_no_reaper() {
    let test = "pool_process::a_thread_that_ends_without_idle_pipes_starts_no_reaper";
    child::alone(test, || {
        let threads = || fs::read_dir("/proc/self/task").expect("/proc/self/task").count();
        let before = threads();
        let pool = PipePool::new(limits().with_idle_timeout(10 * GUARD));
        let other = pool.clone();
        let ended = thread::spawn(move || other.acquire(SizeClass::Kib64).expect("a pipe"));
        let _lent = ended.join().expect("the other thread");
        await_that("nothing but the old threads", || threads() == before);
    });
}

#[test]
fn without_descriptors_a_pipe_is_denied_and_later_lent() {
    let test = "pool_process::without_descriptors_a_pipe_is_denied_and_later_lent";
    child::alone(test, || {
        let pool = PipePool::new(limits());
        let highest = child::descriptors().pop().expect("descriptors");
        child::limit_descriptors(u64::from(highest) + 16);
        let mut held = Vec::new();
        while let Ok(pipe) = Pipe::new() {
            held.push(pipe);
        }
        for class in SizeClass::ALL {
            assert_eq!(pool.acquire(class).err(), Some(Reason::ProcessDescriptors));
        }
        let stats = pool.stats();
        assert_eq!(stats.denied, [(Reason::ProcessDescriptors, 3)]);
        assert_eq!(
            (stats.created, stats.lent, stats.pages),
            (0, 0, 0),
            "no room stays reserved"
        );
        held.pop();
        assert!(pool.acquire(SizeClass::Kib64).is_ok());
    });
}

#[test]
fn past_the_soft_limit_a_pipe_is_denied_as_undersized_and_later_lent() {
    let test = "pool_process::past_the_soft_limit_a_pipe_is_denied_as_undersized_and_later_lent";
    child::unprivileged(test, || {
        let Some(held) = child::fill_the_soft_limit() else {
            return;
        };
        let pool = PipePool::new(limits());
        let before = child::descriptors();
        for class in SizeClass::ALL {
            assert_eq!(pool.acquire(class).err(), Some(Reason::Undersized));
        }
        let stats = pool.stats();
        assert_eq!(stats.denied, [(Reason::Undersized, 3)]);
        assert_eq!((stats.created, stats.lent, stats.idle, stats.pages), (0, 0, 0, 0));
        assert_eq!(child::descriptors(), before, "no pipe is left");
        drop(held);
        let pipe = pool.acquire(SizeClass::Mib1).expect("a pipe");
        assert_eq!(pipe.class(), SizeClass::Mib1);
    });
}

#[test]
fn a_refused_pipe_size_is_lent_as_the_class_that_was_granted() {
    let test = "pool_process::a_refused_pipe_size_is_lent_as_the_class_that_was_granted";
    child::unprivileged(test, || {
        let Some(mut held) = child::fill_the_soft_limit() else {
            return;
        };
        // There is room for some pipes of 64 KiB, but not for one of 1 MiB.
        let page_of_mib = held
            .iter()
            .position(|(_, writer)| rustix::pipe::fcntl_getpipe_size(writer).is_ok_and(|size| size == 1 << 20));
        let (_reader, shrunk) = &held[page_of_mib.expect("one of 1 MiB")];
        rustix::pipe::fcntl_setpipe_size(shrunk, 512 << 10).expect("F_SETPIPE_SZ");
        let pool = PipePool::new(limits());
        let pipe = pool.acquire(SizeClass::Mib1).expect("a pipe");
        assert_eq!((pipe.class(), pool.stats().pages), (SizeClass::Kib64, 16));
        held.clear();
    });
}

#[test]
fn the_default_pool_leaves_half_of_the_pages_and_7_of_8_descriptors() {
    let test = "pool_process::the_default_pool_leaves_half_of_the_pages_and_7_of_8_descriptors";
    child::unprivileged(test, || {
        let soft = fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").expect("a limit");
        let soft: usize = soft.trim().parse().expect("a number");
        child::limit_descriptors(1_600);
        let limits = Limits::of_this_process();
        assert_eq!(limits.max_pipes, 1_600 / 8 / 2);
        if soft > 0 {
            assert_eq!(limits.max_pages, soft / 2);
        }
    });
}

/// Returns the kernel's names for the pipes that are open in this process.
fn pipes() -> BTreeSet<PathBuf> {
    let open = child::descriptors();
    let names = open
        .iter()
        .filter_map(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok());
    names
        .filter(|name| name.to_string_lossy().starts_with("pipe:"))
        .collect()
}

#[test]
fn a_forked_child_closes_its_parents_idle_pipes_and_lends_its_own() {
    let test = "pool_process::a_forked_child_closes_its_parents_idle_pipes_and_lends_its_own";
    child::alone(test, || {
        let others = pipes();
        let pool = PipePool::new(limits().with_idle_per_thread(1));
        let (idle, done) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            // One pipe is on the list of a thread that the child does not have. The other pipes are
            // on the shared list, and on the list of the thread that forks.
            scope.spawn(|| {
                drop(pool.acquire(SizeClass::Kib64).expect("a pipe"));
                idle.wait();
                done.wait();
            });
            idle.wait();
            let lent: Vec<_> = (0..4)
                .map(|_| pool.acquire(SizeClass::Kib64).expect("a pipe"))
                .collect();
            drop(lent);
            let parents = &pipes() - &others;
            assert_eq!(parents.len(), 4);
            let forked = in_fork(|| {
                let lent = pool.acquire(SizeClass::Kib64).expect("a pipe");
                let here = &pipes() - &others;
                assert!(here.is_disjoint(&parents), "{here:?} of {parents:?}");
                assert_eq!(here.len(), 1);
                let stats = pool.stats();
                assert_eq!((stats.created, stats.lent, stats.idle, stats.pages), (1, 1, 0, 16));
                drop(lent);
                pool.acquire(SizeClass::Kib64).expect("a pipe").is_clean() && pool.stats().reused == 1
            });
            let left = &pipes() - &others;
            done.wait();
            assert!(forked.expect("fork"), "the child's claims, printed above");
            assert_eq!(left, parents, "the parent keeps its own");
        });
    });
}

#[test]
fn a_pipe_lent_at_a_fork_is_closed_when_the_child_drops_it() {
    let test = "pool_process::a_pipe_lent_at_a_fork_is_closed_when_the_child_drops_it";
    child::alone(test, || {
        let others = pipes();
        let pool = PipePool::new(limits());
        let mut lent = Some(pool.acquire(SizeClass::Kib64).expect("a pipe"));
        for generation in 0..2 {
            let forked = in_fork(|| {
                drop(lent.take());
                assert_eq!(pipes(), others, "closed");
                assert_eq!(pool.stats().idle, 0, "and not kept");
                // A child of the child inherits a pipe that was lent to the child.
                let mut own = Some(pool.acquire(SizeClass::Kib64).expect("a pipe"));
                let forked = in_fork(|| {
                    drop(own.take());
                    pipes() == others && pool.stats().idle == 0
                });
                forked.expect("fork")
            });
            assert!(forked.expect("fork"), "child {generation}: its claims, printed above");
        }
        drop(lent);
        assert_eq!((pool.stats().idle, pool.stats().lent), (1, 0));
    });
}

#[test]
fn a_forked_child_closes_its_own_idle_pipes_without_a_call() {
    let test = "pool_process::a_forked_child_closes_its_own_idle_pipes_without_a_call";
    child::alone(test, || {
        let pool = PipePool::new(limits().with_idle_timeout(Duration::from_millis(20)));
        // The parent's reaper does not exist in the child.
        drop(pool.acquire(SizeClass::Kib64).expect("a pipe"));
        let forked = in_fork(|| {
            drop(pool.acquire(SizeClass::Kib64).expect("a pipe"));
            await_that("the pipe is closed", || pool.stats().closed_idle == 1);
            true
        });
        assert!(forked.expect("fork"));
    });
}

#[test]
fn a_child_forked_while_threads_use_the_pool_does_not_wait_for_them() {
    let test = "pool_process::a_child_forked_while_threads_use_the_pool_does_not_wait_for_them";
    child::alone(test, || {
        let pool = PipePool::new(limits().with_idle_per_thread(1));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        drop([(); 2].map(|()| pool.acquire(SizeClass::Kib64)));
                    }
                });
            }
            let all_end = (0..30).all(|_| {
                let forked = in_fork(|| {
                    drop(pool.acquire(SizeClass::Kib64).expect("a pipe"));
                    pool.stats().idle == 1
                });
                forked.is_ok_and(|ended| ended)
            });
            done.store(true, Ordering::Relaxed);
            assert!(all_end, "each child ends");
        });
    });
}
