//! What `splice(2)` does between sockets and pipes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::param::page_size;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with};
use socket2::{Domain, Protocol, Socket, Type};

use super::finding::{Check, Finding};
use super::loopback::{self, Outcome, PATIENCE, SLOTS, arrived, is_ready, pipe, ready, recv, splice};
use crate::report::error_name;

/// The pages that the kernel puts into one socket buffer: `MAX_SKB_FRAGS`.
const SOCKET_BUFFER_PAGES: usize = 17;
/// A delay that the kernel adds on purpose is about 200 ms. A busy machine adds less.
const LONG: Duration = Duration::from_millis(100);
/// Experiments that a busy machine disturbs have this many attempts.
const ATTEMPTS: usize = 5;

pub(super) fn zero_copy() -> Vec<Check> {
    vec![
        Check::new("splice", "splice moves bytes between sockets", moves_bytes).decisive(),
        Check::new("socket-kinds", "sockets on which splice succeeds", kinds).after_splice(),
    ]
}

pub(super) fn behaviour() -> Vec<Check> {
    vec![
        Check::new("slots", "slots fill a pipe, not bytes", slots),
        Check::new("one-call", "one call moves more than one socket buffer", one_call),
        Check::new("length", "a length above isize::MAX", length),
        Check::new("nonblock-pipe", "SPLICE_F_NONBLOCK decides for the pipe", nonblock_pipe),
        Check::new("nonblock-socket", "O_NONBLOCK decides for the socket", nonblock_socket),
        Check::new("urgent-mark", "splice stops at urgent data", urgent_mark),
        Check::new("false-end", "urgent data looks like the end", false_end),
        Check::new("stall", "16 full slots and one byte more", stall),
    ]
}

fn moves_bytes() -> io::Result<Finding> {
    let tcp = loopback::tcp().and_then(|one| Ok((one, loopback::tcp()?)));
    // Without loopback, Unix sockets still show whether the kernel allows the call.
    let (what, moved) = match tcp {
        Ok(((mut a, b), (c, d))) => {
            a.write_all(b"bytes")?;
            ("TCP", through_a_pipe(&b, &c, &d)?)
        }
        Err(_) => {
            let ((mut a, b), (c, d)) = (UnixStream::pair()?, UnixStream::pair()?);
            a.write_all(b"bytes")?;
            (
                "Unix sockets (no TCP connection over loopback)",
                through_a_pipe(&b, &c, &d)?,
            )
        }
    };
    Ok(
        Finding::compared(format!("{what}: 5 in, 5 out"), format!("{what}: {moved}"))
            .so(
                "Relays can move bytes without copying them.",
                "Relays copy. A seccomp filter, a container or a security module probably refuses the call.",
            )
            .advise("add splice to SystemCallFilter= of the unit, or to the seccomp profile of the container"),
    )
}

fn through_a_pipe(source: impl AsFd, sink: impl AsFd, mut reader: impl AsFd + Read) -> io::Result<String> {
    let (outlet, inlet) = pipe()?;
    ready(&source, PollFlags::IN)?;
    let filled = splice(source, &inlet, 5);
    let drained = splice(&outlet, sink, 5);
    if drained.0 == Ok(5) {
        ready(&reader, PollFlags::IN)?;
        let mut bytes = [0; 5];
        reader.read_exact(&mut bytes)?;
        if &bytes != b"bytes" {
            return Ok("other bytes arrived".to_owned());
        }
    }
    Ok(format!("{filled} in, {drained} out"))
}

/// Shows what splice returns for sockets that have received a byte.
fn kinds() -> io::Result<Finding> {
    let mut observed = Vec::new();
    for (kind, make) in KINDS {
        let outcome = match make() {
            Err(error) if kind == "TCP" => return Err(error),
            Err(error) => error_name(&error),
            Ok((near, far)) => {
                let (outlet, inlet) = pipe()?;
                rustix::io::write(&far, b"x")?;
                ready(&near, PollFlags::IN)?;
                let filled = splice(&near, &inlet, 1);
                if filled.0.is_err() {
                    rustix::io::write(&inlet, b"x")?;
                }
                let drained = splice(&outlet, &near, 1);
                match (filled.0, drained.0) {
                    (Ok(1), Ok(1)) => "yes".to_owned(),
                    _ => format!("{filled} in, {drained} out"),
                }
            }
        };
        observed.push(format!("{kind}: {outcome}"));
    }
    observed.push(format!("kernel TLS: {}", kernel_tls()));
    let observed = observed.join("; ");
    let serves = observed.contains("TCP: yes") && observed.contains("Unix: yes");
    Ok(Finding::judged(serves, "TCP: yes; Unix: yes", observed).so(
        "Relays splice TCP and Unix sockets, and copy what splice refuses.",
        "Relays copy where splice fails.",
    ))
}

type MakePair = fn() -> io::Result<(OwnedFd, OwnedFd)>;

const KINDS: [(&str, MakePair); 4] = [
    ("TCP", || loopback::tcp().map(|(a, b)| (a.into(), b.into()))),
    ("Unix", || UnixStream::pair().map(|(a, b)| (a.into(), b.into()))),
    ("MPTCP", || {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
        listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
        listener.listen(128)?;
        let near = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
        near.connect_timeout(&listener.local_addr()?, PATIENCE)?;
        let near = near.into();
        let far = loopback::accept(&listener.into(), &near)?;
        near.set_nonblocking(true)?;
        Ok((near.into(), far.into()))
    }),
    ("UDP", || {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
        near.connect(far.local_addr()?)?;
        far.connect(near.local_addr()?)?;
        near.set_nonblocking(true)?;
        Ok((near.into(), far.into()))
    }),
];

fn kernel_tls() -> &'static str {
    match super::machine::proc_net("tcp_available_ulp") {
        Some(protocols) if protocols.split_whitespace().any(|name| name == "tls") => "loaded",
        Some(_) => "not loaded",
        None => "unknown",
    }
}

fn slots() -> io::Result<Finding> {
    let (near, far) = loopback::tcp()?;
    let (_outlet, inlet) = pipe()?;
    loopback::write_apart(&near, 20, 100)?;
    arrived(&far, 2_000)?;
    let outcome = (
        splice(&far, &inlet, SLOTS * page_size()),
        splice(&far, &inlet, SLOTS * page_size()),
    );
    Ok(Finding::compared(
        "of 20 pieces of 100 bytes, 1600 bytes fit; then EAGAIN",
        format!(
            "of 20 pieces of 100 bytes, {} bytes fit; then {}",
            outcome.0, outcome.1
        ),
    )
    .so(
        "A short read says nothing about the socket, and EAGAIN may mean a full pipe. The relay fills only empty pipes.",
        "The relay does not depend on this number, because it fills only empty pipes.",
    ))
}

fn one_call() -> io::Result<Finding> {
    let (near, far) = loopback::tcp()?;
    let (_outlet, inlet) = pipe()?;
    let pages = 2 * SLOTS;
    fcntl_setpipe_size(&inlet, pages * page_size())?;
    let most = SOCKET_BUFFER_PAGES * page_size();
    loopback::fill(&near, 4 * pages * page_size())?;
    arrived(&far, most + page_size())?;
    let moved = splice(&far, &inlet, pages * page_size());
    Ok(Finding::judged(
        moved.bytes() > most,
        format!("more than {SOCKET_BUFFER_PAGES} pages ({most} bytes) by a pipe of {pages} slots"),
        format!("{moved} bytes"),
    )
    .so(
        "The kernel fills a pipe from several socket buffers, so larger pipes need fewer calls.",
        "Larger pipes bring no gain on this kernel.",
    ))
}

fn length() -> io::Result<Finding> {
    let (mut near, far) = loopback::tcp()?;
    let (_outlet, inlet) = pipe()?;
    near.write_all(b"bytes")?;
    arrived(&far, 5)?;
    let outcome = splice(&far, &inlet, isize::MAX as usize + 1);
    let is_new = super::machine::kernel_version() >= (6, 8, 0);
    let expected = if is_new { "EINVAL (since Linux 6.8)" } else { "5 bytes" };
    let observed = match outcome.0 {
        Err(Errno::INVAL) if is_new => expected.to_owned(),
        Err(_) => outcome.to_string(),
        Ok(bytes) => format!("{bytes} bytes"),
    };
    Ok(Finding::compared(expected, observed).so(
        "A relay that asks for \"as much as possible\" fails since 6.8. This one asks for what fits.",
        "It does not matter here, because the relay asks for what fits.",
    ))
}

fn nonblock_pipe() -> io::Result<Finding> {
    let (near, _far) = loopback::tcp()?;
    let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC)?;
    let inlet = &inlet;
    let (done, is_done) = mpsc::channel::<()>();
    let empty = thread::scope(|scope| {
        // If the kernel ignores the flag, the call waits until this byte arrives.
        let rescue = move || {
            if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let _ = rustix::io::write(inlet, b"x");
            }
        };
        thread::Builder::new().spawn_scoped(scope, rescue)?;
        let empty = splice(&outlet, &near, 1);
        drop(done);
        Ok::<_, io::Error>(empty)
    })?;
    Ok(Finding::compared(
        "an empty blocking pipe: EAGAIN",
        format!("an empty blocking pipe: {empty}"),
    )
    .so(
        "The flag of the call decides, so the relay never waits for a pipe.",
        "The relay does not depend on the flag, because its pipes are non-blocking.",
    ))
}

fn nonblock_socket() -> io::Result<Finding> {
    let (near, _far) = loopback::tcp()?;
    let (outlet, inlet) = pipe()?;
    // The time-outs end calls on a kernel on which they wait.
    near.set_read_timeout(Some(PATIENCE))?;
    near.set_write_timeout(Some(PATIENCE))?;
    let source = rustix::pipe::splice(&near, None, &inlet, None, 1, SpliceFlags::empty());
    let mut sink = Outcome(Ok(0));
    let mut waited = false;
    for _ in 0..ATTEMPTS {
        while loopback::fill(&near, 64 << 20)? > 0 {}
        rustix::io::write(&inlet, b"bytes")?;
        let started = Instant::now();
        sink = splice(&outlet, &near, 5);
        waited = started.elapsed() > PATIENCE / 2;
        // After a late acknowledgement, the socket has room again.
        if sink.0 != Ok(5) {
            break;
        }
    }
    let waits = if waited { ", after a wait" } else { "" };
    Ok(Finding::compared(
        "an empty source: EAGAIN; a full sink: EAGAIN",
        format!("an empty source: {}; a full sink: {sink}{waits}", Outcome(source)),
    )
    .so(
        "A call on a non-blocking socket returns at once, so one slow client stops no other session.",
        "A call that waits for one client stops the other sessions of its thread.",
    )
    .advise("run with --splice off, and report this kernel"))
}

/// Returns a connection on which "abc", an urgent byte and "def" have arrived at the second end.
fn with_urgent_byte() -> io::Result<(TcpStream, TcpStream)> {
    let (mut near, far) = loopback::tcp()?;
    near.write_all(b"abc")?;
    rustix::net::send(&near, b"!", SendFlags::OOB)?;
    near.write_all(b"def")?;
    ready(&far, PollFlags::PRI)?;
    Ok((near, far))
}

fn urgent_mark() -> io::Result<Finding> {
    let (_near, far) = with_urgent_byte()?;
    let (_outlet, inlet) = pipe()?;
    let before = splice(&far, &inlet, 64);
    ready(&far, PollFlags::IN)?;
    let at = splice(&far, &inlet, 64);
    let readable = is_ready(&far, PollFlags::IN, Duration::ZERO)?;
    let readable = if readable { "readable" } else { "not readable" };
    let after = recv(&far);
    Ok(Finding::compared(
        "3 bytes, then EAGAIN while readable; recv gets 3",
        format!("{before} bytes, then {at} while {readable}; recv gets {after}"),
    )
    .so(
        "A relay that only splices makes no progress here. This one receives after EAGAIN, which steps over the mark.",
        "The relay receives after EAGAIN in any case.",
    ))
}

fn false_end() -> io::Result<Finding> {
    let (near, far) = with_urgent_byte()?;
    let (_outlet, inlet) = pipe()?;
    near.shutdown(Shutdown::Write)?;
    ready(&far, PollFlags::RDHUP)?;
    let (before, at, after) = (splice(&far, &inlet, 64), splice(&far, &inlet, 64), recv(&far));
    Ok(Finding::compared(
        "3 bytes, then 0 like an end; recv gets 3",
        format!("{before} bytes, then {at} like an end; recv gets {after}"),
    )
    .so(
        "A relay that trusts this 0 loses the last bytes. This one confirms every end with a recv.",
        "The relay confirms every end with a recv in any case.",
    ))
}

fn stall() -> io::Result<Finding> {
    const HELD: usize = SLOTS * 100;
    let delivered = |surplus: usize| -> io::Result<Duration> {
        let ((source, relayed), (near, far)) = (loopback::tcp()?, loopback::tcp()?);
        let (outlet, inlet) = pipe()?;
        loopback::write_apart(&source, SLOTS, 100)?;
        arrived(&relayed, HELD)?;
        let filled = splice(&relayed, &inlet, SLOTS * page_size());
        if filled.0 != Ok(HELD) {
            return Err(io::Error::other(format!("the pipe took {filled} bytes of {HELD}")));
        }
        let started = Instant::now();
        let drained = splice(&outlet, &near, HELD + surplus);
        arrived(&far, drained.bytes())?;
        Ok(started.elapsed())
    };
    let (mut exact, over) = (delivered(0)?, delivered(1)?);
    for _ in 1..ATTEMPTS {
        if exact > LONG {
            exact = delivered(0)?;
        }
    }
    let speed = |time: Duration| if time > LONG { "about 200 ms" } else { "at once" };
    Ok(Finding::compared(
        "asked for 1600 bytes: at once; for 1601: about 200 ms",
        format!("asked for 1600 bytes: {}; for 1601: {}", speed(exact), speed(over)),
    )
    .so(
        "A call that asks for more than 16 full slots hold delays the last bytes. The relay asks for what the pipe holds.",
        "The relay asks for exactly what the pipe holds in any case.",
    ))
}
