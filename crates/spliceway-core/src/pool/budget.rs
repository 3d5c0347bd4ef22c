//! How many pipes and pages a pool may hold, and the count of what it holds.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::{IDLE_TIMEOUT, SizeClass};
use crate::reason::Reason;
use crate::sync::AtomicUsize;

/// A pool's limits, lent and idle pipes together. At either limit a smaller class is lent if there is one at hand or room for it;
/// else idle pipes of this thread and of some others are closed to make room; else none is lent: [`Reason::PipeBudget`] or
/// [`Reason::PageBudget`]. A thread that was refused a class looks at other threads' pipes again after 64 more acquires of it. Pipes of 1 MiB are made from the first half of the pages only (but one where there is room for one).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Open pipes, two descriptors each.
    pub max_pipes: usize,
    /// Pages (of this machine's size) that the open pipes may fill.
    pub max_pages: usize,
    /// Idle pipes of each class that one thread keeps to itself; more go where every thread finds them. Default 16.
    pub idle_per_thread: usize,
    /// A pipe nobody needed for this long is closed (after at least half of it). Default 10 s: longer than the gaps in a
    /// transfer, shorter than anybody's wait for the descriptors.
    pub idle_timeout: Duration,
}

/// One part in so many of the descriptors this process may open goes to pipes (two each).
const DESCRIPTOR_SHARE: usize = 8;
/// One part in so many of the pages an unprivileged user may hold in pipes: the other half is for its other programs.
const PAGE_SHARE: usize = 2;
/// Pipes of the largest class are made while no more than one part in so many of the pages is open: a few stalled sinks that hold them
/// leave the rest to many.
const LARGEST_SHARE: usize = 2;
/// The kernel's default of `fs.pipe-user-pages-soft`, if it cannot be read.
const SOFT_PAGES: usize = 16_384;
/// Where no soft limit holds: 1 GiB of 4 KiB pages, so that the pool has a bound of its own.
const PRIVILEGED_PAGES: usize = 262_144;

impl Limits {
    /// A share of what this process may have: an eighth of `RLIMIT_NOFILE` in descriptors, half of `fs.pipe-user-pages-soft`
    /// in pages, or 262,144 pages where that limit is off or does not bind this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let descriptors = getrlimit(Resource::Nofile)
            .current
            .map_or(usize::MAX, |soft| soft as usize);
        Self {
            max_pipes: (descriptors / DESCRIPTOR_SHARE / 2).max(1),
            max_pages: soft_page_limit().map_or(PRIVILEGED_PAGES, |soft| soft / PAGE_SHARE),
            idle_per_thread: 16,
            idle_timeout: IDLE_TIMEOUT,
        }
    }

    /// The same with another [`max_pipes`](Limits::max_pipes).
    #[must_use]
    pub fn with_max_pipes(self, max_pipes: usize) -> Self {
        Self { max_pipes, ..self }
    }

    /// The same with another [`max_pages`](Limits::max_pages).
    #[must_use]
    pub fn with_max_pages(self, max_pages: usize) -> Self {
        Self { max_pages, ..self }
    }

    /// The same with another [`idle_per_thread`](Limits::idle_per_thread).
    #[must_use]
    pub fn with_idle_per_thread(self, idle_per_thread: usize) -> Self {
        Self {
            idle_per_thread,
            ..self
        }
    }

    /// The same with another [`idle_timeout`](Limits::idle_timeout).
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout, ..self }
    }
}

/// The pages in pipes that the kernel allows this user; `None` if it does not limit this process.
fn soft_page_limit() -> Option<usize> {
    let soft = fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(SOFT_PAGES);
    (soft > 0 && !is_privileged()).then_some(soft)
}

/// Whether `pipe_is_unprivileged_user()` (fs/pipe.c) lets this process off: `CAP_SYS_RESOURCE` or `CAP_SYS_ADMIN`, in the
/// initial user namespace. A container's root has them only in its own, which the identity map of all ids tells.
fn is_privileged() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    const SYS_RESOURCE: u64 = 1 << 24;
    let capabilities = fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0);
    let initial_namespace =
        fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    capabilities & (SYS_ADMIN | SYS_RESOURCE) != 0 && initial_namespace
}

/// What is open, never more than allowed. Pages are counted from capacities, as the kernel counts them.
pub(super) struct Budget {
    max_pipes: usize,
    max_pages: usize,
    pipes: AtomicUsize,
    pages: AtomicUsize,
}

impl Budget {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            max_pipes: limits.max_pipes,
            max_pages: limits.max_pages,
            pipes: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
        }
    }

    pub(super) fn pipes(&self) -> usize {
        self.pipes.load(Ordering::Relaxed)
    }

    pub(super) fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Room for one pipe of this capacity, or the limit that leaves none.
    pub(super) fn reserve(&self, capacity: usize) -> Result<(), Reason> {
        // At a limit many threads ask again and again: that is to write nothing they share.
        if self.pipes() >= self.max_pipes {
            return Err(Reason::PipeBudget);
        }
        if self.pages() + pages_of(capacity) > self.max_pages_for(capacity) {
            return Err(Reason::PageBudget);
        }
        add_up_to(&self.pipes, 1, self.max_pipes).map_err(|()| Reason::PipeBudget)?;
        add_up_to(&self.pages, pages_of(capacity), self.max_pages_for(capacity)).map_err(|()| {
            self.pipes.fetch_sub(1, Ordering::Relaxed);
            Reason::PageBudget
        })
    }

    /// How full the budget may be with a pipe of this capacity in it.
    fn max_pages_for(&self, capacity: usize) -> usize {
        let largest = SizeClass::Mib1.bytes();
        if capacity < largest {
            self.max_pages
        } else {
            // One at least, where there is room for one.
            (self.max_pages / LARGEST_SHARE)
                .max(pages_of(largest))
                .min(self.max_pages)
        }
    }

    pub(super) fn release(&self, capacity: usize) {
        self.pages.fetch_sub(pages_of(capacity), Ordering::Relaxed);
        self.pipes.fetch_sub(1, Ordering::Relaxed);
    }

    /// A pipe reserved as `asked` turned out to be `granted`. By the difference alone: a pipe counted twice for a moment would
    /// be above the limit, and deny somebody else.
    pub(super) fn correct(&self, asked: usize, granted: usize) {
        let (asked, granted) = (pages_of(asked), pages_of(granted));
        self.pages.fetch_add(granted.saturating_sub(asked), Ordering::Relaxed);
        self.pages.fetch_sub(asked.saturating_sub(granted), Ordering::Relaxed);
    }
}

fn pages_of(capacity: usize) -> usize {
    capacity.div_ceil(rustix::param::page_size())
}

fn add_up_to(count: &AtomicUsize, more: usize, limit: usize) -> Result<(), ()> {
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            now.checked_add(more).filter(|sum| *sum <= limit)
        })
        .map(|_| ())
        .map_err(|_| ())
}
