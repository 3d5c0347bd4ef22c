//! Lends empty pipes up to a limit; never splices.
//!
//! ```text
//!   acquire ─▶ this thread's shelf ─▶ search: shared shelf, a few threads' ─▶ create, within the budget ─▶ smaller class
//!              ─▶ close what is idle, once more ─▶ no
//!   drop    ─▶ clean?  this thread's shelf, and what is too many for it ─▶ shared shelf
//!              dirty?  closed
//!   idle    ─▶ what no shelf needed for a while is closed by a thread of the pool's own, which ends with the last idle pipe
//! ```
//!
//! A hit takes one uncontended lock and touches no memory that another thread writes. All limits and counts of open pipes are
//! moved where pipes are created and closed, which is rare. A search that found nothing is not repeated for a number of acquires, so at a
//! limit an acquire costs little more than a hit.
//!
//! A forked child has copies of its parent's pipes: lent there, they would carry bytes from one process to the other. The child closes them
//! and starts with empty shelves of its own.

mod budget;
#[cfg(all(test, loom))]
mod loom_tests;
mod reaper;
mod shelf;
mod shelves;

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::pipe::Pipe;
use crate::reason::Reason;
use crate::sync::{Mutex, lock};
use crate::sys;
use budget::Budget;
pub use budget::Limits;
use shelf::Shelf;
use shelves::Shelves;

/// Sizes a pool lends. Few, so that any pipe of a class is as good as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SizeClass {
    /// 64 KiB, the kernel's default: best where fragments are as small as a segment.
    Kib64,
    /// 256 KiB: takes most of the gain where fragments are large.
    Kib256,
    /// 1 MiB, the default of `fs.pipe-max-size`: for bulk whose sink keeps up. 64 of them are all the pages a user may
    /// hold, so they are made from the first half of a pool's pages only.
    Mib1,
}

impl SizeClass {
    /// Every class, smallest first.
    pub const ALL: [Self; 3] = [Self::Kib64, Self::Kib256, Self::Mib1];

    /// The nominal size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Kib64 => 64 << 10,
            Self::Kib256 => 256 << 10,
            Self::Mib1 => 1 << 20,
        }
    }

    /// The next class up, or `self` at the top.
    #[must_use]
    pub const fn larger(self) -> Self {
        match self {
            Self::Kib64 => Self::Kib256,
            Self::Kib256 | Self::Mib1 => Self::Mib1,
        }
    }

    /// The next class down, if there is one.
    #[must_use]
    pub const fn smaller(self) -> Option<Self> {
        match self {
            Self::Kib64 => None,
            Self::Kib256 => Some(Self::Kib64),
            Self::Mib1 => Some(Self::Kib256),
        }
    }

    /// The class a pipe of this capacity serves; `None` if it is too small for any.
    fn of_capacity(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|class| class.bytes() <= bytes)
    }
}

/// A bounded pool of empty pipes, cheap to clone: clones are the same pool.
///
/// Limits and what happens at them: [`Limits`]. Dropping the last clone closes the idle pipes; pipes still lent close when they
/// come back.
#[derive(Clone)]
pub struct PipePool {
    owner: Arc<Owner>,
}

/// Closes a pool's idle pipes when the last [`PipePool`] goes. (Lent pipes keep the [`Shared`] part alive, not the pool.)
struct Owner(Arc<Shared>);

pub(crate) struct Shared {
    /// The process that made it: see [`sys::fork_generation`].
    process: u32,
    /// In a forked child: the part that is its own.
    in_child: OnceLock<Arc<Self>>,
    limits: Limits,
    budget: Budget,
    shelves: Shelves<Lent>,
    created: AtomicU64,
    closed_dirty: AtomicU64,
    closed_idle: AtomicU64,
    denied: [AtomicU64; Reason::ALL.len()],
}

/// One pool's shelf of one thread. The weak reference pins the pool's address, by which the shelf is found.
struct LocalShelf {
    pool: Weak<Shared>,
    shelf: Arc<Mutex<Shelf<Lent>>>,
    /// Acquires of each class that are not to search other shelves.
    unsearched: [u8; SizeClass::ALL.len()],
}

/// After a search for a class finds no pipe, the thread's next acquires of that class do not search.
/// This is their number: 16 MiB of bulk and more.
const SEARCH_AFTER: u8 = 64;

thread_local! {
    /// Few pools, so a scan; mostly the global one alone.
    static LOCAL: RefCell<Vec<LocalShelf>> = const { RefCell::new(Vec::new()) };
}

impl Drop for LocalShelf {
    /// The thread ends: its pipes go where other threads find them, and what it counted stays counted.
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade()
            && pool.is_of_this_process()
            && pool.shelves.inherit(&self.shelf)
        {
            pool.wake_reaper();
        }
    }
}

/// A pool's counters and gauges at one moment. Under load the parts are taken one after another, so sums may be off by a few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Pipes made so far.
    pub created: u64,
    /// Acquires served by a pipe that had been used before.
    pub reused: u64,
    /// Pipes now in use.
    pub lent: usize,
    /// Pipes now shelved.
    pub idle: usize,
    /// Other threads' lists of idle pipes that were searched for a pipe.
    pub searched: u64,
    /// Pages of all open pipes, lent and idle.
    pub pages: usize,
    /// Pipes closed because they came back with bytes inside, or after an error.
    pub closed_dirty: u64,
    /// Pipes closed because nobody had needed them for a while.
    pub closed_idle: u64,
    /// Acquires refused, with the reason. Reasons that never occurred are left out.
    pub denied: Vec<(Reason, u64)>,
}

impl PipePool {
    /// The pool of this process, made at the first call with [`Limits::of_this_process`].
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<PipePool> = OnceLock::new();
        GLOBAL.get_or_init(|| Self::new(Limits::of_this_process()))
    }

    /// A pool of its own, with its own limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            owner: Arc::new(Owner(Arc::new(Shared::new(limits)))),
        }
    }

    /// An empty pipe of `class`, or of a smaller one where the budget or the kernel gives no more.
    ///
    /// Costs tens of nanoseconds if one is shelved, some microseconds if it must be made. Never waits for one to come back. In a forked child
    /// it lends none that the parent had: those are closed there at the first call.
    ///
    /// # Errors
    /// The [`Reason`] there is none, which is also counted. It is one of this moment: try again later.
    pub fn acquire(&self, class: SizeClass) -> Result<PooledPipe, Reason> {
        let shared = self.owner.0.here();
        let lent = match shared.shelved(class) {
            Some(lent) => lent,
            None => shared.find_or_create(class)?,
        };
        debug_assert!(lent.0.pipe.is_clean(), "the pool lends clean pipes only");
        Ok(PooledPipe { lent: Some(lent) })
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let shared = self.owner.0.here();
        let (mut idle, mut reused) = (0, 0);
        shared.shelves.for_each(|shelf| {
            idle += shelf.idle();
            reused += shelf.reused;
        });
        let counted = |reason: Reason| (reason, shared.denied[reason as usize].load(Ordering::Relaxed));
        PoolStats {
            created: shared.created.load(Ordering::Relaxed),
            reused,
            lent: shared.budget.pipes().saturating_sub(idle),
            idle,
            searched: shared.shelves.searched(),
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

    /// The limits it was made with.
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
            shelves: Shelves::new(),
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

    /// This process's part of the pool.
    #[inline]
    fn here(self: &Arc<Self>) -> &Arc<Self> {
        if self.is_of_this_process() {
            self
        } else {
            self.after_fork()
        }
    }

    /// The parent's locks may be held by threads that do not exist here, and its reaper is one: so nothing of it is used.
    #[cold]
    fn after_fork(&self) -> &Arc<Self> {
        let in_child = self.in_child.get_or_init(|| {
            drop(self.shelves.abandon());
            Arc::new(Self::new(self.limits.clone()))
        });
        in_child.here()
    }

    /// A pipe that lies ready on this thread's shelf.
    fn shelved(self: &Arc<Self>, class: SizeClass) -> Option<Lent> {
        let local = LOCAL.try_with(|local| lock(&self.shelf_in(&mut local.borrow_mut()).shelf).take(class));
        local.ok().flatten()
    }

    /// A pipe of another shelf, else a new one within the budget; failing that, the same of a smaller class. If there is none, idle
    /// pipes make room: they hold budget that a busy relay can use.
    ///
    /// Other shelves first, because a task that moves between workers takes pipes on one and leaves them on another.
    #[cold]
    fn find_or_create(self: &Arc<Self>, class: SizeClass) -> Result<Lent, Reason> {
        let classes = || std::iter::successors(Some(class), |class| class.smaller());
        let mut refused = None;
        let mut searches = false;
        for class in classes() {
            if let Some(pipe) = self.shelved(class) {
                return Ok(pipe);
            }
            searches = self.may_search(class);
            let found = if searches { self.shelves.search(class) } else { None };
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

    /// Whether this thread is to look at other shelves for this class.
    fn may_search(self: &Arc<Self>, class: SizeClass) -> bool {
        let may = LOCAL.try_with(|local| {
            let mut local = local.borrow_mut();
            let unsearched = &mut self.shelf_in(&mut local).unsearched[class as usize];
            let may = *unsearched == 0;
            *unsearched = unsearched.saturating_sub(1);
            may
        });
        may.unwrap_or(true)
    }

    /// It looked, and there was neither a pipe of this class nor room for one.
    fn search_later(self: &Arc<Self>, class: SizeClass) {
        let _ =
            LOCAL.try_with(|local| self.shelf_in(&mut local.borrow_mut()).unsearched[class as usize] = SEARCH_AFTER);
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

    /// Closes the idle pipes of this thread, and of some others where it looks there: how many there were.
    fn evict_idle(self: &Arc<Self>, of_others: bool) -> usize {
        let own = LOCAL.try_with(|local| lock(&self.shelf_in(&mut local.borrow_mut()).shelf).take_all());
        let mut idle = own.unwrap_or_default();
        if of_others {
            idle.append(&mut self.shelves.take_some());
        }
        self.close_idle(idle)
    }

    fn close_idle(&self, idle: Vec<Lent>) -> usize {
        self.closed_idle.fetch_add(idle.len() as u64, Ordering::Relaxed);
        idle.len()
    }

    /// This pool's shelf among those of this thread, made at the first call.
    fn shelf_in<'local>(self: &Arc<Self>, local: &'local mut Vec<LocalShelf>) -> &'local mut LocalShelf {
        let found = local
            .iter()
            .position(|entry| std::ptr::eq(entry.pool.as_ptr(), Arc::as_ptr(self)));
        let index = found.unwrap_or_else(|| {
            local.retain(|entry| entry.pool.strong_count() > 0);
            local.push(self.new_shelf());
            local.len() - 1
        });
        &mut local[index]
    }

    #[cold]
    fn new_shelf(self: &Arc<Self>) -> LocalShelf {
        LocalShelf {
            pool: Arc::downgrade(self),
            shelf: self.shelves.of_a_thread(),
            unsearched: [0; SizeClass::ALL.len()],
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        for part in std::iter::successors(Some(&self.0), |part| part.in_child.get()) {
            if part.is_of_this_process() {
                part.close_idle(part.shelves.close());
            } else {
                drop(part.shelves.abandon());
            }
        }
    }
}

/// An open pipe of a pool, lent or idle. It travels by its address: its parts, copied from hand to hand, took a third of a hit.
pub(crate) struct Lent(Box<Open>);

/// The reference to the pool is with the pipe, so that a hit counts none. Dropping it closes the pipe and then, fields in order, frees its
/// room in the budget.
struct Open {
    pipe: Pipe,
    reservation: Reservation,
}

/// Room for one pipe in a pool's budget, until dropped.
struct Reservation {
    pool: Arc<Shared>,
    capacity: usize,
}

impl Reservation {
    /// What was granted may be less than was reserved (soft limit) or more (large pages): the budget counts what is.
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

    /// Back to the pool: shelved if it is clean, else closed. In a forked child it is closed, as the parent has it too.
    fn give_back(self) {
        if !self.pool().is_of_this_process() {
            return;
        }
        match SizeClass::of_capacity(self.0.pipe.capacity()) {
            Some(class) if self.0.pipe.is_clean() => self.shelve(class),
            _ => self.close_dirty(),
        }
    }

    fn close_dirty(self) {
        self.pool().closed_dirty.fetch_add(1, Ordering::Relaxed);
    }

    /// On this thread's shelf, or on the shared one if that has enough. Closed if the pool is gone or the thread is ending.
    fn shelve(self, class: SizeClass) {
        let local = LOCAL.try_with(|local| {
            let room = self.pool().limits.idle_per_thread;
            let mut local = local.borrow_mut();
            let shelf = &self.pool().shelf_in(&mut local).shelf;
            self.put_on(shelf, class, room)
        });
        let unwatched = match local {
            Ok(Err(surplus)) => {
                let pool = Arc::clone(surplus.pool());
                surplus
                    .put_on(pool.shelves.overflow(), class, usize::MAX)
                    .ok()
                    .flatten()
            }
            Ok(Ok(unwatched)) => unwatched,
            Err(_) => None,
        };
        if let Some(pool) = unwatched {
            pool.wake_reaper();
        }
    }

    /// Puts it there and returns the pool if no reaper watches it; or hands it back for want of room or of a living pool.
    fn put_on(self, shelf: &Mutex<Shelf<Lent>>, class: SizeClass, room: usize) -> Result<Option<Arc<Shared>>, Self> {
        let Some(place) = self.pool().shelves.place_on(shelf, class, room) else {
            return Err(self);
        };
        let unwatched = (!place.is_watched()).then(|| Arc::clone(self.pool()));
        place.put(self);
        Ok(unwatched)
    }
}

/// A pipe on loan. Dropping it gives it back: shelved if it is clean, closed if it holds bytes or a call on it failed.
pub struct PooledPipe {
    lent: Option<Lent>,
}

impl PooledPipe {
    /// Closes the pipe whatever its state: for a caller who doubts what is inside.
    pub fn discard(mut self) {
        if let Some(lent) = self.lent.take() {
            lent.close_dirty();
        }
    }

    /// The class it serves.
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

/// The default of [`Limits::idle_timeout`].
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
