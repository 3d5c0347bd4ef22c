//! How large a pipe a flow is worth.

use super::{PipeSize, is_full};
use crate::heuristic::{Heuristic, is_off};
use crate::pool::SizeClass;

/// Fills in a row for which the pipe was too large, before a smaller one is taken.
const LOW_FILLS: u8 = 4;

/// Full fills that the sink took without making one wait for long, before a pipe of 1 MiB is taken.
const TAKEN_FILLS: u8 = 2;

/// The class of pipe to ask for, and how it came to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizing {
    class: SizeClass,
    low_fills: u8,
    /// What was asked for last.
    asked: SizeClass,
    /// The bytes that came.
    filled: u32,
    taken_fills: u8,
    /// None above is asked for.
    largest: SizeClass,
    follows: bool,
}

impl Sizing {
    pub(super) fn new(pipe_size: PipeSize) -> Self {
        let (class, follows) = match pipe_size {
            PipeSize::Auto if is_off(Heuristic::PipeSizes) => (SizeClass::Kib64, false),
            PipeSize::Auto => (SizeClass::Kib64, true),
            PipeSize::Fixed(class) => (class, false),
        };
        Self {
            class,
            low_fills: 0,
            asked: class,
            filled: 0,
            taken_fills: 0,
            largest: SizeClass::Mib1,
            follows,
        }
    }

    /// The class to ask for.
    pub(super) fn class(&self) -> SizeClass {
        self.class.min(self.largest)
    }

    pub(super) fn limit(&mut self, largest: SizeClass) {
        if self.follows {
            self.largest = largest;
        }
    }

    /// Up at once when a fill of what was `asked` for returned its size in bytes, but to 1 MiB only for a sink that keeps up.
    pub(super) fn on_fill(&mut self, asked: SizeClass, bytes: usize, full: bool) {
        self.asked = asked;
        self.filled = u32::try_from(bytes).unwrap_or(u32::MAX);
        // Of a smaller pipe than the flow has earned.
        if asked < self.class {
            return;
        }
        if full && is_full(bytes, asked.bytes()) {
            self.low_fills = 0;
            self.taken_fills = (self.taken_fills + 1).min(TAKEN_FILLS);
            if self.follows && (asked == SizeClass::Kib64 || self.taken_fills == TAKEN_FILLS) {
                self.class = asked.larger();
            }
        }
    }

    /// The source had `more` than the last fill took, or not. Down when a few fills in a row were low. Where it had, those
    /// below half of the size: slots run out first where fragments are small, and a large pipe only costs more. Where it had none, those
    /// that would not have filled the smaller pipe: it would have done as well, and taken less of the budget.
    pub(super) fn on_more(&mut self, more: bool) {
        let (asked, bytes) = (self.asked, self.filled as usize);
        let Some(smaller) = asked.smaller().filter(|_| self.follows) else {
            return;
        };
        let is_low = if more {
            bytes < asked.bytes() / 2
        } else {
            !is_full(bytes, smaller.bytes())
        };
        self.low_fills = if is_low { self.low_fills + 1 } else { 0 };
        if self.low_fills == LOW_FILLS {
            self.class = smaller;
            self.low_fills = 0;
            self.taken_fills = 0;
        }
    }

    /// The sink does not keep up: a larger pipe would not make it faster, and would hold more for it.
    pub(super) fn on_slow_sink(&mut self) {
        self.taken_fills = 0;
        if self.follows {
            self.class = self.class.min(SizeClass::Kib256);
        }
    }
}
