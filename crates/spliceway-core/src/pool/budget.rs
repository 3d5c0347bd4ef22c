//! The budget counts the pipes and pages that a pool holds, and keeps them within its limits.

use std::sync::atomic::Ordering;

use crate::limits::{Limits, SizeClass};
use crate::reason::Reason;
use crate::sync::AtomicUsize;

/// The pool creates pipes of the largest class only from 1/2 of the pages. This constant is the
/// divisor. If a few stalled sinks hold those pipes, the other pages still serve many other sinks.
const LARGEST_SHARE: usize = 2;

/// The counts of open pipes and their pages, which never exceed the limits. Pages are counted from
/// capacities, as the kernel counts them.
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

    /// Reserves room for one pipe of this capacity, or returns the limit that leaves no room.
    pub(super) fn reserve(&self, capacity: usize) -> Result<(), Reason> {
        // At a limit, many threads retry repeatedly, so a refusal must not write to shared memory.
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

    /// Returns how many pages the budget may count after it adds a pipe of this capacity.
    fn max_pages_for(&self, capacity: usize) -> usize {
        let largest = SizeClass::Mib1.bytes();
        if capacity < largest {
            self.max_pages
        } else {
            // The share allows at least one such pipe, if the limit has room for one.
            (self.max_pages / LARGEST_SHARE)
                .max(pages_of(largest))
                .min(self.max_pages)
        }
    }

    pub(super) fn release(&self, capacity: usize) {
        self.pages.fetch_sub(pages_of(capacity), Ordering::Relaxed);
        self.pipes.fetch_sub(1, Ordering::Relaxed);
    }

    /// Corrects the count of a pipe that was reserved as `asked` and turned out to be `granted`.
    /// Only the difference is added or subtracted. A pipe that is counted twice, even for a moment,
    /// would exceed the limit, and another thread would be refused.
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
