//! All shelves of one pool: where what idles is found again, and the word of who watches it.
//!
//! Two promises, whatever the threads do at the same time; both rest on the order of a few lines, which loom tries in every
//! interleaving (`cargo xtask loom`):
//! - once a pool is closed, nothing stays shelved;
//! - nothing idles unwatched: whoever shelves it while no reaper runs is told so, and starts one.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::SizeClass;
use super::shelf::Shelf;
use crate::sync::{AtomicBool, Mutex, MutexGuard, lock, try_lock};

pub(super) struct Shelves<T> {
    /// Set once, before the shelves are emptied for the last time: nothing is shelved any more.
    closed: AtomicBool,
    /// A reaper runs. Its last look at the shelves comes after it took this back.
    watched: AtomicBool,
    /// What did not fit a thread's own shelf.
    overflow: Mutex<Shelf<T>>,
    /// Every thread's shelf, for the reaper, for searches and for counting.
    of_threads: Mutex<Threads<T>>,
}

/// An acquire looks at no more than so many shelves of other threads, the next ones in turn, however many threads there are.
const SEARCHED: usize = 8;

struct Threads<T> {
    shelves: Vec<Weak<Mutex<Shelf<T>>>>,
    /// Where the next search begins.
    next: usize,
    /// Shelves that searches have looked at so far.
    searched: u64,
}

impl<T> Threads<T> {
    /// The next [`SEARCHED`] shelves. Those of threads that ended count, and are forgotten.
    fn some(&mut self) -> Vec<Arc<Mutex<Shelf<T>>>> {
        let looks = self.shelves.len().min(SEARCHED);
        let mut found = Vec::with_capacity(looks);
        for _ in 0..looks {
            if self.next >= self.shelves.len() {
                self.next = 0;
            }
            match self.shelves.get(self.next).map(Weak::upgrade) {
                Some(Some(shelf)) => {
                    found.push(shelf);
                    self.next += 1;
                }
                Some(None) => drop(self.shelves.swap_remove(self.next)),
                None => break,
            }
        }
        self.searched += found.len() as u64;
        found
    }
}

/// Room on a shelf that is locked until something is put there.
#[must_use]
pub(super) struct Place<'shelf, T> {
    shelf: MutexGuard<'shelf, Shelf<T>>,
    class: SizeClass,
    watched: bool,
}

impl<T> Place<'_, T> {
    /// Whether a reaper will find what is put here. If not, whoever puts it there starts one.
    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    pub(super) fn put(mut self, pipe: T) {
        self.shelf.put(self.class, pipe);
    }
}

impl<T> Shelves<T> {
    pub(super) fn new() -> Self {
        Self {
            closed: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            overflow: Mutex::new(Shelf::default()),
            of_threads: Mutex::new(Threads {
                shelves: Vec::new(),
                next: 0,
                searched: 0,
            }),
        }
    }

    /// A new shelf, which is visited for as long as its thread keeps it.
    pub(super) fn of_a_thread(&self) -> Arc<Mutex<Shelf<T>>> {
        let shelf = Arc::new(Mutex::new(Shelf::default()));
        lock(&self.of_threads).shelves.push(Arc::downgrade(&shelf));
        shelf
    }

    /// The shelf that every thread may use.
    pub(super) fn overflow(&self) -> &Mutex<Shelf<T>> {
        &self.overflow
    }

    /// A place among fewer than `room` of its class; `None` if there is no such room, or the pool is closed.
    pub(super) fn place_on<'shelf>(
        &self,
        shelf: &'shelf Mutex<Shelf<T>>,
        class: SizeClass,
        room: usize,
    ) -> Option<Place<'shelf, T>> {
        // Both flags are read under the shelf's lock. Whoever sets `closed`, or takes `watched` back, looks at every shelf
        // afterwards: it either finds there what is put now, or was there before, and then its word is seen here.
        let shelf = lock(shelf);
        if shelf.idle_of(class) >= room || self.closed.load(Ordering::Acquire) {
            return None;
        }
        let watched = self.watched.load(Ordering::Acquire);
        Some(Place { shelf, class, watched })
    }

    /// Takes over the shelf of a thread that ends: whether there was something on it, so that a reaper is wanted.
    pub(super) fn inherit(&self, ended: &Mutex<Shelf<T>>) -> bool {
        let ended = mem::take(&mut *lock(ended));
        let leaves_pipes = ended.idle() > 0;
        let mut overflow = lock(&self.overflow);
        if self.closed.load(Ordering::Acquire) {
            return false; // Nobody will look there again: the pipes close here.
        }
        overflow.absorb(ended);
        leaves_pipes
    }

    /// From the shared shelf, or from one of the next few threads'.
    pub(super) fn search(&self, class: SizeClass) -> Option<T> {
        if let Some(found) = lock(&self.overflow).take(class) {
            return Some(found);
        }
        let some = lock(&self.of_threads).some();
        some.iter().find_map(|shelf| lock(shelf).take(class))
    }

    /// Empties the shared shelf and those of the next few threads.
    pub(super) fn take_some(&self) -> Vec<T> {
        let mut taken = lock(&self.overflow).take_all();
        let some = lock(&self.of_threads).some();
        some.iter().for_each(|shelf| taken.append(&mut lock(shelf).take_all()));
        taken
    }

    /// Shelves of threads that searches have looked at so far.
    pub(super) fn searched(&self) -> u64 {
        lock(&self.of_threads).searched
    }

    /// In a forked child: takes what can be taken off the parent's shelves without waiting. What another thread of the parent had
    /// locked stays locked here for ever, as that thread does not exist here.
    pub(super) fn abandon(&self) -> Vec<T> {
        let mut taken = Vec::new();
        if let Some(mut overflow) = try_lock(&self.overflow) {
            taken.append(&mut overflow.take_all());
        }
        if let Some(threads) = try_lock(&self.of_threads) {
            for shelf in threads.shelves.iter().filter_map(Weak::upgrade) {
                if let Some(mut shelf) = try_lock(&shelf) {
                    taken.append(&mut shelf.take_all());
                }
            }
        }
        taken
    }

    /// Empties every shelf.
    pub(super) fn take_all(&self) -> Vec<T> {
        let mut taken = Vec::new();
        self.for_each(|shelf| taken.append(&mut shelf.take_all()));
        taken
    }

    /// Takes what nobody touched since this was last called.
    pub(super) fn take_unneeded(&self) -> Vec<T> {
        let mut taken = Vec::new();
        self.for_each(|shelf| taken.append(&mut shelf.take_unneeded()));
        taken
    }

    /// Empties every shelf for the last time: from now on nothing is shelved.
    pub(super) fn close(&self) -> Vec<T> {
        self.closed.store(true, Ordering::Release);
        self.take_all()
    }

    /// Whether the caller is to watch: false if somebody does.
    pub(super) fn begin_watch(&self) -> bool {
        let begun = self
            .watched
            .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    /// Whether whoever watches may end, because nothing idles or because another watches now.
    pub(super) fn end_watch(&self) -> bool {
        if self.has_idle() {
            return false;
        }
        // Say so first, then look again: what was shelved in between either is seen here, or its owner saw that nobody watches.
        self.watched.store(false, Ordering::Release);
        !(self.has_idle() && self.begin_watch())
    }

    /// Ends the watch although something may idle, and takes that.
    pub(super) fn abandon_watch(&self) -> Vec<T> {
        self.watched.store(false, Ordering::Release);
        self.take_all()
    }

    fn has_idle(&self) -> bool {
        let mut idle = 0;
        self.for_each(|shelf| idle += shelf.idle());
        idle > 0
    }

    /// Runs `visit` on the overflow and on every thread's shelf, one lock at a time. Forgets shelves of threads that ended.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&mut Shelf<T>)) {
        visit(&mut lock(&self.overflow));
        let shelves = {
            let mut threads = lock(&self.of_threads);
            threads.shelves.retain(|shelf| shelf.strong_count() > 0);
            threads.shelves.clone()
        };
        for shelf in shelves.iter().filter_map(Weak::upgrade) {
            visit(&mut lock(&shelf));
        }
    }
}
