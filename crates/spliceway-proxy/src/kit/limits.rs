//! The limit on descriptors, and how the program divides them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets a write beyond the limit on the size of files (RLIMIT_FSIZE) fail with `EFBIG`, as on a
/// full disk. By default, the kernel ends the process with SIGXFSZ.
pub(crate) fn survive_file_size() {
    // Nobody reads the flag: that there is a handler is enough. Only an invalid signal is refused.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::<AtomicBool>::default());
}

/// Returns the limit on the CPU time of the process, if it has one. The kernel sends SIGXCPU at the
/// soft limit, and ends the process at the hard limit without a word.
pub(crate) fn cpu_time() -> Option<Duration> {
    getrlimit(Resource::Cpu).current.map(Duration::from_secs)
}

/// Sets the limit on descriptors and returns the new limit.
///
/// Without `nofile`, the function raises the soft limit to the hard limit. The usual soft limit of
/// 1024 exists for `select(2)`, which this program does not call. With that limit, the program
/// could serve only about 370 sessions.
///
/// Call this function before the first use of the pipe pool, because the pool derives its share
/// from the limit that it finds.
///
/// # Errors
/// Returns an error if `nofile` exceeds the limit for this user.
pub(crate) fn raise_descriptors(nofile: Option<u64>) -> io::Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    let asked = nofile.or(limit.maximum);
    let wanted = Rlimit {
        current: asked,
        // Root may raise the hard limit, too.
        maximum: limit
            .maximum
            .map(|maximum| nofile.map_or(maximum, |nofile| nofile.max(maximum))),
    };
    match (setrlimit(Resource::Nofile, wanted), nofile) {
        (Ok(()), _) => Ok(in_numbers(asked)),
        // Only a sandbox refuses this call. The program then works with the existing limit.
        (Err(_), None) => Ok(in_numbers(limit.current)),
        (Err(error), Some(nofile)) => {
            let maximum = in_numbers(limit.maximum);
            Err(io::Error::other(format!(
                "--nofile: cannot raise the limit on descriptors to {nofile} (the hard limit of this user is {maximum}): {error}"
            )))
        }
    }
}

/// Returns how many of `max` sessions may be sessions of `forward --udp`. Anybody can forge such
/// clients, so half of the permits is for the sessions of other services, if there are any.
pub(crate) fn datagram_sessions(max: usize, has_other_services: bool) -> usize {
    let half = if has_other_services { max / 2 } else { max };
    half.max(1)
}

/// Returns the most mirrors at the same time. This is 1/128 of the descriptors, because each mirror
/// has three: both ends of a pipe, and a connection.
pub(crate) fn mirrors(descriptors: usize) -> usize {
    (descriptors / 128).max(1)
}

/// The descriptors of one mirror.
pub(crate) const EACH_MIRROR: usize = 3;

/// Returns the most ports of sessions of datagrams. No other program of this machine can use such a
/// port meanwhile. A quarter of the ports is for others, such as lookups of names.
pub(crate) fn datagram_ports() -> usize {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    ports_in(&range).map_or(usize::MAX, |ports| (ports / 4 * 3).max(1))
}

/// Returns the number of ports from which the kernel chooses. `range` is the first one and the last
/// one.
fn ports_in(range: &str) -> Option<usize> {
    let mut ends = range.split_whitespace().map(|port| port.parse::<usize>().ok());
    let (first, last) = (ends.next()??, ends.next()??);
    Some((last + 1).saturating_sub(first))
}

/// Returns the limit as a number. `None` means no limit.
fn in_numbers(limit: Option<u64>) -> usize {
    limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX)
}

/// The descriptor budget of the process, in parts that add up to its limit. No part can use the
/// descriptors of another part. So even an unlimited number of clients cannot take descriptors from
/// running sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    limit: usize,
    /// The program's own descriptors: [`OWN`], and one for each listener.
    own: usize,
    /// The pipe pool's share, which the library enforces: two descriptors for each of
    /// `RLIMIT_NOFILE / 16` pipes.
    pipes: usize,
    /// Short-lived descriptors, for lookups, parallel attempts at a target, scrapers, and clients
    /// that are being refused.
    transient: usize,
    /// The remaining descriptors: two for each session.
    sessions: usize,
}

/// Descriptors for the three standard streams, the runtime's epoll, eventfd and signal pipe, and
/// log files. They include room for descriptors that libraries open briefly.
const OWN: usize = 24;
/// The divisor for the share of the pipes. They get 1/8 of the limit, as in the library
/// (`docs/tuning.md`).
const PIPES: usize = 8;
/// The divisor for the share of the short-lived descriptors. They get 1/8 of the limit.
///
/// A session that is being opened does not use its target's descriptor yet. If the session needs
/// more than this one, it uses short-lived descriptors.
const TRANSIENT: usize = 8;
/// One descriptor for the client, and one for the target.
const EACH_SESSION: usize = 2;

impl Descriptors {
    /// Divides `limit` descriptors for a program with this number of listeners.
    pub(crate) fn divide(limit: usize, listeners: usize) -> Self {
        let (own, pipes, transient) = (OWN.saturating_add(listeners), limit / PIPES, limit / TRANSIENT);
        Self {
            limit,
            own,
            pipes,
            transient,
            sessions: limit
                .saturating_sub(own)
                .saturating_sub(pipes)
                .saturating_sub(transient),
        }
    }

    /// Returns the number of short-lived descriptors.
    pub(crate) fn transient(&self) -> usize {
        self.transient
    }

    /// Returns the number of sessions that the descriptors allow. It is at least 1, because a
    /// program that serves no session is useless.
    pub(crate) fn sessions(&self) -> usize {
        (self.sessions / EACH_SESSION).max(1)
    }
}

impl fmt::Display for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            own,
            pipes,
            transient,
            sessions,
        } = self;
        write!(
            f,
            "{limit} descriptors: {own} for the program itself, {pipes} for pipes, {transient} for lookups and retries, {sessions} for {} sessions",
            self.sessions()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_limit_and_each_session_has_two() {
        for (limit, listeners, sessions) in [(256, 1, 83), (1024, 1, 371), (1_048_576, 10, 393_199)] {
            let descriptors = Descriptors::divide(limit, listeners);
            let Descriptors {
                own, pipes, transient, ..
            } = descriptors;
            assert_eq!(own + pipes + transient + descriptors.sessions, limit);
            assert_eq!(descriptors.sessions(), sessions, "{descriptors}");
        }
    }

    #[test]
    fn too_few_descriptors_still_allow_one_session() {
        assert_eq!(Descriptors::divide(24, 1).sessions(), 1);
        assert!(Descriptors::divide(usize::MAX, usize::MAX).sessions() >= 1);
        assert!(Descriptors::divide(usize::MAX, 1).sessions() > 1 << 40);
    }

    /// The kernel refuses a limit above `fs.nr_open` even for root.
    #[test]
    fn an_impossible_limit_is_refused_and_changes_nothing() {
        let before = getrlimit(Resource::Nofile);
        let error = raise_descriptors(Some(u64::MAX - 1)).unwrap_err();
        assert!(error.to_string().contains("cannot raise"), "{error}");
        let after = getrlimit(Resource::Nofile);
        assert_eq!((before.current, before.maximum), (after.current, after.maximum));
    }

    #[test]
    fn datagrams_leave_permits_and_ports_to_others() {
        assert_eq!((datagram_sessions(10, false), datagram_sessions(10, true)), (10, 5));
        assert_eq!((datagram_sessions(1, true), datagram_sessions(0, false)), (1, 1));
        assert!((1..1 << 16).contains(&datagram_ports()));
        assert_eq!(ports_in("32768\t60999\n"), Some(28_232));
        assert_eq!((ports_in(""), ports_in("5"), ports_in("9 5")), (None, None, Some(0)));
    }

    #[test]
    fn the_share_of_the_pipes_is_that_of_the_library() {
        let limit = 4096;
        assert_eq!(Descriptors::divide(limit, 1).pipes, limit / 16 * 2);
    }
}
