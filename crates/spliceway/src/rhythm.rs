//! When a flow rests. A sender that writes little at a time, and all the time, has two rhythms. Where the relay is ahead of it, each write
//! wakes the relay, and what that delivers the receiver. Where the relay keeps behind, the sender waits for room in its window, the kernel
//! puts its writes together, nobody is woken, and all is several times as cheap. A flow stays in the one it is in; a rest of the relay
//! takes it to the other, and pipes too small to catch up keep it there.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use spliceway_core::SizeClass;

use crate::rest::{REST, Rest};

// Where these come from: docs/defaults.md.

/// Bytes of a flow after which its rhythm is judged.
pub(crate) const WINDOW: u64 = 1 << 20;

/// A relay that has drained its source more often than this within a window is ahead of a sender of small writes, ...
const DRAINED_MOST: u32 = 1;

/// ... if each of its last two takes was less than this, as a larger write comes in whole segments of up to 64 KiB on loopback, and what is
/// left of it in one more, ...
const WHOLE_SEGMENT: usize = 60 << 10;

/// ... where a window took at least this, as who is faster (3.3 GiB/s) has nothing to win, ...
const FAST: Duration = Duration::from_micros(300);

/// ... and less than this: who is slower (1 Gbit/s) waits for its network, or for itself.
const SLOW: Duration = Duration::from_millis(8);

/// Windows in a row in which the relay is ahead, before it rests.
const AHEAD: u32 = 2;

/// Windows after a rest in which its pipes are small.
const BEHIND: u32 = 512;

/// Windows after a rest at the end of which it is asked whether that served, as where the relay is ahead again.
const ASKED_AFTER: u32 = 32;

/// Windows in which no flow is judged that has rested in vain, or that begins on the thread of one: one, then four times as many each time,
/// up to 1 GiB.
const PUT_OFF_MOST: u32 = 1024;

/// What the flows of one thread know of each other.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    /// Bytes taken for any of them, but where an end is a pipe or no socket at all.
    taken: u64,
    put_off: u32,
}

impl Thread {
    #[inline]
    pub(crate) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.wrapping_add(bytes as u64);
    }

    fn served(&mut self) {
        self.put_off = 0;
    }

    /// For how many windows.
    fn put_off(&mut self) -> u32 {
        self.put_off = (4 * self.put_off).clamp(1, PUT_OFF_MOST);
        self.put_off
    }
}

/// The rhythm of a flow.
#[derive(Debug)]
pub(crate) struct Rhythm {
    window: Window,
    course: Course,
    /// Windows not to be judged from now on.
    unjudged: u32,
    rest: Rest,
    /// Bytes, the later first, and as if of large writes before them.
    last_takes: [usize; 2],
}

#[derive(Debug)]
struct Window {
    since: Instant,
    bytes: u64,
    /// How often, and not by a large write.
    drained: u32,
    /// Of its thread, when it began.
    taken: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// Takes what is there, and was ahead for so many windows, the fastest of which took so long.
    Watched { ahead: u32, fastest: Duration },
    /// Takes nothing.
    Resting { since: Instant, before: Duration },
    /// Has kept behind for so many windows, which took so long, the rest included. Before it the faster of two took that long.
    Behind {
        windows: u32,
        took: Duration,
        before: Duration,
    },
}

impl Course {
    const WATCHED: Self = Self::Watched {
        ahead: 0,
        fastest: Duration::MAX,
    };
}

impl Window {
    fn new(since: Instant, thread: &Thread) -> Self {
        Self {
            since,
            bytes: 0,
            drained: 0,
            taken: thread.taken,
        }
    }

    /// How long it took, by what a window is: the last fill may have brought more.
    fn took(&self, now: Instant) -> Duration {
        (now - self.since).mul_f64(WINDOW as f64 / self.bytes as f64)
    }

    /// Whether the thread took at least seven eighths of its bytes here. Who comes from another thread has not been.
    fn is_alone(&self, thread: &Thread) -> bool {
        thread.taken.wrapping_sub(self.taken) <= self.bytes / 7 * 8
    }

    fn is_ahead(&self, took: Duration) -> bool {
        self.drained > DRAINED_MOST && (FAST..SLOW).contains(&took)
    }
}

impl Rhythm {
    /// Of a flow that has begun somewhere before.
    pub(crate) fn new(now: Instant, thread: &Thread, rest: Rest) -> Self {
        Self {
            window: Window::new(now, thread),
            course: Course::WATCHED,
            unjudged: thread.put_off,
            rest,
            last_takes: [WHOLE_SEGMENT; 2],
        }
    }

    /// So much was taken of it, or nothing, and its source had no more, or had.
    #[inline]
    pub(crate) fn took(&mut self, bytes: usize, is_drained: bool, thread: &mut Thread) {
        if bytes > 0 {
            self.last_takes = [bytes, self.last_takes[0]];
        }
        self.window.bytes += bytes as u64;
        self.window.drained += u32::from(is_drained && self.last_takes.iter().all(|bytes| *bytes < WHOLE_SEGMENT));
        if self.window.bytes >= WINDOW {
            self.judge(Instant::now(), thread);
        }
    }

    /// The largest pipe it may have.
    pub(crate) fn largest_pipe(&self) -> SizeClass {
        match self.course {
            Course::Watched { .. } => SizeClass::Mib1,
            Course::Resting { .. } | Course::Behind { .. } => SizeClass::Kib64,
        }
    }

    /// Ready unless it is to take nothing yet.
    #[inline]
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>, thread: &Thread) -> Poll<()> {
        match self.course {
            Course::Resting { since, before } => {
                ready!(self.rest.poll(cx, since));
                self.rested(since, before, Instant::now(), thread);
                Poll::Ready(())
            }
            Course::Watched { .. } | Course::Behind { .. } => Poll::Ready(()),
        }
    }

    #[cold]
    fn rested(&mut self, since: Instant, before: Duration, now: Instant, thread: &Thread) {
        self.window = Window::new(now, thread);
        self.course = Course::Behind {
            windows: 0,
            // Of a pause of the sender's, or the sink's, it tells nothing.
            took: (now - since).min(2 * REST),
            before,
        };
    }

    #[cold]
    fn judge(&mut self, now: Instant, thread: &mut Thread) {
        let took = self.window.took(now);
        let is_ahead = self.window.is_ahead(took);
        let is_alone = self.window.is_alone(thread);
        self.window = Window::new(now, thread);
        self.course = match self.course {
            Course::Watched { .. } if self.unjudged > 0 => {
                self.unjudged -= 1;
                Course::WATCHED
            }
            Course::Watched { ahead, fastest } if is_alone && is_ahead => {
                let (ahead, before) = (ahead + 1, fastest.min(took));
                if ahead < AHEAD {
                    Course::Watched { ahead, fastest: before }
                } else {
                    Course::Resting { since: now, before }
                }
            }
            Course::Watched { .. } => Course::WATCHED,
            Course::Behind {
                windows,
                took: so_far,
                before,
            } => {
                let windows = windows + 1;
                // A pause of the sender's tells nothing.
                let took = so_far + took.min(SLOW);
                let is_over = is_ahead || !is_alone || windows == BEHIND;
                if (is_over || windows == ASKED_AFTER) && !is_served(windows, took, before) {
                    self.unjudged = thread.put_off();
                    Course::WATCHED
                } else if is_over {
                    thread.served();
                    Course::WATCHED
                } else {
                    Course::Behind { windows, took, before }
                }
            }
            // Is judged by what it takes afterwards.
            resting @ Course::Resting { .. } => resting,
        };
    }
}

/// Whether so many windows and the rest before them took less than seven eighths of the time that they took before. A sender whom a rest
/// does not serve writes no more in the same time, however much of it waits afterwards.
fn is_served(windows: u32, took: Duration, before: Duration) -> bool {
    took < before * windows / 8 * 7
}

#[cfg(test)]
impl Rhythm {
    /// One that rests since then.
    pub(crate) fn resting(since: Instant, rest: Rest) -> Self {
        let mut rhythm = Self::new(since, &Thread::default(), rest);
        rhythm.course = Course::Resting {
            since,
            before: Duration::ZERO,
        };
        rhythm
    }

    pub(crate) fn is_resting(&self) -> bool {
        matches!(self.course, Course::Resting { .. })
    }

    /// Bytes of this window, and how often that was all, after two small takes.
    pub(crate) fn counted(&self) -> (u64, u32) {
        (self.window.bytes, self.window.drained)
    }
}

#[cfg(test)]
impl Thread {
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::Clock;

    /// What a window takes where the relay is ahead, and where it is behind.
    const DEAR: Duration = Duration::from_millis(2);
    const CHEAP: Duration = Duration::from_micros(500);

    /// A rhythm, its thread, and a clock for them.
    struct Judged {
        rhythm: Rhythm,
        thread: Thread,
        now: Instant,
    }

    impl Judged {
        fn new() -> Self {
            let (thread, now) = (Thread::default(), Instant::now());
            Self {
                rhythm: Rhythm::new(now, &thread, Rest::new(Clock::Timer)),
                thread,
                now,
            }
        }

        fn window_beside(&mut self, others: usize, drained: u32, took: Duration) {
            self.now += took;
            self.thread.took(others);
            self.thread.took(1 << 20);
            self.rhythm.window.bytes = 1 << 20;
            self.rhythm.window.drained = drained;
            self.rhythm.judge(self.now, &mut self.thread);
        }

        fn window(&mut self, drained: u32, took: Duration) {
            self.window_beside(0, drained, took);
        }

        fn ahead(&mut self, took: Duration) {
            self.window(DRAINED_MOST + 1, took);
        }

        fn behind(&mut self, windows: u32, took: Duration) {
            for _ in 0..windows {
                assert!(self.is_behind());
                self.window(DRAINED_MOST, took);
            }
        }

        /// Two windows ahead, and whether it rests then, which takes so long.
        fn rested_for(&mut self, rest: Duration) -> bool {
            self.ahead(DEAR);
            self.ahead(DEAR);
            let Course::Resting { since, before } = self.rhythm.course else {
                return false;
            };
            assert!(self.is_behind());
            assert_eq!(since, self.now);
            self.now += rest;
            self.rhythm.rested(since, before, self.now, &self.thread);
            true
        }

        fn rested(&mut self) -> bool {
            self.rested_for(REST)
        }

        fn is_behind(&self) -> bool {
            self.rhythm.largest_pipe() == SizeClass::Kib64
        }
    }

    #[test]
    fn a_relay_that_is_ahead_for_two_windows_rests_once_and_has_small_pipes_for_512_more() {
        let mut judged = Judged::new();
        for _ in 0..2 {
            assert!(judged.rested());
            judged.behind(BEHIND, CHEAP);
            assert!(!judged.is_behind());
        }
    }

    #[test]
    fn a_rest_serves_where_an_eighth_is_spared_of_what_the_faster_window_took() {
        assert!(!is_served(8, 7 * DEAR, DEAR));
        assert!(is_served(8, 7 * DEAR - Duration::from_nanos(1), DEAR));
        for [first, second] in [[DEAR, 2 * DEAR], [2 * DEAR, DEAR]] {
            let mut judged = Judged::new();
            judged.ahead(first);
            judged.ahead(second);
            let (since, before) = (judged.now, DEAR);
            assert_eq!(judged.rhythm.course, Course::Resting { since, before });
        }
    }

    #[test]
    fn no_window_counts_that_is_alone_or_fast_or_slow_or_seldom_drained_or_beside_others() {
        let mut judged = Judged::new();
        for (others, drained, took) in [
            (0, DRAINED_MOST, DEAR),
            (0, 100, FAST - Duration::from_nanos(1)),
            (0, 100, SLOW),
            ((1 << 20) / 7 + 1, 100, DEAR),
        ] {
            for _ in 0..2 {
                judged.ahead(DEAR);
                judged.window_beside(others, drained, took);
                assert!(!judged.is_behind());
            }
        }
        judged.ahead(FAST);
        judged.window_beside((1 << 20) / 8, DRAINED_MOST + 1, SLOW - Duration::from_nanos(1));
        assert!(judged.is_behind(), "what others take now and then changes nothing");
    }

    #[test]
    fn a_window_ends_with_the_take_that_makes_it_a_mib_and_counts_by_the_mib() {
        let mut judged = Judged::new();
        judged.rhythm.took((1 << 20) - 1, true, &mut judged.thread);
        assert_eq!(judged.rhythm.window.bytes, (1 << 20) - 1);
        judged.rhythm.took(1, true, &mut judged.thread);
        assert_eq!((judged.rhythm.window.bytes, judged.rhythm.window.drained), (0, 0));
        judged.rhythm.window.bytes = 2 << 20;
        assert_eq!(judged.rhythm.window.took(judged.rhythm.window.since + 2 * DEAR), DEAR);
    }

    #[test]
    fn a_source_is_drained_of_small_writes_by_two_takes_in_a_row_of_less_than_a_whole_segment() {
        let mut judged = Judged::new();
        for (takes, drained) in [
            (&[8 << 10, 0][..], 0),
            (&[WHOLE_SEGMENT - 1], 1),
            (&[WHOLE_SEGMENT], 0),
            (&[8 << 10, 65_483, 0], 0),
            // A write of 64 KiB, its end with it and by itself.
            (&[65_483, 53, 0], 0),
            (&[65_483], 0),
            (&[53], 0),
            (&[8 << 10], 1),
            // Bodies with their headers between them count as large, a segment that a pipe of 64 KiB cut as small.
            (&[65_483, 8 << 10], 0),
            (&[62_000, 3_483, 53], 1),
        ] {
            let before = judged.rhythm.window.drained;
            let (end, others) = takes.split_last().unwrap();
            for bytes in others {
                judged.rhythm.took(*bytes, false, &mut judged.thread);
            }
            judged.rhythm.took(*end, true, &mut judged.thread);
            assert_eq!(judged.rhythm.window.drained - before, drained, "{takes:?}");
        }
    }

    #[test]
    fn a_rest_after_which_32_windows_take_as_long_as_before_is_in_vain_and_the_next_one_is_put_off() {
        let mut judged = Judged::new();
        for unjudged in [1, 4, 16, 64, 256, 1024, 1024] {
            assert!(judged.rested());
            judged.behind(ASKED_AFTER, DEAR);
            for _ in 0..unjudged {
                assert!(!judged.is_behind());
                judged.ahead(DEAR);
            }
        }
        assert_eq!(
            Rhythm::new(judged.now, &judged.thread, Rest::new(Clock::Timer)).unjudged,
            1024,
            "for those that come"
        );
        assert!(judged.rested());
        judged.behind(BEHIND, CHEAP);
        assert!(judged.rested(), "one that served ends that");
        judged.behind(ASKED_AFTER, DEAR);
        judged.ahead(DEAR);
        assert!(judged.rested());
    }

    #[test]
    fn a_sender_that_writes_no_more_for_a_rest_is_not_served_by_what_waits_after_it() {
        // What it wrote meanwhile is soon taken, and then the relay is ahead of it again: as much in as long.
        let mut judged = Judged::new();
        assert!(judged.rested());
        judged.behind(1, CHEAP);
        judged.ahead(2 * DEAR - CHEAP - REST);
        assert_eq!(judged.rhythm.unjudged, 1);
        judged.ahead(DEAR);
        assert!(judged.rested());
        judged.behind(4, CHEAP);
        judged.ahead(DEAR);
        assert_eq!(judged.rhythm.unjudged, 0, "6 ms for what took 10");
        assert!(!judged.is_behind());
        assert!(judged.rested());
    }

    #[test]
    fn a_rest_counts_for_as_long_as_it_took() {
        for (rest, unjudged) in [(REST, 0), (2 * REST, 1)] {
            let mut judged = Judged::new();
            assert!(judged.rested_for(rest));
            judged.behind(3, CHEAP);
            judged.ahead(DEAR);
            assert_eq!(judged.rhythm.unjudged, unjudged, "5.5 or 7.5 ms for what took 8");
        }
    }

    #[test]
    fn neither_a_pause_of_the_senders_nor_others_on_the_thread_hide_what_a_rest_did() {
        let mut judged = Judged::new();
        let pause = Duration::from_secs(60);
        assert!(judged.rested_for(pause));
        judged.behind(4, CHEAP);
        judged.ahead(DEAR);
        assert_eq!(judged.rhythm.unjudged, 0, "8 ms for what took 10");

        assert!(judged.rested());
        judged.behind(ASKED_AFTER - 2, CHEAP);
        judged.behind(1, pause);
        judged.behind(1, CHEAP);
        assert!(judged.is_behind(), "25.5 ms for what took 64");
        judged.window_beside(1 << 20, 0, CHEAP);
        assert!(!judged.is_behind());
        assert_eq!(judged.rhythm.unjudged, 0);

        assert!(judged.rested());
        judged.window_beside(1 << 20, 0, DEAR);
        assert!(!judged.is_behind());
        assert_eq!(
            judged.rhythm.unjudged, 1,
            "who is disturbed before it served is put off"
        );
    }
}
