//! What ends of connections do.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{Next, Peer, Tally};

/// Bytes of a call at most.
const CHUNK: usize = 1 << 20;

/// Where bytes to send come from: `sendfile` from memory, which costs the sender little.
#[derive(Clone)]
pub(crate) struct Source {
    memory: Rc<File>,
    /// Bytes of a call at most.
    chunk: usize,
}

impl Source {
    pub(crate) fn file() -> io::Result<Self> {
        Self::in_calls_of(CHUNK)
    }

    pub(crate) fn in_calls_of(chunk: usize) -> io::Result<Self> {
        let memory = File::from(memfd_create("spliceway-bench", MemfdFlags::CLOEXEC)?);
        memory.set_len(chunk as u64)?;
        Ok(Self {
            memory: Rc::new(memory),
            chunk,
        })
    }

    /// Bytes sent of `left`; `None` when the socket takes none.
    pub(crate) fn send(&self, socket: &TcpStream, left: u64) -> io::Result<Option<usize>> {
        let most = usize::try_from(left).map_or(self.chunk, |left| left.min(self.chunk));
        unless_blocked(sendfile(socket, &*self.memory, Some(&mut 0), most))
    }
}

/// Bytes that waited, thrown away; `None` when there are none.
fn discard(socket: &TcpStream, most: usize) -> io::Result<Option<usize>> {
    thread_local! {
        // The kernel writes nothing there, but wants to know where it might.
        static NOWHERE: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; CHUNK]);
    }
    NOWHERE.with_borrow_mut(|nowhere| {
        let received = recv(socket, &mut nowhere[..most.min(CHUNK)], RecvFlags::TRUNC);
        unless_blocked(received.map(|(_, bytes)| bytes))
    })
}

fn unless_blocked(moved: Result<usize, Errno>) -> io::Result<Option<usize>> {
    match moved {
        Ok(bytes) => Ok(Some(bytes)),
        // Whoever was interrupted is told again that it is ready.
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends so many bytes and ends its stream; then waits for the other's end.
pub(crate) struct Sender {
    source: Source,
    left: u64,
}

impl Sender {
    pub(crate) fn new(source: Source, bytes: u64) -> Self {
        Self { source, left: bytes }
    }

    /// One call; `true` when all is sent.
    fn go_on(&mut self, socket: &TcpStream) -> io::Result<bool> {
        if self.left > 0 {
            self.left -= self.source.send(socket, self.left)?.unwrap_or(0) as u64;
            if self.left == 0 {
                socket.shutdown(Shutdown::Write)?;
            }
        }
        Ok(self.left == 0)
    }
}

impl Peer for Sender {
    fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
        if self.left > 0 {
            return Ok(if self.go_on(socket)? {
                Next::Readable
            } else {
                Next::Writable
            });
        }
        Receiver::new().on_ready(socket, tally)
    }
}

/// Receives until the end of the stream, then ends its own.
pub(crate) struct Receiver {
    /// Bytes of a call.
    most: usize,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self::in_calls_of(CHUNK)
    }

    pub(crate) fn in_calls_of(most: usize) -> Self {
        Self { most }
    }
}

impl Peer for Receiver {
    fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
        if received_all(socket, self.most, tally)? {
            tally.ended += 1;
            return Ok(Next::Over);
        }
        Ok(Next::Readable)
    }
}

/// One call; `true` at the end of the stream.
fn received_all(socket: &TcpStream, most: usize, tally: &mut Tally) -> io::Result<bool> {
    let received = discard(socket, most)?;
    tally.received += received.unwrap_or(0) as u64;
    Ok(received == Some(0))
}

/// Sends and receives at once.
pub(crate) struct Duplex {
    sender: Sender,
    received_all: bool,
}

impl Duplex {
    pub(crate) fn new(source: Source, bytes: u64) -> Self {
        Self {
            sender: Sender::new(source, bytes),
            received_all: false,
        }
    }
}

impl Peer for Duplex {
    fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
        if !self.received_all {
            self.received_all = received_all(socket, CHUNK, tally)?;
        }
        let sent_all = self.sender.go_on(socket)?;
        Ok(match (sent_all, self.received_all) {
            (true, true) => {
                tally.ended += 1;
                Next::Over
            }
            (true, false) => Next::Readable,
            (false, true) => Next::Writable,
            (false, false) => Next::Either,
        })
    }
}

/// Sends a message and receives its answer, over and over: what a round trip takes is in the tally.
pub(crate) struct Asker {
    message: Message,
    trips: Trips,
    asked: Instant,
    state: Asking,
    /// Whether it has had an answer.
    was_answered: bool,
}

enum Asking {
    Sending,
    Receiving,
    Resting,
}

/// How an [`Asker`] goes on after an answer.
#[derive(Clone)]
pub(crate) enum Trips {
    /// At once, for ever.
    Endless,
    /// It rests after so many, and stays connected.
    ThenRest(u64),
    /// It closes after so many.
    ThenClose(u64),
    /// When it is told to ([`super::Load::at`]), after a first one. A trip is timed from when it was due; those that are due while one is
    /// under way wait here.
    WhenTold(VecDeque<Instant>),
}

impl Asker {
    pub(crate) fn new(size: usize, trips: Trips) -> Self {
        Self {
            message: Message::new(size),
            trips,
            asked: Instant::now(),
            state: Asking::Sending,
            was_answered: false,
        }
    }

    fn ask(&mut self, socket: &TcpStream) -> io::Result<Next> {
        let next;
        (self.state, next) = match self.message.send(socket)? {
            true => (Asking::Receiving, Next::Readable),
            false => (Asking::Sending, Next::Writable),
        };
        Ok(next)
    }

    fn answered(&mut self, socket: &TcpStream) -> io::Result<Next> {
        self.state = Asking::Resting;
        self.asked = match &mut self.trips {
            Trips::ThenRest(1) => return Ok(Next::Rest),
            Trips::ThenClose(1) => return Ok(Next::Over),
            Trips::Endless => Instant::now(),
            Trips::ThenRest(left) | Trips::ThenClose(left) => {
                *left -= 1;
                Instant::now()
            }
            Trips::WhenTold(due) => match due.pop_front() {
                Some(due) => due,
                None => return Ok(Next::Rest),
            },
        };
        self.ask(socket)
    }
}

impl Peer for Asker {
    fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
        if let Asking::Sending = self.state {
            return self.ask(socket);
        }
        // One that rests is not to be ready, unless its connection fails, which this finds out.
        match self.message.receive(socket, tally)? {
            Received::Part => Ok(Next::Readable),
            Received::All => {
                tally.done_in(self.asked.elapsed());
                tally.answered += u64::from(!mem::replace(&mut self.was_answered, true));
                self.answered(socket)
            }
            Received::End => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "an answer is missing")),
        }
    }

    fn on_time(&mut self, due: Instant, socket: &TcpStream, _tally: &mut Tally) -> io::Result<Next> {
        let next = match self.state {
            Asking::Resting => {
                self.asked = due;
                return self.ask(socket);
            }
            Asking::Sending => Next::Writable,
            Asking::Receiving => Next::Readable,
        };
        if let Trips::WhenTold(waiting) = &mut self.trips {
            waiting.push_back(due);
        }
        Ok(next)
    }
}

/// Answers every message with one of the same size, until the other side ends.
pub(crate) struct Answerer {
    message: Message,
    answering: bool,
}

impl Answerer {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            message: Message::new(size),
            answering: false,
        }
    }
}

impl Peer for Answerer {
    fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
        if !self.answering {
            match self.message.receive(socket, tally)? {
                Received::Part => return Ok(Next::Readable),
                Received::All => self.answering = true,
                Received::End => {
                    tally.ended += 1;
                    return Ok(Next::Over);
                }
            }
        }
        self.answering = !self.message.send(socket)?;
        Ok(if self.answering { Next::Writable } else { Next::Readable })
    }
}

/// A message of fixed size, partly sent or received.
struct Message {
    bytes: Rc<[u8]>,
    moved: usize,
}

enum Received {
    Part,
    All,
    End,
}

impl Message {
    fn new(size: usize) -> Self {
        thread_local! {
            static BYTES: std::cell::RefCell<Rc<[u8]>> = std::cell::RefCell::new(Rc::from([]));
        }
        // One for all: ten thousand connections need no copy each.
        let bytes = BYTES.with_borrow_mut(|bytes| {
            if bytes.len() != size {
                *bytes = vec![7; size].into();
            }
            Rc::clone(bytes)
        });
        Self { bytes, moved: 0 }
    }

    /// Whether it is all sent.
    fn send(&mut self, socket: &TcpStream) -> io::Result<bool> {
        if let Some(sent) = unless_blocked(send(socket, &self.bytes[self.moved..], SendFlags::NOSIGNAL))? {
            self.moved += sent;
        }
        Ok(self.is_done())
    }

    fn receive(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Received> {
        match discard(socket, self.bytes.len() - self.moved)? {
            None => return Ok(Received::Part),
            Some(0) => return Ok(Received::End),
            Some(bytes) => {
                tally.received += bytes as u64;
                self.moved += bytes;
            }
        }
        Ok(if self.is_done() { Received::All } else { Received::Part })
    }

    /// Whether it has moved whole; then it is as new.
    fn is_done(&mut self) -> bool {
        let done = self.moved == self.bytes.len();
        if done {
            self.moved = 0;
        }
        done
    }
}

/// Asks with a short message and receives what comes until the end: a transfer, timed.
pub(crate) struct Fetcher {
    request: Message,
    asking: bool,
    began: Instant,
}

/// Bytes of a [`Fetcher`]'s request.
pub(crate) const REQUEST: usize = 256;

impl Fetcher {
    pub(crate) fn new() -> Self {
        Self {
            request: Message::new(REQUEST),
            asking: true,
            began: Instant::now(),
        }
    }
}

impl Peer for Fetcher {
    fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
        if self.asking {
            self.asking = !self.request.send(socket)?;
            return Ok(if self.asking { Next::Writable } else { Next::Readable });
        }
        match received_all(socket, CHUNK, tally)? {
            true => {
                tally.done_in(self.began.elapsed());
                Ok(Next::Over)
            }
            false => Ok(Next::Readable),
        }
    }
}

/// Receives a request of [`Fetcher`], sends so many bytes, and ends.
pub(crate) struct Responder {
    request: Message,
    asked: bool,
    sender: Sender,
}

impl Responder {
    pub(crate) fn new(source: Source, bytes: u64) -> Self {
        Self {
            request: Message::new(REQUEST),
            asked: false,
            sender: Sender::new(source, bytes),
        }
    }
}

impl Peer for Responder {
    fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
        if self.asked {
            return self.sender.on_ready(socket, tally);
        }
        match self.request.receive(socket, tally)? {
            Received::Part => Ok(Next::Readable),
            Received::All => {
                self.asked = true;
                self.sender.on_ready(socket, tally)
            }
            Received::End => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a request is missing")),
        }
    }
}
