//! The load: one thread drives every connection of a scenario, clients and servers both, so that its own cost is small and the same
//! for every relay.

mod peers;
mod tally;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::retry_on_intr;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::arms::BACKLOG;

pub(crate) use peers::{Answerer, Asker, Duplex, Fetcher, REQUEST, Receiver, Responder, Sender, Source, Trips};
pub(crate) use tally::Tally;

/// Nothing that works is silent for so long.
const PATIENCE: Duration = Duration::from_secs(20);
/// The listener among the events; connections are counted from 0.
const LISTENER: u64 = u64::MAX;
/// Connections that [`Load::connect_in_turn`] begins before it waits, so that they overflow no relay's backlog.
const AT_ONCE: usize = 64;

/// What a connection's end waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Readable,
    Writable,
    Either,
    /// To be told to go on ([`Peer::on_time`]), or nothing: it stays open, and fails if the other side does not.
    Rest,
    /// It is to be closed.
    Over,
}

/// What one end of a connection does.
pub(crate) trait Peer {
    /// Goes on, as the socket is ready for what it waited for (or has failed). It begins with this, writable.
    fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next>;

    /// A time it was given has come, or has passed: see [`Load::at`].
    fn on_time(&mut self, _due: Instant, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
        self.on_ready(socket, tally)
    }
}

/// Makes the peers of one side, one for each connection; `None` when there are to be no more.
pub(crate) type Factory = Box<dyn FnMut() -> Option<Box<dyn Peer>>>;

/// The connections of a scenario.
pub(crate) struct Load {
    epoll: OwnedFd,
    upstream: TcpListener,
    servers: Factory,
    clients: Option<(SocketAddr, Factory)>,
    ends: Vec<Option<End>>,
    free: Vec<usize>,
    /// When which end is to be told to go on: in order of time.
    times: VecDeque<(Instant, usize)>,
    /// Room for what a wait returns.
    events: Vec<epoll::Event>,
    pub(crate) tally: Tally,
}

struct End {
    socket: TcpStream,
    waits: Option<epoll::EventFlags>,
    is_client: bool,
    peer: Box<dyn Peer>,
}

impl Load {
    /// Listens on loopback (or another address of the same machine), and serves who connects with what `servers` makes.
    pub(crate) fn new(at: std::net::IpAddr, servers: impl FnMut() -> Box<dyn Peer> + 'static) -> io::Result<Self> {
        let mut servers = servers;
        let listener = Socket::new(Domain::for_address((at, 0).into()), Type::STREAM, Some(Protocol::TCP))?;
        listener.bind(&SocketAddr::from((at, 0)).into())?;
        listener.listen(BACKLOG)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )?;
        Ok(Self {
            epoll,
            upstream: listener.into(),
            servers: Box::new(move || Some(servers())),
            clients: None,
            ends: Vec::new(),
            free: Vec::new(),
            times: VecDeque::new(),
            events: Vec::with_capacity(256),
            tally: Tally::default(),
        })
    }

    /// Where it listens: what a relay is to connect to.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.upstream.local_addr()
    }

    /// Connects to `to`, and returns a name for the connection.
    pub(crate) fn connect(&mut self, to: SocketAddr, peer: Box<dyn Peer>) -> io::Result<usize> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        self.add(socket.into(), true, peer)
    }

    /// Connects so many times to `to`, and again whenever one of them is over, for as long as `clients` makes them.
    pub(crate) fn keep_connected(&mut self, count: usize, to: SocketAddr, clients: Factory) -> io::Result<()> {
        self.clients = Some((to, clients));
        (0..count).try_for_each(|_| self.replace_client())
    }

    /// Connects so many times to `to`, a few at once, and waits until each of them has had an answer, whatever the others do meanwhile.
    /// Returns their names.
    ///
    /// # Errors
    /// What a connection meets. `TimedOut` when some had no answer for 20 s.
    pub(crate) fn connect_in_turn(
        &mut self,
        count: usize,
        to: SocketAddr,
        mut client: impl FnMut() -> Box<dyn Peer>,
    ) -> io::Result<Vec<usize>> {
        let answered = self.tally.answered;
        let mut names = Vec::with_capacity(count);
        while names.len() < count {
            for _ in 0..AT_ONCE.min(count - names.len()) {
                names.push(self.connect(to, client())?);
            }
            let all = answered + names.len() as u64;
            let at_last = Instant::now() + PATIENCE;
            self.run_until(|tally| tally.answered == all || Instant::now() > at_last)?;
            if self.tally.answered < all {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a connection has no answer"));
            }
        }
        Ok(names)
    }

    /// Waits for the next connection, which others are to serve. There are no more than this one yet.
    pub(crate) fn accept_one(&mut self) -> io::Result<TcpStream> {
        let timeout = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        let mut events = Vec::with_capacity(1);
        retry_on_intr(|| epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)))?;
        if events.is_empty() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "nobody connects"));
        }
        Ok(self.upstream.accept()?.0)
    }

    /// Drives a connection that others have made.
    pub(crate) fn adopt(&mut self, socket: TcpStream, peer: Box<dyn Peer>) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        self.add(socket, false, peer).map(drop)
    }

    /// Ends all connections by a reset, so that none of them stays behind in TIME_WAIT.
    pub(crate) fn abort(self) -> io::Result<()> {
        let mut ends = self.ends.iter().flatten();
        ends.try_for_each(|end| SockRef::from(&end.socket).set_linger(Some(Duration::ZERO)))
    }

    /// Tells a connection to go on at a time, which is no earlier than those told before.
    pub(crate) fn at(&mut self, time: Instant, end: usize) {
        debug_assert!(
            self.times.back().is_none_or(|(last, _)| *last <= time),
            "times come in order"
        );
        self.times.push_back((time, end));
    }

    /// Drives all connections until `done`.
    ///
    /// # Errors
    /// What a connection meets, unless its peer expects it. `TimedOut` when nothing happened for 20 s.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&Tally) -> bool) -> io::Result<()> {
        while !done(&self.tally) {
            if !self.turn(PATIENCE)? {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing moves"));
            }
        }
        Ok(())
    }

    /// Drives all connections for so long, whether or not anything happens.
    ///
    /// # Errors
    /// What a connection meets.
    pub(crate) fn run_for(&mut self, time: Duration) -> io::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn(until.saturating_duration_since(Instant::now()))?;
        }
        Ok(())
    }

    /// Waits once, no longer than that or until the next time one of them is due; `false` if nothing happened and nothing is due.
    fn turn(&mut self, most: Duration) -> io::Result<bool> {
        let due = self.times.front().map(|(time, _)| *time);
        let until_due = due.map_or(most, |due| due.saturating_duration_since(Instant::now()));
        let mut timeout = Timespec::try_from(most.min(until_due)).map_err(io::Error::other)?;
        if due.is_some() {
            // Which counts in nanoseconds, where `epoll_wait` counts in milliseconds.
            let mut waits = [PollFd::new(&self.epoll, PollFlags::IN)];
            retry_on_intr(|| poll(&mut waits, Some(&timeout)))?;
            timeout = Timespec::default();
        }
        let mut events = mem::take(&mut self.events);
        events.clear();
        retry_on_intr(|| epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)))?;
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept()?,
                end => self.go_on(end as usize, None)?,
            }
        }
        while self.times.front().is_some_and(|(time, _)| *time <= Instant::now()) {
            let (due, end) = self.times.pop_front().expect("there is one");
            self.go_on(end, Some(due))?;
        }
        let happened = !events.is_empty() || due.is_some();
        self.events = events;
        Ok(happened)
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.upstream.accept() {
                Ok((socket, _)) => {
                    let peer = (self.servers)().expect("servers are made without end");
                    socket.set_nonblocking(true)?;
                    self.add(socket, false, peer)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn add(&mut self, socket: TcpStream, is_client: bool, peer: Box<dyn Peer>) -> io::Result<usize> {
        socket.set_nodelay(true)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.ends.push(None);
            self.ends.len() - 1
        });
        let mut end = End {
            socket,
            waits: None,
            is_client,
            peer,
        };
        end.wait_for(&self.epoll, index, Next::Writable)?;
        self.ends[index] = Some(end);
        Ok(index)
    }

    fn go_on(&mut self, index: usize, due: Option<Instant>) -> io::Result<()> {
        // An event of one that was closed since is nobody's.
        let Some(end) = self.ends.get_mut(index).and_then(Option::as_mut) else {
            return Ok(());
        };
        let next = match due {
            Some(due) => end.peer.on_time(due, &end.socket, &mut self.tally),
            None => end.peer.on_ready(&end.socket, &mut self.tally),
        };
        let next = next.inspect_err(|_| {
            // Who goes on after an error does so without it.
            self.ends[index] = None;
        })?;
        let end = self.ends[index].as_mut().expect("it has not failed");
        if next != Next::Over {
            return end.wait_for(&self.epoll, index, next);
        }
        let was_client = end.is_client;
        self.ends[index] = None;
        self.free.push(index);
        if was_client { self.replace_client() } else { Ok(()) }
    }

    fn replace_client(&mut self) -> io::Result<()> {
        let Some((to, clients)) = &mut self.clients else {
            return Ok(());
        };
        let to = *to;
        match clients() {
            Some(peer) => self.connect(to, peer).map(drop),
            None => Ok(()),
        }
    }
}

impl End {
    fn wait_for(&mut self, epoll: &OwnedFd, index: usize, next: Next) -> io::Result<()> {
        let flags = match next {
            Next::Readable => epoll::EventFlags::IN,
            Next::Writable => epoll::EventFlags::OUT,
            Next::Either => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Next::Rest | Next::Over => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(index as u64);
        match self.waits.replace(flags) {
            None => epoll::add(epoll, &self.socket, data, flags)?,
            Some(before) if before == flags => {}
            Some(_) => epoll::modify(epoll, &self.socket, data, flags)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::scenarios::bulk::LOOPBACK;

    /// Answers, but not before others were looked at so many times.
    struct Late(Rc<Cell<u32>>, Answerer);

    impl Peer for Late {
        fn on_ready(&mut self, socket: &TcpStream, tally: &mut Tally) -> io::Result<Next> {
            match self.0.get().checked_sub(1) {
                None => self.1.on_ready(socket, tally),
                Some(left) => {
                    self.0.set(left);
                    Ok(Next::Readable)
                }
            }
        }
    }

    #[test]
    fn all_are_connected_when_each_has_had_an_answer_however_many_the_others_had() {
        let left = Rc::new(Cell::new(100));
        let mut late = Some(Late(Rc::clone(&left), Answerer::new(1)));
        let mut load = Load::new(LOOPBACK, move || match late.take() {
            Some(late) => Box::new(late) as Box<dyn Peer>,
            None => Box::new(Answerer::new(1)),
        })
        .unwrap();
        let to = load.address().unwrap();
        let asker = || Box::new(Asker::new(1, Trips::Endless)) as Box<dyn Peer>;
        load.connect_in_turn(2, to, asker).unwrap();
        assert_eq!((load.tally.answered, left.get()), (2, 0));
        assert!(load.tally.done > 2, "the other went on");
    }
}
