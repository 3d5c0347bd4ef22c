//! One thread that holds both endpoints of every connection and sends what is due.
//!
//! ```text
//!   schedule ─▶ sender or client ──▶ relay ──▶ receiver or server
//!                   └ latency: from the due time to the last byte of the write, or of the response
//! ```

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::set_tcp_congestion;
use socket2::{Domain, SockRef, Socket, Type};

use crate::endpoint::{Client, Done, Endpoint, Next, ROOM, Role, Shared};
use crate::{Offer, Schedule, What};

/// A relay that needs longer than this to connect does not work.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timers of a virtual machine are late by up to this much. So the generator polls without waiting
/// for this long before a message is due.
const SPIN: Duration = Duration::from_micros(80);
/// The event data of the listener.
const LISTENER: u64 = u64::MAX;
/// Bytes in each direction of the one exchange on a short connection.
const SHORT: usize = 1 << 10;
/// Connections to one address of the relay. Each needs a port of the client. On loopback, further
/// connections use the next address.
const PER_ADDRESS: usize = 30_000;

/// The connections of one run, and their work.
pub struct Generator {
    offer: Offer,
    epoll: OwnedFd,
    listener: TcpListener,
    relay: SocketAddr,
    endpoints: Vec<Option<Endpoint>>,
    free: Vec<usize>,
    /// Senders, by flow.
    flows: Vec<usize>,
    clients: Vec<usize>,
    /// Endpoints that have more work than one pass allows.
    again: Vec<usize>,
    shared: Shared,
    /// How long to poll without waiting before a message is due.
    spin: Duration,
}

impl Generator {
    /// Opens the connections that stay open for the whole run. The calling thread is in the
    /// clients' network namespace. The relay connects to `listener`.
    ///
    /// # Errors
    /// Returns the socket errors, and `TimedOut` if the relay does not connect.
    pub fn connect(offer: Offer, listener: TcpListener, relay: SocketAddr) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let now = Instant::now();
        let mut generator = Self {
            offer,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener,
            relay,
            endpoints: Vec::new(),
            free: Vec::new(),
            flows: Vec::new(),
            clients: Vec::new(),
            again: Vec::new(),
            shared: Shared {
                room: vec![7; ROOM],
                window: (now, now),
                done: Done::default(),
                is_closed: offer.is_closed,
            },
            spin: SPIN,
        };
        if let Some(streams) = offer.streams {
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
        if let Some(requests) = offer.requests {
            for _ in 0..requests.connections {
                let (client, server) = generator.pair()?;
                generator.add(server, Role::server(requests.size))?;
                let client = generator.add(client, Role::Client(Client::new(requests.size, false)))?;
                generator.clients.push(client);
            }
        }
        if offer.connects.is_some() {
            let data = epoll::EventData::new_u64(LISTENER);
            epoll::add(&generator.epoll, &generator.listener, data, epoll::EventFlags::IN)?;
        }
        Ok(generator)
    }

    /// Disables polling without waiting, for a core that other threads also need.
    #[must_use]
    pub fn without_spin(mut self) -> Self {
        self.spin = Duration::ZERO;
        self
    }

    /// Sends everything that is due from now on. Only messages in the `window` count. Calls
    /// `at_window` with `true` when the window opens and with `false` when it closes. Ends when all
    /// messages are done, or `grace` after the window.
    ///
    /// # Errors
    /// Returns the socket errors and the errors from `at_window`.
    pub fn run(
        mut self,
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
            self.begin_all()?;
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
        // The connections end with a reset. So none stays in TIME_WAIT, and no relay has to finish
        // a backlog.
        for end in self.endpoints.iter().flatten() {
            SockRef::from(&end.socket).set_linger(Some(Duration::ZERO))?;
        }
        Ok(self.shared.done)
    }

    /// Waits for events once, no later than `until`, and does the work that they allow.
    fn turn(&mut self, until: Instant) -> io::Result<()> {
        let began = Instant::now();
        let left = match self.again.is_empty() {
            true => until.saturating_duration_since(began),
            false => Duration::ZERO,
        };
        if left > self.spin {
            let wait = Timespec::try_from(left - self.spin).map_err(io::Error::other)?;
            // This `poll` counts in nanoseconds, whereas `epoll_wait` counts in milliseconds.
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

    /// Starts a closed loop: flows send continuously, and every connection has a current request.
    fn begin_all(&mut self) -> io::Result<()> {
        for sender in self.flows.clone() {
            if let Some(Role::Sender { unsent, .. }) = self.role(sender) {
                *unsent = usize::MAX;
            }
            self.go_on(sender)?;
        }
        for client in self.clients.clone() {
            self.ask(client, Instant::now())?;
        }
        (0..self.offer.connects.unwrap_or(0.0) as usize).try_for_each(|_| self.begin(What::Connect, Instant::now()))
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
                let socket = self.socket()?;
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
        self.endpoints[end].as_mut().map(|end| &mut end.role)
    }

    fn go_on(&mut self, index: usize) -> io::Result<()> {
        // An endpoint that has closed may still have an event.
        let Some(end) = &mut self.endpoints[index] else {
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
                self.endpoints[index] = None;
                self.free.push(index);
                match was_client && self.shared.is_closed {
                    true => self.begin(What::Connect, Instant::now()),
                    false => Ok(()),
                }
            }
        }
    }

    /// Opens a connection through the relay and returns both endpoints.
    fn pair(&mut self) -> io::Result<(TcpStream, TcpStream)> {
        let client = self.socket()?;
        client.connect_timeout(&self.next_address().into(), PATIENCE)?;
        let wait = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        retry_on_intr(|| poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&wait)))?;
        let (server, _) = self
            .listener
            .accept()
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the relay does not connect"))?;
        Ok((client.into(), server))
    }

    /// Returns the relay's address for the next connection that stays open.
    fn next_address(&self) -> SocketAddr {
        let connections = self.endpoints.len() / 2;
        match self.relay.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => {
                let ip = Ipv4Addr::from(u32::from(ip) + (connections / PER_ADDRESS) as u32);
                SocketAddr::new(ip.into(), self.relay.port())
            }
            _ => self.relay,
        }
    }

    /// Returns a socket that is not connected yet.
    fn socket(&self) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(self.relay), Type::STREAM, None)?;
        if let Some(name) = self.offer.congestion_control {
            set_tcp_congestion(&socket, name)?;
        }
        Ok(socket)
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
            self.endpoints.push(None);
            self.endpoints.len() - 1
        });
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(index as u64), flags)?;
        self.endpoints[index] = Some(Endpoint { socket, role });
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
    use crate::{Requests, Streams, schedule};

    /// Returns the outcome of an offer over loopback without a relay.
    fn run(offer: Offer) -> Done {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let end = Duration::from_millis(300);
        let schedule = schedule(&offer, 1, end, |_| 1.0);
        let generator = Generator::connect(offer, listener, address).unwrap();
        let window = (Duration::from_millis(100), end);
        generator.run(&schedule, window, PATIENCE, |_| Ok(())).unwrap()
    }

    fn offers() -> [Offer; 3] {
        let streams = Streams {
            flows: 20,
            size: 16 << 10,
            rate: 7.5e6,
            up: false,
        };
        let requests = Requests {
            connections: 50,
            size: 64,
            rate: 2_000.0,
        };
        [
            Offer {
                streams: Some(streams),
                ..Offer::default()
            },
            Offer {
                requests: Some(requests),
                ..Offer::default()
            },
            Offer {
                connects: Some(200.0),
                ..Offer::default()
            },
        ]
    }

    #[test]
    fn every_message_due_in_the_window_is_done_and_timed() {
        for offer in offers() {
            let done = run(offer);
            assert!(done.offered > 20, "{offer:?}: {done:?}");
            assert_eq!(done.completed, done.offered, "{offer:?}");
            assert_eq!(done.writes.count() + done.exchanges.count(), done.offered);
            assert_eq!(done.lateness.count(), done.offered, "{offer:?}");
        }
    }

    #[test]
    fn a_closed_loop_completes_everything_it_starts() {
        for offer in offers() {
            let done = run(Offer {
                connects: offer.connects.map(|_| 8.0),
                is_closed: true,
                ..offer
            });
            assert_eq!(done.completed, done.offered, "{offer:?}");
            assert!(done.bytes > 0 || done.exchanges.count() > 0, "{offer:?}");
        }
    }
}
