//! Directions with the caller's pipe at one end. One splice moves bytes into or out of the pipe,
//! and the splicer distinguishes the EAGAIN of the source from that of the sink.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsFd;

use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::net::SendFlags;
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{
    Counts, EndKind, Engine, Limits, Next, PipePool, PipeSize, ReadOutcome, Side, Splicer, WriteOutcome,
};

use crate::splicer::{read, write};
use crate::support::{self, Family, Socket, assert_same, pattern};

/// More bytes than a pipe can hold, even if each slot holds 32 KiB.
const BULK: usize = 2 << 20;

/// A splicer with a pipe at one or both ends, and the pool, buffer and counts that it uses.
struct Subject {
    splicer: Splicer,
    pool: PipePool,
    counts: Counts,
    scratch: Vec<u8>,
}

impl Subject {
    fn new(source: EndKind, sink: EndKind, engine: Engine) -> Self {
        let limits = Limits::of_this_process().with_idle_timeout(10 * support::GUARD);
        let pool = PipePool::new(limits.with_max_pipes(100).with_max_pages(10_000));
        Self {
            splicer: Splicer::between(source, sink, engine, PipeSize::Auto, pool.clone()),
            pool,
            counts: Counts::default(),
            scratch: vec![0; SCRATCH],
        }
    }

    /// Moves bytes until the splicer must wait for one end. Returns that end, or `None` at the
    /// source's EOF.
    fn run(&mut self, source: impl AsFd, sink: impl AsFd) -> Option<Side> {
        loop {
            let outcome = match self.splicer.next() {
                Next::Read(read) => {
                    let outcome = read.perform(usize::MAX, &source, &mut self.scratch, &self.counts);
                    if outcome.expect("read") == ReadOutcome::WouldBlock {
                        return Some(Side::Source);
                    }
                    continue;
                }
                Next::SpliceThrough(splice) => {
                    let outcome = splice
                        .perform(usize::MAX, &source, &sink, &self.counts)
                        .expect("spliced");
                    if outcome == WriteOutcome::WouldBlock && self.peeks() {
                        continue;
                    }
                    outcome
                }
                Next::Write(write) => write.perform(&sink, &self.scratch, &self.counts).expect("written"),
                Next::Yield => continue,
                Next::Shutdown => return None,
            };
            if outcome == WriteOutcome::WouldBlock {
                self.splicer.park(&self.scratch);
                return Some(Side::Sink);
            }
        }
    }

    /// Reports that the sink is full. Returns whether the splicer peeks at the source first.
    fn peeks(&mut self) -> bool {
        match self.splicer.next() {
            Next::SpliceThrough(splice) => splice.sink_blocked(),
            next => panic!("a splice was due, and not {next:?}"),
        }
    }

    /// Performs the splice that is due.
    fn splice(&mut self, source: impl AsFd, sink: impl AsFd) -> Result<WriteOutcome, (Side, io::Error)> {
        match self.splicer.next() {
            Next::SpliceThrough(splice) => splice.perform(usize::MAX, source, sink, &self.counts),
            next => panic!("a splice was due, and not {next:?}"),
        }
    }

    /// Moves bytes until the source's EOF, which its peer has sent. EOF may arrive a moment after
    /// the peer is dropped. A process that another test starts holds a copy of every descriptor
    /// until it executes another program.
    fn run_to_end(&mut self, source: impl AsFd, sink: impl AsFd) {
        while let Some(side) = self.run(&source, &sink) {
            assert_eq!(side, Side::Source, "nothing waits for the sink");
            support::await_ready(&source, PollFlags::IN | PollFlags::RDHUP);
        }
    }

    fn assert_all_spliced(&self, bytes: usize) {
        let summary = self.counts.snapshot();
        assert_eq!((summary.spliced, summary.copied), (bytes as u64, 0), "{summary:?}");
        assert_eq!(self.pool.stats().created, 0, "there is no pipe between");
    }
}

/// Writes as much of `bytes` as the pipe accepts in one call, which must be at least one byte.
fn write_some(sink: &PipeWriter, bytes: &[u8]) -> usize {
    let written = write_some_or_none(sink, bytes);
    assert!(written > 0, "the pipe has room");
    written
}

/// Reads all bytes that the source has, without waiting.
fn read_all(mut source: impl Read) -> Vec<u8> {
    let mut got = Vec::new();
    loop {
        let mut buf = [0; 10_000];
        match source.read(&mut buf) {
            Ok(0) => return got,
            Ok(read) => got.extend(&buf[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return got,
            Err(error) => panic!("{error}"),
        }
    }
}

fn nonblocking(reader: PipeReader) -> PipeReader {
    rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).expect("fcntl");
    reader
}

fn socket_pair(family: Family) -> (Socket, Socket) {
    let (near, far) = family.pair();
    near.set_nonblocking();
    far.set_nonblocking();
    (near, far)
}

#[test]
fn socket_to_pipe_distinguishes_a_full_sink_from_an_empty_source() {
    for family in [Family::Tcp, Family::Unix] {
        let ((client, source), (server, sink)) = (socket_pair(family), pipe().expect("pipe"));
        let (server, sent) = (nonblocking(server), pattern(1, BULK));
        let mut subject = Subject::new(EndKind::Socket, EndKind::Pipe, Engine::Splice);
        assert_eq!(subject.run(&source, &sink), Some(Side::Source), "it has nothing yet");

        let (mut offered, mut got, mut was_full) = (0, Vec::new(), false);
        while got.len() < BULK {
            offered += support::write_until_full(&client, &sent[offered..]);
            was_full |= subject.run(&source, &sink) == Some(Side::Sink);
            got.extend(read_all(&server));
        }
        assert!(was_full, "{family:?}");
        assert_same(&got, &sent);
        client.finish();
        subject.run_to_end(&source, &sink);
        subject.assert_all_spliced(BULK);
    }
}

#[test]
fn pipe_to_socket_distinguishes_a_full_sink_from_an_empty_source() {
    for family in [Family::Tcp, Family::Unix] {
        let ((source, client), (sink, server)) = (pipe().expect("pipe"), socket_pair(family));
        let bytes = 8 << 20;
        let sent = pattern(2, bytes);
        let mut subject = Subject::new(EndKind::Pipe, EndKind::Socket, Engine::Splice);
        assert_eq!(subject.run(&source, &sink), Some(Side::Source), "it has nothing yet");

        let mut offered = 0;
        while subject.run(&source, &sink) == Some(Side::Source) {
            assert!(offered < bytes, "it is never full");
            offered += write_some_or_none(&client, &sent[offered..]);
        }
        let mut got = Vec::new();
        while got.len() < bytes {
            got.extend(read_all(&server));
            if subject.run(&source, &sink) == Some(Side::Source) && offered < bytes {
                offered += write_some_or_none(&client, &sent[offered..]);
            }
        }
        assert_same(&got, &sent);
        drop(client);
        subject.run_to_end(&source, &sink);
        subject.assert_all_spliced(bytes);
    }
}

#[test]
fn pipe_to_pipe_distinguishes_a_full_sink_from_an_empty_source() {
    let ((source, client), (server, sink)) = (pipe().expect("pipe"), pipe().expect("pipe"));
    let (server, sent) = (nonblocking(server), pattern(3, BULK));
    let mut subject = Subject::new(EndKind::Pipe, EndKind::Pipe, Engine::Splice);
    let mut offered = 0;
    while subject.run(&source, &sink) == Some(Side::Source) {
        offered += write_some_or_none(&client, &sent[offered..]);
    }
    let mut got = read_all(&server);
    while got.len() < BULK {
        if subject.run(&source, &sink) == Some(Side::Source) {
            offered += write_some_or_none(&client, &sent[offered..]);
        }
        got.extend(read_all(&server));
    }
    assert_same(&got, &sent);
    drop(client);
    subject.run_to_end(&source, &sink);
    subject.assert_all_spliced(BULK);
}

#[test]
fn bytes_after_an_urgent_mark_go_into_a_pipe() {
    let ((client, source), (server, sink)) = (socket_pair(Family::Tcp), pipe().expect("pipe"));
    (&client).write_all(b"before").expect("write");
    rustix::net::send(&client, b"!", SendFlags::OOB).expect("send");
    (&client).write_all(b"behind").expect("write");
    client.finish();
    let mut subject = Subject::new(EndKind::Socket, EndKind::Pipe, Engine::Splice);
    subject.run_to_end(&source, &sink);
    assert_eq!(read_all(nonblocking(server)), b"beforebehind");
}

#[test]
fn a_pipe_without_a_reader_is_an_error_of_the_sink() {
    for engine in [Engine::Splice, Engine::Auto, Engine::Copy] {
        let ((client, source), (server, sink)) = (socket_pair(Family::Unix), pipe().expect("pipe"));
        (&client).write_all(b"for nobody").expect("write");
        drop(server);
        support::await_ready(&sink, PollFlags::ERR);
        let mut subject = Subject::new(EndKind::Socket, EndKind::Pipe, engine);
        if engine == Engine::Splice {
            let outcome = subject.splice(&source, &sink);
            assert_eq!(outcome.expect("not yet known to be for nobody"), WriteOutcome::Open);
        }
        let outcome = read(&mut subject.splicer, &source, &mut subject.scratch, &subject.counts);
        assert_eq!(outcome.expect("read"), ReadOutcome::Open);
        let written = write(&mut subject.splicer, &sink, &subject.scratch, &subject.counts);
        let error = written.expect("a write is due").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn eof_is_found_even_if_the_sink_is_a_pipe_without_a_reader() {
    let ((client, source), (server, sink)) = (socket_pair(Family::Unix), pipe().expect("pipe"));
    drop((client, server));
    support::await_ready(&sink, PollFlags::ERR);
    let mut subject = Subject::new(EndKind::Socket, EndKind::Pipe, Engine::Splice);
    subject.run_to_end(&source, &sink);
}

#[test]
fn a_reset_is_a_source_error_and_a_broken_connection_a_sink_error() {
    let ((client, source), (_server, sink)) = (support::tcp_pair(), pipe().expect("pipe"));
    support::reset(client);
    support::await_ready(&source, PollFlags::HUP);
    let mut subject = Subject::new(EndKind::Socket, EndKind::Pipe, Engine::Splice);
    let (side, error) = subject.splice(&source, &sink).unwrap_err();
    assert_eq!((side, error.kind()), (Side::Source, ErrorKind::ConnectionReset));

    let ((source, client), (sink, server)) = (pipe().expect("pipe"), socket_pair(Family::Unix));
    drop(server);
    support::await_ready(&sink, PollFlags::HUP);
    write_some(&client, b"for nobody");
    let mut subject = Subject::new(EndKind::Pipe, EndKind::Socket, Engine::Splice);
    let (side, error) = subject.splice(&source, &sink).unwrap_err();
    assert_eq!((side, error.kind()), (Side::Sink, ErrorKind::BrokenPipe));
}

/// `splice(2)` refuses to move bytes between the two ends of one pipe, but a copy works.
#[test]
fn bytes_that_splice_refuses_are_copied() {
    let (source, sink) = pipe().expect("pipe");
    write_some(&sink, &pattern(4, 60_000));
    let mut subject = Subject::new(EndKind::Pipe, EndKind::Pipe, Engine::Auto);
    while !matches!(subject.splicer.next(), Next::SpliceThrough(_)) {
        let written = write(&mut subject.splicer, &sink, &subject.scratch, &subject.counts);
        if let Some(outcome) = written {
            assert_eq!(outcome.expect("written"), WriteOutcome::Open);
        } else {
            let outcome = read(&mut subject.splicer, &source, &mut subject.scratch, &subject.counts);
            assert_eq!(outcome.expect("read"), ReadOutcome::Open);
        }
    }
    assert_eq!(subject.splice(&source, &sink).expect("refused"), WriteOutcome::Open);
    assert!(matches!(subject.splicer.next(), Next::Read(_)));
    let summary = subject.counts.snapshot();
    assert_eq!(summary.fallback, Some(spliceway_core::Reason::InvalidArgument));
}

/// If these messages of one byte were spliced, each would use a slot, and sixteen bytes would fill
/// a pipe. A write appends to a slot instead.
#[test]
fn the_second_message_of_64_kib_into_a_pipe_is_spliced() {
    let ((client, source), (server, sink)) = (socket_pair(Family::Unix), pipe().expect("pipe"));
    let (server, mut subject) = (
        nonblocking(server),
        Subject::new(EndKind::Socket, EndKind::Pipe, Engine::Auto),
    );
    for _ in 0..40 {
        (&client).write_all(b"x").expect("write");
        assert_eq!(subject.run(&source, &sink), Some(Side::Source));
    }
    assert_eq!(
        (read_all(&server), subject.counts.snapshot().spliced),
        (vec![b'x'; 40], 0)
    );
    let sent = pattern(5, 2 * SCRATCH);
    let mut offered = 0;
    let mut got = Vec::new();
    while got.len() < sent.len() {
        offered += support::write_until_full(&client, &sent[offered..]);
        subject.run(&source, &sink);
        got.extend(read_all(&server));
    }
    assert_same(&got, &sent);
    assert!(subject.counts.snapshot().spliced >= SCRATCH as u64 / 2);
    // The messages are small again. Eight of them are spliced, and later ones are copied.
    for _ in 0..8 {
        (&client).write_all(b"y").expect("write");
        assert_eq!(subject.run(&source, &sink), Some(Side::Source));
    }
    let spliced = subject.counts.snapshot().spliced;
    (&client).write_all(b"z").expect("write");
    assert_eq!(subject.run(&source, &sink), Some(Side::Source));
    assert_eq!(subject.counts.snapshot().spliced, spliced);
    assert_eq!(read_all(&server), b"yyyyyyyyz");
}

#[test]
fn the_end_of_the_source_is_found_while_the_sink_is_full() {
    for engine in [Engine::Auto, Engine::Splice] {
        let ((client, source), (_server, sink)) = (socket_pair(Family::Tcp), pipe().expect("pipe"));
        while write_some_or_none(&sink, &[0; 4096]) > 0 {}
        let mut subject = Subject::new(EndKind::Socket, EndKind::Pipe, engine);
        client.finish();
        subject.run_to_end(&source, &sink);

        let ((source, client), (_server, sink)) = (pipe().expect("pipe"), pipe().expect("pipe"));
        while write_some_or_none(&sink, &[0; 4096]) > 0 {}
        let mut subject = Subject::new(EndKind::Pipe, EndKind::Pipe, engine);
        drop(client);
        subject.run_to_end(&source, &sink);
    }
}

fn write_some_or_none(mut sink: &PipeWriter, bytes: &[u8]) -> usize {
    rustix::fs::fcntl_setfl(sink, OFlags::NONBLOCK).expect("fcntl");
    sink.write(bytes).unwrap_or(0)
}
