//! Tells when the counts of a relay have not moved for a while, at no cost to the bytes that move.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep};

/// The counts are looked at so many times per timeout, which is how precise it is. More looks wake an idle relay more often.
const LOOKS: u32 = 8;

/// A timeout that starts anew whenever something has moved.
#[derive(Debug)]
pub(crate) struct Silence {
    timeout: Duration,
    next_look: Pin<Box<Sleep>>,
    /// Whom the timer will wake: asking it again for the same task at each byte would be the cost that is not to be.
    waiting: Option<Waker>,
    moved: u64,
    quiet_looks: u32,
}

impl Silence {
    /// Starts now, with `moved` bytes counted so far.
    pub(crate) fn new(timeout: Duration, moved: u64) -> Self {
        Self {
            timeout,
            next_look: Box::pin(tokio::time::sleep(timeout / LOOKS)),
            waiting: None,
            moved,
            quiet_looks: 0,
        }
    }

    /// Ready when nothing was added to `moved` for the time. A relay that is `held_back` by its own rate is not silent. Called as often
    /// as the caller likes.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, moved: u64, held_back: bool) -> Poll<()> {
        if !self.next_look.is_elapsed() && self.waiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        loop {
            // Out of budget, the timer is not asked at all, and the task is woken for another reason.
            self.waiting = has_budget_remaining().then(|| cx.waker().clone());
            ready!(self.next_look.as_mut().poll(cx));
            let quiet = self.moved == moved && !held_back;
            self.quiet_looks = if quiet { self.quiet_looks + 1 } else { 0 };
            self.moved = moved;
            if self.quiet_looks >= LOOKS {
                return Poll::Ready(());
            }
            self.next_look.as_mut().reset(Instant::now() + self.timeout / LOOKS);
        }
    }
}
