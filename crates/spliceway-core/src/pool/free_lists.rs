//! [`FreeLists`] holds all free lists of one pool. It finds idle pipes for reuse, and it records
//! whether a reaper watches them.
//!
//! The lists maintain two invariants under all concurrent calls. Both depend on the order of a few
//! lines. loom checks that order in every interleaving (`cargo xtask loom`):
//! - After a pool is closed, no pipe stays on a free list.
//! - No pipe is idle without a reaper. A thread that puts a pipe on a list while no reaper runs
//!   sees this, and starts one.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::SizeClass;
use super::free_list::FreeList;
use crate::sync::{AtomicBool, Mutex, MutexGuard, lock, try_lock};

pub(super) struct FreeLists<T> {
    /// Set once, before the lists are emptied for the last time. After that, no list accepts a
    /// pipe.
    closed: AtomicBool,
    /// Set while a reaper runs. The reaper clears it before its last scan of the lists.
    watched: AtomicBool,
    /// The shared list. It holds the idle pipes that did not fit on a thread's own list.
    overflow: Mutex<FreeList<T>>,
    /// Every thread's list, for the reaper, for searches and for counting.
    of_threads: Mutex<Threads<T>>,
}

/// An acquire searches at most this many lists of other threads. The next search continues with the
/// lists that follow.
const SEARCHED: usize = 8;

struct Threads<T> {
    lists: Vec<Weak<Mutex<FreeList<T>>>>,
    /// The index at which the next search begins.
    next: usize,
    /// The number of lists that searches have visited so far.
    searched: u64,
}

impl<T> Threads<T> {
    /// Returns the next [`SEARCHED`] lists. The lists of threads that ended count towards that
    /// number and are removed.
    fn some(&mut self) -> Vec<Arc<Mutex<FreeList<T>>>> {
        let looks = self.lists.len().min(SEARCHED);
        let mut found = Vec::with_capacity(looks);
        for _ in 0..looks {
            if self.next >= self.lists.len() {
                self.next = 0;
            }
            match self.lists.get(self.next).map(Weak::upgrade) {
                Some(Some(list)) => {
                    found.push(list);
                    self.next += 1;
                }
                Some(None) => drop(self.lists.swap_remove(self.next)),
                None => break,
            }
        }
        self.searched += found.len() as u64;
        found
    }
}

/// Room for one pipe on a list. The list stays locked until the pipe is put there.
#[must_use]
pub(super) struct Place<'list, T> {
    list: MutexGuard<'list, FreeList<T>>,
    class: SizeClass,
    watched: bool,
}

impl<T> Place<'_, T> {
    /// Returns whether a reaper will find the pipe that is put here. If not, the thread that puts
    /// it here starts a reaper.
    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    pub(super) fn put(mut self, pipe: T) {
        self.list.put(self.class, pipe);
    }
}

impl<T> FreeLists<T> {
    pub(super) fn new() -> Self {
        Self {
            closed: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            overflow: Mutex::new(FreeList::default()),
            of_threads: Mutex::new(Threads {
                lists: Vec::new(),
                next: 0,
                searched: 0,
            }),
        }
    }

    /// Creates a list for one thread. The pool visits the list for as long as the thread keeps it.
    pub(super) fn of_a_thread(&self) -> Arc<Mutex<FreeList<T>>> {
        let list = Arc::new(Mutex::new(FreeList::default()));
        lock(&self.of_threads).lists.push(Arc::downgrade(&list));
        list
    }

    /// Returns the shared list, which every thread may use.
    pub(super) fn overflow(&self) -> &Mutex<FreeList<T>> {
        &self.overflow
    }

    /// Returns a place if the list holds fewer than `room` pipes of this class. Returns `None` if
    /// the list has no such room or the pool is closed.
    pub(super) fn place_on<'list>(
        &self,
        list: &'list Mutex<FreeList<T>>,
        class: SizeClass,
        room: usize,
    ) -> Option<Place<'list, T>> {
        // Both flags are read under the list's lock. A thread that sets `closed` or clears
        // `watched` visits every list afterwards. If it visits this list later, it finds the pipe
        // that is put now. If it visited this list earlier, its change of the flag is visible here.
        let list = lock(list);
        if list.idle_of(class) >= room || self.closed.load(Ordering::Acquire) {
            return None;
        }
        let watched = self.watched.load(Ordering::Acquire);
        Some(Place { list, class, watched })
    }

    /// Takes over the list of a thread that ends. Returns whether the shared list took over pipes,
    /// in which case a reaper is needed.
    pub(super) fn inherit(&self, ended: &Mutex<FreeList<T>>) -> bool {
        let ended = mem::take(&mut *lock(ended));
        let leaves_pipes = ended.idle() > 0;
        let mut overflow = lock(&self.overflow);
        if self.closed.load(Ordering::Acquire) {
            return false; // No thread visits the lists again, so the pipes close here.
        }
        overflow.absorb(ended);
        leaves_pipes
    }

    /// Takes a pipe from the shared list, or from the list of one of the next few threads.
    pub(super) fn search(&self, class: SizeClass) -> Option<T> {
        if let Some(found) = lock(&self.overflow).take(class) {
            return Some(found);
        }
        let some = lock(&self.of_threads).some();
        some.iter().find_map(|list| lock(list).take(class))
    }

    /// Empties the shared list and the lists of the next few threads.
    pub(super) fn take_some(&self) -> Vec<T> {
        let mut taken = lock(&self.overflow).take_all();
        let some = lock(&self.of_threads).some();
        some.iter().for_each(|list| taken.append(&mut lock(list).take_all()));
        taken
    }

    /// Returns how many threads' lists have been searched so far.
    pub(super) fn searched(&self) -> u64 {
        lock(&self.of_threads).searched
    }

    /// In a forked child, takes the pipes off the parent's lists, without waiting for a lock. A
    /// lock that another thread of the parent held stays locked here for ever, because that thread
    /// does not exist here. The pipes that such a lock guards stay on their list.
    pub(super) fn abandon(&self) -> Vec<T> {
        let mut taken = Vec::new();
        if let Some(mut overflow) = try_lock(&self.overflow) {
            taken.append(&mut overflow.take_all());
        }
        if let Some(threads) = try_lock(&self.of_threads) {
            for list in threads.lists.iter().filter_map(Weak::upgrade) {
                if let Some(mut list) = try_lock(&list) {
                    taken.append(&mut list.take_all());
                }
            }
        }
        taken
    }

    /// Empties every list.
    pub(super) fn take_all(&self) -> Vec<T> {
        let mut taken = Vec::new();
        self.for_each(|list| taken.append(&mut list.take_all()));
        taken
    }

    /// Takes the pipes that have not been touched since the last call.
    pub(super) fn take_unneeded(&self) -> Vec<T> {
        let mut taken = Vec::new();
        self.for_each(|list| taken.append(&mut list.take_unneeded()));
        taken
    }

    /// Empties every list for the last time. After that, no list accepts a pipe.
    pub(super) fn close(&self) -> Vec<T> {
        self.closed.store(true, Ordering::Release);
        self.take_all()
    }

    /// Marks the lists as watched by the caller. Returns `false` if a reaper already watches them.
    pub(super) fn begin_watch(&self) -> bool {
        let begun = self
            .watched
            .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    /// Returns whether the reaper may end, because no pipe is idle or because another reaper
    /// watches now.
    pub(super) fn end_watch(&self) -> bool {
        if self.has_idle() {
            return false;
        }
        // The reaper clears the flag first and then checks the lists again. If a pipe became idle
        // in between, either this check finds it, or the thread that put it there saw that no
        // reaper watches.
        self.watched.store(false, Ordering::Release);
        !(self.has_idle() && self.begin_watch())
    }

    /// Ends the watch even if pipes are idle, and takes those pipes.
    pub(super) fn abandon_watch(&self) -> Vec<T> {
        self.watched.store(false, Ordering::Release);
        self.take_all()
    }

    fn has_idle(&self) -> bool {
        let mut idle = 0;
        self.for_each(|list| idle += list.idle());
        idle > 0
    }

    /// Runs `visit` on the shared list and on every thread's list, one lock at a time. It removes
    /// the lists of threads that ended.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&mut FreeList<T>)) {
        visit(&mut lock(&self.overflow));
        let lists = {
            let mut threads = lock(&self.of_threads);
            threads.lists.retain(|list| list.strong_count() > 0);
            threads.lists.clone()
        };
        for list in lists.iter().filter_map(Weak::upgrade) {
            visit(&mut lock(&list));
        }
    }
}
