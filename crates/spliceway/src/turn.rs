//! How long a turn is, and how it ends: others get theirs, and the runtime looks for events.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use tokio::task::yield_now;

// Where these come from: docs/defaults.md#turns.

/// So many directions may take long turns: more of them wait too long for each other, and save nothing.
const FEW: usize = 8;

/// Turns in a row in which no message has passed on the thread, before they are long.
const UNDISTURBED: u32 = 64;

/// The turns that directions take on one thread.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Whose the last ones were, by its address, the latest first.
    last: [usize; FEW],
    /// Whether the last one was of a direction that had one among the [`FEW`] before.
    takers_are_few: bool,
    /// Since a message has passed.
    undisturbed: u32,
}

impl Turns {
    /// One has passed on this thread: who sent it may have waited for turns to end.
    #[inline]
    pub(crate) fn message(&mut self) {
        self.undisturbed = 0;
    }

    /// One has ended, of the direction at this address.
    pub(crate) fn end(&mut self, taker: usize) {
        self.undisturbed = self.undisturbed.saturating_add(1);
        // Each direction whose source has more has one in each round of the scheduler.
        let before = self.last.iter().position(|last| *last == taker);
        self.last[..=before.unwrap_or(FEW - 1)].rotate_right(1);
        self.last[0] = taker;
        self.takers_are_few = before.is_some();
    }

    #[inline]
    pub(crate) fn are_long(&self) -> bool {
        self.takers_are_few && self.undisturbed >= UNDISTURBED
    }
}

/// Wakes this task when the runtime has looked for events, or when it stops before (`block_on` ends): who gave way may be waited for
/// when it goes on. A waker called here would wake sooner: tokio looks for events when no task is ready, or after 61, so that every
/// message would wait for 61 turns of a flow that is always ready.
pub(crate) fn give_way(cx: &mut Context<'_>) {
    defer(&Waker::from(Arc::new(WakesWhenDropped(cx.waker().clone()))));
}

/// Leaves `waker` to the runtime, which wakes it when it has looked for events, or drops it when it stops before. Wakes it at once where
/// no runtime is.
pub(crate) fn defer(waker: &Waker) {
    // All that its first poll does is to hand the waker over.
    let first = pin!(yield_now()).poll(&mut Context::from_waker(waker));
    debug_assert!(first.is_pending());
}

struct WakesWhenDropped(Waker);

impl Wake for WakesWhenDropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for WakesWhenDropped {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Turns {
        fn undisturbed() -> Self {
            Self {
                undisturbed: UNDISTURBED,
                ..Self::default()
            }
        }

        /// One of each of so many, and after how many of them turns were long.
        fn round(&mut self, takers: usize) -> usize {
            let long = |taker| {
                self.end(taker);
                self.are_long()
            };
            (1..=takers).map(long).filter(|long| *long).count()
        }
    }

    #[test]
    fn turns_are_long_where_few_directions_take_them() {
        for takers in [1, FEW] {
            let mut thread = Turns::undisturbed();
            assert_eq!([(); 3].map(|()| thread.round(takers)), [0, takers, takers]);
        }
        for takers in [FEW + 1, 64] {
            let mut thread = Turns::undisturbed();
            assert_eq!([(); 3].map(|()| thread.round(takers)), [0; 3]);
        }
    }

    #[test]
    fn they_are_again_when_those_in_excess_have_gone() {
        let mut thread = Turns::undisturbed();
        thread.round(FEW + 1);
        assert_eq!([FEW + 1, FEW, FEW].map(|takers| thread.round(takers)), [0, 0, FEW]);
    }

    #[test]
    fn none_is_long_soon_after_a_message() {
        let mut thread = Turns::default();
        for _ in 0..3 {
            for _ in 1..UNDISTURBED {
                thread.end(1);
                assert!(!thread.are_long());
            }
            thread.end(1);
            assert!(thread.are_long());
            thread.message();
            assert!(!thread.are_long());
        }
    }
}
