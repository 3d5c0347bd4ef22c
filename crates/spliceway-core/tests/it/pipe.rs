use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use spliceway_core::{Drain, Fill, Pipe, Reason};
use spliceway_faults::{Call, Fault, Faults, Rule, When};

use crate::support::{self, Family, TempFile, assert_same, child, pattern, tcp_pair};

/// Returns a pipe that was filled with `bytes` from a socket.
fn filled(bytes: &[u8]) -> Pipe {
    let (near, far) = Family::Tcp.pair();
    (&far).write_all(bytes).expect("write");
    support::await_queued(&near, bytes.len());
    let mut pipe = Pipe::new().expect("pipe2");
    assert_eq!(pipe.fill_from(&near).expect("splice"), Fill::Moved(bytes.len()));
    pipe
}

#[test]
fn filled_bytes_are_drained_unchanged() {
    for (from, to) in [
        (Family::Tcp, Family::Tcp),
        (Family::Tcp, Family::Unix),
        (Family::Unix, Family::Tcp),
        (Family::Unix, Family::Unix),
    ] {
        let ((client, source), (sink, server)) = (from.pair(), to.pair());
        let sent = pattern(1, 30_000);
        (&client).write_all(&sent).expect("write");
        support::await_queued(&source, sent.len());

        let mut pipe = Pipe::new().expect("pipe2");
        let Fill::Moved(mut inside) = pipe.fill_from(&source).expect("splice") else {
            panic!("{from:?}: nothing moved");
        };
        assert_eq!((pipe.len(), pipe.is_empty(), pipe.is_clean()), (inside, false, false));
        let moved = inside;
        while inside > 0 {
            let Drain::Moved(bytes) = pipe.drain_into(&sink).expect("splice") else {
                panic!("{to:?}: nothing moved");
            };
            inside -= bytes;
            assert_eq!(pipe.len(), inside, "len is what was filled and not drained");
        }
        assert!(pipe.is_clean());
        let mut got = vec![0; moved];
        (&server).read_exact(&mut got).expect("read");
        assert_same(&got, &sent[..moved]);
    }
}

#[test]
fn the_capacity_is_the_granted_size_not_the_requested_size() {
    for (asked, granted) in [(2_048, 4_096), (20_480, 32_768), (65_536, 65_536), (1 << 20, 1 << 20)] {
        assert_eq!(Pipe::with_capacity(asked).expect("pipe2").capacity(), granted);
    }
    let refused = Pipe::with_capacity(usize::MAX).expect("a refused size is no error");
    assert_eq!(refused.capacity(), 64 << 10);
}

#[test]
fn both_ends_are_close_on_exec_and_non_blocking_and_close_on_drop() {
    const CLOEXEC: u32 = 0o2_000_000;
    const NONBLOCK: u32 = 0o4_000;
    let test = "pipe::both_ends_are_close_on_exec_and_non_blocking_and_close_on_drop";
    child::alone(test, || {
        let before = child::descriptors();
        let pipe = Pipe::new().expect("pipe2");
        let mut ends = child::descriptors();
        ends.retain(|end| !before.contains(end));
        assert_eq!(ends.len(), 2);
        for end in ends {
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{end}")).expect("fdinfo");
            let flags = info
                .lines()
                .find_map(|line| line.strip_prefix("flags:"))
                .expect("flags");
            let flags = u32::from_str_radix(flags.trim(), 8).expect("octal");
            assert_eq!(flags & (CLOEXEC | NONBLOCK), CLOEXEC | NONBLOCK, "{info}");
        }
        drop(pipe);
        assert_eq!(child::descriptors(), before);
    });
}

#[test]
fn a_drained_source_gives_would_block_and_an_ended_one_maybe_eof() {
    for family in Family::BOTH {
        let (near, far) = family.pair();
        near.set_nonblocking();
        let mut pipe = Pipe::new().expect("pipe2");
        assert_eq!(pipe.fill_from(&near).expect("splice"), Fill::WouldBlock, "{family:?}");
        far.finish();
        support::await_ready(&near, PollFlags::RDHUP);
        assert_eq!(pipe.fill_from(&near).expect("splice"), Fill::MaybeEof, "{family:?}");
        assert!(pipe.is_clean(), "neither is a failure");
    }
}

#[test]
fn a_full_sink_would_block_and_the_pipe_keeps_its_bytes() {
    for family in Family::BOTH {
        let (sink, far) = family.pair();
        sink.set_nonblocking();
        let mut went = Vec::new();
        let mut pipe = filled(&pattern(2, 5_000));
        // The peer's buffer may get more room late, so this loop runs until the drain also finds no
        // room.
        support::await_that("the sink would block", || {
            let zeroes = support::write_until_full(&sink, &[0; 64 << 10]);
            went.resize(went.len() + zeroes, 0);
            let inside = pipe.len();
            match pipe.drain_into(&sink).expect("splice") {
                Drain::WouldBlock => {
                    assert_eq!(pipe.len(), inside, "nothing left the pipe");
                    true
                }
                Drain::Moved(bytes) => {
                    went.extend(&pattern(2, 5_000)[5_000 - inside..][..bytes]);
                    if pipe.is_empty() {
                        pipe = filled(&pattern(2, 5_000));
                    }
                    false
                }
                Drain::Cannot(reason) => panic!("{reason}"),
            }
        });
        went.extend(&pattern(2, 5_000)[5_000 - pipe.len()..]);
        let mut got = vec![0; went.len()];
        let reader = thread::spawn(move || (&far).read_exact(&mut got).map(|()| got));
        while !pipe.is_empty() {
            support::await_ready(&sink, PollFlags::OUT);
            assert_ne!(pipe.drain_into(&sink).expect("splice"), Drain::WouldBlock);
        }
        assert_same(&reader.join().expect("read").expect("read"), &went);
        assert!(pipe.is_clean());
    }
}

#[test]
fn an_unspliceable_source_gives_a_reason_not_an_error() {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll_create1");
    let mut pipe = Pipe::new().expect("pipe2");
    assert_eq!(
        pipe.fill_from(&epoll).expect("no error"),
        Fill::Cannot(Reason::InvalidArgument)
    );
    assert!(
        pipe.is_empty() && !pipe.is_clean(),
        "a failed call makes it unfit for others"
    );
    let file = TempFile::new("write-only");
    let mut pipe = Pipe::new().expect("pipe2");
    let outcome = pipe
        .fill_from(File::create(&file.path).expect("file"))
        .expect("no error");
    assert_eq!(outcome, Fill::Cannot(Reason::BadDescriptor));
    assert!(!pipe.is_clean());
}

#[test]
fn an_error_that_tcp_reports_once_does_not_become_a_clean_end() {
    // This runs in a separate thread, because faults can be installed only once per thread.
    let claim = || {
        let (near, far) = tcp_pair();
        support::reset(near);
        support::await_ready(&far, PollFlags::empty());
        far.take_error()
            .expect("SO_ERROR")
            .expect("taken, as a splice takes it");
        let denied = Rule::new(Call::SpliceIn, When::Always, Fault::Errno(Errno::ACCESS.raw_os_error()));
        let _faults = Faults::on_this_thread(vec![denied]).expect("seccomp");
        let mut pipe = Pipe::new().expect("pipe2");
        let error = pipe.fill_from(&far).expect_err("the connection has failed");
        assert_eq!(error.raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
        assert!(!pipe.is_clean());
        let (near, far) = tcp_pair();
        near.shutdown(std::net::Shutdown::Write).expect("shutdown");
        support::await_ready(&far, PollFlags::IN);
        let denied = Pipe::new().expect("pipe2").fill_from(&far).expect("a clean end");
        assert_eq!(denied, Fill::Cannot(Reason::NotPermitted));
    };
    thread::spawn(claim).join().expect("the claim holds");
}

#[test]
fn an_error_of_the_sink_is_not_taken_for_a_sandbox() {
    // This runs in a thread of its own, as each thread can meet faults only once.
    let claim = || {
        let (sink, far) = tcp_pair();
        (&far).write_all(b"not received by the sink").expect("send");
        support::reset(far);
        support::await_ready(&sink, PollFlags::HUP);
        let eacces = Errno::ACCESS.raw_os_error();
        let denied = Rule::new(Call::SpliceOut, When::Always, Fault::Errno(eacces));
        let (mut failed, mut healthy) = (filled(b"bytes"), filled(b"bytes"));
        let _faults = Faults::on_this_thread(vec![denied]).expect("seccomp");
        let error = failed.drain_into(&sink).expect_err("the connection has failed");
        assert_eq!(error.raw_os_error(), Some(eacces));
        assert!(!failed.is_clean());
        let (sink, _far) = tcp_pair();
        let denied = healthy.drain_into(&sink).expect("the sink is open");
        assert_eq!(denied, Drain::Cannot(Reason::NotPermitted));
    };
    thread::spawn(claim).join().expect("the claim holds");
}

#[test]
fn bytes_for_an_unspliceable_sink_can_be_read_out() {
    let file = TempFile::new("append");
    let appending = File::options()
        .create(true)
        .append(true)
        .open(&file.path)
        .expect("file");
    let reading = File::open(&file.path).expect("file");
    for (sink, reason) in [(appending, Reason::InvalidArgument), (reading, Reason::BadDescriptor)] {
        let sent = pattern(3, 10_000);
        let mut pipe = filled(&sent);
        assert_eq!(pipe.drain_into(&sink).expect("no error"), Drain::Cannot(reason));
        assert_eq!(pipe.len(), sent.len());
        assert_same(&pipe.read_out().expect("read"), &sent);
        assert!(
            pipe.is_empty() && !pipe.is_clean(),
            "a failed call makes it unfit for others"
        );
    }
}

#[test]
fn bytes_left_after_a_partial_drain_are_read_out_in_order() {
    let (near, far) = tcp_pair();
    let sent = pattern(4, 1_000);
    support::write_apart(&near, &sent, 100);
    support::await_queued(&far, sent.len());
    let mut pipe = Pipe::new().expect("pipe2");
    assert_eq!(pipe.fill_from(&far).expect("splice"), Fill::Moved(sent.len()));

    // A sink with one slot accepts one of the ten pieces.
    let (reader, one_slot) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("pipe2");
    rustix::pipe::fcntl_setpipe_size(&one_slot, 4_096).expect("F_SETPIPE_SZ");
    assert_eq!(pipe.drain_into(&one_slot).expect("splice"), Drain::Moved(100));
    assert_eq!(pipe.drain_into(&one_slot).expect("splice"), Drain::WouldBlock);
    assert_eq!(pipe.len(), 900);

    let mut got = vec![0; 100];
    assert_eq!(rustix::io::read(&reader, &mut got), Ok(100));
    got.extend(pipe.read_out().expect("read"));
    assert_same(&got, &sent);
    assert!(pipe.is_clean(), "empty, and nothing failed");
}

#[test]
fn nothing_is_read_out_of_an_empty_pipe() {
    let mut pipe = Pipe::new().expect("pipe2");
    assert_eq!(pipe.read_out().expect("nothing to read"), b"");
    assert!(pipe.is_clean());
}

#[test]
fn an_error_of_either_socket_is_an_error_and_leaves_the_pipe_unclean() {
    let (source, peer) = tcp_pair();
    support::reset(peer);
    support::await_ready(&source, PollFlags::empty());
    let mut pipe = Pipe::new().expect("pipe2");
    let error = pipe.fill_from(&source).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(pipe.is_empty() && !pipe.is_clean());

    let (sink, peer) = tcp_pair();
    support::reset(peer);
    support::await_ready(&sink, PollFlags::empty());
    let mut pipe = filled(b"bytes");
    let error = pipe.drain_into(&sink).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(pipe.len(), 5, "bytes that went nowhere are still counted");
    assert_same(&pipe.read_out().expect("read"), b"bytes");
    assert!(pipe.is_empty() && !pipe.is_clean(), "empty, and still unclean");
}

#[test]
#[should_panic(expected = "fill_from enters with an empty pipe")]
fn filling_a_pipe_that_holds_bytes_panics() {
    let (near, _far) = tcp_pair();
    let _ = filled(b"bytes").fill_from(&near);
}

#[test]
#[should_panic(expected = "drain_into enters with bytes in the pipe")]
fn draining_an_empty_pipe_panics() {
    let (near, _far) = tcp_pair();
    let _ = Pipe::new().expect("pipe2").drain_into(&near);
}

/// The kernel would hold these bytes back for 200 ms if the call requested more than the pipe holds
/// (see `kernel_socket`).
#[test]
fn the_last_bytes_of_a_pipe_with_full_slots_leave_immediately() {
    for segments in [15, 16, 17, 32, 33] {
        let ((source, relayed), (sink, far)) = (tcp_pair(), tcp_pair());
        relayed.set_nonblocking(true).expect("FIONBIO");
        support::write_apart(&source, &vec![b'x'; segments * 100], 100);
        support::await_queued(&relayed, segments * 100);
        let mut pipe = Pipe::with_capacity(128 << 10).expect("pipe2");
        assert_eq!(pipe.capacity(), 128 << 10);
        let Fill::Moved(mut inside) = pipe.fill_from(&relayed).expect("splice") else {
            panic!("nothing moved");
        };
        assert_eq!(inside, segments.min(32) * 100);
        let start = Instant::now();
        let all = inside;
        while inside > 0 {
            let Drain::Moved(bytes) = pipe.drain_into(&sink).expect("splice") else {
                panic!("nothing moved");
            };
            inside -= bytes;
        }
        support::await_queued(&far, all);
        // This is half of the delay that a cork would cause. The usual time is tens of
        // microseconds.
        assert!(
            start.elapsed() < Duration::from_millis(100),
            "{segments} segments: {:?}",
            start.elapsed()
        );
    }
}
