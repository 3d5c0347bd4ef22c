//! The line of clients that wait for a backend. This module does no I/O.
//!
//! A client never waits for another client that waits for other backends. So clients that have
//! tried the same backends form a line, and each free permit goes to the first client of a line who
//! can use it.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::backend::Tried;

/// The clients that wait for a backend.
#[derive(Debug)]
pub(super) struct Queue<L> {
    /// No line is empty.
    pub(super) lines: Vec<Line<L>>,
    /// The number of the next client.
    next: u64,
}

/// Clients that have tried the same backends, in the order of their arrival.
#[derive(Debug)]
pub(super) struct Line<L> {
    pub(super) tried: Tried,
    pub(super) waiters: VecDeque<Waiter<L>>,
}

/// A client that waits for a backend.
#[derive(Debug)]
pub(super) struct Waiter<L> {
    /// The clients are numbered in the order of their arrival.
    number: u64,
    pub(super) client: Option<u64>,
    pub(super) answer: oneshot::Sender<L>,
}

impl<L> Default for Queue<L> {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            next: 0,
        }
    }
}

impl<L> Queue<L> {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.lines.iter().map(|line| line.waiters.len()).sum()
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = &Waiter<L>> {
        self.lines.iter().flat_map(|line| &line.waiters)
    }

    /// Adds a client after all others. The result is where it gets its lease.
    pub(super) fn push(&mut self, client: Option<u64>, tried: &Tried) -> oneshot::Receiver<L> {
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter {
            number: self.next,
            client,
            answer: sender,
        };
        self.next += 1;
        self.line(tried).push_back(waiter);
        answer
    }

    /// Returns the clients that have tried these backends.
    fn line(&mut self, tried: &Tried) -> &mut VecDeque<Waiter<L>> {
        let known = self.lines.iter().position(|line| line.tried.is_same(tried));
        let index = known.unwrap_or_else(|| {
            self.lines.push(Line {
                tried: tried.clone(),
                waiters: VecDeque::new(),
            });
            self.lines.len() - 1
        });
        &mut self.lines[index].waiters
    }

    /// Adds clients that have come after those of this queue.
    pub(super) fn append(&mut self, since: Self) {
        let before = self.next;
        self.next += since.next;
        for Line { tried, waiters } in since.lines {
            let numbered = waiters.into_iter().map(|waiter| Waiter {
                number: before + waiter.number,
                ..waiter
            });
            self.line(&tried).extend(numbered);
        }
    }

    /// Removes clients that have left.
    pub(super) fn forget_left(&mut self) {
        for line in &mut self.lines {
            line.waiters.retain(|waiter| !waiter.answer.is_closed());
        }
        self.lines.retain(|line| !line.waiters.is_empty());
    }

    /// Takes out the client that has waited for the longest time, among the lines that are not
    /// `stopped`. Returns it with the index of its line.
    pub(super) fn pop(&mut self, stopped: &[usize]) -> Option<(usize, Waiter<L>)> {
        let lines = self.lines.iter().enumerate();
        let fronts = lines.filter_map(|(index, line)| Some((line.waiters.front()?.number, index)));
        let (_, index) = fronts.filter(|(_, index)| !stopped.contains(index)).min()?;
        Some((index, self.lines[index].waiters.pop_front()?))
    }
}
