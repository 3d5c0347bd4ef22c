//! What the pool's shelves and its budget promise, in every interleaving of a few threads.
//!
//! What is shelved here is no pipe, so that a run makes no system call; there are thousands. Whoever is told to start a reaper
//! becomes one.

use std::sync::Arc;
// Counts what is asserted; loom has no need to see it.
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::budget::{Budget, Limits};
use super::shelf::Shelf;
use super::shelves::Shelves;
use super::{Reason, SizeClass};
use crate::sync::{Mutex, every_interleaving};

const CLASS: SizeClass = SizeClass::Kib64;

struct Pipe;

/// A pool's shelves, and what a reaper and the threads of a program do with them.
struct Watched {
    shelves: Shelves<Pipe>,
    reapers: AtomicUsize,
}

impl Watched {
    /// Shelves that a reaper watches already.
    fn new() -> Arc<Self> {
        let shelves = Shelves::new();
        assert!(shelves.begin_watch());
        Arc::new(Self {
            shelves,
            reapers: AtomicUsize::new(0),
        })
    }

    fn reaper(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let watched = Arc::clone(self);
        thread::spawn(move || watched.reap())
    }

    /// As `pool/reaper.rs` does, without waiting between two visits.
    fn reap(&self) {
        loop {
            let others = self.reapers.fetch_add(1, Ordering::Relaxed);
            assert_eq!(others, 0, "one reaper is enough");
            drop(self.shelves.take_unneeded());
            // Another may begin before this one knows that it may end.
            self.reapers.fetch_sub(1, Ordering::Relaxed);
            if self.shelves.end_watch() {
                return;
            }
        }
    }

    fn wake_reaper(&self) {
        if self.shelves.begin_watch() {
            self.reap();
        }
    }

    fn shelve(&self, shelf: &Mutex<Shelf<Pipe>>) {
        let place = self.shelves.place_on(shelf, CLASS, 1).expect("room");
        let watched = place.is_watched();
        place.put(Pipe);
        if !watched {
            self.wake_reaper();
        }
    }

    #[track_caller]
    fn assert_all_reaped(&self) {
        assert_eq!(idle(&self.shelves), 0, "idle with nobody to close it");
        assert!(self.shelves.begin_watch(), "the last reaper said that it ended");
    }
}

fn idle(shelves: &Shelves<Pipe>) -> usize {
    let mut idle = 0;
    shelves.for_each(|shelf| idle += shelf.idle());
    idle
}

#[test]
fn a_pipe_shelved_while_the_reaper_ends_is_reaped() {
    every_interleaving(|| {
        let watched = Watched::new();
        let reaper = watched.reaper();
        let shelf = watched.shelves.of_a_thread();
        watched.shelve(&shelf);
        reaper.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn pipes_of_two_threads_shelved_while_the_reaper_ends_are_reaped() {
    every_interleaving(|| {
        let watched = Watched::new();
        let reaper = watched.reaper();
        let other = Arc::clone(&watched);
        let other = thread::spawn(move || other.shelve(other.shelves.overflow()));
        let shelf = watched.shelves.of_a_thread();
        watched.shelve(&shelf);
        other.join().unwrap();
        reaper.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn a_pipe_that_changes_shelves_while_the_reaper_ends_is_reaped() {
    every_interleaving(|| {
        let watched = Watched::new();
        let shelf = watched.shelves.of_a_thread();
        watched.shelve(&shelf);
        let reaper = watched.reaper();
        // From a shelf that is visited last to the one that is visited first.
        if watched.shelves.search(CLASS).is_some() {
            watched.shelve(watched.shelves.overflow());
        }
        reaper.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn what_a_thread_leaves_that_ends_while_the_reaper_ends_is_reaped() {
    every_interleaving(|| {
        let watched = Watched::new();
        let shelf = watched.shelves.of_a_thread();
        watched.shelve(&shelf);
        let reaper = watched.reaper();
        if watched.shelves.inherit(&shelf) {
            watched.wake_reaper();
        }
        drop(shelf);
        reaper.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn without_a_thread_to_reap_what_is_shelved_is_closed_all_the_same() {
    every_interleaving(|| {
        let watched = Watched::new();
        let other = Arc::clone(&watched);
        // The system gave no thread: as `Shared::wake_reaper` does.
        let other = thread::spawn(move || drop(other.shelves.abandon_watch()));
        let shelf = watched.shelves.of_a_thread();
        watched.shelve(&shelf);
        other.join().unwrap();
        watched.assert_all_reaped();
    });
}

#[test]
fn nothing_stays_shelved_in_a_pool_that_is_closed_meanwhile() {
    every_interleaving(|| {
        let shelves = Arc::new(Shelves::new());
        let (giver, leaver) = (Arc::clone(&shelves), Arc::clone(&shelves));
        let giver = thread::spawn(move || {
            let shelf = giver.of_a_thread();
            if let Some(place) = giver.place_on(&shelf, CLASS, 1) {
                place.put(Pipe);
            }
            shelf
        });
        let left = shelves.of_a_thread();
        shelves.place_on(&left, CLASS, 1).expect("room").put(Pipe);
        let leaver = thread::spawn(move || leaver.inherit(&left));
        drop(shelves.close());
        let _kept_for_the_count = giver.join().unwrap();
        leaver.join().unwrap();
        assert_eq!(idle(&shelves), 0);
    });
}

/// Limits of so many pipes of 64 KiB.
fn budget_of(pipes: usize) -> impl Fn() -> Arc<Budget> {
    let pages = pipes * CLASS.bytes() / rustix::param::page_size();
    // Once, because it reads files.
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
fn threads_that_reserve_at_once_stay_within_the_limits_and_leave_nothing_behind() {
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
fn a_pipe_smaller_than_was_asked_for_is_corrected_within_the_limits_while_others_reserve() {
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

/// An open pipe as the pool lends it: its room in the budget is free again when it closes.
struct Open(Arc<Budget>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.release(CLASS.bytes());
    }
}

/// As `Shared::find_or_create` does.
fn find_or_create(shelves: &Shelves<Open>, budget: &Arc<Budget>) -> Result<Open, Reason> {
    loop {
        if let Some(open) = shelves.search(CLASS) {
            return Ok(open);
        }
        let refused = match budget.reserve(CLASS.bytes()) {
            Ok(()) => return Ok(Open(Arc::clone(budget))),
            Err(refused) => refused,
        };
        if shelves.take_all().is_empty() {
            return Err(refused);
        }
    }
}

#[test]
fn threads_at_the_limit_take_each_others_pipes_and_open_none_above_it() {
    let new_budget = budget_of(1);
    every_interleaving(move || {
        let (shelves, budget) = (Arc::new(Shelves::new()), new_budget());
        let lend_and_shelve = |shelves: &Shelves<Open>, budget: &Arc<Budget>| {
            let shelf = shelves.of_a_thread();
            if let Ok(open) = find_or_create(shelves, budget) {
                assert_within(1, budget);
                shelves.place_on(&shelf, CLASS, 1).expect("room").put(open);
            }
            shelf
        };
        let (other_shelves, other_budget) = (Arc::clone(&shelves), Arc::clone(&budget));
        let other = thread::spawn(move || lend_and_shelve(&other_shelves, &other_budget));
        let _shelf = lend_and_shelve(&shelves, &budget);
        let _other_shelf = other.join().unwrap();
        assert_eq!(budget.pipes(), 1, "what was lent is shelved");
        drop(find_or_create(&shelves, &budget).unwrap_or_else(|refused| panic!("{refused}")));
        assert_eq!((budget.pipes(), budget.pages()), (0, 0));
    });
}
