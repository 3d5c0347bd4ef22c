//! Measures how busy a core is, and how much of its time the host uses for other guests.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use spliceway_machine as machine;
use spliceway_machine::accounts;

use crate::{LOAD_CORE, RELAY_CORE};

/// The kernel's accounting of a core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreTime {
    /// Idle time. The kernel stops this clock during interrupts, so it leaves out softirqs that run
    /// at that time. The remaining time is the core's whole work. (The clocks of the cpuidle states
    /// continue during interrupts, and miss most of a forwarder's work.)
    pub(crate) idle: Duration,
    /// Time that the host gave to other guests.
    pub(crate) steal: Duration,
}

impl CoreTime {
    pub(crate) fn now(core: usize) -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let name = format!("cpu{core} ");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name));
        let fields: Vec<u64> = line
            .into_iter()
            .flat_map(|line| line.split_whitespace().map_while(|field| field.parse().ok()))
            .collect();
        // The fields are in hundredths of a second.
        let of = |field: usize| {
            fields
                .get(field)
                .copied()
                .map(|ticks| Duration::from_millis(10 * ticks))
        };
        match (of(3), of(4), of(7)) {
            (Some(idle), Some(iowait), Some(steal)) => Ok(Self {
                idle: Self::sleep_time(core).unwrap_or(idle + iowait),
                steal,
            }),
            _ => Err(io::Error::other(format!("no cpu{core} in /proc/stat"))),
        }
    }
}

impl CoreTime {
    /// Returns the idle time in nanoseconds, from the kernel's timer list. Only root may read that
    /// list.
    fn sleep_time(core: usize) -> Option<Duration> {
        let timers = fs::read_to_string("/proc/timer_list").ok()?;
        let of_core = timers
            .lines()
            .skip_while(|line| line.strip_prefix("cpu: ") != Some(&core.to_string()));
        let sleeps = of_core
            .filter_map(|line| line.trim().split_once("_sleeptime"))
            .take(2)
            .map(|(_, value)| {
                value
                    .trim_start_matches([' ', ':'])
                    .trim_end_matches(" nsecs")
                    .parse()
                    .ok()
            });
        let nanos: Option<Vec<u64>> = sleeps.collect();
        nanos
            .filter(|both| both.len() == 2)
            .map(|both| Duration::from_nanos(both.iter().sum()))
    }
}

/// The fraction of the time that others may use during a run. Two runs of one relay can differ by
/// this much.
pub(crate) const CALM: f64 = 0.02;

/// Runs something, and repeats it at once if it was disturbed, at most this often. Returns its last
/// result, and the fraction of the time that others used. The decision to repeat does not look at
/// the result.
pub(crate) fn undisturbed<T>(attempts: usize, mut run: impl FnMut() -> io::Result<T>) -> io::Result<(T, f64)> {
    repeat_until_calm(attempts, || {
        let (before, began) = (time_of_others()?, Instant::now());
        let done = run()?;
        let used = time_of_others()?.saturating_sub(before);
        Ok((done, used.as_secs_f64() / began.elapsed().as_secs_f64()))
    })
}

fn repeat_until_calm<T>(attempts: usize, mut run: impl FnMut() -> io::Result<(T, f64)>) -> io::Result<(T, f64)> {
    let mut attempt = 1;
    loop {
        let (done, used) = run()?;
        if used <= CALM || attempt >= attempts {
            return Ok((done, used));
        }
        attempt += 1;
    }
}

/// Returns the time that the host has given to other guests, and the CPU time of processes that do
/// not belong to this one.
fn time_of_others() -> io::Result<Duration> {
    let steal: Duration = [RELAY_CORE, LOAD_CORE]
        .into_iter()
        .map(|core| Ok(CoreTime::now(core)?.steal))
        .sum::<io::Result<_>>()?;
    Ok(steal + accounts::time_of_others()?)
}

/// A thread in the lowest scheduling class (`SCHED_IDLE`) on one core. It keeps the virtual CPU
/// from halting, and notices when the thread itself does not run. During a gap in its clock, other
/// work had the core, including softirqs and the host.
pub(crate) struct Spinner {
    stop: Arc<AtomicBool>,
    clock: Arc<Clock>,
    thread: Option<JoinHandle<()>>,
}

/// Times in nanoseconds since the spinner began.
struct Clock {
    began: Instant,
    /// Time during which other work had the core.
    busy: AtomicU64,
    /// The last time at which the spinner had the core.
    seen: AtomicU64,
}

/// The spinner reads the clock every 30 ns. A gap of at least this length is therefore other work.
const GAP: Duration = Duration::from_nanos(700);

impl Spinner {
    pub(crate) fn start(core: usize) -> io::Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let clock = Arc::new(Clock {
            began: Instant::now(),
            busy: AtomicU64::default(),
            seen: AtomicU64::default(),
        });
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&clock));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let began = machine::pin_to(core).and_then(|()| machine::give_way_to_all());
            let begins = began.is_ok();
            let _ = ready.send(began);
            if begins {
                spin(&stopped, &counted);
            }
        });
        is_ready.recv().map_err(io::Error::other)??;
        Ok(Self {
            stop,
            clock,
            thread: Some(thread),
        })
    }

    /// Returns the time that other work has had the core so far, even if the spinner is not running
    /// now.
    pub(crate) fn busy(&self) -> Duration {
        let seen = Duration::from_nanos(self.clock.seen.load(Ordering::Relaxed));
        let since = self.clock.began.elapsed().saturating_sub(seen);
        let gap = if since >= GAP { since } else { Duration::ZERO };
        Duration::from_nanos(self.clock.busy.load(Ordering::Relaxed)) + gap
    }
}

fn spin(stopped: &AtomicBool, clock: &Clock) {
    let mut last = clock.began.elapsed();
    while !stopped.load(Ordering::Relaxed) {
        let now = clock.began.elapsed();
        if now - last >= GAP {
            clock.busy.fetch_add((now - last).as_nanos() as u64, Ordering::Relaxed);
        }
        clock.seen.store(now.as_nanos() as u64, Ordering::Relaxed);
        last = now;
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disturbed_run_is_repeated_and_not_without_end() {
        let run = |used: &[f64]| {
            let mut used = used.iter().enumerate();
            let next = || {
                used.next()
                    .map(|(at, used)| (at, *used))
                    .ok_or(io::ErrorKind::UnexpectedEof)
            };
            let mut next = next;
            repeat_until_calm(3, || Ok(next()?)).unwrap()
        };
        assert_eq!(run(&[0.02, 0.0]), (0, 0.02));
        assert_eq!(run(&[0.5, 0.03, 0.01, 0.0]), (2, 0.01));
        assert_eq!(run(&[0.5, 0.4, 0.3, 0.0]), (2, 0.3));
    }
}
