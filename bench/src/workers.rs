//! Two workers: one runtime of tokio's with two threads, which hand tasks to each other, against a runtime for each thread, among which
//! the kernel distributes connections (`SO_REUSEPORT`). Both against one thread that has all connections, which is what becomes of the
//! second where all long flows happen to land on one of its runtimes.
//!
//! Relay and load share both cores here, as there are but two: where they are held apart, the second worker has none.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::thread;

use tokio::net::TcpListener;
use tokio::runtime::Builder;

use crate::arms::{self, Arm};
use crate::machine;
use crate::report;
use crate::report::json::is_of;
use crate::scenario::{self, Scenario};
use crate::scenarios::bulk::Bulk;
use crate::scenarios::churn::Churn;
use crate::scenarios::rr::RequestResponse;

const ARMS: &[Arm] = &[Arm::TwoWorkers, Arm::TwoRuntimes, Arm::OneRuntime];

/// Prints a table of each scenario; ratios are to the runtime with two threads.
pub(crate) fn run(only: &[String], rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    machine::raise_descriptor_limit(0)?;
    let is_asked = |id: &str| only.is_empty() || only.iter().any(|name| is_of(id, name));
    for scenario in scenarios().into_iter().filter(|one| is_asked(&one.id())) {
        let table = scenario::run(scenario.as_ref(), ARMS, rounds)?;
        report::print_table(&table, &conditions);
    }
    Ok(())
}

fn scenarios() -> Vec<Box<dyn Scenario>> {
    let mut all: Vec<Box<dyn Scenario>> = vec![Box::new(Churn {
        connections: 32,
        count: 10_000,
    })];
    for connections in [64, 512] {
        all.push(Box::new(RequestResponse {
            connections,
            size: 64,
            trips: 60_000,
        }));
    }
    // The last is the uneven load: of four flows one of two runtimes has all at one time of eight, and three or more at five.
    for flows in [64, 4] {
        all.push(Box::new(Bulk { flows, bytes: 2 << 30 }));
    }
    all
}

/// Relays as such an arm does, on both cores.
pub(crate) fn serve(arm: Arm, listen: IpAddr, upstream: SocketAddr) -> io::Result<()> {
    machine::use_all_cores()?;
    let first = arms::listener((listen, 0).into(), true)?;
    let address = first.local_addr()?;
    arms::report_address(address);
    match arm {
        Arm::TwoWorkers => {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            // A task, as what accepts is a task of a worker's in programs that do more than that.
            let accepting =
                runtime.spawn(async move { arms::accept(arm, TcpListener::from_std(first)?, upstream).await });
            runtime.block_on(accepting).expect("it does not panic")
        }
        Arm::TwoRuntimes => {
            let second = arms::listener(address, true)?;
            thread::spawn(move || on_this_thread(arm, second, upstream));
            on_this_thread(arm, first, upstream)
        }
        _ => on_this_thread(arm, first, upstream),
    }
}

fn on_this_thread(arm: Arm, listener: std::net::TcpListener, upstream: SocketAddr) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { arms::accept(arm, TcpListener::from_std(listener)?, upstream).await })
}
