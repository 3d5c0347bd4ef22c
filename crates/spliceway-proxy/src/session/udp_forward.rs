//! Forwards UDP datagrams: `forward --udp`. Each client has a session with its own socket, which is
//! connected to the target.
//!
//! ```text
//!   client A ◀═╗             ╔═▶ session A ◀═ connected socket ═▶ target
//!   client B ◀═╩═▶ Port ◀═══╩═▶ session B ◀═ connected socket ═▶ target
//! ```
//!
//! The task of the [`Port`] receives from all clients, and sends through the sockets of their
//! sessions. The task of a session receives from its target, and sends through the port.
//!
//! **Sessions.** A client is an address and a port, and the address of this machine that it has
//! reached. A datagram of an unknown client begins a session. The session ends after a silence
//! (`--udp-timeout`), or if the network reports that nothing receives at the target. If the target
//! has never answered, a quarter of that time is enough, because the client may not exist.
//!
//! **Targets that have moved.** A client that never pauses would keep its target for ever. While
//! the target is silent, its session asks from time to time whether another session of the client
//! would have the same target, and ends if not. The next datagram begins that other session.
//!
//! **No amplification.** Anybody can forge the address of a client. So a client gets exactly the
//! datagrams that its target sends to the session, and nothing from the program itself. The kernel
//! admits only the target's own address to the connected socket. No client is its own target: each
//! answer would reach the target as another question, and one forged datagram would go round for
//! ever.
//!
//! **Order and boundaries.** The datagrams of a session keep their order, and none is split or
//! merged. Those that arrive before the socket is connected wait for it.
//!
//! **Limits.** A session counts towards the limits on sessions (`--max-conns`,
//! `--max-conns-per-ip`). All sessions of datagrams together have a smaller limit, so that forged
//! clients leave places for clients with connections. At a limit, the datagrams of new clients are
//! dropped and counted, and no session ends for them. At most 4 MiB of datagrams wait in a port.
//!
//! **Loss.** Like a router, the program drops a datagram that it cannot send immediately, or that
//! is above a rate limit.

mod refused;
mod session;
mod table;

use parking_lot::{Mutex, MutexGuard};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use quinn_udp::UdpSocketState;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::kit::alive::Alive;
use crate::log::LogThrottle;
use crate::net::datagrams::{Origin, Route, system, with_scratch};
use crate::session::record::Record;
use crate::session::service::Service;
use crate::settings::Kind;
use refused::Refused;
use session::{Place, Session};
use spliceway_protocol::address::{Target, canonical};
use spliceway_protocol::proxy;
use table::{Flow, Table};

/// A socket for the datagrams of all clients, and their sessions.
pub(crate) struct Port {
    socket: Arc<UdpSocket>,
    local: SocketAddr,
    udp: &'static UdpSocketState,
    table: Table,
    refused: Refused,
    throttle: Mutex<LogThrottle>,
    /// Held by the task that receives. Two tasks would reorder datagrams.
    receiving: tokio::sync::Mutex<()>,
    reopened: Notify,
    /// Whether a service has the socket. Then no datagram is dropped because the one before drains.
    is_open: AtomicBool,
    /// What new clients reach now, if any.
    reached_now: Mutex<(Weak<Service>, u16)>,
}

/// What the sessions of a port share.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) service: Arc<Service>,
    /// The position of the port in its range: 0 for the first port.
    pub(crate) port_index: u16,
    pub(crate) alive: Alive,
}

impl Port {
    /// # Errors
    /// Returns an error if the socket has no address, or if no socket can be opened.
    pub(crate) fn new(socket: Arc<UdpSocket>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            local: socket.local_addr()?,
            udp: system()?,
            table: Table::default(),
            refused: Refused::default(),
            throttle: Mutex::default(),
            receiving: tokio::sync::Mutex::default(),
            reopened: Notify::new(),
            is_open: AtomicBool::new(true),
            reached_now: Mutex::default(),
            socket,
        }))
    }

    /// Records that a service has the socket from now on. Datagrams of new clients stay in it until
    /// [`serve`](Self::serve) begins.
    pub(crate) fn reopens(&self) {
        self.is_open.store(true, Ordering::Relaxed);
        self.reopened.notify_waiters();
    }

    /// Records that only sessions have the socket from now on.
    pub(crate) fn closes(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    /// Forwards the datagrams of clients until the future is dropped. `opener` tells which service
    /// new clients reach now.
    pub(crate) async fn serve(self: &Arc<Self>, opener: impl Fn() -> Opener) {
        self.reopened.notify_waiters();
        let _receiving = self.receiving.lock().await;
        loop {
            readable(&self.socket).await;
            if self.pass_up(&opener(), true) {
                yield_now().await;
            }
        }
    }

    /// Forwards the datagrams of clients that have a session, until there is no session, or until
    /// [`serve`](Self::serve) continues.
    pub(crate) async fn finish(self: &Arc<Self>, opener: &Opener) {
        tokio::select! {
            biased;
            () = self.reopened.notified() => {}
            () = self.receive_for_sessions(opener) => {}
        }
    }

    async fn receive_for_sessions(self: &Arc<Self>, opener: &Opener) {
        let _receiving = self.receiving.lock().await;
        while !self.table.is_empty() {
            tokio::select! {
                () = readable(&self.socket) => {
                    if self.is_open.load(Ordering::Relaxed) {
                        return;
                    }
                    if self.pass_up(opener, false) {
                        yield_now().await;
                    }
                }
                () = self.table.emptied() => {}
            }
        }
    }

    /// Receives once. Returns whether more datagrams may be ready.
    fn pass_up(self: &Arc<Self>, opener: &Opener, is_accepting: bool) -> bool {
        let (udp, now) = (self.udp, Instant::now());
        self.reaches(opener, is_accepting);
        let mut begun = Vec::new();
        let more = with_scratch(|batch, gso| {
            // Errors are about answers to clients that have left.
            let more = batch.receive(udp, &self.socket, |_| true);
            let mut flows = self.table.flows();
            let mut last = None;
            batch.for_each(|client, mut packet| {
                if last != Some(client) {
                    flows.flush(last.replace(client), udp, gso);
                }
                if flows.send(client, &mut packet, now, udp, gso) {
                    return;
                }
                match self.begin(client, now, opener, is_accepting) {
                    Ok((flow, session)) => {
                        flows.insert(client, flow);
                        flows.send(client, &mut packet, now, udp, gso);
                        begun.push(session);
                    }
                    Err(dropped) => opener.service.traffic.datagram_dropped(dropped),
                }
            });
            flows.flush(last, udp, gso);
            more
        });
        // The table is unlocked here, because a runtime that stops drops the sessions immediately.
        for session in begun {
            session.spawn(opener.alive.clone());
        }
        more
    }

    /// Records what new clients reach.
    fn reaches(&self, opener: &Opener, is_accepting: bool) {
        let mut reached = self.reached_now();
        let service = if is_accepting {
            Arc::downgrade(&opener.service)
        } else {
            Weak::new()
        };
        *reached = (service, opener.port_index);
    }

    /// Locks what new clients reach.
    fn reached_now(&self) -> MutexGuard<'_, (Weak<Service>, u16)> {
        self.reached_now.lock()
    }

    /// Returns whether another session of this client would have another target than `target`,
    /// which is connected to `address`. Returns `false` if there would be none.
    async fn leads_elsewhere(self: Arc<Self>, client: SocketAddr, target: Target, address: SocketAddr) -> bool {
        let (service, port_index) = self.reached_now().clone();
        let Some(service) = service.upgrade() else {
            return false;
        };
        let is_another = match (&service.balancer, &service.kind) {
            (Some(balancer), _) => balancer.prefers_others(&target),
            (None, Kind::Forward(targets)) => targets.nth(port_index) != target,
            _ => false,
        };
        if is_another || !matches!(target, Target::Name(..)) {
            return is_another;
        }
        let addresses = service.dialer.addresses(&target, Some(client.ip().into()));
        match timeout(service.timeouts.connect, addresses).await {
            Ok(Ok(addresses)) => !addresses.contains(&address),
            _ => false,
        }
    }

    /// Begins the session of a client.
    fn begin(
        self: &Arc<Self>,
        client: Origin,
        now: Instant,
        opener: &Opener,
        is_accepting: bool,
    ) -> Result<(Flow, Session), Dropped> {
        let (service, address) = (&opener.service, canonical(client.source));
        if !service.clients.admits(address.ip()) {
            return Err(Dropped::Client);
        }
        if !client.reached.is_none_or(is_of_one_host) {
            return Err(Dropped::Unreachable);
        }
        if !is_accepting {
            return Err(Dropped::Draining);
        }
        let Kind::Forward(targets) = &service.kind else {
            return Err(Dropped::Denied);
        };
        let target = targets.nth(opener.port_index);
        // A backend or an address of a name is known only later.
        if service.balancer.is_none() && target == Target::Ip(address) {
            return Err(Dropped::Client);
        }
        let mut permit = opener.service.process.admission.try_admit_datagrams().map_err(|max| {
            self.warn_of_limit(max);
            Dropped::Sessions
        })?;
        if !permit.count(address.ip()) {
            return Err(Dropped::SessionsOfClient);
        }
        let header = match service.send_proxy {
            Some(_) => proxy::encode_datagram(address, self.reached(client)),
            None => Vec::new(),
        };
        let stats = DatagramStats::within(service.rates.of_session(Some(address.ip())));
        let flow = Flow::new(header, stats.clone(), now);
        let session = Session {
            place: Place::new(Arc::clone(self), client),
            record: Record::new(Arc::clone(service), Some(address)),
            broken: flow.broken(),
            dialled: None,
            port_index: opener.port_index,
            target,
            stats,
            permit,
        };
        Ok((flow, session))
    }

    /// Returns the address that the client has sent to.
    fn reached(&self, client: Origin) -> SocketAddr {
        let ip = client.reached.unwrap_or(self.local.ip());
        canonical(SocketAddr::new(ip, self.local.port()))
    }

    /// Returns how datagrams reach a client.
    fn route_to(&self, client: Origin) -> Route {
        match client.reached {
            Some(reached) => Route::Between(reached, client.source),
            None => Route::To(client.source),
        }
    }

    fn warn_of_limit(&self, max: usize) {
        let mut throttle = self.throttle.lock();
        if throttle.admits(Instant::now()) {
            tracing::warn!(
                max,
                "the limit on sessions is reached: datagrams of new clients are dropped"
            );
        }
    }
}

/// Returns whether an answer could come from this address. It cannot come from that of a group.
fn is_of_one_host(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_multicast(),
    }
}

/// Waits for datagrams.
async fn readable(socket: &UdpSocket) {
    // The only possible error is that the runtime is shutting down.
    let _ = poll_fn(|cx| socket.poll_recv_ready(cx)).await;
}
