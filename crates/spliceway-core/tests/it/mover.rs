use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::thread;

use rustix::event::PollFlags;
use rustix::net::SendFlags;
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Engine, Limits, Mover, Need, PipePool, PipeSize, Reason, Sink, SizeClass, Source};

use crate::support::{self, Family, Socket, assert_same, pattern};

const MIB: usize = 1 << 20;

pub(crate) fn pool() -> PipePool {
    let limits = Limits::of_this_process().with_idle_timeout(10 * support::GUARD);
    PipePool::new(limits.with_max_pipes(100).with_max_pages(10_000))
}

pub(crate) fn mover(engine: Engine, pool: &PipePool) -> Mover {
    Mover::new(engine, PipeSize::Auto, pool.clone())
}

/// A relay's two sockets, non-blocking, and the peers they talk to.
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

    /// Sends `bytes` and then the end, receives, and moves in between: what arrived.
    fn carry(&self, mover: &mut Mover, counts: &Counts, bytes: &[u8]) -> Vec<u8> {
        self.carry_from(mover, counts, |mut client| client.write_all(bytes).expect("write"))
    }

    /// The same for what `send` sends.
    fn carry_from(&self, mover: &mut Mover, counts: &Counts, send: impl FnOnce(&Socket) + Send) -> Vec<u8> {
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
            run(mover, &self.source, &self.sink, counts).expect("moved");
            self.sink.finish();
            received.join().expect("received")
        })
    }
}

/// Moves until the source's end, waiting as a runtime would.
fn run(mover: &mut Mover, source: &Socket, sink: &Socket, counts: &Counts) -> io::Result<()> {
    let mut scratch = vec![0; SCRATCH];
    while let Some(need) = step(mover, source, sink, &mut scratch, counts)? {
        mover.park(&scratch);
        match need {
            Need::Source => support::await_ready(source, PollFlags::IN | PollFlags::RDHUP),
            _ => support::await_ready(sink, PollFlags::OUT),
        };
    }
    Ok(())
}

/// Moves until something must be waited for, which it names; `None` at the end.
fn step(
    mover: &mut Mover,
    source: impl AsFd,
    sink: impl AsFd,
    scratch: &mut [u8],
    counts: &Counts,
) -> io::Result<Option<Need>> {
    step_by(usize::MAX, mover, source, sink, scratch, counts)
}

/// The same, taking no more than `most` bytes at once.
fn step_by(
    most: usize,
    mover: &mut Mover,
    source: impl AsFd,
    sink: impl AsFd,
    scratch: &mut [u8],
    counts: &Counts,
) -> io::Result<Option<Need>> {
    loop {
        match mover.need() {
            Need::Source => {
                let learnt = mover.take_at_most(most, &source, scratch, counts)?;
                if matches!(learnt, Source::WouldBlock | Source::Quiet) {
                    return Ok(Some(Need::Source));
                }
            }
            Need::Sink => {
                if mover.deliver(&sink, scratch, counts)? == Sink::WouldBlock {
                    return Ok(Some(Need::Sink));
                }
            }
            Need::Both => unreachable!("there is a pipe between two sockets"),
            Need::Yield => mover.yielded(),
            Need::Shutdown => return Ok(None),
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
            let got = Line::new(from, to).carry(&mut mover(engine, &pool), &counts, &sent);
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
        let got = Line::new(from, to).carry(&mut mover(Engine::Auto, &pool), &counts, b"a message");
        assert_same(&got, b"a message");
        assert_eq!((counts.snapshot().copied, pool.stats().created), (9, 0));
    }
}

/// What a rate allows may be little; that the source has more is seen by its being taken whole.
#[test]
fn bulk_taken_in_small_allowances_stays_spliced() {
    for family in [Family::Tcp, Family::Unix] {
        let (line, pool, counts, sent) = (Line::new(family, family), pool(), Counts::default(), pattern(3, 40_000));
        let (mut mover, mut scratch) = (mover(Engine::Auto, &pool), vec![0; SCRATCH]);
        (&line.client).write_all(&sent).expect("write");
        line.client.finish();
        support::await_ready(&line.source, PollFlags::RDHUP);
        let ended = step_by(2000, &mut mover, &line.source, &line.sink, &mut scratch, &counts).expect("moved");
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
fn small_messages_below_the_allowance_are_small_messages() {
    for family in [Family::Tcp, Family::Unix] {
        let (line, pool, counts) = (Line::new(family, family), pool(), Counts::default());
        let (mut mover, mut scratch) = (mover(Engine::Auto, &pool), vec![0; SCRATCH]);
        for length in std::iter::once(4000).chain([2000; 12]) {
            (&line.client).write_all(&pattern(4, length)).expect("write");
            support::await_ready(&line.source, PollFlags::IN);
            let needed = step_by(4000, &mut mover, &line.source, &line.sink, &mut scratch, &counts).expect("moved");
            assert_eq!(needed, Some(Need::Source));
            mover.park(&scratch);
        }
        let summary = counts.snapshot();
        // The first one marks bulk; eight tiny fills say that it is none.
        assert_eq!(
            (summary.copied, summary.spliced),
            (4000 + 4 * 2000, 8 * 2000),
            "{family:?}"
        );
    }
}

#[test]
fn a_tcp_source_that_gave_its_last_byte_is_taken_for_drained_without_another_call() {
    let line = Line::new(Family::Tcp, Family::Tcp);
    (&line.client).write_all(b"ping").expect("write");
    support::await_queued(&line.source, 4);
    let (mut mover, mut scratch, counts) = (mover(Engine::Auto, &pool()), vec![0; SCRATCH], Counts::default());
    let learnt = mover.take(&line.source, &mut scratch, &counts).expect("recv");
    assert_eq!(learnt, Source::Short);
}

/// The receive that is no shorter than asked for, and one of what is no plain TCP, say nothing of what is left.
#[test]
fn a_source_that_may_have_more_is_not_taken_for_drained() {
    for (family, bytes) in [(Family::Tcp, SCRATCH), (Family::Unix, 4)] {
        let line = Line::new(family, Family::Tcp);
        (&line.client).write_all(&vec![7; bytes]).expect("write");
        support::await_queued(&line.source, bytes);
        let (mut mover, mut scratch, counts) = (mover(Engine::Auto, &pool()), vec![0; SCRATCH], Counts::default());
        let learnt = mover.take(&line.source, &mut scratch, &counts).expect("recv");
        assert_eq!(learnt, Source::Open, "{family:?}");
    }
}

#[test]
fn bytes_read_before_go_first() {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        let (pool, counts, sent) = (pool(), Counts::default(), pattern(2, 2 * MIB));
        let mut mover = mover(engine, &pool);
        let (before, rest) = sent.split_at(100_000);
        for piece in before.chunks(60_000) {
            mover.preload(piece.to_vec());
        }
        assert_same(
            &Line::new(Family::Tcp, Family::Tcp).carry(&mut mover, &counts, rest),
            &sent,
        );
        assert_eq!(counts.snapshot().bytes, sent.len() as u64, "{engine:?}");
    }
}

#[test]
fn a_mover_that_waits_for_its_source_holds_no_pipe() {
    for engine in [Engine::Auto, Engine::Splice] {
        let line = Line::new(Family::Tcp, Family::Tcp);
        let (pool, counts, sent) = (pool(), Counts::default(), pattern(3, 512 << 10));
        let (mut mover, mut scratch) = (mover(engine, &pool), vec![0; SCRATCH]);
        thread::scope(|scope| {
            scope.spawn(|| (&line.client).write_all(&sent).expect("write"));
            scope.spawn(|| (&line.server).read_exact(&mut vec![0; sent.len()]).expect("read"));
            while counts.snapshot().bytes < sent.len() as u64 {
                let need = step(&mut mover, &line.source, &line.sink, &mut scratch, &counts).expect("moved");
                mover.park(&scratch);
                match need.expect("no end was sent") {
                    Need::Source => {
                        assert_eq!(pool.stats().lent, 0, "{engine:?}");
                        if counts.snapshot().bytes < sent.len() as u64 {
                            support::await_ready(&line.source, PollFlags::IN);
                        }
                    }
                    _ => _ = support::await_ready(&line.sink, PollFlags::OUT),
                }
            }
        });
        assert!(counts.snapshot().spliced > 0 && pool.stats().created > 0);
    }
}

/// A mover stuck at a sink that nobody reads, with bytes in its pipe.
fn stuck(line: &Line, pool: &PipePool) -> (Mover, Counts) {
    let (mut mover, counts) = (mover(Engine::Splice, pool), Counts::default());
    let mut scratch = vec![0; SCRATCH];
    line.client.set_nonblocking();
    support::await_that("bytes are stuck in the pipe", || {
        support::write_until_full(&line.client, &pattern(4, 64 << 10));
        let need = step(&mut mover, &line.source, &line.sink, &mut scratch, &counts).expect("moved");
        mover.park(&scratch);
        need == Some(Need::Sink) && pool.stats().lent == 1
    });
    (mover, counts)
}

#[test]
fn a_mover_dropped_with_bytes_in_its_pipe_closes_it() {
    for (from, to) in [(Family::Tcp, Family::Unix), (Family::Unix, Family::Tcp)] {
        let pool = pool();
        let line = Line::new(from, to);
        let (mover, _counts) = stuck(&line, &pool);
        drop(mover);
        let stats = pool.stats();
        assert_eq!((stats.lent, stats.closed_dirty), (0, 1));
        assert!(pool.acquire(SizeClass::Kib64).expect("a pipe").is_clean());
    }
}

#[test]
fn a_sink_that_dies_with_bytes_in_the_pipe_is_an_error_and_the_pipe_is_closed() {
    let pool = pool();
    let line = Line::new(Family::Unix, Family::Tcp);
    let (mut mover, counts) = stuck(&line, &pool);
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
    let error = run(&mut mover, &source, &sink, &counts).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(counts.snapshot().bytes, delivered, "what went nowhere does not count");
    drop(mover);
    assert_eq!((pool.stats().lent, pool.stats().closed_dirty), (0, 1));
}

#[test]
fn data_before_a_reset_is_delivered_and_then_the_reset_is_an_error_not_an_end() {
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
        let error = run(&mut mover(engine, &pool()), &source, &sink, &counts).expect_err("a reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{engine:?}");
        assert_eq!(counts.snapshot().bytes, 5, "{engine:?}");
        let mut got = [0; 5];
        (&server).read_exact(&mut got).expect("read");
        assert_same(&got, b"bytes");
    }
}

/// One at a time: a second one that arrives before the first was passed makes an ordinary byte of the first, for every reader.
#[test]
fn an_urgent_byte_stalls_nothing_and_cuts_nothing_off() {
    let sent = pattern(5, 2 * MIB);
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        // First, in the midst of bulk, before the last byte, and last.
        for place in [0, MIB, sent.len() - 1, sent.len()] {
            let (line, counts) = (Line::new(Family::Tcp, Family::Tcp), Counts::default());
            let (before, behind) = sent.split_at(place);
            let got = line.carry_from(&mut mover(engine, &pool()), &counts, |mut client| {
                client.write_all(before).expect("write");
                rustix::net::send(client, b"!", SendFlags::OOB).expect("send");
                client.write_all(behind).expect("write");
            });
            assert_same(&got, &sent);
        }
    }
}

#[test]
fn without_pipes_everything_is_copied_and_the_reason_is_told() {
    let none = PipePool::new(Limits::of_this_process().with_max_pipes(0));
    let (counts, sent) = (Counts::default(), pattern(6, 4 * MIB));
    let got = Line::new(Family::Tcp, Family::Tcp).carry(&mut mover(Engine::Auto, &none), &counts, &sent);
    assert_same(&got, &sent);
    let summary = counts.snapshot();
    assert_eq!((summary.spliced, summary.copied), (0, sent.len() as u64));
    assert_eq!(summary.fallback, Some(Reason::PipeBudget));
}

#[test]
fn a_mover_that_must_splice_and_cannot_fails() {
    let line = Line::new(Family::Tcp, Family::Tcp);
    let none = PipePool::new(Limits::of_this_process().with_max_pipes(0));
    let counts = Counts::default();
    let error = run(&mut mover(Engine::Splice, &none), &line.source, &line.sink, &counts).expect_err("no pipe");
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert_eq!(counts.snapshot().fallback, Some(Reason::PipeBudget));
}

/// Splicing into a file opened for appending is EINVAL, with the bytes already in the pipe.
#[test]
fn a_sink_that_turns_out_not_to_be_spliceable_gets_the_pipes_bytes_by_user_space() {
    let file = support::TempFile::new("sink");
    let appending = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&file.path)
        .expect("file");
    let line = Line::new(Family::Tcp, Family::Tcp);
    let sent = pattern(7, 3 * SCRATCH);
    let (mut mover, counts, mut scratch) = (mover(Engine::Auto, &pool()), Counts::default(), vec![0; SCRATCH]);
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
        while mover.need() != Need::Shutdown {
            match mover.need() {
                Need::Source => {
                    let learnt = mover.take(&line.source, &mut scratch, &counts).expect("taken");
                    if matches!(learnt, Source::WouldBlock | Source::Quiet) {
                        support::await_ready(&line.source, PollFlags::IN | PollFlags::RDHUP);
                    }
                }
                // The first time that a pipe is to be drained, the sink is the file.
                Need::Sink if !unspliceable && format!("{mover:?}").contains("state: Draining") => {
                    unspliceable = true;
                    assert_eq!(
                        mover.deliver(&appending, &scratch, &counts).expect("no error"),
                        Sink::Open
                    );
                }
                Need::Sink => {
                    if mover.deliver(&line.sink, &scratch, &counts).expect("delivered") == Sink::WouldBlock {
                        support::await_ready(&line.sink, PollFlags::OUT);
                    }
                }
                _ => mover.yielded(),
            }
        }
        line.sink.finish();
        assert_same(&received.join().expect("received"), &sent);
    });
    assert!(unspliceable, "no pipe was filled");
    assert_eq!(counts.snapshot().fallback, Some(Reason::InvalidArgument));
    assert_eq!(counts.snapshot().spliced, 0);
}
