//! When a flow rests. A sender that writes little at a time, and all the time, has two rhythms. Where the relay is ahead of it, each write
//! wakes the relay, and what that delivers the receiver. Where the relay keeps behind, the sender waits for room in its window, the kernel
//! puts its writes together, nobody is woken, and all is several times as cheap. A flow stays in the one it is in; a rest of the relay
//! takes it to the other, and pipes too small to catch up keep it there.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use spliceway_core::SizeClass;

// Where these come from: docs/defaults.md.

/// Bytes of a flow after which its rhythm is judged.
const WINDOW: usize = 1 << 20;

/// A relay that has drained its source more often than this within a window is ahead ...
const DRAINED_MOST: u32 = 1;

/// ... where the window took longer than this, as who is faster (3.3 GiB/s) has nothing to win, ...
const FAST: Duration = Duration::from_micros(300);

/// ... and less than this: who is slower (1 Gbit/s) waits for its network, or for itself.
const SLOW: Duration = Duration::from_millis(8);

/// Windows in a row in which the relay is ahead, before it rests.
const AHEAD: u32 = 2;

pub(crate) const REST: Duration = Duration::from_millis(1);

/// Windows after a rest in which its pipes are small.
const BEHIND: u32 = 512;

/// Windows after a rest at the end of which it is asked whether that served, unless the relay is ahead again before.
const ASKED_AFTER: u32 = 64;

/// Windows in which it is not judged, after a rest in vain: one, then twice as many each time, up to 1 GiB.
const UNJUDGED_MOST: u32 = 1024;

/// A direction, told from others by its address while it is polled. Another that comes to be there later may inherit what was found out:
/// nothing depends on it but how fast it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Which(NonZeroUsize);

impl Which {
    pub(crate) fn is<T>(direction: &T) -> Self {
        Self(NonNull::from(direction).addr())
    }
}

/// The rhythm of the flow that its thread served last. Where several take turns none comes far enough to be judged: then they keep the
/// relay busy, and so behind.
#[derive(Debug)]
pub(crate) struct Rhythm {
    of: Option<Which>,
    window: Window,
    course: Course,
    /// Windows not to be judged from now on, and those after the next rest in vain, whichever flow's.
    unjudged: u32,
    unjudged_next: u32,
}

#[derive(Debug)]
struct Window {
    /// Not known for a flow's first, which began somewhere before.
    since: Option<Instant>,
    bytes: usize,
    drained: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// Takes what is there, and was ahead for so many windows, the fastest of which took so long.
    Watched { ahead: u32, fastest: Duration },
    /// Takes nothing.
    Resting(Rest),
    /// Has kept behind for so many windows.
    Behind { windows: u32, rest: Rest },
}

/// A rest, and how long a window took before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    since: Instant,
    before: Duration,
}

impl Window {
    const fn from(since: Option<Instant>) -> Self {
        Self {
            since,
            bytes: 0,
            drained: 0,
        }
    }

    /// How long it took, if the relay was ahead.
    fn ahead(&self, now: Instant) -> Option<Duration> {
        let took = now - self.since?;
        (self.drained > DRAINED_MOST && (FAST..SLOW).contains(&took)).then_some(took)
    }
}

impl Course {
    const WATCHED: Self = Self::Watched {
        ahead: 0,
        fastest: Duration::MAX,
    };
}

impl Rest {
    /// Whether so many windows since, and the rest itself, took less than seven eighths of the time that they took before. A sender whom
    /// it does not serve writes no more in the same time, however much of it waits now.
    fn served(&self, windows: u32, now: Instant) -> bool {
        now - self.since < self.before * windows / 8 * 7
    }
}

impl Rhythm {
    pub(crate) const fn new() -> Self {
        Self {
            of: None,
            window: Window::from(None),
            course: Course::WATCHED,
            unjudged: 0,
            unjudged_next: 1,
        }
    }

    /// So much was taken of it, and its source had no more, or had.
    #[inline]
    pub(crate) fn took(&mut self, which: Which, bytes: usize, is_drained: bool) {
        if self.of != Some(which) {
            // Who finds nothing is not served.
            if bytes == 0 {
                return;
            }
            self.of = Some(which);
            self.window = Window::from(None);
            self.course = Course::WATCHED;
        }
        self.window.bytes += bytes;
        self.window.drained += u32::from(is_drained);
        if self.window.bytes >= WINDOW {
            self.judge(Instant::now());
        }
    }

    /// The largest pipe it may have.
    #[inline]
    pub(crate) fn largest_pipe(&self, which: Which) -> SizeClass {
        match self.course {
            Course::Resting(_) | Course::Behind { .. } if self.of == Some(which) => SizeClass::Kib64,
            _ => SizeClass::Mib1,
        }
    }

    /// Whether it is to take nothing yet. Ends by itself, by the system's clock: tokio's may stand still while somebody is busy.
    #[inline]
    pub(crate) fn rests(&mut self, which: Which) -> bool {
        match self.course {
            Course::Resting(rest) if self.of == Some(which) => self.rests_at(rest, Instant::now()),
            _ => false,
        }
    }

    #[cold]
    fn rests_at(&mut self, rest: Rest, now: Instant) -> bool {
        if now - rest.since < REST {
            return true;
        }
        self.window = Window::from(Some(now));
        self.course = Course::Behind { windows: 0, rest };
        false
    }

    #[cold]
    fn judge(&mut self, now: Instant) {
        let ahead = self.window.ahead(now);
        self.window = Window::from(Some(now));
        self.course = match (self.course, ahead) {
            (Course::Watched { .. }, _) if self.unjudged > 0 => {
                self.unjudged -= 1;
                Course::WATCHED
            }
            (Course::Watched { ahead, fastest }, Some(took)) => {
                let (ahead, fastest) = (ahead + 1, fastest.min(took));
                if ahead < AHEAD {
                    Course::Watched { ahead, fastest }
                } else {
                    Course::Resting(Rest {
                        since: now,
                        before: fastest,
                    })
                }
            }
            (Course::Watched { .. }, None) => Course::WATCHED,
            (Course::Behind { windows, rest }, _) => self.after(rest, windows + 1, ahead.is_some(), now),
            // Is judged by what it takes afterwards.
            (Course::Resting(rest), _) => Course::Resting(rest),
        };
    }

    /// What follows so many windows after a rest.
    fn after(&mut self, rest: Rest, windows: u32, is_ahead: bool, now: Instant) -> Course {
        let behind = Course::Behind { windows, rest };
        let is_over = is_ahead || windows == BEHIND;
        if !is_over && windows != ASKED_AFTER {
            return behind;
        }
        if rest.served(windows, now) {
            self.unjudged_next = 1;
            return if is_over { Course::WATCHED } else { behind };
        }
        self.unjudged = self.unjudged_next;
        self.unjudged_next = UNJUDGED_MOST.min(2 * self.unjudged_next);
        Course::WATCHED
    }
}

#[cfg(test)]
impl Rhythm {
    /// As if it had been judged so that it rests since then.
    pub(crate) fn rest(&mut self, which: Which, since: Instant) {
        self.of = Some(which);
        self.course = Course::Resting(Rest {
            since,
            before: Duration::ZERO,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: Which = Which(NonZeroUsize::MIN);
    const OTHER: Which = Which(NonZeroUsize::MAX);

    /// What a window takes where the relay is ahead, and where it is behind.
    const DEAR: Duration = Duration::from_micros(800);
    const CHEAP: Duration = Duration::from_micros(200);

    /// A rhythm, and a clock for it.
    struct Judged {
        rhythm: Rhythm,
        now: Instant,
    }

    impl Judged {
        /// One that knows when its window began.
        fn new() -> Self {
            let mut judged = Self {
                rhythm: Rhythm::new(),
                now: Instant::now(),
            };
            judged.rhythm.took(THIS, 1, true);
            judged.ahead(DEAR);
            judged
        }

        fn window(&mut self, drained: u32, took: Duration) {
            for _ in 0..drained {
                self.rhythm.took(THIS, 1, true);
            }
            self.now += took;
            self.rhythm.judge(self.now);
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

        /// Two windows ahead, and whether it rests then, and does not when that is over.
        fn rested(&mut self) -> bool {
            self.ahead(DEAR);
            self.ahead(DEAR);
            let Course::Resting(rest) = self.rhythm.course else {
                return false;
            };
            assert!(self.is_behind());
            assert_eq!(rest.since, self.now);
            self.now += REST;
            assert!(self.rhythm.rests_at(rest, self.now - Duration::from_nanos(1)));
            assert!(!self.rhythm.rests_at(rest, self.now));
            true
        }

        fn is_behind(&self) -> bool {
            self.rhythm.largest_pipe(THIS) == SizeClass::Kib64
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
    fn no_window_counts_that_is_alone_or_fast_or_slow_or_seldom_drained_or_a_flows_first() {
        let mut judged = Judged::new();
        for (drained, took) in [(DRAINED_MOST, DEAR), (100, FAST - Duration::from_nanos(1)), (100, SLOW)] {
            for _ in 0..2 {
                judged.ahead(DEAR);
                judged.window(drained, took);
                assert!(!judged.is_behind());
            }
        }
        judged.ahead(FAST);
        judged.ahead(SLOW - Duration::from_nanos(1));
        assert!(judged.is_behind());
    }

    #[test]
    fn a_rest_after_which_64_windows_take_as_long_as_before_is_in_vain_and_the_next_one_is_put_off() {
        let mut judged = Judged::new();
        for unjudged in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            assert!(judged.rested());
            judged.behind(ASKED_AFTER, DEAR);
            for _ in 0..unjudged {
                assert!(!judged.is_behind());
                judged.ahead(DEAR);
            }
        }
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
        assert_eq!(judged.rhythm.unjudged, 0, "2.6 ms for what took 4");
        assert!(!judged.is_behind());
        assert!(judged.rested());
    }

    #[test]
    fn it_is_of_one_flow_and_ends_with_another() {
        let mut judged = Judged::new();
        assert!(judged.rested());
        assert_eq!(judged.rhythm.largest_pipe(OTHER), SizeClass::Mib1);
        judged.rhythm.rest(THIS, Instant::now());
        assert!(!judged.rhythm.rests(OTHER));
        judged.rhythm.took(OTHER, 0, true);
        assert!(judged.is_behind(), "nothing was served");
        judged.rhythm.took(OTHER, 1, false);
        assert!(!judged.is_behind());
        assert!(!judged.rhythm.rests(THIS));
        assert_eq!(judged.rhythm.window.since, None);
    }
}
