use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with};
use spliceway_core::socket;
use spliceway_faults::SocketOption;

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

/// Returns a connection whose near end is non-blocking. "abc", an urgent "!" and "def" have arrived
/// there.
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
fn poll_reports_only_bytes_the_end_and_an_urgent_mark() {
    let (near, far) = with_urgent_byte();
    let asked = PollFlags::IN | PollFlags::PRI | PollFlags::RDHUP;
    let read = |wanted: &[u8]| {
        let mut buf = [0; 64];
        let read = (&near).read(&mut buf).expect("read");
        assert_eq!(&buf[..read], wanted);
    };
    read(b"abc");
    assert_eq!(
        support::ready_now(&near, asked),
        PollFlags::IN | PollFlags::PRI,
        "at the mark, with bytes behind"
    );
    read(b"def");
    assert_eq!(support::ready_now(&near, asked), PollFlags::empty());
    assert_eq!(rustix::net::send(&far, b"!", SendFlags::OOB), Ok(1));
    assert_eq!(
        support::await_ready(&near, PollFlags::PRI),
        PollFlags::PRI,
        "at the mark, with nothing behind"
    );
    far.shutdown(std::net::Shutdown::Write).expect("shutdown");
    support::await_ready(&near, PollFlags::RDHUP);
    let at_the_end = support::ready_now(&near, asked);
    assert!(at_the_end.contains(PollFlags::IN | PollFlags::RDHUP), "{at_the_end:?}");
}

#[test]
fn splice_would_block_at_an_urgent_mark_that_poll_reports() {
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
fn recv_stops_at_an_urgent_mark_that_poll_reports_as_pri() {
    let (near, _far) = with_urgent_byte();
    let shows_mark = || support::ready_now(&near, PollFlags::PRI) == PollFlags::PRI;
    assert!(shows_mark());
    assert_eq!(recv(&near).as_deref(), Ok(&b"abc"[..]), "it stops at the mark");
    assert!(shows_mark());
    support::await_ready(&near, PollFlags::IN);
    assert_eq!(recv(&near).as_deref(), Ok(&b"def"[..]), "the next steps over it");
    assert!(!shows_mark());
}

#[test]
fn a_short_recv_without_an_urgent_mark_leaves_nothing() {
    let (near, far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    support::write_apart(&far, &[b'x'; 60], 5);
    support::await_queued(&near, 60);
    assert_eq!(support::ready_now(&near, PollFlags::PRI), PollFlags::empty());
    assert_eq!(
        recv(&near).map(|bytes| bytes.len()),
        Ok(60),
        "of 64, whatever they came in"
    );
    assert_eq!(recv(&near), Err(Errno::AGAIN));
}

/// On other sockets, a receive ends where a record ends.
#[test]
fn only_plain_tcp_counts_as_drained_after_a_short_recv() {
    let (near, far) = tcp_pair();
    assert!(socket::is_drained_by_a_short_receive(&near));
    assert!(socket::is_drained_by_a_short_receive(&far));
    let (near, _far) = Family::Unix.pair();
    assert!(!socket::is_drained_by_a_short_receive(&near));
    let (reader, _writer) = pipe();
    assert!(!socket::is_drained_by_a_short_receive(&reader));
}

#[test]
fn o_nonblock_of_the_socket_decides_whether_splice_waits_for_it() {
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
fn after_a_write_gets_the_socket_error_a_read_finds_a_clean_end() {
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

#[test]
fn siocoutq_counts_the_bytes_that_the_peer_has_not_acknowledged() {
    let (mut near, mut far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    let mut sent = 0;
    while let Ok(bytes) = near.write(&[b'x'; 64 << 10]) {
        sent += bytes;
    }
    let queued = socket::unacknowledged(&near).expect("SIOCOUTQ");
    assert!((1..=sent).contains(&queued), "{queued} of {sent}");
    let mut received = vec![0; sent];
    far.read_exact(&mut received).expect("read");
    // The peer may acknowledge the last bytes later.
    while socket::unacknowledged(&near).expect("SIOCOUTQ") > 0 {
        std::thread::yield_now();
    }
}

/// The kernel still counts them, and a caller that waits for 0 would wait for ever. If the peer has
/// ended its stream before, no read finds the reset either.
#[test]
fn bytes_that_a_reset_has_discarded_are_not_unacknowledged() {
    for ends_before in [false, true] {
        let (mut near, mut far) = tcp_pair();
        near.set_nonblocking(true).expect("FIONBIO");
        while near.write(&[b'x'; 64 << 10]).is_ok() {}
        far.read_exact(&mut [0]).expect("read");
        if ends_before {
            far.shutdown(std::net::Shutdown::Write).expect("shutdown");
        }
        assert!(socket::unacknowledged(&near).expect("SIOCOUTQ") > 0);
        // The reset of a socket with unread bytes.
        drop(far);
        // Returns when the connection is gone.
        let mut gone = [PollFd::new(&near, PollFlags::empty())];
        rustix::event::poll(&mut gone, None).expect("poll");
        assert_eq!(socket::unacknowledged(&near).expect("SIOCOUTQ"), 0, "{ends_before}");
    }
}

/// A runtime that keeps this error for ever takes the socket for broken.
#[test]
fn epoll_reports_an_entry_in_the_error_queue_once_per_edge() {
    let (mut near, mut far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    spliceway_faults::set_option(&near, SocketOption::Timestamping, SocketOption::SENT_TIMES).expect("SO_TIMESTAMPING");
    near.write_all(b"x").expect("write");
    spliceway_faults::set_option(&near, SocketOption::Timestamping, 0).expect("SO_TIMESTAMPING");
    support::await_ready(&near, PollFlags::empty());
    let mut sent = 0;
    support::await_that("the connection fills", || {
        sent += support::write_until_full(&near, &[b'x'; 64 << 10]);
        !support::ready_now(&near, PollFlags::OUT).contains(PollFlags::OUT)
    });
    let poller = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    epoll::add(&poller, &near, EventData::new_u64(0), EventFlags::OUT | EventFlags::ET).expect("registered");
    let wait = |timeout: Option<&Timespec>| {
        let mut event = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }];
        let events = epoll::wait(&poller, &mut event[..], timeout).expect("epoll_wait");
        (events > 0).then_some(event[0].flags)
    };
    assert_eq!(wait(Some(&Timespec::default())), Some(EventFlags::ERR));
    assert_eq!(wait(Some(&Timespec::default())), None);
    assert_eq!(support::ready_now(&near, PollFlags::OUT), PollFlags::ERR);
    far.read_exact(&mut vec![0; sent + 1]).expect("read");
    assert_eq!(wait(None), Some(EventFlags::ERR | EventFlags::OUT));
}

#[test]
fn a_peek_offset_hides_bytes_from_peeks_alone() {
    if support::linux_version() < (6, 9) {
        println!("skipped: TCP has SO_PEEK_OFF since Linux 6.9");
        return;
    }
    let (near, mut far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    spliceway_faults::set_option(&near, SocketOption::PeekOffset, 6).expect("SO_PEEK_OFF");
    far.write_all(b"head").expect("write");
    support::await_queued(&near, 4);
    let peek = || {
        let mut buf = [0; 64];
        rustix::net::recv(&near, &mut buf[..], RecvFlags::PEEK).map(|(_, len)| buf[..len].to_vec())
    };
    assert_eq!(peek(), Err(Errno::AGAIN));
    assert_eq!(support::ready_now(&near, PollFlags::IN), PollFlags::IN);
    // A receive moves the offset back. A splice does not.
    let (_reader, writer) = pipe();
    assert_eq!(splice(&near, &writer, 2), Ok(2));
    far.write_all(b"tail").expect("write");
    support::await_queued(&near, 6);
    assert_eq!(peek(), Err(Errno::AGAIN));
    assert_eq!(recv(&near), Ok(b"adtail".to_vec()));
    far.write_all(b"more").expect("write");
    support::await_queued(&near, 4);
    assert_eq!(peek(), Ok(b"more".to_vec()));
}

#[test]
fn bytes_in_a_pipe_are_not_charged_to_a_socket() {
    let (near, far) = tcp_pair();
    for end in [&near, &far] {
        end.set_nonblocking(true).expect("FIONBIO");
    }
    let (reader, writer) = pipe();
    fcntl_setpipe_size(&writer, 1 << 20).expect("F_SETPIPE_SZ");
    // Both buffers are full when the sender cannot write and the receive queue no longer grows.
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
    // No program has read a byte, and yet there is room again.
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

/// The kernel sets MSG_MORE itself if a call requests more than the sixteen slots hold.
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
    // Linux 6.1 does not cork here, so `over` is short. The change came with the new `splice` to
    // sockets in Linux 6.5.
    if support::linux_version() < (6, 5) {
        println!("skipped: splice corks by itself since Linux 6.5");
        return;
    }
    // The test uses the shortest of five measured times, because a busy machine can only add time.
    // The delay that the kernel adds is about 200 ms.
    let exact = (0..5).map(|_| until_delivered(0)).min().expect("five");
    let over = until_delivered(1);
    assert!(
        exact < over / 4,
        "exactly what it holds: {exact:?}, one byte more: {over:?}"
    );
}
