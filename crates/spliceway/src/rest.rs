//! How a flow waits while it rests.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use spliceway_core::heuristic::{Heuristic, is_off};
use tokio::time::{Sleep, sleep};

use crate::options::{RelayOptions, Rests};
use crate::turn::give_way;

/// How long. Where that comes from: docs/defaults.md.
pub(crate) const REST: Duration = Duration::from_millis(2);

/// What ends a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The runtime's timer.
    Timer,
    /// The system's clock, read in each round of the scheduler: a runtime may have no timer, and does not tell.
    Rounds,
}

impl Clock {
    /// That of relays with these options, if they rest.
    pub(crate) fn new(options: &RelayOptions) -> Option<Self> {
        match options.rests {
            _ if is_off(Heuristic::Rests) => None,
            Rests::Timer => Some(Self::Timer),
            // That needs one from its first poll. Others may come to need one, and may never.
            Rests::Auto if options.idle_timeout.is_some() => Some(Self::Timer),
            Rests::Auto => Some(Self::Rounds),
            Rests::Never => None,
        }
    }
}

/// The rests of one flow.
#[derive(Debug)]
pub(crate) struct Rest {
    clock: Clock,
    /// Of the one it is in.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Rest {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, timer: None }
    }

    /// Ready when the one that began then is over: by the system's clock, or by the timer, whichever is first to say so.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, since: Instant) -> Poll<()> {
        let left = REST.saturating_sub(since.elapsed());
        match self.clock {
            _ if left.is_zero() => {}
            Clock::Timer => {
                // Nothing tells of a sender that has written ahead: that it was left alone for so long is all there is.
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(left)));
                ready!(timer.as_mut().poll(cx));
            }
            Clock::Rounds => {
                give_way(cx);
                return Poll::Pending;
            }
        }
        self.timer = None;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;
    use crate::rate::RateLimit;

    #[tokio::test(start_paused = true)]
    async fn each_rest_by_the_timer_takes_its_time() {
        let mut rest = Rest::new(Clock::Timer);
        let mut polled = task::spawn(());
        let in_an_hour = Instant::now() + Duration::from_secs(3600);
        for _ in 0..2 {
            assert_pending!(polled.enter(|cx, _| rest.poll(cx, in_an_hour)));
            advance(REST).await;
            assert_ready!(polled.enter(|cx, _| rest.poll(cx, in_an_hour)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_over_by_the_systems_clock_asks_no_timer() {
        let mut rest = Rest::new(Clock::Timer);
        let mut polled = task::spawn(());
        let past = Instant::now() - REST;
        assert_ready!(polled.enter(|cx, _| rest.poll(cx, past)));
    }

    #[test]
    fn a_relay_with_an_idle_timeout_rests_by_the_timer_that_it_needs_anyway() {
        let options = RelayOptions::new;
        let rate = RateLimit::new(1 << 30);
        for (options, clock) in [
            (options(), Some(Clock::Rounds)),
            (options().idle_timeout(REST), Some(Clock::Timer)),
            (
                options().half_close_timeout(REST).b_to_a_rate_limit(&rate),
                Some(Clock::Rounds),
            ),
            (options().rests(Rests::Timer), Some(Clock::Timer)),
            (options().idle_timeout(REST).rests(Rests::Never), None),
        ] {
            assert_eq!(Clock::new(&options), clock);
        }
    }
}
