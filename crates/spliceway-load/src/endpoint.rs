//! One end of a connection: what it sends and receives, and what it counts.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::Histogram;

/// The most bytes in one receive call.
pub(crate) const ROOM: usize = 1 << 20;
/// The most calls of a sender in one pass over the endpoints.
const BURST: usize = 16;

/// The outcome of one run.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Times of writes, from the time each was due to the arrival of its last byte.
    pub writes: Histogram,
    /// Times of exchanges, from the time each was due to the last byte of the response.
    pub exchanges: Histogram,
    /// How late the generator itself was.
    pub lateness: Histogram,
    /// Messages that were due in the measured window.
    pub offered: u64,
    /// Messages among `offered` that were complete by the end of the run.
    pub completed: u64,
    /// Bytes of writes that arrived in the measured window.
    pub bytes: u64,
    /// Time in the measured window that the generator spent polling without waiting.
    pub spun: Duration,
    /// Time from the end of the window until the last write that was due in it had arrived.
    pub recovery: Duration,
}

/// State that all endpoints of a run share.
pub(crate) struct Shared {
    pub(crate) room: Vec<u8>,
    /// The measured window.
    pub(crate) window: (Instant, Instant),
    pub(crate) done: Done,
    /// Whether every endpoint continues as soon as it can.
    pub(crate) is_closed: bool,
}

impl Shared {
    pub(crate) fn counts(&self, at: Instant) -> bool {
        at >= self.window.0 && at < self.window.1
    }
}

pub(crate) struct Endpoint {
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
    /// Receives writes. For each write, it knows the position of the last byte and the due time.
    Receiver {
        got: u64,
        told: u64,
        writes: VecDeque<(u64, Instant)>,
    },
    /// Sends requests, one at a time.
    Client(Client),
    /// Answers each complete message with the same number of bytes.
    Server { size: usize, got: usize, unsent: usize },
}

/// A client. Requests that become due during another request wait.
pub(crate) struct Client {
    size: usize,
    unsent: usize,
    missing: usize,
    due: VecDeque<Instant>,
    /// The time at which the current request was due.
    asked: Instant,
    /// Whether the client closes after its first exchange.
    closes: bool,
}

/// The endpoint's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It waits for an event.
    Wait,
    /// It has more work than one pass allows.
    Again,
    /// It must be closed.
    Over,
}

impl Endpoint {
    /// Does the work that is possible now. Events are edge-triggered, so the endpoint continues
    /// until the socket would block.
    pub(crate) fn go_on(&mut self, shared: &mut Shared) -> io::Result<Next> {
        let socket = &self.socket;
        match &mut self.role {
            Role::Sender { size, unsent, .. } => {
                for _ in 0..BURST {
                    if *unsent == 0 {
                        return Ok(Next::Wait);
                    }
                    match write(socket, &shared.room[..(*size).min(*unsent)])? {
                        0 => return Ok(Next::Wait),
                        sent => *unsent -= sent,
                    }
                }
                Ok(Next::Again)
            }
            Role::Receiver { got, writes, .. } => loop {
                let received = discard(socket, &mut shared.room)?;
                *got += received as u64;
                shared.arrived(received, *got, writes);
                if received < ROOM {
                    return Ok(Next::Wait);
                }
            },
            Role::Client(client) => client.go_on(socket, shared),
            Role::Server { size, got, unsent } => loop {
                if *unsent > 0 {
                    *unsent -= write(socket, &shared.room[..(*unsent).min(ROOM)])?;
                }
                match recv(socket, &mut shared.room[..*size - *got], RecvFlags::TRUNC) {
                    // A short connection has ended.
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
    /// Records that a flow received bytes and now has `got` bytes in total.
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

    /// Queues a request that is due. Returns whether the client can send it immediately.
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
                self.unsent -= write(socket, &shared.room[..self.unsent])?;
            }
            match discard(socket, &mut shared.room[..self.missing])? {
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

    /// Counts an exchange, and begins the next one if it is due. Returns whether this was the last.
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

/// Returns the number of bytes that the socket accepted: 0 if it has no room or is not yet
/// connected.
fn write(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Discards received bytes and returns their number: 0 if there are none yet.
fn discard(socket: &TcpStream, room: &mut [u8]) -> io::Result<usize> {
    match recv(socket, room, RecvFlags::TRUNC) {
        Ok((_, 0)) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a stream ended early")),
        Ok((_, received)) => Ok(received),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}
