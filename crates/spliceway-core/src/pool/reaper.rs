//! Closes what nobody needed for a while, with nobody having to call it: a thread that lives as long as there are idle pipes.
//!
//! A thread, because a pool knows no runtime and a process that has fallen silent calls nothing. It visits the shelves twice per
//! idle timeout and takes what stood untouched between two visits, so a shelved pipe carries no time stamp and a hit reads no clock.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::Shared;

/// The reaper calls a few functions deep, and a page or two is all it touches.
const STACK_BYTES: usize = 64 << 10;

/// Bounds of the time between two visits: not a spin, and not a thread that outlives its pool by hours.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);

impl Shared {
    /// Starts the reaper if there is none. If the system gives no thread, idle pipes are closed at once instead of kept for ever.
    #[cold]
    pub(super) fn wake_reaper(self: &Arc<Self>) {
        if self.reaper_runs.swap(true, Ordering::AcqRel) {
            return;
        }
        let pool = Arc::downgrade(self);
        let period = (self.limits.idle_timeout / 2).clamp(SHORTEST, LONGEST);
        let spawned = thread::Builder::new()
            .name("spliceway-pool".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                loop {
                    // Waiting is this thread's work, and nothing it waits for can be awaited: the absence of use has no event.
                    thread::park_timeout(period);
                    if Self::visit(&pool).is_break() {
                        return;
                    }
                }
            });
        if spawned.is_err() {
            self.reaper_runs.store(false, Ordering::Release);
            self.evict_idle();
        }
    }

    fn visit(pool: &Weak<Self>) -> std::ops::ControlFlow<()> {
        use std::ops::ControlFlow::{Break, Continue};
        let Some(pool) = pool.upgrade() else { return Break(()) };
        let mut unneeded = Vec::new();
        pool.for_each_shelf(|shelf| unneeded.append(&mut shelf.take_unneeded()));
        pool.close_idle(unneeded);
        if pool.has_idle() {
            return Continue(());
        }
        // Say so first, then look again: a pipe shelved in between either is seen here, or its owner sees that nobody runs.
        pool.reaper_runs.store(false, Ordering::Release);
        if pool.has_idle() && !pool.reaper_runs.swap(true, Ordering::AcqRel) {
            return Continue(());
        }
        Break(())
    }

    fn has_idle(&self) -> bool {
        let mut idle = 0;
        self.for_each_shelf(|shelf| idle += shelf.idle());
        idle > 0
    }
}
