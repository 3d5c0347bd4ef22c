//! Checks that a scenario leaves nothing behind.

use std::fs;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use spliceway_core::{Drain, Fill, PipePool, PooledPipe, SizeClass};

use crate::sockets;

/// Returns the number of open descriptors of this process that are not files. Files do not count,
/// because other threads of a test program read them.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd")
        .expect("procfs")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|link| link.is_relative())
        .count()
}

/// Returns the TCP connections of this network namespace that have queued bytes, as proc_net_tcp(5)
/// shows them. Each has its ports, its state, `tx_queue:rx_queue`, and the active timer (1 is
/// retransmission, and 4 is the probe of a closed window).
pub(crate) fn queues() -> Vec<Vec<String>> {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap_or_default();
    let lines = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().skip(1).take(5).map(str::to_owned).collect());
    lines
        .filter(|line: &Vec<String>| line.get(3).is_some_and(|queues| queues != "00000000:00000000"))
        .collect()
}

/// Returns whether TCP itself waits to retransmit or probe.
pub(crate) fn a_timer_of_tcp_runs() -> bool {
    let timers = queues();
    let mut timers = timers.iter().filter_map(|line| line.get(4));
    timers.any(|timer| timer.starts_with("01:") || timer.starts_with("04:"))
}

/// Checks that no pipe is lent, that the pool counts only the idle pipes, and that these are empty.
pub(crate) fn pool(pool: &PipePool) {
    // While the pool's own thread closes a pipe, the pipe is open and no longer idle. For that
    // moment it counts as lent.
    let until = Instant::now() + Duration::from_secs(10);
    while pool.stats().lent > 0 && Instant::now() < until {
        thread::yield_now();
    }
    let stats = pool.stats();
    assert_eq!(stats.lent, 0, "pipes are lent to nobody: {stats:?}");
    if stats.idle == 0 {
        assert_eq!(stats.pages, 0, "{stats:?}");
        return;
    }
    let mut idle = take_idle(pool);
    let bytes: usize = idle.iter().map(|pipe| pipe.capacity()).sum();
    assert!(
        bytes == stats.pages * rustix::param::page_size() || pool.stats().closed_idle > stats.closed_idle,
        "{bytes} bytes in {stats:?}"
    );
    idle.iter_mut().for_each(assert_empty);
}

/// After a search without a result, the pool does not search for this many acquisitions of the
/// class.
const UNSEARCHED: usize = 64;

/// Acquires the idle pipes, the largest class first. At the limit, a smaller pipe replaces a larger
/// one. In the other order, the pool would close larger idle pipes to make room.
fn take_idle(pool: &PipePool) -> Vec<PooledPipe> {
    let (mut idle, mut new) = (Vec::new(), Vec::new());
    for class in SizeClass::ALL.into_iter().rev() {
        let created = pool.stats().created;
        // After an unsuccessful search of the other free lists, a pool does not search again
        // immediately.
        while let Some(pipe) = (0..=UNSEARCHED).find_map(|_| pool.acquire(class).ok()) {
            if pool.stats().created > created {
                new.push(pipe);
                break;
            }
            idle.push(pipe);
        }
    }
    idle
}

/// Checks that the first bytes to come out are those that this function writes.
fn assert_empty(pipe: &mut PooledPipe) {
    const MARK: &[u8] = b"nothing before this";
    let (near, far) = UnixStream::pair().expect("socketpair");
    near.set_nonblocking(true).expect("FIONBIO");
    assert_eq!(sockets::send(&near, MARK).ok(), Some(MARK.len()));
    assert_eq!(pipe.fill_from(&far).ok(), Some(Fill::Moved(MARK.len())));
    assert_eq!(pipe.drain_into(&far).ok(), Some(Drain::Moved(MARK.len())));
    let mut got = [0; MARK.len()];
    assert_eq!(sockets::recv(&near, &mut got).ok(), Some(MARK.len()));
    assert_eq!(got, MARK, "an idle pipe held bytes of a stream");
}
