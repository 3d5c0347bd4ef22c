//! Upgrades under load: no connection is refused or reset, and every byte arrives.
//!
//! `SPLICEWAY_UPGRADES=20 SPLICEWAY_SESSIONS=1000 cargo test --release -p spliceway-proxy --test it
//! handover::load -- --nocapture` runs the long form.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Bulk, ask, upgrade};
use crate::harness::{Program, connect, echo, let_pass};

fn asked(name: &str, default: usize) -> usize {
    env::var(name)
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(default)
}

#[test]
fn upgrades_under_load_refuse_reset_and_lose_nothing() {
    let (upgrades, sessions) = (asked("SPLICEWAY_UPGRADES", 3), asked("SPLICEWAY_SESSIONS", 100));
    let target = echo("127.0.0.1:0");
    let mut program = Program::forward(target, &[]);
    let address = program.address;
    let stop = Arc::new(AtomicBool::new(false));
    let connections = Arc::new(AtomicU64::new(0));
    // 200 new connections each second, each with one request.
    let arriving = thread::spawn({
        let (stop, connections) = (Arc::clone(&stop), Arc::clone(&connections));
        move || {
            let start = Instant::now();
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                ask(&mut connect(address), number);
                connections.fetch_add(1, Ordering::Relaxed);
                let next = start + Duration::from_millis(5 * (number + 1));
                let_pass(next.saturating_duration_since(Instant::now()));
            }
        }
    });
    let mut clients: Vec<_> = (0..sessions).map(|_| connect(address)).collect();
    let bulk: Vec<_> = (0..4).map(|seed| Bulk::start(connect(address), seed)).collect();
    for client in &mut clients {
        ask(client, 1);
    }
    // An earlier process may still have sessions that have just begun.
    let mut processes = Vec::new();
    for round in 0..upgrades as u64 {
        let next = upgrade(&mut program, processes.last());
        processes.push(next);
        for client in &mut clients {
            ask(client, round);
        }
    }
    stop.store(true, Ordering::Relaxed);
    arriving.join().unwrap();
    let bytes: usize = bulk.into_iter().map(Bulk::finish).sum();
    println!(
        "{upgrades} upgrades, {sessions} sessions, {} new connections, {bytes} bytes of bulk: nothing was refused, reset or lost",
        connections.load(Ordering::Relaxed)
    );
    assert!(connections.load(Ordering::Relaxed) > 0);
}
