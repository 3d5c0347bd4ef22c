//! Messages between what is always copied and what is always spliced: which way they go, and when they count as something else.

use spliceway_core::transfer::{Crossover, Event, Middling, SCRATCH, Step, Transfer};
use spliceway_core::{Engine, PipeSize, Reason, SizeClass};

use super::model::World;
use super::{LENGTH, at, fill_and_drain, finds_nothing, received, recv_and_send, walk};

#[test]
fn messages_are_spliced_from_the_size_on_that_they_cross_at() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    transfer.cross_at(Crossover::At(Middling::Kib16));
    recv_and_send(&mut transfer, (16 << 10) - 1);
    recv_and_send(&mut transfer, 16 << 10);
    for _ in 0..100 {
        spliced_message(&mut transfer, 16 << 10);
        spliced_message(&mut transfer, 40_000);
    }
}

#[test]
fn eight_messages_in_a_row_that_are_not_worth_it_are_spliced_and_then_messages_are_copied_again() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    transfer.cross_at(Crossover::At(Middling::Kib16));
    // What was copied before says nothing of pauses.
    for _ in 0..10 {
        recv_and_send(&mut transfer, 15_000);
    }
    recv_and_send(&mut transfer, 16 << 10);
    for small in [7, 8] {
        spliced_message(&mut transfer, 16 << 10);
        for _ in 0..small {
            spliced_message(&mut transfer, 100);
        }
    }
    recv_and_send(&mut transfer, 100);
    assert_eq!(transfer.step(), Step::Recv);
}

#[test]
fn messages_that_fill_a_pipe_or_come_without_a_pause_make_a_flow_bulk_in_which_nothing_is_a_message() {
    let message = |transfer: &mut Transfer, bytes, full| {
        assert!(matches!(transfer.step(), Step::Fill(_)));
        transfer.on(Event::Filled { bytes, full });
        let is_message = transfer.holds_message();
        at(transfer, Step::Drain, Event::Drained { bytes, left: 0 });
        is_message
    };
    let mut transfer = large_messages();
    finds_nothing(&mut transfer);
    for _ in 0..10 {
        assert!(message(&mut transfer, 40_000, false));
        finds_nothing(&mut transfer);
        // As much as a pipe of 64 KiB counts as full with.
        assert!(message(&mut transfer, 60_000, true));
        finds_nothing(&mut transfer);
    }
    for _ in 0..3 {
        assert!(message(&mut transfer, 20_000, false));
    }
    assert!(!message(&mut transfer, 20_000, false), "more than a receive takes");
    finds_nothing(&mut transfer);
    assert!(!message(&mut transfer, 40_000, false), "of a bulk flow");

    for full in [false, true] {
        let mut transfer = large_messages();
        assert!(!message(&mut transfer, 64 << 10, full));
        assert!(!message(&mut transfer, 20_000, false), "of a bulk flow");
    }
}

#[test]
fn what_a_recv_finds_after_a_vain_fill_came_after_a_pause() {
    let mut transfer = large_messages();
    for _ in 0..6 {
        fill_and_drain(&mut transfer, SizeClass::Kib64, 20_000, false);
        at(&mut transfer, Step::Fill(SizeClass::Kib64), Event::SourceStopped);
        recv_and_send(&mut transfer, 20_000);
    }
    assert!(transfer.crosses());
}

#[test]
fn messages_worth_splicing_count_towards_the_next_attempt_after_a_reason_of_this_moment() {
    let mut transfer = large_messages();
    at(
        &mut transfer,
        Step::Fill(SizeClass::Kib64),
        Event::Cannot(Reason::PipeBudget),
    );
    assert!(!transfer.crosses());
    for _ in 0..17 {
        recv_and_send(&mut transfer, 1_000);
        recv_and_send(&mut transfer, 20_000);
    }
    spliced_message(&mut transfer, 20_000);
    assert!(transfer.crosses());
}

#[test]
fn where_others_are_worth_splicing_the_next_message_goes_as_the_last_would_have() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    recv_and_send(&mut transfer, 16 << 10);
    for _ in 0..3 {
        transfer.cross_at(Crossover::At(Middling::Kib8));
        spliced_message(&mut transfer, 16 << 10);
        spliced_message(&mut transfer, 9_000);
        // Too small to tell.
        spliced_message(&mut transfer, 1_000);
        transfer.cross_at(Crossover::AtBulk);
        recv_and_send(&mut transfer, 16 << 10);
        recv_and_send(&mut transfer, 9_000);
    }
    // Not after a small one.
    recv_and_send(&mut transfer, 1_000);
    transfer.cross_at(Crossover::At(Middling::Kib8));
    recv_and_send(&mut transfer, 16 << 10);
    spliced_message(&mut transfer, 16 << 10);
    // Not where those of this size go as before.
    transfer.cross_at(Crossover::At(Middling::Kib16));
    spliced_message(&mut transfer, 16 << 10);
    transfer.cross_at(Crossover::At(Middling::Kib32));
    recv_and_send(&mut transfer, 16 << 10);
    recv_and_send(&mut transfer, 40_000);
    spliced_message(&mut transfer, 40_000);
}

#[test]
fn a_message_that_is_held_when_others_are_worth_splicing_is_the_last_to_go_its_way() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    let bytes = 20_000;
    at(&mut transfer, Step::Recv, Event::Received { bytes, full: false });
    transfer.cross_at(Crossover::At(Middling::Kib8));
    at(&mut transfer, Step::Send, Event::Sent { bytes, left: 0 });
    at(
        &mut transfer,
        Step::Fill(SizeClass::Kib64),
        Event::Filled { bytes, full: false },
    );
    transfer.cross_at(Crossover::AtBulk);
    at(&mut transfer, Step::Drain, Event::Drained { bytes, left: 0 });
    recv_and_send(&mut transfer, bytes);
}

#[test]
fn what_messages_were_copied_tells_that_nothing_comes_after_one() {
    let mut crossed = Transfer::new(Engine::Auto, PipeSize::Auto);
    recv_and_send(&mut crossed, 16 << 10);
    crossed.cross_at(Crossover::At(Middling::Kib16));
    for mut transfer in [large_messages(), crossed] {
        assert!(!transfer.expects_drained_source(), "nothing was spliced yet");
        fill_and_drain(&mut transfer, SizeClass::Kib64, 16 << 10, false);
        assert!(transfer.expects_drained_source());
        // Something did.
        fill_and_drain(&mut transfer, SizeClass::Kib64, 16 << 10, false);
        assert!(!transfer.expects_drained_source());
    }
}

#[test]
fn what_is_copied_between_two_fills_is_not_what_came_after_the_first() {
    let mut transfer = large_messages();
    fill_and_drain(&mut transfer, SizeClass::Kib64, 16 << 10, false);
    transfer.cross_at(Crossover::AtBulk);
    assert!(!transfer.expects_drained_source());
    recv_and_send(&mut transfer, 16 << 10);
    transfer.cross_at(Crossover::At(Middling::Kib16));
    fill_and_drain(&mut transfer, SizeClass::Kib64, 16 << 10, false);
    assert!(transfer.expects_drained_source());
}

#[test]
fn other_messages_do_not_make_bulk_anything_else() {
    let mut transfer = large_messages();
    fill_and_drain(&mut transfer, SizeClass::Kib64, 64 << 10, true);
    assert!(!transfer.crosses());
    transfer.cross_at(Crossover::AtBulk);
    assert!(matches!(transfer.step(), Step::Fill(_)));
}

#[test]
fn with_no_pipe_between_messages_cross_nowhere() {
    let mut transfer = Transfer::without_pipe(Engine::Auto);
    transfer.cross_at(Crossover::At(Middling::Kib8));
    for _ in 0..10 {
        recv_and_send(&mut transfer, 60_000);
    }
}

#[test]
fn every_sequence_of_outcomes_wherever_messages_cross_delivers_every_byte_in_order_and_ends() {
    for crossover in [Crossover::At(Middling::Kib16), Crossover::At(Middling::Kib32)] {
        walk(LENGTH - 1, || {
            let mut world = World::new(Engine::Auto, PipeSize::Auto, 3 * SCRATCH);
            world.cross_at(crossover);
            world
        });
        // What was copied is spliced.
        walk(LENGTH - 1, || {
            let mut world = World::new(Engine::Auto, PipeSize::Auto, 3 * SCRATCH);
            world.happens(received(20_000));
            world.happens(Event::Sent { bytes: 20_000, left: 0 });
            world.cross_at(crossover);
            world
        });
        // One fill before its messages count as bulk, or as small ones, by what comes next.
        for (fills, bytes) in [(3, 20_000), (7, 100)] {
            walk(LENGTH - 2, || {
                let mut world = World::new(Engine::Auto, PipeSize::Auto, 4 * SCRATCH);
                world.cross_at(Crossover::At(Middling::Kib16));
                world.happens(received(20_000));
                world.happens(Event::Sent { bytes: 20_000, left: 0 });
                for _ in 0..fills {
                    if bytes == 100 {
                        world.happens(Event::SourceStopped);
                        world.happens(Event::WouldBlock);
                    }
                    world.happens(Event::Filled { bytes, full: false });
                    world.happens(Event::Drained { bytes, left: 0 });
                }
                world.cross_at(crossover);
                world
            });
        }
    }
}

/// One message by a splice, after which a look finds nothing.
fn spliced_message(transfer: &mut Transfer, bytes: usize) {
    fill_and_drain(transfer, SizeClass::Kib64, bytes, false);
    if let Step::Fill(_) = transfer.step() {
        finds_nothing(transfer);
    }
}

/// A transfer whose messages are spliced, from 16 KiB on.
fn large_messages() -> Transfer {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    transfer.cross_at(Crossover::At(Middling::Kib16));
    recv_and_send(&mut transfer, 16 << 10);
    transfer
}
