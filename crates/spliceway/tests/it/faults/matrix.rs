//! Every call of a relay × every way in which it can fail × the first time, a later time, and
//! always.
//!
//! This command prints the table:
//!
//! ```text
//! cargo test -p spliceway --test it faults::matrix -- --nocapture --test-threads=1
//! ```
// The tests print the table.
#![allow(clippy::print_stdout)]

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
/// A later call, in the middle of a flow. If it is a receive or a send, it belongs to a message.
const LATER: When = When::Nth(3);

fn errno(errno: Errno) -> Fault {
    Fault::Errno(errno.raw_os_error())
}

/// Runs the rows in a process of their own. Some rows switch splicing off for the whole process,
/// and all rows count descriptors.
fn try_out(test: &str, rows: impl FnOnce() -> Vec<Row>) {
    let said = in_child(test, None, || {
        // tokio's first runtime opens descriptors for signals, if its signal feature is on, and
        // keeps them open.
        drop(runtime());
        let before = open_descriptors();
        // Ends the line that the test harness has begun.
        println!();
        for (number, row) in (0..).zip(rows()) {
            println!("{}", row.try_out(number));
        }
        await_descriptors(before);
    });
    if said.is_empty() {
        // This is the child process, which has printed its rows.
        return;
    }
    println!("\n| call | errno | when | bytes lost | fallback counted | spliced again | outcome |");
    println!("|---|---|---|---|---|---|---|");
    said.lines()
        .filter(|line| line.starts_with("| "))
        .for_each(|line| println!("{line}"));
}

/// A supervisor ends with the last thread behind its filter. The reaper of a pool may be one of
/// these threads.
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
fn a_failed_splice_loses_no_byte_and_has_a_reason() {
    const NAME: &str = "faults::matrix::a_failed_splice_loses_no_byte_and_has_a_reason";
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
            // The second pipe is the larger one that a bulk flow asks for. The first one is still
            // there.
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
fn an_interrupted_or_spurious_outcome_has_no_visible_effect() {
    const NAME: &str = "faults::matrix::an_interrupted_or_spurious_outcome_has_no_visible_effect";
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
                // A readiness probe or a recv shows what the splice meant.
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
        // A recv shows what the failed readiness probe did not.
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
fn a_relay_that_must_splice_and_cannot_fails_with_the_reason() {
    const NAME: &str = "faults::matrix::a_relay_that_must_splice_and_cannot_fails_with_the_reason";
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

/// Returns a fault that makes a relay read its pipe.
fn refused_by_the_sink() -> Rule {
    Rule::new(Call::SpliceOut, LATER, errno(Errno::INVAL))
}

/// While splicing is off for the process, one attempt in this many is a probe. (`PROBE_EVERY` in
/// the core's `splice_support.rs`.)
const PROBE_EVERY: usize = 64;

/// Runs relays in this process, each of which tries to splice once. The first one is refused, and
/// one of the others succeeds.
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

/// Returns whether a new relay splices. When it starts, more bytes than one receive can read are in
/// its source, so it should splice the rest. (The sockets are Unix sockets, because a TCP window
/// could wait for a timer.)
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
