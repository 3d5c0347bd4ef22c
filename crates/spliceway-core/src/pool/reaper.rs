//! Closes what nobody needed for a while, with nobody having to call it: a thread that lives as long as there are idle pipes.
//!
//! A thread, because a pool knows no runtime and a process that has fallen silent calls nothing. It visits the shelves twice per
//! idle timeout and takes what stood untouched between two visits, so a shelved pipe carries no time stamp and a hit reads no clock.

use std::ops::ControlFlow::{self, Break, Continue};
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
        if !self.shelves.begin_watch() {
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
            self.close_idle(self.shelves.abandon_watch());
        }
    }

    fn visit(pool: &Weak<Self>) -> ControlFlow<()> {
        let Some(pool) = pool.upgrade() else { return Break(()) };
        pool.close_idle(pool.shelves.take_unneeded());
        if pool.shelves.end_watch() {
            Break(())
        } else {
            Continue(())
        }
    }
}
