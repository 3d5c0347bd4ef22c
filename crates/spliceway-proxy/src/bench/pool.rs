//! A pipe that is created and closed, against a pipe that the pool lends.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use spliceway::{Limits, PipePool, SizeClass};

use super::conditions::{self, Conditions};
use super::figures::{Compared, Row};
use super::measurement::{Figure, Kind};

/// Operations between two looks at the clock.
const BATCH: u32 = 64;
const NAMES: [&str; 3] = ["create", "pool", "pool again"];

/// Returns the nanoseconds of each way, on one thread and on two at the same time.
pub(super) fn measure(conditions: &Conditions, rounds: u32, time: Duration) -> Vec<Row> {
    let pool = PipePool::new(Limits::of_this_process());
    // A refusal would be faster than any pipe.
    let rounds = if pool.acquire(SizeClass::Kib64).is_ok() {
        rounds
    } else {
        0
    };
    let compared = Compared {
        names: NAMES.to_vec(),
        reference: 0,
        subject: 1,
        control: 2,
    };
    let time = time / 2;
    let row = |threads: usize| {
        let mut values: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            let create = || drop(black_box(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)));
            values[0].push(nanoseconds(conditions, threads, time, create));
            for lent in &mut values[1..] {
                let lend = || drop(black_box(pool.acquire(SizeClass::Kib64)));
                lent.push(nanoseconds(conditions, threads, time, lend));
            }
        }
        let label = if threads == 1 { "1 thread" } else { "2 threads" };
        let titles = ("Pipes: nanoseconds for each".to_owned(), label.to_owned());
        let of = |way: usize, rounds: &[usize]| {
            spliceway_load::lower_half(rounds.iter().filter_map(|at| values[way].get(*at).copied()))
        };
        Row::new(
            (Kind::Pool, None),
            titles,
            Figure::Pipe,
            &compared,
            |way| values[way].len(),
            of,
        )
    };
    [1, 2].map(row).into()
}

/// Returns the nanoseconds per operation of a thread, while this many threads do it at the same
/// time, each on its own core.
fn nanoseconds(conditions: &Conditions, threads: usize, time: Duration, operation: impl Fn() + Sync) -> f64 {
    let repeat = |thread: usize| {
        if let Some(cores) = conditions.cores {
            conditions::pin_to(cores[thread]);
        }
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < time {
            (0..BATCH).for_each(|_| operation());
            count += BATCH;
        }
        began.elapsed().as_nanos() as f64 / f64::from(count.max(1))
    };
    let each: Vec<f64> = thread::scope(|scope| {
        let repeat = &repeat;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || repeat(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    each.iter().sum::<f64>() / each.len().max(1) as f64
}
