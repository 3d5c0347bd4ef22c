//! The urgent-mark check, which finds sockets that look drained but are not.
//!
//! A TCP receive returns fewer bytes than requested if no more bytes are queued, and also at an
//! urgent mark (`MSG_OOB`). The bytes after the mark have already arrived, so no edge will announce
//! them. A caller that has cleared the socket's readiness would wait for ever. A separate query for
//! each socket after each receive would cost as much as a quarter of the receive. One `poll(2)`
//! call queries many sockets.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use crate::sys::{self, MarkQuery};

/// Sockets whose last receive was [short](crate::ReadOutcome::Short), and whose readiness the
/// caller has cleared. The caller must call [`check`](Self::check) before the thread waits for
/// events.
///
/// The check does not find a mark whose byte was already received with `MSG_OOB`. The bytes after
/// such a mark wait until the next byte arrives.
#[derive(Debug, Default)]
pub struct UrgentMarks(Vec<MarkQuery>);

impl UrgentMarks {
    /// The most sockets that the list holds. One call queries all of them, and it must be short.
    pub const MAX: usize = 256;

    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a socket, which may be closed before the check.
    pub fn add(&mut self, socket: impl AsFd) {
        self.0.push(sys::mark_query(socket.as_fd()));
    }

    /// Returns whether there is nothing to check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the caller must run a check before it adds another socket.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.len() >= Self::MAX
    }

    /// Checks all sockets and removes them from the list. The pollers of a socket at a mark get
    /// another edge. The check costs one system call, and two more for each socket at a mark.
    pub fn check(&mut self) {
        if self.0.is_empty() {
            return;
        }
        sys::urgent_marks(&mut self.0).for_each(sys::tell_pollers_again);
        self.0.clear();
    }
}

/// The [`UrgentMarks`] of one runtime thread, which are checked each time the runtime has polled
/// for events.
///
/// While there is a socket to check, the runtime holds a waker. The runtime wakes this waker after
/// polling for events, and the waker then runs the check. The waker also runs the check when it is
/// dropped. A runtime that stops before it polls drops the waker, and its tasks may still wait for
/// these sockets when the runtime continues.
#[derive(Debug)]
pub struct UrgentMarkCheck {
    shared: Arc<Shared>,
    defer: fn(&Waker),
}

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    marks: UrgentMarks,
    /// The last waker, kept for reuse, so that a message does not cause an allocation.
    spare: Option<Arc<Deferred>>,
}

/// A check that the runtime has yet to run.
#[derive(Debug)]
struct Deferred(Arc<Shared>);

impl UrgentMarkCheck {
    /// Creates a check. `defer` hands a waker to the runtime. The runtime wakes that waker after
    /// polling for events, or drops it if the runtime stops first.
    #[must_use]
    pub fn new(defer: fn(&Waker)) -> Self {
        let shared = Arc::default();
        Self { shared, defer }
    }

    /// Adds a socket whose readiness was cleared because a receive was short.
    pub fn add(&self, socket: BorrowedFd<'_>) {
        let mut state = self.shared.state();
        let is_deferred = !state.marks.is_empty();
        if state.marks.is_full() {
            state.marks.check();
        }
        state.marks.add(socket);
        if is_deferred {
            return;
        }
        let deferred = state
            .spare
            .take()
            .unwrap_or_else(|| Arc::new(Deferred(Arc::clone(&self.shared))));
        // The runtime may wake the waker immediately, which locks the state.
        drop(state);
        (self.defer)(&Waker::from(deferred));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Deferred {
    fn wake(self: Arc<Self>) {
        let shared = Arc::clone(&self.0);
        let mut state = shared.state();
        state.marks.check();
        // If the `UrgentMarkCheck` has been dropped, a stored spare would never be dropped, because
        // the spare and the shared state hold each other.
        let is_in_use = Arc::strong_count(&shared) > 2;
        let unused = if is_in_use {
            state.spare.replace(self)
        } else {
            Some(self)
        };
        // Dropping `unused` locks the state.
        drop(state);
        drop(unused);
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.0.state().marks.check();
    }
}

impl Drop for UrgentMarkCheck {
    fn drop(&mut self) {
        // The spare and the shared state hold each other. Taking the spare breaks the cycle.
        let spare = self.shared.state().spare.take();
        drop(spare);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{SendFlags, send};

    use super::*;

    /// Two ends of a connection, and an edge-triggered poller for the near end. The poller has not
    /// reported anything yet.
    struct Line {
        far: TcpStream,
        near: TcpStream,
        poller: OwnedFd,
    }

    impl Line {
        fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            let far = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
            far.set_nodelay(true).expect("TCP_NODELAY");
            let (near, _) = listener.accept().expect("accept");
            let poller = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
            let events = EventFlags::IN | EventFlags::ET;
            epoll::add(&poller, &near, EventData::new_u64(0), events).expect("registered");
            Self { far, near, poller }
        }

        /// Returns a line on which "abc", an urgent "!" and `behind` have arrived. "abc" was read,
        /// and the poller has no event left to report.
        fn at_a_mark(behind: &[u8]) -> Self {
            let mut line = Self::new();
            line.far.write_all(b"abc").expect("write");
            assert_eq!(send(&line.far, b"!", SendFlags::OOB), Ok(1));
            line.far.write_all(behind).expect("write");
            line.await_that(PollFlags::PRI);
            line.read(b"abc");
            line.await_that(PollFlags::IN);
            // The peek waits until the kernel has processed the bytes that arrived, so that the
            // poller knows of them.
            assert_eq!(line.near.peek(&mut [0; 64]).expect("peek"), behind.len());
            line.edges();
            line
        }

        fn await_that(&self, happens: PollFlags) {
            let most = Timespec::try_from(std::time::Duration::from_secs(20)).expect("a short time");
            assert_eq!(poll(&mut [PollFd::new(&self.near, happens)], Some(&most)), Ok(1));
        }

        fn read(&mut self, wanted: &[u8]) {
            let mut buf = [0; 64];
            let read = self.near.read(&mut buf).expect("read");
            assert_eq!(&buf[..read], wanted);
        }

        /// Returns the number of edges since the last call.
        fn edges(&self) -> usize {
            let mut events = [const { MaybeUninit::uninit() }; 8];
            let (told, _) = epoll::wait(&self.poller, &mut events, Some(&Timespec::default())).expect("epoll");
            told.len()
        }
    }

    #[test]
    fn a_socket_at_an_urgent_mark_gives_another_edge() {
        let mut line = Line::at_a_mark(b"def");
        assert_eq!(line.edges(), 0, "of what lies behind the mark no edge tells");
        let mut marks = UrgentMarks::new();
        marks.add(&line.near);
        marks.check();
        assert!(marks.is_empty());
        assert_eq!(line.edges(), 1);
        line.read(b"def");
        marks.add(&line.near);
        marks.check();
        assert_eq!(line.edges(), 0, "it is beyond the mark");
    }

    #[test]
    fn among_many_sockets_only_one_at_a_mark_gives_an_edge() {
        let mut lines: Vec<_> = (0..4).map(|_| Line::new()).collect();
        lines.insert(2, Line::at_a_mark(b"d"));
        // These sockets have bytes, but no mark.
        for place in [0, 4] {
            lines[place].far.write_all(b"abc").expect("write");
            lines[place].await_that(PollFlags::IN);
            assert_eq!(lines[place].near.peek(&mut [0; 64]).expect("peek"), 3);
            assert_eq!(lines[place].edges(), 1);
        }
        let mut marks = UrgentMarks::new();
        lines.iter().for_each(|line| marks.add(&line.near));
        marks.check();
        let edges: Vec<_> = lines.iter().map(Line::edges).collect();
        assert_eq!(edges, [0, 0, 1, 0, 0]);
    }

    #[test]
    fn reporting_a_drained_socket_again_causes_no_edge() {
        let mut line = Line::new();
        line.far.write_all(b"abc").expect("write");
        line.await_that(PollFlags::IN);
        assert_eq!(line.near.peek(&mut [0; 64]).expect("peek"), 3);
        assert_eq!(line.edges(), 1);
        sys::tell_pollers_again(line.near.as_raw_fd());
        assert_eq!(line.edges(), 1, "it has something to read");
        line.read(b"abc");
        sys::tell_pollers_again(line.near.as_raw_fd());
        assert_eq!(line.edges(), 0);
    }

    #[test]
    fn a_closed_socket_does_not_hide_another() {
        let (mut gone, line) = (Line::at_a_mark(b"def"), Line::at_a_mark(b"def"));
        let mut marks = UrgentMarks::new();
        marks.add(&gone.near);
        marks.add(&line.near);
        gone.near = line.near.try_clone().expect("another descriptor");
        marks.check();
        assert_eq!(line.edges(), 1);
    }

    #[test]
    fn the_list_is_full_at_its_limit_and_empty_after_a_check() {
        let line = Line::new();
        let mut marks = UrgentMarks::new();
        assert!(marks.is_empty());
        for _ in 0..UrgentMarks::MAX {
            assert!(!marks.is_full());
            marks.add(&line.near);
        }
        assert!(marks.is_full());
        marks.check();
        assert!(marks.is_empty() && !marks.is_full());
    }
}
