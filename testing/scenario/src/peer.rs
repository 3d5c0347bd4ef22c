//! A peer at work: its socket, and its position in its script.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::plan::{Amount, Family, PeerPlan, Read, Write};
use crate::sockets;
use crate::stream::Stream;

/// More than any relay delivers in one poll.
const READ_BYTES: usize = 512 << 10;

thread_local! {
    static READ: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    /// `None` once the peer has closed the socket.
    socket: Option<OwnedFd>,
    family: Family,
    writes: Script<Write>,
    reads: Script<Read>,
    /// Whether the peer has ended its stream.
    pub(crate) finished: bool,
    /// How the peer left before it had read to the end: with a close or a reset.
    pub(crate) left: Option<Left>,
    /// Whether the peer has received EOF or an error.
    ended: bool,
}

/// How a peer left if it did not wait for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Closed,
    Reset,
}

/// The outcome of one step of a peer, in ascending order of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// Nothing moved, and nothing will until another part of the scenario moves.
    Still,
    /// The peer waits for further passes.
    Waiting,
    /// Bytes moved, or the peer went on to its next action.
    Moved,
}

/// The outcome of a read.
#[derive(Debug)]
pub(crate) enum Got {
    Bytes,
    End,
    Error(io::Error),
}

/// Actions in order, and the bytes or passes that remain for the current one.
#[derive(Debug)]
struct Script<T> {
    actions: std::vec::IntoIter<(T, u32)>,
    current: Option<(T, u32)>,
}

impl Peer {
    pub(crate) fn new(plan: &PeerPlan, socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
            family: plan.family,
            writes: Script::new(&plan.writes, |write| match write {
                Write::Bytes(Amount(left)) => *left,
                Write::Pause(turns) => u32::from(*turns),
                _ => 0,
            }),
            reads: Script::new(&plan.reads, |read| match read {
                Read::Bytes(Amount(left)) => *left,
                Read::Pause(turns) => u32::from(*turns),
                _ => 0,
            }),
            finished: false,
            left: None,
            ended: false,
        }
    }

    /// Returns whether the peer did nothing that may have lost bytes.
    pub(crate) fn is_well(&self) -> bool {
        self.left.is_none()
    }

    /// Returns whether the peer has closed its socket, or has received EOF or an error.
    pub(crate) fn is_done(&self) -> bool {
        self.socket.is_none() || self.ended
    }

    /// Returns whether the peer reads all bytes that arrive.
    pub(crate) fn is_reading(&self) -> bool {
        !self.is_done() && matches!(self.reads.current, None | Some((Read::Bytes(_) | Read::Drain, _)))
    }

    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Performs the next step of the peer's writes. If `relay_ended`, the peer's connection may be
    /// gone.
    pub(crate) fn write(&mut self, stream: &mut Stream, relay_ended: bool) -> Turn {
        let Some((write, left)) = self.writes.current else {
            return Turn::Still;
        };
        let Some(socket) = &self.socket else {
            self.writes.end();
            return Turn::Still;
        };
        let sent = match write {
            // The peer has ended its stream, so it skips this action.
            Write::Bytes(_) | Write::Urgent if self.finished => Ok(left as usize),
            Write::Bytes(_) => {
                let sent = sockets::send(socket, stream.next(left as usize));
                sent.inspect(|sent| stream.sent(*sent))
            }
            Write::Urgent if self.family == Family::Unix => {
                sockets::send(socket, stream.next(1)).inspect(|_| stream.sent(1))
            }
            Write::Urgent => sockets::send_urgent(socket, stream.next_urgent()).inspect(|_| stream.sent_urgent()),
            Write::Wait => return Turn::Still,
            Write::Pause(_) => return self.writes.pass(),
            Write::Finish => {
                self.finish(relay_ended);
                Ok(0)
            }
            // A Unix socket cannot send a reset.
            Write::Reset if self.family == Family::Tcp => {
                self.leave(Left::Reset);
                Ok(0)
            }
            Write::Reset | Write::Close => {
                self.leave(Left::Closed);
                Ok(0)
            }
        };
        match sent {
            Ok(sent) => self.writes.advance(sent as u32),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Turn::Still,
            Err(error) => {
                assert!(relay_ended, "a peer cannot write, and the relay goes on: {error}");
                self.writes.end();
            }
        }
        Turn::Moved
    }

    /// Performs the next step of the peer's reads.
    pub(crate) fn read(&mut self, stream: &mut Stream) -> (Turn, Option<Got>) {
        if self.is_done() {
            return (Turn::Still, None);
        }
        let most = match self.reads.current {
            Some((Read::Stall, _)) => return (Turn::Still, None),
            Some((Read::Pause(_), _)) => return (self.reads.pass(), None),
            Some((Read::Bytes(_), left)) => left as usize,
            Some((Read::Drain, _)) | None => READ_BYTES,
        };
        let socket = self.socket.as_ref().expect("not done");
        let received: io::Result<usize> = READ.with_borrow_mut(|buf| {
            let received = sockets::recv(socket, &mut buf[..most.min(READ_BYTES)])?;
            stream.receive(&buf[..received]);
            Ok(received)
        });
        let got = match received {
            Ok(0) => Got::End,
            Ok(received) => {
                if let Some((Read::Bytes(_), _)) = self.reads.current {
                    self.reads.advance(received as u32);
                }
                return (Turn::Moved, Some(Got::Bytes));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let drained = matches!(self.reads.current, Some((Read::Drain, _)));
                if drained {
                    self.reads.advance(0);
                }
                return (if drained { Turn::Moved } else { Turn::Still }, None);
            }
            Err(error) => Got::Error(error),
        };
        self.ended = true;
        (Turn::Moved, Some(got))
    }

    /// Releases the peer if it waits in this way, because nothing moves any more. Returns whether
    /// the peer was released.
    pub(crate) fn go_on(&mut self, release: Release) -> bool {
        let reads = if self.is_done() { None } else { self.reads.current };
        let writes = if self.socket.is_none() {
            None
        } else {
            self.writes.current
        };
        match (release, reads, writes) {
            (Release::Stalls, Some((Read::Stall, _)), _) | (Release::Reads, Some((Read::Bytes(_), _)), _) => {
                self.reads.skip();
            }
            (Release::Waits, _, Some((Write::Wait, _))) | (Release::Writes, _, Some(_)) => self.writes.skip(),
            _ => return false,
        }
        true
    }

    /// Drops the remaining actions, so that the peer only reads to the end.
    pub(crate) fn abandon(&mut self) {
        self.writes.end();
        self.reads.end();
    }

    /// Ends the peer's stream. Returns `false` if the stream had already ended.
    pub(crate) fn finish(&mut self, relay_ended: bool) -> bool {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.finished) else {
            return false;
        };
        let told = sockets::finish(socket);
        assert!(
            told.is_ok() || relay_ended,
            "a peer cannot shut down, and the relay goes on: {told:?}"
        );
        self.finished = true;
        true
    }

    fn leave(&mut self, how: Left) {
        let Some(socket) = self.socket.take() else { return };
        // A peer that has seen EOF and sent its own does not lose bytes by closing. (A reset drops
        // the bytes that the relay has not read.)
        let loses = how == Left::Reset || !(self.ended && self.finished);
        self.left = loses.then_some(how);
        match how {
            Left::Reset => sockets::reset(socket),
            Left::Closed => drop(socket),
        }
    }
}

impl Drop for Peer {
    /// Closes with a reset, so that thousands of scenarios leave as few connections as possible in
    /// TIME_WAIT.
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            sockets::reset(socket);
        }
    }
}

/// The kinds of wait to release when nothing moves, in the order of release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Release {
    Stalls,
    Reads,
    Waits,
    Writes,
}

impl Release {
    pub(crate) const ALL: [Self; 4] = [Self::Stalls, Self::Reads, Self::Waits, Self::Writes];
}

impl<T: Copy> Script<T> {
    fn new(actions: &[T], size: fn(&T) -> u32) -> Self {
        let actions: Vec<_> = actions.iter().map(|action| (*action, size(action))).collect();
        let mut script = Self {
            actions: actions.into_iter(),
            current: None,
        };
        script.skip();
        script
    }

    /// Continues with the next action.
    fn skip(&mut self) {
        self.current = self.actions.next();
    }

    fn end(&mut self) {
        self.actions = Vec::new().into_iter();
        self.current = None;
    }

    /// Marks this much of the current action as done.
    fn advance(&mut self, by: u32) {
        match &mut self.current {
            Some((_, left)) if *left > by => *left -= by,
            _ => self.skip(),
        }
    }

    fn pass(&mut self) -> Turn {
        self.advance(1);
        Turn::Waiting
    }
}
