//! This module has one thin function per system call. It makes no decisions.
//!
//! This is the only file of the crate that may contain `unsafe`, and only because rustix has no
//! safe wrapper for these:
//! - `SIOCOUTQ`, the bytes of a TCP socket that its peer has not acknowledged (tcp(7));
//! - `TCP_INFO`, what the kernel knows about a connection (tcp(7), `include/uapi/linux/tcp.h`);
//! - `TCP_ULP`, which distinguishes a plain TCP socket from one with TLS in the kernel, and gives a
//!   socket to it (tcp(7), `include/uapi/linux/tcp.h`);
//! - the options and the control messages of TLS in the kernel (`include/uapi/linux/tls.h`);
//! - `poll` and `SO_RCVLOWAT` on sockets that may be closed by now, which a borrow cannot express
//!   (poll(2), socket(7));
//! - a page that the kernel clears in forked children (madvise(2), `MADV_WIPEONFORK`);
//! - a thread's signal mask, because splice has no `MSG_NOSIGNAL` (signal(7), pthread_sigmask(3),
//!   sigtimedwait(2)).
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use rustix::event::PollFlags;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, Timespec};
use rustix::fs::OFlags;
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, SpliceFlags};

pub(crate) use rustix::io::Errno;
use rustix::net::SocketType;
pub(crate) use rustix::net::{RecvFlags, SendFlags};

/// Calls `pipe2(O_CLOEXEC | O_NONBLOCK)` and returns the reading and the writing end.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
}

/// Calls `fcntl(F_GETPIPE_SZ)` and returns the size in bytes.
pub(crate) fn pipe_size(pipe: BorrowedFd<'_>) -> Result<usize, Errno> {
    rustix::pipe::fcntl_getpipe_size(pipe)
}

/// Calls `fcntl(F_SETPIPE_SZ)` and returns the size in bytes that the kernel granted.
pub(crate) fn set_pipe_size(pipe: BorrowedFd<'_>, bytes: usize) -> Result<usize, Errno> {
    rustix::pipe::fcntl_setpipe_size(pipe, bytes)
}

/// Calls `splice(from, to, len, SPLICE_F_NONBLOCK)`. It never sets `SPLICE_F_MORE`, which corks the
/// sink for up to 200 ms.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
    rustix::pipe::splice(from, None, to, None, len, SpliceFlags::NONBLOCK)
}

/// Calls `tee(from, to, len, SPLICE_F_NONBLOCK)` between two pipes.
pub(crate) fn tee(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
    rustix::pipe::tee(from, to, len, SpliceFlags::NONBLOCK)
}

/// Returns a number for this process that differs from the number of each process from which it was
/// forked. A call costs one load. If the kernel cannot clear pages (before Linux 4.14), it costs a
/// system call, `getpid(2)`.
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
    // A fork does not clear this, so a child continues from its parent's number.
    static LAST: AtomicU32 = AtomicU32::new(0);
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(of_another_thread) => of_another_thread,
    }
}

/// Calls `mmap(2)` and `madvise(MADV_WIPEONFORK)`. Returns a word that is 0 again in each forked
/// child. The word lives as long as the process.
fn word_cleared_by_fork() -> Option<&'static AtomicU32> {
    let bytes = rustix::param::page_size();
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: this is a new anonymous mapping, at an address that the kernel chooses.
    let page = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was mapped above with this length, and no other code knows it yet.
    if unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: the page was mapped above with this length, and no other code knows it yet.
        unsafe { libc::munmap(page, bytes) };
        return None;
    }
    // SAFETY: the page is aligned and is never unmapped. It holds zeroes, and a word of zeroes is a
    // valid `AtomicU32`.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}

/// Calls `sigaction(SIGPIPE)` and returns whether that signal would end this process. Rust programs
/// ignore the signal from the start. A host program in another language might not ignore it.
pub(crate) fn dies_of_sigpipe() -> bool {
    // SAFETY: a `sigaction` of zeroes is valid, and the call only writes the current action there.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_DFL
    }
}

/// Calls [`splice`] and suppresses the `SIGPIPE` that it may raise.
pub(crate) fn splice_without_sigpipe(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
    // The call may raise the signal even if it returns a short count. The bytes go out in batches,
    // and the call does not report the error of a later batch.
    without_sigpipe(|| splice(from, to, len), |outcome| outcome != Ok(len))
}

/// Calls [`write()`] and suppresses the `SIGPIPE` that it may raise.
pub(crate) fn write_without_sigpipe(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    without_sigpipe(|| write(fd, bytes), |outcome| outcome == Err(Errno::PIPE))
}

/// Blocks `SIGPIPE` in this thread for the call, and consumes the signal that the call may have
/// raised. (The kernel sends that signal to the calling thread.)
pub(crate) fn without_sigpipe(
    call: impl FnOnce() -> Result<usize, Errno>,
    may_have_raised: impl FnOnce(Result<usize, Errno>) -> bool,
) -> Result<usize, Errno> {
    // SAFETY: signal sets are plain memory, for which all zeroes is valid. Each pointer points to a
    // value on this stack, or is null where the call allows it. The last call restores the mask.
    unsafe {
        let (mut sigpipe, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
        libc::sigemptyset(&raw mut sigpipe);
        libc::sigaddset(&raw mut sigpipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const sigpipe, &raw mut before);
        let outcome = call();
        // If the program had already blocked the signal, it may want to handle the signal itself.
        if may_have_raised(outcome) && libc::sigismember(&raw const before, libc::SIGPIPE) == 0 {
            let at_once: libc::timespec = mem::zeroed();
            libc::sigtimedwait(&raw const sigpipe, std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        outcome
    }
}

pub(crate) fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize, Errno> {
    rustix::io::read(fd, buf)
}

pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::io::write(fd, bytes)
}

/// Calls `ioctl(FIONREAD)` and returns the number of bytes.
pub(crate) fn bytes_to_read(fd: BorrowedFd<'_>) -> Result<usize, Errno> {
    rustix::io::ioctl_fionread(fd).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Calls `poll(POLLOUT)` without waiting. Returns whether a write would now find room, or an error.
pub(crate) fn is_writable(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    retry_on_intr(|| rustix::event::poll(&mut polled, Some(&Timespec::default()))).map(|ready| ready > 0)
}

/// Calls `poll(POLLIN | POLLPRI | POLLRDHUP)` without waiting, and returns the reported events.
pub(crate) fn poll_source(fd: BorrowedFd<'_>) -> Result<PollFlags, Errno> {
    let mut polled = [PollFd::from_borrowed_fd(
        fd,
        PollFlags::IN | PollFlags::PRI | PollFlags::RDHUP,
    )];
    retry_on_intr(|| rustix::event::poll(&mut polled, Some(&Timespec::default())))?;
    Ok(polled[0].revents())
}

/// Calls `epoll_create1(2)`, and `epoll_ctl(2)` with `EPOLLOUT | EPOLLET`.
pub(crate) fn write_events(sink: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let events = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&events, sink, EventData::new_u64(0), EventFlags::OUT | EventFlags::ET)?;
    Ok(events)
}

/// Calls `epoll_wait(2)` without waiting, for the event of [`write_events`]. An error leaves the
/// event where it is.
pub(crate) fn discard_events(events: BorrowedFd<'_>) {
    let mut event = [Event {
        flags: EventFlags::empty(),
        data: EventData::new_u64(0),
    }];
    let _ = retry_on_intr(|| epoll::wait(events, &mut event[..], Some(&Timespec::default())));
}

/// Calls `getsockopt(SO_RCVLOWAT)` and returns the mark in bytes.
pub(crate) fn receive_low_water_mark(socket: BorrowedFd<'_>) -> Result<libc::c_int, Errno> {
    low_water_mark(socket.as_raw_fd())
}

/// Does the same as [`receive_low_water_mark`] for a descriptor that may be closed by now.
fn low_water_mark(socket: RawFd) -> Result<libc::c_int, Errno> {
    let mut bytes: libc::c_int = 0;
    let mut length = mem::size_of_val(&bytes) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    // SAFETY: the kernel writes at most `length` bytes, one int, to `bytes`. Both variables outlive
    // the call.
    match unsafe { libc::getsockopt(socket, level, name, (&raw mut bytes).cast(), &raw mut length) } {
        0 => Ok(bytes),
        _ => Err(last_errno()),
    }
}

/// Calls `ioctl(SIOCOUTQ)` and returns how many bytes of a TCP socket its peer has not
/// acknowledged. A FIN counts as one byte.
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut bytes: libc::c_int = 0;
    // `TIOCOUTQ` is another name of `SIOCOUTQ`. Both have the same number.
    // SAFETY: the kernel writes one int to `bytes`, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(last_errno()),
    }
}

/// Calls `getsockopt(TCP_INFO)`, which fills the beginning of `info` as far as the kernel knows it.
pub(crate) fn tcp_info(socket: BorrowedFd<'_>, info: &mut [u8]) -> Result<(), Errno> {
    option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, info)
}

/// Calls `setsockopt`.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(value.len()).unwrap_or(0);
    // SAFETY: the kernel reads `length` bytes of `value`, which outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), length) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Calls `getsockopt`, which fills the beginning of `value`. Every byte is a valid `u8`.
pub(crate) fn option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut [u8],
) -> Result<(), Errno> {
    let mut length = libc::socklen_t::try_from(value.len()).unwrap_or(0);
    let bytes = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `length` bytes to `value`. Both variables outlive the call.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, bytes, &raw mut length) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Room for one control message with one byte, which is the type of a record.
#[repr(align(8))]
struct RecordType([u8; 32]);

/// Calls `recvmsg(MSG_DONTWAIT)` on a socket with TLS in the kernel. Returns the type of the record
/// or records, and the number of bytes. The end of the stream has no type.
pub(crate) fn receive_record(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(Option<u8>, usize), Errno> {
    let mut control = RecordType([0; 32]);
    let mut part = part(bytes.as_mut_ptr(), bytes.len());
    let mut message = message(&mut part, &mut control);
    // SAFETY: `message` describes `bytes` and `control`. All of them outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let received = usize::try_from(received).map_err(|_| last_errno())?;
    // SAFETY: the kernel has set the length of the control messages, which is within `control`.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if first.is_null() {
        return Ok((None, received));
    }
    // SAFETY: `first` points to a control message within `control`, which is aligned for it.
    let header = unsafe { *first };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_TLS, libc::TLS_GET_RECORD_TYPE) {
        return Ok((None, received));
    }
    // SAFETY: a control message of this type has one byte.
    Ok((Some(unsafe { *libc::CMSG_DATA(first) }), received))
}

/// Calls `sendmsg(MSG_DONTWAIT)` on a socket with TLS in the kernel, for a record of this type.
pub(crate) fn send_record(socket: BorrowedFd<'_>, kind: u8, bytes: &[u8]) -> Result<usize, Errno> {
    let mut control = RecordType([0; 32]);
    let mut part = part(bytes.as_ptr().cast_mut(), bytes.len());
    let mut message = message(&mut part, &mut control);
    // SAFETY: the macros compute sizes. `control` is aligned for a control message, and has room
    // for one with one byte.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(1) as _;
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        (*first).cmsg_level = libc::SOL_TLS;
        (*first).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*first).cmsg_len = libc::CMSG_LEN(1) as _;
        ptr::write(libc::CMSG_DATA(first), kind);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `message` describes `bytes`, which the kernel only reads, and `control`. All of them
    // outlive the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| last_errno())
}

fn part(bytes: *mut u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.cast(),
        iov_len: length,
    }
}

/// Returns a message that describes both. They must outlive it.
fn message(part: &mut libc::iovec, control: &mut RecordType) -> libc::msghdr {
    // SAFETY: the fields are integers and pointers, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    message
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Calls `send(2)` with `MSG_NOSIGNAL` and `flags`.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, flags | SendFlags::NOSIGNAL)
}

pub(crate) fn recv(socket: BorrowedFd<'_>, buf: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    rustix::net::recv(socket, buf, flags).map(|(_, len)| len)
}

/// Calls `fcntl(F_GETFL)`, and `fcntl(F_SETFL)` if the descriptor blocks.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if flags.contains(OFlags::NONBLOCK) {
        return Ok(());
    }
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

/// Calls `getsockopt(SO_TYPE)` and returns whether the type is `SOCK_STREAM`.
pub(crate) fn is_stream(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    rustix::net::sockopt::socket_type(socket).map(|kind| kind == SocketType::STREAM)
}

/// Calls `getsockopt(TCP_ULP)` and returns whether the socket is TCP without another protocol on
/// top of it in the kernel. Such a protocol, for example TLS, has its own rules for receives.
pub(crate) fn is_plain_tcp(socket: BorrowedFd<'_>) -> bool {
    let mut name = [0_u8; 16];
    let mut length = mem::size_of_val(&name) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `name`. Both variables outlive the call.
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

/// The query of [`urgent_marks`] for one descriptor.
pub(crate) type MarkQuery = libc::pollfd;

/// Returns the query that checks the socket for an urgent mark (`POLLPRI`).
pub(crate) fn mark_query(socket: BorrowedFd<'_>) -> MarkQuery {
    MarkQuery {
        fd: socket.as_raw_fd(),
        events: libc::POLLPRI,
        revents: 0,
    }
}

/// Calls `poll(2)` once for all descriptors, without waiting. Returns the descriptors that hold an
/// urgent mark. If the call fails, it returns all descriptors.
pub(crate) fn urgent_marks(queries: &mut [MarkQuery]) -> impl Iterator<Item = RawFd> {
    // SAFETY: the pointer and the count come from one exclusive borrow. If a descriptor was closed,
    // the kernel only reports that it is not open.
    let found = retry_on_intr(
        || match unsafe { libc::poll(queries.as_mut_ptr(), queries.len() as libc::nfds_t, 0) } {
            -1 => Err(last_errno()),
            found => Ok(found),
        },
    );
    let (all, any) = (found.is_err(), found != Ok(0));
    let queries = if any { queries } else { &mut [] };
    queries
        .iter()
        .filter(move |one| all || one.revents & libc::POLLPRI != 0)
        .map(|one| one.fd)
}

/// Calls `setsockopt(SO_RCVLOWAT)` with the value that the socket already has. If there is
/// something to read, the kernel notifies pollers once more.
pub(crate) fn tell_pollers_again(socket: RawFd) {
    let Ok(bytes) = low_water_mark(socket) else { return };
    let length = mem::size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the value is one int that outlives the call, and `length` is its size. If the
    // descriptor was closed, the call fails. If the descriptor now refers to another socket, the
    // call sets that socket's own value again. If the descriptor comes to refer to another socket
    // between the two calls, the new socket gets the value of the old one. That value is 1, unless
    // other code changed it.
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
