//! One thin function per system call; nothing is decided here.
//!
//! This is the only file of the crate that may hold `unsafe`, and only because these have no safe wrapper in rustix:
//! - `SIOCOUTQ`, the bytes of a TCP socket that its peer has not acknowledged (tcp(7));
//! - `TCP_ULP`, which tells a plain TCP socket from one with TLS in the kernel (tcp(7), `include/uapi/linux/tcp.h`);
//! - `poll` and `SO_RCVLOWAT` of sockets that may be closed by now, which no borrow can say (poll(2), socket(7));
//! - a page that the kernel clears in forked children (madvise(2), `MADV_WIPEONFORK`);
//! - a thread's signal mask, because splice has no `MSG_NOSIGNAL` (signal(7), pthread_sigmask(3), sigtimedwait(2)).
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use rustix::event::PollFlags;
use rustix::event::{PollFd, Timespec};
use rustix::fs::OFlags;
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, SpliceFlags};

pub(crate) use rustix::io::Errno;
use rustix::net::SocketType;
pub(crate) use rustix::net::{RecvFlags, SendFlags};

/// `pipe2(O_CLOEXEC | O_NONBLOCK)`: the reading and the writing end.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
}

/// `fcntl(F_GETPIPE_SZ)`, bytes.
pub(crate) fn pipe_size(pipe: BorrowedFd<'_>) -> Result<usize, Errno> {
    rustix::pipe::fcntl_getpipe_size(pipe)
}

/// `fcntl(F_SETPIPE_SZ)`, bytes: the size the kernel granted.
pub(crate) fn set_pipe_size(pipe: BorrowedFd<'_>, bytes: usize) -> Result<usize, Errno> {
    rustix::pipe::fcntl_setpipe_size(pipe, bytes)
}

/// `splice(from, to, len, SPLICE_F_NONBLOCK)`. Never `SPLICE_F_MORE`: it corks the sink for up to 200 ms.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
    rustix::pipe::splice(from, None, to, None, len, SpliceFlags::NONBLOCK)
}

/// A number of this process that no process has from which it was forked. To ask costs a load; `getpid(2)`, which is asked where the
/// kernel clears no pages (before Linux 4.14), costs a system call.
#[inline]
pub(crate) fn fork_generation() -> u32 {
    static CLEARED: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    match CLEARED.get_or_init(word_cleared_by_fork) {
        Some(word) => match word.load(Ordering::Relaxed) {
            0 => first_after_fork(word),
            generation => generation,
        },
        None => rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
    }
}

#[cold]
fn first_after_fork(word: &AtomicU32) -> u32 {
    // Not cleared by a fork, so a child goes on from its parent's number.
    static LAST: AtomicU32 = AtomicU32::new(0);
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(of_another_thread) => of_another_thread,
    }
}

/// `mmap(2)` and `madvise(MADV_WIPEONFORK)`: a word that is 0 again in each forked child, for as long as the process lives.
fn word_cleared_by_fork() -> Option<&'static AtomicU32> {
    let bytes = rustix::param::page_size();
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new anonymous mapping, at an address of the kernel's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was mapped above, with this length, and nobody else knows it yet.
    if unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above.
        unsafe { libc::munmap(page, bytes) };
        return None;
    }
    // SAFETY: the page is aligned, holds zeroes, of which a word is a valid `AtomicU32`, and is never unmapped.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}

/// `sigaction(SIGPIPE)`: whether that signal would end this process. Rust programs ignore it from their start; a host in another
/// language need not.
pub(crate) fn dies_of_sigpipe() -> bool {
    // SAFETY: a sigaction of zeroes is valid, and the call only writes the present action there.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_DFL
    }
}

/// [`splice`], of which no `SIGPIPE` comes.
pub(crate) fn splice_without_sigpipe(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
    // A short count too: the bytes go out in batches, and what a later one met is not told.
    without_sigpipe(|| splice(from, to, len), |outcome| outcome != Ok(len))
}

/// [`write()`], of which no `SIGPIPE` comes.
pub(crate) fn write_without_sigpipe(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    without_sigpipe(|| write(fd, bytes), |outcome| outcome == Err(Errno::PIPE))
}

/// `SIGPIPE` is blocked in this thread for the call, and the one that the call may have raised is taken. (The kernel directs it at
/// the calling thread.)
fn without_sigpipe(
    call: impl FnOnce() -> Result<usize, Errno>,
    may_have_raised: impl FnOnce(Result<usize, Errno>) -> bool,
) -> Result<usize, Errno> {
    // SAFETY: signal sets are plain memory, for which all zeroes is valid, and each pointer is to one on this stack or null
    // where that is allowed. The mask is given back as it was found.
    unsafe {
        let (mut sigpipe, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
        libc::sigemptyset(&raw mut sigpipe);
        libc::sigaddset(&raw mut sigpipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const sigpipe, &raw mut before);
        let outcome = call();
        // Who has it blocked anyway may want to see it.
        if may_have_raised(outcome) && libc::sigismember(&raw const before, libc::SIGPIPE) == 0 {
            let at_once: libc::timespec = mem::zeroed();
            libc::sigtimedwait(&raw const sigpipe, std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        outcome
    }
}

/// `read(2)`.
pub(crate) fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize, Errno> {
    rustix::io::read(fd, buf)
}

/// `write(2)`.
pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::io::write(fd, bytes)
}

/// `ioctl(FIONREAD)`, bytes.
pub(crate) fn bytes_to_read(fd: BorrowedFd<'_>) -> Result<usize, Errno> {
    rustix::io::ioctl_fionread(fd).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// `poll(POLLOUT)`, without waiting: whether a write would now find room, or an error.
pub(crate) fn is_writable(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut asked = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    retry_on_intr(|| rustix::event::poll(&mut asked, Some(&Timespec::default()))).map(|ready| ready > 0)
}

/// `poll(POLLIN | POLLPRI | POLLRDHUP)`, without waiting: what it tells.
pub(crate) fn poll_source(fd: BorrowedFd<'_>) -> Result<PollFlags, Errno> {
    let mut asked = [PollFd::from_borrowed_fd(
        fd,
        PollFlags::IN | PollFlags::PRI | PollFlags::RDHUP,
    )];
    retry_on_intr(|| rustix::event::poll(&mut asked, Some(&Timespec::default())))?;
    Ok(asked[0].revents())
}

/// `getsockopt(SO_RCVLOWAT)`: bytes.
pub(crate) fn receive_low_water_mark(socket: BorrowedFd<'_>) -> Result<libc::c_int, Errno> {
    low_water_mark(socket.as_raw_fd())
}

/// The same of a descriptor that may be closed by now.
fn low_water_mark(socket: RawFd) -> Result<libc::c_int, Errno> {
    let mut bytes: libc::c_int = 0;
    let mut length = mem::size_of_val(&bytes) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    // SAFETY: the kernel writes at most `length` bytes, one int, to `bytes`, which outlives the call as `length` does.
    match unsafe { libc::getsockopt(socket, level, name, (&raw mut bytes).cast(), &raw mut length) } {
        0 => Ok(bytes),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// `ioctl(SIOCOUTQ)`: bytes of a TCP socket that its peer has not acknowledged, its end of stream counted as one.
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut bytes: libc::c_int = 0;
    // `SIOCOUTQ` has this number and this name, too.
    // SAFETY: the kernel writes one int to `bytes`, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// `send(2)` with `MSG_NOSIGNAL`, and `flags`.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, flags | SendFlags::NOSIGNAL)
}

/// `recv(2)`.
pub(crate) fn recv(socket: BorrowedFd<'_>, buf: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    rustix::net::recv(socket, buf, flags).map(|(_, len)| len)
}

/// `recv(2)` of one byte with `MSG_PEEK`, and `flags`: 1, or 0 at the end of the stream.
pub(crate) fn peek(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<usize, Errno> {
    let mut byte = [0];
    rustix::net::recv(socket, &mut byte[..], flags | RecvFlags::PEEK).map(|(_, len)| len)
}

/// `fcntl(F_GETFL)`, and `fcntl(F_SETFL)` if that shows a descriptor that blocks.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if flags.contains(OFlags::NONBLOCK) {
        return Ok(());
    }
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

/// `getsockopt(SO_TYPE)`: whether it is `SOCK_STREAM`.
pub(crate) fn is_stream(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    rustix::net::sockopt::socket_type(socket).map(|kind| kind == SocketType::STREAM)
}

/// `getsockopt(TCP_ULP)`: whether it is TCP with nothing on top of it in the kernel, as TLS would be, that receives by rules of its own.
pub(crate) fn is_plain_tcp(socket: BorrowedFd<'_>) -> bool {
    let mut name = [0_u8; 16];
    let mut length = mem::size_of_val(&name) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `name`, which outlives the call as `length` does.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_ULP,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    outcome == 0 && length == 0
}

/// What [`urgent_marks`] asks of one descriptor.
pub(crate) type Asked = libc::pollfd;

/// To be asked whether it holds an urgent mark (`POLLPRI`).
pub(crate) fn ask_for_mark(socket: BorrowedFd<'_>) -> Asked {
    Asked {
        fd: socket.as_raw_fd(),
        events: libc::POLLPRI,
        revents: 0,
    }
}

/// `poll(2)` without waiting, for all of them at once: those that hold an urgent mark. All of them where the call fails.
pub(crate) fn urgent_marks(asked: &mut [Asked]) -> impl Iterator<Item = RawFd> {
    // SAFETY: the pointer and the count are those of one exclusive borrow. A descriptor that was closed is only said to be none.
    let found = retry_on_intr(
        || match unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, 0) } {
            -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
            found => Ok(found),
        },
    );
    let (all, any) = (found.is_err(), found != Ok(0));
    let asked = if any { asked } else { &mut [] };
    asked
        .iter()
        .filter(move |one| all || one.revents & libc::POLLPRI != 0)
        .map(|one| one.fd)
}

/// `setsockopt(SO_RCVLOWAT)` with the value that it has: if there is something to read, pollers are told once more.
pub(crate) fn tell_pollers_again(socket: RawFd) {
    let Ok(bytes) = low_water_mark(socket) else { return };
    let length = mem::size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the value is one int that outlives the call, which is told its size. If the descriptor was closed it fails. If it is
    // another's by now it is given its own value, or, closed between the two, the one before's: 1, unless somebody chose another.
    unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            length,
        );
    }
}
