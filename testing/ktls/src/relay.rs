//! The prototype: a relay whose TLS is in the kernel.
//!
//! ```text
//!   TLS socket ─ splice ─▶ pipe ─ splice ─▶ plain socket      up
//!              ◀ splice ─ pipe ◀─ splice ─                    down
//! ```
//!
//! One thread moves both directions of one session. The rules that it tries:
//! - A splice that returns 0, or fails with `EINVAL`, says nothing about the end. `recvmsg` with
//!   room for a control message tells what is there: data, another record, or the end.
//! - After a key update of the peer, the kernel gets the next keys at once. If the peer asks for
//!   it, the relay updates its own.
//! - The kernel may hold a record that is only partly in the socket's send queue. A FIN would cut
//!   it off. So it waits until the queue has had everything (`Queue`).

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use rustls::ConnectionTrafficSecrets;
use socket2::SockRef;

use crate::handshake::{Later, shake_hands};
use crate::identity::Identity;
use crate::kernel;
use crate::plan::Plan;
use crate::record_layer::{ALERT, DATA, HANDSHAKE};

/// Bytes that TLS 1.3 adds to the content of a record.
const OVERHEAD: u64 = 22;

/// How long the relay waits for a peer that has received its end to close.
const LINGER: Duration = Duration::from_secs(10);

/// How long a poll may take before the send queue is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What a session did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Bytes that were spliced from the TLS socket, and into it.
    pub spliced: [u64; 2],
    /// Bytes that a receive returned, where a splice was expected to.
    pub received: [u64; 2],
    /// Splices that returned 0 before the end.
    pub empty: u64,
    /// Key updates of the peer, and of the relay.
    pub key_updates: [u64; 2],
    /// Tickets.
    pub tickets: u64,
    /// Splices into the TLS socket that would have blocked.
    pub blocked: u64,
    /// Looks at the send queue that found records of the kernel still outside.
    pub outside: u64,
}

impl Counts {
    /// Adds the counts of another session.
    pub fn add(&mut self, other: &Self) {
        for of in 0..2 {
            self.spliced[of] += other.spliced[of];
            self.received[of] += other.received[of];
            self.key_updates[of] += other.key_updates[of];
        }
        self.empty += other.empty;
        self.tickets += other.tickets;
        self.blocked += other.blocked;
        self.outside += other.outside;
    }
}

/// Why a session ended early. Both connections are reset.
#[derive(Debug)]
pub enum Failure {
    /// The handshake.
    Handshake(String),
    /// A system call.
    System(&'static str, io::Error),
    /// An alert of the peer.
    Alert(u8),
    /// A record that may not come.
    Protocol(&'static str),
}

/// Relays one session.
///
/// # Errors
/// Returns an error after the connections were reset.
pub fn relay(plan: &Plan, identity: &Identity, tls: TcpStream, plain: TcpStream) -> (Counts, Result<(), Failure>) {
    let mut relay = match Relay::new(plan, identity, &tls, &plain) {
        Ok(relay) => relay,
        Err(failure) => {
            reset_at_close(&[&tls, &plain]);
            return (Counts::default(), Err(failure));
        }
    };
    let result = relay.run();
    if let Err(failure) = &result {
        let is_bad = matches!(failure, Failure::System(_, error) if error.raw_os_error() == Some(libc::EBADMSG));
        // No record follows `close_notify`.
        if is_bad && !relay.has_notified {
            const BAD_RECORD_MAC: [u8; 2] = [2, 20];
            // The kernel has stored the error, and would report it instead of sending. The peer may
            // be gone.
            let _ = tls.take_error();
            let _ = kernel::send(&tls, ALERT, &BAD_RECORD_MAC);
        }
        reset_at_close(&[&tls, &plain]);
    }
    (relay.counts, result)
}

fn reset_at_close(sockets: &[&TcpStream]) {
    for socket in sockets {
        let lingering = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        lingering.expect("a socket has this option");
    }
}

/// One direction.
struct Flow {
    pipe: (OwnedFd, OwnedFd),
    held: usize,
    /// Bytes that a receive returned, where a splice was expected to. They go first.
    copied: Vec<u8>,
    /// The source has ended.
    is_ended: bool,
    /// The sink has the end too.
    is_finished: bool,
}

impl Flow {
    fn new(plan: &Plan) -> Result<Self, Failure> {
        let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let pipe = pipe.map_err(|errno| Failure::System("pipe", errno.into()))?;
        if let Some(bytes) = plan.pipe {
            let set = rustix::pipe::fcntl_setpipe_size(&pipe.1, bytes);
            set.map_err(|errno| Failure::System("F_SETPIPE_SZ", errno.into()))?;
        }
        Ok(Self {
            pipe,
            held: 0,
            copied: Vec::new(),
            is_ended: false,
            is_finished: false,
        })
    }

    fn is_empty(&self) -> bool {
        self.held == 0 && self.copied.is_empty()
    }

    /// Moves bytes to the sink, and returns how many.
    fn drain(&mut self, sink: &TcpStream) -> Result<usize, Errno> {
        if self.copied.is_empty() {
            let bytes = moved(&self.pipe.0, sink, self.held)?;
            self.held -= bytes;
            return Ok(bytes);
        }
        let bytes = rustix::net::send(sink, &self.copied, rustix::net::SendFlags::NOSIGNAL)?;
        self.copied.drain(..bytes);
        Ok(bytes)
    }
}

/// Counts the bytes given to kernel TLS. They are compared with what reached the send queue.
struct Queue {
    /// Bytes that had been queued before the kernel encrypted.
    before: u64,
    /// The content of all records.
    content: u64,
    /// Records under earlier keys.
    earlier: u64,
    /// The number of the first record under these keys.
    first: u64,
    keys: ConnectionTrafficSecrets,
}

impl Queue {
    fn new(tls: &TcpStream, first: u64, keys: ConnectionTrafficSecrets) -> io::Result<Self> {
        Ok(Self {
            before: queued(tls)?,
            content: 0,
            earlier: 0,
            first,
            keys,
        })
    }

    /// Returns whether the socket's send queue has had everything.
    fn has_all(&self, tls: &TcpStream) -> io::Result<bool> {
        let records = self.earlier + self.records(tls)?;
        Ok(queued(tls)? >= self.before + self.content + OVERHEAD * records)
    }

    fn records(&self, tls: &TcpStream) -> io::Result<u64> {
        Ok(kernel::next_record(tls, &self.keys)? - self.first)
    }

    fn set_keys(&mut self, tls: &TcpStream, keys: ConnectionTrafficSecrets) -> io::Result<()> {
        self.earlier += self.records(tls)?;
        kernel::set_send_keys(tls, 0, &keys)?;
        self.first = 0;
        self.keys = keys;
        Ok(())
    }
}

/// Returns how many bytes the send queue of a connection has had.
fn queued(socket: &TcpStream) -> io::Result<u64> {
    loop {
        let acknowledged = kernel::acknowledged(socket)?;
        let queue = kernel::send_queue(socket)?;
        // An acknowledgement between the two calls would count its bytes twice, or not at all.
        if kernel::acknowledged(socket)? == acknowledged {
            return Ok(acknowledged + queue);
        }
    }
}

/// Readiness, as last reported. epoll reports only changes, as it does to tokio.
#[derive(Clone, Copy, Debug)]
struct Ready {
    reads: bool,
    writes: bool,
}

struct Relay<'a> {
    tls: &'a TcpStream,
    plain: &'a TcpStream,
    epoll: OwnedFd,
    tls_ready: Ready,
    plain_ready: Ready,
    later: Later,
    up: Flow,
    down: Flow,
    queue: Queue,
    /// The peer has asked for a key update of the relay.
    owes_update: bool,
    has_notified: bool,
    /// Something waits for the send queue.
    looks_again: bool,
    counts: Counts,
}

impl<'a> Relay<'a> {
    fn new(plan: &Plan, identity: &Identity, tls: &'a TcpStream, plain: &'a TcpStream) -> Result<Self, Failure> {
        // The kernel refuses a socket whose peer has sent its FIN, so this comes first.
        kernel::attach(tls).map_err(system("TCP_ULP"))?;
        for (socket, bytes) in [(tls, plan.send_buffers[0]), (plain, plan.send_buffers[1])] {
            socket.set_nodelay(true).map_err(system("TCP_NODELAY"))?;
            if let Some(bytes) = bytes {
                let set = SockRef::from(socket).set_send_buffer_size(bytes);
                set.map_err(system("SO_SNDBUF"))?;
            }
        }
        let (secrets, later) = shake_hands(plan, identity, tls).map_err(Failure::Handshake)?;
        tls.set_nonblocking(true).map_err(system("O_NONBLOCK"))?;
        plain.set_nonblocking(true).map_err(system("O_NONBLOCK"))?;
        let (first, keys) = secrets.tx;
        let queue = Queue::new(tls, first, keys).map_err(system("TCP_INFO"))?;
        kernel::set_send_keys(tls, first, &queue.keys).map_err(system("TLS_TX"))?;
        kernel::set_receive_keys(tls, secrets.rx.0, &secrets.rx.1).map_err(system("TLS_RX"))?;
        Ok(Self {
            tls,
            plain,
            epoll: epoll_of([tls, plain]).map_err(|errno| Failure::System("epoll", errno.into()))?,
            tls_ready: Ready {
                reads: true,
                writes: true,
            },
            plain_ready: Ready {
                reads: true,
                writes: true,
            },
            later,
            up: Flow::new(plan)?,
            down: Flow::new(plan)?,
            queue,
            owes_update: false,
            has_notified: false,
            looks_again: false,
            counts: Counts::default(),
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        while !(self.up.is_finished && self.down.is_finished) {
            self.looks_again = false;
            let has_moved = self.up()?;
            if !(self.down()? || has_moved) {
                self.wait()?;
            }
        }
        self.linger();
        Ok(())
    }

    /// Moves bytes from the TLS socket to the plain one. Returns whether anything changed.
    fn up(&mut self) -> Result<bool, Failure> {
        let mut has_moved = false;
        if self.up.is_empty() && !self.up.is_ended && self.tls_ready.reads {
            match moved(self.tls, &self.up.pipe.1, 1 << 16) {
                Ok(0) => has_moved |= self.receive_record(false)?,
                Err(Errno::INVAL) => has_moved |= self.receive_record(true)?,
                Ok(bytes) => {
                    self.up.held = bytes;
                    self.counts.spliced[0] += bytes as u64;
                    has_moved = true;
                }
                Err(Errno::AGAIN) => self.tls_ready.reads = false,
                Err(errno) => return Err(Failure::System("splice from TLS", errno.into())),
            }
        }
        if !self.up.is_empty() && self.plain_ready.writes {
            match self.up.drain(self.plain) {
                Ok(_) => has_moved = true,
                Err(Errno::AGAIN) => self.plain_ready.writes = false,
                Err(errno) => return Err(Failure::System("splice to plain", errno.into())),
            }
        }
        if self.up.is_ended && self.up.is_empty() && !self.up.is_finished {
            self.plain.shutdown(Shutdown::Write).map_err(system("shutdown"))?;
            self.up.is_finished = true;
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Receives what a splice did not move. Returns whether there was anything. A splice that was
    /// refused has met a record that is not data, or a damaged header. Its error is told once.
    fn receive_record(&mut self, was_refused: bool) -> Result<bool, Failure> {
        let mut bytes = [0; 1 << 15];
        let (kind, length) = match kernel::receive(self.tls, &mut bytes) {
            Ok((None, _)) | Err(_) if was_refused => return Err(Failure::Protocol("a damaged header")),
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.counts.empty += 1;
                self.tls_ready.reads = false;
                return Ok(false);
            }
            Err(error) => return Err(Failure::System("recvmsg", error)),
        };
        match (kind, &bytes[..length]) {
            (None, _) => self.up.is_ended = true,
            // 0 bytes, if something else follows an empty record.
            (Some(DATA), data) => {
                self.counts.empty += 1;
                self.counts.received[0] += data.len() as u64;
                self.up.copied = data.to_vec();
            }
            (Some(ALERT), [_, 0]) => self.up.is_ended = true,
            (Some(ALERT), [1, 90]) => {}
            (Some(ALERT), [_, alert]) => return Err(Failure::Alert(*alert)),
            (Some(HANDSHAKE), messages) => self.receive_messages(messages)?,
            _ => return Err(Failure::Protocol("a record of an unknown type")),
        }
        Ok(true)
    }

    fn receive_messages(&mut self, mut messages: &[u8]) -> Result<(), Failure> {
        while let [kind, a, b, c, rest @ ..] = messages {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let Some((message, rest)) = rest.split_at_checked(length) else {
                return Err(Failure::Protocol("a message in two records"));
            };
            match (kind, message, rest.is_empty()) {
                (4, ticket, _) => {
                    let stored = self.later.store_ticket(ticket);
                    stored.map_err(|_| Failure::Protocol("a ticket that is not valid"))?;
                    self.counts.tickets += 1;
                }
                // Nothing may follow a key update in its record.
                (24, [is_requested @ 0..=1], true) => {
                    let keys = self.later.next_receive_keys();
                    let keys = keys.map_err(|_| Failure::Protocol("a key update"))?;
                    kernel::set_receive_keys(self.tls, 0, &keys).map_err(system("TLS_RX, next keys"))?;
                    self.counts.key_updates[0] += 1;
                    // Several requests need one answer, and none may follow close_notify.
                    self.owes_update |= *is_requested == 1 && !self.has_notified;
                }
                _ => return Err(Failure::Protocol("a message that may not come")),
            }
            messages = rest;
        }
        Ok(())
    }

    /// Moves bytes from the plain socket to the TLS one. Returns whether anything changed.
    fn down(&mut self) -> Result<bool, Failure> {
        if self.down.is_finished {
            return Ok(false);
        }
        if self.owes_update {
            return self.update_keys();
        }
        let mut has_moved = false;
        if self.down.is_empty() && !self.down.is_ended && self.plain_ready.reads {
            has_moved |= self.fill_from_plain()?;
        }
        if !self.down.is_empty() && self.tls_ready.writes {
            match self.down.drain(self.tls) {
                Ok(bytes) => {
                    self.queue.content += bytes as u64;
                    self.counts.spliced[1] += bytes as u64;
                    has_moved = true;
                }
                Err(Errno::AGAIN) => {
                    self.counts.blocked += 1;
                    self.tls_ready.writes = false;
                }
                Err(errno) => return Err(Failure::System("splice to TLS", errno.into())),
            }
        }
        if self.down.is_ended && self.down.is_empty() {
            has_moved |= self.finish_tls()?;
        }
        Ok(has_moved)
    }

    fn fill_from_plain(&mut self) -> Result<bool, Failure> {
        match moved(self.plain, &self.down.pipe.1, 1 << 16) {
            Ok(0) => {
                // Beside an urgent mark, 0 is no end. A receive knows.
                let mut bytes = [0; 1 << 14];
                match rustix::net::recv(self.plain, &mut bytes, rustix::net::RecvFlags::DONTWAIT) {
                    Ok((0, _)) => self.down.is_ended = true,
                    Ok((length, _)) => {
                        self.counts.received[1] += length as u64;
                        self.down.copied = bytes[..length].to_vec();
                    }
                    Err(Errno::AGAIN) => {
                        self.plain_ready.reads = false;
                        return Ok(false);
                    }
                    Err(errno) => return Err(Failure::System("recv", errno.into())),
                }
            }
            Ok(bytes) => self.down.held = bytes,
            Err(Errno::AGAIN) => {
                self.plain_ready.reads = false;
                return Ok(false);
            }
            Err(errno) => return Err(Failure::System("splice from plain", errno.into())),
        }
        Ok(true)
    }

    /// Returns whether everything is in the send queue. If not, the next poll is short.
    fn is_queued(&mut self) -> Result<bool, Failure> {
        let has_all = self.queue.has_all(self.tls).map_err(system("TCP_INFO"))?;
        self.looks_again |= !has_all;
        self.counts.outside += u64::from(!has_all);
        Ok(has_all)
    }

    /// Sends a record that is not data, if the socket has room.
    fn send(&mut self, kind: u8, content: &[u8]) -> Result<bool, Failure> {
        match kernel::send(self.tls, kind, content) {
            Ok(()) => {
                self.queue.content += content.len() as u64;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.looks_again = true;
                Ok(false)
            }
            Err(error) => Err(Failure::System("sendmsg", error)),
        }
    }

    fn update_keys(&mut self) -> Result<bool, Failure> {
        const NOT_REQUESTED: [u8; 5] = [24, 0, 0, 1, 0];
        if !self.send(HANDSHAKE, &NOT_REQUESTED)? {
            return Ok(false);
        }
        let keys = self.later.next_send_keys();
        let keys = keys.map_err(|_| Failure::Protocol("a key update"))?;
        let set = self.queue.set_keys(self.tls, keys);
        set.map_err(system("TLS_TX, next keys"))?;
        self.counts.key_updates[1] += 1;
        self.owes_update = false;
        Ok(true)
    }

    fn finish_tls(&mut self) -> Result<bool, Failure> {
        const CLOSE_NOTIFY: [u8; 2] = [1, 0];
        if !self.is_queued()? {
            return Ok(false);
        }
        if !self.has_notified {
            self.has_notified = self.send(ALERT, &CLOSE_NOTIFY)?;
            return Ok(self.has_notified);
        }
        self.tls.shutdown(Shutdown::Write).map_err(system("shutdown"))?;
        self.down.is_finished = true;
        Ok(true)
    }

    /// Waits until something has changed.
    fn wait(&mut self) -> Result<(), Failure> {
        let limit = self
            .looks_again
            .then(|| Timespec::try_from(LOOK_AGAIN).expect("a short time"));
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 2];
        let count = epoll::wait(&self.epoll, &mut events, limit.as_ref());
        let count = count.map_err(|errno| Failure::System("epoll", errno.into()))?;
        for event in &events[..count] {
            let (number, flags) = (event.data.u64(), event.flags);
            let (socket, ready) = match number {
                0 => (self.tls, &mut self.tls_ready),
                _ => (self.plain, &mut self.plain_ready),
            };
            if flags.contains(EventFlags::ERR)
                && let Some(error) = socket.take_error().map_err(system("SO_ERROR"))?
            {
                return Err(Failure::System("epoll", error));
            }
            ready.reads |= flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP);
            ready.writes |= flags.intersects(EventFlags::OUT | EventFlags::HUP);
        }
        Ok(())
    }

    /// Waits until the TLS peer closes. A close with unread bytes causes a reset, which discards
    /// what the peer has not received.
    fn linger(&self) {
        let until = Instant::now() + LINGER;
        let mut bytes = [0; 1 << 12];
        loop {
            match kernel::receive(self.tls, &mut bytes) {
                Ok((None, _)) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    let left = Timespec::try_from(left).expect("a short time");
                    let polled = poll(&mut [PollFd::new(self.tls, PollFlags::IN)], Some(&left));
                    if polled != Ok(1) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}

/// Returns an instance that tells changes of these sockets.
fn epoll_of(sockets: [&TcpStream; 2]) -> Result<OwnedFd, Errno> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    for (number, socket) in (0..).zip(sockets) {
        epoll::add(&epoll, socket, EventData::new_u64(number), flags)?;
    }
    Ok(epoll)
}

/// Splices exactly as many bytes as there are, if `most` comes from a pipe.
fn moved(from: impl std::os::fd::AsFd, to: impl std::os::fd::AsFd, most: usize) -> Result<usize, Errno> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        match splice(&from, None, &to, None, most, flags) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn system(call: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::System(call, error)
}
