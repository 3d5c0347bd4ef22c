//! One end of a connection: what it sends and receives, and what it counts.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::histogram::Histogram;

/// Bytes of a receive at most.
pub(crate) const ROOM: usize = 1 << 20;
/// Calls of a sender before others have their turn.
const BURST: usize = 16;

/// What came of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// Of writes, from the time they were due to their last byte.
    pub(crate) writes: Histogram,
    /// Of exchanges, from the time they were due to the last byte of the response.
    pub(crate) exchanges: Histogram,
    /// By how much the generator itself was late.
    pub(crate) lateness: Histogram,
    /// Due in the measured window.
    pub(crate) offered: u64,
    /// Of these, done by the end of the run.
    pub(crate) completed: u64,
    /// Bytes of writes that arrived in the measured window.
    pub(crate) bytes: u64,
    /// Time that the generator did nothing but ask for events, in the measured window.
    pub(crate) spun: Duration,
    /// From the end of the window until the last write that was due in it had arrived.
    pub(crate) recovery: Duration,
}

/// What all ends of a run share.
pub(crate) struct Shared {
    pub(crate) room: Vec<u8>,
    /// Where what is due and what arrives counts.
    pub(crate) window: (Instant, Instant),
    pub(crate) done: Done,
    /// Whether every end goes on as soon as it can, whatever is due.
    pub(crate) is_closed: bool,
}

impl Shared {
    pub(crate) fn counts(&self, at: Instant) -> bool {
        at >= self.window.0 && at < self.window.1
    }
}

pub(crate) struct End {
    pub(crate) socket: TcpStream,
    pub(crate) role: Role,
}

pub(crate) enum Role {
    /// Sends writes of this size.
    Sender {
        size: usize,
        unsent: usize,
        receiver: usize,
    },
    /// Knows which writes it is to receive: what their last byte is, and when they were due.
    Receiver {
        got: u64,
        told: u64,
        writes: VecDeque<(u64, Instant)>,
    },
    /// Asks, one at a time.
    Client(Client),
    /// Answers with as many bytes as it receives, by whole messages.
    Server { size: usize, got: usize, unsent: usize },
}

/// Requests that are due while one is under way wait.
pub(crate) struct Client {
    size: usize,
    unsent: usize,
    missing: usize,
    due: VecDeque<Instant>,
    /// When the one under way was due.
    asked: Instant,
    /// After the first.
    closes: bool,
}

/// What an end does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It waits for an event.
    Wait,
    /// It has more to do than its turn allows.
    Again,
    /// It is to be closed.
    Over,
}

impl End {
    /// Does what it can do now. Events are told once (edge-triggered), so it goes on until the socket has no more.
    pub(crate) fn go_on(&mut self, shared: &mut Shared) -> io::Result<Next> {
        let socket = &self.socket;
        match &mut self.role {
            Role::Sender { size, unsent, .. } => {
                for _ in 0..BURST {
                    if *unsent == 0 {
                        return Ok(Next::Wait);
                    }
                    match give(socket, &shared.room[..(*size).min(*unsent)])? {
                        0 => return Ok(Next::Wait),
                        sent => *unsent -= sent,
                    }
                }
                Ok(Next::Again)
            }
            Role::Receiver { got, writes, .. } => loop {
                let received = take(socket, &mut shared.room)?;
                *got += received as u64;
                shared.arrived(received, *got, writes);
                if received < ROOM {
                    return Ok(Next::Wait);
                }
            },
            Role::Client(client) => client.go_on(socket, shared),
            Role::Server { size, got, unsent } => loop {
                if *unsent > 0 {
                    *unsent -= give(socket, &shared.room[..(*unsent).min(ROOM)])?;
                }
                match recv(socket, &mut shared.room[..*size - *got], RecvFlags::TRUNC) {
                    // A short connection that is over.
                    Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(Next::Over),
                    Ok((_, received)) => *got += received,
                    Err(Errno::AGAIN | Errno::INTR) => return Ok(Next::Wait),
                    Err(errno) => return Err(errno.into()),
                }
                if *got == *size {
                    *got = 0;
                    *unsent += *size;
                }
            },
        }
    }
}

impl Shared {
    /// Bytes of a flow, which has had so many by now.
    fn arrived(&mut self, received: usize, got: u64, writes: &mut VecDeque<(u64, Instant)>) {
        let at = Instant::now();
        if self.counts(at) {
            self.done.bytes += received as u64;
        }
        while let Some((_, due)) = writes.front().copied().filter(|(end, _)| *end <= got) {
            writes.pop_front();
            if self.counts(due) {
                self.done.completed += 1;
                self.done.writes.record(at - due);
                self.done.recovery = at.saturating_duration_since(self.window.1);
            }
        }
    }
}

impl Client {
    pub(crate) fn new(size: usize, closes: bool) -> Self {
        Self {
            size,
            unsent: 0,
            missing: 0,
            due: VecDeque::new(),
            asked: Instant::now(),
            closes,
        }
    }

    /// A request is due. Whether it is to be sent at once.
    pub(crate) fn ask(&mut self, at: Instant) -> bool {
        self.due.push_back(at);
        if self.due.len() > 1 {
            return false;
        }
        (self.unsent, self.missing, self.asked) = (self.size, self.size, at);
        true
    }

    fn go_on(&mut self, socket: &TcpStream, shared: &mut Shared) -> io::Result<Next> {
        while !self.due.is_empty() {
            if self.unsent > 0 {
                self.unsent -= give(socket, &shared.room[..self.unsent])?;
            }
            match take(socket, &mut shared.room[..self.missing])? {
                0 => break,
                received => self.missing -= received,
            }
            if self.missing > 0 {
                continue;
            }
            if self.answered(shared) {
                return Ok(Next::Over);
            }
        }
        Ok(Next::Wait)
    }

    /// Counts an exchange and begins the next, if one is due. Whether this was the last.
    fn answered(&mut self, shared: &mut Shared) -> bool {
        let at = Instant::now();
        let mut due = self.due.pop_front().expect("one was under way");
        if shared.is_closed {
            due = at;
            shared.done.offered += u64::from(shared.counts(at));
        }
        if shared.counts(due) {
            shared.done.completed += 1;
            shared.done.exchanges.record(at - self.asked);
        }
        if shared.is_closed {
            self.due.push_back(at);
        }
        if let Some(next) = self.due.front() {
            (self.unsent, self.missing, self.asked) = (self.size, self.size, *next);
        }
        self.closes
    }
}

impl Role {
    pub(crate) fn server(size: usize) -> Self {
        Self::Server {
            size,
            got: 0,
            unsent: 0,
        }
    }
}

/// Bytes that the socket took; none when it has no room, or is not connected yet.
fn give(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Bytes that waited, thrown away by the kernel; none when there are none yet.
fn take(socket: &TcpStream, room: &mut [u8]) -> io::Result<usize> {
    match recv(socket, room, RecvFlags::TRUNC) {
        Ok((_, 0)) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a stream ended early")),
        Ok((_, received)) => Ok(received),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}
