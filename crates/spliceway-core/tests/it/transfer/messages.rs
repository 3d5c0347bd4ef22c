//! Messages between what is always copied and what is always spliced: which way they go, and when they count as something else.

use spliceway_core::transfer::{Crossover, Event, Middling, Step, Transfer};
use spliceway_core::{Engine, PipeSize, Reason, SizeClass};

use super::{at, fill_and_drain, finds_nothing, recv_and_send};

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
fn a_trial_takes_the_next_eight_messages_of_one_direction_either_way() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    transfer.cross_at(Crossover::Swapped);
    recv_and_send(&mut transfer, 1_000);
    assert_eq!(transfer.step(), Step::Recv, "not with small ones");
    recv_and_send(&mut transfer, 16 << 10);
    transfer.cross_at(Crossover::AtBulk);
    for _ in 0..8 {
        assert!(transfer.is_on_trial());
        spliced_message(&mut transfer, 16 << 10);
    }
    assert!(!transfer.is_on_trial());
    recv_and_send(&mut transfer, 16 << 10);
    assert_eq!(transfer.step(), Step::Recv);

    let mut transfer = large_messages();
    transfer.cross_at(Crossover::Swapped);
    spliced_message(&mut transfer, 16 << 10);
    transfer.cross_at(Crossover::At(Middling::Kib16));
    for bytes in [16 << 10, 1_000].into_iter().cycle().take(8) {
        assert!(transfer.is_on_trial());
        recv_and_send(&mut transfer, bytes);
    }
    assert!(!transfer.is_on_trial());
    recv_and_send(&mut transfer, 16 << 10);
    spliced_message(&mut transfer, 16 << 10);
}

#[test]
fn a_small_message_begins_no_trial() {
    let mut transfer = large_messages();
    transfer.cross_at(Crossover::Swapped);
    spliced_message(&mut transfer, 1_000);
    assert!(!transfer.is_on_trial());
    spliced_message(&mut transfer, 16 << 10);
    assert!(transfer.is_on_trial());
}

#[test]
fn what_was_to_be_tried_and_proves_worth_it_is_no_trial_any_more() {
    let mut transfer = Transfer::new(Engine::Auto, PipeSize::Auto);
    transfer.cross_at(Crossover::Swapped);
    recv_and_send(&mut transfer, 16 << 10);
    transfer.cross_at(Crossover::At(Middling::Kib16));
    spliced_message(&mut transfer, 16 << 10);
    assert!(!transfer.is_on_trial());
    for _ in 0..100 {
        spliced_message(&mut transfer, 16 << 10);
    }
}

#[test]
fn with_no_pipe_between_messages_cross_nowhere() {
    let mut transfer = Transfer::without_pipe(Engine::Auto);
    transfer.cross_at(Crossover::At(Middling::Kib8));
    for _ in 0..10 {
        recv_and_send(&mut transfer, 60_000);
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
