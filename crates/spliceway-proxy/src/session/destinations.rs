//! What BIND and UDP ASSOCIATE share: the peers that a client may reach through a socket of its
//! own, and the address of that socket.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use tokio::net::UdpSocket;

use crate::access::datagram_counts::Dropped;
use crate::access::policy::Denied;
use crate::kit::client_key::ClientKey;
use crate::net::datagrams::towards;
use crate::reach::dial::{DialError, Dialer};
use spliceway_protocol::address::{Target, canonical};

/// Decides where datagrams may go and opens the sockets for them. Clones make the same decisions.
pub(super) trait Destinations: Clone + Send + Sync + 'static {
    /// Checks whether the service may send datagrams to this address and accept connections from
    /// it. If the client has named the target, `name` is its name, and the address is one of those
    /// that [`Self::look_up`] has returned. This method is called for each datagram and each
    /// connection.
    ///
    /// # Errors
    /// Returns the reason for a refusal.
    fn check(&self, name: Option<&str>, address: SocketAddr) -> Result<(), Denied>;

    /// Opens a UDP socket with the configured options. The socket is only for addresses of the same
    /// family as `to`.
    ///
    /// # Errors
    /// Returns [`Dropped::Unreachable`] if that family is not used, and [`Dropped::Socket`] if no
    /// socket can be opened.
    fn socket(&self, to: IpAddr) -> Result<UdpSocket, Dropped>;

    /// Returns the addresses of a name, best first.
    ///
    /// # Errors
    /// Returns the reason why there are none.
    fn look_up(&self, target: &Target) -> impl Future<Output = Result<Vec<SocketAddr>, DialError>> + Send;
}

/// The destinations of one client: every target to which it may connect.
#[derive(Clone)]
pub(super) struct ClientDestinations {
    pub(super) dialer: Dialer,
    /// The client towards whose share lookups count.
    pub(super) client: Option<ClientKey>,
}

impl Destinations for ClientDestinations {
    fn check(&self, name: Option<&str>, address: SocketAddr) -> Result<(), Denied> {
        self.dialer.check(name, address)
    }

    fn socket(&self, to: IpAddr) -> Result<UdpSocket, Dropped> {
        towards(to, self.dialer.sockets()).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => Dropped::Unreachable,
            _ => {
                tracing::debug!(%to, %error, "cannot open a socket for datagrams to targets");
                Dropped::Socket
            }
        })
    }

    async fn look_up(&self, target: &Target) -> Result<Vec<SocketAddr>, DialError> {
        self.dialer.addresses(target, self.client).await
    }
}

/// Returns the address that a client reached, but with port 0. Another socket can then be bound to
/// it.
pub(super) fn at_any_port(reached: SocketAddr) -> SocketAddr {
    let mut address = canonical(reached);
    address.set_port(0);
    address
}

/// Returns the address of a bound socket for the reply to a client. The reply contains `advertise`
/// instead of the IP address of the socket if both have the same family.
pub(super) fn advertised(bound: SocketAddr, advertise: Option<IpAddr>) -> SocketAddr {
    let ip = advertise.filter(|ip| ip.is_ipv4() == bound.is_ipv4());
    SocketAddr::new(ip.unwrap_or(bound.ip()), bound.port())
}
