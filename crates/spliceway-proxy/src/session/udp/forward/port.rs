//! Receives the datagrams of all clients, and begins their sessions.

use parking_lot::Mutex;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::client_side::ClientSide;
use super::session::{FlowEntry, ForwardSession};
use super::table::Flow;
use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::kit::alive::Alive;
use crate::log::LogThrottle;
use crate::net::datagrams::{Origin, readable, with_scratch};
use crate::session::record::Record;
use crate::session::service::Service;
use crate::settings::Kind;
use spliceway_protocol::address::{Target, canonical};
use spliceway_protocol::proxy;

/// A socket for the datagrams of all clients, and their sessions.
pub(crate) struct Port {
    clients: Arc<ClientSide>,
    throttle: Mutex<LogThrottle>,
    /// Held by the task that receives. Two tasks would reorder datagrams.
    receiving: tokio::sync::Mutex<()>,
    reopened: Notify,
    /// Whether a service has the socket. Then no datagram is dropped because the one before drains.
    is_open: AtomicBool,
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
            clients: Arc::new(ClientSide::new(socket)?),
            throttle: Mutex::default(),
            receiving: tokio::sync::Mutex::default(),
            reopened: Notify::new(),
            is_open: AtomicBool::new(true),
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
    pub(crate) async fn serve(&self, opener: impl Fn() -> Opener) {
        self.reopened.notify_waiters();
        let _receiving = self.receiving.lock().await;
        loop {
            readable(&self.clients.socket).await;
            if self.pass_up(&opener(), true) {
                yield_now().await;
            }
        }
    }

    /// Forwards the datagrams of clients that have a session, until there is no session, or until
    /// [`serve`](Self::serve) continues.
    pub(crate) async fn finish(&self, opener: &Opener) {
        tokio::select! {
            biased;
            () = self.reopened.notified() => {}
            () = self.receive_for_sessions(opener) => {}
        }
    }

    async fn receive_for_sessions(&self, opener: &Opener) {
        let _receiving = self.receiving.lock().await;
        while !self.clients.table.is_empty() {
            tokio::select! {
                () = readable(&self.clients.socket) => {
                    if self.is_open.load(Ordering::Relaxed) {
                        return;
                    }
                    if self.pass_up(opener, false) {
                        yield_now().await;
                    }
                }
                () = self.clients.table.emptied() => {}
            }
        }
    }

    /// Receives once. Returns whether more datagrams may be ready.
    fn pass_up(&self, opener: &Opener, is_accepting: bool) -> bool {
        let (clients, now) = (&self.clients, Instant::now());
        let reached = is_accepting.then_some(&opener.service).map(Arc::downgrade);
        clients.set_reached(reached.unwrap_or_default(), opener.port_index);
        let mut begun = Vec::new();
        let more = with_scratch(|batch, gso| {
            // Errors are about answers to clients that have left.
            let more = batch.receive(clients.udp, &clients.socket, |_| true);
            let mut flows = clients.table.flows.lock();
            let mut last = None;
            batch.for_each(|client, mut packet| {
                if last != Some(client) {
                    flows.flush(last.replace(client), gso);
                }
                if flows.send(client, &mut packet, now, gso) {
                    return;
                }
                match self.begin(client, now, opener, is_accepting) {
                    Ok((flow, session)) => {
                        flows.insert(client, flow);
                        flows.send(client, &mut packet, now, gso);
                        begun.push(session);
                    }
                    Err(dropped) => opener.service.traffic.datagram_dropped(dropped),
                }
            });
            flows.flush(last, gso);
            more
        });
        // The table is unlocked here, because a runtime that stops drops the sessions immediately.
        for session in begun {
            session.spawn(opener.alive.clone());
        }
        more
    }

    /// Begins the session of a client.
    fn begin(
        &self,
        client: Origin,
        now: Instant,
        opener: &Opener,
        is_accepting: bool,
    ) -> Result<(Flow, ForwardSession), Dropped> {
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
            if self.throttle.lock().admits(now) {
                tracing::warn!(
                    max,
                    "the limit on sessions is reached: datagrams of new clients are dropped"
                );
            }
            Dropped::Sessions
        })?;
        if !permit.count(address.ip()) {
            return Err(Dropped::SessionsOfClient);
        }
        let header = match service.send_proxy {
            Some(_) => proxy::encode_datagram(address, self.clients.reached(client)),
            None => Vec::new(),
        };
        let stats = DatagramStats::within(service.rates.of_session(Some(address.ip())));
        let flow = Flow::new(header, stats.clone(), now);
        let session = ForwardSession {
            entry: FlowEntry::new(Arc::clone(&self.clients), client),
            record: Record::new(Arc::clone(service), Some(address), permit),
            broken: flow.broken(),
            answered: None,
            port_index: opener.port_index,
            target,
            stats,
        };
        Ok((flow, session))
    }
}

/// Returns whether an answer could come from this address. It cannot come from that of a group.
fn is_of_one_host(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_multicast(),
    }
}
