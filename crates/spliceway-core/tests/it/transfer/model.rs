//! A model in which a transfer moves bytes between a source, a pipe, user space and a sink. Numbers
//! represent the bytes.
//!
//! The transfer reads the source only in order, so a range of positions represents the bytes. Each
//! delivery must begin where the last one ended. This proves that no byte is lost, duplicated or
//! out of order.

use std::ops::Range;

use spliceway_core::transfer::{Event, SCRATCH, SPLICE_THROUGH_MAX, Step, Transfer};
use spliceway_core::{Engine, PipeSize, Reason, Scope, SizeClass};

/// After copying this many bytes, a poll yields (docs/tuning.md).
pub(crate) const COPY_BUDGET: usize = 256 << 10;
/// After splicing this many bytes, a poll yields (docs/tuning.md).
pub(crate) const SPLICE_BUDGET: usize = 1 << 20;
/// The most bytes that one recv or one fill can bring. A poll can exceed its budget by this many
/// bytes.
const MOST_AT_ONCE: usize = 4 << 20;

/// A record without data counts like this many bytes.
const OTHER_RECORD: usize = 4 << 10;
/// The most records without data that a source sends.
const OTHER_RECORDS: usize = 2;

/// A message that is worth a splice and does not fill the buffer.
const LARGE_MESSAGE: usize = 20_000;

/// Decides which of the possible outcomes happens.
pub(crate) trait Fate {
    /// Returns a number below `outcomes`.
    fn choose(&mut self, outcomes: usize) -> usize;
}

/// Reaches the end in the fewest steps, because everything succeeds completely. It chooses the
/// first outcome, which is the best one.
pub(crate) struct Kind;

impl Fate for Kind {
    fn choose(&mut self, _outcomes: usize) -> usize {
        0
    }
}

/// One transfer, and the bytes that it moves. Each step asserts the invariants.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) transfer: Transfer,
    engine: Engine,
    /// Whether one end is a pipe, so that there is no pipe in between.
    through: bool,
    /// The positions that the source still has. The stream ends after them.
    source: Range<usize>,
    /// The transfer must not read this position or a later one.
    limit: usize,
    user: Range<usize>,
    pipe: Range<usize>,
    delivered: usize,
    end_seen: bool,
    /// The number of records of TLS without data that the source may still send.
    other_records: usize,
    /// Whether a reason occurred that holds for this relay permanently.
    never_again: bool,
    moved: usize,
    /// The number of steps since a byte moved, the transfer waited, or other tasks ran.
    idle_steps: usize,
    pub(crate) history: Vec<(Step, Event)>,
}

impl World {
    /// Creates a world with a source that ends after this many bytes.
    pub(crate) fn new(engine: Engine, size: PipeSize, bytes: usize) -> Self {
        Self {
            transfer: Transfer::new(engine, size),
            engine,
            through: false,
            source: 0..bytes,
            limit: usize::MAX,
            user: 0..0,
            pipe: 0..0,
            delivered: 0,
            end_seen: false,
            other_records: 0,
            never_again: false,
            moved: 0,
            idle_steps: 0,
            history: Vec::new(),
        }
    }

    /// Does the same as [`new`](Self::new), with a pipe at one end.
    pub(crate) fn without_pipe(engine: Engine, bytes: usize) -> Self {
        Self {
            transfer: Transfer::without_pipe(engine),
            through: true,
            ..Self::new(engine, PipeSize::Auto, bytes)
        }
    }

    /// Does the same as [`new`](Self::new), with a source that has TLS in the kernel.
    pub(crate) fn with_tls(engine: Engine, bytes: usize) -> Self {
        Self {
            other_records: OTHER_RECORDS,
            ..Self::new(engine, PipeSize::Auto, bytes)
        }
    }

    /// Marks the first `bytes` bytes of the source as read before the transfer began.
    pub(crate) fn preloaded(mut self, bytes: usize) -> Self {
        self.user = 0..bytes;
        self.source.start = bytes;
        self.transfer.preload();
        self
    }

    /// Lets the transfer read only the first `bytes` bytes of the source.
    pub(crate) fn limited(self, bytes: usize) -> Self {
        Self { limit: bytes, ..self }
    }

    /// Performs one step with the outcome that `fate` chooses. Returns `false` when the transfer is
    /// done.
    pub(crate) fn advance(&mut self, fate: &mut impl Fate) -> bool {
        let mut step = self.transfer.step();
        if self.is_at_limit() && step.reads() {
            self.transfer.on(Event::LimitReached);
            step = self.transfer.step();
        }
        self.check(step);
        let outcomes = self.outcomes(step);
        let Some(event) = outcomes.get(fate.choose(outcomes.len().max(1))) else {
            return false;
        };
        self.happen(step, *event);
        true
    }

    /// Lets everything succeed from now on. The transfer must end, with every byte delivered.
    pub(crate) fn finish(&mut self) {
        // These steps suffice to fill, drain and probe for all remaining bytes, and for the end.
        let enough = 64 + 8 * (self.source.len() + self.pipe.len() + self.user.len()) / SCRATCH;
        for _ in 0..enough {
            if !self.advance(&mut Kind) {
                let complete = self.source.is_empty() || self.is_at_limit();
                assert!(complete, "done with bytes left in the source: {self:#?}");
                return;
            }
        }
        panic!("not done after {enough} kind steps: {self:#?}");
    }

    fn is_at_limit(&self) -> bool {
        self.source.start == self.limit
    }

    /// Returns the number of positions that may be read now.
    fn left(&self) -> usize {
        self.source.len().min(self.limit - self.source.start)
    }

    /// Checks the invariants that hold when `step` is due.
    fn check(&self, step: Step) {
        assert!(
            self.user.is_empty() || self.pipe.is_empty(),
            "both hold bytes: {self:#?}"
        );
        assert_eq!(step.holds_pipe(), !self.pipe.is_empty(), "at {step:?}: {self:#?}");
        assert_eq!(step == Step::Send, !self.user.is_empty(), "at {step:?}: {self:#?}");
        assert!(self.idle_steps <= 4, "in circles at {step:?}: {self:#?}");
        let budget = if self.engine == Engine::Copy {
            COPY_BUDGET
        } else {
            SPLICE_BUDGET
        };
        match step {
            Step::Fill { .. } | Step::SpliceThrough { .. } | Step::Peek => {
                let fills = matches!(step, Step::Fill { .. });
                assert_ne!(fills, self.through, "{step:?} between such ends");
                assert_ne!(self.engine, Engine::Copy, "copies always");
                assert!(
                    !self.never_again,
                    "{step:?} after a reason that holds for good: {self:#?}"
                );
                assert!(self.moved < budget, "{step:?} beyond the budget: {self:#?}");
            }
            Step::Recv => assert!(self.moved < budget, "{step:?} beyond the budget: {self:#?}"),
            Step::Yield => assert!(self.moved >= COPY_BUDGET, "yields too early: {self:#?}"),
            Step::Shutdown => {
                assert!(self.end_seen || self.is_at_limit(), "no end was confirmed: {self:#?}");
            }
            Step::Send | Step::Drain | Step::Unload => {}
        }
        assert!(self.moved < budget + MOST_AT_ONCE, "too long a poll: {self:#?}");
    }

    /// Returns every outcome that `step` can have now, with the best one first.
    fn outcomes(&self, step: Step) -> Vec<Event> {
        let left = self.left();
        match step {
            Step::Recv => {
                // The outcomes are a full buffer, a large message, and a small message or the last
                // bytes.
                let small = if left >= SCRATCH { 1_000 } else { left };
                let possible = [SCRATCH, LARGE_MESSAGE, small]
                    .into_iter()
                    .filter(|bytes| (1..=left).contains(bytes));
                let mut outcomes: Vec<_> = possible
                    .map(|bytes| Event::Received {
                        bytes,
                        full: bytes == SCRATCH,
                    })
                    .collect();
                outcomes.extend((left == 0).then_some(Event::Eof));
                outcomes.push(Event::WouldBlock);
                outcomes.extend((self.other_records > 0).then_some(Event::OtherRecord));
                outcomes
            }
            // A peek cannot show whether an empty pipe has ended.
            Step::Peek if left == 0 => vec![Event::WouldBlock, Event::SourceStopped],
            Step::Peek => vec![Event::Peeked, Event::WouldBlock, Event::SourceStopped],
            Step::SpliceThrough { peeked } => self.spliced_through(peeked),
            Step::Fill { class, probe } => self.fills(class, probe),
            Step::Send => parts(self.user.len())
                .map(|bytes| Event::Sent {
                    bytes,
                    left: self.user.len() - bytes,
                })
                .collect(),
            Step::Drain => {
                let drained = parts(self.pipe.len()).map(|bytes| Event::Drained {
                    bytes,
                    left: self.pipe.len() - bytes,
                });
                let cannot = [Reason::NotSupported, Reason::NoMemory].map(Event::Cannot);
                drained.chain([Event::SinkBlocked]).chain(cannot).collect()
            }
            Step::Unload => vec![Event::Unloaded],
            Step::Yield => vec![Event::Yielded],
            Step::Shutdown => Vec::new(),
        }
    }

    fn fills(&self, class: SizeClass, probe: bool) -> Vec<Event> {
        let size = class.bytes();
        let left = self.left();
        // First come fills of the size or of the last bytes, of far more than the size, and of a
        // little over half of it. Then come fills of sixteen slots of segments, of a small message,
        // and of a full pipe of another size.
        let sizes = [
            (size.min(left), left >= size),
            (4 * size, true),
            (size / 2 + 1, false),
            (23_168, false),
            (100, false),
            (64 << 10, true),
        ];
        let possible = sizes.into_iter().filter(|(bytes, _)| (1..=left).contains(bytes));
        let mut outcomes: Vec<_> = possible.map(|(bytes, full)| Event::Filled { bytes, full }).collect();
        // This may happen even if the source has bytes. They may not have arrived yet, or they may
        // be after an urgent mark.
        outcomes.push(Event::SourceStopped);
        outcomes.extend((self.other_records > 0).then_some(Event::SourceRefused));
        outcomes.extend(probe.then_some(Event::WouldBlock));
        // There is one reason for each scope: the relay, the process and the moment.
        let reasons = [Reason::InvalidArgument, Reason::NotPermitted, Reason::PipeBudget];
        outcomes.extend(reasons.map(Event::Cannot));
        outcomes
    }

    fn spliced_through(&self, peeked: bool) -> Vec<Event> {
        let left = self.left();
        // The outcomes are the maximum or the last bytes, a large part, and small messages from a
        // socket and from a pipe.
        let sizes = [
            (SPLICE_THROUGH_MAX.min(left), true),
            (SCRATCH, true),
            (100, false),
            (100, true),
        ];
        let possible = sizes.into_iter().filter(|(bytes, _)| (1..=left).contains(bytes));
        let mut outcomes: Vec<_> = possible
            .map(|(bytes, more)| Event::SplicedThrough { bytes, more })
            .collect();
        outcomes.push(Event::SourceStopped);
        // This cannot happen if the source is known to have bytes.
        outcomes.extend((!peeked).then_some(Event::SinkBlocked));
        let reasons = [Reason::InvalidArgument, Reason::NotPermitted, Reason::NoMemory];
        outcomes.extend(reasons.map(Event::Cannot));
        outcomes
    }

    fn happen(&mut self, step: Step, event: Event) {
        let moved = match event {
            Event::Received { bytes, .. } => {
                self.user = self.take(bytes);
                bytes
            }
            Event::Filled { bytes, .. } => {
                self.pipe = self.take(bytes);
                bytes
            }
            Event::SplicedThrough { bytes, .. } => {
                assert!(self.user.is_empty(), "what was read goes first");
                self.user = self.take(bytes);
                self.deliver(Step::Send, bytes);
                bytes
            }
            Event::Sent { bytes, left } => {
                self.deliver(step, bytes);
                assert_eq!(self.user.len(), left);
                bytes
            }
            Event::Drained { bytes, left } => {
                self.deliver(step, bytes);
                assert_eq!(self.pipe.len(), left);
                bytes
            }
            Event::Unloaded => {
                self.user = std::mem::take(&mut self.pipe);
                self.user.len()
            }
            Event::Eof => {
                assert!(self.source.is_empty());
                // A peek consumes nothing, not even an urgent byte before the end. Only a receive
                // shows the end.
                self.end_seen = step == Step::Recv;
                0
            }
            Event::OtherRecord => {
                self.other_records -= 1;
                self.moved += OTHER_RECORD;
                OTHER_RECORD
            }
            Event::Cannot(reason) => {
                self.never_again |= reason.scope() == Scope::Relay;
                0
            }
            Event::Peeked
            | Event::SourceStopped
            | Event::SourceRefused
            | Event::SinkBlocked
            | Event::WouldBlock
            | Event::LimitReached
            | Event::Yielded => 0,
        };
        let waits = matches!(
            (step, event),
            (Step::Drain, Event::SinkBlocked) | (_, Event::WouldBlock | Event::Yielded)
        );
        if waits {
            self.moved = 0;
            self.idle_steps = 0;
        } else if moved > 0 {
            self.idle_steps = 0;
        } else {
            self.idle_steps += 1;
        }
        self.history.push((step, event));
        self.transfer.on(event);
        if waits {
            // The caller parks the direction before it waits.
            self.transfer.park();
        }
    }

    fn take(&mut self, bytes: usize) -> Range<usize> {
        let from = self.source.start;
        self.source.start += bytes;
        assert!(
            self.source.start <= self.source.end,
            "the model takes what is not there"
        );
        from..self.source.start
    }

    /// Delivers the next bytes of user space or of the pipe to the sink.
    fn deliver(&mut self, step: Step, bytes: usize) {
        let held = if step == Step::Send {
            &mut self.user
        } else {
            &mut self.pipe
        };
        assert_eq!(held.start, self.delivered, "bytes lost, doubled or out of order");
        held.start += bytes;
        self.delivered = held.start;
        self.moved += bytes;
    }
}

/// Returns the whole length, and a part of it.
fn parts(len: usize) -> impl Iterator<Item = usize> {
    [len, len / 3].into_iter().filter(|bytes| *bytes > 0)
}
