//! What messages cost by copying and by splicing, measured on this thread: from where on the second is cheaper depends on the machine, on
//! how far the data is from its caches, and on who else needs them.

use std::time::{Duration, Instant};

use spliceway_core::transfer::{Crossover, Middling};

/// One in so many turns that may take a message has its time taken, the clock being a part of what it costs; on trial, each. Like the
/// next it is no multiple of anything, so that no pattern of messages hides one of them.
const TIMED: u8 = 17;

/// Middling messages from one trial to the next.
const TRIAL_EVERY: u16 = 8191;

/// From the first message to the first trial, which is long enough for what is timed of them to be known; then it doubles.
const FIRST_TRIAL_AFTER: u16 = 307;

/// Messages that tell nothing where all go another way: what they meet is what the other way has left in the caches.
const COLD: u16 = 32;

/// On trial so many are timed, and then it is over.
const TRIAL: u16 = 64;

/// Or after so many in all: some cannot be timed, as the first one that a direction splices.
const TRIAL_MOST: u16 = 2039;

/// Messages of a size, by one of both, until their cost counts as known.
const KNOWN_AFTER: u8 = 16;

/// By so much, one in so many, the other way must be cheaper before messages go it: where both cost the same nobody is to go to and fro.
const WORTH: u32 = 32;

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
    /// Which messages to splice, as far as is known.
    crossover: Crossover,
    /// Middling messages until a trial begins, or is over at the latest.
    left: u16,
    /// Middling messages from the last trial to the next.
    every: u16,
    /// How many a trial has timed, while there is one.
    on_trial: Option<u16>,
    /// Turns since the last that was timed.
    untimed: u8,
}

impl Meter {
    pub(crate) const fn new() -> Self {
        Self {
            costs: [Costs::UNKNOWN; Middling::ALL.len()],
            crossover: Crossover::AT_BULK,
            left: FIRST_TRIAL_AFTER,
            every: FIRST_TRIAL_AFTER,
            on_trial: None,
            untimed: 0,
        }
    }

    /// Which messages to splice now.
    #[inline]
    pub(crate) fn crossover(&self) -> Crossover {
        if self.on_trial.is_some() {
            self.crossover.swapped()
        } else {
            self.crossover
        }
    }

    /// Something is about to be taken.
    #[inline]
    pub(crate) fn begin(&mut self, timing: Timing) -> Timing {
        match timing {
            Timing::NotBegun => {
                self.untimed += 1;
                if self.untimed < TIMED && self.on_trial.is_none() {
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

    /// A middling message is taken.
    fn count(&mut self) {
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        match self.on_trial {
            Some(_) => self.end_trial(),
            None => {
                self.on_trial = Some(0);
                self.left = TRIAL_MOST;
            }
        }
    }

    #[cold]
    fn end_trial(&mut self) {
        self.costs.iter_mut().for_each(Costs::judge);
        self.crossover = self.crossing();
        self.on_trial = None;
        self.every = TRIAL_EVERY.min(2 * self.every + 1);
        self.left = self.every;
    }

    /// So long messages of so many bytes in all took, from the first call for them to the last.
    fn learn(&mut self, bytes: usize, by: By, took: Duration) {
        let is_cold = self.on_trial.is_some() && self.left > TRIAL_MOST - COLD;
        let Some(size) = Middling::of(bytes).filter(|_| !is_cold) else {
            return;
        };
        let nanos = took.as_nanos() * size.bytes() as u128 / bytes as u128;
        // On trial some still go as before, between those that do not: the first of a direction, and what was begun.
        if self.on_trial.is_none() || by == self.way(size) {
            self.costs[size as usize].learn(by, u32::try_from(nanos).unwrap_or(u32::MAX));
        }
        if let Some(timed) = &mut self.on_trial {
            *timed += 1;
            if *timed == TRIAL {
                self.end_trial();
            }
        }
    }

    /// How messages of this size are to go now.
    fn way(&self, size: Middling) -> By {
        if self.crossover().splices(size) {
            By::Splice
        } else {
            By::Copy
        }
    }

    /// The smallest size from which on nothing is known to be cheaper copied.
    fn crossing(&self) -> Crossover {
        let mut crossover = Crossover::AT_BULK;
        for size in Middling::ALL.into_iter().rev() {
            match &self.costs[size as usize] {
                costs if costs.splices => crossover = Crossover::at(size),
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
            let (now, other) = if self.splices {
                (self.spliced.nanos, self.copied.nanos)
            } else {
                (self.copied.nanos, self.spliced.nanos)
            };
            self.splices ^= other < now - now / WORTH;
        }
    }

    fn are_known(&self) -> bool {
        self.copied.is_known() && self.spliced.is_known()
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

    /// Which messages to splice after the next trial, in which nothing is timed.
    fn judged(meter: &mut Meter) -> Crossover {
        while meter.on_trial.is_none() {
            meter.count();
        }
        while meter.on_trial.is_some() {
            meter.count();
        }
        meter.crossover()
    }

    #[test]
    fn messages_are_spliced_from_the_size_on_from_which_that_is_cheaper() {
        let mut meter = Meter::new();
        learn(&mut meter, 16, By::Copy, 10);
        learn(&mut meter, 15, By::Splice, 8);
        assert_eq!(judged(&mut meter), Crossover::AT_BULK, "15 messages say nothing");
        learn(&mut meter, 1, By::Splice, 8);
        assert_eq!(judged(&mut meter), Crossover::at(SIZE));
    }

    #[test]
    fn it_is_the_byte_that_must_be_cheaper() {
        let mut meter = Meter::new();
        learn(&mut meter, 16, By::Copy, 10);
        for _ in 0..16 {
            meter.learn(BYTES / 4 * 7, By::Splice, Duration::from_micros(14));
        }
        assert_eq!(judged(&mut meter), Crossover::at(SIZE));
    }

    #[test]
    fn what_is_as_cheap_is_no_reason_to_go_the_other_way() {
        let mut meter = Meter::new();
        learn(&mut meter, 100, By::Copy, 100);
        for (spliced, crossover) in [
            (98, Crossover::AT_BULK),
            (96, Crossover::at(SIZE)),
            (103, Crossover::at(SIZE)),
            (105, Crossover::AT_BULK),
        ] {
            learn(&mut meter, 200, By::Splice, spliced);
            assert_eq!(judged(&mut meter), crossover, "{spliced}");
        }
    }

    #[test]
    fn a_few_that_were_disturbed_change_nothing() {
        let mut meter = Meter::new();
        learn(&mut meter, 16, By::Copy, 10);
        learn(&mut meter, 3, By::Splice, 8_000);
        learn(&mut meter, 60, By::Splice, 8);
        assert_eq!(judged(&mut meter), Crossover::at(SIZE));
        learn(&mut meter, 2, By::Splice, 8_000);
        assert_eq!(judged(&mut meter), Crossover::at(SIZE));
    }

    #[test]
    fn a_trial_begins_after_307_messages_and_then_twice_as_many_each_time_up_to_8191() {
        let mut meter = Meter::new();
        let mut until_trial = || {
            let mut messages = 0;
            while meter.on_trial.is_none() {
                meter.count();
                messages += 1;
            }
            judged(&mut meter);
            messages
        };
        let messages: Vec<_> = (0..7).map(|_| until_trial()).collect();
        assert_eq!(messages, [307, 615, 1231, 2463, 4927, 8191, 8191]);
    }

    impl Meter {
        /// One that has just begun to try how messages are spliced.
        pub(crate) fn trying_splices() -> Self {
            let mut meter = Self::new();
            (0..FIRST_TRIAL_AFTER + COLD).for_each(|_| meter.count());
            meter
        }

        /// Messages that it has timed on trial.
        pub(crate) fn timed_on_trial(&self) -> Option<u16> {
            self.on_trial
        }
    }

    /// A meter that splices what is of this size, on trial.
    fn on_trial() -> Meter {
        let mut meter = Meter::new();
        learn(&mut meter, 16, By::Copy, 10);
        learn(&mut meter, 16, By::Splice, 8);
        assert_eq!(judged(&mut meter), Crossover::at(SIZE));
        while meter.on_trial.is_none() {
            meter.count();
        }
        meter
    }

    #[test]
    fn on_trial_all_messages_go_the_other_way_until_64_were_timed() {
        let mut meter = on_trial();
        assert_eq!(meter.crossover(), Crossover::at(SIZE).swapped());
        let mut messages = 0;
        while meter.on_trial.is_some() {
            assert_eq!(meter.crossover(), Crossover::at(SIZE).swapped(), "whatever it finds");
            meter.count();
            learn(&mut meter, 1, By::Copy, 4);
            messages += 1;
        }
        let that_tell_nothing = 31;
        assert_eq!(messages, that_tell_nothing + 64);
        assert_eq!(meter.crossover(), Crossover::AT_BULK);
    }

    #[test]
    fn the_first_of_a_trial_tell_nothing() {
        let mut meter = on_trial();
        for _ in 0..31 {
            meter.count();
            learn(&mut meter, 1, By::Copy, 1);
        }
        assert_eq!(meter.costs[SIZE as usize].copied.nanos, 10_000);
        meter.count();
        learn(&mut meter, 1, By::Copy, 1);
        assert!(meter.costs[SIZE as usize].copied.nanos < 10_000);
    }

    #[test]
    fn what_goes_as_before_on_trial_tells_nothing_and_ends_it_as_soon() {
        let mut meter = on_trial();
        (0..COLD).for_each(|_| meter.count());
        learn(&mut meter, 63, By::Splice, 100);
        assert!(meter.on_trial.is_some());
        learn(&mut meter, 1, By::Splice, 100);
        assert_eq!(meter.on_trial, None);
        assert_eq!(meter.crossover(), Crossover::at(SIZE));
    }

    #[test]
    fn a_trial_in_which_nothing_can_be_timed_is_over_after_2039_messages() {
        let mut meter = on_trial();
        let messages = (1..).find(|_| {
            meter.count();
            meter.on_trial.is_none()
        });
        assert_eq!(messages, Some(2039));
        assert_eq!(meter.crossover(), Crossover::at(SIZE));
    }

    #[test]
    fn one_turn_of_17_is_timed_and_each_on_trial() {
        let is_timed = |meter: &mut Meter| matches!(meter.begin(Timing::NotBegun), Timing::Begun(_));
        let mut meter = Meter::new();
        for _ in 0..2 {
            assert_eq!((0..17).map(|_| is_timed(&mut meter)).filter(|&timed| timed).count(), 1);
        }
        let mut meter = on_trial();
        assert!((0..16).all(|_| is_timed(&mut meter)));
    }

    #[test]
    fn a_turn_is_timed_that_takes_messages_at_once_by_one_way_and_then_nothing() {
        let mut meter = on_trial();
        let mut timed = |takes: &[Option<(usize, By)>]| {
            let mut timing = Timing::NotBegun;
            for take in takes {
                timing = meter.begin(timing);
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
            let crossover = crossing.map_or(Crossover::AT_BULK, Crossover::at);
            assert_eq!(judged(&mut meter), crossover, "{known:?}");
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
        assert_eq!(judged(&mut meter), Crossover::AT_BULK);
    }
}
