//! Sockets that count as drained and may not be: a receive stops short at an urgent mark too.

use std::os::fd::AsFd;

use crate::sys::{self, Asked};

/// Sockets whose last receive came [short](crate::Source::Short), for whoever waits for edges and has forgotten that they were readable.
///
/// A receive of TCP comes short where nothing is left, and at an urgent mark (`MSG_OOB`). What lies behind the mark has arrived, so that
/// no edge will tell of it. To ask each socket after each receive would cost as much as a quarter of the receive; one `poll(2)` asks many.
/// [`clear`](Self::clear) is to be called before the thread waits for events.
///
/// A mark whose byte somebody else has taken with `MSG_OOB` is not seen: until the next byte arrives, what lies behind it waits.
#[derive(Debug, Default)]
pub struct Suspects(Vec<Asked>);

impl Suspects {
    /// As many as should be held: one call asks for all of them, and should be soon over.
    pub const MOST: usize = 256;

    /// Nobody.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a socket. It may be closed before it is cleared.
    pub fn add(&mut self, socket: impl AsFd) {
        self.0.push(sys::ask_for_mark(socket.as_fd()));
    }

    /// Whether there is no one to clear.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether they are to be cleared before another is added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.len() >= Self::MOST
    }

    /// Clears all: whoever stands at a mark gives its pollers another edge. One system call, and two more for each at a mark.
    pub fn clear(&mut self) {
        if self.0.is_empty() {
            return;
        }
        sys::urgent_marks(&mut self.0).for_each(sys::tell_pollers_again);
        self.0.clear();
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

    /// Two ends of a connection, and an edge-triggered poller of the second that has told of nothing yet.
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

        /// "abc", an urgent "!" and `behind` have arrived, and "abc" was read: the poller has no more to tell.
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
    fn who_stands_at_an_urgent_mark_gives_another_edge() {
        let mut line = Line::at_a_mark(b"def");
        assert_eq!(line.edges(), 0, "of what lies behind the mark no edge tells");
        let mut suspects = Suspects::new();
        suspects.add(&line.near);
        suspects.clear();
        assert!(suspects.is_empty());
        assert_eq!(line.edges(), 1);
        line.read(b"def");
        suspects.add(&line.near);
        suspects.clear();
        assert_eq!(line.edges(), 0, "it is beyond the mark");
    }

    #[test]
    fn of_many_only_who_stands_at_a_mark_gives_an_edge() {
        let mut lines: Vec<_> = (0..4).map(|_| Line::new()).collect();
        lines.insert(2, Line::at_a_mark(b"d"));
        // Bytes, and no mark.
        for place in [0, 4] {
            lines[place].far.write_all(b"abc").expect("write");
            lines[place].await_that(PollFlags::IN);
            assert_eq!(lines[place].near.peek(&mut [0; 64]).expect("peek"), 3);
            assert_eq!(lines[place].edges(), 1);
        }
        let mut suspects = Suspects::new();
        lines.iter().for_each(|line| suspects.add(&line.near));
        suspects.clear();
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
    fn one_that_was_closed_hides_no_other() {
        let (mut gone, line) = (Line::at_a_mark(b"def"), Line::at_a_mark(b"def"));
        let mut suspects = Suspects::new();
        suspects.add(&gone.near);
        suspects.add(&line.near);
        gone.near = line.near.try_clone().expect("another descriptor");
        suspects.clear();
        assert_eq!(line.edges(), 1);
    }

    #[test]
    fn they_are_full_at_their_bound_and_not_once_they_are_cleared() {
        let line = Line::new();
        let mut suspects = Suspects::new();
        assert!(suspects.is_empty());
        for _ in 0..Suspects::MOST {
            assert!(!suspects.is_full());
            suspects.add(&line.near);
        }
        assert!(suspects.is_full());
        suspects.clear();
        assert!(suspects.is_empty() && !suspects.is_full());
    }
}
