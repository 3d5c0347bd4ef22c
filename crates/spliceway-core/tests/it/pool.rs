use std::io::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use spliceway_core::{Fill, Limits, PipePool, PooledPipe, Reason, SizeClass};

use crate::support::{self, await_that, tcp_pair};

/// Returns limits that keep idle pipes open for longer than any test runs.
fn limits() -> Limits {
    Limits::of_this_process()
        .with_max_pipes(1_000)
        .with_max_pages(100_000)
        .with_idle_timeout(10 * support::GUARD)
}

fn acquire(pool: &PipePool, class: SizeClass) -> PooledPipe {
    pool.acquire(class).expect("a pipe")
}

/// Puts bytes into the pipe.
fn fill(pipe: &mut PooledPipe) {
    let (near, mut far) = tcp_pair();
    far.write_all(b"bytes").expect("write");
    support::await_queued(&near, 5);
    assert_eq!(pipe.fill_from(&near).expect("splice"), Fill::Moved(5));
}

#[test]
fn a_pipe_that_comes_back_is_lent_again_instead_of_a_new_one() {
    for class in SizeClass::ALL {
        let pool = PipePool::new(limits());
        for _ in 0..100 {
            let pipe = acquire(&pool, class);
            assert_eq!((pipe.capacity(), pipe.class()), (class.bytes(), class));
        }
        let stats = pool.stats();
        assert_eq!((stats.created, stats.reused), (1, 99), "{class:?}");
        assert_eq!(
            (stats.lent, stats.idle, stats.pages),
            (0, 1, class.bytes() / 4_096),
            "{class:?}"
        );
    }
}

#[test]
fn the_pipe_that_came_back_last_is_lent_first() {
    let pool = PipePool::new(limits());
    let (cold, warm) = (acquire(&pool, SizeClass::Kib64), acquire(&pool, SizeClass::Kib64));
    let name = |pipe: &PooledPipe| format!("{pipe:?}");
    let (cold_name, warm_name) = (name(&cold), name(&warm));
    assert_ne!(cold_name, warm_name, "descriptors tell them apart");
    drop(cold);
    drop(warm);
    let first = acquire(&pool, SizeClass::Kib64);
    let second = acquire(&pool, SizeClass::Kib64);
    assert_eq!((name(&first), name(&second)), (warm_name, cold_name));
}

#[test]
fn classes_do_not_mix_where_there_is_room() {
    let pool = PipePool::new(limits());
    drop(acquire(&pool, SizeClass::Mib1));
    drop(acquire(&pool, SizeClass::Kib64));
    for class in SizeClass::ALL {
        assert_eq!(acquire(&pool, class).class(), class);
    }
    assert_eq!(pool.stats().created, 3);
}

#[test]
fn a_pipe_may_come_back_on_another_thread_and_is_lent_there() {
    let pool = PipePool::new(limits());
    let pipe = acquire(&pool, SizeClass::Kib64);
    let other = pool.clone();
    let there = thread::spawn(move || {
        drop(pipe);
        drop(acquire(&other, SizeClass::Kib64));
        other.stats()
    });
    let stats = there.join().expect("the other thread");
    assert_eq!((stats.created, stats.reused, stats.lent, stats.idle), (1, 1, 0, 1));
}

#[test]
fn pipes_that_exceed_one_threads_list_are_found_by_other_threads() {
    let pool = PipePool::new(limits().with_idle_per_thread(2));
    let pipes: Vec<_> = (0..5).map(|_| acquire(&pool, SizeClass::Kib64)).collect();
    drop(pipes);
    let other = pool.clone();
    let found = thread::spawn(move || {
        let _three: Vec<_> = (0..3).map(|_| acquire(&other, SizeClass::Kib64)).collect();
        other.stats()
    });
    let stats = found.join().expect("the other thread");
    assert_eq!((stats.created, stats.reused, stats.lent, stats.idle), (5, 3, 3, 2));
}

#[test]
fn idle_pipes_and_counts_of_an_ended_thread_remain() {
    let pool = PipePool::new(limits());
    let other = pool.clone();
    let thread = thread::spawn(move || {
        drop(acquire(&other, SizeClass::Kib64));
        drop(acquire(&other, SizeClass::Kib64));
    });
    thread.join().expect("the other thread");
    drop(acquire(&pool, SizeClass::Kib64));
    let stats = pool.stats();
    assert_eq!((stats.created, stats.reused, stats.idle), (1, 2, 1));
}

#[test]
fn a_pipe_with_bytes_inside_is_closed_and_never_lent_again() {
    let pool = PipePool::new(limits());
    let mut pipe = acquire(&pool, SizeClass::Kib64);
    fill(&mut pipe);
    drop(pipe);
    let stats = pool.stats();
    assert_eq!((stats.closed_dirty, stats.idle, stats.lent, stats.pages), (1, 0, 0, 0));
    assert!(acquire(&pool, SizeClass::Kib64).is_clean());
    assert_eq!(pool.stats().created, 2);
}

#[test]
fn an_empty_pipe_is_closed_after_an_error() {
    let pool = PipePool::new(limits());
    let mut pipe = acquire(&pool, SizeClass::Kib64);
    fill(&mut pipe);
    let (sink, peer) = tcp_pair();
    support::reset(peer);
    support::await_ready(&sink, rustix::event::PollFlags::empty());
    pipe.drain_into(&sink).expect_err("a reset");
    assert_eq!(pipe.read_out().expect("read"), b"bytes");
    assert!(pipe.is_empty());
    drop(pipe);
    let stats = pool.stats();
    assert_eq!((stats.closed_dirty, stats.idle, stats.lent), (1, 0, 0));
}

#[test]
fn a_discarded_pipe_is_closed_although_it_is_clean() {
    let pool = PipePool::new(limits());
    acquire(&pool, SizeClass::Kib64).discard();
    let stats = pool.stats();
    assert_eq!((stats.closed_dirty, stats.idle, stats.lent, stats.pages), (1, 0, 0, 0));
}

#[test]
fn at_the_pipe_limit_an_acquire_is_denied_and_counted() {
    let pool = PipePool::new(limits().with_max_pipes(2));
    let (first, _second) = (acquire(&pool, SizeClass::Kib64), acquire(&pool, SizeClass::Kib64));
    for class in SizeClass::ALL {
        assert_eq!(pool.acquire(class).err(), Some(Reason::PipeBudget));
    }
    assert_eq!(pool.stats().denied, [(Reason::PipeBudget, 3)]);
    assert_eq!((pool.stats().lent, pool.stats().created), (2, 2));
    drop(first);
    assert!(pool.acquire(SizeClass::Kib64).is_ok());
}

#[test]
fn at_the_limit_on_pages_a_smaller_class_is_lent_and_then_none() {
    // There is room for one pipe of 256 KiB and one of 64 KiB.
    let pool = PipePool::new(limits().with_max_pages(80));
    let first = acquire(&pool, SizeClass::Mib1);
    let second = acquire(&pool, SizeClass::Mib1);
    assert_eq!((first.class(), second.class()), (SizeClass::Kib256, SizeClass::Kib64));
    assert_eq!(pool.acquire(SizeClass::Mib1).err(), Some(Reason::PageBudget));
    assert_eq!(pool.acquire(SizeClass::Kib64).err(), Some(Reason::PageBudget));
    assert_eq!(pool.stats().denied, [(Reason::PageBudget, 2)]);
    assert_eq!(pool.stats().pages, 80);
    drop((first, second));
    assert_eq!(acquire(&pool, SizeClass::Kib256).class(), SizeClass::Kib256);
}

#[test]
fn pipes_of_1_mib_use_only_the_first_half_of_the_pages() {
    for (max_pages, largest) in [(1_024, 2), (1_023, 1), (512, 1), (256, 1)] {
        let pool = PipePool::new(limits().with_max_pages(max_pages));
        let mut lent = Vec::new();
        while let Ok(pipe) = pool.acquire(SizeClass::Mib1) {
            lent.push(pipe);
        }
        let found = lent.iter().filter(|pipe| pipe.class() == SizeClass::Mib1).count();
        assert_eq!(found, largest, "of {max_pages} pages");
        assert!(
            pool.stats().pages + 16 > max_pages,
            "the rest is lent as smaller ones: {:?}",
            pool.stats()
        );
    }
}

#[test]
fn at_a_limit_an_idle_pipe_of_a_smaller_class_is_lent() {
    let pool = PipePool::new(limits().with_max_pipes(1));
    drop(acquire(&pool, SizeClass::Kib64));
    assert_eq!(acquire(&pool, SizeClass::Mib1).class(), SizeClass::Kib64);
    assert_eq!((pool.stats().created, pool.stats().closed_idle), (1, 0));
}

#[test]
fn at_a_limit_idle_pipes_of_a_larger_class_make_room() {
    let pool = PipePool::new(limits().with_max_pipes(1));
    drop(acquire(&pool, SizeClass::Mib1));
    assert_eq!(acquire(&pool, SizeClass::Kib64).class(), SizeClass::Kib64);
    let stats = pool.stats();
    assert_eq!((stats.created, stats.closed_idle, stats.pages), (2, 1, 16));
    assert_eq!(stats.denied, []);
}

#[test]
fn an_idle_pipe_on_another_thread_is_used_before_one_is_created() {
    let pool = PipePool::new(limits());
    while_two_idle_elsewhere(&pool, || {
        assert_eq!(acquire(&pool, SizeClass::Kib256).class(), SizeClass::Kib256);
        // This check runs while the other thread still waits. When that thread ends, its counts are
        // on no free list for a moment.
        assert_eq!((pool.stats().created, pool.stats().reused), (2, 1));
    });
}

#[test]
fn at_a_limit_idle_pipes_of_other_threads_make_room() {
    for limits in [limits().with_max_pipes(2), limits().with_max_pages(128)] {
        let pool = PipePool::new(limits);
        while_two_idle_elsewhere(&pool, || {
            assert_eq!(acquire(&pool, SizeClass::Kib64).class(), SizeClass::Kib64);
        });
        assert_eq!((pool.stats().created, pool.stats().denied), (3, vec![]));
    }
}

/// Runs `work` while two pipes of 256 KiB are idle on the free list of a thread that waits.
fn while_two_idle_elsewhere(pool: &PipePool, work: impl FnOnce()) {
    let (idle, done) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            drop((acquire(pool, SizeClass::Kib256), acquire(pool, SizeClass::Kib256)));
            idle.wait();
            done.wait();
        });
        idle.wait();
        work();
        done.wait();
    });
}

/// The number of visits to other threads' lists shows the cost, because each visit locks a list.
#[test]
fn at_the_limit_of_1_mib_pipes_few_acquires_search_other_threads() {
    const THREADS: usize = 20;
    // There is room for two pipes of 1 MiB, and for some smaller pipes.
    let pool = PipePool::new(limits().with_max_pages(1_024));
    let held = [acquire(&pool, SizeClass::Mib1), acquire(&pool, SizeClass::Mib1)];
    let (ready, done) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    let (mut first, mut later) = (0, 0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                drop(pool.acquire(SizeClass::Kib64));
                ready.wait();
                done.wait();
            });
        }
        ready.wait();
        let look = |pool: &PipePool, acquires: usize| {
            let before = pool.stats().searched;
            let found = (0..acquires).all(|_| acquire(pool, SizeClass::Mib1).class() == SizeClass::Kib256);
            (found, pool.stats().searched - before)
        };
        let (found, looks) = look(&pool, 1);
        first = if found { looks } else { u64::MAX };
        let (found, looks) = look(&pool, 650);
        later = if found { looks } else { u64::MAX };
        done.wait();
    });
    // The first acquire visits eight lists for each of the two classes. After that, one acquire in
    // 65 visits eight lists.
    assert!(first <= 16, "{first} looks of one acquire");
    assert_eq!(later, 80, "looks of 650 acquires");
    drop(held);
    assert_eq!(
        acquire(&pool, SizeClass::Mib1).class(),
        SizeClass::Mib1,
        "there is one again"
    );
}

#[test]
fn at_a_limit_few_refused_acquires_search_other_lists() {
    let pool = PipePool::new(limits().with_max_pipes(1));
    let lent = acquire(&pool, SizeClass::Kib64);
    let before = pool.stats().searched;
    for _ in 0..650 {
        assert_eq!(pool.acquire(SizeClass::Kib64).err(), Some(Reason::PipeBudget));
    }
    // Each visit is to this thread's own list. One acquire in 65 searches it, and then visits it
    // again to close idle pipes.
    assert_eq!(pool.stats().searched - before, 20);
    drop(lent);
    assert!(pool.acquire(SizeClass::Kib64).is_ok());
}

#[test]
fn the_limits_hold_at_every_moment_under_four_threads() {
    const MAX_PIPES: usize = 10;
    const MAX_PAGES: usize = 300;
    let pool = PipePool::new(
        limits()
            .with_max_pipes(MAX_PIPES)
            .with_max_pages(MAX_PAGES)
            .with_idle_per_thread(1),
    );
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let pool = &pool;
                scope.spawn(move || work(pool, worker))
            })
            .collect();
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let stats = pool.stats();
                assert!(stats.pages <= MAX_PAGES, "{stats:?}");
                assert!(stats.lent <= MAX_PIPES, "{stats:?}");
            }
        });
        let lent: usize = workers.into_iter().map(|worker| worker.join().expect("worker")).sum();
        done.store(true, Ordering::Relaxed);
        watch.join().expect("the limits hold");
        assert!(lent > 0);
    });
    let stats = pool.stats();
    assert_eq!(stats.lent, 0, "{stats:?}");
    assert!(stats.reused > 0 && stats.closed_dirty > 0, "{stats:?}");
}

/// Acquires up to four pipes at a time, of all classes. Gives most of them back and discards some.
/// Returns how many pipes the pool lent.
fn work(pool: &PipePool, seed: u64) -> usize {
    let mut held = Vec::new();
    let mut lent = 0;
    for byte in support::pattern(seed + 1, 4_000) {
        match pool.acquire(SizeClass::ALL[usize::from(byte) % 3]) {
            Ok(pipe) => {
                assert!(pipe.is_clean());
                lent += 1;
                held.push(pipe);
            }
            Err(reason) => assert!(matches!(reason, Reason::PipeBudget | Reason::PageBudget), "{reason}"),
        }
        if held.len() == 4 || byte % 5 == 0 {
            held.drain(..).for_each(|pipe| match byte % 7 {
                0 => pipe.discard(),
                _ => drop(pipe),
            });
        }
    }
    lent
}

#[test]
fn idle_pipes_are_closed_without_a_call() {
    let pool = PipePool::new(limits().with_idle_timeout(Duration::from_millis(20)));
    let busy = acquire(&pool, SizeClass::Kib64);
    drop((acquire(&pool, SizeClass::Kib64), acquire(&pool, SizeClass::Mib1)));
    // The test checks the pages, because a pipe that is about to be closed is not on a free list
    // but is still open.
    await_that("idle pipes are closed", || pool.stats().pages == 16);
    let stats = pool.stats();
    assert_eq!((stats.closed_idle, stats.lent, stats.idle), (2, 1, 0), "{stats:?}");
    drop(busy);
    await_that("the last one too", || pool.stats().pages == 0);
    assert_eq!((pool.stats().closed_idle, pool.stats().idle), (3, 0));
}

#[test]
fn pipes_lent_when_the_pool_is_dropped_still_work() {
    let pool = PipePool::new(limits());
    let mut pipe = acquire(&pool, SizeClass::Kib64);
    drop(pool);
    fill(&mut pipe);
    assert_eq!(pipe.read_out().expect("read"), b"bytes");
}
