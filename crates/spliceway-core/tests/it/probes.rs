//! How a splicer probes its source after a read that was not full.

use std::io::{Read, Write};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Engine, Next, ReadOutcome, Splicer, WriteOutcome};
use spliceway_faults::{Call, Fault, Faults, Rule, SocketOption, When};

use crate::splicer::{Line, pool, read, splicer, write};
use crate::support::{self, Family, Socket};

/// Reads once, and writes all bytes. Returns the outcome of the read.
fn read_and_write(splicer: &mut Splicer, line: &Line, counts: &Counts) -> ReadOutcome {
    let mut scratch = vec![0; SCRATCH];
    let outcome = read(splicer, &line.source, &mut scratch, counts).expect("read");
    while let Some(written) = write(splicer, &line.sink, &scratch, counts) {
        assert_eq!(written.expect("written"), WriteOutcome::Open);
    }
    outcome
}

/// Writes `bytes`, and waits until they can be read from the source.
fn arrives(line: &Line, bytes: &[u8]) {
    (&line.client).write_all(bytes).expect("write");
    support::await_queued(&line.source, bytes.len());
}

const BURSTS: usize = 10;

/// Installs `rule` on this thread, and counts fills and receives.
fn faults(rule: Option<Rule>) -> Faults {
    let watched = [Call::SpliceIn, Call::Recv].map(Rule::watch);
    Faults::on_this_thread(rule.into_iter().chain(watched).collect()).expect("seccomp")
}

fn fills_and_receives(faults: &Faults) -> (u64, u64) {
    (faults.seen(Call::SpliceIn).calls, faults.seen(Call::Recv).calls)
}

/// After a burst, one probe replaces a fill and a receive.
#[test]
fn after_a_burst_the_source_is_probed_once() {
    let faults = faults(None);
    for family in [Family::Tcp, Family::Unix] {
        let (line, counts) = (Line::new(family, Family::Tcp), Counts::default());
        let mut splicer = splicer(Engine::Splice, &pool());
        let mut calls_of_reads = |expected: &[ReadOutcome]| {
            let before = fills_and_receives(&faults);
            for outcome in expected {
                assert_eq!(read_and_write(&mut splicer, &line, &counts), *outcome, "{family:?}");
            }
            let (fills, receives) = fills_and_receives(&faults);
            (fills - before.0, receives - before.1)
        };
        for _ in 0..BURSTS {
            arrives(&line, &[7; 3_000]);
            let calls = calls_of_reads(&[ReadOutcome::Open, ReadOutcome::Drained]);
            assert_eq!(calls, (1, 0), "{family:?}");
        }
        // The splicer does not miss EOF.
        arrives(&line, b"last");
        line.client.finish();
        support::await_ready(&line.source, PollFlags::RDHUP);
        assert_eq!(calls_of_reads(&[ReadOutcome::Open; 3]), (2, 1), "{family:?}");
        assert!(matches!(splicer.next(), Next::Shutdown), "{family:?}");
        (&line.server).read_exact(&mut [0; 30_004]).expect("read");
    }
}

/// A fill may find nothing for reasons other than an empty source, so a receive must confirm that
/// the source is empty.
#[test]
fn bytes_that_a_fill_does_not_find_are_received() {
    let nothing = Fault::Errno(Errno::AGAIN.raw_os_error());
    let faults = faults(Some(Rule::new(Call::SpliceIn, When::Nth(2), nothing)));
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let mut splicer = splicer(Engine::Splice, &pool());
    for bytes in [30_000, 30_000] {
        arrives(&line, &vec![7; bytes]);
        assert_eq!(read_and_write(&mut splicer, &line, &counts), ReadOutcome::Open);
    }
    assert_eq!(read_and_write(&mut splicer, &line, &counts), ReadOutcome::Short);
    let summary = counts.snapshot();
    assert_eq!((summary.spliced, summary.copied), (30_000, 30_000));
    assert_eq!(fills_and_receives(&faults), (2, 1));
    (&line.server).read_exact(&mut vec![0; 60_000]).expect("read");
}

/// `poll` does not report a mark whose urgent byte was received, and a splice does not step over
/// it. Without a receive, the splicer would try forever.
#[test]
fn bytes_after_a_mark_that_no_probe_finds_are_received() {
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let (Socket::Tcp(client), Socket::Tcp(source)) = (&line.client, &line.source) else {
        unreachable!("as it was asked for")
    };
    let mut splicer = splicer(Engine::Splice, &pool());
    rustix::net::send(client, b"abc!", SendFlags::OOB).expect("send");
    support::await_ready(&line.source, PollFlags::PRI);
    let mut urgent = [0];
    rustix::net::recv(source, &mut urgent, RecvFlags::OOB).expect("recv");
    assert_eq!(&urgent, b"!");
    let mut take = || read_and_write(&mut splicer, &line, &counts);
    assert_eq!(take(), ReadOutcome::Open, "up to the mark");
    (&line.client).write_all(b"def").expect("write");
    assert_eq!(
        support::await_ready(&line.source, PollFlags::IN | PollFlags::PRI),
        PollFlags::IN
    );
    assert_eq!(
        [take(), take()],
        [ReadOutcome::Open, ReadOutcome::Short],
        "a fill that finds nothing, and a receive"
    );
    arrives(&line, b"ghi");
    assert_eq!(
        [take(), take()],
        [ReadOutcome::Open, ReadOutcome::Drained],
        "no trace of the mark"
    );
    let mut got = [0; 9];
    (&line.server).read_exact(&mut got).expect("read");
    assert_eq!(&got, b"abcdefghi");
}

/// If the source cannot be probed, a receive shows whether it is drained.
#[test]
fn after_a_failed_probe_a_receive_finds_the_source_drained() {
    let faults = faults(Some(Rule::new(
        Call::Poll,
        When::Always,
        Fault::Errno(Errno::NOMEM.raw_os_error()),
    )));
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let mut splicer = splicer(Engine::Splice, &pool());
    for _ in 0..BURSTS {
        arrives(&line, b"burst");
        let learnt = [(); 3].map(|()| read_and_write(&mut splicer, &line, &counts));
        assert_eq!(learnt, [ReadOutcome::Open, ReadOutcome::Open, ReadOutcome::WouldBlock]);
    }
    assert_eq!(fills_and_receives(&faults), (2 * BURSTS as u64, BURSTS as u64));
    (&line.server).read_exact(&mut [0; 5 * BURSTS]).expect("read");
}

/// The next fill of such a splicer waits for the source, so no probe is needed.
#[test]
fn a_splicer_whose_calls_may_wait_does_not_probe() {
    const SENT: usize = SCRATCH + 10_000;
    let faults = Faults::on_this_thread(vec![Rule::watch(Call::Poll)]).expect("seccomp");
    let ((client, source), (sink, server)) = (Family::Tcp.pair(), Family::Tcp.pair());
    // This is more than one receive returns, and no more than the sockets hold unread.
    (&client).write_all(&[7; SENT]).expect("write");
    client.finish();
    let summary = spliceway_core::copy(&source, &sink).expect("copied");
    assert!(summary.bytes == SENT as u64 && summary.spliced > 0, "{summary:?}");
    assert_eq!(faults.seen(Call::Poll).calls, 0);
    (&server).read_exact(&mut [0; SENT]).expect("read");
}

#[test]
fn a_source_with_more_bytes_or_an_urgent_mark_is_not_drained() {
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let mut splicer = splicer(Engine::Splice, &pool());
    let mut takes_until_drained = || {
        let mut learnt = Vec::new();
        while !matches!(learnt.last(), Some(ReadOutcome::WouldBlock | ReadOutcome::Drained)) {
            learnt.push(read_and_write(&mut splicer, &line, &counts));
        }
        learnt
    };
    let Socket::Tcp(client) = &line.client else {
        unreachable!("as it was asked for")
    };
    for _ in 0..BURSTS {
        arrives(&line, b"abc");
        takes_until_drained();
    }

    // Sixteen segments use all slots of a pipe of 64 KiB. After that, more than half of the
    // segments are left.
    support::write_apart(client, &[7; 40 * 1_448], 1_448);
    support::await_queued(&line.source, 40 * 1_448);
    let learnt = takes_until_drained();
    assert_eq!(learnt.last(), Some(&ReadOutcome::Drained), "{learnt:?}");
    let before = 3 * BURSTS + 40 * 1_448;
    assert_eq!(counts.snapshot().bytes, before as u64, "not before all was taken");
    arrives(&line, b"def");
    assert_eq!(takes_until_drained(), [ReadOutcome::Open, ReadOutcome::Drained]);

    rustix::net::send(client, b"ghi!", SendFlags::OOB).expect("send");
    support::await_ready(&line.source, PollFlags::PRI);
    let learnt = takes_until_drained();
    assert_eq!(learnt.last(), Some(&ReadOutcome::WouldBlock), "at a mark: {learnt:?}");
    let mut got = vec![0; before + 6];
    (&line.server).read_exact(&mut got).expect("read");
    assert_eq!(&got[got.len() - 6..], b"defghi");
}

/// If fewer bytes than the low-water mark are queued, the kernel reports them neither to a poller
/// nor to a probe.
#[test]
fn a_source_whose_low_water_mark_hides_bytes_never_counts_as_drained() {
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let Socket::Tcp(source) = &line.source else {
        unreachable!("as it was asked for")
    };
    spliceway_faults::set_option(source, SocketOption::LowWaterMark, 64 << 10).expect("SO_RCVLOWAT");
    let mut splicer = splicer(Engine::Splice, &pool());
    for _ in 0..BURSTS {
        arrives(&line, &[7; 3_000]);
        let learnt = [(); 3].map(|()| read_and_write(&mut splicer, &line, &counts));
        assert_eq!(learnt, [ReadOutcome::Open, ReadOutcome::Open, ReadOutcome::WouldBlock]);
    }
    (&line.server).read_exact(&mut [0; BURSTS * 3_000]).expect("read");
}
