//! What a port and its sessions share: the socket that all clients reach, and what is known about
//! clients and targets.

use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use quinn_udp::UdpSocketState;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::refused::Refused;
use super::table::Table;
use crate::net::datagrams::{Origin, Route, system};
use crate::session::service::Service;
use crate::settings::Kind;
use spliceway_protocol::address::{Target, canonical};

pub(super) struct ClientSide {
    pub(super) socket: Arc<UdpSocket>,
    local: SocketAddr,
    pub(super) udp: &'static UdpSocketState,
    pub(super) table: Table,
    pub(super) refused: Refused,
    /// The service that new clients reach now, if any, and the position of the port in its range.
    reached_now: Mutex<(Weak<Service>, u16)>,
}

impl ClientSide {
    /// # Errors
    /// Returns an error if the socket has no address, or if no socket can be opened.
    pub(super) fn new(socket: Arc<UdpSocket>) -> io::Result<Self> {
        let udp = system()?;
        Ok(Self {
            local: socket.local_addr()?,
            udp,
            table: Table::new(udp),
            refused: Refused::default(),
            reached_now: Mutex::default(),
            socket,
        })
    }

    /// Records what new clients reach.
    pub(super) fn set_reached(&self, service: Weak<Service>, port_index: u16) {
        *self.reached_now.lock() = (service, port_index);
    }

    /// Returns the address that the client has sent to.
    pub(super) fn reached(&self, client: Origin) -> SocketAddr {
        let ip = client.reached.unwrap_or(self.local.ip());
        canonical(SocketAddr::new(ip, self.local.port()))
    }

    /// Returns how datagrams reach a client.
    pub(super) fn route_to(&self, client: Origin) -> Route {
        match client.reached {
            Some(reached) => Route::Between(reached, client.source),
            None => Route::To(client.source),
        }
    }

    /// Returns whether another session of this client would have another target than `target`,
    /// which is connected to `address`. Returns `false` if there would be none.
    pub(super) async fn has_other_target(
        self: Arc<Self>,
        client: SocketAddr,
        target: Target,
        address: SocketAddr,
    ) -> bool {
        let (service, port_index) = self.reached_now.lock().clone();
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
        match timeout(service.settings.timeouts.connect, addresses).await {
            Ok(Ok(addresses)) => !addresses.contains(&address),
            _ => false,
        }
    }
}
