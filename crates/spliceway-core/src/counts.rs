use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::reason::Reason;

/// Live counts of one direction: written by the one who moves its bytes, read by anyone at any time. Bytes count on delivery.
#[derive(Debug, Default)]
pub struct Counts {
    spliced: AtomicU64,
    copied: AtomicU64,
    eof: AtomicBool,
    lost: AtomicU64,
    /// The last reason to copy: its place in [`Reason::ALL`], plus 1. 0 is none.
    fallback: AtomicU8,
}

/// One direction's [`Counts`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectionSummary {
    /// Bytes delivered to the sink: [`spliced`](Self::spliced) and [`copied`](Self::copied).
    pub bytes: u64,
    /// Bytes that went through the kernel alone.
    pub spliced: u64,
    /// Bytes that went through user space.
    pub copied: u64,
    /// Whether the source has ended, and its end was passed on. (To a pipe there is none to pass on before it is dropped.)
    pub eof: bool,
    /// Bytes taken from the source that the sink did not get. Told at the end, also where that is
    /// the relay being dropped; 0 before.
    pub lost: u64,
    /// Why bytes were copied that might have been spliced; the last reason if there were several.
    pub fallback: Option<Reason>,
}

impl Counts {
    /// The counts now.
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

    /// Bytes delivered by now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.spliced.load(Ordering::Relaxed) + self.copied.load(Ordering::Relaxed)
    }

    /// `bytes` more were delivered through the kernel.
    pub fn add_spliced(&self, bytes: usize) {
        add(&self.spliced, bytes);
    }

    /// `bytes` more were delivered through user space.
    pub fn add_copied(&self, bytes: usize) {
        add(&self.copied, bytes);
    }

    /// The source has ended, and the sink knows.
    pub fn set_eof(&self) {
        self.eof.store(true, Ordering::Relaxed);
    }

    /// It is over, and so many bytes were taken that the sink did not get.
    pub fn set_lost(&self, bytes: usize) {
        self.lost.store(bytes as u64, Ordering::Relaxed);
    }

    /// What follows is copied, for this reason.
    pub fn set_fallback(&self, reason: Reason) {
        self.fallback.store(reason as u8 + 1, Ordering::Relaxed);
    }
}

/// One writer, so a load and a store do; a locked add would cost a small message more than its bookkeeping is worth.
fn add(count: &AtomicU64, bytes: usize) {
    count.store(count.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
}
