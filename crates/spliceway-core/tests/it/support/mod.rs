//! Sockets, byte patterns and waits that the tests share.

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

/// Longer than any step of a test takes on a loaded machine. A test that waits this long fails.
pub(crate) const GUARD: Duration = Duration::from_secs(20);

/// Returns the two ends of a loopback connection. They are blocking, with `TCP_NODELAY` set.
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

    /// Returns two connected, blocking ends.
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

/// Returns the first two numbers of the kernel's version.
pub(crate) fn linux_version() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Waits until `poll(2)` reports any of `events` for `fd`. It also reports `ERR` and `HUP`, which
/// need no request. Returns the reported events.
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

/// Returns the events that `poll(2)` reports for `fd` now.
pub(crate) fn ready_now(fd: impl AsFd, events: PollFlags) -> PollFlags {
    let mut polled = [PollFd::new(&fd, events)];
    poll(&mut polled, Some(&Timespec::default())).expect("poll");
    polled[0].revents()
}

/// Repeats until the condition holds, and yields the processor to other threads in between. This is
/// for conditions that cause no event.
pub(crate) fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + GUARD;
    while !holds() {
        assert!(Instant::now() < deadline, "within the guard time: {what}");
        thread::yield_now();
    }
}

/// Writes `bytes` in pieces of `len` bytes that are not adjacent in memory, so that each piece uses
/// a separate slot. The kernel places the bytes that a thread writes one after another in the same
/// pages. Writes to another socket in between therefore separate the pieces. A new thread performs
/// the writes, because it begins with a new block of pages.
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

/// Waits until exactly this many bytes are in the socket's receive queue.
pub(crate) fn await_queued(socket: impl AsFd, bytes: usize) {
    await_that("the bytes arrive", || queued(&socket) == bytes);
}

/// Returns the number of bytes in the receive queue, up to an urgent mark.
pub(crate) fn queued(socket: impl AsFd) -> usize {
    usize::try_from(rustix::io::ioctl_fionread(socket).expect("FIONREAD")).expect("a count")
}

/// Writes to a non-blocking socket until it accepts no more bytes. Returns the number of bytes that
/// it accepted.
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

/// Returns `len` pseudorandom bytes that differ for each `seed`, so that misplaced bytes are
/// visible.
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

/// Compares streams as `assert_eq!` does, but reports where they differ instead of printing them.
pub(crate) fn assert_same(got: &[u8], want: &[u8]) {
    let same = got.iter().zip(want).take_while(|(got, want)| got == want).count();
    assert!(
        got.len() == want.len() && same == got.len(),
        "got {} bytes, wanted {}, the same up to {same}",
        got.len(),
        want.len()
    );
}

/// The path of a temporary file. Dropping this value removes the file.
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
