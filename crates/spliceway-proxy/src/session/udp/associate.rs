//! SOCKS5 UDP ASSOCIATE (RFC 1928 section 7): forwards datagrams between one client and its
//! targets. Each datagram from the client names its target.
//!
//! ```text
//!                       remove header, policy, name
//!   client ═══▶ its socket ──────────────────────────▶ one socket each for IPv4, IPv6 ═══▶ targets
//!          ◀═══            ◀──────────────────────────                                ◀═══
//!                           sent to before? add header
//! ```
//!
//! The client's TCP connection carries no data. When this connection ends, the association ends.
//! The proxy reads and discards all bytes that the client sends on the connection.
//!
//! **Permitted senders.** Only the client may send to its socket, from the IP address of its
//! connection and from one port. The client declares this port in its request, or its first valid
//! datagram sets the port. A target may send datagrams if the client has sent to the same address
//! and port. The association remembers at least the last 512 targets. It drops the answers of a
//! server that answers from another port. Each address family has one socket for all targets, so
//! every target sees the same source port. Clients that discover their own public address rely on
//! this.
//!
//! **Names.** If a name has addresses of both families, the addresses of the client's own family
//! come first. The association uses the other family if there is no route. It cannot run happy
//! eyeballs, because nothing shows whether a datagram arrives. The client's own family is at least
//! known to work between the client and the proxy.
//!
//! **Order.** Datagrams between two addresses keep their order, and so do datagrams to one name.
//! Other datagrams may overtake those that wait for the lookup of a name.
//!
//! **Loss.** Datagrams wait only for lookups of names. Like a router, the association drops a
//! datagram that it cannot send immediately, that is not allowed, or that is above a rate limit. It
//! also drops SOCKS fragments, whose FRAG is not 0. It counts the dropped datagrams for each
//! reason. A datagram to the client has at most 65,507 bytes with its SOCKS header (65,527 bytes
//! over IPv6). The header has 10 bytes for an IPv4 source, and 22 bytes for an IPv6 source. If a
//! datagram is longer than a link allows, the kernel splits it into IP fragments. Errors that the
//! network reports for a datagram do not end the association.
//!
//! **Resources.** An association has at most 4 descriptors: the connection, the client's socket and
//! one socket for each family. Besides the kernel's buffers, an association holds:
//!
//! | what | at most |
//! |---|---|
//! | datagrams that wait for names | 128 KiB |
//! | names and their addresses: 64 names with 255 bytes and 8 addresses each | 40 KiB |
//! | peers: 2 × 512 | 44 KiB |
//! | lookups: 4 tasks | what the resolver needs |
//!
//! Datagrams in transit use buffers that belong to the thread, at most 2 MiB. So an idle
//! association does not hold any buffers.

mod association;
mod names;
mod peers;
mod sockets;
mod targets;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;

use crate::access::rates::SessionRates;
use crate::kit::outcome::Outcome;
use crate::session::byte_counter::{ByteCounter, ByteSource, counted};
use crate::session::client::Client;
use crate::session::destinations::ClientDestinations;
use crate::session::guard::Guard;
use crate::session::handshake::ClientRequest;
use crate::session::service::Service;
use association::{AssociateSettings, Association};

/// An association whose client knows where to send datagrams, and the connection that keeps it
/// open.
pub(crate) struct Associated {
    pub(crate) client: Client,
    pub(crate) association: Association<ClientDestinations>,
}

impl Associated {
    pub(crate) async fn run(mut self, guard: &mut Guard) -> Outcome {
        let stats = self.association.stats();
        guard.associating(stats.clone());
        let counter = ByteCounter::new(guard.session(), ByteSource::Datagrams(stats));
        counted(counter, self.association.run(&mut self.client)).await
    }
}

/// Binds the socket for the datagrams of a client.
pub(crate) fn bind(
    service: &Service,
    reached: SocketAddr,
    client: SocketAddr,
    request: &ClientRequest,
    rates: SessionRates,
) -> io::Result<Association<ClientDestinations>> {
    let settings = AssociateSettings {
        advertise: service.advertise,
        idle: service.settings.timeouts.idle,
        lookup: service.settings.timeouts.connect,
    };
    let destinations = ClientDestinations {
        dialer: service.dialer_of(request.user.as_deref()).for_datagrams(),
        client: Some(client.ip().into()),
    };
    Association::bind(reached, client, &request.request.target, &settings, destinations, rates)
}
