//! Whether this process may splice at all: off after EPERM or ENOSYS, and tried again now and then.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::reason::{Reason, Scope};

/// Once splice was found forbidden, one attempt in so many is let through. A sandbox seldom changes its mind, and an
/// attempt comes only once per MiB and direction.
const PROBE_EVERY: u32 = 64;

/// Attempts still to be refused: after EPERM, after ENOSYS. 0 is on.
static NOT_PERMITTED: AtomicU32 = AtomicU32::new(0);
static NOT_IMPLEMENTED: AtomicU32 = AtomicU32::new(0);

/// Whether to try. While it is off each call counts down to the next probe.
pub(crate) fn check() -> Result<(), Reason> {
    count_down(&NOT_PERMITTED, Reason::NotPermitted)?;
    count_down(&NOT_IMPLEMENTED, Reason::NotImplemented)
}

/// Takes note of a reason to copy.
pub(crate) fn note(reason: Reason) {
    let refusals = match reason {
        Reason::NotPermitted => &NOT_PERMITTED,
        Reason::NotImplemented => &NOT_IMPLEMENTED,
        _ => return debug_assert!(reason.scope() != Scope::Process, "{reason} holds for the process"),
    };
    // Not while it is off: then the reason is this switch's own, and would never run out.
    let _ = refusals.compare_exchange(0, PROBE_EVERY, Ordering::Relaxed, Ordering::Relaxed);
}

fn count_down(refusals: &AtomicU32, reason: Reason) -> Result<(), Reason> {
    // On is the case that must cost nothing: a load of a line nobody writes.
    if refusals.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    match refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
        Ok(2..) => Err(reason),
        Ok(_) | Err(_) => Ok(()),
    }
}
