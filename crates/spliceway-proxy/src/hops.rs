//! Connections of this program to its own listeners: hops from one service to the next.
//!
//! An operator may chain services, for example to send a PROXY header for one route only. Nothing
//! in a stream says how many services it has passed, and names can hide a loop. So each hop is
//! counted, and a loop ends at the limit. Otherwise, each session would open the next one until no
//! descriptor is left.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::policy::Denied;
use crate::stream::Stream;
use crate::transparent::OwnDial;

/// The most hops of one connection. A chain of more services has no known use.
const HOPS_MAX: u8 = 4;

/// Whether there has been a hop. Without one, no client needs a search.
static HOPPED: AtomicBool = AtomicBool::new(false);

/// Returns the number of hops that a client at `peer` has behind it.
pub(crate) fn behind(client: &Stream, peer: Option<SocketAddr>) -> u8 {
    if !HOPPED.load(Ordering::Acquire) {
        return 0;
    }
    match (client, peer) {
        (Stream::Tcp(stream), Some(peer)) => {
            let local = stream.local_addr().ok();
            local.and_then(|local| OwnDial::hops(peer, local)).unwrap_or(0)
        }
        // A Unix socket does not tell which session is at its other end, so there is no further
        // hop.
        (Stream::Unix(stream), _) => {
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            let is_own = pid.is_some_and(|pid| u32::try_from(pid) == Ok(std::process::id()));
            if is_own { HOPS_MAX } else { 0 }
        }
        (Stream::Tcp(_), None) => 0,
    }
}

/// Returns the number of hops with the next one.
///
/// # Errors
/// Returns [`Denied::Loop`] if there are too many.
pub(crate) fn next(behind: u8) -> Result<u8, Denied> {
    if behind >= HOPS_MAX {
        return Err(Denied::Loop);
    }
    HOPPED.store(true, Ordering::Release);
    Ok(behind + 1)
}
