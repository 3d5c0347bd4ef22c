use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::thread;

use rustix::event::PollFlags;
use rustix::net::SendFlags;
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{
    Counts, Engine, Limits, Next, PipePool, PipeSize, ReadOutcome, Reason, SizeClass, Splicer, WriteOutcome,
};

use crate::support::{self, Family, Socket, assert_same, pattern};

const MIB: usize = 1 << 20;

pub(crate) fn pool() -> PipePool {
    let limits = Limits::of_this_process().with_idle_timeout(10 * support::GUARD);
    PipePool::new(limits.with_max_pipes(100).with_max_pages(10_000))
}

pub(crate) fn splicer(engine: Engine, pool: &PipePool) -> Splicer {
    Splicer::new(engine, PipeSize::Auto, pool.clone())
}

/// Performs the read that is due.
pub(crate) fn read(
    splicer: &mut Splicer,
    source: impl AsFd,
    scratch: &mut [u8],
    counts: &Counts,
) -> io::Result<ReadOutcome> {
    match splicer.next() {
        Next::Read(read) => read.perform(usize::MAX, source, scratch, counts),
        next => panic!("a read was due, and not {next:?}"),
    }
}

/// Performs the write that is due, if one is.
pub(crate) fn write(
    splicer: &mut Splicer,
    sink: impl AsFd,
    scratch: &[u8],
    counts: &Counts,
) -> Option<io::Result<WriteOutcome>> {
    match splicer.next() {
        Next::Write(write) => Some(write.perform(sink, scratch, counts)),
        _ => None,
    }
}

/// The end that a splicer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    ForSource,
    ForSink,
}

/// A relay's two non-blocking sockets, and their peers.
pub(crate) struct Line {
    pub(crate) client: Socket,
    pub(crate) source: Socket,
    pub(crate) sink: Socket,
    pub(crate) server: Socket,
}

impl Line {
    pub(crate) fn new(from: Family, to: Family) -> Self {
        let ((client, source), (sink, server)) = (from.pair(), to.pair());
        source.set_nonblocking();
        sink.set_nonblocking();
        Self {
            client,
            source,
            sink,
            server,
        }
    }

    /// Sends `bytes` and then EOF, and moves them to the sink. Returns the bytes that the server
    /// received.
    fn carry(&self, splicer: &mut Splicer, counts: &Counts, bytes: &[u8]) -> Vec<u8> {
        self.carry_from(splicer, counts, |mut client| client.write_all(bytes).expect("write"))
    }

    /// Does the same as [`carry`](Self::carry) for the bytes that `send` sends.
    fn carry_from(&self, splicer: &mut Splicer, counts: &Counts, send: impl FnOnce(&Socket) + Send) -> Vec<u8> {
        thread::scope(|scope| {
            scope.spawn(|| {
                send(&self.client);
                self.client.finish();
            });
            let received = scope.spawn(|| {
                let mut got = Vec::new();
                (&self.server).read_to_end(&mut got).expect("read");
                got
            });
            run(splicer, &self.source, &self.sink, counts).expect("moved");
            self.sink.finish();
            received.join().expect("received")
        })
    }
}

/// Moves bytes until the source's EOF, and waits as a runtime would.
fn run(splicer: &mut Splicer, source: &Socket, sink: &Socket, counts: &Counts) -> io::Result<()> {
    let mut scratch = vec![0; SCRATCH];
    while let Some(waits) = step(splicer, source, sink, &mut scratch, counts)? {
        splicer.park(&scratch);
        match waits {
            Waits::ForSource => support::await_ready(source, PollFlags::IN | PollFlags::RDHUP),
            Waits::ForSink => support::await_ready(sink, PollFlags::OUT),
        };
    }
    Ok(())
}

/// Moves bytes until the splicer must wait for one end. Returns `None` at EOF.
fn step(
    splicer: &mut Splicer,
    source: impl AsFd,
    sink: impl AsFd,
    scratch: &mut [u8],
    counts: &Counts,
) -> io::Result<Option<Waits>> {
    step_by(usize::MAX, splicer, source, sink, scratch, counts)
}

/// Does the same as [`step`], with at most `max` bytes per read.
fn step_by(
    max: usize,
    splicer: &mut Splicer,
    source: impl AsFd,
    sink: impl AsFd,
    scratch: &mut [u8],
    counts: &Counts,
) -> io::Result<Option<Waits>> {
    loop {
        match splicer.next() {
            Next::Read(read) => {
                let outcome = read.perform(max, &source, scratch, counts)?;
                if matches!(outcome, ReadOutcome::WouldBlock | ReadOutcome::Drained) {
                    return Ok(Some(Waits::ForSource));
                }
            }
            Next::Write(write) => {
                if write.perform(&sink, scratch, counts)? == WriteOutcome::WouldBlock {
                    return Ok(Some(Waits::ForSink));
                }
            }
            Next::SpliceThrough(_) => unreachable!("there is a pipe between two sockets"),
            Next::Yield => {}
            Next::Shutdown => return Ok(None),
        }
    }
}

#[test]
fn bulk_arrives_byte_for_byte_and_mostly_spliced_between_all_families() {
    for (from, to) in [
        (Family::Tcp, Family::Tcp),
        (Family::Tcp, Family::Unix),
        (Family::Unix, Family::Tcp),
        (Family::Unix, Family::Unix),
    ] {
        for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
            let (pool, counts, sent) = (pool(), Counts::default(), pattern(1, 4 * MIB));
            let got = Line::new(from, to).carry(&mut splicer(engine, &pool), &counts, &sent);
            assert_same(&got, &sent);
            let summary = counts.snapshot();
            assert_eq!(summary.bytes, sent.len() as u64);
            match engine {
                Engine::Copy => assert_eq!((summary.spliced, pool.stats().created), (0, 0)),
                _ => assert!(
                    summary.spliced > summary.copied,
                    "{from:?} to {to:?}, {engine:?}: {summary:?}"
                ),
            }
            assert_eq!(summary.fallback, None);
            assert_eq!(pool.stats().closed_dirty, 0);
        }
    }
}

#[test]
fn a_small_message_is_copied_without_a_pipe() {
    for (from, to) in [(Family::Tcp, Family::Unix), (Family::Unix, Family::Tcp)] {
        let (pool, counts) = (pool(), Counts::default());
        let got = Line::new(from, to).carry(&mut splicer(Engine::Auto, &pool), &counts, b"a message");
        assert_same(&got, b"a message");
        assert_eq!((counts.snapshot().copied, pool.stats().created), (9, 0));
    }
}

/// A rate limit may allow only a few bytes per read. If a read returns all of them, the source may
/// have more.
#[test]
fn bulk_that_is_read_in_small_portions_stays_spliced() {
    for family in [Family::Tcp, Family::Unix] {
        let (line, pool, counts, sent) = (Line::new(family, family), pool(), Counts::default(), pattern(3, 40_000));
        let (mut splicer, mut scratch) = (splicer(Engine::Auto, &pool), vec![0; SCRATCH]);
        (&line.client).write_all(&sent).expect("write");
        line.client.finish();
        support::await_ready(&line.source, PollFlags::RDHUP);
        let ended = step_by(2000, &mut splicer, &line.source, &line.sink, &mut scratch, &counts).expect("moved");
        assert_eq!(ended, None);
        line.sink.finish();
        let mut got = Vec::new();
        (&line.server).read_to_end(&mut got).expect("read");
        assert_same(&got, &sent);
        let summary = counts.snapshot();
        assert_eq!((summary.copied, summary.spliced), (2000, 38_000), "{family:?}");
    }
}

#[test]
fn messages_smaller_than_the_allowed_bytes_count_as_small() {
    for family in [Family::Tcp, Family::Unix] {
        let (line, pool, counts) = (Line::new(family, family), pool(), Counts::default());
        let (mut splicer, mut scratch) = (splicer(Engine::Auto, &pool), vec![0; SCRATCH]);
        for length in std::iter::once(4000).chain([2000; 12]) {
            (&line.client).write_all(&pattern(4, length)).expect("write");
            support::await_ready(&line.source, PollFlags::IN);
            let needed = step_by(4000, &mut splicer, &line.source, &line.sink, &mut scratch, &counts).expect("moved");
            assert_eq!(needed, Some(Waits::ForSource));
            splicer.park(&scratch);
        }
        let summary = counts.snapshot();
        // The first message marks the flow as bulk. Eight small fills then show that it is not
        // bulk.
        assert_eq!(
            (summary.copied, summary.spliced),
            (4000 + 4 * 2000, 8 * 2000),
            "{family:?}"
        );
    }
}

#[test]
fn a_short_tcp_read_drains_without_another_call() {
    let line = Line::new(Family::Tcp, Family::Tcp);
    (&line.client).write_all(b"ping").expect("write");
    support::await_queued(&line.source, 4);
    let (mut splicer, mut scratch, counts) = (splicer(Engine::Auto, &pool()), vec![0; SCRATCH], Counts::default());
    let outcome = read(&mut splicer, &line.source, &mut scratch, &counts).expect("recv");
    assert_eq!(outcome, ReadOutcome::Short);
}

/// A receive that is not short does not show whether bytes are left. Neither does a receive from a
/// socket that is not plain TCP.
#[test]
fn a_source_that_may_have_more_bytes_is_not_reported_as_drained() {
    for (family, bytes) in [(Family::Tcp, SCRATCH), (Family::Unix, 4)] {
        let line = Line::new(family, Family::Tcp);
        (&line.client).write_all(&vec![7; bytes]).expect("write");
        support::await_queued(&line.source, bytes);
        let (mut splicer, mut scratch, counts) = (splicer(Engine::Auto, &pool()), vec![0; SCRATCH], Counts::default());
        let outcome = read(&mut splicer, &line.source, &mut scratch, &counts).expect("recv");
        assert_eq!(outcome, ReadOutcome::Open, "{family:?}");
    }
}

#[test]
fn preloaded_bytes_are_sent_first() {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        let (pool, counts, sent) = (pool(), Counts::default(), pattern(2, 2 * MIB));
        let mut splicer = splicer(engine, &pool);
        let (before, rest) = sent.split_at(100_000);
        for piece in before.chunks(60_000) {
            splicer.preload(piece.to_vec());
        }
        assert_same(
            &Line::new(Family::Tcp, Family::Tcp).carry(&mut splicer, &counts, rest),
            &sent,
        );
        assert_eq!(counts.snapshot().bytes, sent.len() as u64, "{engine:?}");
    }
}

#[test]
fn a_splicer_that_waits_for_its_source_holds_no_pipe() {
    for engine in [Engine::Auto, Engine::Splice] {
        let line = Line::new(Family::Tcp, Family::Tcp);
        let (pool, counts, sent) = (pool(), Counts::default(), pattern(3, 512 << 10));
        let (mut splicer, mut scratch) = (splicer(engine, &pool), vec![0; SCRATCH]);
        thread::scope(|scope| {
            scope.spawn(|| (&line.client).write_all(&sent).expect("write"));
            scope.spawn(|| (&line.server).read_exact(&mut vec![0; sent.len()]).expect("read"));
            while counts.snapshot().bytes < sent.len() as u64 {
                let waits = step(&mut splicer, &line.source, &line.sink, &mut scratch, &counts).expect("moved");
                splicer.park(&scratch);
                match waits.expect("no end was sent") {
                    Waits::ForSource => {
                        assert_eq!(pool.stats().lent, 0, "{engine:?}");
                        if counts.snapshot().bytes < sent.len() as u64 {
                            support::await_ready(&line.source, PollFlags::IN);
                        }
                    }
                    Waits::ForSink => _ = support::await_ready(&line.sink, PollFlags::OUT),
                }
            }
        });
        assert!(counts.snapshot().spliced > 0 && pool.stats().created > 0);
    }
}

/// Returns a splicer that has bytes in its pipe and waits for a sink that is not read.
fn stuck(line: &Line, pool: &PipePool) -> (Splicer, Counts) {
    let (mut splicer, counts) = (splicer(Engine::Splice, pool), Counts::default());
    let mut scratch = vec![0; SCRATCH];
    line.client.set_nonblocking();
    support::await_that("bytes are stuck in the pipe", || {
        support::write_until_full(&line.client, &pattern(4, 64 << 10));
        let waits = step(&mut splicer, &line.source, &line.sink, &mut scratch, &counts).expect("moved");
        splicer.park(&scratch);
        waits == Some(Waits::ForSink) && pool.stats().lent == 1
    });
    (splicer, counts)
}

#[test]
fn a_splicer_dropped_with_bytes_in_its_pipe_closes_it() {
    for (from, to) in [(Family::Tcp, Family::Unix), (Family::Unix, Family::Tcp)] {
        let pool = pool();
        let line = Line::new(from, to);
        let (splicer, _counts) = stuck(&line, &pool);
        drop(splicer);
        let stats = pool.stats();
        assert_eq!((stats.lent, stats.closed_dirty), (0, 1));
        assert!(pool.acquire(SizeClass::Kib64).expect("a pipe").is_clean());
    }
}

#[test]
fn a_failed_sink_is_an_error_and_closes_the_filled_pipe() {
    let pool = pool();
    let line = Line::new(Family::Unix, Family::Tcp);
    let (mut splicer, counts) = stuck(&line, &pool);
    let Line {
        source,
        sink,
        server,
        client: _client,
    } = line;
    let Socket::Tcp(server) = server else {
        unreachable!("made as TCP")
    };
    support::reset(server);
    support::await_ready(&sink, PollFlags::empty());
    let delivered = counts.snapshot().bytes;
    let error = run(&mut splicer, &source, &sink, &counts).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(counts.snapshot().bytes, delivered, "what went nowhere does not count");
    drop(splicer);
    assert_eq!((pool.stats().lent, pool.stats().closed_dirty), (0, 1));
}

#[test]
fn data_before_a_reset_is_delivered_and_the_reset_is_an_error() {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        let Line {
            client,
            source,
            sink,
            server,
        } = Line::new(Family::Tcp, Family::Unix);
        let Socket::Tcp(client) = client else {
            unreachable!("made as TCP")
        };
        (&client).write_all(b"bytes").expect("write");
        support::await_queued(&source, 5);
        support::reset(client);
        support::await_ready(&source, PollFlags::empty());
        let counts = Counts::default();
        let error = run(&mut splicer(engine, &pool()), &source, &sink, &counts).expect_err("a reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{engine:?}");
        assert_eq!(counts.snapshot().bytes, 5, "{engine:?}");
        let mut got = [0; 5];
        (&server).read_exact(&mut got).expect("read");
        assert_same(&got, b"bytes");
    }
}

/// The test sends one urgent byte at a time. If a second one arrives before the relay has passed
/// the first, the first becomes an ordinary byte for every reader.
#[test]
fn an_urgent_byte_stalls_nothing_and_cuts_nothing_off() {
    let sent = pattern(5, 2 * MIB);
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        // The urgent byte is first, in the middle of bulk data, before the last byte, or last.
        for place in [0, MIB, sent.len() - 1, sent.len()] {
            let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
            let (before, behind) = sent.split_at(place);
            let got = line.carry_from(&mut splicer(engine, &pool()), &counts, |mut client| {
                client.write_all(before).expect("write");
                rustix::net::send(client, b"!", SendFlags::OOB).expect("send");
                client.write_all(behind).expect("write");
            });
            assert_same(&got, &sent);
        }
    }
}

#[test]
fn without_pipes_everything_is_copied_and_the_reason_is_reported() {
    let none = PipePool::new(Limits::of_this_process().with_max_pipes(0));
    let (counts, sent) = (Counts::default(), pattern(6, 4 * MIB));
    let got = Line::new(Family::Tcp, Family::Tcp).carry(&mut splicer(Engine::Auto, &none), &counts, &sent);
    assert_same(&got, &sent);
    let summary = counts.snapshot();
    assert_eq!((summary.spliced, summary.copied), (0, sent.len() as u64));
    assert_eq!(summary.fallback, Some(Reason::PipeBudget));
}

#[test]
fn a_splicer_that_must_splice_and_cannot_fails() {
    let line = Line::new(Family::Tcp, Family::Tcp);
    let none = PipePool::new(Limits::of_this_process().with_max_pipes(0));
    let counts = Counts::default();
    let error = run(&mut splicer(Engine::Splice, &none), &line.source, &line.sink, &counts).expect_err("no pipe");
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert_eq!(counts.snapshot().fallback, Some(Reason::PipeBudget));
}

/// A splice into a file opened for appending fails with EINVAL after the pipe was filled.
#[test]
fn the_bytes_in_a_pipe_are_copied_to_an_unspliceable_sink() {
    let file = support::TempFile::new("sink");
    let appending = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&file.path)
        .expect("file");
    let line = Line::new(Family::Tcp, Family::Tcp);
    let sent = pattern(7, 3 * SCRATCH);
    let (mut splicer, counts, mut scratch) = (splicer(Engine::Auto, &pool()), Counts::default(), vec![0; SCRATCH]);
    let mut unspliceable = false;
    thread::scope(|scope| {
        scope.spawn(|| {
            (&line.client).write_all(&sent).expect("write");
            line.client.finish();
        });
        let received = scope.spawn(|| {
            let mut got = Vec::new();
            (&line.server).read_to_end(&mut got).expect("read");
            got
        });
        support::await_that("more than one recv takes", || support::queued(&line.source) > SCRATCH);
        loop {
            // When a pipe is drained for the first time, the sink is the file.
            let drains = format!("{splicer:?}").contains("state: Draining");
            match splicer.next() {
                Next::Read(read) => {
                    let outcome = read
                        .perform(usize::MAX, &line.source, &mut scratch, &counts)
                        .expect("read");
                    if matches!(outcome, ReadOutcome::WouldBlock | ReadOutcome::Drained) {
                        support::await_ready(&line.source, PollFlags::IN | PollFlags::RDHUP);
                    }
                }
                Next::Write(write) if !unspliceable && drains => {
                    unspliceable = true;
                    let outcome = write.perform(&appending, &scratch, &counts).expect("no error");
                    assert_eq!(outcome, WriteOutcome::Open);
                }
                Next::Write(write) => {
                    if write.perform(&line.sink, &scratch, &counts).expect("written") == WriteOutcome::WouldBlock {
                        support::await_ready(&line.sink, PollFlags::OUT);
                    }
                }
                Next::Shutdown => break,
                Next::SpliceThrough(_) | Next::Yield => {}
            }
        }
        line.sink.finish();
        assert_same(&received.join().expect("received"), &sent);
    });
    assert!(unspliceable, "no pipe was filled");
    assert_eq!(counts.snapshot().fallback, Some(Reason::InvalidArgument));
    assert_eq!(counts.snapshot().spliced, 0);
}
