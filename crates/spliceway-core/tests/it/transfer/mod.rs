mod messages;
mod model;

use proptest::prelude::*;
use spliceway_core::transfer::{Crossover, Event, Middling, SCRATCH, Step, Transfer};
use spliceway_core::{Engine, PipeSize, Reason, SizeClass};

use model::{BULK_TURN, Fate, TURN, World};

const ENGINES: [Engine; 3] = [Engine::Auto, Engine::Splice, Engine::Copy];
const SIZES: [PipeSize; 2] = [PipeSize::Auto, PipeSize::Fixed(SizeClass::Mib1)];

const CROSSOVERS: [Crossover; 4] = [
    Crossover::AtBulk,
    Crossover::At(Middling::Kib8),
    Crossover::At(Middling::Kib16),
    Crossover::At(Middling::Kib32),
];

/// Outcomes tried in every sequence. Miri takes a hundred times as long for each, and asks only whether any step is undefined.
const LENGTH: usize = if cfg!(miri) { 2 } else { 9 };

/// Goes through every sequence of choices up to a length, one after another, as an odometer does.
#[derive(Default)]
struct Every {
    choices: Vec<(usize, usize)>,
    next: usize,
}

impl Fate for Every {
    fn choose(&mut self, outcomes: usize) -> usize {
        if self.next == self.choices.len() {
            self.choices.push((0, outcomes));
        }
        let (choice, known) = self.choices[self.next];
        assert_eq!(known, outcomes, "the same choices lead to the same place");
        self.next += 1;
        choice
    }
}

impl Every {
    /// Whether there is a sequence that was not yet tried, to be walked from the start.
    fn turn(&mut self) -> bool {
        self.next = 0;
        while let Some((choice, outcomes)) = self.choices.pop() {
            if choice + 1 < outcomes {
                self.choices.push((choice + 1, outcomes));
                return true;
            }
        }
        false
    }
}

/// Walks every sequence of `length` outcomes from the worlds that `start` makes, each on to its end.
fn walk(length: usize, start: impl Fn() -> World) -> usize {
    let mut every = Every::default();
    let mut walked = 0;
    loop {
        let mut world = start();
        for _ in 0..length {
            if !world.advance(&mut every) {
                break;
            }
        }
        world.finish();
        walked += 1;
        if !every.turn() {
            return walked;
        }
    }
}

/// What every sequence is checked for is in [`World::check`] and [`World::finish`].
#[test]
fn every_sequence_of_outcomes_delivers_every_byte_in_order_and_ends() {
    let mut walked = 0;
    for engine in ENGINES {
        for size in SIZES {
            // Nothing, less than a recv, a few recvs, more than two turns and a byte.
            for bytes in [0, 1_000, 3 * SCRATCH, 2 * BULK_TURN + 1] {
                walked += walk(LENGTH, || World::new(engine, size, bytes));
            }
        }
    }
    assert!(cfg!(miri) || walked > 100_000, "{walked} sequences");
}

/// The start decides little once a flow has shown itself, so bulk is walked from where it is bulk.
#[test]
fn every_sequence_of_outcomes_in_a_bulk_flow_delivers_every_byte_in_order_and_ends() {
    for size in SIZES {
        walk(LENGTH, || {
            let mut world = World::new(Engine::Auto, size, 3 * BULK_TURN + 1);
            while !matches!(world.transfer.step(), Step::Fill(_)) {
                world.advance(&mut model::Kind);
            }
            world
        });
    }
}

#[test]
fn every_sequence_of_outcomes_in_pipes_of_1_mib_delivers_every_byte_in_order_and_ends() {
    walk(LENGTH - 1, || {
        let mut world = World::new(Engine::Auto, PipeSize::Auto, 2 * BULK_TURN + 1);
        while world.transfer.step() != Step::Fill(SizeClass::Mib1) {
            world.advance(&mut model::Kind);
        }
        world
    });
}

#[test]
fn every_sequence_of_outcomes_after_preloaded_bytes_delivers_these_first_and_ends() {
    for engine in ENGINES {
        walk(LENGTH - 1, || {
            World::new(engine, PipeSize::Auto, 3 * SCRATCH).preloaded(10_000)
        });
    }
}

#[test]
fn every_sequence_of_outcomes_with_no_pipe_between_delivers_every_byte_in_order_and_ends() {
    for engine in ENGINES {
        for bytes in [0, 1_000, 3 * SCRATCH, 2 * BULK_TURN + 1] {
            walk(LENGTH - 2, || World::without_pipe(engine, bytes));
        }
        walk(LENGTH - 2, || {
            World::without_pipe(engine, 3 * SCRATCH).preloaded(10_000)
        });
        walk(LENGTH - 2, || {
            World::without_pipe(engine, 3 * SCRATCH).limited(2 * SCRATCH + 1)
        });
    }
}

#[test]
fn every_sequence_of_outcomes_takes_no_byte_beyond_the_limit_and_delivers_those_before_it() {
    for engine in ENGINES {
        // Nothing, less than a recv, less than the source, all of it, more than it has.
        for limit in [0, 1_000, 2 * SCRATCH + 1, 3 * SCRATCH, 4 * SCRATCH] {
            walk(LENGTH - 1, || {
                World::new(engine, PipeSize::Auto, 3 * SCRATCH).limited(limit)
            });
        }
    }
}

/// Outcomes by chance. Beyond the list all is kind.
struct Chance<'a>(std::slice::Iter<'a, u8>);

impl Fate for Chance<'_> {
    fn choose(&mut self, outcomes: usize) -> usize {
        self.0.next().map_or(0, |byte| usize::from(*byte) % outcomes)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 200 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_sequences_of_outcomes_deliver_every_byte_in_order_and_end(
        engine in prop::sample::select(&ENGINES[..]),
        size in prop::sample::select(&SIZES[..]),
        bytes in 0usize..64 << 20,
        choices in prop::collection::vec(any::<u8>(), 0..2_000),
    ) {
        let mut world = World::new(engine, size, bytes);
        let mut chance = Chance(choices.iter());
        while chance.0.len() > 0 && world.advance(&mut chance) {
            if chance.choose(8) == 0 {
                world.cross_at(CROSSOVERS[chance.choose(CROSSOVERS.len())]);
            }
        }
        world.finish();
    }
}

/// Gives `transfer` an event at the step it must be at.
fn at(transfer: &mut Transfer, step: Step, event: Event) {
    assert_eq!(transfer.step(), step, "before {event:?}");
    transfer.on(event);
}

/// One fill of `bytes`, drained at once.
fn fill_and_drain(transfer: &mut Transfer, class: SizeClass, bytes: usize, full: bool) {
    if transfer.step() == Step::Yield {
        transfer.on(Event::Yielded);
    }
    at(transfer, Step::Fill(class), Event::Filled { bytes, full });
    at(transfer, Step::Drain, Event::Drained { bytes, left: 0 });
}

/// A fill that finds nothing, and a recv that says so.
fn finds_nothing(transfer: &mut Transfer) {
    let step = transfer.step();
    assert!(matches!(step, Step::Fill(_)), "at {step:?}");
    transfer.on(Event::SourceStopped);
    at(transfer, Step::Recv, Event::WouldBlock);
}

fn received(bytes: usize) -> Event {
    Event::Received {
        bytes,
        full: bytes == SCRATCH,
    }
}

/// One recv, sent at once.
fn recv_and_send(transfer: &mut Transfer, bytes: usize) {
    if transfer.step() == Step::Yield {
        transfer.on(Event::Yielded);
    }
    at(transfer, Step::Recv, received(bytes));
    at(transfer, Step::Send, Event::Sent { bytes, left: 0 });
}

/// A transfer of this engine that has become a bulk flow.
fn bulk(size: PipeSize) -> Transfer {
    let mut transfer = Transfer::new(Engine::Auto, size);
    recv_and_send(&mut transfer, SCRATCH);
    transfer
}

#[test]
fn small_messages_are_received_and_sent_and_nothing_else() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    for _ in 0..1_000 {
        recv_and_send(&mut transfer, 1_000);
        at(&mut transfer, Step::Recv, Event::WouldBlock);
    }
}

#[test]
fn a_full_recv_makes_a_flow_bulk_and_eight_tiny_fills_in_a_row_make_it_messages_again() {
    let mut transfer = bulk(PipeSize::Auto);
    for tiny in [7, 8] {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 23_168, false);
        finds_nothing(&mut transfer);
        for _ in 1..tiny {
            fill_and_drain(&mut transfer, SizeClass::Kib64, 100, false);
            finds_nothing(&mut transfer);
        }
    }
    fill_and_drain(&mut transfer, SizeClass::Kib64, 100, false);
    assert_eq!(transfer.step(), Step::Recv);
}

#[test]
fn a_fill_that_stops_is_followed_by_a_recv_which_alone_tells_why() {
    for (event, next) in [
        (received(1_000), Step::Send),
        (Event::WouldBlock, Step::Fill(SizeClass::Kib64)),
        (Event::Eof, Step::Shutdown),
    ] {
        let mut transfer = bulk(PipeSize::Auto);
        at(&mut transfer, Step::Fill(SizeClass::Kib64), Event::SourceStopped);
        at(&mut transfer, Step::Recv, event);
        assert_eq!(transfer.step(), next, "after {event:?}");
    }
}

#[test]
fn a_source_that_was_looked_at_and_has_nothing_is_waited_for_and_filled_from_again() {
    // One tiny fill below the number that makes it messages again.
    let mut transfer = bulk(PipeSize::Auto);
    for _ in 0..7 {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 10_000, false);
        at(&mut transfer, Step::Fill(SizeClass::Kib64), Event::WouldBlock);
    }
    at(&mut transfer, Step::Fill(SizeClass::Kib64), Event::SourceStopped);
    assert_eq!(transfer.step(), Step::Recv);
}

#[test]
fn bursts_that_end_with_a_look_lead_to_the_size_of_pipe_that_those_do_which_end_with_a_recv() {
    for looks in [false, true] {
        let mut transfer = bulk(PipeSize::Auto);
        fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
        for _ in 0..4 {
            fill_and_drain(&mut transfer, SizeClass::Kib256, 20_000, false);
            if looks {
                transfer.on(Event::WouldBlock);
            } else {
                finds_nothing(&mut transfer);
            }
        }
        assert_eq!(transfer.step(), Step::Fill(SizeClass::Kib64), "looks: {looks}");
    }
}

#[test]
fn nothing_more_is_expected_where_the_last_eight_fills_like_the_last_one_had_nothing_after_them() {
    let mut transfer = bulk(PipeSize::Fixed(SizeClass::Kib64));
    let mut expects_after = |full: bool, then_more: bool| {
        let bytes = if full { 64 << 10 } else { 30_000 };
        fill_and_drain(&mut transfer, SizeClass::Kib64, bytes, full);
        let expects = transfer.expects_drained_source();
        if !then_more {
            transfer.on(if expects {
                Event::WouldBlock
            } else {
                Event::SourceStopped
            });
            if !expects {
                at(&mut transfer, Step::Recv, Event::WouldBlock);
            }
            assert!(!transfer.expects_drained_source(), "the source was waited for");
        }
        expects
    };
    for full in [false, true] {
        for _ in 0..8 {
            assert!(!expects_after(full, false), "too little is known");
        }
        for _ in 0..300 {
            assert!(expects_after(full, false));
        }
        assert!(expects_after(full, true), "a look that finds more is the last");
        for _ in 0..7 {
            assert!(!expects_after(full, false));
        }
    }
    // Of each kind one is missing, and neither says anything of the other.
    for full in [false, true] {
        assert!(!expects_after(full, false));
        assert!(expects_after(full, false));
    }
}

#[test]
fn after_a_reason_to_copy_nothing_is_known_of_the_last_fill() {
    let mut transfer = bulk(PipeSize::Auto);
    for _ in 0..8 {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 30_000, false);
        finds_nothing(&mut transfer);
    }
    fill_and_drain(&mut transfer, SizeClass::Kib64, 30_000, false);
    assert!(transfer.expects_drained_source());
    transfer.on(Event::Cannot(Reason::PipeBudget));
    while !matches!(transfer.step(), Step::Fill(_)) {
        recv_and_send(&mut transfer, SCRATCH);
        if transfer.step() == Step::Yield {
            transfer.on(Event::Yielded);
        }
    }
    assert!(!transfer.expects_drained_source());
}

#[test]
fn a_pipe_that_was_filled_in_bytes_is_followed_by_a_larger_one_up_to_1_mib() {
    let mut transfer = bulk(PipeSize::Auto);
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    fill_and_drain(&mut transfer, SizeClass::Kib256, 256 << 10, true);
    for _ in 0..20 {
        fill_and_drain(&mut transfer, SizeClass::Mib1, 1 << 20, true);
    }
}

#[test]
fn no_automatic_pipe_is_larger_than_it_may_be_and_then_it_is_what_it_was() {
    let mut transfer = bulk(PipeSize::Auto);
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    fill_and_drain(&mut transfer, SizeClass::Kib256, 256 << 10, true);
    transfer.limit_pipe(SizeClass::Kib64);
    for _ in 0..10 {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    }
    transfer.limit_pipe(SizeClass::Mib1);
    fill_and_drain(&mut transfer, SizeClass::Mib1, 1 << 20, true);

    let mut transfer = bulk(PipeSize::Fixed(SizeClass::Mib1));
    transfer.limit_pipe(SizeClass::Kib64);
    fill_and_drain(&mut transfer, SizeClass::Mib1, 1 << 20, true);
}

#[test]
fn a_sink_that_is_slow_gets_no_pipe_of_1_mib_until_it_keeps_up() {
    let mut transfer = bulk(PipeSize::Auto);
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    fill_and_drain(&mut transfer, SizeClass::Kib256, 256 << 10, true);
    let (bytes, full) = (1 << 20, true);
    at(
        &mut transfer,
        Step::Fill(SizeClass::Mib1),
        Event::Filled { bytes, full },
    );
    at(&mut transfer, Step::Drain, Event::SinkSlow);
    at(&mut transfer, Step::Drain, Event::Drained { bytes, left: 0 });
    for _ in 0..2 {
        fill_and_drain(&mut transfer, SizeClass::Kib256, 256 << 10, true);
    }
    fill_and_drain(&mut transfer, SizeClass::Mib1, 1 << 20, true);
}

#[test]
fn a_pipe_that_was_filled_in_slots_is_not_followed_by_a_larger_one() {
    let mut transfer = bulk(PipeSize::Auto);
    for _ in 0..100 {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 16 * 1_448, false);
    }
}

#[test]
fn four_low_fills_in_a_row_are_followed_by_a_smaller_pipe() {
    let mut transfer = bulk(PipeSize::Auto);
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    for _ in 0..3 {
        fill_and_drain(&mut transfer, SizeClass::Kib256, 90_000, false);
    }
    // Not in a row: half of the size starts the count again.
    fill_and_drain(&mut transfer, SizeClass::Kib256, 128 << 10, false);
    // That the fourth was not the last shows with the fifth.
    for _ in 0..5 {
        fill_and_drain(&mut transfer, SizeClass::Kib256, 90_000, false);
    }
    fill_and_drain(&mut transfer, SizeClass::Kib64, 60_000, false);
}

#[test]
fn fills_that_left_the_source_empty_are_followed_by_a_smaller_pipe_where_they_would_not_have_filled_it() {
    let mut transfer = bulk(PipeSize::Auto);
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    let mut fill_that_is_all = |class, bytes| {
        fill_and_drain(&mut transfer, class, bytes, false);
        finds_nothing(&mut transfer);
    };
    for _ in 0..100 {
        fill_that_is_all(SizeClass::Kib256, 64 << 10);
    }
    for _ in 0..4 {
        fill_that_is_all(SizeClass::Kib256, 40_000);
    }
    fill_that_is_all(SizeClass::Kib64, 40_000);
}

#[test]
fn a_fixed_size_stays_whatever_the_flow_is() {
    for class in SizeClass::ALL {
        let mut transfer = bulk(PipeSize::Fixed(class));
        for _ in 0..10 {
            fill_and_drain(&mut transfer, class, 4 << 20, true);
        }
        for _ in 0..10 {
            fill_and_drain(&mut transfer, class, 20_000, false);
        }
    }
}

#[test]
fn after_a_reason_of_this_moment_1_mib_is_copied_and_then_splicing_is_tried_again() {
    for reason in Reason::ALL {
        let mut transfer = bulk(PipeSize::Auto);
        at(&mut transfer, Step::Fill(SizeClass::Kib64), Event::Cannot(reason));
        for _ in 0..(1 << 20) / SCRATCH {
            recv_and_send(&mut transfer, SCRATCH);
        }
        let mut until_tried = 0;
        while until_tried < 100 && !matches!(transfer.step(), Step::Fill(_)) {
            recv_and_send(&mut transfer, SCRATCH);
            if transfer.step() == Step::Yield {
                transfer.on(Event::Yielded);
            }
            until_tried += 1;
        }
        let for_good = reason.scope() == spliceway_core::Scope::Relay;
        assert_eq!(until_tried, if for_good { 100 } else { 1 }, "{reason}");
    }
}

#[test]
fn bytes_in_a_pipe_whose_sink_cannot_be_spliced_are_read_out_and_sent() {
    let mut transfer = bulk(PipeSize::Auto);
    let filled = Event::Filled {
        bytes: 64 << 10,
        full: true,
    };
    at(&mut transfer, Step::Fill(SizeClass::Kib64), filled);
    at(
        &mut transfer,
        Step::Drain,
        Event::Drained {
            bytes: 1_000,
            left: (64 << 10) - 1_000,
        },
    );
    at(&mut transfer, Step::Drain, Event::Cannot(Reason::InvalidArgument));
    at(&mut transfer, Step::Unload, Event::Unloaded);
    at(
        &mut transfer,
        Step::Send,
        Event::Sent {
            bytes: (64 << 10) - 1_000,
            left: 0,
        },
    );
    assert_eq!(transfer.step(), Step::Recv);
}

#[test]
fn the_turn_of_messages_ends_after_256_kib() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    for _ in 0..TURN / 1_024 {
        at(&mut transfer, Step::Recv, received(1_024));
        at(&mut transfer, Step::Send, Event::Sent { bytes: 1_024, left: 0 });
    }
    at(&mut transfer, Step::Yield, Event::Yielded);
    assert_eq!(transfer.step(), Step::Recv);
}

/// Fills and drains, half a pipe at a time, until its turn is over, and how much that was.
fn spliced_in_a_turn(transfer: &mut Transfer, class: SizeClass) -> usize {
    let (bytes, mut all) = (class.bytes() / 2, 0);
    while transfer.step() != Step::Yield {
        at(transfer, Step::Fill(class), Event::Filled { bytes, full: false });
        at(transfer, Step::Drain, Event::Drained { bytes, left: 0 });
        all += bytes;
    }
    at(transfer, Step::Yield, Event::Yielded);
    all
}

#[test]
fn the_turn_of_bulk_ends_after_1_mib_or_4_in_large_pipes_and_that_of_copies_after_256_kib() {
    for (class, long) in [(SizeClass::Kib64, 1), (SizeClass::Kib256, 4), (SizeClass::Mib1, 4)] {
        let mut transfer = Transfer::new(Engine::Splice, PipeSize::Fixed(class));
        for (are_long, turn) in [(false, 1), (true, long), (false, 1)] {
            transfer.take_long_turns(are_long);
            assert_eq!(spliced_in_a_turn(&mut transfer, class), turn * BULK_TURN, "{class:?}");
        }
    }
    let (mut transfer, copied) = (bulk(PipeSize::Auto), SCRATCH);
    assert_eq!(spliced_in_a_turn(&mut transfer, SizeClass::Kib64), BULK_TURN - copied);

    for are_long in [false, true] {
        let mut transfer = Transfer::new(Engine::Copy, PipeSize::Auto);
        transfer.take_long_turns(are_long);
        for _ in 0..TURN / SCRATCH {
            recv_and_send(&mut transfer, SCRATCH);
        }
        assert_eq!(transfer.step(), Step::Yield);
    }
}

#[test]
fn the_turn_of_bulk_that_cannot_be_spliced_ends_after_256_kib() {
    let mut transfer = bulk(PipeSize::Auto);
    at(
        &mut transfer,
        Step::Fill(SizeClass::Kib64),
        Event::Cannot(Reason::PipeBudget),
    );
    for _ in 0..TURN / SCRATCH - 1 {
        recv_and_send(&mut transfer, SCRATCH);
    }
    assert_eq!(transfer.step(), Step::Yield);
}

#[test]
fn splice_from_the_first_byte_begins_with_a_fill_and_goes_back_to_it() {
    let mut transfer = Transfer::new(Engine::Splice, PipeSize::Auto);
    for _ in 0..10 {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 100, false);
        finds_nothing(&mut transfer);
    }
    at(&mut transfer, Step::Fill(SizeClass::Kib64), Event::SourceStopped);
    at(&mut transfer, Step::Recv, received(100));
    at(&mut transfer, Step::Send, Event::Sent { bytes: 100, left: 0 });
    assert_eq!(transfer.step(), Step::Fill(SizeClass::Kib64));
}

#[test]
#[should_panic(expected = "cannot come of")]
fn an_event_that_cannot_come_of_the_step_panics() {
    Transfer::new(Engine::Auto, PipeSize::Auto).on(Event::Unloaded);
}
