//! One thin function per system call. This file decides nothing.
//!
//! This is the only file of the crate that may contain `unsafe`. No dependency has a safe wrapper
//! for seccomp's user notifications, timers that signal one thread, signal dispositions, `fork` or
//! some socket options. See seccomp(2), seccomp_unotify(2), timer_create(2) and socket(7).
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A kind of call as the filter recognizes it: by its number and, if given, by the low half of one
/// argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Watched {
    pub(crate) number: u32,
    pub(crate) argument: Option<(u32, u32)>,
}

/// A call that waits for an answer.
#[derive(Debug)]
pub(crate) struct Notice {
    id: u64,
    pub(crate) thread: u32,
    pub(crate) number: libc::c_long,
    pub(crate) arguments: [u64; 6],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Errno(i32),
    Returns(i64),
    /// The kernel executes the call as if there were no filter.
    GoOn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// There is a notice to receive.
    Stopped,
    /// The filter no longer applies to any thread.
    Ended,
}

/// `AUDIT_ARCH_*` from linux/audit.h: the ELF machine, 64 bits, little endian.
const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 62 } else { 183 } | 0xc000_0000;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the filter knows the call numbers of x86-64 and AArch64");

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` from linux/seccomp.h: the caller and the supervisor share a
/// processor, because only one of them runs at a time.
const SYNC_WAKE_UP: u64 = 1;

// Offsets in struct seccomp_data, and the offset of an argument's low half on a little-endian
// machine.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const fn argument_at(index: u32) -> u32 {
    16 + 8 * index
}

/// Installs the filter on the calling thread and returns its listener (`seccomp(2)`,
/// `SECCOMP_SET_MODE_FILTER`, `SECCOMP_FILTER_FLAG_NEW_LISTENER`). Sets `no_new_privs`, because
/// otherwise only root may install a filter.
pub(crate) fn filter_this_thread(watched: &[Watched]) -> io::Result<OwnedFd> {
    let mut program = filter(watched);
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the call has only integer arguments.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let listen = |flags: libc::c_ulong| {
        // SAFETY: `program` and its instructions outlive the call, which copies them.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::c_long::from(libc::SECCOMP_SET_MODE_FILTER),
                flags | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program,
            )
        };
        check(outcome as libc::c_int)
    };
    // With this flag (Linux 5.19), a signal does not make the supervisor see a call twice.
    let listener = match listen(libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => listen(0)?,
        listener => listener?,
    };
    // SAFETY: the kernel just returned this descriptor, and no other code knows it.
    let listener = unsafe { OwnedFd::from_raw_fd(listener) };
    // SAFETY: this command gets an integer by value. It affects only speed, so its error on Linux
    // before 6.6 does not matter.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    Ok(listener)
}

/// Returns a filter that asks the supervisor about watched calls and lets all others pass, even on
/// other architectures. The filter is not a sandbox.
fn filter(watched: &[Watched]) -> Vec<libc::sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const UNLESS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let instruction = |code: u32, k: u32, skip_unless_equal: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: skip_unless_equal,
        k,
    };
    let pass = instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0);
    let ask = instruction(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0);
    let mut program = vec![
        instruction(LOAD, ARCHITECTURE_AT, 0),
        libc::sock_filter {
            code: UNLESS as u16,
            jt: 1,
            jf: 0,
            k: ARCHITECTURE,
        },
        pass,
        instruction(LOAD, NUMBER_AT, 0),
    ];
    for call in watched {
        match call.argument {
            None => program.extend([instruction(UNLESS, call.number, 1), ask]),
            Some((index, value)) => program.extend([
                instruction(UNLESS, call.number, 4),
                instruction(LOAD, argument_at(index), 0),
                instruction(UNLESS, value, 1),
                ask,
                pass,
            ]),
        }
    }
    program.push(pass);
    program
}

/// Waits until there is a notice, or until no thread is left that could send one (`poll(2)`).
pub(crate) fn wait(listener: &OwnedFd) -> io::Result<Waited> {
    let mut poll = libc::pollfd {
        fd: listener.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        // SAFETY: the call gets one pollfd, which is borrowed mutably.
        match check(unsafe { libc::poll(&raw mut poll, 1, -1) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) if poll.revents & libc::POLLIN != 0 => return Ok(Waited::Stopped),
            Ok(_) => return Ok(Waited::Ended),
        }
    }
}

/// Receives a notice (`ioctl(SECCOMP_IOCTL_NOTIF_RECV)`). Returns `None` if the caller is gone.
pub(crate) fn receive(listener: &OwnedFd) -> io::Result<Option<Notice>> {
    // SAFETY: a plain C struct of integers, for which all zeroes is a valid value. The kernel
    // requires zeroes.
    let mut raw: libc::seccomp_notif = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one such struct, which is borrowed mutably for the call.
    let outcome = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut raw) };
    Ok(unless_gone(outcome)?.then_some(Notice {
        id: raw.id,
        thread: raw.pid,
        number: libc::c_long::from(raw.data.nr),
        arguments: raw.data.args,
    }))
}

/// Answers a notice (`ioctl(SECCOMP_IOCTL_NOTIF_SEND)`). The caller may be gone.
pub(crate) fn answer(listener: &OwnedFd, notice: &Notice, answer: Answer) -> io::Result<()> {
    let (val, error, flags) = match answer {
        Answer::Errno(errno) => (0, -errno, 0),
        Answer::Returns(value) => (value, 0, 0),
        Answer::GoOn => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
    };
    let mut raw = libc::seccomp_notif_resp {
        id: notice.id,
        val,
        error,
        flags,
    };
    // SAFETY: the kernel reads one such struct, which outlives the call.
    unless_gone(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut raw) })?;
    Ok(())
}

fn unless_gone(outcome: libc::c_int) -> io::Result<bool> {
    match check(outcome) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(false),
        Err(error) => Err(error),
    }
}

static ALARMS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of alarms that the handler from [`count_alarms`] counted.
pub(crate) fn alarms() -> u64 {
    ALARMS.load(Ordering::Relaxed)
}

/// Installs a `SIGALRM` handler that counts, without `SA_RESTART` (`sigaction(2)`).
pub(crate) fn count_alarms() -> io::Result<()> {
    extern "C" fn count(_signal: libc::c_int) {
        ALARMS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: a plain C struct. All zeroes means no flags, an empty mask and the default handler.
    // The next line replaces the handler.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = count as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler adds to an atomic, which is safe in a signal handler. The handler lives
    // as long as the process.
    check(unsafe { libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()) }).map(drop)
}

/// A POSIX timer that signals the thread that created it.
#[derive(Debug)]
pub(crate) struct Timer(libc::timer_t);

// SAFETY: a timer ID is a number that belongs to the process, with a pointer type. Any thread may
// delete the timer.
unsafe impl Send for Timer {}

impl Timer {
    /// Starts a timer that sends `SIGALRM` to this thread once per `period` (`timer_create(2)`,
    /// `timer_settime(2)`).
    pub(crate) fn start(period: Duration) -> io::Result<Self> {
        // SAFETY: a plain C struct of integers and a pointer that is not read. All zeroes is a
        // valid value.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        // SAFETY: the call has no arguments and cannot fail.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = ptr::null_mut();
        // SAFETY: both structs outlive the call.
        check(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) })?;
        let timer = Self(timer);
        let period = libc::timespec {
            tv_sec: period.as_secs() as _,
            tv_nsec: libc::c_long::from(period.subsec_nanos() as i32),
        };
        let every = libc::itimerspec {
            it_interval: period,
            it_value: period,
        };
        // SAFETY: this value owns the timer, and the struct outlives the call.
        check(unsafe { libc::timer_settime(timer.0, 0, &raw const every, ptr::null_mut()) })?;
        Ok(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: this value owns the timer, which is not used after this.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Restores the default action of `SIGPIPE`, which ends the process (`signal(2)`). Rust programs
/// start with the signal ignored. The host of a shared library, or a C program, does not.
///
/// # Errors
/// The call does not fail in a healthy process.
pub fn die_of_broken_pipes() -> io::Result<()> {
    // SAFETY: the default disposition runs no code of this process.
    let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    if before == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns whether `SIGPIPE` is ignored now (`sigaction(2)`).
///
/// # Errors
/// The call does not fail in a healthy process.
pub fn ignores_broken_pipes() -> io::Result<bool> {
    // SAFETY: a plain C struct, for which all zeroes is a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one such struct, which is borrowed mutably for the call.
    check(unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut action) })?;
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

/// Runs `work` in a child process, which then exits without running other code (`fork(2)`). Returns
/// the result of `work`, or `false` if the child panicked or did not end within 20 s.
///
/// # Errors
/// Returns the `fork(2)` and `waitpid(2)` errors.
pub fn in_fork(work: impl FnOnce() -> bool) -> io::Result<bool> {
    // SAFETY: only the calling thread continues in the child, and glibc and musl keep the allocator
    // usable there. `work` comes from a test and does not wait for a lock that another thread may
    // hold.
    let child = check(unsafe { libc::fork() })?;
    if child == 0 {
        // SAFETY: the call gets an integer. The default action of SIGALRM ends the process.
        unsafe { libc::alarm(20) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let status = if matches!(outcome, Ok(true)) { 0 } else { 1 };
        // SAFETY: the call never returns, and runs none of the parent's exit handlers.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: the kernel writes one int, which is borrowed mutably for the call.
    check(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
    Ok(status == 0)
}

/// A socket option whose value is an int, and for which no dependency has a safe wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// `SO_RCVLOWAT`: the kernel reports the socket as readable only with at least this many bytes.
    LowWaterMark,
    /// `SO_PEEK_OFF`: a peek returns the bytes from this position, and moves the position.
    PeekOffset,
    /// `SO_TIMESTAMPING`: with [`SENT_TIMES`](Self::SENT_TIMES), each send puts a time into the
    /// error queue.
    Timestamping,
    /// `SO_ZEROCOPY`: permits `MSG_ZEROCOPY`.
    ZeroCopy,
    /// `SO_BUSY_POLL`.
    BusyPoll,
    /// `SO_PASSCRED`.
    PassCredentials,
    /// `SO_OOBINLINE`.
    UrgentInline,
    /// `TCP_CORK`.
    Cork,
    /// `TCP_INQ`.
    ReportQueue,
    /// `TCP_NOTSENT_LOWAT`.
    UnsentLowWaterMark,
    /// `TCP_WINDOW_CLAMP`.
    WindowClamp,
}

impl SocketOption {
    /// `SOF_TIMESTAMPING_TX_SOFTWARE`, `SOF_TIMESTAMPING_SOFTWARE` and
    /// `SOF_TIMESTAMPING_OPT_TSONLY`.
    pub const SENT_TIMES: libc::c_int = 0b1000_0001_0010;

    fn level_and_name(self) -> (libc::c_int, libc::c_int) {
        match self {
            Self::LowWaterMark => (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
            Self::PeekOffset => (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
            Self::Timestamping => (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
            Self::ZeroCopy => (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
            Self::BusyPoll => (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
            Self::PassCredentials => (libc::SOL_SOCKET, libc::SO_PASSCRED),
            Self::UrgentInline => (libc::SOL_SOCKET, libc::SO_OOBINLINE),
            Self::Cork => (libc::IPPROTO_TCP, libc::TCP_CORK),
            Self::ReportQueue => (libc::IPPROTO_TCP, libc::TCP_INQ),
            Self::UnsentLowWaterMark => (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
            Self::WindowClamp => (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
        }
    }
}

/// Calls `setsockopt(2)`.
///
/// # Errors
/// Returns an error if the descriptor is not a socket, or if its family lacks the option.
pub fn set_option(socket: impl AsFd, option: SocketOption, value: libc::c_int) -> io::Result<()> {
    let (level, name) = option.level_and_name();
    // SAFETY: the value is one int that outlives the call, and the call gets its size.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    check(outcome).map(drop)
}

/// Converts −1 into the error in errno. Any other number is a value or a descriptor.
fn check(outcome: libc::c_int) -> io::Result<RawFd> {
    if outcome == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(outcome)
}
