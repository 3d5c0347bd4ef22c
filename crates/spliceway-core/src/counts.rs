use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::reason::Reason;
use crate::waits::{WaitCounts, Waits, WaitsFor};

/// The live counts of one direction. Only the relay that moves the bytes updates the counts. Any
/// thread may read them at any time. A byte counts when it is delivered.
#[derive(Debug, Default)]
pub struct Counts {
    spliced: AtomicU64,
    copied: AtomicU64,
    eof: AtomicBool,
    lost: AtomicU64,
    /// The last reason to copy, as its index in [`Reason::ALL`] plus 1. 0 means that there is none.
    fallback: AtomicU8,
    waits: WaitCounts,
}

/// The values of one direction's [`Counts`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectionSummary {
    /// Bytes that the sink has accepted. A socket accepts bytes into its send buffer, so the peer
    /// has not necessarily read them. The number is the sum of [`spliced`](Self::spliced) and
    /// [`copied`](Self::copied).
    pub bytes: u64,
    /// Bytes that went through the kernel alone.
    pub spliced: u64,
    /// Bytes that went through user space.
    pub copied: u64,
    /// Whether the source has ended and the relay has passed this end on to the sink. (A sink that
    /// is a pipe does not show an end until it is dropped.)
    pub eof: bool,
    /// The bytes read from the source that the sink did not receive. The relay sets this when it
    /// ends, and also when it is dropped. Until then, it is 0.
    pub lost: u64,
    /// The reason why bytes that might have been spliced were copied. If there were several
    /// reasons, this is the last one.
    pub fallback: Option<Reason>,
}

impl Counts {
    /// Creates counts that continue from `before`, for a direction that another relay began.
    #[must_use]
    pub fn resume(before: &DirectionSummary) -> Self {
        Self {
            spliced: before.spliced.into(),
            copied: before.copied.into(),
            eof: before.eof.into(),
            lost: before.lost.into(),
            fallback: AtomicU8::new(before.fallback.map_or(0, |reason| reason as u8 + 1)),
            waits: WaitCounts::default(),
        }
    }

    /// Returns the counts at this moment.
    #[must_use]
    pub fn snapshot(&self) -> DirectionSummary {
        let spliced = self.spliced.load(Ordering::Relaxed);
        let copied = self.copied.load(Ordering::Relaxed);
        DirectionSummary {
            bytes: spliced + copied,
            spliced,
            copied,
            eof: self.eof.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            fallback: usize::from(self.fallback.load(Ordering::Relaxed))
                .checked_sub(1)
                .map(|place| Reason::ALL[place]),
        }
    }

    /// Returns the same counts with times that continue from `before`.
    #[must_use]
    pub fn resume_waits(self, before: &Waits) -> Self {
        Self {
            waits: WaitCounts::resume(before),
            ..self
        }
    }

    /// Returns the times of the direction's waits so far.
    #[must_use]
    pub fn waits(&self) -> Waits {
        self.waits.snapshot()
    }

    /// Records that the direction waits for `what` from now on, or no longer waits.
    #[inline]
    pub fn waits_for(&self, what: Option<WaitsFor>) {
        self.waits.change(what);
    }

    /// Returns the number of bytes delivered so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.spliced.load(Ordering::Relaxed) + self.copied.load(Ordering::Relaxed)
    }

    /// Returns whether the source has ended, and the relay has passed this end on to the sink.
    #[must_use]
    pub fn is_eof(&self) -> bool {
        self.eof.load(Ordering::Relaxed)
    }

    /// Counts `bytes` more as delivered through the kernel.
    pub fn add_spliced(&self, bytes: usize) {
        add(&self.spliced, bytes);
    }

    /// Counts `bytes` more as delivered through user space.
    pub fn add_copied(&self, bytes: usize) {
        add(&self.copied, bytes);
    }

    /// Records that the source has ended, and that the relay has passed this end on to the sink.
    pub fn set_eof(&self) {
        self.eof.store(true, Ordering::Relaxed);
    }

    /// Records, at the end of the relay, how many bytes were read that the sink did not receive.
    pub fn set_lost(&self, bytes: usize) {
        self.lost.store(bytes as u64, Ordering::Relaxed);
    }

    /// Records why the bytes that follow are copied.
    pub fn set_fallback(&self, reason: Reason) {
        self.fallback.store(reason as u8 + 1, Ordering::Relaxed);
    }
}

/// There is only one writer, so a load and a store suffice. For a small message, a locked add would
/// cost too much.
fn add(count: &AtomicU64, bytes: usize) {
    count.store(count.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
}
