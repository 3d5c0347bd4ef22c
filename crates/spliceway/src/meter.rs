//! What messages cost by copying and by splicing, measured on this thread: from where on the second is cheaper depends on the machine, on
//! how far the data is from its caches, and on who else needs them.

use std::time::{Duration, Instant};

use spliceway_core::transfer::{Crossover, Middling};

/// One in so many turns that may take a message has its time taken, the clock being a part of what it costs; on trial, each. Like the
/// next two it is no multiple of anything, so that no pattern of messages hides one of them.
const TIMED: u8 = 17;

/// Middling messages from one trial to the next: 8 of so many go the dearer way.
const TRIAL_EVERY: u16 = 509;

/// The same for the first trials, until both ways are known.
const FIRST_TRIALS_EVERY: u16 = 61;

/// There are no more first trials than that: some sizes may never come.
const FIRST_TRIALS: u8 = 16;

/// Messages of a size, by one of both, until their cost counts as known.
const KNOWN_AFTER: u8 = 16;

/// By so much, one in so many, splicing must be cheaper before messages that are copied are spliced.
const WORTH: u32 = 16;

/// More than this, a second, no message is held to cost.
const MOST_NANOS: u32 = 1_000_000_000;

/// The time of a turn that takes a message, or several by the same.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timing {
    NotBegun,
    /// Not worth the clock, or not about messages alone.
    Off,
    Begun(Instant),
    Message {
        begun: Instant,
        bytes: usize,
        by: By,
    },
}

impl Timing {
    pub(crate) fn is_of_message(self) -> bool {
        matches!(self, Self::Message { .. })
    }
}

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Copy,
    Splice,
}

/// Costs of middling messages, and what follows from them.
#[derive(Debug)]
pub(crate) struct Meter {
    costs: [Costs; Middling::ALL.len()],
    crossover: Crossover,
    /// Turns since the last that was timed.
    untimed: u8,
    /// Middling messages until the next trial.
    until_trial: u16,
    /// Trials until now, as far as they are counted.
    trials: u8,
}

impl Meter {
    pub(crate) const fn new() -> Self {
        Self {
            costs: [Costs::UNKNOWN; Middling::ALL.len()],
            crossover: Crossover::AtBulk,
            untimed: 0,
            until_trial: FIRST_TRIALS_EVERY,
            trials: 0,
        }
    }

    /// Which messages to splice now.
    pub(crate) fn crossover(&self) -> Crossover {
        if self.until_trial == 0 {
            Crossover::Swapped
        } else {
            self.crossover
        }
    }

    /// Something is about to be taken.
    #[inline]
    pub(crate) fn begin(&mut self, timing: Timing, on_trial: bool) -> Timing {
        match timing {
            Timing::NotBegun => {
                self.untimed += 1;
                if self.untimed < TIMED && !on_trial {
                    return Timing::Off;
                }
                self.begin_timed()
            }
            // The end of a message is found by a look for more.
            Timing::Message { .. } => timing,
            Timing::Off | Timing::Begun(_) => Timing::Off,
        }
    }

    #[cold]
    fn begin_timed(&mut self) -> Timing {
        self.untimed = 0;
        Timing::Begun(Instant::now())
    }

    /// A message of so many bytes was taken.
    #[inline]
    pub(crate) fn message(&mut self, timing: Timing, bytes: usize, by: By) -> Timing {
        if Middling::of(bytes).is_some() {
            self.count();
        }
        match timing {
            Timing::Begun(begun) => Timing::Message { begun, bytes, by },
            // Fragments may take all slots of a pipe before it has a whole message.
            Timing::Message {
                begun,
                bytes: before,
                by: same,
            } if same == by => Timing::Message {
                begun,
                bytes: before + bytes,
                by,
            },
            _ => Timing::Off,
        }
    }

    /// The turn is over, and all was delivered.
    #[cold]
    pub(crate) fn end(&mut self, timing: Timing) {
        if let Timing::Message { begun, bytes, by } = timing {
            self.learn(bytes, by, begun.elapsed());
        }
    }

    /// A middling message has passed, and if a trial was due it has begun.
    fn count(&mut self) {
        self.until_trial = match self.until_trial {
            0 => {
                self.trials = self.trials.saturating_add(1);
                let is_early = self.trials < FIRST_TRIALS && self.costs.iter().any(Costs::want_trials);
                if is_early { FIRST_TRIALS_EVERY } else { TRIAL_EVERY }
            }
            left => left,
        } - 1;
    }

    /// So long messages of so many bytes in all took, from the first call for them to the last.
    fn learn(&mut self, bytes: usize, by: By, took: Duration) {
        let Some(size) = Middling::of(bytes) else {
            return;
        };
        let nanos = took.as_nanos() * size.bytes() as u128 / bytes as u128;
        let costs = &mut self.costs[size as usize];
        costs.learn(by, u32::try_from(nanos).unwrap_or(u32::MAX));
        costs.judge();
        self.crossover = self.crossing();
    }

    /// The smallest size from which on nothing is known to be cheaper copied.
    fn crossing(&self) -> Crossover {
        let mut crossover = Crossover::AtBulk;
        for size in Middling::ALL.into_iter().rev() {
            match &self.costs[size as usize] {
                costs if costs.splices => crossover = Crossover::At(size),
                costs if costs.are_known() => break,
                _ => {}
            }
        }
        crossover
    }
}

/// What messages of one size cost, as if each had just the bytes that it begins with: those of a stream are no two alike, and not the same
/// by the one way as by the other.
#[derive(Debug)]
struct Costs {
    copied: Cost,
    spliced: Cost,
    /// Whether splicing costs less.
    splices: bool,
}

impl Costs {
    const UNKNOWN: Self = Self {
        copied: Cost::UNKNOWN,
        spliced: Cost::UNKNOWN,
        splices: false,
    };

    fn learn(&mut self, by: By, nanos: u32) {
        match by {
            By::Copy => self.copied.learn(nanos),
            By::Splice => self.spliced.learn(nanos),
        }
    }

    fn judge(&mut self) {
        if self.are_known() {
            let worth = if self.splices { 0 } else { self.copied.nanos / WORTH };
            self.splices = self.spliced.nanos + worth < self.copied.nanos;
        }
    }

    fn are_known(&self) -> bool {
        self.copied.is_known() && self.spliced.is_known()
    }

    /// Messages of this size come, and nobody knows yet what they cost the other way.
    fn want_trials(&self) -> bool {
        self.copied.is_known() != self.spliced.is_known()
    }
}

/// What a message costs: a moving average in which no message counts for more than twice of what was known, as a few take a hundred times
/// as long, for what the machine did meanwhile.
#[derive(Debug)]
struct Cost {
    nanos: u32,
    messages: u8,
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

    fn is_known(&self) -> bool {
        self.messages >= KNOWN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Middling = Middling::Kib16;
    const BYTES: usize = 16 << 10;

    fn learn(meter: &mut Meter, messages: u32, by: By, micros: u64) {
        for _ in 0..messages {
            meter.learn(BYTES, by, Duration::from_micros(micros));
        }
    }

    #[test]
    fn messages_are_spliced_from_the_size_on_from_which_that_is_cheaper() {
        let mut meter = Meter::new();
        learn(&mut meter, 16, By::Copy, 10);
        learn(&mut meter, 15, By::Splice, 8);
        assert_eq!(meter.crossover(), Crossover::AtBulk, "15 messages say nothing");
        learn(&mut meter, 1, By::Splice, 8);
        assert_eq!(meter.crossover(), Crossover::At(SIZE));
    }

    #[test]
    fn it_is_the_byte_that_must_be_cheaper() {
        let mut meter = Meter::new();
        learn(&mut meter, 16, By::Copy, 10);
        for _ in 0..16 {
            meter.learn(BYTES / 4 * 7, By::Splice, Duration::from_micros(14));
        }
        assert_eq!(meter.crossover(), Crossover::At(SIZE));
    }

    #[test]
    fn as_cheap_is_not_cheaper_and_no_reason_to_go_back() {
        let mut meter = Meter::new();
        learn(&mut meter, 100, By::Copy, 100);
        learn(&mut meter, 100, By::Splice, 97);
        assert_eq!(meter.crossover(), Crossover::AtBulk);
        learn(&mut meter, 100, By::Splice, 80);
        assert_eq!(meter.crossover(), Crossover::At(SIZE));
        learn(&mut meter, 100, By::Splice, 97);
        assert_eq!(meter.crossover(), Crossover::At(SIZE));
        learn(&mut meter, 100, By::Splice, 104);
        assert_eq!(meter.crossover(), Crossover::AtBulk);
    }

    #[test]
    fn a_few_that_were_disturbed_change_nothing() {
        let mut meter = Meter::new();
        learn(&mut meter, 16, By::Copy, 10);
        learn(&mut meter, 3, By::Splice, 8_000);
        learn(&mut meter, 60, By::Splice, 8);
        assert_eq!(meter.crossover(), Crossover::At(SIZE));
        learn(&mut meter, 2, By::Splice, 8_000);
        assert_eq!(meter.crossover(), Crossover::At(SIZE));
    }

    #[test]
    fn a_trial_begins_with_each_509th_message_and_sooner_until_both_ways_are_known() {
        let mut meter = Meter::new();
        let messages_until_trial = |meter: &mut Meter| {
            // The one that begins it.
            let mut messages = 1;
            while meter.crossover() != Crossover::Swapped {
                meter.count();
                messages += 1;
            }
            meter.count();
            messages
        };
        assert_eq!(messages_until_trial(&mut meter), 62);
        learn(&mut meter, 16, By::Copy, 10);
        let decided_before_any_was_known = 509;
        assert_eq!(messages_until_trial(&mut meter), decided_before_any_was_known);
        assert_eq!(messages_until_trial(&mut meter), 61);
        learn(&mut meter, 16, By::Splice, 10);
        let decided_before_both_were_known = 61;
        assert_eq!(messages_until_trial(&mut meter), decided_before_both_were_known);
        assert_eq!(messages_until_trial(&mut meter), 509);
    }

    #[test]
    fn of_what_cannot_be_learnt_there_are_16_early_trials() {
        let mut meter = Meter::new();
        learn(&mut meter, 16, By::Copy, 10);
        let early = (0..=FIRST_TRIALS_EVERY * u16::from(FIRST_TRIALS)).filter(|_| {
            let is_due = meter.crossover() == Crossover::Swapped;
            meter.count();
            is_due
        });
        assert_eq!(early.count(), 16);
        assert_eq!(meter.until_trial, TRIAL_EVERY - 1);
    }

    #[test]
    fn one_turn_of_17_is_timed_and_each_on_trial() {
        let mut meter = Meter::new();
        let mut is_timed = |on_trial| matches!(meter.begin(Timing::NotBegun, on_trial), Timing::Begun(_));
        for _ in 0..2 {
            assert_eq!((0..17).map(|_| is_timed(false)).filter(|&timed| timed).count(), 1);
        }
        assert!((0..16).all(|_| is_timed(true)));
    }

    #[test]
    fn a_turn_is_timed_that_takes_messages_at_once_by_one_way_and_then_nothing() {
        let mut meter = Meter::new();
        let mut timed = |takes: &[Option<(usize, By)>]| {
            let mut timing = Timing::NotBegun;
            for take in takes {
                timing = meter.begin(timing, true);
                if let Some((bytes, by)) = *take {
                    timing = meter.message(timing, bytes, by);
                }
            }
            match timing {
                Timing::Message { bytes, .. } => Some(bytes),
                _ => None,
            }
        };
        let (spliced, copied) = (Some((9_000, By::Splice)), Some((9_000, By::Copy)));
        assert_eq!(timed(&[spliced]), Some(9_000));
        assert_eq!(timed(&[spliced, None]), Some(9_000), "the look for more");
        assert_eq!(timed(&[spliced, spliced]), Some(18_000));
        assert_eq!(timed(&[None, copied]), None, "a vain splice before it");
        assert_eq!(timed(&[spliced, copied]), None);
    }

    #[test]
    fn sizes_are_spliced_from_the_one_on_above_which_none_is_known_to_be_cheaper_copied() {
        let (copied, spliced, unknown) = (Some(false), Some(true), None);
        let (from_8, from_16, from_32) = (Middling::Kib8, Middling::Kib16, Middling::Kib32);
        for (known, crossing) in [
            ([unknown, unknown, unknown], None),
            ([spliced, unknown, unknown], Some(from_8)),
            ([spliced, unknown, spliced], Some(from_8)),
            ([spliced, copied, spliced], Some(from_32)),
            ([spliced, spliced, copied], None),
            ([copied, spliced, unknown], Some(from_16)),
        ] {
            let mut meter = Meter::new();
            for (size, splices) in Middling::ALL.into_iter().zip(known) {
                let Some(splices) = splices else { continue };
                for by in [By::Copy, By::Splice] {
                    let micros = if splices == (by == By::Splice) { 8 } else { 10 };
                    for _ in 0..KNOWN_AFTER {
                        meter.learn(size.bytes(), by, Duration::from_micros(micros));
                    }
                }
            }
            assert_eq!(
                meter.crossover(),
                crossing.map_or(Crossover::AtBulk, Crossover::At),
                "{known:?}"
            );
        }
    }

    #[test]
    fn no_time_is_too_short_or_too_long() {
        let mut meter = Meter::new();
        for took in [Duration::ZERO, Duration::MAX] {
            for _ in 0..100 {
                meter.learn(BYTES, By::Copy, took);
                meter.learn(BYTES, By::Splice, took);
            }
        }
        assert_eq!(meter.crossover(), Crossover::AtBulk);
    }
}
