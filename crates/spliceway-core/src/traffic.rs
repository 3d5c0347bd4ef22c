//! How a direction carries its traffic: by copy or by splice, and through which size of pipe.
//!
//! These are all the heuristics of the engine. [`Traffic::before_read`] plans a read, and
//! [`Traffic::after_read`] learns from its report. Everything here changes the cost of a read,
//! never its outcome.

use crate::limits::SizeClass;
use crate::reason::{Reason, Scope};

/// A read of at least this many bytes is worth a splice. Below, one `recv` and one `send` cost less
/// than two splices.
pub const SPLICE_THRESHOLD: usize = 16 << 10;

/// A spliced direction copies again after this many reads in a row that were not worth a splice. A
/// bulk sender that is slow for a moment causes a few of them.
const SMALL_READS: u8 = 8;

/// After a failure that may pass, this many reads worth a splice are copied before the next
/// attempt: 1 MiB of bulk.
const RETRY_AFTER: u8 = 16;

/// Full reads through a pipe of 256 KiB, without backpressure between them, before a pipe of 1 MiB.
const FULL_READS: u8 = 2;

/// Reads in a row that left more than half of the pipe unused, before a smaller pipe.
const LOW_READS: u8 = 4;

/// Whether a read of this many bytes filled a pipe of this capacity: three quarters of it.
/// Fragments seldom begin and end with a page, so a pipe whose slots are all taken holds a little
/// less than its capacity. A pipe full of segments (1,448 of 4,096 bytes a slot) holds far less.
pub(crate) fn fills(bytes: usize, capacity: usize) -> bool {
    bytes >= capacity / 4 * 3
}

/// When to splice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// Small messages are copied, bulk is spliced, and what cannot be spliced is copied.
    #[default]
    Auto,
    /// Splice from the first byte, and fail if that is not possible.
    Splice,
    /// Copy always.
    Copy,
}

/// Which pipes to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipeSize {
    /// The size follows the traffic: 64 KiB at first, 256 KiB after a read that fills that, and 1
    /// MiB while the sink keeps up.
    #[default]
    Auto,
    /// This size, or a smaller one if the budget allows no more.
    Fixed(SizeClass),
}

/// How to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Receive into user space.
    Copy,
    /// Splice into a pipe of this class. `probe` first whether the source has anything: the last
    /// read took less than it could.
    Splice { class: SizeClass, probe: bool },
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    /// Received into user space; `full` if more might have been received.
    Copied { bytes: usize, full: bool },
    /// Spliced into a pipe; `full` if that is about all that fitted or was allowed.
    Spliced { bytes: usize, full: bool },
    /// The source had nothing.
    Drained,
    /// The source or the sink cannot be spliced, or there is no pipe.
    Cannot(Reason),
}

/// What one direction has carried lately.
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
    /// Small messages.
    Copy,
    /// Bulk, or large messages. `small_reads` in a row were not worth a splice.
    Splice { small_reads: u8 },
    /// The caller asked for splices only.
    MustSplice,
    /// Splicing is not possible, until this many reads worth a splice were copied, or ever.
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
                        // What holds for the process is remembered there, and an attempt costs
                        // nothing.
                        Scope::Process | Scope::Moment => Some(RETRY_AFTER),
                    },
                };
            }
        }
    }

    /// The sink did not take at once what the pipe holds. A larger pipe would not make it faster,
    /// and would hold more for it.
    pub(crate) fn after_backpressure(&mut self) {
        self.full_reads = 0;
        if self.adapts {
            self.class = self.class.min(SizeClass::Kib256);
        }
    }

    /// Whether the caller would rather fail than copy.
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

    /// A spliced read was worth it, or was not.
    pub(crate) fn after_splice(&mut self, was_worth_it: bool) {
        if let Mode::Splice { small_reads } = &mut self.mode {
            *small_reads = if was_worth_it { 0 } else { *small_reads + 1 };
            if *small_reads == SMALL_READS {
                self.mode = Mode::Copy;
            }
        }
    }

    /// A pipe that was filled in bytes is followed by a larger one. One that was only filled in
    /// slots is not: its fragments are small, and a larger pipe would cost more.
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
