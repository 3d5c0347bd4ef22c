//! A pipe made and closed against one acquired from the pool and released (SEEDS C: what pooling is for).

use std::hint::black_box;
use std::io;
use std::thread;
use std::time::Instant;

use spliceway_core::{Limits, Pipe, PipePool, SizeClass};

use crate::machine;
use crate::report::{self, Row};

/// Operations per round, thread and kind.
const CREATED: u32 = 100_000;
const POOLED: u32 = 5_000_000;

pub(crate) fn run(rounds: usize) -> io::Result<()> {
    report::heading("pool", rounds, "nanoseconds per pipe and thread");
    let pool = PipePool::new(Limits::of_this_process());
    let mut rows = ["create + close", "acquire + release"].map(|name| Row {
        name: name.into(),
        figures: vec![Vec::new(), Vec::new()],
    });
    for _ in 0..rounds {
        for (column, threads) in [(0, 1), (1, 2)] {
            rows[0].figures[column].push(time(threads, CREATED, || drop(black_box(Pipe::new()))));
            rows[1].figures[column].push(time(threads, POOLED, || {
                drop(black_box(pool.acquire(SizeClass::Kib64)));
            }));
        }
    }
    report::print(&[("serial, ns", 1), ("two threads, ns", 1)], &rows);
    Ok(())
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
