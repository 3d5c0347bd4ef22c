//! One direction of a relay as a pure state machine, which derives the next step from the last
//! event.
//!
//! ```text
//!   start ──▶ Reading ◀──────────────── everything is written ◀──────────────┐
//!              │  │ │                                                         │
//!              │  │ └ recv: bytes ──▶ Sending ────────────────────────────────┤
//!              │  │                      ▲                                    │
//!              │  │                      ├── bytes ── Unloading ◀─ cannot ─┐  │
//!              │  └ fill: bytes ─────────│────────────────────────▶ Draining ─┘
//!              │                         │
//!              ├ fill: nothing ──▶ Confirming: one recv shows why
//!              │
//!              └ end of stream, from Reading or Confirming ──▶ ShuttingDown
//! ```
//!
//! If an end of the direction is itself a pipe, no pipe is needed in between. One splice then moves
//! bytes from the source to the sink ([`Step::SpliceThrough`]). [`Step::Peek`] checks the source
//! after a small splice and when the sink is full, because the source may have ended.
//!
//! The machine has no descriptor, no waker and no clock. It does not count bytes that the pipe or
//! the unsent bytes already count. The caller performs each [`Step`] and reports the [`Event`]. A
//! [`Step::Send`] that would block causes no event: the same step is due when the sink is writable.

use crate::limits::SizeClass;
use crate::reason::Reason;
use crate::traffic::{Engine, PipeSize, Plan, Report, Traffic};

/// The size of the receive buffer, in bytes.
pub const SCRATCH: usize = 64 << 10;

/// The maximum size of one splice, in bytes, if the caller's pipe is at one end.
pub const SPLICE_THROUGH_MAX: usize = 256 << 10;

/// A poll that splices yields after this many bytes, which is the size of the largest pipe.
const SPLICE_BUDGET: usize = 1 << 20;

/// A poll that copies yields after this many bytes. The budget is smaller, because copying a byte
/// takes longer.
const COPY_BUDGET: usize = 256 << 10;

/// A poll counts a record without data like this many bytes, so that a peer that sends many of them
/// does not occupy the thread.
const OTHER_RECORD: usize = 4 << 10;

/// The step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Receive up to [`SCRATCH`] bytes from the source into user space, which is empty.
    Recv,
    /// Send the bytes in user space.
    Send,
    /// Check whether the source has bytes or has ended, without reading.
    Peek,
    /// Splice once from the source to the sink, up to [`SPLICE_THROUGH_MAX`] bytes.
    SpliceThrough {
        /// Whether the source is known to have bytes. If this is set and the sink is full, the
        /// caller can only wait for the sink.
        peeked: bool,
    },
    /// Acquire a pipe of this class if the caller holds none, and fill it once. The pipe is empty.
    Fill {
        /// The class of the pipe.
        class: SizeClass,
        /// Whether to probe the source first.
        probe: bool,
    },
    /// Drain the bytes in the pipe.
    Drain,
    /// Read all bytes in the pipe into user space.
    Unload,
    /// Let other tasks run. The direction holds no bytes, and the source may have more.
    Yield,
    /// Pass the end of the stream on with `shutdown(SHUT_WR)` on the sink. The direction holds no
    /// bytes.
    Shutdown,
}

impl Step {
    /// Returns whether the pipe may hold bytes at this step. At all other steps, it is empty, and
    /// the caller must release it before it waits.
    #[must_use]
    pub fn holds_pipe(self) -> bool {
        matches!(self, Self::Drain | Self::Unload)
    }

    /// Returns whether the step reads from the source, or would read if the budget were not used
    /// up.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(
            self,
            Self::Recv | Self::Peek | Self::SpliceThrough { .. } | Self::Fill { .. } | Self::Yield
        )
    }
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`Step::Recv`] received bytes.
    Received {
        /// The number of bytes now in user space.
        bytes: usize,
        /// Whether the bytes filled the buffer.
        full: bool,
    },
    /// [`Step::Send`] sent bytes.
    Sent {
        /// The number of bytes that the sink accepted.
        bytes: usize,
        /// The number of bytes still in user space.
        left: usize,
    },
    /// [`Step::Peek`] found bytes.
    Peeked,
    /// [`Step::Fill`] moved bytes.
    Filled {
        /// The number of bytes now in the pipe.
        bytes: usize,
        /// Whether the bytes nearly reached the pipe's size, or reached the allowed number.
        full: bool,
    },
    /// [`Step::Fill`], [`Step::SpliceThrough`] or [`Step::Peek`] found no bytes. The stream may
    /// have ended.
    SourceStopped,
    /// [`Step::Fill`] was refused by TLS in the kernel. The source has a record without data, or a
    /// damaged one.
    SourceRefused,
    /// The sink was full at [`Step::Drain`], or at a [`Step::SpliceThrough`] without a peek before
    /// it.
    SinkBlocked,
    /// [`Step::SpliceThrough`] moved bytes.
    SplicedThrough {
        /// The number of bytes that the sink accepted.
        bytes: usize,
        /// Whether it is worth trying another splice immediately.
        more: bool,
    },
    /// [`Step::Drain`] moved bytes.
    Drained {
        /// The number of bytes that the sink accepted.
        bytes: usize,
        /// The number of bytes still in the pipe.
        left: usize,
    },
    /// [`Step::Unload`] moved the pipe's bytes to user space.
    Unloaded,
    /// [`Step::Recv`], [`Step::Peek`] or the probe of a [`Step::Fill`] found the source drained.
    WouldBlock,
    /// [`Step::Recv`] found the end of the stream.
    Eof,
    /// [`Step::Recv`] received a record of kernel TLS that has no data.
    OtherRecord,
    /// No more bytes may be read from the source. The caller reports this instead of performing a
    /// step that [reads](Step::reads).
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
    /// Whether an end is a pipe, so that no pipe is needed in between.
    through: bool,
    /// Bytes delivered in this poll.
    moved: u32,
    /// Bytes spliced through since the last wait for the source.
    run: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The traffic decides whether to copy or to splice.
    Reading,
    /// A splice found no bytes, and one `recv` finds the reason. The source is drained, at its end,
    /// or at an urgent mark, which only a `recv` steps over.
    Confirming,
    /// TLS in the kernel has refused a splice, and one `recv` finds the reason.
    Refused,
    Sending,
    Peeking,
    /// A peek found bytes for a splice from the source to the sink.
    Peeked,
    Draining,
    Unloading,
    ShuttingDown,
}

impl Transfer {
    /// Creates a direction that has not started.
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

    /// Creates a direction that has not started, with a pipe at one end.
    #[must_use]
    pub fn without_pipe(engine: Engine) -> Self {
        Self {
            through: true,
            ..Self::new(engine, PipeSize::Auto)
        }
    }

    /// Records that user space holds bytes that were read from the source earlier. They are sent
    /// first.
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

    /// Records that the poll ends. The next one has a whole budget.
    pub fn park(&mut self) {
        self.moved = 0;
    }

    /// Returns whether the direction fails if it cannot splice.
    pub(crate) fn must_splice(&self) -> bool {
        self.traffic.must_splice()
    }

    /// Returns whether TLS in the kernel has refused the last splice.
    pub(crate) fn was_refused(&self) -> bool {
        self.state == State::Refused
    }

    /// Returns the step that is due.
    #[inline]
    #[must_use]
    pub fn step(&self) -> Step {
        let plan = self.traffic.before_read();
        let budget = match plan {
            Plan::Copy => COPY_BUDGET,
            Plan::Splice { .. } => SPLICE_BUDGET,
        };
        match (self.state, plan) {
            (State::Reading | State::Confirming | State::Refused | State::Peeking | State::Peeked, _)
                if self.moved as usize >= budget =>
            {
                Step::Yield
            }
            (State::Reading, Plan::Splice { .. }) if self.through => Step::SpliceThrough { peeked: false },
            (State::Reading, Plan::Splice { class, probe }) => Step::Fill { class, probe },
            (State::Reading, Plan::Copy) | (State::Confirming | State::Refused, _) => Step::Recv,
            (State::Peeking, _) => Step::Peek,
            (State::Peeked, _) => Step::SpliceThrough { peeked: true },
            (State::Sending, _) => Step::Send,
            (State::Draining, _) => Step::Drain,
            (State::Unloading, _) => Step::Unload,
            (State::ShuttingDown, _) => Step::Shutdown,
        }
    }

    /// Records the outcome of the last [`step`](Transfer::step).
    ///
    /// # Panics
    /// If that step cannot have this outcome.
    // Every caller passes a known event, so the compiler omits most of this match.
    #[inline(always)]
    pub fn on(&mut self, event: Event) {
        self.state = match (self.step(), event) {
            (Step::Recv, Event::Received { bytes, full }) => {
                self.traffic.after_read(Report::Copied { bytes, full });
                State::Sending
            }
            (Step::Recv, Event::Eof) => State::ShuttingDown,
            (Step::Recv, Event::OtherRecord) => {
                self.moved = sum(self.moved, OTHER_RECORD);
                State::Reading
            }
            (Step::Recv | Step::Peek | Step::Fill { .. }, Event::WouldBlock) => self.wait_for_source(),

            (Step::Fill { .. }, Event::Filled { bytes, full }) => {
                self.traffic.after_read(Report::Spliced { bytes, full });
                State::Draining
            }
            // An urgent byte may precede the end, and only a recv reads it. The kernel resets a
            // connection that is closed with unread bytes. The peer then loses the bytes that it
            // has not read yet.
            (Step::Fill { .. } | Step::SpliceThrough { .. } | Step::Peek, Event::SourceStopped) => {
                self.traffic.after_read(Report::Drained);
                State::Confirming
            }
            (Step::Fill { .. }, Event::SourceRefused) => {
                self.traffic.after_read(Report::Drained);
                State::Refused
            }
            (Step::Fill { .. } | Step::SpliceThrough { .. }, Event::Cannot(reason)) => {
                self.traffic.after_read(Report::Cannot(reason));
                State::Reading
            }

            (Step::SpliceThrough { .. }, Event::SplicedThrough { bytes, more }) => {
                self.moved = sum(self.moved, bytes);
                self.run = sum(self.run, bytes);
                if more { State::Reading } else { State::Peeking }
            }
            (Step::SpliceThrough { peeked: false }, Event::SinkBlocked) => State::Peeking,
            (Step::Peek, Event::Peeked) => State::Peeked,

            (Step::Send, Event::Sent { bytes, left }) => {
                self.moved = sum(self.moved, bytes);
                if left > 0 { State::Sending } else { State::Reading }
            }
            (Step::Drain, Event::Drained { bytes, left }) => {
                self.moved = sum(self.moved, bytes);
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

    /// Handles a drained source.
    fn wait_for_source(&mut self) -> State {
        self.traffic.after_read(Report::Drained);
        if self.through {
            // One splice may be small because the sink has little room. The decision therefore
            // counts all bytes moved since the last wait for the source.
            self.traffic
                .after_splice(self.run as usize >= crate::traffic::SPLICE_THRESHOLD);
            self.run = 0;
        }
        self.moved = 0;
        State::Reading
    }
}

/// Adds `bytes` to `count`. A count takes half a word, which keeps the future of every relay small.
fn sum(count: u32, bytes: usize) -> u32 {
    count.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX))
}

#[cold]
fn cannot_come_of(step: Step, event: Event) -> ! {
    unreachable!("{event:?} cannot come of {step:?}")
}
