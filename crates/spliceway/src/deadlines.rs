//! Ends a relay before its streams do: after a timeout, at the first end of a stream, or when the
//! caller cancels it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep};

use crate::cancel::Cancel;
use crate::options::{HalfClose, Options};
use crate::outcome::EndReason;

/// The deadlines of a relay. They are created only if the relay needs one.
#[derive(Debug)]
pub(crate) struct Deadlines {
    idle_timeout: Option<Duration>,
    half_close_timeout: Option<Duration>,
    timer: Option<IdleTimer>,
    half_closed: bool,
    /// Whether the end of one direction must still end the other one.
    closes_both: bool,
    /// Whether the caller may cancel the relay.
    can_cancel: bool,
    /// The caller has cancelled the relay. The bytes in flight must be written before this timer
    /// fires.
    cancelled: Option<Pin<Box<Sleep>>>,
}

/// The state of a relay that its deadlines depend on.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    /// One direction has ended, and the other has not.
    pub(crate) half_closed: bool,
    /// A rate limit holds back bytes that a direction could move.
    pub(crate) held_back: bool,
}

impl Deadlines {
    /// Creates the deadlines of a relay that has delivered `moved` bytes. It has delivered some, or
    /// is half-closed, only if it was resumed.
    pub(crate) fn new(options: &Options, moved: u64, half_closed: bool, can_cancel: bool) -> Option<Self> {
        let mut deadlines = Self {
            idle_timeout: options.idle_timeout,
            half_close_timeout: options.half_close_timeout,
            timer: None,
            half_closed,
            closes_both: options.half_close == HalfClose::CloseBoth,
            can_cancel,
            cancelled: None,
        };
        let timeout = deadlines.shortest().map(|(timeout, _)| timeout);
        deadlines.timer = timeout.map(|timeout| IdleTimer::new(timeout, moved, options.idle));
        let is_needed = deadlines.idle_timeout.is_some()
            || deadlines.half_close_timeout.is_some()
            || deadlines.closes_both
            || can_cancel;
        is_needed.then_some(deadlines)
    }

    /// Whether the end of one direction must end the other one now. Returns `true` only once.
    pub(crate) fn must_close_both(&mut self, half_closed: bool) -> bool {
        half_closed && std::mem::take(&mut self.closes_both)
    }

    /// Whether the caller has just cancelled the relay.
    pub(crate) fn is_asked_to_cancel(&mut self, cancel: &Cancel, cx: &mut Context<'_>) -> bool {
        if !self.can_cancel || self.is_cancelled() {
            return false;
        }
        let asked = cancel.poll_asked(cx.waker());
        self.cancelled = asked.map(|deadline| Box::pin(tokio::time::sleep(deadline)));
        self.is_cancelled()
    }

    /// Records that the caller took a cancel handle from a running relay.
    pub(crate) fn allow_cancel(&mut self) {
        self.can_cancel = true;
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.is_some()
    }

    /// Ready when the relay must end immediately. `moved` is the number of bytes delivered so far.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, moved: u64, now: Now) -> Poll<EndReason> {
        if let Some(deadline) = &mut self.cancelled
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(EndReason::Cancelled);
        }
        if now.half_closed && !self.half_closed {
            self.half_closed = true;
            // If the idle timeout is shorter, its timer continues.
            if let Some((timeout, EndReason::HalfCloseTimeout)) = self.shortest() {
                match &mut self.timer {
                    Some(timer) => timer.restart(timeout, moved),
                    None => self.timer = Some(IdleTimer::new(timeout, moved, Duration::ZERO)),
                }
            }
        }
        let Some(timer) = &mut self.timer else {
            return Poll::Pending;
        };
        ready!(timer.poll(cx, moved, now.held_back));
        let (_, reason) = self.shortest().expect("the timer is that of a timeout");
        Poll::Ready(reason)
    }

    /// Returns the time for which the relay has been idle, as far as its timer has seen.
    pub(crate) fn idle(&self, moved: u64, held_back: bool) -> Duration {
        let timer = self.timer.as_ref();
        timer.map_or(Duration::ZERO, |timer| timer.idle(moved, held_back))
    }

    /// Returns the timeout that applies now, and the reason that it gives.
    fn shortest(&self) -> Option<(Duration, EndReason)> {
        let idle = self.idle_timeout.map(|timeout| (timeout, EndReason::IdleTimeout));
        let half_close = self.half_close_timeout.filter(|_| self.half_closed);
        let half_close = half_close.map(|timeout| (timeout, EndReason::HalfCloseTimeout));
        idle.into_iter().chain(half_close).min_by_key(|(timeout, _)| *timeout)
    }
}

/// The counts are checked this many times in each timeout, which determines its precision. More
/// checks would wake an idle relay more often.
const CHECKS: u32 = 8;

/// A timeout that restarts whenever the counts have changed. It adds no cost per byte.
#[derive(Debug)]
struct IdleTimer {
    timeout: Duration,
    next_check: Pin<Box<Sleep>>,
    /// The task that the timer will wake. Registering the same task again for each byte would cost
    /// too much.
    registered: Option<Waker>,
    moved: u64,
    idle_checks: u32,
}

impl IdleTimer {
    /// Starts the timeout. `moved` bytes have been counted so far, and none of them in the last
    /// `idle`.
    fn new(timeout: Duration, moved: u64, idle: Duration) -> Self {
        let interval = timeout / CHECKS;
        // The last check is still to come, even if the time is up.
        let passed = (1..CHECKS).take_while(|checks| interval * *checks <= idle);
        let idle_checks = passed.last().unwrap_or(0);
        let next_check = interval.saturating_sub(idle - interval * idle_checks);
        Self {
            timeout,
            next_check: Box::pin(tokio::time::sleep(next_check)),
            registered: None,
            moved,
            idle_checks,
        }
    }

    /// Starts another timeout in place of this one, as [`Self::new`] does.
    fn restart(&mut self, timeout: Duration, moved: u64) {
        self.next_check.as_mut().reset(Instant::now() + timeout / CHECKS);
        (self.timeout, self.moved, self.idle_checks) = (timeout, moved, 0);
        // The old timer may have fired, and then wakes no task any more.
        self.registered = None;
    }

    fn idle(&self, moved: u64, held_back: bool) -> Duration {
        if self.moved != moved || held_back {
            return Duration::ZERO;
        }
        let interval = self.timeout / CHECKS;
        let to_wait = self.next_check.deadline().saturating_duration_since(Instant::now());
        interval * self.idle_checks + interval.saturating_sub(to_wait)
    }

    /// Ready when `moved` has not changed for the whole timeout. A relay that its own rate limit
    /// holds back is not idle.
    fn poll(&mut self, cx: &mut Context<'_>, moved: u64, held_back: bool) -> Poll<()> {
        let is_registered = self
            .registered
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()));
        if !self.next_check.is_elapsed() && is_registered {
            return Poll::Pending;
        }
        loop {
            // If the task has no budget left, the timer cannot register it. Such a task is woken
            // for another reason.
            self.registered = has_budget_remaining().then(|| cx.waker().clone());
            ready!(self.next_check.as_mut().poll(cx));
            let is_idle = self.moved == moved && !held_back;
            self.idle_checks = if is_idle { self.idle_checks + 1 } else { 0 };
            self.moved = moved;
            if self.idle_checks >= CHECKS {
                return Poll::Ready(());
            }
            self.next_check.as_mut().reset(Instant::now() + self.timeout / CHECKS);
        }
    }
}
