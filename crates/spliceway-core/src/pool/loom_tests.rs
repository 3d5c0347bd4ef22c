//! These tests check the invariants of the pool's lists and budget in every interleaving of a few
//! threads.
//!
//! The free lists here hold no real pipes, so that none of the thousands of runs makes a system
//! call. A thread that must start a reaper becomes the reaper itself.

use std::sync::Arc;
// This atomic only counts for the assertions, so loom does not need to model it.
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::Reason;
use super::budget::Budget;
use super::free_list::FreeList;
use super::free_lists::FreeLists;
use crate::limits::{Limits, SizeClass};
use crate::sync::{Mutex, every_interleaving};

const CLASS: SizeClass = SizeClass::Kib64;

struct Pipe;

/// A pool's lists, with the operations that a reaper and the threads of a program perform on them.
struct Watched {
    lists: FreeLists<Pipe>,
    reapers: AtomicUsize,
}

impl Watched {
    /// Creates lists that are already marked as watched by a reaper.
    fn new() -> Arc<Self> {
        let lists = FreeLists::new();
        assert!(lists.begin_watch());
        Arc::new(Self {
            lists,
            reapers: AtomicUsize::new(0),
        })
    }

    fn reaper(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let watched = Arc::clone(self);
        thread::spawn(move || watched.reap())
    }

    /// Does what `pool/reaper.rs` does, without waiting between two visits.
    fn reap(&self) {
        loop {
            let others = self.reapers.fetch_add(1, Ordering::Relaxed);
            assert_eq!(others, 0, "one reaper is enough");
            drop(self.lists.take_unneeded());
            // Another reaper may start before this one knows that it can end.
            self.reapers.fetch_sub(1, Ordering::Relaxed);
            if self.lists.end_watch() {
                return;
            }
        }
    }

    fn wake_reaper(&self) {
        if self.lists.begin_watch() {
            self.reap();
        }
    }

    fn put_back(&self, list: &Mutex<FreeList<Pipe>>) {
        let place = self.lists.place_on(list, CLASS, 1).expect("room");
        let watched = place.is_watched();
        place.put(Pipe);
        if !watched {
            self.wake_reaper();
        }
    }

    #[track_caller]
    fn assert_all_reaped(&self) {
        assert_eq!(idle(&self.lists), 0, "idle with nobody to close it");
        assert!(self.lists.begin_watch(), "the last reaper said that it ended");
    }
}

fn idle(lists: &FreeLists<Pipe>) -> usize {
    let mut idle = 0;
    lists.for_each(|list| idle += list.idle());
    idle
}

#[test]
fn a_pipe_returned_while_the_reaper_ends_is_reaped() {
    every_interleaving(|| {
        let watched = Watched::new();
        let reaper = watched.reaper();
        let list = watched.lists.of_a_thread();
        watched.put_back(&list);
        reaper.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn pipes_that_two_threads_return_while_the_reaper_ends_are_reaped() {
    every_interleaving(|| {
        let watched = Watched::new();
        let reaper = watched.reaper();
        let other = Arc::clone(&watched);
        let other = thread::spawn(move || other.put_back(other.lists.overflow()));
        let list = watched.lists.of_a_thread();
        watched.put_back(&list);
        other.join().unwrap();
        reaper.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn a_pipe_that_changes_lists_while_the_reaper_ends_is_reaped() {
    every_interleaving(|| {
        let watched = Watched::new();
        let list = watched.lists.of_a_thread();
        watched.put_back(&list);
        let reaper = watched.reaper();
        // The pipe moves from a list that the reaper visits last to the one that it visits first.
        if watched.lists.search(CLASS).is_some() {
            watched.put_back(watched.lists.overflow());
        }
        reaper.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn pipes_of_a_thread_that_ends_while_the_reaper_ends_are_reaped() {
    every_interleaving(|| {
        let watched = Watched::new();
        let list = watched.lists.of_a_thread();
        watched.put_back(&list);
        let reaper = watched.reaper();
        if watched.lists.inherit(&list) {
            watched.wake_reaper();
        }
        drop(list);
        reaper.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn without_a_reaper_thread_returned_pipes_are_closed_anyway() {
    every_interleaving(|| {
        let watched = Watched::new();
        let other = Arc::clone(&watched);
        // `Shared::wake_reaper` abandons the watch if the system cannot create a thread.
        let other = thread::spawn(move || drop(other.lists.abandon_watch()));
        let list = watched.lists.of_a_thread();
        watched.put_back(&list);
        other.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn no_pipe_stays_idle_in_a_pool_that_is_closed_concurrently() {
    every_interleaving(|| {
        let lists = Arc::new(FreeLists::new());
        let (giver, leaver) = (Arc::clone(&lists), Arc::clone(&lists));
        let giver = thread::spawn(move || {
            let list = giver.of_a_thread();
            if let Some(place) = giver.place_on(&list, CLASS, 1) {
                place.put(Pipe);
            }
            list
        });
        let left = lists.of_a_thread();
        lists.place_on(&left, CLASS, 1).expect("room").put(Pipe);
        let leaver = thread::spawn(move || leaver.inherit(&left));
        drop(lists.close());
        let _kept_for_the_count = giver.join().unwrap();
        leaver.join().unwrap();
        assert_eq!(idle(&lists), 0);
    });
}

/// Returns a function that creates a budget of this many pipes of 64 KiB.
fn budget_of(pipes: usize) -> impl Fn() -> Arc<Budget> {
    let pages = pipes * CLASS.bytes() / rustix::param::page_size();
    // The limits are computed once, because `of_this_process` reads files.
    let limits = Limits::of_this_process().with_max_pipes(pipes).with_max_pages(pages);
    move || Arc::new(Budget::new(&limits))
}

#[track_caller]
fn assert_within(pipes: usize, budget: &Budget) {
    let pages = pipes * CLASS.bytes() / rustix::param::page_size();
    assert!(budget.pipes() <= pipes, "{} pipes of {pipes}", budget.pipes());
    assert!(budget.pages() <= pages, "{} pages of {pages}", budget.pages());
}

#[test]
fn concurrent_reservations_stay_within_the_limits() {
    let new_budget = budget_of(1);
    every_interleaving(move || {
        let budget = new_budget();
        let open_and_close = |budget: &Budget| {
            let reserved = budget.reserve(CLASS.bytes());
            assert_within(1, budget);
            if reserved.is_ok() {
                budget.release(CLASS.bytes());
            }
            reserved
        };
        let other = Arc::clone(&budget);
        let other = thread::spawn(move || open_and_close(&other));
        let outcomes = [open_and_close(&budget), other.join().unwrap()];
        assert!(outcomes.contains(&Ok(())), "one of them had room: {outcomes:?}");
        assert_eq!((budget.pipes(), budget.pages()), (0, 0));
    });
}

#[test]
fn a_correction_during_reservations_stays_within_the_limits() {
    let new_budget = budget_of(4);
    every_interleaving(move || {
        let budget = new_budget();
        let other = Arc::clone(&budget);
        let other = thread::spawn(move || {
            let reserved = other.reserve(CLASS.bytes());
            assert_within(4, &other);
            if reserved.is_ok() {
                other.release(CLASS.bytes());
            }
        });
        if budget.reserve(SizeClass::Kib256.bytes()).is_ok() {
            budget.correct(SizeClass::Kib256.bytes(), CLASS.bytes());
            assert_within(4, &budget);
            budget.release(CLASS.bytes());
        }
        other.join().unwrap();
        assert_eq!((budget.pipes(), budget.pages()), (0, 0));
    });
}

/// An open pipe as the pool lends it. When the pipe closes, its room in the budget becomes free.
struct Open(Arc<Budget>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.release(CLASS.bytes());
    }
}

/// Does what `Shared::find_or_create` does.
fn find_or_create(lists: &FreeLists<Open>, budget: &Arc<Budget>) -> Result<Open, Reason> {
    loop {
        if let Some(open) = lists.search(CLASS) {
            return Ok(open);
        }
        let refused = match budget.reserve(CLASS.bytes()) {
            Ok(()) => return Ok(Open(Arc::clone(budget))),
            Err(refused) => refused,
        };
        if lists.take_all().is_empty() {
            return Err(refused);
        }
    }
}

#[test]
fn threads_at_the_limit_reuse_each_others_pipes_and_open_no_more() {
    let new_budget = budget_of(1);
    every_interleaving(move || {
        let (lists, budget) = (Arc::new(FreeLists::new()), new_budget());
        let lend_and_shelve = |lists: &FreeLists<Open>, budget: &Arc<Budget>| {
            let list = lists.of_a_thread();
            if let Ok(open) = find_or_create(lists, budget) {
                assert_within(1, budget);
                lists.place_on(&list, CLASS, 1).expect("room").put(open);
            }
            list
        };
        let (other_shelves, other_budget) = (Arc::clone(&lists), Arc::clone(&budget));
        let other = thread::spawn(move || lend_and_shelve(&other_shelves, &other_budget));
        let _shelf = lend_and_shelve(&lists, &budget);
        let _other_shelf = other.join().unwrap();
        assert_eq!(budget.pipes(), 1, "what was lent is shelved");
        drop(find_or_create(&lists, &budget).unwrap_or_else(|refused| panic!("{refused}")));
        assert_eq!((budget.pipes(), budget.pages()), (0, 0));
    });
}
