//! How long a sink makes a direction wait.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::time::Duration;

use spliceway_core::heuristic::{Heuristic, is_off};
use tokio::time::Instant;

/// A sink that has made a fill wait for so long, until its relay was polled again, is slow. One whose reader merely shares a core is full
/// for less; see docs/defaults.md.
const SLOW_AFTER: Duration = Duration::from_millis(3);

/// Since when what a direction holds has waited for its sink, if it has: in microseconds, of which 4 bytes count more than an hour.
/// (Then they begin again: a stall of just so long passes for a short one.)
#[derive(Debug, Default)]
pub(crate) struct Stall(Option<NonZeroU32>);

impl Stall {
    /// The sink takes nothing now.
    pub(crate) fn begin(&mut self) {
        self.0.get_or_insert_with(now);
    }

    /// The sink has taken all.
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }

    /// Whether the sink is slow.
    pub(crate) fn is_long(&self) -> bool {
        !is_off(Heuristic::BackpressureClock)
            && self
                .0
                .is_some_and(|since| u128::from(now().get().wrapping_sub(since.get())) >= SLOW_AFTER.as_micros())
    }
}

/// From an instant on that is the same for all threads; a clock that stands still in a test may be behind it.
fn now() -> NonZeroU32 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let (now, micros) = (Instant::now(), |time: Duration| time.as_micros() as u32);
    let since_start = micros(now - *START).wrapping_sub(micros(*START - now));
    // 0 is none, so the first of each hour's is the second.
    NonZeroU32::new(since_start).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stall_is_long_from_3_ms_after_its_first_wait_until_the_sink_has_all() {
        let mut stall = Stall::default();
        assert!(!stall.is_long());
        stall.begin();
        advance(SLOW_AFTER - Duration::from_millis(1)).await;
        stall.begin();
        assert!(!stall.is_long());
        // And what rounding takes.
        advance(Duration::from_micros(1_001)).await;
        assert!(stall.is_long());
        stall.end();
        assert!(!stall.is_long());
    }
}
