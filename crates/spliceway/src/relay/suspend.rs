//! Stops a relay with everything that another relay needs to continue, also in another process.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use spliceway_core::{Counts, DirectionSummary, Waits};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Directions, Relay};
use crate::direction_state::DirectionState;
use crate::handles::Shared;
use crate::options::{self, RelayOptions};
use crate::outcome::{EndReason, Peer};

/// The streams of a suspended relay, and its state: see [`Relay::suspend`].
#[derive(Debug)]
#[non_exhaustive]
pub struct SuspendedRelay<A, B> {
    /// The stream that was given first.
    pub a: A,
    /// The other stream.
    pub b: B,
    /// Everything else.
    pub state: RelayState,
}

/// The state of a suspended relay, as plain data that a program can send to another process.
///
/// To create one, change the fields of the default value, which is the state of a new relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayState {
    /// The direction from `a` to `b`.
    pub a_to_b: SuspendedDirection,
    /// The direction from `b` to `a`.
    pub b_to_a: SuspendedDirection,
    /// The peer whose end of stream came first.
    pub first_eof: Option<Peer>,
    /// The part of the [idle timeout](RelayOptions::idle_timeout), or of the [half-close
    /// timeout](RelayOptions::half_close_timeout), that has passed. 0 without a timeout. The time
    /// between suspension and resumption does not count.
    pub idle: Duration,
}

/// The state of one direction of a suspended relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuspendedDirection {
    /// What the direction does next.
    pub stage: DirectionStage,
    /// The bytes that were read from the source and not written to the sink: at most the contents
    /// of one pipe, or a prefix that was not written.
    pub in_flight: Bytes,
    /// The number of bytes that may still be read, if there is a limit.
    pub remaining: Option<u64>,
    /// The counts so far.
    pub counts: DirectionSummary,
    /// The times of the waits so far.
    pub waits: Waits,
}

/// What a direction of a suspended relay does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectionStage {
    /// It writes the bytes in flight, and then moves bytes until its source ends.
    #[default]
    Moving,
    /// The other direction has ended, and [`HalfClose::CloseBoth`](crate::HalfClose::CloseBoth)
    /// ends this one. It writes the bytes in flight and what its source has received.
    Finishing,
    /// It has written all bytes, and shuts its sink down.
    ShuttingDown {
        /// Whether the source has ended.
        eof: bool,
    },
    /// It has ended.
    Ended,
}

impl<A, B> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    /// Returns whether the relay can be suspended. A relay that has ended, failed or been cancelled
    /// cannot: it finishes, if anything is left to do, within the deadlines that apply to that. A
    /// relay that is inside of a read from a [`KernelTls`](crate::KernelTls) can after its next
    /// poll.
    pub fn can_suspend(&self) -> bool {
        let Directions { a_to_b, b_to_a, shared } = &self.directions;
        let has_ended = self.salvage.is_some() || shared.end.get().is_some() || shared.cancel.is_asked();
        !(has_ended || a_to_b.is_inside_read() || b_to_a.is_inside_read())
    }

    /// Stops the relay at any point, so that [`resume`](Relay::resume) can continue.
    ///
    /// The streams are not shut down. Bytes that a pipe holds are read out into memory, because
    /// then only the two streams need to be passed on. This copies at most one pipe for each
    /// direction. The counts end with [`EndReason::Suspended`].
    ///
    /// ```no_run
    /// # use tokio::net::TcpStream;
    /// # use tokio::sync::oneshot::Receiver;
    /// # async fn example(client: TcpStream, upstream: TcpStream, stop: Receiver<()>) -> std::io::Result<()> {
    /// use spliceway::{Relay, RelayOptions};
    ///
    /// let mut relay = Relay::new(client, upstream);
    /// let ended = tokio::select! {
    ///     ended = &mut relay => Some(ended),
    ///     _ = stop => None,
    /// };
    /// if ended.is_none() && relay.can_suspend() {
    ///     let suspended = relay.suspend()?;
    ///     // Here, another process may receive the sockets and the state.
    ///     let relay = Relay::resume(suspended.a, suspended.b, RelayOptions::new(), suspended.state);
    /// #   drop(relay);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the relay [cannot](Relay::can_suspend) be suspended. Otherwise the error
    /// of a `read(2)` on a pipe, which does not fail in a healthy process. In both cases the
    /// streams are dropped.
    ///
    /// # What is lost
    /// The options, which the caller gives again. What the relay has learned about the traffic: it
    /// starts with copies. A place in the queue of a [`RateLimit`](crate::RateLimit).
    pub fn suspend(mut self) -> io::Result<SuspendedRelay<A, B>> {
        if !self.can_suspend() {
            let why = "the relay has ended, failed or been cancelled, or is inside of a read";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.directions.stop_waiting();
        let summary = self.directions.shared.summary();
        let held_back = self.directions.is_held_back();
        let idle = self.deadlines.as_ref();
        let options = options::or_default(&self.options);
        let mut state = RelayState {
            idle: idle.map_or(options.idle, |deadlines| deadlines.idle(summary.bytes(), held_back)),
            first_eof: summary.first_eof,
            a_to_b: self.directions.a_to_b.suspend(&options.a_to_b)?,
            b_to_a: self.directions.b_to_a.suspend(&options.b_to_a)?,
        };
        (state.a_to_b.counts, state.b_to_a.counts) = (summary.a_to_b, summary.b_to_a);
        let waits = self.stats().waits();
        (state.a_to_b.waits, state.b_to_a.waits) = (waits.a_to_b, waits.b_to_a);
        self.end(EndReason::Suspended);
        Ok(SuspendedRelay {
            a: self.a,
            b: self.b,
            state,
        })
    }

    /// Continues a relay that was [suspended](Relay::suspend).
    ///
    /// The prefixes and limits of `options` have no effect, because those of the first relay
    /// continue. All other options apply from now on, and may differ from those of the first relay.
    pub fn resume(a: A, b: B, mut options: RelayOptions, state: RelayState) -> Self {
        let shared = Shared {
            a_to_b: Counts::resume(&state.a_to_b.counts).resume_waits(&state.a_to_b.waits),
            b_to_a: Counts::resume(&state.b_to_a.counts).resume_waits(&state.b_to_a.waits),
            first_eof: state.first_eof.map_or_else(OnceLock::new, OnceLock::from),
            ..Shared::default()
        };
        let own = options.change();
        own.idle = state.idle;
        Self {
            directions: Directions {
                a_to_b: DirectionState::resume(state.a_to_b, &mut own.a_to_b),
                b_to_a: DirectionState::resume(state.b_to_a, &mut own.b_to_a),
                shared: Arc::new(shared),
            },
            options: options.into_shared(),
            ..Self::new(a, b)
        }
    }
}
