//! What pipes this user gets.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::{fs, io};

use rustix::param::page_size;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use spliceway::{Limits, PipePool, SizeClass};

use super::finding::{Check, Finding};
use crate::report::{errno_name, error_name};

use super::loopback::{SLOTS, pipe};
use super::machine::{self, setting};

const SOFT: &str = "fs.pipe-user-pages-soft";
/// The kernel's default of [`SOFT`].
const DEFAULT_SOFT: usize = 16_384;
/// The experiment with all pages ends after this many pipes.
const MOST_PIPES: usize = 4096;

pub(super) fn checks(exhaust: bool) -> Vec<Check> {
    let mut checks = vec![
        Check::new("new-pipe", "a new pipe has 16 slots", new_pipe).decisive(),
        Check::new("pool", "the pool of the relay lends pipes", pool).decisive(),
        Check::new("pipe-rounding", "sizes of pipes are powers of two pages", rounding),
        Check::new("pipe-limits", "the limits on pipes", limits),
        Check::new("pipe-pages", "pipes that this user holds", pages),
    ];
    if exhaust {
        checks.push(Check::new(
            "pipe-exhaust",
            "what happens beyond the soft limit",
            exhausted,
        ));
    }
    checks
}

fn new_pipe() -> io::Result<Finding> {
    let expected = SLOTS * page_size();
    let (_outlet, inlet) = match pipe() {
        Ok(pipe) => pipe,
        Err(error) => {
            return Ok(Finding::compared(format!("{expected} bytes"), error_name(&error))
                .so("", "Relays get no pipe, so they copy.")
                .advise(
                    "allow the system call pipe2 (EPERM, ENOSYS), or raise the limit on descriptors (EMFILE), open files or pipe pages (ENFILE)",
                ));
        }
    };
    let size = fcntl_getpipe_size(&inlet)?;
    Ok(Finding::judged(size >= expected, format!("{expected} bytes"), format!("{size} bytes"))
        .so(
            "The soft limit on pipe pages does not affect this user now.",
            "This user has reached its soft limit on pipe pages. A pipe of two slots is too small to gain anything, so relays copy.",
        )
        .advise(format!(
            "close programs of this user that hold pipes, or: sysctl -w {SOFT}={}",
            setting(SOFT).unwrap_or(DEFAULT_SOFT).max(DEFAULT_SOFT).saturating_mul(4)
        )))
}

fn pool() -> io::Result<Finding> {
    let limits = Limits::of_this_process();
    let pool = PipePool::new(limits.clone());
    let lent = pool.acquire(SizeClass::Kib256);
    let observed = match &lent {
        Ok(pipe) => format!(
            "{} KiB lent; at most {} pipes and {} pages",
            pipe.class().bytes() >> 10,
            limits.max_pipes,
            limits.max_pages
        ),
        Err(reason) => format!("refused: {reason}"),
    };
    Ok(
        Finding::judged(lent.is_ok(), "a pipe of 256 KiB, or a smaller one", observed)
            .so(
                "A relay takes a pipe while it moves bulk data. If none is left, it copies.",
                "A relay that gets no pipe copies.",
            )
            .advise("raise the limit on descriptors (LimitNOFILE= in a unit), or see the limits on pipes below"),
    )
}

fn rounding() -> io::Result<Finding> {
    let page = page_size();
    let (_outlet, inlet) = pipe()?;
    let (mut expected, mut observed) = (Vec::new(), Vec::new());
    for asked in [2_048, 4_096, 8_192, 12_288, 16_384, 20_480] {
        let granted = usize::div_ceil(asked, page).next_power_of_two() * page;
        expected.push(format!("{asked}→{granted}"));
        observed.push(match fcntl_setpipe_size(&inlet, asked) {
            Ok(_) => format!("{asked}→{}", fcntl_getpipe_size(&inlet)?),
            Err(errno) => format!("{asked}→{}", errno_name(errno)),
        });
    }
    Ok(Finding::compared(expected.join(" "), observed.join(" ")).so(
        "The relay reads the size back after it asks for one.",
        "The relay reads the size back, so it works. It may get other sizes than it asks for.",
    ))
}

fn limits() -> io::Result<Finding> {
    let [max, soft, hard] = ["fs.pipe-max-size", SOFT, "fs.pipe-user-pages-hard"].map(setting);
    let (Some(max), Some(soft), Some(hard)) = (max, soft, hard) else {
        return Ok(Finding::unknown("/proc/sys/fs cannot be read"));
    };
    let is_enough = max >= 1 << 20 && (soft == 0 || soft >= DEFAULT_SOFT) && (hard == 0 || hard >= DEFAULT_SOFT);
    Ok(Finding::judged(
        is_enough,
        format!("max 1048576 bytes, soft {DEFAULT_SOFT} pages, hard 0 (none), or more"),
        format!("max {max} bytes, soft {soft} pages, hard {hard}"),
    )
    .so(
        match soft / ((1 << 20) / page_size()) {
            0 => "There is no soft limit on the pipes of one user.".to_owned(),
            pipes => format!("{pipes} pipes of 1 MiB use up the soft limit of a user without privileges."),
        },
        "Fewer transfers get a pipe at the same time, or a smaller one.",
    )
    .advise(format!(
        "sysctl -w fs.pipe-max-size={} {SOFT}={} fs.pipe-user-pages-hard=0",
        max.max(1 << 20),
        if soft == 0 { 0 } else { soft.max(DEFAULT_SOFT) }
    )))
}

/// Counts the pipes of this user's processes. Their sizes are unknown, because opening a pipe to
/// ask for its size would change it.
fn pages() -> io::Result<Finding> {
    let user = rustix::process::getuid().as_raw();
    let mut pipes = HashSet::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let is_own = process.metadata().is_ok_and(|of| of.uid() == user);
        // Other entries of /proc, such as `self`, are no processes or repeat one.
        let is_process = process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if is_process
            && is_own
            && let Ok(descriptors) = fs::read_dir(process.path().join("fd"))
        {
            let targets = descriptors.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
            pipes.extend(targets.filter(|target| target.as_os_str().as_encoded_bytes().starts_with(b"pipe:")));
        }
    }
    let held = format!(
        "{} pipes, {} pages if none was resized",
        pipes.len(),
        pipes.len() * SLOTS
    );
    let soft = setting(SOFT).unwrap_or(DEFAULT_SOFT);
    if soft == 0 || machine::is_exempt_from_pipe_limits() {
        return Ok(Finding::info(
            held,
            "The kernel does not limit this user's pipes. The pool of the relay still has its own limit.",
        ));
    }
    let is_far = pipes.len() * SLOTS < soft / 2;
    Ok(Finding::judged(is_far, format!("at most half of {soft} pages"), held)
        .so(
            "The pool of the relay may use half of the limit, and the rest is for other programs.",
            "The pipes of other programs may leave too few pages for relays.",
        )
        .advise(format!("sysctl -w {SOFT}={}", soft.saturating_mul(4))))
}

/// Opens pipes until the kernel makes small ones.
fn exhausted() -> io::Result<Finding> {
    if machine::is_exempt_from_pipe_limits() {
        return Ok(Finding::unknown("the soft limit does not apply to this user"));
    }
    let mut held: Vec<(OwnedFd, OwnedFd)> = Vec::new();
    let mut pages = 0;
    let small = loop {
        let new = pipe().map_err(|error| io::Error::other(format!("after {} pipes: {error}", held.len())))?;
        let size = fcntl_getpipe_size(&new.1)?;
        if size < SLOTS * page_size() {
            break new;
        }
        let size = fcntl_setpipe_size(&new.1, 1 << 20).unwrap_or(size);
        pages += size / page_size();
        held.push(new);
        if held.len() == MOST_PIPES {
            return Ok(Finding::unknown(format!("{MOST_PIPES} pipes did not reach the limit")));
        }
    };
    let size = fcntl_getpipe_size(&small.1)?;
    let grown = match fcntl_setpipe_size(&small.1, SLOTS * page_size()) {
        Ok(_) => "grows".to_owned(),
        Err(errno) => errno_name(errno),
    };
    drop(held);
    let healed = fcntl_setpipe_size(&small.1, SLOTS * page_size()).is_ok();
    let later = if healed { "heals" } else { "stays small" };
    Ok(Finding::compared(
        format!("new pipes of {} bytes; F_SETPIPE_SZ: EPERM; heals", 2 * page_size()),
        format!("new pipes of {size} bytes; F_SETPIPE_SZ: {grown}; {later}"),
    )
    .so(
        format!("There were {pages} pages left for this user. Beyond them, relays copy until pages are free again."),
        "The relay copies if its pipes are small.",
    ))
}
