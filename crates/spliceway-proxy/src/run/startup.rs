//! What the program checks at its start, so that a limit of a service manager is an error with a
//! remedy, and not a panic in the runtime. And the reasons why it cannot run.

use std::sync::{Arc, mpsc};
use std::{fmt, io, thread};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The least stack of the main thread. Parsing a command line takes about 190 KiB.
const STACK_MIN_BYTES: u64 = 256 << 10;
/// The threads beside the workers: for the log, and for calls that block.
const OTHER_THREADS: usize = 2;

/// The reason why a run did not begin or ended without a signal.
#[derive(Debug)]
pub(crate) enum CannotRun {
    /// The system prevents the run. The settings are not the cause.
    System(io::Error),
    /// The settings are not safe.
    Unsafe(String),
    /// An essential part of the program has ended. The value names the part.
    Failed(Arc<str>),
}

impl From<io::Error> for CannotRun {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for CannotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Unsafe(why) => f.write_str(why),
            Self::Failed(part) => write!(f, "{part} ended unexpectedly"),
        }
    }
}

/// # Errors
/// Returns an error if the stack of this thread is too small for the program.
pub(crate) fn check_stack() -> io::Result<()> {
    match getrlimit(Resource::Stack).current {
        Some(limit) if limit < STACK_MIN_BYTES => Err(io::Error::other(format!(
            "the limit on the stack is {} KiB: expected at least {} KiB (LimitSTACK= of a unit, ulimit -s)",
            limit >> 10,
            STACK_MIN_BYTES >> 10
        ))),
        _ => Ok(()),
    }
}

/// Starts as many threads as the program needs, and ends them. The runtime panics if it cannot
/// start a thread.
///
/// # Errors
/// Returns an error if a thread cannot be started.
pub(crate) fn check_threads(workers: usize) -> io::Result<()> {
    // One worker is the main thread.
    let count = if workers > 1 { workers } else { 0 } + OTHER_THREADS;
    let mut started = Vec::new();
    for number in 0..count {
        let (end, ended) = mpsc::channel::<()>();
        // The thread ends when its sender is dropped.
        let thread = thread::Builder::new().spawn(move || ended.recv());
        let thread = thread.map_err(|error| {
            io::Error::other(format!(
                "cannot start thread {} of {count}: {error}: raise the limit on tasks or memory (TasksMax=, \
                 LimitNPROC=, MemoryMax= or LimitAS= of a unit), or lower --workers",
                number + 1
            ))
        })?;
        started.push((end, thread));
    }
    for (end, thread) in started {
        drop(end);
        let _ = thread.join();
    }
    Ok(())
}

/// Returns what an operator can do about an error of the system.
pub(super) fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => ": raise the limit on descriptors (LimitNOFILE= of a unit, ulimit -n)",
        Some(Errno::NFILE) => ": raise the limit of the machine on open files (fs.file-max)",
        _ => "",
    }
}
