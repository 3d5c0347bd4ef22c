//! A copy of the bytes of one direction for an observer, through a second pipe.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::io::retry_on_intr;

use crate::limits::SizeClass;
use crate::pipe::Pipe;
use crate::pool::{PipePool, Reservation};
use crate::reason::Reason;
use crate::sys::{self, Errno};

/// The writing side of a mirror: a second pipe that gets every byte that a direction reads.
///
/// ```text
///   source ── splice ──▶ pipe ── splice ──▶ sink
///                          │ tee
///                          ▼
///                     second pipe ── splice, by the caller ──▶ observer
/// ```
///
/// No call waits. A stream with a hole is useless to an observer, so the copy ends at the first
/// byte for which the second pipe has no room. Dropping the mirror ends the copy too.
#[derive(Debug)]
pub struct Mirror {
    /// `None` if the copy has ended. The observer then sees the end of the pipe.
    writer: Option<OwnedFd>,
    guards_sigpipe: bool,
    state: MirrorState,
}

/// Says how the copy has ended. Clones are cheap.
///
/// The last clone frees the room of the second pipe in the budget of its pool. Drop the reading end
/// before.
#[derive(Clone)]
pub struct MirrorState(Arc<(OnceLock<MirrorEnd>, Reservation)>);

/// How a copy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorEnd {
    /// The stream has ended, and its copy is complete.
    Complete,
    /// Bytes are missing: the second pipe was full, or nobody reads it any more.
    Lost,
    /// The direction ended before its stream did. The copy has all that the direction has read.
    Cut,
}

impl Mirror {
    /// Creates a mirror. Returns it with the reading end of its pipe, which is non-blocking and has
    /// an end of stream when the copy ends.
    ///
    /// The pipe has 1 MiB, or less if the budget of `pool` has less. It is closed after use, and
    /// not lent again, because only a close tells the reader that the copy has ended.
    ///
    /// # Errors
    /// Returns the [`Reason`] why the pool has no pipe.
    pub fn new(pool: &PipePool) -> Result<(Self, OwnedFd, MirrorState), Reason> {
        let (pipe, room) = pool.acquire(SizeClass::Mib1)?.into_pipe();
        let state = MirrorState(Arc::new((OnceLock::new(), room)));
        let mirror = Self {
            writer: Some(pipe.writer),
            guards_sigpipe: sys::dies_of_sigpipe(),
            state: state.clone(),
        };
        Ok((mirror, pipe.reader, state))
    }

    /// Copies `bytes`.
    #[doc(hidden)]
    pub fn write(&mut self, bytes: &[u8]) {
        self.copy(bytes.len(), |writer| sys::write(writer, bytes));
    }

    /// Copies the content of `pipe`. No other call may copy it too.
    pub(crate) fn tee(&mut self, pipe: &Pipe) {
        self.copy(pipe.len(), |writer| sys::tee(pipe.reader.as_fd(), writer, pipe.len()));
    }

    /// Ends the copy, because the stream has ended.
    #[doc(hidden)]
    pub fn finish(&mut self) {
        self.end(MirrorEnd::Complete);
    }

    fn copy(&mut self, bytes: usize, call: impl Fn(BorrowedFd<'_>) -> Result<usize, Errno>) {
        let Some(writer) = self.writer.as_ref().filter(|_| bytes > 0) else {
            return;
        };
        let call = || retry_on_intr(|| call(writer.as_fd()));
        let copied = if self.guards_sigpipe {
            sys::without_sigpipe(call, |outcome| outcome == Err(Errno::PIPE))
        } else {
            call()
        };
        if copied != Ok(bytes) {
            self.end(MirrorEnd::Lost);
        }
    }

    fn end(&mut self, end: MirrorEnd) {
        // The first end counts. It is set before the observer sees the end of the pipe.
        let _ = self.state.0.0.set(end);
        self.writer = None;
    }
}

impl MirrorState {
    /// Returns how the copy has ended, for a caller that has seen the end of the pipe.
    #[must_use]
    pub fn end(&self) -> MirrorEnd {
        self.0.0.get().copied().unwrap_or(MirrorEnd::Cut)
    }
}

impl fmt::Debug for MirrorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}
