//! The sockets of an association for targets.

use std::future::pending;
use std::net::{IpAddr, SocketAddr};

use tokio::net::UdpSocket;

use crate::access::datagram_counts::Dropped;
use crate::net::datagrams;
use crate::session::destinations::Destinations;

/// The sockets for targets: one for each address family, opened for the first datagram that needs
/// it.
#[derive(Debug, Default)]
pub(super) struct TargetSockets {
    pub(super) v4: Option<UdpSocket>,
    pub(super) v6: Option<UdpSocket>,
}

impl TargetSockets {
    /// Returns the socket that reaches `target` and opens it if needed.
    pub(super) fn get_or_open(
        &mut self,
        target: SocketAddr,
        destinations: &impl Destinations,
    ) -> Result<&UdpSocket, Dropped> {
        let socket = match target.ip() {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        };
        Ok(match socket {
            Some(socket) => socket,
            None => socket.insert(destinations.socket(target.ip())?),
        })
    }

    /// Returns the socket that reaches `target`, if it is open.
    pub(super) fn get(&self, target: SocketAddr) -> Option<&UdpSocket> {
        match target.ip() {
            IpAddr::V4(_) => self.v4.as_ref(),
            IpAddr::V6(_) => self.v6.as_ref(),
        }
    }
}

/// Waits for datagrams, or forever if there is no socket.
pub(super) async fn readable(socket: Option<&UdpSocket>) {
    match socket {
        Some(socket) => datagrams::readable(socket).await,
        None => pending().await,
    }
}
