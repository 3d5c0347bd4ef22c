//! What may end a relay before its streams do: silence, the end of one of them, a caller who cancels.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use crate::cancel::CancelHandle;
use crate::options::{HalfClose, RelayOptions};
use crate::outcome::EndReason;
use crate::silence::Silence;

/// Made only for relays whose options ask for it.
#[derive(Debug)]
pub(crate) struct Watch {
    idle_timeout: Option<Duration>,
    half_close_timeout: Option<Duration>,
    silence: Option<Silence>,
    half_closed: bool,
    close: Close,
    cancel: Cancel,
}

#[derive(Debug)]
enum Close {
    Never,
    WithTheFirstEnd,
    /// Told to both directions.
    Told,
}

#[derive(Debug)]
enum Cancel {
    Never,
    Possible(CancelHandle),
    /// Asked for. What is in flight has until then.
    Until(Pin<Box<Sleep>>),
}

/// How a relay stands.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    /// One direction has ended, and the other has not.
    pub(crate) half_closed: bool,
    /// A direction has something to move and may not yet.
    pub(crate) held_back: bool,
}

impl Watch {
    pub(crate) fn new(options: &RelayOptions) -> Option<Self> {
        let watch = Self {
            idle_timeout: options.idle_timeout,
            half_close_timeout: options.half_close_timeout,
            silence: options.idle_timeout.map(|timeout| Silence::new(timeout, 0)),
            half_closed: false,
            close: match options.half_close {
                HalfClose::Propagate => Close::Never,
                HalfClose::CloseBoth => Close::WithTheFirstEnd,
            },
            cancel: options.cancel.clone().map_or(Cancel::Never, Cancel::Possible),
        };
        let idles = watch.idle_timeout.is_none() && watch.half_close_timeout.is_none();
        let nothing = idles && matches!((&watch.close, &watch.cancel), (Close::Never, Cancel::Never));
        (!nothing).then_some(watch)
    }

    /// Whether the end of one direction is to be the end of the other, and that was not yet told.
    pub(crate) fn closes_both(&self) -> bool {
        matches!(self.close, Close::WithTheFirstEnd)
    }

    pub(crate) fn closing(&mut self) {
        self.close = Close::Told;
    }

    /// Whether that was asked just now.
    pub(crate) fn is_asked_to_cancel(&mut self, cx: &mut Context<'_>) -> bool {
        let Cancel::Possible(handle) = &self.cancel else {
            return false;
        };
        match handle.poll_asked(cx.waker()) {
            None => false,
            Some(deadline) => {
                self.cancel = Cancel::Until(Box::pin(tokio::time::sleep(deadline)));
                true
            }
        }
    }

    /// A handle was taken from a relay that runs.
    pub(crate) fn watch_for(&mut self, handle: CancelHandle) {
        if let Cancel::Never = self.cancel {
            self.cancel = Cancel::Possible(handle);
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self.cancel, Cancel::Until(_))
    }

    /// Ready when the relay must end as it is. `moved` is all that was delivered so far.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, moved: u64, now: Now) -> Poll<EndReason> {
        if let Cancel::Until(deadline) = &mut self.cancel
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(EndReason::Cancelled);
        }
        if now.half_closed && !self.half_closed {
            self.half_closed = true;
            // The idle timeout's silence goes on if that is the one that counts.
            if let Some((timeout, EndReason::HalfCloseTimeout)) = self.shortest() {
                self.silence = Some(Silence::new(timeout, moved));
            }
        }
        let Some(silence) = &mut self.silence else {
            return Poll::Pending;
        };
        ready!(silence.poll(cx, moved, now.held_back));
        let (_, reason) = self.shortest().expect("silence is that of a timeout");
        Poll::Ready(reason)
    }

    /// The timeout that holds now, and what its end is called.
    fn shortest(&self) -> Option<(Duration, EndReason)> {
        let idle = self.idle_timeout.map(|timeout| (timeout, EndReason::IdleTimeout));
        let half_close = self.half_close_timeout.filter(|_| self.half_closed);
        let half_close = half_close.map(|timeout| (timeout, EndReason::HalfCloseTimeout));
        idle.into_iter().chain(half_close).min_by_key(|(timeout, _)| *timeout)
    }
}
