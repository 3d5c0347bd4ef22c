//! The sizes of pipes, and the limits and counts of a pool.

use std::time::Duration;

use crate::reason::Reason;

/// The sizes of a pool's pipes. There are only a few sizes, and all pipes of a class are
/// interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SizeClass {
    /// 64 KiB, the kernel's default. It is best for fragments as small as a segment.
    Kib64,
    /// 256 KiB. It provides most of the gain if fragments are large.
    Kib256,
    /// 1 MiB, the default of `fs.pipe-max-size`. It is for bulk transfers whose sink keeps up. By
    /// default, 64 of these pipes use all the pages that a user may hold. The pool therefore
    /// creates them only from the first half of its pages.
    Mib1,
}

impl SizeClass {
    /// Every class, smallest first.
    pub const ALL: [Self; 3] = [Self::Kib64, Self::Kib256, Self::Mib1];

    /// Returns the nominal size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Kib64 => 64 << 10,
            Self::Kib256 => 256 << 10,
            Self::Mib1 => 1 << 20,
        }
    }

    /// Returns the next larger class, or `self` if there is none.
    #[must_use]
    pub const fn larger(self) -> Self {
        match self {
            Self::Kib64 => Self::Kib256,
            Self::Kib256 | Self::Mib1 => Self::Mib1,
        }
    }

    /// Returns the next smaller class, if there is one.
    #[must_use]
    pub const fn smaller(self) -> Option<Self> {
        match self {
            Self::Kib64 => None,
            Self::Kib256 => Some(Self::Kib64),
            Self::Mib1 => Some(Self::Kib256),
        }
    }

    /// Returns the class that a pipe of this capacity serves, or `None` if the pipe is too small
    /// for all classes.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_capacity(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|class| class.bytes() <= bytes)
    }
}

/// The limits of a pool, for lent and idle pipes together.
///
/// At a limit, the pool lends a pipe of a smaller class if one is idle or there is room for one.
/// Otherwise, it closes idle pipes of this thread and of a few other threads to make room. If there
/// is still no room, it lends no pipe and returns [`Reason::PipeBudget`] or [`Reason::PageBudget`].
///
/// The pool creates pipes of 1 MiB only from the first half of the pages. It may create at least
/// one of them if the limit has room for one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum number of open pipes. Each pipe uses two descriptors.
    pub max_pipes: usize,
    /// The maximum number of pages (of this machine's page size) that the open pipes may use.
    pub max_pages: usize,
    /// The maximum number of idle pipes of each class that one thread keeps. Further idle pipes go
    /// to a list that every thread can use. The default is 16 pipes.
    pub idle_per_thread: usize,
    /// The pool closes a pipe that has been idle for this long. It may close the pipe after half of
    /// this time, but not earlier. The default is 10 s, which is longer than the gaps in a
    /// transfer.
    pub idle_timeout: Duration,
}

/// The default of [`Limits::idle_timeout`].
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

impl Limits {
    /// Returns limits that are a share of the limits of this process.
    ///
    /// Pipes get 1/8 of the descriptors that `RLIMIT_NOFILE` allows. The limit on pages is 1/2 of
    /// `fs.pipe-user-pages-soft`, or 262,144 pages if that limit does not apply. On systems other
    /// than Linux, both limits are 0.
    #[must_use]
    pub fn of_this_process() -> Self {
        let (max_pipes, max_pages) = process::pipes_and_pages();
        Self {
            max_pipes,
            max_pages,
            idle_per_thread: 16,
            idle_timeout: IDLE_TIMEOUT,
        }
    }

    /// Returns these limits with another [`max_pipes`](Limits::max_pipes).
    #[must_use]
    pub fn with_max_pipes(self, max_pipes: usize) -> Self {
        Self { max_pipes, ..self }
    }

    /// Returns these limits with another [`max_pages`](Limits::max_pages).
    #[must_use]
    pub fn with_max_pages(self, max_pages: usize) -> Self {
        Self { max_pages, ..self }
    }

    /// Returns these limits with another [`idle_per_thread`](Limits::idle_per_thread).
    #[must_use]
    pub fn with_idle_per_thread(self, idle_per_thread: usize) -> Self {
        Self {
            idle_per_thread,
            ..self
        }
    }

    /// Returns these limits with another [`idle_timeout`](Limits::idle_timeout).
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout, ..self }
    }
}

#[cfg(target_os = "linux")]
mod process {
    use std::fs;

    use rustix::process::{Resource, getrlimit};

    /// Pipes get 1/8 of the process's descriptors. This constant is the divisor. Each pipe uses two
    /// descriptors.
    const DESCRIPTOR_SHARE: usize = 8;
    /// The pool gets 1/2 of the pages that an unprivileged user may hold. This constant is the
    /// divisor. The other half is for the user's other programs.
    const PAGE_SHARE: usize = 2;
    /// The kernel's default of `fs.pipe-user-pages-soft`, in pages. The pool uses it if the setting
    /// cannot be read.
    const SOFT_PAGES: usize = 16_384;
    /// The page limit if no soft limit applies. With pages of 4 KiB, it is 1 GiB, so that the pool
    /// still has a limit of its own.
    const PRIVILEGED_PAGES: usize = 262_144;

    /// Returns how many pipes and how many pages a pool of this process may have.
    pub(super) fn pipes_and_pages() -> (usize, usize) {
        let descriptors = getrlimit(Resource::Nofile)
            .current
            .map_or(usize::MAX, |soft| soft as usize);
        let pages = soft_page_limit().map_or(PRIVILEGED_PAGES, |soft| soft / PAGE_SHARE);
        ((descriptors / DESCRIPTOR_SHARE / 2).max(1), pages)
    }

    /// Returns how many pipe pages the kernel allows this user, or `None` if it does not limit this
    /// process.
    fn soft_page_limit() -> Option<usize> {
        let soft = fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(SOFT_PAGES);
        (soft > 0 && !is_privileged()).then_some(soft)
    }

    /// Returns whether `pipe_is_unprivileged_user()` (fs/pipe.c) exempts this process. The
    /// exemption requires `CAP_SYS_RESOURCE` or `CAP_SYS_ADMIN` in the initial user namespace. A
    /// container's root has them only in its own namespace. The identity map of all ids shows that
    /// a namespace is the initial one.
    fn is_privileged() -> bool {
        const SYS_ADMIN: u64 = 1 << 21;
        const SYS_RESOURCE: u64 = 1 << 24;
        let capabilities = fs::read_to_string("/proc/self/status")
            .ok()
            .and_then(|status| {
                let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
                u64::from_str_radix(line.trim(), 16).ok()
            })
            .unwrap_or(0);
        let initial_namespace = fs::read_to_string("/proc/self/uid_map")
            .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
        capabilities & (SYS_ADMIN | SYS_RESOURCE) != 0 && initial_namespace
    }
}

#[cfg(not(target_os = "linux"))]
mod process {
    pub(super) fn pipes_and_pages() -> (usize, usize) {
        (0, 0)
    }
}

/// The counters and gauges of a pool at one moment. The pool reads them one after another, so sums
/// may be off by a few under load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// The number of pipes created so far.
    pub created: u64,
    /// The number of acquires served by a pipe that had been used before.
    pub reused: u64,
    /// The number of pipes in use now.
    pub lent: usize,
    /// The number of idle pipes now.
    pub idle: usize,
    /// The number of other threads' free lists that were searched for a pipe.
    pub searched: u64,
    /// The number of pages of all open pipes, lent and idle.
    pub pages: usize,
    /// The number of pipes closed because they came back with bytes inside, or after an error.
    pub closed_dirty: u64,
    /// The number of pipes closed because they had been idle for a while.
    pub closed_idle: u64,
    /// The number of refused acquires by reason. Reasons that never occurred are left out.
    pub denied: Vec<(Reason, u64)>,
}
