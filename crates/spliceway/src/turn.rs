//! How long a turn is, and how it ends: others get theirs, and the runtime looks for events.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use spliceway_core::heuristic::{Heuristic, is_off};
use tokio::task::yield_now;

// Where these come from: docs/defaults.md#long-turns.

/// So many directions may take long turns: more of them wait too long for each other, and save nothing.
const FEW: u32 = 8;

/// Bytes of one poll from which on others wait for it.
const SHARE: u64 = 256 << 10;

/// Bytes of one poll below which it passed a message, most likely, whose sender may have waited for turns to end.
const MESSAGE: u64 = 64 << 10;

/// Polls of a [`SHARE`] in a row, without one of a message, before turns are long.
const UNDISTURBED: u32 = 64;

thread_local! {
    static TURNS: Turns = const { Turns::new() };
}

/// What the directions of one thread make each other wait for.
struct Turns {
    /// Polls of a share since the last message.
    undisturbed: Cell<u32>,
    /// Polls of a share since the runtime has looked for events, and between the two looks before. One that drains its source does not give
    /// way, so where nobody does all of them count as of one round.
    takers: Cell<u32>,
    takers_before: Cell<u32>,
    /// Since the last poll.
    has_looked: Cell<bool>,
}

impl Turns {
    const fn new() -> Self {
        Self {
            undisturbed: Cell::new(0),
            takers: Cell::new(0),
            takers_before: Cell::new(0),
            has_looked: Cell::new(false),
        }
    }

    #[inline]
    fn may_be_long(&self) -> bool {
        if self.has_looked.take() {
            self.takers_before.set(self.takers.take());
        }
        self.undisturbed.get() >= UNDISTURBED && self.takers.get().max(self.takers_before.get()) <= FEW
    }

    fn take_share(&self) {
        self.undisturbed.set(self.undisturbed.get().saturating_add(1));
        self.takers.set(self.takers.get().saturating_add(1));
    }
}

/// Whether the turn of bulk that begins now may be a long one. To be asked at the start of each poll.
#[inline]
pub(crate) fn may_be_long() -> bool {
    !is_off(Heuristic::LongTurns) && TURNS.with(Turns::may_be_long)
}

/// A poll has taken so many bytes from its source.
#[inline]
pub(crate) fn took(bytes: u64) {
    match bytes {
        0 => {}
        1..MESSAGE => message(),
        MESSAGE..SHARE => {}
        SHARE.. => TURNS.with(Turns::take_share),
    }
}

/// Somebody has passed one on this thread.
#[inline]
pub(crate) fn message() {
    TURNS.with(|turns| turns.undisturbed.set(0));
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
        // On the thread that has looked.
        TURNS.with(|turns| turns.has_looked.set(true));
        self.0.wake_by_ref();
    }
}

/// As if no message had passed on this thread for long, nor anybody taken a turn.
#[cfg(test)]
pub(crate) fn undisturbed() {
    TURNS.with(|turns| {
        turns.undisturbed.set(UNDISTURBED);
        turns.takers.set(0);
        turns.takers_before.set(0);
        turns.has_looked.set(false);
    });
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::mem::replace;
    use std::task::Poll;

    use super::*;

    /// So many directions take a share each, then the runtime looks for events. How many of their turns could be long.
    fn round(takers: u32) -> u32 {
        let long = (0..takers).filter(|_| {
            let long = may_be_long();
            took(SHARE);
            long
        });
        let long = long.count();
        TURNS.with(|turns| turns.has_looked.set(true));
        long.try_into().expect("few")
    }

    #[test]
    fn turns_are_long_where_few_directions_take_them() {
        for takers in [1, FEW, FEW + 1, 64] {
            undisturbed();
            round(takers);
            let long = if takers <= FEW { takers } else { 0 };
            assert_eq!([(); 3].map(|()| round(takers)), [long; 3], "of {takers}");
        }
    }

    #[test]
    fn they_are_again_when_those_in_excess_have_gone() {
        undisturbed();
        round(FEW + 1);
        assert_eq!([FEW, FEW].map(round), [0, FEW]);
    }

    #[test]
    fn those_who_drain_their_sources_and_never_give_way_count() {
        undisturbed();
        let long = (0..64).filter(|_| {
            let long = may_be_long();
            took(SHARE);
            long
        });
        assert_eq!(long.count(), FEW as usize + 1);
    }

    #[test]
    fn none_is_long_soon_after_a_message() {
        undisturbed();
        for message in [1, MESSAGE - 1] {
            took(message);
            for polls in 0..UNDISTURBED {
                assert!(!may_be_long(), "after {polls}");
                round(1);
            }
            for other in [0, MESSAGE, SHARE - 1] {
                took(other);
            }
            assert!(may_be_long());
        }
    }

    #[tokio::test]
    async fn a_round_ends_when_the_runtime_has_looked_for_events() {
        undisturbed();
        (0..=FEW).for_each(|_| took(SHARE));
        assert!(!may_be_long());
        for long in [false, true] {
            let mut has_given_way = false;
            poll_fn(|cx| {
                if replace(&mut has_given_way, true) {
                    return Poll::Ready(());
                }
                give_way(cx);
                Poll::Pending
            })
            .await;
            assert_eq!(may_be_long(), long);
        }
    }
}
