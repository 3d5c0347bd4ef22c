//! Decides how a direction carries its traffic: whether it copies or splices, and through which
//! size of pipe.
//!
//! This file contains all heuristics of the engine. [`Traffic::before_read`] plans a read, and
//! [`Traffic::after_read`] learns from its report. The heuristics change the cost of a read, never
//! its outcome.

use crate::limits::SizeClass;
use crate::reason::{Reason, Scope};

/// A read of at least this many bytes is worth a splice. For fewer bytes, one `recv` and one `send`
/// cost less than two splices.
pub const SPLICE_THRESHOLD: usize = 16 << 10;

/// A spliced direction copies again after this many reads in a row that were not worth a splice. A
/// bulk sender that is slow for a moment causes a few such reads.
const SMALL_READS: u8 = 8;

/// After a temporary failure, a direction copies this many reads that are worth a splice before the
/// next attempt. In bulk traffic, that is 1 MiB.
const RETRY_AFTER: u8 = 16;

/// This many full reads through a pipe of 256 KiB, without backpressure between them, lead to a
/// pipe of 1 MiB.
const FULL_READS: u8 = 2;

/// This many reads in a row that leave more than half of the pipe unused lead to a smaller pipe.
const LOW_READS: u8 = 4;

/// Returns whether a read of this many bytes filled a pipe of this capacity, which means at least
/// three quarters of it. Fragments seldom begin and end at a page boundary, so a pipe whose slots
/// are all in use holds a little less than its capacity. A pipe whose slots hold segments (1,448 of
/// 4,096 bytes per slot) holds far less.
pub(crate) fn fills(bytes: usize, capacity: usize) -> bool {
    bytes >= capacity / 4 * 3
}

/// When to splice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// Copy small messages and splice bulk data. If splicing is not possible, copy everything.
    #[default]
    Auto,
    /// Splice from the first byte, and fail if that is not possible.
    Splice,
    /// Always copy.
    Copy,
}

/// Which pipes to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipeSize {
    /// The size follows the traffic:
    /// - 64 KiB at first,
    /// - 256 KiB after a read that fills the first pipe,
    /// - 1 MiB while the sink keeps up.
    #[default]
    Auto,
    /// This size, or a smaller one if the budget has no room for it.
    Fixed(SizeClass),
}

/// The plan for the next read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Receive into user space.
    Copy,
    /// Splice into a pipe of this class. If `probe` is set, first probe whether the source has
    /// anything, because the last read was short.
    Splice { class: SizeClass, probe: bool },
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    /// Bytes were received into user space. `full` means that the bytes filled the allowed space.
    Copied { bytes: usize, full: bool },
    /// Bytes were spliced into a pipe. `full` means that the bytes nearly filled the pipe or
    /// reached the allowed number.
    Spliced { bytes: usize, full: bool },
    /// The source had no bytes.
    Drained,
    /// The source or the sink cannot be spliced, or there is no pipe.
    Cannot(Reason),
}

/// The recent traffic of one direction.
#[derive(Debug)]
pub(crate) struct Traffic {
    mode: Mode,
    class: SizeClass,
    /// Whether the size of the pipe follows the traffic.
    adapts: bool,
    full_reads: u8,
    low_reads: u8,
    last_read_was_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The traffic consists of small messages.
    Copy,
    /// The traffic is bulk or large messages. The last `small_reads` reads were not worth a splice.
    Splice { small_reads: u8 },
    /// The caller permits only splices.
    MustSplice,
    /// Splicing is not possible. The direction tries again after it has copied `retry_after` more
    /// reads that are worth a splice, or never if this is `None`.
    CannotSplice { retry_after: Option<u8> },
}

impl Traffic {
    pub(crate) fn new(engine: Engine, pipe_size: PipeSize) -> Self {
        let (class, adapts) = match pipe_size {
            PipeSize::Auto => (SizeClass::Kib64, true),
            PipeSize::Fixed(class) => (class, false),
        };
        Self {
            mode: match engine {
                Engine::Auto => Mode::Copy,
                Engine::Splice => Mode::MustSplice,
                Engine::Copy => Mode::CannotSplice { retry_after: None },
            },
            class,
            adapts,
            full_reads: 0,
            low_reads: 0,
            last_read_was_short: false,
        }
    }

    #[inline]
    pub(crate) fn before_read(&self) -> Plan {
        match self.mode {
            Mode::Copy | Mode::CannotSplice { .. } => Plan::Copy,
            Mode::Splice { .. } | Mode::MustSplice => Plan::Splice {
                class: self.class,
                probe: self.last_read_was_short,
            },
        }
    }

    #[inline]
    pub(crate) fn after_read(&mut self, report: Report) {
        match report {
            Report::Copied { bytes, full } => {
                if full || bytes >= SPLICE_THRESHOLD {
                    self.after_large_copy();
                }
            }
            Report::Spliced { bytes, full } => {
                self.last_read_was_short = !full;
                self.after_splice(full || bytes >= SPLICE_THRESHOLD);
                self.resize(bytes, full);
            }
            Report::Drained => self.last_read_was_short = false,
            Report::Cannot(reason) => {
                self.last_read_was_short = false;
                self.mode = Mode::CannotSplice {
                    retry_after: match reason.scope() {
                        Scope::Relay => None,
                        // `splice_support` remembers a reason that holds for the process, so an
                        // attempt costs nothing.
                        Scope::Process | Scope::Moment => Some(RETRY_AFTER),
                    },
                };
            }
        }
    }

    /// Records that the sink did not immediately accept all bytes in the pipe. A larger pipe would
    /// not make the sink faster, and would only hold more bytes for it.
    pub(crate) fn after_backpressure(&mut self) {
        self.full_reads = 0;
        if self.adapts {
            self.class = self.class.min(SizeClass::Kib256);
        }
    }

    /// Returns whether the direction must fail rather than copy.
    pub(crate) fn must_splice(&self) -> bool {
        self.mode == Mode::MustSplice
    }

    fn after_large_copy(&mut self) {
        self.mode = match self.mode {
            Mode::Copy | Mode::CannotSplice { retry_after: Some(0) } => Mode::Splice { small_reads: 0 },
            Mode::CannotSplice {
                retry_after: Some(more),
            } => Mode::CannotSplice {
                retry_after: Some(more - 1),
            },
            mode => mode,
        };
    }

    /// Records whether a spliced read was worth a splice.
    pub(crate) fn after_splice(&mut self, was_worth_it: bool) {
        if let Mode::Splice { small_reads } = &mut self.mode {
            *small_reads = if was_worth_it { 0 } else { *small_reads + 1 };
            if *small_reads == SMALL_READS {
                self.mode = Mode::Copy;
            }
        }
    }

    /// Chooses the size of the next pipe. If the bytes filled the pipe, the next pipe is larger. If
    /// only the slots are full, the fragments are small, and a larger pipe would cost more.
    fn resize(&mut self, bytes: usize, full: bool) {
        if !self.adapts {
            return;
        }
        if full && fills(bytes, self.class.bytes()) {
            self.low_reads = 0;
            self.full_reads = (self.full_reads + 1).min(FULL_READS);
            if self.class == SizeClass::Kib64 || self.full_reads == FULL_READS {
                self.class = self.class.larger();
            }
            return;
        }
        self.low_reads = if bytes < self.class.bytes() / 2 {
            self.low_reads + 1
        } else {
            0
        };
        if self.low_reads == LOW_READS {
            (self.low_reads, self.full_reads) = (0, 0);
            self.class = self.class.smaller().unwrap_or(self.class);
        }
    }
}
