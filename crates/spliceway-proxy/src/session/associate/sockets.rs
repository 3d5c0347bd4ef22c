//! The sockets of an association for targets.

use std::future::{pending, poll_fn};
use std::net::{IpAddr, SocketAddr};

use tokio::net::UdpSocket;

use super::Destinations;
use crate::access::datagram_counts::Dropped;

/// The sockets for targets: one for each address family, opened for the first datagram that needs
/// it.
#[derive(Debug, Default)]
pub(super) struct Outside {
    pub(super) v4: Option<UdpSocket>,
    pub(super) v6: Option<UdpSocket>,
}

impl Outside {
    /// Returns the socket that reaches `target` and opens it if needed.
    pub(super) fn open(&mut self, target: SocketAddr, destinations: &impl Destinations) -> Result<&UdpSocket, Dropped> {
        let place = match target.ip() {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        };
        Ok(match place {
            Some(socket) => socket,
            None => place.insert(destinations.socket(target.ip())?),
        })
    }

    /// Returns the socket that reaches `target`, if it is open.
    pub(super) fn of(&self, target: SocketAddr) -> Option<&UdpSocket> {
        match target.ip() {
            IpAddr::V4(_) => self.v4.as_ref(),
            IpAddr::V6(_) => self.v6.as_ref(),
        }
    }
}

/// Waits for datagrams, or forever if there is no socket.
pub(super) async fn readable(socket: Option<&UdpSocket>) {
    let Some(socket) = socket else {
        return pending().await;
    };
    // The only possible error is that the runtime is shutting down.
    let _ = poll_fn(|cx| socket.poll_recv_ready(cx)).await;
}
