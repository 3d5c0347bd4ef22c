use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with};
use spliceway_core::socket::{self, TellsLeft, Wait};

use crate::support::{self, Family, tcp_pair};

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("pipe2")
}

fn splice(from: impl AsFd, to: impl AsFd, len: usize) -> Result<usize, Errno> {
    rustix::pipe::splice(from, None, to, None, len, SpliceFlags::NONBLOCK)
}

fn recv(socket: impl AsFd) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; 64];
    let (_, len) = rustix::net::recv(socket, &mut buf[..], RecvFlags::empty())?;
    buf.truncate(len);
    Ok(buf)
}

/// A connection on which "abc", an urgent "!" and "def" have arrived at the near end, which is non-blocking.
fn with_urgent_byte() -> (TcpStream, TcpStream) {
    let (near, mut far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    far.write_all(b"abc").expect("write");
    assert_eq!(rustix::net::send(&far, b"!", SendFlags::OOB), Ok(1));
    far.write_all(b"def").expect("write");
    support::await_ready(&near, PollFlags::PRI);
    (near, far)
}

#[test]
fn splice_stops_at_an_urgent_mark_and_says_would_block_while_poll_says_readable() {
    let (near, mut far) = with_urgent_byte();
    let (_reader, writer) = pipe();
    assert_eq!(splice(&near, &writer, 64 << 10), Ok(3), "up to the mark");
    support::await_ready(&near, PollFlags::IN);
    for _ in 0..3 {
        assert_eq!(splice(&near, &writer, 64 << 10), Err(Errno::AGAIN));
        assert_eq!(support::queued(&near), 0, "FIONREAD does not see past the mark either");
        assert!(support::ready_now(&near, PollFlags::IN).contains(PollFlags::IN));
    }
    assert_eq!(recv(&near).as_deref(), Ok(&b"def"[..]), "one recv steps over the mark");
    far.write_all(b"ghij").expect("write");
    support::await_queued(&near, 4);
    assert_eq!(splice(&near, &writer, 64 << 10), Ok(4), "and all is well again");
}

#[test]
fn splice_returns_a_false_0_at_an_urgent_mark_after_fin() {
    let (near, far) = with_urgent_byte();
    far.shutdown(std::net::Shutdown::Write).expect("shutdown");
    support::await_ready(&near, PollFlags::RDHUP);
    let (_reader, writer) = pipe();
    assert_eq!(splice(&near, &writer, 64 << 10), Ok(3), "up to the mark");
    assert_eq!(
        splice(&near, &writer, 64 << 10),
        Ok(0),
        "no end: three bytes are queued"
    );
    assert_eq!(recv(&near).as_deref(), Ok(&b"def"[..]), "one recv steps over the mark");
    assert_eq!(splice(&near, &writer, 64 << 10), Ok(0), "now it is the end");
    assert_eq!(recv(&near).as_deref(), Ok(&b""[..]));
}

#[test]
fn splice_returns_a_false_0_at_an_urgent_mark_on_a_blocking_socket() {
    let (near, _far) = with_urgent_byte();
    near.set_nonblocking(false).expect("FIONBIO");
    let (_reader, writer) = pipe();
    assert_eq!(splice(&near, &writer, 64 << 10), Ok(3), "up to the mark");
    support::await_ready(&near, PollFlags::IN);
    assert_eq!(splice(&near, &writer, 64 << 10), Ok(0), "no end: the connection stands");
    assert_eq!(recv(&near).as_deref(), Ok(&b"def"[..]));
}

#[test]
fn so_oobinline_does_not_carry_splice_over_an_urgent_byte() {
    let (near, mut far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    rustix::net::sockopt::set_socket_oobinline(&near, true).expect("SO_OOBINLINE");
    far.write_all(b"abc").expect("write");
    assert_eq!(rustix::net::send(&far, b"!", SendFlags::OOB), Ok(1));
    far.write_all(b"def").expect("write");
    support::await_queued(&near, 7);
    let (_reader, writer) = pipe();
    assert_eq!(splice(&near, &writer, 64 << 10), Ok(3));
    assert_eq!(splice(&near, &writer, 64 << 10), Err(Errno::AGAIN));
}

#[test]
fn tcp_inq_tells_what_lies_behind_an_urgent_mark_where_recv_stops_short() {
    let (near, _far) = with_urgent_byte();
    assert_eq!(socket::ask_left(&near), TellsLeft::Yes);
    let mut buf = [0; 64];
    let received = socket::recv(&near, TellsLeft::Yes, &mut buf, Wait::IfBlocking).expect("recv");
    assert_eq!(received.bytes, 3, "it stops at the mark");
    assert!(received.left.expect("TCP tells") > 0, "{received:?}");
    support::await_ready(&near, PollFlags::IN);
    let received = socket::recv(&near, TellsLeft::Yes, &mut buf, Wait::IfBlocking).expect("recv");
    assert_eq!((&buf[..received.bytes], received.left), (&b"def"[..], Some(0)));
}

#[test]
fn tcp_inq_tells_what_is_left_and_that_an_end_waits() {
    let (near, mut far) = tcp_pair();
    far.write_all(b"abcdef").expect("write");
    support::await_queued(&near, 6);
    assert_eq!(socket::ask_left(&near), TellsLeft::Yes);
    let mut four = [0; 4];
    let first = socket::recv(&near, TellsLeft::Yes, &mut four, Wait::IfBlocking).expect("recv");
    assert_eq!((first.bytes, first.left), (4, Some(2)));
    far.shutdown(std::net::Shutdown::Write).expect("shutdown");
    support::await_ready(&near, PollFlags::RDHUP);
    let last = socket::recv(&near, TellsLeft::Yes, &mut four, Wait::IfBlocking).expect("recv");
    assert_eq!(last.bytes, 2);
    assert_ne!(last.left, Some(0), "the next recv finds the end");
    assert_eq!(
        socket::recv(&near, TellsLeft::Yes, &mut four, Wait::IfBlocking)
            .expect("recv")
            .bytes,
        0
    );
}

#[test]
fn unix_sockets_do_not_tell_what_is_left() {
    let (near, far) = Family::Unix.pair();
    (&far).write_all(b"abcdef").expect("write");
    assert_eq!(socket::ask_left(&near), TellsLeft::No);
    let received = socket::recv(&near, TellsLeft::No, &mut [0; 4], Wait::IfBlocking).expect("recv");
    assert_eq!((received.bytes, received.left), (4, None));
}

#[test]
fn the_sockets_own_o_nonblock_decides_for_the_socket() {
    const TIMEOUT: Duration = Duration::from_millis(40);
    let (near, _far) = tcp_pair();
    let (_reader, writer) = pipe();
    near.set_read_timeout(Some(TIMEOUT)).expect("SO_RCVTIMEO");
    let start = Instant::now();
    assert_eq!(splice(&near, &writer, 1), Err(Errno::AGAIN));
    assert!(start.elapsed() >= TIMEOUT, "SPLICE_F_NONBLOCK kept it from waiting");

    near.set_read_timeout(None).expect("SO_RCVTIMEO");
    near.set_nonblocking(true).expect("FIONBIO");
    let outcome = rustix::pipe::splice(&near, None, &writer, None, 1, SpliceFlags::empty());
    assert_eq!(outcome, Err(Errno::AGAIN), "without SPLICE_F_NONBLOCK");
}

#[test]
fn a_write_leg_that_meets_the_error_leaves_a_clean_end_to_the_read_leg() {
    let (near, far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    let (reader, writer) = pipe();
    assert_eq!(rustix::io::write(&writer, b"bytes"), Ok(5));
    support::reset(far);
    support::await_ready(&near, PollFlags::empty());

    assert_eq!(splice(&reader, &near, 5), Err(Errno::CONNRESET), "the error, once");
    assert_eq!(splice(&near, &writer, 64 << 10), Ok(0), "reads as a clean end");
    assert_eq!(recv(&near).as_deref(), Ok(&b""[..]), "reads as a clean end");
    assert_eq!(
        splice(&reader, &near, 5),
        Err(Errno::PIPE),
        "a signal too, which Rust programs ignore"
    );
}

#[test]
fn data_before_a_reset_comes_first_then_the_error_once_then_0() {
    for by_splice in [true, false] {
        let (near, mut far) = tcp_pair();
        near.set_nonblocking(true).expect("FIONBIO");
        far.write_all(b"bytes").expect("write");
        support::await_queued(&near, 5);
        support::reset(far);
        support::await_ready(&near, PollFlags::empty());

        let (_reader, writer) = pipe();
        let take = || match by_splice {
            true => splice(&near, &writer, 64 << 10),
            false => recv(&near).map(|bytes| bytes.len()),
        };
        let outcomes = [take(), take(), take()];
        assert_eq!(outcomes, [Ok(5), Err(Errno::CONNRESET), Ok(0)], "splice: {by_splice}");
    }
}

/// So "drained" says nothing of a reset that waits: readiness for errors and hang-ups must outlive it.
#[test]
fn tcp_inq_does_not_tell_that_a_reset_waits() {
    let (near, mut far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    assert_eq!(socket::ask_left(&near), TellsLeft::Yes);
    far.write_all(b"bytes").expect("write");
    support::await_queued(&near, 5);
    support::reset(far);
    support::await_ready(&near, PollFlags::empty());
    let received = socket::recv(&near, TellsLeft::Yes, &mut [0; 64], Wait::IfBlocking).expect("recv");
    assert_eq!((received.bytes, received.left), (5, Some(0)));
    assert_eq!(recv(&near), Err(Errno::CONNRESET));
}

#[test]
fn bytes_in_a_pipe_are_charged_to_no_socket() {
    let (near, far) = tcp_pair();
    for end in [&near, &far] {
        end.set_nonblocking(true).expect("FIONBIO");
    }
    let (reader, writer) = pipe();
    fcntl_setpipe_size(&writer, 1 << 20).expect("F_SETPIPE_SZ");
    // Both buffers are full when the sender can write no more and nothing more arrives that would make room.
    let block = vec![0; 256 << 10];
    let mut pushed = 0;
    let mut last = usize::MAX;
    support::await_that("the connection fills", || {
        pushed += support::write_until_full(&near, &block);
        let queued = support::queued(&far);
        let stands =
            queued > 0 && last == queued && !support::ready_now(&near, PollFlags::OUT).contains(PollFlags::OUT);
        last = queued;
        stands
    });
    let mut moved = 0;
    while let Ok(more) = splice(&far, &writer, 1 << 20) {
        moved += more;
    }
    assert!(moved > 0);
    // Nobody has read a byte, and yet there is room again.
    support::await_ready(&near, PollFlags::OUT);
    assert!(
        support::write_until_full(&near, &block) > 0,
        "{pushed} bytes, {moved} of them in the pipe"
    );
    let mut buf = vec![0; moved];
    std::fs::File::from(reader)
        .read_exact(&mut buf)
        .expect("all that was moved");
}

/// The kernel sets MSG_MORE by itself where more is asked for than sixteen slots held.
#[test]
fn asking_for_more_than_a_pipe_of_16_slots_holds_delays_its_last_bytes() {
    const HELD: usize = 16 * 100;
    let until_delivered = |surplus: usize| {
        let ((source, relayed), (near, far)) = (tcp_pair(), tcp_pair());
        let (reader, writer) = pipe();
        support::write_apart(&source, &[b'x'; HELD], 100);
        support::await_queued(&relayed, HELD);
        assert_eq!(splice(&relayed, &writer, 64 << 10), Ok(HELD));
        let start = Instant::now();
        assert_eq!(splice(&reader, &near, HELD + surplus), Ok(HELD));
        support::await_queued(&far, HELD);
        start.elapsed()
    };
    // The shortest of a few, as a busy machine only ever adds. The delay of the other is the kernel's own, about 200 ms.
    let exact = (0..5).map(|_| until_delivered(0)).min().expect("five");
    let over = until_delivered(1);
    assert!(
        exact < over / 4,
        "exactly what it holds: {exact:?}, one byte more: {over:?}"
    );
}
