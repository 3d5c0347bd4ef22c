//! Sockets, patterns and events that every test needs.

pub(crate) mod child;

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// Longer than anything here takes on a loaded machine. Reaching it fails the test.
pub(crate) const GUARD: Duration = Duration::from_secs(20);

/// Returns two ends of a loopback connection, blocking, without Nagle's delay.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (far, peer) = listener.accept().expect("accept");
    assert_eq!(peer, near.local_addr().expect("address"), "a stranger connected");
    for end in [&near, &far] {
        end.set_nodelay(true).expect("TCP_NODELAY");
    }
    (near, far)
}

/// A stream socket of either family, for claims that hold for both.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Family {
    Tcp,
    Unix,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::Tcp, Self::Unix];

    /// Returns two connected ends, blocking.
    pub(crate) fn pair(self) -> (Socket, Socket) {
        match self {
            Self::Tcp => {
                let (near, far) = tcp_pair();
                (Socket::Tcp(near), Socket::Tcp(far))
            }
            Self::Unix => {
                let (near, far) = UnixStream::pair().expect("socketpair");
                (Socket::Unix(near), Socket::Unix(far))
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Socket {
    pub(crate) fn set_nonblocking(&self) {
        rustix::io::ioctl_fionbio(self, true).expect("FIONBIO");
    }

    pub(crate) fn finish(&self) {
        rustix::net::shutdown(self, rustix::net::Shutdown::Write).expect("shutdown");
    }
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self, buf)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self, buf)?)
    }
}

/// Closes `socket` so that its peer gets a reset.
pub(crate) fn reset(socket: TcpStream) {
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).expect("SO_LINGER");
    drop(OwnedFd::from(socket));
}

/// Waits until `fd` shows any of `events`, or `ERR` or `HUP`, which need not be asked for. Returns
/// what it shows.
pub(crate) fn await_ready(fd: impl AsFd, events: PollFlags) -> PollFlags {
    let mut polled = [PollFd::new(&fd, events)];
    let guard = Timespec::try_from(GUARD).expect("a short time");
    assert_eq!(
        poll(&mut polled, Some(&guard)),
        Ok(1),
        "no {events:?} within the guard time"
    );
    polled[0].revents()
}

/// Returns what `fd` shows now.
pub(crate) fn ready_now(fd: impl AsFd, events: PollFlags) -> PollFlags {
    let mut polled = [PollFd::new(&fd, events)];
    poll(&mut polled, Some(&Timespec::default())).expect("poll");
    polled[0].revents()
}

/// Polls until the condition holds, and gives others the processor in between. It is for conditions
/// that have no event.
pub(crate) fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + GUARD;
    while !holds() {
        assert!(Instant::now() < deadline, "within the guard time: {what}");
        thread::yield_now();
    }
}

/// Writes `bytes` in pieces of `len` whose pages do not touch, so that each takes a slot of its
/// own. Writes to another socket in between take the next bytes of the pages that a task writes to.
/// A new task does this, as it begins with a new block of pages.
pub(crate) fn write_apart(mut socket: &TcpStream, bytes: &[u8], len: usize) {
    let (mut other, _its_peer) = tcp_pair();
    let write = move || {
        for piece in bytes.chunks(len) {
            socket.write_all(piece).expect("write");
            other.write_all(b"gap").expect("write");
        }
    };
    thread::scope(|scope| scope.spawn(write).join()).expect("written");
}

/// Waits until exactly this many bytes lie in the socket's receive queue.
pub(crate) fn await_queued(socket: impl AsFd, bytes: usize) {
    await_that("the bytes arrive", || queued(&socket) == bytes);
}

/// Returns the bytes in the receive queue, up to an urgent mark.
pub(crate) fn queued(socket: impl AsFd) -> usize {
    usize::try_from(rustix::io::ioctl_fionread(socket).expect("FIONREAD")).expect("a count")
}

/// Writes to a non-blocking socket until it takes no more. Returns how many bytes of `bytes` it
/// took.
pub(crate) fn write_until_full(mut socket: impl Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match socket.write(&bytes[written..]) {
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("write: {error}"),
        }
    }
    written
}

/// Returns bytes of which no two places look alike for long, different for each `seed`.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares streams as `assert_eq!` does, but says where they part instead of printing them.
pub(crate) fn assert_same(got: &[u8], want: &[u8]) {
    let same = got.iter().zip(want).take_while(|(got, want)| got == want).count();
    assert!(
        got.len() == want.len() && same == got.len(),
        "got {} bytes, wanted {}, the same up to {same}",
        got.len(),
        want.len()
    );
}

/// The path of a file, which is removed in the end.
pub(crate) struct TempFile {
    pub(crate) path: PathBuf,
}

impl TempFile {
    pub(crate) fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("spliceway-test-{}-{name}", std::process::id()));
        Self { path }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
