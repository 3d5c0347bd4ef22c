//! The reaper closes pipes that have not been needed for a while, so that no caller has to do this.
//! It is a thread that runs as long as there are idle pipes.
//!
//! It is a thread because a pool knows no runtime, and because an idle process makes no calls. The
//! reaper visits the lists twice per idle timeout. It closes the pipes that were not touched
//! between two visits. An idle pipe therefore carries no time stamp, and a hit reads no clock.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::Shared;

/// The reaper's calls nest a few functions deep and touch only a page or two of the stack.
const STACK_BYTES: usize = 64 << 10;

/// The bounds of the time between two visits. The lower bound prevents a busy loop. The upper bound
/// keeps the thread from outliving its pool by hours.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);

impl Shared {
    /// Starts the reaper if none runs. If the system cannot create a thread, the pool closes its
    /// idle pipes immediately, because they would otherwise stay open for ever.
    #[cold]
    pub(super) fn wake_reaper(self: &Arc<Self>) {
        if !self.lists.begin_watch() {
            return;
        }
        let pool = Arc::downgrade(self);
        let period = (self.limits.idle_timeout / 2).clamp(SHORTEST, LONGEST);
        let spawned = thread::Builder::new()
            .name("spliceway-pool".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                loop {
                    // This thread waits for a fixed time, because a pipe that is not used causes no
                    // event.
                    thread::park_timeout(period);
                    if Self::visit(&pool).is_break() {
                        return;
                    }
                }
            });
        if spawned.is_err() {
            self.close_idle(self.lists.abandon_watch());
        }
    }

    fn visit(pool: &Weak<Self>) -> ControlFlow<()> {
        let Some(pool) = pool.upgrade() else { return Break(()) };
        pool.close_idle(pool.lists.take_unneeded());
        if pool.lists.end_watch() {
            Break(())
        } else {
            Continue(())
        }
    }
}
