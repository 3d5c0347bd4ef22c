//! What this machine takes from threads that never wait: no relay can have a better tail than that.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::machine::{self, LOAD_CORE, RELAY_CORE};

/// Two looks at the clock that are further apart had something between them; an interrupt takes a few microseconds.
const GAP: Duration = Duration::from_micros(100);
/// What shows in a p99 of some 100 µs.
const LONG: Duration = Duration::from_millis(1);

/// The gaps that one core had.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    long: u32,
    longest: Duration,
    together: Duration,
}

/// Watches each core alone, and both at once.
///
/// # Errors
/// A core is missing.
#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
pub(crate) fn run(seconds: f64) -> io::Result<()> {
    println!(
        "a thread that reads the clock and nothing else, {seconds} s: what was taken from it in gaps of 100 µs and more"
    );
    println!("{}", machine::describe());
    println!("{:<28}{:>10}{:>16}{:>14}", "", "of all", "over 1 ms, /s", "longest, µs");
    let time = Duration::from_secs_f64(seconds);
    for cores in [&[RELAY_CORE][..], &[LOAD_CORE], &[RELAY_CORE, LOAD_CORE]] {
        for (core, gaps) in cores.iter().zip(watch(cores, time)?) {
            let busy = if cores.len() > 1 { "both busy" } else { "the other idle" };
            println!(
                "{:<28}{:>9.2}%{:>16.1}{:>14}",
                format!("core {core}, {busy}"),
                gaps.together.as_secs_f64() / seconds * 100.0,
                f64::from(gaps.long) / seconds,
                gaps.longest.as_micros(),
            );
        }
    }
    Ok(())
}

/// All of these cores at once.
fn watch(cores: &[usize], time: Duration) -> io::Result<Vec<Gaps>> {
    thread::scope(|scope| {
        let watched: Vec<_> = cores
            .iter()
            .map(|core| scope.spawn(|| machine::pin_to(*core).map(|()| gaps(time))))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("it does not panic");
        watched.into_iter().map(join).collect()
    })
}

fn gaps(time: Duration) -> Gaps {
    let (start, mut gaps) = (Instant::now(), Gaps::default());
    let mut last = start;
    while last - start < time {
        let now = Instant::now();
        let gap = now - last;
        last = now;
        if gap < GAP {
            continue;
        }
        gaps.together += gap;
        gaps.longest = gaps.longest.max(gap);
        gaps.long += u32::from(gap >= LONG);
    }
    gaps
}
