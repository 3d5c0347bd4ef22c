//! Raises what the process may use to what it is allowed to use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on descriptors to the hard one.
///
/// The usual soft limit of 1024 is for the sake of `select(2)`, which nothing here calls; it would end at 500 sessions. Comes
/// before the first use of the pipe pool, whose share of descriptors is counted from the limit it finds.
pub(crate) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Refused only by a sandbox: then what there is must do.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
