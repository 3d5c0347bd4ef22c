//! One thin function per system call; nothing is decided here.
//!
//! This is the only file of the crate that may hold `unsafe`, and only because these have no safe wrapper in rustix:
//! - the `TCP_INQ` socket option and the control message that comes of it (tcp(7), `include/uapi/linux/tcp.h`). They tell, with
//!   the bytes of a receive, how many more wait behind them, which no return value of `recv` tells;
//! - a thread's signal mask, because splice has no `MSG_NOSIGNAL` (signal(7), pthread_sigmask(3), sigtimedwait(2)).
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
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

/// `setsockopt(TCP_INQ)`: from now on [`recv_inq`] tells what is left. Linux 4.18; TCP alone has it.
pub(crate) fn enable_inq(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is one int, which outlives the call, and its size is passed with it.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INQ,
            (&raw const on).cast(),
            mem::size_of_val(&on) as libc::socklen_t,
        )
    };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The control message of `TCP_INQ` (level `IPPROTO_TCP`, type `TCP_CM_INQ`) as the kernel lays it out.
#[repr(C)]
struct InqMessage {
    header: libc::cmsghdr,
    left: libc::c_int,
    // CMSG_SPACE rounds up to the alignment of the header.
    padding: libc::c_int,
}

/// `include/linux/socket.h`, `include/uapi/linux/tls.h`, RFC 8446 §5.1.
const SOL_TLS: libc::c_int = 282;
const TLS_GET_RECORD_TYPE: libc::c_int = 2;
const TLS_APPLICATION_DATA: u8 = 23;

/// `recvmsg(2)`: the bytes received, and how many wait behind them if the kernel said.
pub(crate) fn recv_inq(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Option<usize>), Errno> {
    let flags = flags.bits() as libc::c_int;
    // SAFETY: all three are plain C structs of integers and pointers, for which all zeroes is a valid value.
    let (mut message, mut control): (libc::msghdr, InqMessage) = unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = mem::size_of::<InqMessage>() as _;
    // SAFETY: `message` points at one iovec over `buf`, borrowed mutably, and at a control buffer of the stated size that
    // is aligned for a cmsghdr; both outlive the call, and the kernel writes inside these bounds alone.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    if control.header.cmsg_level == SOL_TLS && control.header.cmsg_type == TLS_GET_RECORD_TYPE {
        // The kernel decrypts (kTLS), and tells of records that are no data to whoever has room for it. A plain recv, which has not,
        // fails with this errno.
        let [kind, ..] = control.left.to_ne_bytes();
        if kind != TLS_APPLICATION_DATA {
            return Err(Errno::IO);
        }
    }
    // Its type differs between C libraries, hence a cast that is needless for some.
    #[allow(clippy::unnecessary_cast)]
    let length = message.msg_controllen as usize;
    let said = length >= mem::size_of::<libc::cmsghdr>()
        && control.header.cmsg_level == libc::IPPROTO_TCP
        && control.header.cmsg_type == libc::TCP_CM_INQ;
    Ok((
        received as usize,
        said.then(|| usize::try_from(control.left).unwrap_or(0)),
    ))
}
