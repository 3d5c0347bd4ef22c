//! How a mover looks at its source, where a fill or a receive might find nothing.

use std::io::{Read, Write};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Engine, Mover, Need, Sink, Source};
use spliceway_faults::{Call, Fault, Faults, Rule, When};

use crate::mover::{Line, mover, pool};
use crate::support::{self, Family, Socket};

/// Takes and delivers once: what was learnt of the source.
fn take_and_deliver(mover: &mut Mover, line: &Line, counts: &Counts) -> Source {
    let mut scratch = vec![0; SCRATCH];
    let learnt = mover.take(&line.source, &mut scratch, counts).expect("taken");
    while mover.need() == Need::Sink {
        assert_eq!(mover.deliver(&line.sink, &scratch, counts).expect("sent"), Sink::Open);
    }
    learnt
}

/// Writes, and waits until it is there to be taken.
fn arrives(line: &Line, bytes: &[u8]) {
    (&line.client).write_all(bytes).expect("write");
    support::await_queued(&line.source, bytes.len());
}

/// More than a mover must see end alike, before it looks at its source in place of a fill.
const BURSTS: usize = 10;

/// Faults of this thread; fills and receives are counted.
fn faults(rule: Option<Rule>) -> Faults {
    let watched = [Call::SpliceIn, Call::Recv].map(Rule::watch);
    Faults::on_this_thread(rule.into_iter().chain(watched).collect()).expect("seccomp")
}

fn fills_and_receives(faults: &Faults) -> (u64, u64) {
    (faults.seen(Call::SpliceIn).calls, faults.seen(Call::Recv).calls)
}

/// A burst ends with a look in place of a receive, and from the ninth on in place of a fill as well.
#[test]
fn after_a_burst_the_source_is_looked_at_once() {
    let faults = faults(None);
    for family in [Family::Tcp, Family::Unix] {
        let (line, counts) = (Line::new(family, Family::Tcp), Counts::default());
        let mut mover = mover(Engine::Splice, &pool());
        let mut calls_of_takes = |times: usize, expected: &[Source]| {
            let before = fills_and_receives(&faults);
            let learnt: Vec<_> = (0..times)
                .map(|_| take_and_deliver(&mut mover, &line, &counts))
                .collect();
            assert_eq!(learnt, expected, "{family:?}");
            let (fills, receives) = fills_and_receives(&faults);
            (fills - before.0, receives - before.1)
        };
        for fills in [2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1] {
            arrives(&line, &[7; 3_000]);
            assert_eq!(
                calls_of_takes(2, &[Source::Open, Source::Quiet]),
                (fills, 0),
                "{family:?}"
            );
        }
        // The end is not passed over.
        arrives(&line, b"last");
        line.client.finish();
        support::await_ready(&line.source, PollFlags::RDHUP);
        assert_eq!(calls_of_takes(3, &[Source::Open; 3]), (2, 1), "{family:?}");
        assert_eq!(mover.need(), Need::Shutdown, "{family:?}");
        (&line.server).read_exact(&mut [0; 33_004]).expect("read");
    }
}

/// What comes between a fill that found nothing and the look is spliced, not copied.
#[test]
fn bytes_that_a_look_finds_are_worth_one_more_fill() {
    let nothing = Fault::Errno(Errno::AGAIN.raw_os_error());
    // Once, and twice, as if another one had been there first.
    for (finds_nothing, learnt, spliced, copied) in [
        (
            When::Nth(2),
            [Source::Open, Source::Open, Source::Open, Source::Quiet],
            60_000,
            0,
        ),
        (
            When::Between(2, 3),
            [Source::Open, Source::Open, Source::Open, Source::Short],
            30_000,
            30_000,
        ),
    ] {
        std::thread::spawn(move || {
            let _faults = faults(Some(Rule::new(Call::SpliceIn, finds_nothing, nothing)));
            let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
            let mut mover = mover(Engine::Splice, &pool());
            arrives(&line, &[7; 30_000]);
            assert_eq!(take_and_deliver(&mut mover, &line, &counts), learnt[0]);
            arrives(&line, &[8; 30_000]);
            assert_eq!(
                [(); 3].map(|()| take_and_deliver(&mut mover, &line, &counts)),
                learnt[1..],
                "{finds_nothing:?}"
            );
            let counts = counts.snapshot();
            assert_eq!((counts.spliced, counts.copied), (spliced, copied), "{finds_nothing:?}");
            let mut got = vec![0; 60_000];
            (&line.server).read_exact(&mut got).expect("read");
            assert!(got[..30_000].iter().all(|byte| *byte == 7) && got[30_000..].iter().all(|byte| *byte == 8));
        })
        .join()
        .expect("no assertion failed");
    }
}

/// `poll` says nothing of a mark whose urgent byte was received, and no splice gets past it: it would be tried for ever.
#[test]
fn bytes_behind_a_mark_that_no_look_tells_of_are_received() {
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let (Socket::Tcp(client), Socket::Tcp(source)) = (&line.client, &line.source) else {
        unreachable!("as it was asked for")
    };
    let mut mover = mover(Engine::Splice, &pool());
    rustix::net::send(client, b"abc!", SendFlags::OOB).expect("send");
    support::await_ready(&line.source, PollFlags::PRI);
    let mut urgent = [0];
    rustix::net::recv(source, &mut urgent, RecvFlags::OOB).expect("recv");
    assert_eq!(&urgent, b"!");
    let mut take = || take_and_deliver(&mut mover, &line, &counts);
    assert_eq!(take(), Source::Open, "up to the mark");
    (&line.client).write_all(b"def").expect("write");
    assert_eq!(
        support::await_ready(&line.source, PollFlags::IN | PollFlags::PRI),
        PollFlags::IN
    );
    assert_eq!(
        [take(), take(), take()],
        [Source::Open, Source::Open, Source::Short],
        "a fill, another one as there are bytes, and a receive"
    );
    arrives(&line, b"ghi");
    assert_eq!([take(), take()], [Source::Open, Source::Quiet], "no trace of the mark");
    let mut got = [0; 9];
    (&line.server).read_exact(&mut got).expect("read");
    assert_eq!(&got, b"abcdefghi");
}

/// Of a source that cannot be looked at a receive tells.
#[test]
fn a_look_that_fails_tells_nothing() {
    let faults = faults(Some(Rule::new(
        Call::Poll,
        When::Always,
        Fault::Errno(Errno::NOMEM.raw_os_error()),
    )));
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let mut mover = mover(Engine::Splice, &pool());
    for _ in 0..BURSTS {
        arrives(&line, b"burst");
        let learnt = [(); 3].map(|()| take_and_deliver(&mut mover, &line, &counts));
        assert_eq!(learnt, [Source::Open, Source::Open, Source::WouldBlock]);
    }
    assert_eq!(fills_and_receives(&faults), (2 * BURSTS as u64, BURSTS as u64));
    (&line.server).read_exact(&mut [0; 5 * BURSTS]).expect("read");
}

/// What it might learn its next call tells as well.
#[test]
fn who_waits_in_its_calls_looks_at_nothing() {
    const SENT: usize = SCRATCH + 10_000;
    let faults = Faults::on_this_thread(vec![Rule::watch(Call::Poll)]).expect("seccomp");
    let ((client, source), (sink, server)) = (Family::Tcp.pair(), Family::Tcp.pair());
    // More than a receive takes, and no more than sockets hold that nobody reads.
    (&client).write_all(&[7; SENT]).expect("write");
    client.finish();
    let summary = spliceway_core::copy(&source, &sink).expect("copied");
    assert!(summary.bytes == SENT as u64 && summary.spliced > 0, "{summary:?}");
    assert_eq!(faults.seen(Call::Poll).calls, 0);
    (&server).read_exact(&mut [0; SENT]).expect("read");
}

#[test]
fn a_source_that_has_more_than_the_slots_or_stands_at_an_urgent_mark_is_not_quiet() {
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let mut mover = mover(Engine::Splice, &pool());
    let mut takes_until_drained = || {
        let mut learnt = Vec::new();
        while !matches!(learnt.last(), Some(Source::WouldBlock | Source::Quiet)) {
            learnt.push(take_and_deliver(&mut mover, &line, &counts));
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

    // Sixteen segments take the slots of a pipe of 64 KiB; more than half of these are left.
    support::write_apart(client, &[7; 40 * 1_448], 1_448);
    support::await_queued(&line.source, 40 * 1_448);
    let learnt = takes_until_drained();
    assert_eq!(learnt.last(), Some(&Source::Quiet), "{learnt:?}");
    let before = 3 * BURSTS + 40 * 1_448;
    assert_eq!(counts.snapshot().bytes, before as u64, "not before all was taken");
    arrives(&line, b"def");
    assert_eq!(takes_until_drained(), [Source::Open, Source::Quiet]);

    rustix::net::send(client, b"ghi!", SendFlags::OOB).expect("send");
    support::await_ready(&line.source, PollFlags::PRI);
    let learnt = takes_until_drained();
    assert_eq!(learnt.last(), Some(&Source::WouldBlock), "at a mark: {learnt:?}");
    let mut got = vec![0; before + 6];
    (&line.server).read_exact(&mut got).expect("read");
    assert_eq!(&got[got.len() - 6..], b"defghi");
}

/// Of bytes below the mark no poller is told, and neither is who looks.
#[test]
fn a_source_whose_low_water_mark_hides_bytes_is_never_taken_for_quiet() {
    let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
    let Socket::Tcp(source) = &line.source else {
        unreachable!("as it was asked for")
    };
    spliceway_faults::set_low_water_mark(source, 64 << 10).expect("SO_RCVLOWAT");
    let mut mover = mover(Engine::Splice, &pool());
    for _ in 0..BURSTS {
        arrives(&line, &[7; 3_000]);
        let learnt = [(); 3].map(|()| take_and_deliver(&mut mover, &line, &counts));
        assert_eq!(learnt, [Source::Open, Source::Open, Source::WouldBlock]);
    }
    (&line.server).read_exact(&mut [0; BURSTS * 3_000]).expect("read");
}
