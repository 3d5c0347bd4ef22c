//! One direction of a relay as a pure state machine: it decides what comes next from what happened.
//!
//! ```text
//!   start ──▶ Reading ◀──────────────── everything is written ◀──────────────┐
//!              │  │ │                                                         │
//!              │  │ └ recv: bytes ──▶ Sending ────────────────────────────────┤
//!              │  │                      ▲                                    │
//!              │  │                      ├── bytes ── Unloading ◀─ cannot ─┐  │
//!              │  └ fill: bytes ─────────│────────────────────────▶ Draining ─┘
//!              │                         │
//!              ├ fill: nothing ──▶ Confirming: one recv says why
//!              │
//!              └ end of stream, from Reading or Confirming ──▶ ShuttingDown ──▶ Done
//! ```
//!
//! If an end of the direction is a pipe itself, no pipe is needed in between. Then a read is one
//! splice from the source to the sink ([`Step::SpliceThrough`]), and [`Step::Peek`] looks at the
//! source after a few bytes and when the sink is full, because the source may be at its end.
//!
//! The machine has no descriptor, no waker and no clock, and counts nothing that the pipe or the
//! unsent bytes count already. The caller performs each [`Step`] and reports the [`Event`]. If a
//! [`Step::Send`] would block, there is no event: the same step is due when the sink is writable.

use crate::limits::SizeClass;
use crate::reason::Reason;
use crate::traffic::{Engine, PipeSize, Plan, Report, Traffic};

/// The size of the buffer to receive into, bytes.
pub const SCRATCH: usize = 64 << 10;

/// The most bytes of one splice between the caller's pipe and a socket.
pub const SPLICE_THROUGH_MAX: usize = 256 << 10;

/// A poll yields after this many bytes if they are spliced: the largest pipe.
const SPLICE_BUDGET: usize = 1 << 20;

/// A poll yields after this many bytes if they are copied, because each byte takes longer.
const COPY_BUDGET: usize = 256 << 10;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Receive from the source into up to [`SCRATCH`] bytes of user space, which is empty.
    Recv,
    /// Send what user space holds.
    Send,
    /// Look whether the source has bytes or an end, and read nothing.
    Peek,
    /// Splice once from the source to the sink, up to [`SPLICE_THROUGH_MAX`] bytes.
    SpliceThrough {
        /// The source is known to have bytes. So if the sink is full, there is nothing to do but to
        /// wait for it.
        peeked: bool,
    },
    /// Acquire a pipe of this class if none is held, and fill it once. It is empty.
    Fill {
        /// The class of the pipe.
        class: SizeClass,
        /// Probe first whether the source has anything.
        probe: bool,
    },
    /// Drain everything that the pipe holds.
    Drain,
    /// Read everything that the pipe holds into user space.
    Unload,
    /// Let other tasks run. Nothing is held; the source may have more.
    Yield,
    /// Pass the end of the stream on: `shutdown(SHUT_WR)` on the sink. Nothing is held.
    Shutdown,
}

impl Step {
    /// Whether the pipe may hold bytes at this step. At every other step it is empty, and must be
    /// released before the caller waits.
    #[must_use]
    pub fn holds_pipe(self) -> bool {
        matches!(self, Self::Drain | Self::Unload)
    }

    /// Whether the step reads from the source, or would have without the budget.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(
            self,
            Self::Recv | Self::Peek | Self::SpliceThrough { .. } | Self::Fill { .. } | Self::Yield
        )
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`Step::Recv`] brought bytes.
    Received {
        /// Bytes now in user space.
        bytes: usize,
        /// They filled the buffer.
        full: bool,
    },
    /// [`Step::Send`] sent bytes.
    Sent {
        /// Bytes the sink took.
        bytes: usize,
        /// Bytes still in user space.
        left: usize,
    },
    /// [`Step::Peek`] found bytes.
    Peeked,
    /// [`Step::Fill`] moved bytes.
    Filled {
        /// Bytes now in the pipe.
        bytes: usize,
        /// They about reached the pipe's size, or everything that was allowed.
        full: bool,
    },
    /// [`Step::Fill`] or [`Step::SpliceThrough`] found nothing, or an end of stream that may be
    /// none.
    SourceStopped,
    /// The sink was full at [`Step::Drain`], or at a [`Step::SpliceThrough`] that has not peeked.
    SinkBlocked,
    /// [`Step::SpliceThrough`] moved bytes.
    SplicedThrough {
        /// Bytes the sink took.
        bytes: usize,
        /// Another attempt at once is worth it.
        more: bool,
    },
    /// [`Step::Drain`] moved bytes.
    Drained {
        /// Bytes the sink took.
        bytes: usize,
        /// Bytes still in the pipe.
        left: usize,
    },
    /// [`Step::Unload`] moved the pipe's bytes to user space.
    Unloaded,
    /// [`Step::Recv`], [`Step::Peek`] or the probe of a [`Step::Fill`] found the source drained.
    WouldBlock,
    /// [`Step::Recv`] or [`Step::Peek`] found the end of the stream.
    Eof,
    /// No more bytes may be read from the source. Reported instead of performing a step that
    /// [reads](Step::reads).
    LimitReached,
    /// There is no pipe, or an end cannot be spliced.
    Cannot(Reason),
    /// [`Step::Yield`] is done.
    Yielded,
}

/// One direction of a relay. See the [module](self) for its states.
#[derive(Debug)]
pub struct Transfer {
    state: State,
    traffic: Traffic,
    /// An end is a pipe, so no pipe is needed in between.
    through: bool,
    /// Bytes delivered in this poll.
    moved: usize,
    /// Bytes spliced through since the source was last waited for.
    run: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The traffic decides how.
    Reading,
    /// A splice found nothing, and one `recv` says why: the source is drained, at its end, or at an
    /// urgent mark, which only a `recv` steps over.
    Confirming,
    Sending,
    Peeking,
    /// The source has bytes for a splice through.
    Peeked,
    Draining,
    Unloading,
    ShuttingDown,
}

impl Transfer {
    /// A direction about to start.
    #[must_use]
    pub fn new(engine: Engine, pipe_size: PipeSize) -> Self {
        Self {
            state: State::Reading,
            traffic: Traffic::new(engine, pipe_size),
            through: false,
            moved: 0,
            run: 0,
        }
    }

    /// A direction about to start, one end of which is a pipe.
    #[must_use]
    pub fn without_pipe(engine: Engine) -> Self {
        Self {
            through: true,
            ..Self::new(engine, PipeSize::Auto)
        }
    }

    /// User space holds bytes of the source that were read before. They go first.
    ///
    /// # Panics
    /// If the direction is about to write, or has moved other bytes in this poll.
    pub fn preload(&mut self) {
        assert!(
            matches!(self.state, State::Reading | State::ShuttingDown) && self.moved == 0,
            "preloaded bytes come before all others"
        );
        self.state = State::Sending;
    }

    /// The poll ends, so the next one has a whole budget.
    pub fn park(&mut self) {
        self.moved = 0;
    }

    /// Whether it fails where it cannot splice.
    pub(crate) fn must_splice(&self) -> bool {
        self.traffic.must_splice()
    }

    /// What to do next.
    #[inline]
    #[must_use]
    pub fn step(&self) -> Step {
        let plan = self.traffic.before_read();
        let budget = match plan {
            Plan::Copy => COPY_BUDGET,
            Plan::Splice { .. } => SPLICE_BUDGET,
        };
        match (self.state, plan) {
            (State::Reading | State::Confirming | State::Peeking | State::Peeked, _) if self.moved >= budget => {
                Step::Yield
            }
            (State::Reading, Plan::Splice { .. }) if self.through => Step::SpliceThrough { peeked: false },
            (State::Reading, Plan::Splice { class, probe }) => Step::Fill { class, probe },
            (State::Reading, Plan::Copy) | (State::Confirming, _) => Step::Recv,
            (State::Peeking, _) => Step::Peek,
            (State::Peeked, _) => Step::SpliceThrough { peeked: true },
            (State::Sending, _) => Step::Send,
            (State::Draining, _) => Step::Drain,
            (State::Unloading, _) => Step::Unload,
            (State::ShuttingDown, _) => Step::Shutdown,
        }
    }

    /// Takes the outcome of the last [`step`](Transfer::step).
    ///
    /// # Panics
    /// If that step cannot have this outcome.
    // Every caller knows the event, so most of this is left out.
    #[inline(always)]
    pub fn on(&mut self, event: Event) {
        self.state = match (self.step(), event) {
            (Step::Recv, Event::Received { bytes, full }) => {
                self.traffic.after_read(Report::Copied { bytes, full });
                State::Sending
            }
            (Step::Recv, Event::Eof) => State::ShuttingDown,
            // An urgent byte may stand before the end, and only a recv reads it. A connection that
            // is closed with bytes unread is reset, and then its peer loses what it has not read
            // yet.
            (Step::Peek, Event::Eof) => State::Confirming,
            (Step::Recv | Step::Peek | Step::Fill { .. }, Event::WouldBlock) => self.wait_for_source(),

            (Step::Fill { .. }, Event::Filled { bytes, full }) => {
                self.traffic.after_read(Report::Spliced { bytes, full });
                State::Draining
            }
            (Step::Fill { .. } | Step::SpliceThrough { .. } | Step::Peek, Event::SourceStopped) => {
                self.traffic.after_read(Report::Drained);
                State::Confirming
            }
            (Step::Fill { .. } | Step::SpliceThrough { .. }, Event::Cannot(reason)) => {
                self.traffic.after_read(Report::Cannot(reason));
                State::Reading
            }

            (Step::SpliceThrough { .. }, Event::SplicedThrough { bytes, more }) => {
                self.moved += bytes;
                self.run += bytes;
                if more { State::Reading } else { State::Peeking }
            }
            (Step::SpliceThrough { peeked: false }, Event::SinkBlocked) => State::Peeking,
            (Step::Peek, Event::Peeked) => State::Peeked,

            (Step::Send, Event::Sent { bytes, left }) => {
                self.moved += bytes;
                if left > 0 { State::Sending } else { State::Reading }
            }
            (Step::Drain, Event::Drained { bytes, left }) => {
                self.moved += bytes;
                if left > 0 { State::Draining } else { State::Reading }
            }
            (Step::Drain, Event::SinkBlocked) => {
                self.traffic.after_backpressure();
                State::Draining
            }
            (Step::Drain, Event::Cannot(reason)) => {
                self.traffic.after_read(Report::Cannot(reason));
                State::Unloading
            }
            (Step::Unload, Event::Unloaded) => State::Sending,

            (Step::Yield, Event::Yielded) => {
                self.moved = 0;
                self.state
            }
            (step, Event::LimitReached) if step.reads() => State::ShuttingDown,
            (step, event) => cannot_come_of(step, event),
        };
    }

    /// The source is drained.
    fn wait_for_source(&mut self) -> State {
        self.traffic.after_read(Report::Drained);
        if self.through {
            // One splice may be small because the sink has little room. So what counts is
            // everything that was moved since the source was last waited for.
            self.traffic
                .after_splice(self.run >= crate::traffic::SPLICE_THRESHOLD);
            self.run = 0;
        }
        self.moved = 0;
        State::Reading
    }
}

#[cold]
fn cannot_come_of(step: Step, event: Event) -> ! {
    unreachable!("{event:?} cannot come of {step:?}")
}
