//! The supervisor: the thread that answers the kernel, and its counts.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::call::Call;
use crate::rule::{Fault, Rule};
use crate::sys::{self, Answer, Waited};

/// A limit longer than any test. A wait for a fault that never comes fails after this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The faults that a thread meets, and counts of its system calls. The threads that it starts are
/// included, and so are the programs that these threads start.
#[derive(Debug)]
pub struct Faults {
    shared: Arc<Shared>,
    supervisor: JoinHandle<io::Result<()>>,
}

/// Counts of the calls of one kind so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// All calls.
    pub calls: u64,
    /// Calls that were made to fail.
    pub injected: u64,
    /// Calls let through since the last fault of *any* kind. Before the first fault, this counts
    /// all calls.
    pub passed_since: u64,
}

#[derive(Debug)]
struct Shared {
    rules: Vec<Rule>,
    seen: Mutex<HashMap<Call, Seen>>,
    /// Notified when a fault is injected.
    injected: Condvar,
}

impl Faults {
    /// Applies `rules` to the calling thread until it ends. The first rule that matches a call
    /// decides. Only the kinds of call that a rule names are intercepted.
    ///
    /// # Errors
    /// Returns the `seccomp(2)` errors: `EBUSY` on a thread that already has faults, and `EINVAL`
    /// before Linux 5.9.
    pub fn on_this_thread(rules: Vec<Rule>) -> io::Result<Self> {
        let mut watched: Vec<_> = rules.iter().map(|rule| rule.call.watched()).collect();
        watched.sort_unstable();
        watched.dedup();
        let shared = Arc::new(Shared {
            rules,
            seen: Mutex::default(),
            injected: Condvar::new(),
        });
        // The supervisor starts first. If the filter applied to the supervisor, its thread would
        // wait for itself.
        let (sender, listener) = channel();
        let supervisor = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("faults".into())
                .spawn(move || supervise(&listener, &shared))?
        };
        let listener = sys::filter_this_thread(&watched)?;
        sender.send(listener).expect("the supervisor waits for nothing else");
        Ok(Self { shared, supervisor })
    }

    /// Returns the counts of the calls of this kind so far.
    #[must_use]
    pub fn seen(&self, call: Call) -> Seen {
        self.shared.lock().get(&call).copied().unwrap_or_default()
    }

    /// Returns the number of faults so far, of any kind.
    #[must_use]
    pub fn injected(&self) -> u64 {
        injected(&self.shared.lock())
    }

    /// Waits until this many faults have been injected. The affected calls return a moment later.
    ///
    /// # Panics
    /// Panics if there are fewer faults after one minute.
    pub fn await_injected(&self, count: u64) {
        let seen = self.shared.lock();
        let missing = |seen: &mut HashMap<Call, Seen>| injected(seen) < count;
        let (seen, waited) = self
            .shared
            .injected
            .wait_timeout_while(seen, PATIENCE, missing)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "{count} faults expected: {seen:?}");
    }

    /// Waits until nothing is left that could meet a fault. The thread has then ended. The threads
    /// and programs that it started have ended too.
    ///
    /// # Errors
    /// Returns the error that prevented the supervisor from answering, if there was one.
    ///
    /// # Panics
    /// Panics if the supervisor panicked.
    pub fn await_end(self) -> io::Result<()> {
        self.supervisor.join().expect("the supervisor does not panic")
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Call, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one call. Returns the fault for it if a rule matches.
    fn decide(&self, call: Call) -> Option<Fault> {
        let mut seen = self.lock();
        let number = {
            let seen = seen.entry(call).or_default();
            seen.calls += 1;
            seen.calls
        };
        let fault = self.rules.iter().find_map(|rule| rule.on(call, number));
        if fault.is_some() {
            seen.values_mut().for_each(|seen| seen.passed_since = 0);
        }
        let counted = seen.entry(call).or_default();
        match fault {
            Some(_) => counted.injected += 1,
            None => counted.passed_since += 1,
        }
        drop(seen);
        if fault.is_some() {
            self.injected.notify_all();
        }
        fault
    }
}

fn injected(seen: &HashMap<Call, Seen>) -> u64 {
    seen.values().map(|seen| seen.injected).sum()
}

/// Answers the kernel until the filter no longer applies to any thread.
fn supervise(listener: &Receiver<OwnedFd>, shared: &Shared) -> io::Result<()> {
    // Without a listener there is no filter either.
    let Ok(listener) = listener.recv() else { return Ok(()) };
    while sys::wait(&listener)? == Waited::Stopped {
        // A signal may have ended the caller meanwhile.
        let Some(notice) = sys::receive(&listener)? else {
            continue;
        };
        let answer = match Call::of(&notice).and_then(|call| shared.decide(call)) {
            Some(Fault::Errno(errno)) => Answer::Errno(errno),
            Some(Fault::Returns(value)) => Answer::Returns(value),
            None => Answer::GoOn,
        };
        sys::answer(&listener, &notice, answer)?;
    }
    Ok(())
}
