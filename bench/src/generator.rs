//! The generator: one thread that holds both ends of every connection, and sends what is due when it is due, whether or not
//! the relay keeps up.
//!
//! ```text
//!   schedule ─▶ sender or client ──▶ relay ──▶ receiver or server
//!                   └ latency: from the due time to the last byte of the write, or of the response
//! ```

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, retry_on_intr};
use socket2::{Domain, SockRef, Socket, Type};

use crate::end::{Client, Done, End, Next, ROOM, Role, Shared};
use crate::load::Load;
use crate::schedule::{Schedule, What};

/// Nothing that works needs so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// A timer of a virtual machine is late by up to this, so the generator asks for events without waiting for the last part.
const SPIN: Duration = Duration::from_micros(80);
/// The listener among the events.
const LISTENER: u64 = u64::MAX;
/// Bytes of the one exchange of a short connection, each way.
const SHORT: usize = 1 << 10;

/// The connections of one run, and what they do.
pub(crate) struct Generator {
    epoll: OwnedFd,
    listener: TcpListener,
    relay: SocketAddr,
    ends: Vec<Option<End>>,
    free: Vec<usize>,
    /// Senders, by flow.
    flows: Vec<usize>,
    clients: Vec<usize>,
    /// Ends that have more to do than their turn allows.
    again: Vec<usize>,
    shared: Shared,
    /// Before what is due.
    spin: Duration,
}

impl Generator {
    /// Connects all that the load has for its whole time, by a listener that is there already. The calling thread is in the
    /// namespace of the clients.
    pub(crate) fn connect(load: &Load, listener: TcpListener, relay: SocketAddr) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let now = Instant::now();
        let mut generator = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener,
            relay,
            ends: Vec::new(),
            free: Vec::new(),
            flows: Vec::new(),
            clients: Vec::new(),
            again: Vec::new(),
            shared: Shared {
                room: vec![7; ROOM],
                window: (now, now),
                done: Done::default(),
                is_closed: load.is_closed,
            },
            // A delay line has a thread on the same core, which must not wait.
            spin: if load.profile.is_near() { SPIN } else { Duration::ZERO },
        };
        if let Some(streams) = load.streams {
            for _ in 0..streams.flows {
                let (client, server) = generator.pair()?;
                let (from, to) = if streams.up { (client, server) } else { (server, client) };
                let (got, told, writes) = (0, 0, VecDeque::new());
                let receiver = generator.add(to, Role::Receiver { got, told, writes })?;
                let (size, unsent) = (streams.size, 0);
                let sender = generator.add(from, Role::Sender { size, unsent, receiver })?;
                generator.flows.push(sender);
            }
        }
        if let Some(requests) = load.requests {
            for _ in 0..requests.connections {
                let (client, server) = generator.pair()?;
                generator.add(server, Role::server(requests.size))?;
                let client = generator.add(client, Role::Client(Client::new(requests.size, false)))?;
                generator.clients.push(client);
            }
        }
        if load.connects.is_some() {
            let data = epoll::EventData::new_u64(LISTENER);
            epoll::add(&generator.epoll, &generator.listener, data, epoll::EventFlags::IN)?;
        }
        Ok(generator)
    }

    /// Does what is due, from now on. `window`: the part of it that counts, at whose start and end `at_window` is called. Ends
    /// when all is done, or some time after the window.
    pub(crate) fn run(
        mut self,
        load: &Load,
        schedule: &Schedule,
        window: (Duration, Duration),
        grace: Duration,
        mut at_window: impl FnMut(bool) -> io::Result<()>,
    ) -> io::Result<Done> {
        let started = Instant::now();
        let (opens, closes) = (started + window.0, started + window.1);
        self.shared.window = (opens, closes);
        let mut times = [opens, closes, closes + grace].into_iter().enumerate().peekable();
        let mut due = schedule
            .iter()
            .map(|(after, what)| (started + *after, *what))
            .peekable();
        if self.shared.is_closed {
            self.begin_all(load)?;
        }
        loop {
            let now = Instant::now();
            while let Some((number, _)) = times.next_if(|(_, at)| *at <= now) {
                if number < 2 {
                    at_window(number == 0)?;
                }
            }
            while let Some((at, what)) = due.next_if(|(at, _)| *at <= Instant::now()) {
                self.begin(what, at)?;
            }
            let done = &self.shared.done;
            let until = match times.peek() {
                None => break,
                Some((2, _)) if done.completed == done.offered => break,
                Some((_, at)) => due.peek().map_or(*at, |(next, _)| (*at).min(*next)),
            };
            self.turn(until)?;
        }
        // By a reset, so that no connection stays behind in TIME_WAIT and no relay has to finish a backlog.
        for end in self.ends.iter().flatten() {
            SockRef::from(&end.socket).set_linger(Some(Duration::ZERO))?;
        }
        Ok(self.shared.done)
    }

    /// Waits for events once, no longer than that, and does what they allow.
    fn turn(&mut self, until: Instant) -> io::Result<()> {
        let began = Instant::now();
        let left = match self.again.is_empty() {
            true => until.saturating_duration_since(began),
            false => Duration::ZERO,
        };
        if left > self.spin {
            let wait = Timespec::try_from(left - self.spin).map_err(io::Error::other)?;
            // Which counts in nanoseconds, where `epoll_wait` counts in milliseconds.
            retry_on_intr(|| poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&wait)))?;
        }
        let mut events = Vec::<epoll::Event>::with_capacity(256);
        let at_once = Timespec::default();
        retry_on_intr(|| epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once)))?;
        if events.is_empty() && self.again.is_empty() && left <= self.spin && self.shared.counts(began) {
            self.shared.done.spun += began.elapsed();
        }
        for end in mem::take(&mut self.again) {
            self.go_on(end)?;
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept()?,
                end => self.go_on(end as usize)?,
            }
        }
        Ok(())
    }

    /// Of a closed loop: flows send without end, connections ask, and so many short ones are open at once.
    fn begin_all(&mut self, load: &Load) -> io::Result<()> {
        for sender in self.flows.clone() {
            if let Some(Role::Sender { unsent, .. }) = self.role(sender) {
                *unsent = usize::MAX;
            }
            self.go_on(sender)?;
        }
        for client in self.clients.clone() {
            self.ask(client, Instant::now())?;
        }
        (0..load.connects.unwrap_or(0.0) as usize).try_for_each(|_| self.begin(What::Connect, Instant::now()))
    }

    fn begin(&mut self, what: What, due: Instant) -> io::Result<()> {
        if self.shared.counts(due) && !self.shared.is_closed {
            self.shared.done.offered += 1;
            self.shared.done.lateness.record(due.elapsed());
        }
        match what {
            What::Write(flow) => {
                let sender = self.flows[flow];
                let Some(Role::Sender { size, unsent, receiver }) = self.role(sender) else {
                    return Err(lost());
                };
                *unsent += *size;
                let (size, receiver) = (*size as u64, *receiver);
                let Some(Role::Receiver { told, writes, .. }) = self.role(receiver) else {
                    return Err(lost());
                };
                *told += size;
                writes.push_back((*told, due));
                self.go_on(sender)
            }
            What::Request(connection) => self.ask(self.clients[connection], due),
            What::Connect => {
                let socket = Socket::new(Domain::for_address(self.relay), Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                match socket.connect(&self.relay.into()) {
                    Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => return Err(error),
                    _ => {}
                }
                let client = self.add(socket.into(), Role::Client(Client::new(SHORT, true)))?;
                self.ask(client, due)
            }
        }
    }

    fn ask(&mut self, client: usize, at: Instant) -> io::Result<()> {
        let Some(Role::Client(one)) = self.role(client) else {
            return Err(lost());
        };
        match one.ask(at) {
            true => self.go_on(client),
            false => Ok(()),
        }
    }

    fn role(&mut self, end: usize) -> Option<&mut Role> {
        self.ends[end].as_mut().map(|end| &mut end.role)
    }

    fn go_on(&mut self, index: usize) -> io::Result<()> {
        // One that closed may still have an event.
        let Some(end) = &mut self.ends[index] else {
            return Ok(());
        };
        match end.go_on(&mut self.shared)? {
            Next::Wait => Ok(()),
            Next::Again => {
                self.again.push(index);
                Ok(())
            }
            Next::Over => {
                let was_client = matches!(end.role, Role::Client(_));
                self.ends[index] = None;
                self.free.push(index);
                match was_client && self.shared.is_closed {
                    true => self.begin(What::Connect, Instant::now()),
                    false => Ok(()),
                }
            }
        }
    }

    /// A connection through the relay: both ends.
    fn pair(&mut self) -> io::Result<(TcpStream, TcpStream)> {
        let client = TcpStream::connect_timeout(&self.relay, PATIENCE)?;
        let wait = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        retry_on_intr(|| poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&wait)))?;
        let (server, _) = self
            .listener
            .accept()
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the relay does not connect"))?;
        Ok((client, server))
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let server = self.add(socket, Role::server(SHORT))?;
                    self.go_on(server)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn add(&mut self, socket: TcpStream, role: Role) -> io::Result<usize> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.ends.push(None);
            self.ends.len() - 1
        });
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(index as u64), flags)?;
        self.ends[index] = Some(End { socket, role });
        Ok(index)
    }
}

fn lost() -> io::Error {
    io::Error::other("a connection was lost")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::kind;
    use crate::schedule;

    /// What comes of a load on loopback, without a relay.
    fn run(load: &Load) -> Done {
        let listener = kind::listener((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = listener.local_addr().unwrap();
        let end = Duration::from_millis(300);
        let schedule = schedule::of(load, 0, end);
        let generator = Generator::connect(load, listener, address).unwrap();
        let window = (Duration::from_millis(100), end);
        generator.run(load, &schedule, window, PATIENCE, |_| Ok(())).unwrap()
    }

    #[test]
    fn everything_that_is_due_in_the_window_is_done_and_timed() {
        for load in crate::load::quick() {
            let done = run(&load);
            assert!(done.offered > 20, "{}: {done:?}", load.name);
            assert_eq!(done.completed, done.offered, "{}", load.name);
            assert_eq!(done.writes.count() + done.exchanges.count(), done.offered);
            assert_eq!(done.lateness.count(), done.offered, "{}", load.name);
        }
    }

    #[test]
    fn a_closed_loop_does_what_it_can_and_is_never_behind() {
        for load in crate::load::laboratory().iter().take(4) {
            let done = run(load);
            assert_eq!(done.completed, done.offered, "{}", load.name);
            assert!(done.bytes > 0 || done.exchanges.count() > 0, "{}", load.name);
        }
    }
}
