//! What messages cost by copying and by splicing, measured on this thread: from where on the second is cheaper depends on the machine, on
//! how far the data is from its caches, and on who else needs them.

mod cost;

use std::time::{Duration, Instant};

use cost::{Costs, KNOWN_AFTER};
use spliceway_core::heuristic::{Heuristic, is_off};
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

/// On trial so many are timed that go the other way, and then it is over.
const TRIAL: u8 = 64;

/// Or after so many in all: the first message of a direction goes as it is received, and the first one that it splices is not timed.
const TRIAL_MOST: u16 = 2039;

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

impl By {
    /// How messages of this size are to go.
    fn at(crossover: Crossover, size: Middling) -> Self {
        if crossover.splices(size) {
            Self::Splice
        } else {
            Self::Copy
        }
    }
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
    trial: Option<Trial>,
    /// Whether the next trial is one of splices, where some are copied and some are not.
    tries_splices: bool,
    /// Turns since the last that was timed.
    untimed: u8,
}

/// All middling messages go the one way.
#[derive(Debug)]
struct Trial {
    crossover: Crossover,
    /// How many were timed that go another way than else.
    timed: [u8; Middling::ALL.len()],
}

impl Meter {
    pub(crate) const fn new() -> Self {
        Self {
            costs: [Costs::UNKNOWN; Middling::ALL.len()],
            crossover: Crossover::AtBulk,
            left: FIRST_TRIAL_AFTER,
            every: FIRST_TRIAL_AFTER,
            trial: None,
            tries_splices: true,
            untimed: 0,
        }
    }

    /// Which messages to splice now.
    #[inline]
    pub(crate) fn crossover(&self) -> Crossover {
        match &self.trial {
            Some(trial) => trial.crossover,
            None => self.crossover,
        }
    }

    /// Something is about to be taken by one way.
    #[inline]
    pub(crate) fn begin(&mut self, timing: Timing, by: By) -> Timing {
        match timing {
            Timing::NotBegun if is_off(Heuristic::MessageMeter) => Timing::Off,
            Timing::NotBegun => {
                self.untimed += 1;
                if self.untimed < TIMED && self.trial.is_none() {
                    return Timing::Off;
                }
                self.begin_timed()
            }
            // The end of a message is found by a look for more.
            Timing::Message { by: same, .. } if same == by => timing,
            Timing::Message { .. } | Timing::Off | Timing::Begun(_) => Timing::Off,
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
        if Middling::of(bytes).is_some() && !is_off(Heuristic::MessageMeter) {
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
        if let Timing::Message { begun, bytes, by } = timing
            && let Some(size) = Middling::of(bytes)
        {
            self.learn(size, bytes, by, begun.elapsed());
        }
    }

    /// A middling message is taken.
    fn count(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            if self.trial.is_some() {
                self.end_trial();
            } else {
                self.begin_trial();
            }
        }
    }

    #[cold]
    fn begin_trial(&mut self) {
        let (none, all) = (Crossover::AtBulk, Crossover::At(Middling::Kib8));
        let copies_some = Middling::ALL
            .into_iter()
            .any(|size| By::at(self.crossover, size) == By::Copy && self.costs[size as usize].copied.is_known());
        // Each flow can follow these two, whatever sizes it mixes.
        let splices = self.crossover == none || (copies_some && self.tries_splices);
        let crossover = if splices { all } else { none };
        self.tries_splices = !splices;
        self.trial = Some(Trial {
            crossover,
            timed: [0; Middling::ALL.len()],
        });
        self.left = TRIAL_MOST;
    }

    /// Judges the sizes of which enough were timed.
    #[cold]
    fn end_trial(&mut self) {
        if let Some(trial) = self.trial.take() {
            let tried = self.costs.iter_mut().zip(trial.timed);
            tried
                .filter(|(_, timed)| *timed >= KNOWN_AFTER)
                .for_each(|(costs, _)| costs.judge());
        }
        self.crossover = self.crossing();
        self.every = TRIAL_EVERY.min(2 * self.every + 1);
        self.left = self.every;
    }

    /// So long messages of so many bytes in all took, from the first call for them to the last.
    fn learn(&mut self, size: Middling, bytes: usize, by: By, took: Duration) {
        let nanos = took.as_nanos() * size.bytes() as u128 / bytes as u128;
        let nanos = u32::try_from(nanos).unwrap_or(u32::MAX);
        let costs = &mut self.costs[size as usize];
        let Some(trial) = &mut self.trial else {
            costs.learn(by, nanos);
            return;
        };
        // What does not go as it should was begun before, or is the first of a direction: it stands between those that do.
        if by != By::at(trial.crossover, size) || self.left >= TRIAL_MOST - COLD {
            return;
        }
        costs.learn(by, nanos);
        if by != By::at(self.crossover, size) {
            trial.timed[size as usize] += 1;
            if trial.timed.iter().sum::<u8>() == TRIAL {
                self.end_trial();
            }
        }
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

#[cfg(test)]
mod tests {
    use super::cost::Cost;
    use super::*;

    const SIZE: Middling = Middling::Kib16;
    const BYTES: usize = 16 << 10;
    const NONE: Crossover = Crossover::AtBulk;
    const ALL: Crossover = Crossover::At(Middling::Kib8);
    const AT_SIZE: Crossover = Crossover::At(SIZE);

    /// Micros that a message takes by copying and by splicing.
    type Micros = (u64, u64);

    /// One message as the meter wants it to go, timed.
    fn pass(meter: &mut Meter, bytes: usize, (copied, spliced): Micros) {
        let size = Middling::of(bytes).expect("middling");
        let by = By::at(meter.crossover(), size);
        let micros = if by == By::Copy { copied } else { spliced };
        meter.count();
        meter.learn(size, bytes, by, Duration::from_micros(micros));
    }

    /// Messages until the next trial, or of it; how many.
    fn pass_while(meter: &mut Meter, is_on_trial: bool, micros: Micros) -> usize {
        let mut messages = 0;
        while meter.trial.is_some() == is_on_trial {
            pass(meter, BYTES, micros);
            messages += 1;
        }
        messages
    }

    /// Which messages to splice after the next trial.
    fn judged(meter: &mut Meter, micros: Micros) -> Crossover {
        pass_while(meter, false, micros);
        pass_while(meter, true, micros);
        meter.crossover()
    }

    /// A meter that has just begun a trial, of splices, and knows what a copy takes.
    fn on_trial() -> Meter {
        let mut meter = Meter::new();
        pass_while(&mut meter, false, (10, 8));
        meter
    }

    impl Meter {
        /// One that tries how messages are spliced, and times them.
        pub(crate) fn trying_splices() -> Self {
            let mut meter = on_trial();
            (0..COLD).for_each(|_| meter.count());
            meter
        }

        /// Messages that it has timed on trial.
        pub(crate) fn timed_on_trial(&self) -> Option<u8> {
            self.trial.as_ref().map(|trial| trial.timed.iter().sum())
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "tens of thousands of messages, and nothing for Miri to see")]
    fn messages_are_spliced_from_the_size_on_from_which_that_is_cheaper() {
        let mut meter = Meter::new();
        assert_eq!(judged(&mut meter, (10, 8)), AT_SIZE);
        assert_eq!(judged(&mut meter, (10, 12)), NONE);
        let messages = [(8 << 10, (5, 6)), (BYTES, (10, 8))];
        for (bytes, micros) in messages.into_iter().cycle().take(30_000) {
            pass(&mut meter, bytes, micros);
        }
        pass_while(&mut meter, true, (10, 8));
        assert_eq!(meter.crossover(), AT_SIZE);
    }

    #[test]
    fn it_is_the_byte_that_must_be_cheaper() {
        let mut meter = on_trial();
        while meter.trial.is_some() {
            pass(&mut meter, BYTES / 4 * 7, (0, 14));
        }
        assert_eq!(meter.crossover(), AT_SIZE);
    }

    #[test]
    #[cfg_attr(miri, ignore = "tens of thousands of messages, and nothing for Miri to see")]
    fn what_is_as_cheap_is_no_reason_to_go_the_other_way() {
        let mut meter = Meter::new();
        for (spliced, crossover) in [(98, NONE), (96, AT_SIZE), (103, AT_SIZE), (105, NONE)] {
            // The way that is taken is learnt between two trials.
            judged(&mut meter, (100, spliced));
            assert_eq!(judged(&mut meter, (100, spliced)), crossover, "{spliced}");
        }
    }

    #[test]
    fn a_few_that_were_disturbed_change_nothing() {
        let mut meter = on_trial();
        (0..COLD).for_each(|_| meter.count());
        for micros in [8_000, 8_000, 8_000].into_iter().chain([8; 61]) {
            pass(&mut meter, BYTES, (10, micros));
        }
        assert_eq!(meter.crossover(), AT_SIZE);
    }

    #[test]
    #[cfg_attr(miri, ignore = "tens of thousands of messages, and nothing for Miri to see")]
    fn a_trial_begins_after_307_messages_and_then_twice_as_many_each_time_up_to_8191() {
        let mut meter = Meter::new();
        let messages: Vec<_> = (0..7)
            .map(|_| {
                let messages = pass_while(&mut meter, false, (10, 10));
                pass_while(&mut meter, true, (10, 10));
                messages
            })
            .collect();
        assert_eq!(messages, [307, 615, 1231, 2463, 4927, 8191, 8191]);
    }

    #[test]
    fn on_trial_all_messages_go_the_other_way_until_64_were_timed() {
        let mut meter = on_trial();
        let that_tell_nothing = 32;
        for _ in 0..that_tell_nothing + 63 {
            pass(&mut meter, BYTES, (10, 8));
            assert_eq!(meter.crossover(), ALL);
        }
        assert_eq!(meter.timed_on_trial(), Some(63));
        pass(&mut meter, BYTES, (10, 8));
        assert_eq!(meter.timed_on_trial(), None);
        pass_while(&mut meter, false, (10, 8));
        assert_eq!(meter.crossover(), NONE, "what was the other way is the one");
    }

    #[test]
    #[cfg_attr(miri, ignore = "tens of thousands of messages, and nothing for Miri to see")]
    fn where_some_are_copied_and_some_spliced_all_are_tried_by_either_way_in_turn() {
        let mut meter = Meter::new();
        meter.costs[Middling::Kib8 as usize].copied = Cost {
            nanos: 5_000,
            messages: 255,
        };
        meter.costs[Middling::Kib8 as usize].spliced = Cost {
            nanos: 6_000,
            messages: 255,
        };
        assert_eq!(judged(&mut meter, (10, 8)), AT_SIZE);
        let tried: Vec<_> = (0..3)
            .map(|_| {
                pass_while(&mut meter, false, (10, 8));
                let tried = meter.crossover();
                pass_while(&mut meter, true, (10, 8));
                tried
            })
            .collect();
        assert_eq!(tried, [NONE, ALL, NONE]);
        assert_eq!(meter.crossover(), AT_SIZE);
    }

    #[test]
    fn the_first_of_a_trial_tell_nothing() {
        let mut meter = on_trial();
        for _ in 0..32 {
            pass(&mut meter, BYTES, (10, 1));
        }
        assert_eq!(meter.costs[SIZE as usize].spliced.messages, 0);
        pass(&mut meter, BYTES, (10, 1));
        assert_eq!(meter.costs[SIZE as usize].spliced.messages, 1);
    }

    #[test]
    fn what_goes_as_before_on_trial_tells_nothing() {
        let mut meter = Meter::trying_splices();
        let copied = meter.costs[SIZE as usize].copied.nanos;
        for _ in 0..100 {
            meter.count();
            meter.learn(SIZE, BYTES, By::Copy, Duration::from_micros(1));
        }
        assert_eq!(meter.timed_on_trial(), Some(0));
        assert_eq!(meter.costs[SIZE as usize].copied.nanos, copied);
    }

    #[test]
    fn a_size_is_judged_by_a_trial_that_timed_16_of_it() {
        for (large, is_judged) in [(15, false), (16, true)] {
            let mut meter = Meter::trying_splices();
            let costs = &mut meter.costs[Middling::Kib32 as usize];
            costs.copied = Cost {
                nanos: 20_000,
                messages: 255,
            };
            costs.spliced = Cost {
                nanos: 10_000,
                messages: 255,
            };
            for _ in 0..large {
                pass(&mut meter, 32 << 10, (20, 10));
            }
            pass_while(&mut meter, true, (10, 10));
            let crossover = if is_judged {
                Crossover::At(Middling::Kib32)
            } else {
                NONE
            };
            assert_eq!(meter.crossover(), crossover, "{large}");
        }
    }

    #[test]
    fn a_trial_in_which_nothing_can_be_timed_is_over_after_2039_messages() {
        let mut meter = on_trial();
        let messages = (1..).find(|_| {
            meter.count();
            meter.trial.is_none()
        });
        assert_eq!(messages, Some(2039));
        assert_eq!(meter.crossover(), NONE);
    }

    #[test]
    fn one_turn_of_17_is_timed_and_each_on_trial() {
        let is_timed = |meter: &mut Meter| matches!(meter.begin(Timing::NotBegun, By::Copy), Timing::Begun(_));
        let mut meter = Meter::new();
        for _ in 0..2 {
            assert_eq!((0..17).map(|_| is_timed(&mut meter)).filter(|&timed| timed).count(), 1);
        }
        let mut meter = on_trial();
        assert!((0..16).all(|_| is_timed(&mut meter)));
    }

    #[test]
    fn a_turn_is_timed_that_takes_messages_at_once_by_one_way_and_then_nothing() {
        let mut meter = Meter::trying_splices();
        let mut timed = |takes: &[Option<(usize, By)>]| {
            let mut timing = Timing::NotBegun;
            for take in takes {
                timing = meter.begin(timing, take.map_or(By::Splice, |(_, by)| by));
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
        assert_eq!(timed(&[copied, None]), None, "a vain splice after it");
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
                let cost = |is_cheaper| Cost {
                    nanos: if is_cheaper { 8_000 } else { 10_000 },
                    messages: KNOWN_AFTER,
                };
                meter.costs[size as usize] = Costs {
                    copied: cost(!splices),
                    spliced: cost(splices),
                    splices,
                };
            }
            let crossover = crossing.map_or(NONE, Crossover::At);
            assert_eq!(meter.crossing(), crossover, "{known:?}");
        }
    }

    #[test]
    fn no_time_is_too_short_or_too_long() {
        let mut meter = Meter::new();
        for took in [Duration::ZERO, Duration::MAX] {
            for by in [By::Copy, By::Splice] {
                (0..100).for_each(|_| meter.learn(SIZE, BYTES, by, took));
            }
        }
        meter.costs[SIZE as usize].judge();
        assert_eq!(meter.crossing(), NONE);
    }
}
