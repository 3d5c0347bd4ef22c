//! How well saving works, for metrics and the log.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::Instant;

use super::unusable::Unusable;
use crate::log::LogThrottle;

#[derive(Debug, Default)]
pub(super) struct Saving {
    is_failing: AtomicBool,
    /// The updates that have worked, and those that have failed.
    written: AtomicU64,
    failed: AtomicU64,
    throttle: Mutex<LogThrottle>,
    /// The length of the file.
    bytes: AtomicU64,
}

impl Saving {
    pub(super) fn log_result(&self, saved: Option<Result<(), Unusable>>) {
        match saved {
            None => {}
            Some(Ok(())) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                if self.is_failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("the quota file is written again, with all bytes since");
                }
            }
            Some(Err(why)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.is_failing.store(true, Ordering::Relaxed);
                if self.throttle.lock().admits(Instant::now()) {
                    tracing::error!(%why, "cannot write the quota file: counting continues in memory");
                }
            }
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Returns the number of updates by result.
    pub(super) fn updates(&self) -> [(&'static str, u64); 2] {
        [("ok", &self.written), ("failed", &self.failed)].map(|(result, count)| (result, count.load(Ordering::Relaxed)))
    }

    pub(super) fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
