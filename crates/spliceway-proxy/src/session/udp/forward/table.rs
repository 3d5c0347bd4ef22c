//! The sessions of a port, by client.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use quinn_udp::UdpSocketState;
use rustix::io::Errno;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, SetOnce};
use tokio::time::Instant;

use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::net::datagrams::{GsoBatch, Origin, Packet, Route, send};

/// The most datagrams of one session that wait for its socket. A client rarely sends more before
/// it has an answer.
const WAITING_MAX: usize = 64;
/// The most bytes of the datagrams that wait in a port. Forged clients could send any number.
const WAITING_MAX_BYTES: usize = 4 << 20;

/// The sessions of a port. A limit on sessions limits them.
pub(super) struct Table {
    pub(super) flows: Mutex<Flows>,
    emptied: Notify,
}

pub(super) struct Flows {
    udp: &'static UdpSocketState,
    of_clients: HashMap<Origin, Flow>,
    /// The bytes of all datagrams that wait.
    waiting_bytes: usize,
}

/// A client's datagrams to its target.
pub(super) struct Flow {
    path: Path,
    /// The PROXY header of each datagram, which may be empty.
    header: Vec<u8>,
    /// The time of the client's last datagram.
    last_datagram: Instant,
    stats: DatagramStats,
    /// Set when nothing receives the datagrams, for the task of the session.
    broken: Arc<SetOnce<Errno>>,
}

/// ```text
///   Connecting ─ the socket is connected ─▶ Connected
/// ```
enum Path {
    /// The target is being looked up. The datagrams that wait have their headers.
    Connecting(Vec<Box<[u8]>>),
    Connected(Arc<UdpSocket>, Route),
}

impl Table {
    pub(super) fn new(udp: &'static UdpSocketState) -> Self {
        let flows = Flows {
            udp,
            of_clients: HashMap::new(),
            waiting_bytes: 0,
        };
        Self {
            flows: Mutex::new(flows),
            emptied: Notify::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flows.lock().of_clients.is_empty()
    }

    /// Waits until the table has become empty. The caller must check that it still is.
    pub(super) async fn emptied(&self) {
        self.emptied.notified().await;
    }

    /// Sends the datagrams of this client that have waited, and further ones, through `socket`.
    pub(super) fn connected(&self, client: Origin, socket: Arc<UdpSocket>, route: Route) {
        let mut flows = self.flows.lock();
        let udp = flows.udp;
        let Some(flow) = flows.of_clients.get_mut(&client) else {
            return;
        };
        let path = std::mem::replace(&mut flow.path, Path::Connected(socket, route));
        if let Path::Connecting(datagrams) = path {
            datagrams.iter().for_each(|datagram| flow.send(udp, datagram));
            flows.waiting_bytes -= bytes_of(&datagrams);
        }
    }

    /// Returns the end of the silence that `end_of` computes from the time of the client's last
    /// datagram. Returns `None` if that end is over: the session is removed, and another datagram
    /// begins another one.
    pub(super) fn end_of_silence(
        &self,
        client: Origin,
        now: Instant,
        end_of: impl FnOnce(Instant) -> Instant,
    ) -> Option<Instant> {
        let mut flows = self.flows.lock();
        let end = end_of(flows.of_clients.get(&client)?.last_datagram);
        if end > now {
            return Some(end);
        }
        self.take(&mut flows, client);
        None
    }

    /// Removes the session of this client, and drops the datagrams that wait.
    pub(super) fn remove(&self, client: Origin) {
        let flow = self.take(&mut self.flows.lock(), client);
        if let Some(Flow {
            path: Path::Connecting(datagrams),
            stats,
            ..
        }) = &flow
        {
            datagrams.iter().for_each(|_| stats.dropped(Dropped::Unresolved));
        }
    }

    fn take(&self, flows: &mut Flows, client: Origin) -> Option<Flow> {
        let flow = flows.of_clients.remove(&client)?;
        if let Path::Connecting(datagrams) = &flow.path {
            flows.waiting_bytes -= bytes_of(datagrams);
        }
        if flows.of_clients.is_empty() {
            self.emptied.notify_one();
        }
        Some(flow)
    }
}

fn bytes_of(datagrams: &[Box<[u8]>]) -> usize {
    datagrams.iter().map(|datagram| datagram.len()).sum()
}

impl Flows {
    /// Adds the session of a client, which must not have one.
    pub(super) fn insert(&mut self, client: Origin, flow: Flow) {
        let previous = self.of_clients.insert(client, flow);
        debug_assert!(previous.is_none(), "the client has a session");
    }

    /// Sends a datagram of this client, adds it to `gso`, keeps it until the session has a socket,
    /// or drops it. Returns `false` if the client has no session.
    pub(super) fn send(&mut self, client: Origin, packet: &mut Packet<'_>, now: Instant, gso: &mut GsoBatch) -> bool {
        let udp = self.udp;
        let Some(flow) = self.of_clients.get_mut(&client) else {
            return false;
        };
        flow.last_datagram = now;
        if let Err(dropped) = flow.stats.charge_up(packet.data().len()) {
            flow.stats.dropped(dropped);
            return true;
        }
        let datagram = packet.behind(&flow.header);
        match &mut flow.path {
            Path::Connecting(datagrams) => {
                let bytes = self.waiting_bytes + datagram.len();
                if datagrams.len() < WAITING_MAX && bytes <= WAITING_MAX_BYTES {
                    datagrams.push(datagram.into());
                    self.waiting_bytes = bytes;
                } else {
                    flow.stats.dropped(Dropped::LookupLimit);
                }
            }
            Path::Connected(_, route) => {
                if !gso.push(*route, datagram, |gso| flow.flush(udp, gso)) {
                    flow.send(udp, datagram);
                }
            }
        }
        true
    }

    /// Sends the datagrams in `gso`, which are of this client.
    pub(super) fn flush(&self, client: Option<Origin>, gso: &mut GsoBatch) {
        if let Some(flow) = client.and_then(|client| self.of_clients.get(&client)) {
            flow.flush(self.udp, gso);
        }
    }
}

impl Flow {
    pub(super) fn new(header: Vec<u8>, stats: DatagramStats, now: Instant) -> Self {
        Self {
            path: Path::Connecting(Vec::new()),
            header,
            last_datagram: now,
            stats,
            broken: Arc::default(),
        }
    }

    pub(super) fn broken(&self) -> Arc<SetOnce<Errno>> {
        Arc::clone(&self.broken)
    }

    fn send(&self, udp: &UdpSocketState, datagram: &[u8]) {
        if let Path::Connected(socket, route) = &self.path {
            self.count(datagram.len(), send(udp, socket, *route, datagram));
        }
    }

    fn flush(&self, udp: &UdpSocketState, gso: &mut GsoBatch) {
        if let Path::Connected(socket, _) = &self.path {
            gso.flush(udp, socket, |bytes, sent| self.count(bytes, sent));
        }
    }

    fn count(&self, bytes: usize, sent: Result<(), Errno>) {
        self.stats.up(bytes - self.header.len(), sent);
        if let Some(errno) = sent.err().filter(|errno| says_nothing_receives(*errno)) {
            // The first error is enough.
            let _ = self.broken.set(errno);
        }
    }
}

/// Returns whether an error of a connected socket says that nothing receives at its peer. Other
/// errors concern one datagram, such as `EMSGSIZE` after the path has become narrower.
pub(super) fn says_nothing_receives(errno: Errno) -> bool {
    matches!(errno, Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH)
}
