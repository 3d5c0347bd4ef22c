use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a direction waits for while it moves no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// The source has no bytes.
    Source,
    /// The sink does not accept the bytes that the direction holds.
    Sink,
    /// The rate limit allows no bytes.
    RateLimit,
    /// This direction has ended, and the other one has not.
    OtherDirection,
}

/// The time that a direction has spent with each kind of wait.
///
/// The longest wait shows what made a transfer slow. The rest of a relay's time is its own work. A
/// sink does not accept bytes when the buffer of its socket is full. The peer may have received
/// fewer bytes by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waits {
    /// The time for which the source had no bytes.
    pub source: Duration,
    /// The time for which the sink did not accept bytes.
    pub sink: Duration,
    /// The time for which the rate limit allowed no bytes.
    pub rate_limit: Duration,
    /// The time since this direction has ended, while the other one has not.
    pub other_direction: Duration,
}

/// The live times of one direction. Only its relay changes them.
#[derive(Debug, Default)]
pub(crate) struct WaitCounts {
    /// The nanoseconds of finished waits, by [`WaitsFor`].
    finished: [AtomicU64; KINDS],
    /// The wait that is not finished: the nanoseconds from [`BASE`] to its begin, and its kind plus
    /// 1 in the lowest bits. 0 means that there is none.
    current: AtomicU64,
}

const KINDS: usize = 4;
/// Enough bits for the kinds and for none. The remaining bits hold nanoseconds for 73 years.
const KIND_BITS: u32 = 3;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;

/// A time before every wait.
static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

impl WaitCounts {
    pub(crate) fn resume(before: &Waits) -> Self {
        let Waits {
            source,
            sink,
            rate_limit,
            other_direction,
        } = *before;
        Self {
            finished: [source, sink, rate_limit, other_direction].map(|time| nanos(time).into()),
            current: AtomicU64::new(0),
        }
    }

    /// While the relay runs, the time of one change may be missing or counted twice, because the
    /// values are read one by one.
    pub(crate) fn snapshot(&self) -> Waits {
        let mut nanos = [0; KINDS];
        for (time, finished) in nanos.iter_mut().zip(&self.finished) {
            *time = finished.load(Ordering::Relaxed);
        }
        if let Some((kind, since)) = split(self.current.load(Ordering::Relaxed)) {
            nanos[kind] += now().saturating_sub(since);
        }
        let [source, sink, rate_limit, other_direction] = nanos.map(Duration::from_nanos);
        Waits {
            source,
            sink,
            rate_limit,
            other_direction,
        }
    }

    /// Most calls change nothing: a direction usually waits for what it waited for before.
    #[inline]
    pub(crate) fn change(&self, what: Option<WaitsFor>) {
        let kind = what.map_or(0, |what| what as u64 + 1);
        let current = self.current.load(Ordering::Relaxed);
        if current & KIND_MASK != kind {
            self.begin(current, kind);
        }
    }

    #[cold]
    fn begin(&self, before: u64, kind: u64) {
        let now = now();
        if let Some((kind, since)) = split(before) {
            // There is only one writer, so a load and a store suffice.
            let finished = self.finished[kind].load(Ordering::Relaxed) + now.saturating_sub(since);
            self.finished[kind].store(finished, Ordering::Relaxed);
        }
        let current = if kind == 0 { 0 } else { now << KIND_BITS | kind };
        self.current.store(current, Ordering::Relaxed);
    }
}

/// Returns the kind of the current wait, and when it began.
fn split(current: u64) -> Option<(usize, u64)> {
    let kind = usize::try_from(current & KIND_MASK).ok()?.checked_sub(1)?;
    Some((kind, current >> KIND_BITS))
}

fn now() -> u64 {
    nanos(BASE.elapsed())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_counts_for_its_kind_and_work_counts_for_none() {
        let (waits, start) = (WaitCounts::default(), Instant::now());
        let mut before = waits.snapshot();
        assert_eq!(before, Waits::default());
        for (kind, time) in [
            (
                WaitsFor::Source,
                (|waits: &Waits| waits.source) as fn(&Waits) -> Duration,
            ),
            (WaitsFor::Sink, |waits| waits.sink),
            (WaitsFor::RateLimit, |waits| waits.rate_limit),
            (WaitsFor::OtherDirection, |waits| waits.other_direction),
        ] {
            waits.change(Some(kind));
            // The current wait is visible before it ends.
            while time(&waits.snapshot()) == Duration::ZERO {}
            waits.change(None);
            let after = waits.snapshot();
            assert!(time(&after) > Duration::ZERO && time(&before) == Duration::ZERO);
            assert_eq!(after, waits.snapshot(), "nothing counts during work");
            before = after;
        }
        let Waits {
            source,
            sink,
            rate_limit,
            other_direction,
        } = before;
        assert!(source + sink + rate_limit + other_direction <= start.elapsed());
        assert_eq!(WaitCounts::resume(&before).snapshot(), before);
    }
}
