//! Descriptors: how many this process may open, and what they are for.

use std::fmt;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sets the limit on descriptors, and says what it is from now on.
///
/// Without `nofile` the soft limit is raised to the hard one: the usual soft limit of 1024 is for the sake of `select(2)`, which nothing
/// here calls; it would end at some 370 sessions. Comes before the first use of the pipe pool, whose share of descriptors is
/// counted from the limit it finds.
///
/// # Errors
/// `nofile` is more than this user may have.
pub(crate) fn raise_descriptors(nofile: Option<u64>) -> io::Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    let asked = nofile.or(limit.maximum);
    let wanted = Rlimit {
        current: asked,
        // Root may raise this as well.
        maximum: limit
            .maximum
            .map(|maximum| nofile.map_or(maximum, |nofile| nofile.max(maximum))),
    };
    match (setrlimit(Resource::Nofile, wanted), nofile) {
        (Ok(()), _) => Ok(in_numbers(asked)),
        // Refused only by a sandbox: then what there is must do.
        (Err(_), None) => Ok(in_numbers(limit.current)),
        (Err(error), Some(nofile)) => {
            let maximum = in_numbers(limit.maximum);
            Err(io::Error::other(format!(
                "cannot raise the limit on descriptors to {nofile} (this user's is {maximum}): {error}"
            )))
        }
    }
}

/// `None` is without limit.
fn in_numbers(limit: Option<u64>) -> usize {
    limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX)
}

/// What the descriptors of a process are for, in parts that add up to its limit: whatever each of these takes, none of them can take
/// another's. So clients without number cost running sessions nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    limit: usize,
    /// The program's own: [`OWN`], and its listeners.
    own: usize,
    /// The pipe pool's share, which the library holds itself to: two for each of `RLIMIT_NOFILE / 16` pipes.
    pipes: usize,
    /// What comes and goes: lookups, second attempts at a target, scrapers, clients that are being refused.
    transient: usize,
    /// The rest: two for each session.
    sessions: usize,
}

/// Three standard streams, the runtime's epoll, eventfd and signal pipe, log files; and room for what libraries open for a moment.
const OWN: usize = 24;
/// One part in so many is for pipes: the library's share, `docs/tuning.md`.
const PIPES: usize = 8;
/// One part in so many is for what comes and goes. A session that is being opened has one descriptor that it does not use
/// yet, its target's; this is for what it needs beyond that.
const TRANSIENT: usize = 8;
/// A client's and a target's.
const EACH_SESSION: usize = 2;

impl Descriptors {
    /// Of so many in all, with so many listeners.
    pub(crate) fn of(limit: usize, listeners: usize) -> Self {
        let (own, pipes, transient) = (OWN.saturating_add(listeners), limit / PIPES, limit / TRANSIENT);
        Self {
            limit,
            own,
            pipes,
            transient,
            sessions: limit.saturating_sub(own).saturating_sub(pipes).saturating_sub(transient),
        }
    }

    /// How many there are for what comes and goes.
    pub(crate) fn transient(&self) -> usize {
        self.transient
    }

    /// How many sessions there are descriptors for: 1 at least, as a program that serves nobody is of no use.
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
            "of {limit} descriptors {own} are the program's, {pipes} for pipes, {transient} for what comes and goes, {sessions} for {} sessions",
            self.sessions()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_and_each_session_has_two() {
        for (limit, listeners, sessions) in [(256, 1, 83), (1024, 1, 371), (1_048_576, 10, 393_199)] {
            let descriptors = Descriptors::of(limit, listeners);
            let Descriptors {
                own, pipes, transient, ..
            } = descriptors;
            assert_eq!(own + pipes + transient + descriptors.sessions, limit);
            assert_eq!(descriptors.sessions(), sessions, "{descriptors}");
        }
    }

    #[test]
    fn a_limit_for_less_than_the_program_is_for_one_session_and_none_at_all_for_many() {
        assert_eq!(Descriptors::of(24, 1).sessions(), 1);
        assert!(Descriptors::of(usize::MAX, usize::MAX).sessions() >= 1);
        assert!(Descriptors::of(usize::MAX, 1).sessions() > 1 << 40);
    }

    /// More than `fs.nr_open` is refused to root, too.
    #[test]
    fn a_limit_that_may_not_be_is_refused_and_changes_nothing() {
        let before = getrlimit(Resource::Nofile);
        let error = raise_descriptors(Some(u64::MAX - 1)).unwrap_err();
        assert!(error.to_string().contains("cannot raise"), "{error}");
        let after = getrlimit(Resource::Nofile);
        assert_eq!((before.current, before.maximum), (after.current, after.maximum));
    }

    #[test]
    fn the_pipes_have_what_the_library_takes() {
        let limit = 4096;
        assert_eq!(Descriptors::of(limit, 1).pipes, limit / 16 * 2);
    }
}
