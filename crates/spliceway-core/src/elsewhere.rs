//! Off Linux there is no `splice(2)`, so this pool lends nothing.

use std::sync::OnceLock;

use crate::limits::{Limits, PoolStats};

/// A pool of pipes for `splice(2)`. Off Linux it lends nothing.
#[derive(Clone, Debug)]
pub struct PipePool {
    limits: Limits,
}

impl PipePool {
    /// The pool of this process.
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<PipePool> = OnceLock::new();
        GLOBAL.get_or_init(|| Self::new(Limits::of_this_process()))
    }

    /// A pool of its own.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// Counters and gauges, all of them 0.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats::default()
    }

    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}
