//! The urgent-mark check: finds sockets that look drained and are not.
//!
//! A receive of TCP comes short if nothing is left, and at an urgent mark (`MSG_OOB`). The bytes
//! behind the mark have arrived already, so no edge will announce them, and a caller that has
//! cleared the socket's readiness would wait for ever. To ask each socket after each receive would
//! cost as much as a quarter of the receive. One `poll(2)` asks many.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use crate::sys::{self, MarkQuery};

/// Sockets whose last receive came [short](crate::ReadOutcome::Short), and whose readiness the
/// caller has cleared. [`check`](Self::check) must be called before the thread waits for events.
///
/// A mark whose byte somebody else has received with `MSG_OOB` is not found: the bytes behind it
/// wait until the next byte arrives.
#[derive(Debug, Default)]
pub struct UrgentMarks(Vec<MarkQuery>);

impl UrgentMarks {
    /// The most sockets to hold, because one call asks for all of them and must be short.
    pub const MAX: usize = 256;

    /// No socket.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a socket. It may be closed before it is checked.
    pub fn add(&mut self, socket: impl AsFd) {
        self.0.push(sys::mark_query(socket.as_fd()));
    }

    /// Whether there is nothing to check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a check must precede the next socket.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.len() >= Self::MAX
    }

    /// Checks all sockets and forgets them. A socket at a mark gives its pollers another edge. This
    /// costs one system call, and two more for each socket at a mark.
    pub fn check(&mut self) {
        if self.0.is_empty() {
            return;
        }
        sys::urgent_marks(&mut self.0).for_each(sys::tell_pollers_again);
        self.0.clear();
    }
}

/// The [`UrgentMarks`] of one thread of a runtime, checked each time that the runtime has polled
/// for events.
///
/// While there is a socket to check, a waker is left with the runtime. It runs the check when it is
/// woken, which is when the runtime has polled for events. It also runs it when it is dropped: by a
/// runtime that stops before, and whose sockets may still be waited for when it continues.
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
    /// The last waker, to be used again: a message is worth no allocation.
    spare: Option<Arc<Deferred>>,
}

/// A check that the runtime has yet to run.
#[derive(Debug)]
struct Deferred(Arc<Shared>);

impl UrgentMarkCheck {
    /// `defer` leaves a waker with the runtime, which wakes it once it has polled for events, or
    /// drops it if it stops before.
    #[must_use]
    pub fn new(defer: fn(&Waker)) -> Self {
        let shared = Arc::default();
        Self { shared, defer }
    }

    /// Adds a socket whose readiness was cleared because a receive came short.
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
        // It may be woken at once.
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
        // If the check itself is gone, a spare would never be dropped: each holds the other.
        let is_in_use = Arc::strong_count(&shared) > 2;
        let unused = if is_in_use {
            state.spare.replace(self)
        } else {
            Some(self)
        };
        // Dropping it takes the lock.
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
        // Each holds the other.
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

    /// Two ends of a connection, and an edge-triggered poller of the second that has told of
    /// nothing yet.
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

        /// "abc", an urgent "!" and `behind` have arrived, and "abc" was read: the poller has no
        /// more to tell.
        fn at_a_mark(behind: &[u8]) -> Self {
            let mut line = Self::new();
            line.far.write_all(b"abc").expect("write");
            assert_eq!(send(&line.far, b"!", SendFlags::OOB), Ok(1));
            line.far.write_all(behind).expect("write");
            line.await_that(PollFlags::PRI);
            line.read(b"abc");
            line.await_that(PollFlags::IN);
            // It waits until the kernel has done with what arrived, so that the poller knows of it.
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

        /// Edges since this was asked last.
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
    fn of_many_sockets_only_one_at_a_mark_gives_an_edge() {
        let mut lines: Vec<_> = (0..4).map(|_| Line::new()).collect();
        lines.insert(2, Line::at_a_mark(b"d"));
        // Bytes, and no mark.
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
    fn a_drained_socket_that_is_told_of_again_gives_no_edge() {
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
    fn a_closed_socket_hides_no_other() {
        let (mut gone, line) = (Line::at_a_mark(b"def"), Line::at_a_mark(b"def"));
        let mut marks = UrgentMarks::new();
        marks.add(&gone.near);
        marks.add(&line.near);
        gone.near = line.near.try_clone().expect("another descriptor");
        marks.check();
        assert_eq!(line.edges(), 1);
    }

    #[test]
    fn it_is_full_at_its_bound_and_empty_after_a_check() {
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
