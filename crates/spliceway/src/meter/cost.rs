//! What messages of one size cost by either way, and which is held to cost less.

use super::By;

/// Messages of a size, by one of both, until their cost counts as known.
pub(super) const KNOWN_AFTER: u8 = 16;

/// By so much, one in so many, the other way must be cheaper before messages go it: where both cost the same nobody is to go to and fro.
const WORTH: u32 = 32;

/// More than this, a second, no message is held to cost.
const MOST_NANOS: u32 = 1_000_000_000;

/// What messages of one size cost, as if each had just the bytes that it begins with: those of a stream are no two alike, and not the same
/// by the one way as by the other.
#[derive(Debug)]
pub(super) struct Costs {
    pub(super) copied: Cost,
    pub(super) spliced: Cost,
    /// Whether splicing costs less.
    pub(super) splices: bool,
}

impl Costs {
    pub(super) const UNKNOWN: Self = Self {
        copied: Cost::UNKNOWN,
        spliced: Cost::UNKNOWN,
        splices: false,
    };

    pub(super) fn learn(&mut self, by: By, nanos: u32) {
        match by {
            By::Copy => self.copied.learn(nanos),
            By::Splice => self.spliced.learn(nanos),
        }
    }

    pub(super) fn judge(&mut self) {
        if self.are_known() {
            let (now, other) = if self.splices {
                (self.spliced.nanos, self.copied.nanos)
            } else {
                (self.copied.nanos, self.spliced.nanos)
            };
            self.splices ^= other < now - now / WORTH;
        }
    }

    pub(super) fn are_known(&self) -> bool {
        self.copied.is_known() && self.spliced.is_known()
    }
}

/// What a message costs: a moving average in which no message counts for more than twice of what was known, as a few take a hundred times
/// as long, for what the machine did meanwhile.
#[derive(Debug)]
pub(super) struct Cost {
    pub(super) nanos: u32,
    pub(super) messages: u8,
}

impl Cost {
    const UNKNOWN: Self = Self {
        nanos: MOST_NANOS,
        messages: 0,
    };

    fn learn(&mut self, nanos: u32) {
        // The least of the first four begins it: most likely one of them was not disturbed.
        self.nanos = if self.messages < 4 {
            // A clock with large ticks may say that it took no time at all.
            self.nanos.min(nanos).max(16)
        } else {
            (self.nanos - self.nanos / 16 + nanos.min(2 * self.nanos) / 16).min(MOST_NANOS)
        };
        self.messages = self.messages.saturating_add(1);
    }

    pub(super) fn is_known(&self) -> bool {
        self.messages >= KNOWN_AFTER
    }
}
