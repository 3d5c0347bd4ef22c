//! Connections of this program to its own listeners: hops from one service to the next.
//!
//! An operator may chain services, for example to send a PROXY header for one route only. Nothing
//! in a stream says how many services it has passed, and names can hide a loop. So each hop is
//! counted, and a loop ends at the limit. Otherwise, each session would open the next one until no
//! descriptor is left.
//!
//! A proxy on loopback takes every client for one of this machine. A hop must not make a client of
//! another machine one of them, so hops remember where their client may be.

use std::sync::atomic::{AtomicBool, Ordering};

/// The most hops of one connection. A chain of more services has no known use.
const HOPS_MAX: u8 = 4;

/// Whether there has been a hop. Without one, no client needs a search.
static HOPPED: AtomicBool = AtomicBool::new(false);

/// Whether there has been a hop of a client that may be on another machine.
static FAR_HOPPED: AtomicBool = AtomicBool::new(false);

/// The hops behind a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hops {
    count: u8,
    /// Whether the client before the first hop may be on another machine.
    is_far: bool,
}

/// A connection has passed as many services as it may, so that it may be in a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyHops;

impl Hops {
    /// Returns whether there has been any hop in this process.
    pub(super) fn have_begun() -> bool {
        HOPPED.load(Ordering::Acquire)
    }

    /// Returns the hops of a client of this process whose session is not known. It has no further
    /// hop.
    pub(super) fn of_unknown_session() -> Self {
        Self {
            count: HOPS_MAX,
            is_far: FAR_HOPPED.load(Ordering::Acquire),
        }
    }

    /// Records whether a client without a hop may be on another machine.
    pub(crate) fn begin(&mut self, is_far: bool) {
        if self.count == 0 {
            self.is_far = is_far;
        }
    }

    /// Returns whether this is a client of another service, which may be on another machine.
    pub(crate) fn are_far(self) -> bool {
        self.count > 0 && self.is_far
    }

    /// Returns whether there is any hop.
    pub(crate) fn exist(self) -> bool {
        self.count > 0
    }

    /// Returns the hops with the next one.
    ///
    /// # Errors
    /// Returns [`TooManyHops`] if this may be a loop.
    pub(crate) fn next(self) -> Result<Self, TooManyHops> {
        if self.count >= HOPS_MAX {
            return Err(TooManyHops);
        }
        if self.is_far {
            FAR_HOPPED.store(true, Ordering::Release);
        }
        HOPPED.store(true, Ordering::Release);
        let count = self.count + 1;
        Ok(Self { count, ..self })
    }

    #[cfg(test)]
    pub(crate) fn passed(count: u8) -> Self {
        Self { count, is_far: false }
    }
}
