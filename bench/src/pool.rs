//! Compares a pipe that is created and closed with a pipe that is acquired from the pool and
//! released. The difference is the gain of pooling.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use spliceway_core::{Limits, Pipe, PipePool, SizeClass};
use spliceway_machine as machine;

use crate::figures::Figures;

/// Measures the nanoseconds for each way, on one thread and on two concurrent threads.
pub(crate) fn measure(rounds: usize) -> [Figures; 2] {
    let pool = PipePool::new(Limits::of_this_process());
    [1, 2].map(|threads| {
        let mut figures = Figures::new(format!("pool, threads at once: {threads}"), "ns", 1);
        for _ in 0..rounds {
            figures.add(
                "create and close",
                time(threads, 100_000, || drop(black_box(Pipe::new()))),
            );
            let pooled = time(threads, 5_000_000, || drop(black_box(pool.acquire(SizeClass::Kib64))));
            figures.add("acquire and release", pooled);
        }
        figures
    })
}

/// Returns the nanoseconds per operation on this many concurrent threads, each on its own core.
fn time(threads: usize, operations: u32, operation: impl Fn() + Sync) -> f64 {
    let started = Instant::now();
    thread::scope(|scope| {
        for core in 0..threads {
            let operation = &operation;
            scope.spawn(move || {
                // Without permission to pin threads, the scheduler chooses the core.
                let _ = machine::pin_to(core);
                (0..operations).for_each(|_| operation());
            });
        }
    });
    started.elapsed().as_nanos() as f64 / f64::from(operations)
}
