//! A pipe that is created and closed, against a pipe that the pool lends.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use spliceway::{Limits, PipePool, SizeClass};
use spliceway_load::lower_half;

use super::conditions::{self, Conditions};
use super::figures::{Compared, Row};
use super::measurement::{Figure, Kind};

/// Operations between two looks at the clock.
const BATCH: u32 = 64;
const NAMES: [&str; 3] = ["create", "pool", "pool again"];

/// The pool, and the nanoseconds so far.
pub(super) struct PoolTimes {
    pool: PipePool,
    /// By the number of threads, by way, and then by round.
    times: [[Vec<f64>; 3]; 2],
}

impl PoolTimes {
    pub(super) fn new() -> Self {
        Self {
            pool: PipePool::new(Limits::of_this_process()),
            times: Default::default(),
        }
    }

    /// Measures each way once, on one thread and on two at the same time.
    pub(super) fn round(&mut self, conditions: &Conditions, time: Duration) {
        let (pool, time) = (&self.pool, time / 2);
        // A refusal would be faster than any pipe.
        if pool.acquire(SizeClass::Kib64).is_err() {
            return;
        }
        let create = || drop(black_box(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)));
        let lend = || drop(black_box(pool.acquire(SizeClass::Kib64)));
        for (threads, [created, lent, again]) in (1..).zip(&mut self.times) {
            created.push(nanoseconds(conditions, threads, time, create));
            lent.push(nanoseconds(conditions, threads, time, lend));
            again.push(nanoseconds(conditions, threads, time, lend));
        }
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let compared = Compared {
            names: NAMES.to_vec(),
            reference: 0,
            subject: 1,
            control: 2,
            repeated: 1,
        };
        let row = |(ways, label): (&[Vec<f64>; 3], &str)| {
            let titles = ("Pipes: nanoseconds for each".to_owned(), label.to_owned());
            let of = |way: usize, rounds: &[usize]| lower_half(rounds.iter().map(|at| ways[way][*at]));
            Row::new(
                (Kind::Pool, None),
                titles,
                Figure::Pipe,
                &compared,
                |way| ways[way].len(),
                of,
            )
        };
        self.times.iter().zip(["1 thread", "2 threads"]).map(row).collect()
    }
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
