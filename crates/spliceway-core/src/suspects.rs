//! Sockets that count as drained and may not be: a receive stops short at an urgent mark too.

use std::os::fd::AsFd;

use crate::sys::{self, Asked};

/// Sockets whose last receive came [short](crate::Source::Short), for whoever waits for edges and has forgotten that they were readable.
///
/// TCP receives stop short where nothing is left, and at an urgent mark (`MSG_OOB`), which hides what lies behind it: no edge will
/// tell of bytes that have arrived already. To ask after every receive costs as much as a fourth of it; one `poll(2)` asks for many sockets at
/// once. It is to be called before the thread waits for events.
#[derive(Debug, Default)]
pub struct Suspects(Vec<Asked>);

impl Suspects {
    /// Sockets to be held at most, so that one call asks for all of them soon.
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

    /// Whether there are as many as there should be: to be cleared before another is added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.len() >= Self::MOST
    }

    /// Clears all: whoever stands at a mark gives its pollers another edge, if it has something to read. One system call, and two for each
    /// at a mark.
    pub fn clear(&mut self) {
        if self.0.is_empty() {
            return;
        }
        sys::urgent_marks(&mut self.0).for_each(sys::tell_pollers_again);
        self.0.clear();
    }
}
