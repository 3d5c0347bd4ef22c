//! A pipe made and closed against one acquired from the pool and released: what pooling is for.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use spliceway_core::{Limits, Pipe, PipePool, SizeClass};

use crate::machine;
use crate::report::apart::Apart;
use crate::scenario::Figure;

/// Operations per round, thread and kind.
#[derive(Clone, Copy)]
pub(crate) struct Operations {
    created: u32,
    pooled: u32,
}

impl Operations {
    pub(crate) const ALL: Self = Self {
        created: 100_000,
        pooled: 5_000_000,
    };
    /// That it works, and not how fast.
    pub(crate) const FEW: Self = Self {
        created: 1_000,
        pooled: 50_000,
    };
}

const FIGURES: &[Figure] = &[
    Figure::lower("serial", "ns", 1),
    Figure::lower("two threads at once", "ns", 1),
];

pub(crate) fn measure(operations: Operations, rounds: usize) -> Apart {
    let title = "a pipe of the pool's against one of the kernel's, time of each".into();
    let mut apart = Apart::new("pool", title, rounds, FIGURES, ["acquire + release", "create + close"]);
    let pool = PipePool::new(Limits::of_this_process());
    for _ in 0..rounds {
        for (figure, threads) in [(0, 1), (1, 2)] {
            let pooled = time(threads, operations.pooled, || {
                drop(black_box(pool.acquire(SizeClass::Kib64)));
            });
            apart.add(0, figure, pooled);
            let created = time(threads, operations.created, || drop(black_box(Pipe::new())));
            apart.add(1, figure, created);
        }
    }
    apart
}

/// Nanoseconds per operation, on so many threads at once, each on a core of its own.
fn time(threads: usize, operations: u32, operation: impl Fn() + Sync) -> f64 {
    let started = Instant::now();
    thread::scope(|scope| {
        for core in 0..threads {
            let operation = &operation;
            scope.spawn(move || {
                // Without the right to pin, the scheduler's choice has to do.
                let _ = machine::pin_to(core);
                for _ in 0..operations {
                    operation();
                }
            });
        }
    });
    started.elapsed().as_nanos() as f64 / f64::from(operations)
}
