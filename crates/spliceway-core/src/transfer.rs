//! One direction of a relay as a pure state machine: it decides what comes next from what just happened.
//!
//! ```text
//!                    ┌────────────────────── all sent ──────────────────────┐
//!                    ▼                                                      │
//!   start ──▶ Receiving ───── bytes ──▶ Sending ────────────────────────────┤
//!               ▲    │                     ▲                                │ after a recv worth a splice, or in a spliced flow
//!               │    └ eof ─▶ ShuttingDown │ unloaded                       ▼
//!               │                    │  Unloading ◀── cannot ── Draining ◀─ bytes ── Filling
//!               │                    ▼                             │                   │ ▲
//!               │                   Done                           ├── it is empty ────┼─┘
//!               ├────────────── small fills in a row ──────────────┘                   │
//!               └─── would block, 0, cannot: a recv tells what no look has told ───────┘
//! ```
//!
//! Who performs a fill may look at the source after one that found nothing, and before one, where it is [expected to be
//! drained](Transfer::expects_drained_source): if it is, the next thing is to wait for it.
//!
//! Where an end is a pipe itself, no pipe is needed between, and Passing takes the place of Filling and Draining: it goes on to itself,
//! to Peeking after a few bytes and where the sink is full, as the source may be at its end, and to Receiving where it has none.
//!
//! Where the source may be taken from no more, it goes on to ShuttingDown from wherever it would take next.
//!
//! It has no descriptor, no waker and no clock, and counts nothing that the pipe or the remainder counts already. Whoever
//! performs a [`Step`] tells the [`Event`]; a sink that would block is no event: the same step is due when it is writable.

mod crossover;
mod flow;
mod sizing;

use crate::pool::SizeClass;
use crate::reason::Reason;
pub use crossover::{Crossover, Middling};
pub(crate) use flow::TINY_FILL;
use flow::{Flow, LastFill};
use sizing::Sizing;

/// The size of the buffer to receive into, bytes. A `recv` that fills it marks a flow worth splicing.
pub const SCRATCH: usize = 64 << 10;

/// Bytes of bulk moved before the task gives way: the largest pipe of [`PipeSize::Auto`]; see docs/defaults.md.
const BULK_TURN: usize = 1 << 20;

/// The same where turns may be long, and pipes are of more than 64 KiB: as a rule a source has no more then.
const LONG_TURN: usize = 4 << 20;

/// The same for what is copied, and for messages that [`Engine::Auto`] splices, as each byte takes longer.
const TURN: usize = 256 << 10;

/// Fills alike in a row with nothing after them, before a look is worth more than the fill it may save; see docs/defaults.md.
const LAST_IN_A_ROW: u8 = 8;

/// The most bytes to pass from a pipe to a socket, from a socket to a pipe or from pipe to pipe at once: as much as moves in one turn of
/// what is copied.
pub const PASS: usize = TURN;

/// Whether a fill of so many bytes has as good as reached a pipe's size: three quarters of it. Fragments seldom begin and end
/// with a page, so a pipe whose slots hold a page each falls a little short; one full of segments (1,448 of 4,096 bytes a
/// slot) stays far below.
pub(crate) fn is_full(bytes: usize, capacity: usize) -> bool {
    bytes >= capacity / 4 * 3
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `recv` from the source into up to [`SCRATCH`] bytes of user space, which hold nothing now.
    Recv,
    /// `send` what user space holds.
    Send,
    /// Look whether the source has bytes, or an end, and take nothing.
    Peek,
    /// Splice once from the source to the sink, up to [`PASS`] bytes.
    Pass {
        /// The source was seen to have bytes, so that there is nothing to do but wait for a sink that is full.
        sure: bool,
    },
    /// Acquire a pipe of this class if none is held, and fill it once. It is empty.
    Fill(SizeClass),
    /// Drain the pipe: all it holds.
    Drain,
    /// Read out into user space what the pipe holds.
    Unload,
    /// Give other tasks a turn. Nothing is held; the source may have more.
    Yield,
    /// Pass the end of the stream on: `shutdown(SHUT_WR)` on the sink. Nothing is held.
    Shutdown,
    /// Nothing, ever again.
    Done,
}

impl Step {
    /// Whether the pipe may hold bytes at this step. At every other step it is empty, to be given back before waiting.
    #[must_use]
    pub fn holds_pipe(self) -> bool {
        matches!(self, Self::Drain | Self::Unload)
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`Step::Recv`] brought bytes; `full` if they filled the buffer.
    Received {
        /// Bytes now in user space.
        bytes: usize,
        /// The buffer could have been larger.
        full: bool,
    },
    /// [`Step::Send`] sent `bytes`, and user space holds `left` more.
    Sent {
        /// Bytes the sink took.
        bytes: usize,
        /// Bytes still in user space.
        left: usize,
    },
    /// [`Step::Peek`] saw bytes.
    Peeked,
    /// [`Step::Fill`] moved `bytes`; `full` if that is about all it asked for.
    Filled {
        /// Bytes now in the pipe.
        bytes: usize,
        /// Bytes about reached the pipe's size, not only fragments its slots; or they are all that might be taken.
        full: bool,
    },
    /// [`Step::Fill`] or [`Step::Pass`] found nothing, or an end of stream that may be none.
    SourceStopped,
    /// The sink takes nothing of a [`Step::Pass`] that is not sure of its source.
    SinkBlocked,
    /// The sink makes a [`Step::Drain`] wait, and has for longer than a sink that keeps up.
    SinkSlow,
    /// [`Step::Pass`] moved `bytes`.
    Passed {
        /// Bytes the sink took.
        bytes: usize,
        /// It is worth another attempt at once.
        more: bool,
    },
    /// [`Step::Drain`] moved `bytes`, and the pipe holds `left` more.
    Drained {
        /// Bytes the sink took.
        bytes: usize,
        /// Bytes still in the pipe.
        left: usize,
    },
    /// [`Step::Unload`] moved what the pipe held to user space.
    Unloaded,
    /// [`Step::Recv`], [`Step::Peek`] or a look before or after [`Step::Fill`] found the source drained.
    WouldBlock,
    /// [`Step::Recv`] or [`Step::Peek`] found the end of the stream.
    Eof,
    /// No byte more may be taken from the source: told instead of performing [`Step::Recv`], [`Step::Peek`], [`Step::Fill`] or
    /// [`Step::Yield`].
    LimitReached,
    /// No pipe, or one end cannot be spliced.
    Cannot(Reason),
    /// [`Step::Yield`] is over.
    Yielded,
    /// [`Step::Shutdown`] is done.
    ShutDown,
}

/// When to splice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Small messages are copied, bulk is spliced, and what cannot be spliced is copied.
    #[default]
    Auto,
    /// Splice from the first byte. Who performs the steps fails where this cannot be.
    Splice,
    /// Copy always.
    Copy,
}

/// Which pipes to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipeSize {
    /// The size follows the flow: 64 KiB for segment-sized fragments, 256 KiB where a fill returns that many bytes, 1 MiB for a
    /// sink that keeps up.
    #[default]
    Auto,
    /// This size, or a smaller one where the budget gives no more.
    Fixed(SizeClass),
}

/// One direction of a relay. See the [module](self) for its states.
#[derive(Debug)]
pub struct Transfer {
    state: State,
    flow: Flow,
    /// An end is a pipe.
    passes: bool,
    sizing: Sizing,
    crossover: Crossover,
    /// Bytes delivered since the last yield.
    turn: usize,
    long_turns: bool,
    /// Whether the last fill was full; `None` once the source was tried again, or waited for.
    last_fill: Option<bool>,
    /// How many fills that were not full had nothing after them in a row, and how many that were.
    last_in_a_row: [u8; 2],
}

/// Named for what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Receiving,
    Sending { full: bool },
    Passing { sure: bool },
    Filling,
    Draining { fill: LastFill },
    Peeking,
    Unloading,
    ShuttingDown,
    Done,
}

impl Transfer {
    /// A direction about to start.
    #[must_use]
    pub fn new(engine: Engine, pipe_size: PipeSize) -> Self {
        let (state, flow) = match engine {
            Engine::Auto => (State::Receiving, Flow::MESSAGES),
            Engine::Splice => (State::Filling, Flow::Spliced),
            Engine::Copy => (State::Receiving, Flow::Copied { retry_after: None }),
        };
        Self {
            state,
            flow,
            passes: false,
            sizing: Sizing::new(pipe_size),
            crossover: Crossover::default(),
            turn: 0,
            long_turns: false,
            last_fill: None,
            last_in_a_row: [0; 2],
        }
    }

    /// A direction about to start, of which one end is a pipe.
    #[must_use]
    pub fn without_pipe(engine: Engine) -> Self {
        let mut transfer = Self::new(engine, PipeSize::Auto);
        transfer.passes = true;
        transfer.state = transfer.begin();
        transfer
    }

    /// User space holds bytes of the source that were read before: they go first.
    ///
    /// # Panics
    /// If the direction has already begun to move others.
    pub fn preload(&mut self) {
        assert!(
            matches!(
                self.state,
                State::Receiving | State::Passing { .. } | State::Filling | State::ShuttingDown
            ),
            "preloaded bytes come before all others"
        );
        self.state = State::Sending { full: false };
    }

    /// Whether it was made to splice whatever comes.
    pub(crate) fn must_splice(&self) -> bool {
        self.flow == Flow::Spliced
    }

    /// No pipe is larger than this from now on, where their size follows the flow; 1 MiB unless told.
    #[inline]
    pub fn limit_pipe(&mut self, largest: SizeClass) {
        self.sizing.limit(largest);
    }

    /// Whether turns of bulk are of 4 MiB from now on, and not of 1, as unless told: that is cheaper for a few flows that are faster than the
    /// relay, as their sources are drained before others have their turn (docs/defaults.md), and what waits for it to end waits four times as
    /// long. In pipes of 64 KiB no turn is long, as it would take too many calls. The turn it is in may be over by this: [`step`](Self::step)
    /// is to be asked anew.
    #[inline]
    pub fn take_long_turns(&mut self, long: bool) {
        self.long_turns = long;
    }

    /// Which messages are worth splicing from now on; the next one goes as the last would have. Heeded by [`Engine::Auto`] alone, and
    /// where there is a pipe between.
    #[inline]
    pub fn cross_at(&mut self, crossover: Crossover) {
        // What is passed on without a pipe between takes one splice, not two.
        if crossover != self.crossover && !self.passes {
            self.cross_anew(crossover);
        }
    }

    #[cold]
    fn cross_anew(&mut self, crossover: Crossover) {
        self.crossover = crossover;
        let before = self.flow;
        self.turns_into(before.crossing_at(crossover));
        if self.flow != before && matches!(self.state, State::Receiving | State::Filling) {
            self.last_fill = None;
            self.state = self.begin();
        }
    }

    /// From now on it is held to be this flow.
    fn turns_into(&mut self, flow: Flow) {
        // After receives that were not full there was nothing, or a few bytes: a look will tell.
        if matches!((self.flow, flow), (Flow::Messages { .. }, Flow::LargeMessages { .. })) {
            self.last_in_a_row = [LAST_IN_A_ROW; 2];
        }
        self.flow = flow;
    }

    /// Whether messages of this direction may go either way by now: it is not held to be bulk, and nothing keeps it from splicing.
    #[must_use]
    pub fn crosses(&self) -> bool {
        !self.passes && self.flow.crosses()
    }

    /// Whether it holds a message: in user space, bytes that did not fill the buffer they were received into; in a pipe, those of a flow that
    /// is not held to be bulk, as far as that fill tells.
    #[must_use]
    pub fn holds_message(&self) -> bool {
        match self.state {
            State::Sending { full } => !full,
            State::Draining { fill } => self.flow.is_spliced_message(fill),
            _ => false,
        }
    }

    /// Whether it is worth a look before [`Step::Fill`] if the source has anything: the last fill was full, or was not, and the last eight
    /// like it had nothing after them, as where each message is one. In bulk there is more after most, and where fragments take all slots
    /// after each. A look that finds nothing saves a fill that would have found as little.
    #[must_use]
    pub fn expects_drained_source(&self) -> bool {
        self.last_fill
            .is_some_and(|full| self.last_in_a_row[usize::from(full)] == LAST_IN_A_ROW)
    }

    #[inline]
    fn turn_is_over(&self) -> bool {
        self.turn >= TURN && self.turn >= self.whole_turn()
    }

    fn whole_turn(&self) -> usize {
        match self.flow {
            Flow::Bulk { .. } | Flow::Spliced if self.long_turns && self.sizing.class() > SizeClass::Kib64 => LONG_TURN,
            Flow::Bulk { .. } | Flow::Spliced => BULK_TURN,
            Flow::Messages { .. } | Flow::LargeMessages { .. } | Flow::Copied { .. } => TURN,
        }
    }

    /// What to do next.
    #[inline]
    #[must_use]
    pub fn step(&self) -> Step {
        match self.state {
            State::Receiving | State::Passing { .. } | State::Filling | State::Peeking if self.turn_is_over() => {
                Step::Yield
            }
            State::Receiving => Step::Recv,
            State::Sending { .. } => Step::Send,
            State::Passing { sure } => Step::Pass { sure },
            State::Filling => Step::Fill(self.sizing.class()),
            State::Draining { .. } => Step::Drain,
            State::Peeking => Step::Peek,
            State::Unloading => Step::Unload,
            State::ShuttingDown => Step::Shutdown,
            State::Done => Step::Done,
        }
    }

    /// Takes what came of the last [`step`](Transfer::step).
    ///
    /// # Panics
    /// If that step cannot have had this outcome.
    // Each caller knows the event, of which a compare and a store are left.
    #[inline]
    pub fn on(&mut self, event: Event) {
        self.learn(event);
        self.state = self.next(event);
    }

    /// What `event` says about the size of the pipe, and about how fills end.
    #[inline]
    fn learn(&mut self, event: Event) {
        match (self.state, event) {
            (State::Filling, Event::Filled { bytes, full }) => {
                let asked = self.sizing.class();
                self.learn_of_last_fill(false);
                self.sizing.on_fill(asked, bytes, full);
                self.last_fill = Some(full);
            }
            (State::Filling, Event::SourceStopped | Event::WouldBlock) => self.learn_of_last_fill(true),
            (State::Draining { .. }, Event::SinkSlow) => self.sizing.on_slow_sink(),
            _ => {}
        }
    }

    /// There was nothing after the last fill, or there was more.
    fn learn_of_last_fill(&mut self, nothing: bool) {
        if let Some(full) = self.last_fill.take() {
            self.sizing.on_more(!nothing);
            let in_a_row = &mut self.last_in_a_row[usize::from(full)];
            *in_a_row = if nothing { LAST_IN_A_ROW.min(*in_a_row + 1) } else { 0 };
        }
    }

    /// The state after `event`.
    #[inline(always)]
    fn next(&mut self, event: Event) -> State {
        match (self.state, event) {
            (State::Receiving, Event::Received { bytes, full }) => {
                // Small ones tell nothing.
                if full || bytes >= Middling::Kib8.bytes() || self.flow.minds_small_ones() {
                    self.turns_into(self.flow.after_receive(bytes, full, self.crossover));
                }
                State::Sending { full }
            }
            (State::Receiving | State::Peeking | State::Filling, Event::WouldBlock) => self.await_source(),
            (State::Receiving, Event::Eof) => State::ShuttingDown,
            // An urgent byte may stand before the end, which a look does not take. A connection that is closed with bytes unread is reset,
            // and what the other peer has not read by then is lost.
            (State::Peeking, Event::Eof) => State::Receiving,

            (State::Sending { full }, Event::Sent { bytes, left }) => {
                self.turn += bytes;
                if left > 0 {
                    State::Sending { full }
                } else {
                    self.begin()
                }
            }

            (State::Passing { .. }, Event::Passed { bytes, more }) => {
                self.turn += bytes;
                State::after_pass(more)
            }
            (State::Passing { sure: false }, Event::SinkBlocked) => State::Peeking,

            (State::Filling, Event::Filled { bytes, full }) => State::Draining {
                fill: self.flow.judge(bytes, full, self.crossover),
            },
            // Drained, at its end, or before an urgent mark: a recv tells which, and steps over the mark.
            (State::Filling | State::Passing { .. } | State::Peeking, Event::SourceStopped) => {
                self.flow = self.flow.after_pause();
                State::Receiving
            }
            (State::Filling | State::Passing { .. }, Event::Cannot(reason)) => {
                self.copy_for(reason);
                State::Receiving
            }

            (State::Draining { fill }, Event::Drained { bytes, left }) => {
                self.turn += bytes;
                if left > 0 {
                    State::Draining { fill }
                } else {
                    self.after_splice(fill)
                }
            }
            (state @ State::Draining { .. }, Event::SinkSlow) => state,
            (State::Draining { .. }, Event::Cannot(reason)) => {
                self.copy_for(reason);
                State::Unloading
            }
            (State::Unloading, Event::Unloaded) => State::Sending { full: false },

            (State::Peeking, Event::Peeked) => State::Passing { sure: true },
            (State::Receiving | State::Passing { .. } | State::Filling | State::Peeking, Event::LimitReached) => {
                State::ShuttingDown
            }
            (State::ShuttingDown, Event::ShutDown) => State::Done,
            (state @ (State::Receiving | State::Passing { .. } | State::Filling | State::Peeking), Event::Yielded) => {
                self.turn = 0;
                state
            }
            (state, event) => state.cannot_have(event),
        }
    }

    /// The source is drained; how to begin when it has more.
    fn await_source(&mut self) -> State {
        if self.passes {
            // A pass may be small for want of room as well, so what counts is all that was moved since the source was waited for.
            self.flow = self.flow.after(self.flow.judge(self.turn, false, self.crossover));
        }
        self.flow = self.flow.after_pause();
        self.turn = 0;
        self.begin()
    }

    /// How this flow takes what the source has.
    fn begin(&self) -> State {
        match self.flow {
            Flow::Bulk { .. } | Flow::Spliced if self.passes => State::Passing { sure: false },
            Flow::LargeMessages { .. } | Flow::Bulk { .. } | Flow::Spliced => State::Filling,
            Flow::Messages { .. } | Flow::Copied { .. } => State::Receiving,
        }
    }

    fn copy_for(&mut self, reason: Reason) {
        self.flow = Flow::copied_for(reason);
        self.last_fill = None;
    }

    /// The pipe is empty again.
    fn after_splice(&mut self, fill: LastFill) -> State {
        self.flow = self.flow.after(fill);
        let next = self.begin();
        if next == State::Receiving {
            self.last_fill = None;
        }
        next
    }
}

impl State {
    #[cold]
    fn cannot_have(self, event: Event) -> ! {
        unreachable!("{event:?} cannot come of {self:?}")
    }

    fn after_pass(more: bool) -> Self {
        if more {
            Self::Passing { sure: false }
        } else {
            Self::Peeking
        }
    }
}
