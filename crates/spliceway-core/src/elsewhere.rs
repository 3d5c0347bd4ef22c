//! The pool for systems other than Linux. They have no `splice(2)`, so it does not lend pipes.

use std::sync::OnceLock;

use crate::limits::{Limits, PoolStats};

/// A pool of pipes for `splice(2)`. On systems other than Linux, it does not lend pipes.
#[derive(Clone, Debug)]
pub struct PipePool {
    limits: Limits,
}

impl PipePool {
    /// Returns the pool of this process.
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<PipePool> = OnceLock::new();
        GLOBAL.get_or_init(|| Self::new(Limits::of_this_process()))
    }

    /// Creates a separate pool with its own limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// Returns the counters and gauges, which are all 0.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats::default()
    }

    /// Returns the limits that the pool was created with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// See `mirror.rs`. Only Linux has `tee(2)`.
#[derive(Debug)]
pub enum Mirror {}

impl Mirror {
    /// See `mirror.rs`.
    pub fn write(&mut self, _: &[u8]) {}

    /// See `mirror.rs`.
    pub fn finish(&mut self) {}
}
