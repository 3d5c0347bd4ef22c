//! Who else a thread serves: bulk takes long turns where there is nothing but bulk, and short ones where messages pass.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use spliceway_core::Turns;
use tokio::task::yield_now;

/// Turns of bulk without a message among them before bulk is held to be alone: 8 MiB in short turns, some 1.5 ms. Messages that come
/// more often than that find no long turn before them.
const ALONE_AFTER: u64 = 32;

/// What the relays of one thread have moved, and who of them. A message does not count for the bulk of its own relay: a request comes
/// before each download, and most often nobody waits behind it. (Where somebody does, as both ways are busy, it is for one long turn.)
#[derive(Debug)]
pub(crate) struct Company {
    /// Turns of bulk that have ended.
    turns: u64,
    /// Who passed the last message.
    speaker: Option<Who>,
    /// The first turn of others that begins with nobody but bulk around.
    alone_from: u64,
    /// The same for the speaker: messages of anybody else were before.
    speaker_alone_from: u64,
}

/// A relay, as far as they are told apart: by the task that polls it, for as long as that is woken by the same waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who(usize);

impl Who {
    pub(crate) fn polls(cx: &Context<'_>) -> Self {
        Self(cx.waker().data().addr())
    }
}

impl Company {
    pub(crate) const fn new() -> Self {
        Self {
            turns: 0,
            speaker: None,
            alone_from: 0,
            speaker_alone_from: 0,
        }
    }

    /// This relay has passed a message.
    pub(crate) fn message(&mut self, who: Who) {
        if self.speaker != Some(who) {
            self.speaker = Some(who);
            self.speaker_alone_from = self.alone_from;
        }
        self.alone_from = self.turns + ALONE_AFTER;
    }

    /// A turn has ended.
    pub(crate) fn turn_over(&mut self) {
        self.turns += 1;
    }

    /// How long the next turn of this relay's bulk is.
    pub(crate) fn turns(&self, who: Who) -> Turns {
        let alone_from = if self.speaker == Some(who) {
            self.speaker_alone_from
        } else {
            self.alone_from
        };
        if self.turns >= alone_from {
            Turns::Long
        } else {
            Turns::Short
        }
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

    const BULK: Who = Who(1);
    const CHATTY: Who = Who(2);
    const ANOTHER: Who = Who(3);

    #[test]
    fn turns_are_long_until_a_message_passes_and_again_after_32_without() {
        let mut company = Company::new();
        assert_eq!(company.turns(BULK), Turns::Long);
        for _ in 0..2 {
            company.message(CHATTY);
            for turn in 0..ALONE_AFTER {
                assert_eq!(company.turns(BULK), Turns::Short, "turn {turn}");
                company.turn_over();
            }
            assert_eq!(company.turns(BULK), Turns::Long);
        }
    }

    #[test]
    fn a_message_shortens_no_turn_of_its_own_relay() {
        let mut company = Company::new();
        company.message(BULK);
        assert_eq!(
            (company.turns(BULK), company.turns(ANOTHER)),
            (Turns::Long, Turns::Short)
        );
    }

    #[test]
    fn a_message_of_its_own_hides_none_of_others() {
        let mut company = Company::new();
        company.message(CHATTY);
        company.turn_over();
        company.message(BULK);
        company.message(BULK);
        for turn in 1..ALONE_AFTER {
            assert_eq!(company.turns(BULK), Turns::Short, "turn {turn}");
            company.turn_over();
        }
        assert_eq!(
            (company.turns(BULK), company.turns(ANOTHER)),
            (Turns::Long, Turns::Short)
        );
    }
}
