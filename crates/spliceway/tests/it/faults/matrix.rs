//! Every call a relay makes × every way it can fail × the first time, a later one, and always.
//!
//! The table is printed by
//! `cargo test -p spliceway --test it faults::matrix -- --nocapture --test-threads=1`.
#![allow(clippy::print_stdout)] // The table.

use rustix::io::Errno;
use spliceway::{Operation, PipePool, Reason, Relay, RelayOptions};
use spliceway_faults::{Call, Fault, Rule, When};
use tokio::net::UnixStream;

use super::row::{Expected, Failure, Row};
use super::scenario::{Nudge, runtime};
use crate::support::KIB;
use crate::support::child::{block_on, in_child, open_descriptors};
use crate::support::pattern::Pattern;
use crate::support::rig::limits;

const FIRST: When = When::FIRST;
/// A call in the middle of a flow; of receives and sends, one of a message.
const LATER: When = When::Nth(3);

fn errno(errno: Errno) -> Fault {
    Fault::Errno(errno.raw_os_error())
}

/// Runs the rows in a process of their own: some switch splicing off for the whole of it, and all
/// count descriptors.
fn try_out(test: &str, rows: impl FnOnce() -> Vec<Row>) {
    let said = in_child(test, None, || {
        // tokio keeps what its first runtime opens for signals, where that feature is on.
        drop(runtime());
        let before = open_descriptors();
        println!(); // Ends the line that the test harness began.
        for (number, row) in (0..).zip(rows()) {
            println!("{}", row.try_out(number));
        }
        await_descriptors(before);
    });
    if said.is_empty() {
        return; // The child, which has said it.
    }
    println!("\n| call | errno | when | bytes lost | fallback counted | spliced again | outcome |");
    println!("|---|---|---|---|---|---|---|");
    said.lines()
        .filter(|line| line.starts_with("| "))
        .for_each(|line| println!("{line}"));
}

/// Supervisors end with the last thread behind their filter, and a pool's reaper is one of those.
fn await_descriptors(count: usize) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while open_descriptors() > count {
        assert!(
            std::time::Instant::now() < until,
            "{} descriptors, {count} at first",
            open_descriptors()
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_splice_that_cannot_be_made_loses_no_byte_and_says_why() {
    const NAME: &str = "faults::matrix::a_splice_that_cannot_be_made_loses_no_byte_and_says_why";
    let outcomes = [
        (Errno::PERM, Expected::CopiesProcessWide(Reason::NotPermitted)),
        (Errno::ACCESS, Expected::CopiesProcessWide(Reason::NotPermitted)),
        (Errno::NOSYS, Expected::CopiesProcessWide(Reason::NotImplemented)),
        (Errno::IO, Expected::CopiesForGood(Reason::Unexpected)),
        (Errno::INVAL, Expected::CopiesForGood(Reason::InvalidArgument)),
        (Errno::BADF, Expected::CopiesForGood(Reason::BadDescriptor)),
        (Errno::OPNOTSUPP, Expected::CopiesForGood(Reason::NotSupported)),
        (Errno::NOMEM, Expected::CopiesForNow(Reason::NoMemory)),
        (Errno::NOBUFS, Expected::CopiesForNow(Reason::NoMemory)),
    ];
    try_out(NAME, || {
        let mut rows = Vec::new();
        for call in [Call::SpliceIn, Call::SpliceOut] {
            for (number, expected) in outcomes {
                rows.extend([FIRST, LATER, When::Always].map(|when| Row::new(call, errno(number), when, expected)));
            }
        }
        rows
    });
}

#[test]
fn a_pipe_that_cannot_be_made_or_enlarged_loses_no_byte() {
    const NAME: &str = "faults::matrix::a_pipe_that_cannot_be_made_or_enlarged_loses_no_byte";
    let outcomes = [
        (Errno::MFILE, Expected::CopiesForNow(Reason::ProcessDescriptors)),
        (Errno::NFILE, Expected::CopiesForNow(Reason::SystemFiles)),
        (Errno::NOMEM, Expected::CopiesForNow(Reason::NoMemory)),
        (Errno::PERM, Expected::CopiesProcessWide(Reason::NotPermitted)),
        (Errno::ACCESS, Expected::CopiesProcessWide(Reason::NotPermitted)),
        (Errno::NOSYS, Expected::CopiesProcessWide(Reason::NotImplemented)),
    ];
    try_out(NAME, || {
        let mut rows = Vec::new();
        for (number, expected) in outcomes {
            rows.extend([FIRST, When::Always].map(|when| Row::new(Call::Pipe, errno(number), when, expected)));
            // The second is the larger one that a bulk flow asks for; the first is still there.
            let larger = |when| Row::new(Call::Pipe, errno(number), when, Expected::SmallerPipe);
            rows.extend([When::Nth(2), When::Between(2, 6)].map(larger));
        }
        for number in [Errno::PERM, Errno::BUSY, Errno::NOMEM] {
            let refused = |when| Row::new(Call::SetPipeSize, errno(number), when, Expected::SmallerPipe);
            rows.extend([FIRST, When::Between(1, 3)].map(refused));
        }
        rows
    });
}

#[test]
fn an_interrupted_or_spurious_outcome_is_noticed_by_nobody() {
    const NAME: &str = "faults::matrix::an_interrupted_or_spurious_outcome_is_noticed_by_nobody";
    use Expected::Unnoticed;
    try_out(NAME, || {
        let calls = [Call::SpliceIn, Call::SpliceOut, Call::Recv, Call::Send];
        let mut rows: Vec<_> = calls
            .into_iter()
            .flat_map(|call| [FIRST, LATER].map(|when| Row::new(call, errno(Errno::INTR), when, Unnoticed)))
            .collect();
        rows.extend([FIRST, LATER].map(|when| Row::new(Call::Recv, errno(Errno::INTR), when, Unnoticed).unix()));
        let again = errno(Errno::AGAIN);
        for when in [FIRST, LATER] {
            rows.extend([
                // A look or a recv tells what splice meant.
                Row::new(Call::SpliceIn, again, when, Unnoticed),
                Row::new(Call::SpliceIn, Fault::Returns(0), when, Unnoticed),
                Row::new(Call::SpliceOut, again, when, Unnoticed).nudged(Nudge::Far),
                Row::new(Call::Send, again, when, Unnoticed).nudged(Nudge::Far),
            ]);
        }
        rows.extend(
            [(FIRST, 1), (LATER, 3)]
                .map(|(when, message)| Row::new(Call::Recv, again, when, Unnoticed).nudged(Nudge::Near { message })),
        );
        // A recv tells what a look did not.
        let looks = [
            (Errno::INTR, FIRST),
            (Errno::INTR, LATER),
            (Errno::NOMEM, FIRST),
            (Errno::NOMEM, When::Between(1, 3)),
        ];
        rows.extend(looks.map(|(number, when)| Row::new(Call::Poll, errno(number), when, Unnoticed)));
        rows.extend([FIRST, When::Between(1, 3)].map(|when| {
            let unread = Expected::CopiesForGood(Reason::InvalidArgument);
            Row::new(Call::ReadPipe, errno(Errno::INTR), when, unread).also(refused_by_the_sink())
        }));
        rows
    });
}

#[test]
fn a_broken_stream_is_reported_with_its_direction_and_what_failed() {
    const NAME: &str = "faults::matrix::a_broken_stream_is_reported_with_its_direction_and_what_failed";
    let broken = [
        (
            Call::SpliceIn,
            Operation::Read,
            &[Errno::CONNRESET, Errno::TIMEDOUT][..],
        ),
        (Call::Recv, Operation::Read, &[Errno::CONNRESET, Errno::NOMEM]),
        (Call::SpliceOut, Operation::Write, &[Errno::CONNRESET, Errno::PIPE]),
        (
            Call::Send,
            Operation::Write,
            &[Errno::CONNRESET, Errno::PIPE, Errno::NOBUFS],
        ),
    ];
    try_out(NAME, || {
        let mut rows = Vec::new();
        for (call, operation, errnos) in broken {
            let expected = Expected::Breaks(operation, Failure::AsInjected);
            for number in errnos {
                rows.extend([FIRST, LATER].map(|when| Row::new(call, errno(*number), when, expected)));
            }
        }
        let unread = Expected::Breaks(Operation::Read, Failure::AsInjected);
        for number in [Errno::CONNRESET, Errno::NOMEM] {
            rows.extend([FIRST, LATER].map(|when| Row::new(Call::Recv, errno(number), when, unread).unix()));
        }
        let nothing = Failure::OfKind(std::io::ErrorKind::WriteZero);
        let takes_nothing = Expected::Breaks(Operation::Write, nothing);
        for call in [Call::SpliceOut, Call::Send] {
            rows.extend([FIRST, LATER].map(|when| Row::new(call, Fault::Returns(0), when, takes_nothing)));
        }
        let unread = Expected::Breaks(Operation::Write, Failure::AsInjected);
        rows.push(Row::new(Call::ReadPipe, errno(Errno::IO), FIRST, unread).also(refused_by_the_sink()));
        rows
    });
}

#[test]
fn a_relay_that_must_splice_and_cannot_breaks_and_says_why() {
    const NAME: &str = "faults::matrix::a_relay_that_must_splice_and_cannot_breaks_and_says_why";
    try_out(NAME, || {
        let (no_permission, no_memory) = (errno(Errno::PERM), errno(Errno::NOMEM));
        let read = |reason| Expected::Refuses(Operation::Read, reason);
        let write = |reason| Expected::Refuses(Operation::Write, reason);
        let mut rows = vec![Row::new(
            Call::Pipe,
            errno(Errno::MFILE),
            FIRST,
            read(Reason::ProcessDescriptors),
        )];
        for when in [FIRST, LATER] {
            rows.extend([
                Row::new(Call::SpliceIn, no_permission, when, read(Reason::NotPermitted)),
                Row::new(Call::SpliceIn, no_memory, when, read(Reason::NoMemory)),
                Row::new(Call::SpliceOut, no_permission, when, write(Reason::NotPermitted)),
                Row::new(Call::SpliceOut, no_memory, when, write(Reason::NoMemory)),
            ]);
        }
        rows
    });
}

/// What makes a relay read a pipe.
fn refused_by_the_sink() -> Rule {
    Rule::new(Call::SpliceOut, LATER, errno(Errno::INVAL))
}

/// Off for the process, splicing is tried by one attempt in so many. (`PROBE_EVERY` in the core's
/// switch.)
const PROBE_EVERY: usize = 64;

/// Runs relays of this process, each of them one attempt to splice: the first is refused, and one
/// of so many succeeds.
pub(super) fn await_probe() {
    let spliced = block_on(async {
        assert!(!splices().await, "the next relay tries as well");
        for _ in 0..=PROBE_EVERY {
            if splices().await {
                return true;
            }
        }
        false
    });
    assert!(spliced, "no attempt in {PROBE_EVERY} was let through");
}

/// Whether a new relay splices the rest of a stream of which more than one receive can take is
/// there at its start. (Sockets of the Unix family, as they have no timers that a window could wait
/// for.)
async fn splices() -> bool {
    let ((near, near_end), (far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let bytes = Pattern::new(9).take(100 * KIB as usize);
    assert_eq!(near.try_write(&bytes).unwrap(), bytes.len());
    drop(near);
    let relay = Relay::with_options(near_end, far_end, RelayOptions::new().pool(&PipePool::new(limits())));
    let (ended, ()) = tokio::join!(relay, async move {
        let mut far = far;
        Pattern::new(9).expect_end(&mut far, bytes.len() as u64).await;
    });
    ended.unwrap().a_to_b.spliced > 0
}
