//! Connections within this machine, pipes, and waits that end.

use std::fmt;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use crate::report::errno_name;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with};

/// The slots of a new pipe. Each holds at most one page.
pub(super) const SLOTS: usize = 16;
/// The longest wait of one step. An experiment that waits longer cannot tell anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the two ends of a connection over loopback. Both are non-blocking, with `TCP_NODELAY`.
pub(super) fn tcp() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_loopback)?;
    let near = TcpStream::connect_timeout(&listener.local_addr()?, PATIENCE).map_err(no_loopback)?;
    let far = accept(&listener, &near)?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok((near, far))
}

/// Accepts the connection of `near`. Drops connections of other programs to the same port.
pub(super) fn accept(listener: &TcpListener, near: &TcpStream) -> io::Result<TcpStream> {
    loop {
        ready(listener, PollFlags::IN)?;
        let (far, peer) = listener.accept()?;
        if peer == near.local_addr()? {
            return Ok(far);
        }
    }
}

fn no_loopback(error: io::Error) -> io::Error {
    let hint = match error.kind() {
        io::ErrorKind::NetworkUnreachable => " (is the interface lo up?)",
        _ => "",
    };
    io::Error::new(error.kind(), format!("no connection to 127.0.0.1: {error}{hint}"))
}

pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// Splices without waiting for the pipe.
pub(super) fn splice(from: impl AsFd, to: impl AsFd, bytes: usize) -> Outcome {
    Outcome(rustix::pipe::splice(from, None, to, None, bytes, SpliceFlags::NONBLOCK))
}

pub(super) fn recv(socket: impl AsFd) -> Outcome {
    let mut bytes = [0; 4096];
    let received = rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::empty());
    Outcome(received.map(|(_, length)| length))
}

/// What a call returned: a number of bytes, or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome(pub(super) Result<usize, Errno>);

impl Outcome {
    pub(super) fn bytes(self) -> usize {
        self.0.unwrap_or(0)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(bytes) => bytes.fmt(f),
            Err(errno) => f.write_str(&errno_name(errno)),
        }
    }
}

/// Waits until `poll(2)` reports any of `events`, or an error or a hang-up.
pub(super) fn ready(fd: impl AsFd, events: PollFlags) -> io::Result<()> {
    match is_ready(fd, events, PATIENCE)? {
        true => Ok(()),
        false => Err(too_slow()),
    }
}

pub(super) fn is_ready(fd: impl AsFd, events: PollFlags, within: Duration) -> io::Result<bool> {
    let within = Timespec::try_from(within).unwrap_or_default();
    let mut polled = [PollFd::new(&fd, events)];
    Ok(poll(&mut polled, Some(&within))? > 0)
}

/// Returns the number of bytes in the receive queue, up to an urgent mark.
pub(super) fn queued(socket: impl AsFd) -> io::Result<usize> {
    let bytes = rustix::io::ioctl_fionread(socket)?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Waits until at least this many bytes are in the receive queue.
pub(super) fn arrived(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while queued(&socket)? < bytes {
        if Instant::now() > deadline {
            return Err(too_slow());
        }
        thread::yield_now();
    }
    Ok(())
}

fn too_slow() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the bytes did not arrive within a second; perhaps this machine is too busy",
    )
}

/// Writes until the socket accepts no more, or until `most` bytes are written.
pub(super) fn fill(mut socket: &TcpStream, most: usize) -> io::Result<usize> {
    let block = vec![0; (256 << 10).min(most)];
    let mut written = 0;
    while written < most {
        match socket.write(&block[..block.len().min(most - written)]) {
            Ok(bytes) => written += bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Writes `count` pieces of `bytes` bytes, each of which needs its own slot of a pipe. The kernel
/// puts bytes that a thread writes in succession into the same page. Writes to another connection
/// keep the pieces apart, and a new thread starts with a new page.
pub(super) fn write_apart(mut socket: &TcpStream, count: usize, bytes: usize) -> io::Result<()> {
    let (mut other, _peer) = tcp()?;
    let piece = vec![0; bytes];
    thread::scope(|scope| {
        let write = move || {
            for _ in 0..count {
                socket.write_all(&piece)?;
                other.write_all(b"gap")?;
            }
            Ok(())
        };
        thread::Builder::new()
            .spawn_scoped(scope, write)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the writing thread failed")))
    })
}
