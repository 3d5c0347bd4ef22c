//! Whether this process may splice at all: off after EPERM or ENOSYS, and tried again now and then.

use std::sync::atomic::Ordering;

use crate::reason::{Reason, Scope};
use crate::sync::{AtomicU32, statics};

/// Once splice was found forbidden, one attempt in so many is let through. A sandbox seldom changes its mind, and an
/// attempt comes only once per MiB and direction.
const PROBE_EVERY: u32 = 64;

/// Attempts still to be refused, and the one that is let through to see. 0 is on.
struct Refusals(AtomicU32);

statics! {
    /// After EPERM or EACCES.
    static NOT_PERMITTED: Refusals = Refusals(AtomicU32::new(0));
    /// After ENOSYS.
    static NOT_IMPLEMENTED: Refusals = Refusals(AtomicU32::new(0));
}

/// Whether to try. While it is off each call counts down to the next probe. The reason given here is this switch's own, and
/// not to be [noted](note).
pub(crate) fn check() -> Result<(), Reason> {
    NOT_PERMITTED.count_down(Reason::NotPermitted)?;
    NOT_IMPLEMENTED.count_down(Reason::NotImplemented)
}

/// Takes note of a reason to copy that a system call gave.
pub(crate) fn note(reason: Reason) {
    match reason {
        Reason::NotPermitted => NOT_PERMITTED.begin(),
        Reason::NotImplemented => NOT_IMPLEMENTED.begin(),
        _ => debug_assert!(reason.scope() != Scope::Process, "{reason} holds for the process"),
    }
}

impl Refusals {
    /// Not anew while it is off: calls that were on their way when another found out would put the probe off.
    fn begin(&self) {
        let _ = self
            .0
            .compare_exchange(0, PROBE_EVERY, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn count_down(&self, reason: Reason) -> Result<(), Reason> {
        // On is the case that must cost nothing: a load of a line nobody writes.
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
    fn threads_that_count_down_at_once_are_refused_as_often_as_one_would_be_and_then_it_is_on() {
        every_interleaving(|| {
            let switch = off_for(3);
            let refused_of_two = |switch: &Refusals| {
                (0..2)
                    .filter(|_| switch.count_down(Reason::NotPermitted).is_err())
                    .count()
            };
            let other = Arc::clone(&switch);
            let other = thread::spawn(move || refused_of_two(&other));
            let refused = refused_of_two(&switch) + other.join().unwrap();
            assert_eq!(refused, 2, "the third is the probe, the fourth finds it on");
            assert_eq!(switch.0.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn calls_that_fail_while_it_is_off_do_not_put_the_probe_off() {
        every_interleaving(|| {
            let switch = off_for(0);
            let other = Arc::clone(&switch);
            let other = thread::spawn(move || other.begin());
            switch.begin();
            let refused = switch.count_down(Reason::NotPermitted);
            other.join().unwrap();
            assert_eq!(refused, Err(Reason::NotPermitted));
            assert_eq!(switch.0.load(Ordering::Relaxed), PROBE_EVERY - 1);
        });
    }

    /// Where the splice of one direction works again, the refusal that another just met is old news, and the switch's own.
    #[test]
    fn a_splicer_that_is_refused_does_not_turn_it_off_again() {
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

    /// A splicer whose next step is to fill a pipe, because the traffic is bulk; its source, and the socket that sends there.
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
