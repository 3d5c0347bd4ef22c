//! Gives freed memory back to the system after many sessions have ended.
//!
//! glibc keeps freed memory for the next allocation. Without this module, a storm of 7,000 clients
//! leaves the process as large as it was in the storm. See docs/design/012-memory-after-storms.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

/// The time from the first sign to the call. In a storm, many sessions end together.
const WAIT: Duration = Duration::from_secs(5);
/// Fewer ended sessions than this leave about 2 MiB, which later sessions use.
const SESSIONS_MIN: usize = 64;

/// Decides when memory is given back. Clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct Heap(Arc<Counts>);

#[derive(Default)]
struct Counts {
    /// The sessions that are open now.
    open: AtomicUsize,
    /// The most sessions that were open since memory was last given back.
    most: AtomicUsize,
    /// Whether a task waits to give memory back.
    is_due: AtomicBool,
}

impl Heap {
    /// Records that one more session is open: this number.
    pub(crate) fn grows_to(&self, open: usize) {
        self.0.open.store(open, Ordering::Relaxed);
        self.0.most.fetch_max(open, Ordering::Relaxed);
    }

    /// Records that a session has ended. This number is still open.
    pub(crate) fn shrinks_to(&self, open: usize) {
        self.0.open.store(open, Ordering::Relaxed);
        if is_mostly_free(open, self.0.most.load(Ordering::Relaxed)) {
            self.trim_soon();
        }
    }

    /// Gives memory back after [`WAIT`]. Calls before that add nothing.
    pub(crate) fn trim_soon(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.0.is_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let counts = Arc::clone(&self.0);
        runtime.spawn(async move {
            sleep(WAIT).await;
            counts.is_due.store(false, Ordering::Relaxed);
            counts
                .most
                .store(counts.open.load(Ordering::Relaxed), Ordering::Relaxed);
            let started = Instant::now();
            // The call takes the locks of all arenas, one after the other, for milliseconds.
            let _ = tokio::task::spawn_blocking(trim).await;
            tracing::debug!(took = ?started.elapsed(), "gave freed memory back to the system");
        });
    }
}

/// From this size on, an allocation has pages of its own, which go back as soon as it is freed. It
/// is the first value of glibc, which otherwise raises it each time such an allocation is freed.
/// After large changes of the configuration, resident memory was 8 to 17 MiB more.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES: libc::c_int = 128 << 10;

/// Keeps glibc from using the heap for large allocations.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(crate) fn keep_small() {
    // SAFETY: the call changes one number of the allocator, and has no preconditions (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES);
    }
}

/// The allocator of musl does so by itself.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep_small() {}

/// Returns whether half of the memory of sessions is free, and worth the call.
fn is_mostly_free(open: usize, most: usize) -> bool {
    open <= most / 2 && most - open >= SESSIONS_MIN
}

/// Gives back every free page of the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
fn trim() {
    // SAFETY: the call changes no allocation, and glibc locks what it looks at (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The allocator of musl gives back free memory by itself.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_when_half_of_many_sessions_have_ended() {
        for (open, most, expected) in [(0, 63, false), (0, 64, true), (501, 1000, false), (500, 1000, true)] {
            assert_eq!(is_mostly_free(open, most), expected, "{open} of {most}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_storm_gives_memory_back_once() {
        let heap = Heap::default();
        (1..=1000).for_each(|open| heap.grows_to(open));
        (0..1000).rev().for_each(|open| heap.shrinks_to(open));
        let runtime = Handle::current().metrics();
        assert_eq!(runtime.num_alive_tasks(), 1);
        // Sleeps because the clock is paused.
        sleep(WAIT * 2).await;
        while runtime.num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
        heap.grows_to(1);
        heap.shrinks_to(0);
        assert_eq!(runtime.num_alive_tasks(), 0);
    }
}
