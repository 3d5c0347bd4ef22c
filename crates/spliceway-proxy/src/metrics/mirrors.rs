//! Counts the copies that observers get.

use std::sync::atomic::{AtomicU64, Ordering};

/// The copies of the sessions of one service.
#[derive(Debug, Default)]
pub(crate) struct MirrorCounts {
    /// Bytes that observers got.
    bytes: AtomicU64,
    /// Copies that have ended, in the order of [`MirrorResult::ALL`].
    ended: [AtomicU64; MirrorResult::ALL.len()],
}

/// How the copy of a session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MirrorResult {
    /// The observer got all bytes, and the end of the stream.
    Complete,
    /// The session ended, or moved to another process, before its client had finished. The observer
    /// got what the client had sent, and a reset.
    Cut,
    /// The observer was too slow, so bytes are missing.
    Lost,
    /// The observer closed the connection, or stopped reading.
    Closed,
    /// There was no connection to the observer.
    Unreachable,
    /// There were too many copies already.
    Limit,
}

impl MirrorResult {
    pub(super) const ALL: [Self; 6] = [
        Self::Complete,
        Self::Cut,
        Self::Lost,
        Self::Closed,
        Self::Unreachable,
        Self::Limit,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Cut => "cut",
            Self::Lost => "lost",
            Self::Closed => "closed",
            Self::Unreachable => "unreachable",
            Self::Limit => "limit",
        }
    }
}

impl MirrorCounts {
    pub(crate) fn passed(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, result: MirrorResult) {
        self.ended[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn results(&self) -> impl Iterator<Item = (MirrorResult, u64)> {
        let counts = self.ended.iter().map(|count| count.load(Ordering::Relaxed));
        MirrorResult::ALL.into_iter().zip(counts)
    }
}
