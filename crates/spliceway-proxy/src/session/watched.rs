//! A relay under watch: ends with the relay, or when it has been silent for too long.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use spliceway::{Direction, Operation, Relay, RelayError, RelayStats};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::record::{End, Outcome};
use crate::settings::Timeouts;
use crate::watch::{Side, Watch};

pin_project! {
    // A future by hand and not an async fn, which would keep room for its arguments beside what it makes of them.
    pub(super) struct Watched<C> {
        #[pin]
        relay: Relay<C, TcpStream>,
        stats: RelayStats,
        watch: Watch,
        #[pin]
        timer: Sleep,
        // Whether the timer counts; with every limit off it is never polled, and so never registered.
        armed: bool,
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> Watched<C> {
    pub(super) fn new(relay: Relay<C, TcpStream>, timeouts: &Timeouts) -> Self {
        let now = Instant::now();
        let watch = Watch::new(timeouts, now);
        let next_look = watch.next_look(now);
        let timer = sleep_until(next_look.unwrap_or(now));
        Self {
            stats: relay.stats(),
            relay,
            watch,
            timer,
            armed: next_look.is_some(),
        }
    }

    /// Sets the timer to the next look.
    fn arm(self: Pin<&mut Self>, now: Instant) {
        let this = self.project();
        let next_look = this.watch.next_look(now);
        *this.armed = next_look.is_some();
        if let Some(next_look) = next_look {
            this.timer.reset(next_look);
        }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> Future for Watched<C> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.as_mut().project();
        let relayed = this.relay.poll(cx);
        // The relay's result does not say who finished first, so it is seen here, where only one has.
        if this.watch.first_eof().is_none() {
            let now = Instant::now();
            if this.watch.note_eof(&this.stats.snapshot(), now) {
                self.as_mut().arm(now);
            }
        }
        if let Poll::Ready(result) = relayed {
            return Poll::Ready(outcome(result.err().as_ref(), self.watch.first_eof()));
        }
        while self.armed {
            let this = self.as_mut().project();
            if this.timer.poll(cx).is_pending() {
                break;
            }
            let now = Instant::now();
            if let Some(end) = this.watch.look(&this.stats.snapshot(), now) {
                return Poll::Ready(end.into());
            }
            self.as_mut().arm(now);
        }
        Poll::Pending
    }
}

/// Reading from the client and writing to it fail by the client's doing, everything else by the upstream's.
fn outcome(error: Option<&RelayError>, first_eof: Option<Side>) -> Outcome {
    let Some(error) = error else {
        return match first_eof {
            Some(Side::Upstream) => End::UpstreamEof.into(),
            _ => End::ClientEof.into(),
        };
    };
    let end = match (error.direction, error.operation) {
        (Direction::AToB, Operation::Read) | (Direction::BToA, Operation::Write | Operation::Shutdown) => {
            End::ResetByClient
        }
        (Direction::AToB, Operation::Write | Operation::Shutdown) | (Direction::BToA, Operation::Read) => {
            End::ResetByUpstream
        }
    };
    Outcome::because(end, &format_args!("{} failed: {}", error.operation, error.source))
}
