//! Connections of this program to its own listeners: hops from one service to the next.
//!
//! An operator may chain services, for example to send a PROXY header for one route only. Nothing
//! in a stream says how many services it has passed, and names can hide a loop. So each hop is
//! counted, and a loop ends at the limit. Otherwise, each session would open the next one until no
//! descriptor is left.
//!
//! A proxy on loopback takes every client for one of this machine. A hop must not make a client of
//! another machine one of them, so hops remember where their client may be.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::net::stream::Stream;
use crate::net::transparent::OwnDial;

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
    /// Returns the hops behind a client at `peer`.
    pub(crate) fn behind(client: &Stream, peer: Option<SocketAddr>) -> Self {
        if !HOPPED.load(Ordering::Acquire) {
            return Self::default();
        }
        match (client, peer) {
            (Stream::Tcp(stream), Some(peer)) => {
                let local = stream.local_addr().ok();
                local.and_then(|local| OwnDial::hops(peer, local)).unwrap_or_default()
            }
            // A Unix socket does not tell which session is at its other end, so there is no further
            // hop.
            (Stream::Unix(stream), _) => {
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                let is_own = pid.is_some_and(|pid| u32::try_from(pid) == Ok(std::process::id()));
                if !is_own {
                    return Self::default();
                }
                Self {
                    count: HOPS_MAX,
                    is_far: FAR_HOPPED.load(Ordering::Acquire),
                }
            }
            (Stream::Tcp(_), None) => Self::default(),
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
    pub(crate) fn of(count: u8) -> Self {
        Self { count, is_far: false }
    }
}
