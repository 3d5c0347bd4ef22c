//! Checks passwords against hashes. Only a few checks run at the same time, in an order that
//! protects clients from a flood by other clients.
//!
//! ```text
//!   check ─┬─▶ good ───┬─ the newest, then three of the oldest ─▶ worker ─▶ right or wrong
//!          └─▶ failed ─┘
//!                 └─ oldest first ─▶ Busy: it could not be served before its deadline
//! ```
//!
//! A client has one check in the queue at a time ([`super::turns`]), so no client has a larger
//! share than another. Every fourth check to run is the newest one, so that a client that arrives
//! after a burst does not wait for the whole burst. The others are the oldest ones, so that no
//! client starves while others keep arriving. A client that was turned away counts as failed. So
//! clients that retry do not get ahead of a client that arrives for the first time.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::hash::{Blocks, Work};

/// The maximum number of waiting checks. Each of them uses about 200 bytes.
const WAITING_MAX: usize = 1024;

/// One check in this many is the newest one.
const NEWEST_EVERY: usize = 4;

/// The standing of a client whose password is to be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The client has not failed recently and was not turned away, or it has succeeded.
    Good,
    /// The client has failed or was turned away.
    Failed,
}

/// The password was not checked, because too many other checks are waiting.
#[derive(Debug)]
pub(crate) struct Busy;

/// The waiting checks, and the workers that run them. A worker exists and uses memory only while
/// there is something to check.
pub(super) struct Checks {
    workers_max: usize,
    queue: Mutex<Queue<Check>>,
}

struct Check {
    work: Work,
    answer: oneshot::Sender<bool>,
}

/// The waiting checks, oldest first.
struct Queue<T> {
    good: VecDeque<Waiting<T>>,
    failed: VecDeque<Waiting<T>>,
    /// The number of checks taken from the queue so far.
    taken: usize,
    workers: usize,
    /// The expected time of a check: a moving average, in which the latest check counts for a
    /// quarter.
    cost: Duration,
}

struct Waiting<T> {
    item: T,
    deadline: Instant,
}

/// A worker, which is counted until it ends.
struct Worker {
    checks: Arc<Checks>,
    is_counted: bool,
}

impl Checks {
    /// Creates a queue that runs up to `workers_max` checks at the same time. `cost` is the
    /// expected time of a check until the first check has been measured.
    pub(super) fn new(workers_max: usize, cost: Duration) -> Arc<Self> {
        Arc::new(Self {
            workers_max,
            queue: Mutex::new(Queue::new(cost)),
        })
    }

    /// Returns whether the password is the user's. If the future is dropped, at most one check
    /// still runs to completion.
    ///
    /// # Errors
    /// Returns [`Busy`] if there can be no result before `deadline`.
    pub(super) async fn check(
        self: &Arc<Self>,
        work: Work,
        standing: Standing,
        deadline: Instant,
    ) -> Result<bool, Busy> {
        let (answer, answered) = oneshot::channel();
        if self.enter(Check { work, answer }, standing, deadline) {
            let worker = Worker {
                checks: Arc::clone(self),
                is_counted: true,
            };
            tokio::task::spawn_blocking(move || worker.run());
        }
        // The queue drops the sender of a refused check.
        answered.await.map_err(|_| Busy)
    }

    /// Adds a check. Returns whether it needs another worker.
    fn enter(&self, check: Check, standing: Standing, deadline: Instant) -> bool {
        let mut queue = self.queue();
        queue.push(check, standing, deadline);
        queue.turn_away(Instant::now(), self.workers_max);
        let needs_worker = queue.workers < self.workers_max;
        queue.workers += usize::from(needs_worker);
        needs_worker
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Check>> {
        self.queue.lock()
    }
}

impl Worker {
    fn run(mut self) {
        let mut blocks = Blocks::default();
        loop {
            let mut queue = self.checks.queue();
            let Some(Check { work, answer }) = queue.pop(Instant::now()) else {
                // The count changes under the same lock, so that the next check to arrive starts a
                // worker.
                queue.workers -= 1;
                drop(queue);
                self.is_counted = false;
                return;
            };
            drop(queue);
            if answer.is_closed() {
                continue;
            }
            let started = Instant::now();
            let same = work.run(&mut blocks);
            let mut queue = self.checks.queue();
            queue.took(started.elapsed());
            queue.turn_away(Instant::now(), self.checks.workers_max);
            drop(queue);
            // If the client has left, the answer has no receiver.
            let _ = answer.send(same);
        }
    }
}

impl Drop for Worker {
    /// A worker that is still counted has not ended normally: a check panicked, or the runtime is
    /// shutting down.
    fn drop(&mut self) {
        if self.is_counted {
            self.checks.queue().workers -= 1;
        }
    }
}

impl<T> Queue<T> {
    fn new(cost: Duration) -> Self {
        Self {
            good: VecDeque::new(),
            failed: VecDeque::new(),
            taken: 0,
            workers: 0,
            cost,
        }
    }

    fn push(&mut self, item: T, standing: Standing, deadline: Instant) {
        let waiting = match standing {
            Standing::Good => &mut self.good,
            Standing::Failed => &mut self.failed,
        };
        waiting.push_back(Waiting { item, deadline });
    }

    /// Returns the next check, from a client in good standing if there is one. Checks that cannot
    /// end in time are dropped. The last check is dropped only after its deadline, because running
    /// it shows how long checks take now.
    fn pop(&mut self, now: Instant) -> Option<T> {
        while let Some(waiting) = self.next() {
            let is_last = self.good.is_empty() && self.failed.is_empty();
            let cost = if is_last { Duration::ZERO } else { self.cost };
            if now + cost < waiting.deadline {
                self.taken = self.taken.wrapping_add(1);
                return Some(waiting.item);
            }
        }
        None
    }

    fn next(&mut self) -> Option<Waiting<T>> {
        let queue = if self.good.is_empty() {
            &mut self.failed
        } else {
            &mut self.good
        };
        match self.taken % NEWEST_EVERY {
            0 => queue.pop_back(),
            _ => queue.pop_front(),
        }
    }

    /// Drops the oldest checks that would miss their deadline if all other waiting checks ran
    /// first. A single check is never dropped.
    fn turn_away(&mut self, now: Instant, workers: usize) {
        let is_late = |before: usize, deadline: Instant, cost: Duration| {
            let rounds = u32::try_from(before.div_ceil(workers.max(1))).unwrap_or(u32::MAX);
            before > 1 && (before > WAITING_MAX || now + cost.saturating_mul(rounds) > deadline)
        };
        while let Some(oldest) = self.failed.front() {
            if !is_late(self.good.len() + self.failed.len(), oldest.deadline, self.cost) {
                break;
            }
            self.failed.pop_front();
        }
        while let Some(oldest) = self.good.front() {
            if !is_late(self.good.len(), oldest.deadline, self.cost) {
                break;
            }
            self.good.pop_front();
        }
    }

    fn took(&mut self, time: Duration) {
        self.cost = (self.cost * 3 + time) / 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn all(queue: &mut Queue<u32>, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(now)).collect()
    }

    #[test]
    fn the_newest_login_goes_before_three_of_the_oldest() {
        let (mut queue, now) = (Queue::new(Duration::ZERO), Instant::now());
        for (item, standing) in [
            (1, Standing::Failed),
            (2, Standing::Good),
            (3, Standing::Good),
            (4, Standing::Failed),
        ] {
            queue.push(item, standing, now + SECOND);
        }
        assert_eq!(all(&mut queue, now), [3, 2, 1, 4]);
        for item in 5..12 {
            queue.push(item, Standing::Good, now + SECOND);
        }
        queue.taken = 0;
        assert_eq!(all(&mut queue, now), [11, 5, 6, 7, 10, 8, 9]);
    }

    #[test]
    fn checks_that_cannot_end_in_time_are_turned_away() {
        let (mut queue, now) = (Queue::new(SECOND), Instant::now());
        for item in 0..10 {
            queue.push(item, Standing::Failed, now + SECOND * 4);
            queue.push(item + 100, Standing::Good, now + SECOND * 4);
            queue.turn_away(now, 1);
        }
        assert_eq!((queue.good.len(), queue.failed.len()), (4, 0), "four seconds, one each");
        assert_eq!(all(&mut queue, now), [109, 106, 107, 108]);
        // Two workers serve twice as many checks.
        for item in 0..10 {
            queue.push(item, Standing::Failed, now + SECOND * 4);
            queue.turn_away(now, 2);
        }
        assert_eq!(all(&mut queue, now), [9, 2, 3, 4, 8, 5, 6, 7]);
        assert_eq!(all(&mut queue, now), [0_u32; 0]);
        queue.push(1, Standing::Good, now);
        assert_eq!(queue.pop(now), None, "its deadline is over");
    }

    #[test]
    fn the_expected_time_of_a_check_follows_the_measured_time() {
        let mut queue = Queue::<u32>::new(SECOND * 100);
        (0..20).for_each(|_| queue.took(SECOND));
        assert!(queue.cost < SECOND * 2, "{:?}", queue.cost);
    }

    #[test]
    fn a_single_check_runs_however_long_the_last_check_took() {
        let (mut queue, now) = (Queue::new(SECOND * 100), Instant::now());
        queue.push(1, Standing::Failed, now + SECOND);
        queue.turn_away(now, 1);
        assert_eq!(queue.pop(now), Some(1));
    }

    #[test]
    fn waiting_checks_are_bounded_even_if_checks_cost_nothing() {
        let (mut queue, now) = (Queue::new(Duration::ZERO), Instant::now());
        for item in 0..u32::try_from(WAITING_MAX).unwrap() * 3 {
            let standing = if item % 2 == 0 {
                Standing::Good
            } else {
                Standing::Failed
            };
            queue.push(item, standing, now + SECOND);
            queue.turn_away(now, 1);
            assert!(queue.good.len() + queue.failed.len() <= WAITING_MAX + 1);
        }
        assert!(!queue.good.is_empty());
    }
}
