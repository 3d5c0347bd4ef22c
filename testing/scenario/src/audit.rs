//! What a scenario must leave behind: nothing.

use std::fs;
use std::os::unix::net::UnixStream;

use spliceway_core::{Drain, Fill, PipePool, PooledPipe, SizeClass};

use crate::sockets;

/// How many descriptors this process has open that are no files: other threads of a test program read files.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd")
        .expect("procfs")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|link| link.is_relative())
        .count()
}

/// No pipe is lent, the idle ones are all that is counted, and they are empty.
pub(crate) fn pool(pool: &PipePool) {
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

/// Largest first: at the limit a smaller class stands in for a larger one, but to make room idle pipes would be closed.
fn take_idle(pool: &PipePool) -> Vec<PooledPipe> {
    let (mut idle, mut new) = (Vec::new(), Vec::new());
    for class in SizeClass::ALL.into_iter().rev() {
        let created = pool.stats().created;
        while let Ok(pipe) = pool.acquire(class) {
            if pool.stats().created > created {
                new.push(pipe);
                break;
            }
            idle.push(pipe);
        }
    }
    idle
}

/// What goes in first comes out first.
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
