//! Decides whether this process splices at all. EPERM or ENOSYS turns splicing off. Occasional
//! probes then try it again.

use std::sync::atomic::Ordering;

use crate::reason::{Reason, Scope};
use crate::sync::{AtomicU32, statics};

/// While splicing is off, the process allows one attempt in this many as a probe. A sandbox seldom
/// changes its rules, and a direction makes only one attempt per MiB.
const PROBE_EVERY: u32 = 64;

/// The number of attempts that are still refused, plus one for the probe. 0 means that splicing is
/// on.
struct Refusals(AtomicU32);

statics! {
    /// Set after EPERM or EACCES.
    static NOT_PERMITTED: Refusals = Refusals(AtomicU32::new(0));
    /// Set after ENOSYS.
    static NOT_IMPLEMENTED: Refusals = Refusals(AtomicU32::new(0));
}

/// Returns whether to try a splice. While splicing is off, each call counts down to the next probe.
///
/// The returned reason comes from this module, not from a system call. It must not be
/// [noted](note).
pub(crate) fn check() -> Result<(), Reason> {
    NOT_PERMITTED.count_down(Reason::NotPermitted)?;
    NOT_IMPLEMENTED.count_down(Reason::NotImplemented)
}

/// Notes a reason to copy that a system call gave.
pub(crate) fn note(reason: Reason) {
    match reason {
        Reason::NotPermitted => NOT_PERMITTED.begin(),
        Reason::NotImplemented => NOT_IMPLEMENTED.begin(),
        _ => debug_assert!(reason.scope() != Scope::Process, "{reason} holds for the process"),
    }
}

impl Refusals {
    /// Starts to refuse attempts, but does not restart a running count. Otherwise, calls that were
    /// in progress when another call failed would delay the probe.
    fn begin(&self) {
        let _ = self
            .0
            .compare_exchange(0, PROBE_EVERY, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn count_down(&self, reason: Reason) -> Result<(), Reason> {
        // While splicing is on, the check must cost nothing. It loads a cache line to which no
        // thread writes.
        if self.0.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
        {
            Ok(2..) => Err(reason),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::sync::every_interleaving;
    use crate::{Counts, Engine, Limits, Next, PipePool, PipeSize, ReadOutcome, Splicer};

    fn off_for(refusals: u32) -> Arc<Refusals> {
        Arc::new(Refusals(AtomicU32::new(refusals)))
    }

    #[test]
    fn concurrent_refusals_count_down_to_one_probe() {
        every_interleaving(|| {
            let refusals = off_for(3);
            let refused_of_two = |refusals: &Refusals| {
                (0..2)
                    .filter(|_| refusals.count_down(Reason::NotPermitted).is_err())
                    .count()
            };
            let other = Arc::clone(&refusals);
            let other = thread::spawn(move || refused_of_two(&other));
            let refused = refused_of_two(&refusals) + other.join().unwrap();
            assert_eq!(refused, 2, "the third is the probe, the fourth finds it on");
            assert_eq!(refusals.0.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn calls_that_fail_while_splicing_is_off_do_not_delay_the_probe() {
        every_interleaving(|| {
            let refusals = off_for(0);
            let other = Arc::clone(&refusals);
            let other = thread::spawn(move || other.begin());
            refusals.begin();
            let refused = refusals.count_down(Reason::NotPermitted);
            other.join().unwrap();
            assert_eq!(refused, Err(Reason::NotPermitted));
            assert_eq!(refusals.0.load(Ordering::Relaxed), PROBE_EVERY - 1);
        });
    }

    /// When a splice in one direction works again, a refusal that another direction has just
    /// received is outdated. That refusal came from this module, not from a system call.
    #[test]
    fn a_refused_splicer_does_not_turn_splicing_off_again() {
        let limits = Limits::of_this_process().with_max_pipes(0);
        every_interleaving(move || {
            NOT_PERMITTED.0.store(2, Ordering::Relaxed);
            let (mut splicer, source, _peer) = about_to_splice(PipePool::new(limits.clone()));
            let probe = thread::spawn(|| while check().is_err() {});
            let Next::Read(read) = splicer.next() else {
                unreachable!("it holds nothing")
            };
            read.perform(64, &source, &mut [0; 64], &Counts::default()).unwrap();
            probe.join().unwrap();
            assert_eq!(check(), Ok(()), "no call failed");
        });
    }

    /// Returns a splicer whose next step is to fill a pipe, because the traffic is bulk. Also
    /// returns its source, and the socket that sends to the source.
    fn about_to_splice(pool: PipePool) -> (Splicer, TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (source, _) = listener.accept().unwrap();
        source.set_nonblocking(true).unwrap();
        peer.write_all(b"bytes").unwrap();
        let mut splicer = Splicer::new(Engine::Auto, PipeSize::Auto, pool);
        let (counts, mut scratch) = (Counts::default(), [0; 5]);
        // A receive that fills the buffer makes the traffic bulk.
        loop {
            match splicer.next() {
                Next::Read(read) if read.uses_pipe() => break,
                Next::Read(read) => _ = read.perform(5, &source, &mut scratch, &counts).unwrap() == ReadOutcome::Open,
                Next::Write(write) => _ = write.perform(&source, &scratch, &counts).unwrap(),
                next => unreachable!("{next:?}"),
            }
        }
        (splicer, source, peer)
    }
}
