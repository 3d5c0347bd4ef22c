//! The pool lends empty pipes up to a limit. It never splices.
//!
//! ```text
//!   acquire ─▶ this thread's free list
//!              ─▶ search: the shared list, then the lists of a few other threads
//!              ─▶ create a pipe, within the budget
//!              ─▶ do the same for each smaller class
//!              ─▶ close idle pipes and create once more
//!              ─▶ refuse
//!   drop    ─▶ clean: this thread's free list, or the shared list if that is full
//!              dirty: close
//!   idle    ─▶ the reaper, a thread of the pool, closes pipes that were not needed for a while,
//!              and ends with the last idle pipe
//! ```
//!
//! A hit acquires one uncontended lock and touches no memory that another thread writes. The pool
//! checks its limits and counts open pipes only when it creates or closes a pipe, which is rare.
//! After a search finds nothing, the thread skips the search for a number of acquires. At a limit,
//! an acquire therefore costs little more than a hit.
//!
//! A forked child has copies of its parent's pipes. If the child lent them, they would carry bytes
//! from one process to the other. The child closes its copies and starts with its own empty lists.

mod budget;
mod free_list;
mod free_lists;
#[cfg(all(test, loom))]
mod loom_tests;
mod reaper;

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::limits::{Limits, PoolStats, SizeClass};
use crate::pipe::Pipe;
use crate::reason::Reason;
use crate::sync::{Mutex, lock};
use crate::sys;
use budget::Budget;
use free_list::FreeList;
use free_lists::FreeLists;

/// A bounded pool of empty pipes. A clone is cheap and refers to the same pool.
///
/// [`Limits`] describes the limits, and what the pool does when it reaches them. Dropping the last
/// clone closes the idle pipes. Pipes that are still lent close when they come back.
#[derive(Clone)]
pub struct PipePool {
    owner: Arc<Owner>,
}

/// Closes a pool's idle pipes when the last [`PipePool`] is dropped. Lent pipes keep the [`Shared`]
/// part alive, not the pool.
struct Owner(Arc<Shared>);

pub(crate) struct Shared {
    /// The number of the process that created this part: see [`sys::fork_generation`].
    process: u32,
    /// In a forked child, this is the part that belongs to the child.
    in_child: OnceLock<Arc<Self>>,
    limits: Limits,
    budget: Budget,
    lists: FreeLists<Lent>,
    created: AtomicU64,
    closed_dirty: AtomicU64,
    closed_idle: AtomicU64,
    denied: [AtomicU64; Reason::ALL.len()],
}

/// One thread's free list for one pool. The weak reference pins the pool's address, which
/// identifies the list.
struct LocalFreeList {
    pool: Weak<Shared>,
    list: Arc<Mutex<FreeList<Lent>>>,
    /// For each class, the number of acquires that still skip the search of other lists.
    unsearched: [u8; SizeClass::ALL.len()],
}

/// After a search for a class finds no pipe, the thread skips the search in its next acquires of
/// that class. This is the number of those acquires. It corresponds to 16 MiB of bulk data or more.
const SEARCH_AFTER: u8 = 64;

thread_local! {
    /// A linear scan finds the entry, because there are few pools. Usually there is only the global
    /// one.
    static LOCAL: RefCell<Vec<LocalFreeList>> = const { RefCell::new(Vec::new()) };
}

impl Drop for LocalFreeList {
    /// Runs when the thread ends. Its pipes move to the shared list, where other threads find them.
    /// The shared list also takes over its count of reused pipes.
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade()
            && pool.is_of_this_process()
            && pool.lists.inherit(&self.list)
        {
            pool.wake_reaper();
        }
    }
}

impl PipePool {
    /// Returns the pool of this process. The first call creates it, with the limits from
    /// [`Limits::of_this_process`].
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<PipePool> = OnceLock::new();
        GLOBAL.get_or_init(|| Self::new(Limits::of_this_process()))
    }

    /// Creates a separate pool with its own limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            owner: Arc::new(Owner(Arc::new(Shared::new(limits)))),
        }
    }

    /// Lends an empty pipe of `class`, or of a smaller class if the budget or the kernel does not
    /// allow that size.
    ///
    /// Lending an idle pipe takes tens of nanoseconds. Creating a pipe takes a few microseconds.
    /// The call never waits for a lent pipe to come back. In a forked child, the first call closes
    /// the parent's pipes, and the pool never lends them there.
    ///
    /// # Errors
    /// Returns the [`Reason`] why there is no pipe, and counts it. The reason holds for this moment
    /// only, so the caller can try again later.
    pub fn acquire(&self, class: SizeClass) -> Result<PooledPipe, Reason> {
        let shared = self.owner.0.here();
        let lent = match shared.idle_here(class) {
            Some(lent) => lent,
            None => shared.find_or_create(class)?,
        };
        debug_assert!(lent.0.pipe.is_clean(), "the pool lends clean pipes only");
        Ok(PooledPipe { lent: Some(lent) })
    }

    /// Returns the counters and gauges.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let shared = self.owner.0.here();
        let (mut idle, mut reused) = (0, 0);
        shared.lists.for_each(|list| {
            idle += list.idle();
            reused += list.reused;
        });
        let counted = |reason: Reason| (reason, shared.denied[reason as usize].load(Ordering::Relaxed));
        PoolStats {
            created: shared.created.load(Ordering::Relaxed),
            reused,
            lent: shared.budget.pipes().saturating_sub(idle),
            idle,
            searched: shared.lists.searched(),
            pages: shared.budget.pages(),
            closed_dirty: shared.closed_dirty.load(Ordering::Relaxed),
            closed_idle: shared.closed_idle.load(Ordering::Relaxed),
            denied: Reason::ALL
                .into_iter()
                .map(counted)
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    /// Returns the limits that the pool was created with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.owner.0.limits
    }
}

impl Shared {
    fn new(limits: Limits) -> Self {
        Self {
            process: sys::fork_generation(),
            in_child: OnceLock::new(),
            budget: Budget::new(&limits),
            limits,
            lists: FreeLists::new(),
            created: AtomicU64::new(0),
            closed_dirty: AtomicU64::new(0),
            closed_idle: AtomicU64::new(0),
            denied: Default::default(),
        }
    }

    #[inline]
    fn is_of_this_process(&self) -> bool {
        self.process == sys::fork_generation()
    }

    /// Returns this process's part of the pool.
    #[inline]
    fn here(self: &Arc<Self>) -> &Arc<Self> {
        if self.is_of_this_process() {
            self
        } else {
            self.after_fork()
        }
    }

    /// Returns the child's own part. The child does not use the parent's part, because threads that
    /// do not exist in the child may hold its locks. The parent's reaper is such a thread.
    #[cold]
    fn after_fork(&self) -> &Arc<Self> {
        let in_child = self.in_child.get_or_init(|| {
            drop(self.lists.abandon());
            Arc::new(Self::new(self.limits.clone()))
        });
        in_child.here()
    }

    /// Removes an idle pipe from this thread's free list and returns it.
    fn idle_here(self: &Arc<Self>, class: SizeClass) -> Option<Lent> {
        let local = LOCAL.try_with(|local| lock(&self.list_in(&mut local.borrow_mut()).list).take(class));
        local.ok().flatten()
    }

    /// Takes a pipe from another list, or creates one within the budget. If that fails, it tries
    /// the same for each smaller class. If there is still no pipe, it closes idle pipes to make
    /// room, because they hold budget that a busy relay can use.
    ///
    /// The search comes before the creation, because a task may move between workers. Such a task
    /// acquires pipes on one worker and returns them on another.
    #[cold]
    fn find_or_create(self: &Arc<Self>, class: SizeClass) -> Result<Lent, Reason> {
        let classes = || std::iter::successors(Some(class), |class| class.smaller());
        let mut refused = None;
        let mut searches = false;
        for class in classes() {
            if let Some(pipe) = self.idle_here(class) {
                return Ok(pipe);
            }
            searches = self.may_search(class);
            let found = if searches { self.lists.search(class) } else { None };
            match found.map_or_else(|| self.create(class), Ok) {
                Ok(pipe) => return Ok(pipe),
                Err(reason) => refused = refused.or(Some(reason)),
            }
            if searches {
                self.search_later(class);
            }
        }
        let refused = refused.expect("one class at least");
        if self.evict_idle(searches) > 0
            && let Some(pipe) = classes().find_map(|class| self.create(class).ok())
        {
            return Ok(pipe);
        }
        self.denied[refused as usize].fetch_add(1, Ordering::Relaxed);
        Err(refused)
    }

    /// Returns whether this thread may search other lists for this class. If not, the call counts
    /// down to the next search.
    fn may_search(self: &Arc<Self>, class: SizeClass) -> bool {
        let may = LOCAL.try_with(|local| {
            let mut local = local.borrow_mut();
            let unsearched = &mut self.list_in(&mut local).unsearched[class as usize];
            let may = *unsearched == 0;
            *unsearched = unsearched.saturating_sub(1);
            may
        });
        may.unwrap_or(true)
    }

    /// Makes the next acquires of this class skip the search. This thread searched, and there was
    /// neither a pipe of this class nor room for one.
    fn search_later(self: &Arc<Self>, class: SizeClass) {
        let _ = LOCAL.try_with(|local| self.list_in(&mut local.borrow_mut()).unsearched[class as usize] = SEARCH_AFTER);
    }

    fn create(self: &Arc<Self>, class: SizeClass) -> Result<Lent, Reason> {
        self.budget.reserve(class.bytes())?;
        let mut reservation = Reservation {
            pool: Arc::clone(self),
            capacity: class.bytes(),
        };
        let pipe = Pipe::with_capacity(class.bytes()).map_err(|error| Reason::of_error(&error))?;
        reservation.correct(pipe.capacity());
        let lent = Lent(Box::new(Open { pipe, reservation }));
        if SizeClass::of_capacity(lent.0.pipe.capacity()).is_none() {
            return Err(Reason::Undersized);
        }
        self.created.fetch_add(1, Ordering::Relaxed);
        Ok(lent)
    }

    /// Closes the idle pipes of this thread and returns how many it closed. With `of_others`, it
    /// also closes those on the shared list and on the lists of a few other threads.
    fn evict_idle(self: &Arc<Self>, of_others: bool) -> usize {
        let own = LOCAL.try_with(|local| lock(&self.list_in(&mut local.borrow_mut()).list).take_all());
        let mut idle = own.unwrap_or_default();
        if of_others {
            idle.append(&mut self.lists.take_some());
        }
        self.close_idle(idle)
    }

    fn close_idle(&self, idle: Vec<Lent>) -> usize {
        self.closed_idle.fetch_add(idle.len() as u64, Ordering::Relaxed);
        idle.len()
    }

    /// Returns this thread's list for this pool. The first call creates it.
    fn list_in<'local>(self: &Arc<Self>, local: &'local mut Vec<LocalFreeList>) -> &'local mut LocalFreeList {
        let found = local
            .iter()
            .position(|entry| std::ptr::eq(entry.pool.as_ptr(), Arc::as_ptr(self)));
        let index = found.unwrap_or_else(|| {
            local.retain(|entry| entry.pool.strong_count() > 0);
            local.push(self.new_list());
            local.len() - 1
        });
        &mut local[index]
    }

    #[cold]
    fn new_list(self: &Arc<Self>) -> LocalFreeList {
        LocalFreeList {
            pool: Arc::downgrade(self),
            list: self.lists.of_a_thread(),
            unsearched: [0; SizeClass::ALL.len()],
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        for part in std::iter::successors(Some(&self.0), |part| part.in_child.get()) {
            if part.is_of_this_process() {
                part.close_idle(part.lists.close());
            } else {
                drop(part.lists.abandon());
            }
        }
    }
}

/// An open pipe of a pool, lent or idle. It is boxed, so that only its address moves. Copying its
/// fields from owner to owner took a third of the time of a hit.
pub(crate) struct Lent(Box<Open>);

/// The reference to the pool stays with the pipe, so a hit changes no reference count. Dropping an
/// `Open` drops its fields in order: it closes the pipe and then frees its room in the budget.
struct Open {
    pipe: Pipe,
    reservation: Reservation,
}

/// A reservation for one pipe in a pool's budget. Dropping it frees the room.
pub(crate) struct Reservation {
    pool: Arc<Shared>,
    capacity: usize,
}

impl Reservation {
    /// Makes the budget count the granted capacity. The kernel may grant less than was reserved
    /// (soft limit) or more (large pages).
    fn correct(&mut self, granted: usize) {
        self.pool.budget.correct(self.capacity, granted);
        self.capacity = granted;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.budget.release(self.capacity);
    }
}

impl Lent {
    fn pool(&self) -> &Arc<Shared> {
        &self.0.reservation.pool
    }

    /// Returns the pipe to the pool. A clean pipe goes on a free list, and any other pipe is
    /// closed. In a forked child, every pipe is closed, because the parent has it too.
    fn give_back(self) {
        if !self.pool().is_of_this_process() {
            return;
        }
        match SizeClass::of_capacity(self.0.pipe.capacity()) {
            Some(class) if self.0.pipe.is_clean() => self.put_back(class),
            _ => self.close_dirty(),
        }
    }

    fn close_dirty(self) {
        self.pool().closed_dirty.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts the pipe on this thread's list, or on the shared list if this thread's list is full.
    /// The pipe is closed if the pool is gone or the thread is ending.
    fn put_back(self, class: SizeClass) {
        let local = LOCAL.try_with(|local| {
            let room = self.pool().limits.idle_per_thread;
            let mut local = local.borrow_mut();
            let list = &self.pool().list_in(&mut local).list;
            self.put_on(list, class, room)
        });
        let unwatched = match local {
            Ok(Err(surplus)) => {
                let pool = Arc::clone(surplus.pool());
                surplus.put_on(pool.lists.overflow(), class, usize::MAX).ok().flatten()
            }
            Ok(Ok(unwatched)) => unwatched,
            Err(_) => None,
        };
        if let Some(pool) = unwatched {
            pool.wake_reaper();
        }
    }

    /// Puts the pipe on `list`. Returns the pool if no reaper watches its lists. If the list has no
    /// room or the pool is closed, the function returns the pipe as the error.
    fn put_on(self, list: &Mutex<FreeList<Lent>>, class: SizeClass, room: usize) -> Result<Option<Arc<Shared>>, Self> {
        let Some(place) = self.pool().lists.place_on(list, class, room) else {
            return Err(self);
        };
        let unwatched = (!place.is_watched()).then(|| Arc::clone(self.pool()));
        place.put(self);
        Ok(unwatched)
    }
}

/// A lent pipe. Dropping it gives it back to the pool. A clean pipe becomes idle. A pipe that holds
/// bytes, or on which a call failed, is closed.
pub struct PooledPipe {
    lent: Option<Lent>,
}

impl PooledPipe {
    /// Closes the pipe in any state. It is for a caller that does not trust the pipe's content.
    pub fn discard(mut self) {
        if let Some(lent) = self.lent.take() {
            lent.close_dirty();
        }
    }

    /// Returns the pipe, to be closed and never lent again, and its room in the budget. Drop the
    /// pipe first.
    pub(crate) fn into_pipe(mut self) -> (Pipe, Reservation) {
        let Open { pipe, reservation } = *self.lent.take().expect("lent until dropped").0;
        (pipe, reservation)
    }

    /// Returns the class that this pipe serves.
    #[must_use]
    pub fn class(&self) -> SizeClass {
        SizeClass::of_capacity(self.capacity()).unwrap_or(SizeClass::Kib64)
    }
}

impl Deref for PooledPipe {
    type Target = Pipe;

    fn deref(&self) -> &Pipe {
        &self.lent.as_ref().expect("lent until dropped").0.pipe
    }
}

impl DerefMut for PooledPipe {
    fn deref_mut(&mut self) -> &mut Pipe {
        &mut self.lent.as_mut().expect("lent until dropped").0.pipe
    }
}

impl Drop for PooledPipe {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.give_back();
        }
    }
}

impl fmt::Debug for PooledPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Debug for PipePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipePool")
            .field("limits", self.limits())
            .field("stats", &self.stats())
            .finish()
    }
}
