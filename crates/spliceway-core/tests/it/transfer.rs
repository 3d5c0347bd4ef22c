mod model;

use proptest::prelude::*;
use spliceway_core::transfer::{Event, SCRATCH, Step, Transfer};
use spliceway_core::{Engine, PipeSize, Reason, SPLICE_THRESHOLD, SizeClass};

use model::{COPY_BUDGET, Fate, SPLICE_BUDGET, World};

const ENGINES: [Engine; 3] = [Engine::Auto, Engine::Splice, Engine::Copy];
const SIZES: [PipeSize; 2] = [PipeSize::Auto, PipeSize::Fixed(SizeClass::Mib1)];

/// The number of outcomes in every sequence. Miri takes a hundred times as long for each outcome,
/// and only checks whether a step causes undefined behaviour.
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
    /// Goes to the start of the next sequence that has not been tried yet. Returns whether there is
    /// one.
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

/// Walks every sequence of `length` outcomes in the worlds that `start` makes, and runs each world
/// to its end. Returns the number of sequences.
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

/// [`World::check`] and [`World::finish`] contain the checks for every sequence.
#[test]
fn every_sequence_of_outcomes_delivers_every_byte_in_order_and_ends() {
    let mut walked = 0;
    for engine in ENGINES {
        for size in SIZES {
            // The source has no bytes, fewer than one recv returns, enough for a few recvs, or more
            // than two splice budgets.
            for bytes in [0, 1_000, 3 * SCRATCH, 2 * SPLICE_BUDGET + 1] {
                walked += walk(LENGTH, || World::new(engine, size, bytes));
            }
        }
    }
    assert!(cfg!(miri) || walked > 100_000, "{walked} sequences");
}

/// The start of a flow has little influence on the rest, so these walks begin when the flow is
/// already bulk.
#[test]
fn every_sequence_of_outcomes_in_bulk_delivers_every_byte() {
    for size in SIZES {
        walk(LENGTH, || {
            let mut world = World::new(Engine::Auto, size, 3 * SPLICE_BUDGET + 1);
            while !matches!(world.transfer.step(), Step::Fill { .. }) {
                world.advance(&mut model::Kind);
            }
            world
        });
    }
}

#[test]
fn every_sequence_of_outcomes_in_pipes_of_1_mib_delivers_every_byte() {
    walk(LENGTH - 1, || {
        let mut world = World::new(Engine::Auto, PipeSize::Auto, 2 * SPLICE_BUDGET + 1);
        while !matches!(
            world.transfer.step(),
            Step::Fill {
                class: SizeClass::Mib1,
                ..
            }
        ) {
            world.advance(&mut model::Kind);
        }
        world
    });
}

#[test]
fn every_sequence_of_outcomes_delivers_preloaded_bytes_first() {
    for engine in ENGINES {
        walk(LENGTH - 1, || {
            World::new(engine, PipeSize::Auto, 3 * SCRATCH).preloaded(10_000)
        });
    }
}

#[test]
fn every_sequence_of_outcomes_without_a_pipe_delivers_every_byte() {
    for engine in ENGINES {
        for bytes in [0, 1_000, 3 * SCRATCH, 2 * SPLICE_BUDGET + 1] {
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
fn every_sequence_of_outcomes_of_kernel_tls_delivers_every_byte() {
    for engine in ENGINES {
        for bytes in [0, 1_000, 3 * SCRATCH] {
            walk(LENGTH - 1, || World::with_tls(engine, bytes));
        }
    }
}

#[test]
fn every_sequence_of_outcomes_stops_exactly_at_the_limit() {
    for engine in ENGINES {
        // The limit is zero, less than one recv returns, less than the source has, exactly what it
        // has, or more.
        for limit in [0, 1_000, 2 * SCRATCH + 1, 3 * SCRATCH, 4 * SCRATCH] {
            walk(LENGTH - 1, || {
                World::new(engine, PipeSize::Auto, 3 * SCRATCH).limited(limit)
            });
        }
    }
}

/// Random outcomes. After the end of the list, everything succeeds.
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
        while chance.0.len() > 0 && world.advance(&mut chance) {}
        world.finish();
    }
}

/// Checks that `transfer` is at `step`, and reports `event` to it.
fn at(transfer: &mut Transfer, step: Step, event: Event) {
    assert_eq!(transfer.step(), step, "before {event:?}");
    transfer.on(event);
}

/// Returns the class of the pipe that is to be filled now, and whether a probe comes first.
fn fill_due(transfer: &Transfer) -> (SizeClass, bool) {
    match transfer.step() {
        Step::Fill { class, probe } => (class, probe),
        step => panic!("{step:?} is due, and not a fill"),
    }
}

/// Performs one fill of `bytes`, and drains the pipe in one call.
fn fill_and_drain(transfer: &mut Transfer, class: SizeClass, bytes: usize, full: bool) {
    if transfer.step() == Step::Yield {
        transfer.on(Event::Yielded);
    }
    assert_eq!(fill_due(transfer).0, class);
    transfer.on(Event::Filled { bytes, full });
    at(transfer, Step::Drain, Event::Drained { bytes, left: 0 });
}

/// Performs a fill that finds nothing, and a recv that confirms it.
fn finds_nothing(transfer: &mut Transfer) {
    fill_due(transfer);
    transfer.on(Event::SourceStopped);
    at(transfer, Step::Recv, Event::WouldBlock);
}

fn received(bytes: usize) -> Event {
    Event::Received {
        bytes,
        full: bytes == SCRATCH,
    }
}

/// Performs one recv, and sends its bytes in one call.
fn recv_and_send(transfer: &mut Transfer, bytes: usize) {
    if transfer.step() == Step::Yield {
        transfer.on(Event::Yielded);
    }
    at(transfer, Step::Recv, received(bytes));
    at(transfer, Step::Send, Event::Sent { bytes, left: 0 });
}

/// Returns a transfer that has become a bulk flow.
fn bulk(size: PipeSize) -> Transfer {
    let mut transfer = Transfer::new(Engine::Auto, size);
    recv_and_send(&mut transfer, SCRATCH);
    transfer
}

#[test]
fn small_messages_cause_only_recv_and_send() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    for _ in 0..1_000 {
        recv_and_send(&mut transfer, SPLICE_THRESHOLD - 1);
        at(&mut transfer, Step::Recv, Event::WouldBlock);
    }
}

#[test]
fn a_large_recv_starts_splicing_and_eight_small_fills_end_it() {
    for first in [SPLICE_THRESHOLD, SCRATCH] {
        let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
        recv_and_send(&mut transfer, first);
        for small in [7, 8] {
            fill_and_drain(&mut transfer, SizeClass::Kib64, SPLICE_THRESHOLD, false);
            finds_nothing(&mut transfer);
            for _ in 1..small {
                fill_and_drain(&mut transfer, SizeClass::Kib64, SPLICE_THRESHOLD - 1, false);
                finds_nothing(&mut transfer);
            }
        }
        fill_and_drain(&mut transfer, SizeClass::Kib64, 100, false);
        assert_eq!(transfer.step(), Step::Recv);
    }
}

/// A rate limit may allow only a few bytes per read. If a read returns all of them, the flow may be
/// bulk.
#[test]
fn a_fill_of_all_allowed_bytes_does_not_count_as_small() {
    let mut transfer = bulk(PipeSize::Auto);
    for _ in 0..100 {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 1_000, true);
    }
}

#[test]
fn after_a_fill_finds_nothing_a_recv_finds_the_reason() {
    for (event, is_next) in [
        (received(1_000), (|step| step == Step::Send) as fn(Step) -> bool),
        (Event::WouldBlock, |step| {
            matches!(step, Step::Fill { probe: false, .. })
        }),
        (Event::Eof, |step| step == Step::Shutdown),
        (Event::OtherRecord, |step| matches!(step, Step::Fill { .. })),
    ] {
        let mut transfer = bulk(PipeSize::Auto);
        transfer.on(Event::SourceStopped);
        at(&mut transfer, Step::Recv, event);
        assert!(is_next(transfer.step()), "{:?} after {event:?}", transfer.step());
    }
}

#[test]
fn a_probe_follows_a_short_fill_until_the_source_is_drained() {
    let mut transfer = bulk(PipeSize::Fixed(SizeClass::Kib64));
    for (bytes, full, probe) in [(64 << 10, true, false), (30_000, false, true), (60_000, true, false)] {
        fill_and_drain(&mut transfer, SizeClass::Kib64, bytes, full);
        assert_eq!(fill_due(&transfer), (SizeClass::Kib64, probe), "{bytes}");
    }
    for drained in [Event::WouldBlock, Event::SourceStopped] {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 30_000, false);
        transfer.on(drained);
        if drained == Event::SourceStopped {
            at(&mut transfer, Step::Recv, Event::WouldBlock);
        }
        assert_eq!(fill_due(&transfer), (SizeClass::Kib64, false), "{drained:?}");
    }
    fill_and_drain(&mut transfer, SizeClass::Kib64, 30_000, false);
    transfer.on(Event::Cannot(Reason::PipeBudget));
    while transfer.step() == Step::Recv || transfer.step() == Step::Yield {
        recv_and_send(&mut transfer, SCRATCH);
    }
    assert_eq!(fill_due(&transfer), (SizeClass::Kib64, false), "after a reason to copy");
}

#[test]
fn a_full_pipe_is_followed_by_a_larger_one_up_to_1_mib() {
    let mut transfer = bulk(PipeSize::Auto);
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    fill_and_drain(&mut transfer, SizeClass::Kib256, 256 << 10, true);
    for _ in 0..20 {
        fill_and_drain(&mut transfer, SizeClass::Mib1, 1 << 20, true);
    }
}

#[test]
fn a_sink_that_blocks_gets_no_pipe_of_1_mib_until_it_keeps_up() {
    let mut transfer = bulk(PipeSize::Auto);
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    fill_and_drain(&mut transfer, SizeClass::Kib256, 256 << 10, true);
    let (bytes, full) = (1 << 20, true);
    assert_eq!(fill_due(&transfer).0, SizeClass::Mib1);
    transfer.on(Event::Filled { bytes, full });
    at(&mut transfer, Step::Drain, Event::SinkBlocked);
    at(&mut transfer, Step::Drain, Event::Drained { bytes, left: 0 });
    for _ in 0..2 {
        fill_and_drain(&mut transfer, SizeClass::Kib256, 256 << 10, true);
    }
    fill_and_drain(&mut transfer, SizeClass::Mib1, 1 << 20, true);
}

#[test]
fn full_slots_with_few_bytes_do_not_lead_to_a_larger_pipe() {
    let mut transfer = bulk(PipeSize::Auto);
    for _ in 0..100 {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 16 * 1_448, false);
    }
}

#[test]
fn four_fills_below_half_of_the_pipe_lead_to_a_smaller_one() {
    let mut transfer = bulk(PipeSize::Auto);
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    for _ in 0..3 {
        fill_and_drain(&mut transfer, SizeClass::Kib256, 90_000, false);
    }
    // A fill of half the size restarts the count, so the small fills are not consecutive.
    fill_and_drain(&mut transfer, SizeClass::Kib256, 128 << 10, false);
    for _ in 0..4 {
        fill_and_drain(&mut transfer, SizeClass::Kib256, 90_000, false);
    }
    fill_and_drain(&mut transfer, SizeClass::Kib64, 60_000, false);
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
fn after_a_momentary_reason_1_mib_is_copied_before_the_next_try() {
    for reason in Reason::ALL {
        let mut transfer = bulk(PipeSize::Auto);
        transfer.on(Event::Cannot(reason));
        for _ in 0..(1 << 20) / SCRATCH {
            recv_and_send(&mut transfer, SCRATCH);
        }
        let mut until_tried = 0;
        while until_tried < 100 && !matches!(transfer.step(), Step::Fill { .. }) {
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
    let (bytes, left) = (64 << 10, (64 << 10) - 1_000);
    transfer.on(Event::Filled { bytes, full: true });
    at(&mut transfer, Step::Drain, Event::Drained { bytes: 1_000, left });
    at(&mut transfer, Step::Drain, Event::Cannot(Reason::InvalidArgument));
    at(&mut transfer, Step::Unload, Event::Unloaded);
    at(&mut transfer, Step::Send, Event::Sent { bytes: left, left: 0 });
    assert_eq!(transfer.step(), Step::Recv);
}

#[test]
fn a_poll_that_copies_yields_after_256_kib() {
    for engine in [Engine::Auto, Engine::Copy] {
        let mut transfer = Transfer::new(engine, PipeSize::Auto);
        for _ in 0..COPY_BUDGET / 1_024 {
            at(&mut transfer, Step::Recv, received(1_024));
            at(&mut transfer, Step::Send, Event::Sent { bytes: 1_024, left: 0 });
        }
        at(&mut transfer, Step::Yield, Event::Yielded);
        assert_eq!(transfer.step(), Step::Recv);
    }
}

#[test]
fn a_poll_that_splices_yields_after_1_mib() {
    for class in SizeClass::ALL {
        let mut transfer = Transfer::new(Engine::Splice, PipeSize::Fixed(class));
        for _ in 0..2 {
            let mut moved = 0;
            while transfer.step() != Step::Yield {
                fill_and_drain(&mut transfer, class, class.bytes() / 2, false);
                moved += class.bytes() / 2;
            }
            assert_eq!(moved, SPLICE_BUDGET, "{class:?}");
            transfer.on(Event::Yielded);
        }
    }
}

#[test]
fn a_poll_of_bulk_that_cannot_be_spliced_yields_after_256_kib() {
    let mut transfer = bulk(PipeSize::Auto);
    transfer.on(Event::Cannot(Reason::PipeBudget));
    for _ in 0..COPY_BUDGET / SCRATCH - 1 {
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
    transfer.on(Event::SourceStopped);
    at(&mut transfer, Step::Recv, received(100));
    at(&mut transfer, Step::Send, Event::Sent { bytes: 100, left: 0 });
    assert_eq!(fill_due(&transfer).0, SizeClass::Kib64);
}

#[test]
#[should_panic(expected = "cannot come of")]
fn an_event_that_the_step_cannot_cause_panics() {
    Transfer::new(Engine::Auto, PipeSize::Auto).on(Event::Unloaded);
}
