//! SOCKS5 UDP ASSOCIATE (RFC 1928 section 7): forwards datagrams between one client and its
//! targets. Each datagram from the client names its target.
//!
//! ```text
//!                     remove header, policy, name
//!   client ═══▶ inside ──────────────────────────▶ one socket each for IPv4, IPv6 ═══▶ targets
//!          ◀═══        ◀──────────────────────────                                ◀═══
//!                     sent to before? add header
//! ```
//!
//! The client's TCP connection carries no data. When this connection ends, the association ends.
//! The proxy reads and discards all bytes that the client sends on the connection.
//!
//! **Permitted senders.** Only the client may send to the inside socket, from the IP address of its
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
//! **Resources.** An association has at most 4 descriptors: the connection, the inside socket and
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

mod names;
mod peers;
mod sockets;
mod targets;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use quinn_udp::UdpSocketState;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UdpSocket;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::access::policy::Denied;
use crate::access::rates::SessionRates;
use crate::net::datagrams::{GsoBatch, Origin, Route, bind, gather, send, system, with_scratch};
use crate::reach::dial::DialError;
use sockets::readable;
use spliceway_protocol::address::{Target, canonical};
use spliceway_protocol::socks5::datagram::{self, Header};
use targets::{Found, Targets};

/// The settings that all associations of a service share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AssociateSettings {
    /// The IP address in replies to clients, if it has the family of the address that the client
    /// reached. Otherwise, a reply contains the address that the client reached. This setting is
    /// for a proxy behind a NAT that keeps the ports.
    pub(crate) advertise: Option<IpAddr>,
    /// The time without a forwarded datagram that ends the association. `None` means no limit.
    pub(crate) idle: Option<Duration>,
    /// The time limit for a name lookup.
    pub(crate) lookup: Duration,
}

/// Decides where datagrams may go and opens the sockets for them. Clones make the same decisions.
pub(crate) trait Destinations: Clone + Send + Sync + 'static {
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

/// An association whose inside socket is bound. [`run`](Self::run) forwards its datagrams.
#[derive(Debug)]
pub(crate) struct Association<D> {
    inside: Inside,
    targets: Targets<D>,
    idle: Option<Duration>,
    advertised: SocketAddr,
    udp: &'static UdpSocketState,
    stats: DatagramStats,
}

/// How an association ended.
#[derive(Debug)]
pub(crate) enum AssociateEnd {
    /// The client closed its connection.
    ClientEof,
    /// The client's connection failed.
    ClientFailed(io::Error),
    /// No datagram was forwarded during the idle timeout.
    Idle,
    /// [`DatagramStats::stop`] was called.
    Stopped,
}

/// An event in an association.
enum Event {
    FromClient,
    FromTargets(Family),
    Found(Found),
}

#[derive(Debug, Clone, Copy)]
enum Family {
    V4,
    V6,
}

impl<D: Destinations> Association<D> {
    /// Binds the inside socket to `reached`, on a port that the kernel chooses. `reached` is the
    /// address at which the client reached the proxy.
    ///
    /// `client` is the source address of the client's connection, and `asked` is the address in the
    /// client's request. If `asked` names a port on the same host, only this port may send
    /// datagrams. An address of another host is ignored, because a client behind NAT does not know
    /// its public address.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be opened or bound.
    pub(crate) fn open(
        reached: SocketAddr,
        client: SocketAddr,
        asked: &Target,
        settings: &AssociateSettings,
        destinations: D,
        rates: SessionRates,
    ) -> io::Result<Self> {
        let udp = system()?;
        let socket = bind(at_any_port(reached))?;
        gather(&socket);
        let bound = socket.local_addr()?;
        let advertised = settings.advertise.filter(|ip| ip.is_ipv4() == bound.is_ipv4());
        let stats = DatagramStats::within(rates);
        Ok(Self {
            inside: Inside {
                socket,
                client: Client::new(client, asked),
            },
            targets: Targets::new(destinations, settings.lookup, bound.is_ipv4(), udp, stats.clone()),
            idle: settings.idle,
            advertised: SocketAddr::new(advertised.unwrap_or(bound.ip()), bound.port()),
            udp,
            stats,
        })
    }

    /// Returns the address to which the client must send its datagrams.
    pub(crate) fn address(&self) -> SocketAddr {
        self.advertised
    }

    /// Returns a handle that reads the counts and can stop the association. The handle may outlive
    /// the association.
    pub(crate) fn stats(&self) -> DatagramStats {
        self.stats.clone()
    }

    /// Forwards datagrams until `client`, the association's connection, ends. [`AssociateEnd`]
    /// lists the other reasons to end.
    ///
    /// # Cancel safety
    /// Dropping the future also ends the association. The sockets are closed and the lookups are
    /// cancelled, but [`stats`](Self::stats) keeps the counts. When an association ends, datagrams
    /// that wait for a lookup are lost and not counted.
    pub(crate) async fn run(mut self, client: &mut (impl AsyncRead + Unpin)) -> AssociateEnd {
        let stats = self.stats();
        let mut ended = pin!(ended(client));
        let mut stopped = pin!(stats.stopped());
        let (mut active, mut passed) = (Instant::now(), stats.passed());
        let mut silence = pin!(sleep_until(active + self.idle.unwrap_or_default()));
        loop {
            let event = tokio::select! {
                event = self.event() => event,
                end = &mut ended => return end,
                () = &mut stopped => return AssociateEnd::Stopped,
                // Datagrams do not reset the timer. When the timer fires, the time of the last
                // forwarded datagram decides.
                () = &mut silence, if self.idle.is_some() => match active + self.idle.unwrap_or_default() {
                    over if over <= Instant::now() => return AssociateEnd::Idle,
                    later => {
                        silence.as_mut().reset(later);
                        continue;
                    }
                },
            };
            let now = Instant::now();
            if self.act(event, now) {
                // More datagrams may be ready, but other tasks on this thread run first.
                yield_now().await;
            }
            if stats.passed() != passed {
                (active, passed) = (now, stats.passed());
            }
        }
    }

    async fn event(&mut self) -> Event {
        let Self { inside, targets, .. } = self;
        let Targets { sockets, lookups, .. } = targets;
        tokio::select! {
            () = readable(Some(&inside.socket)) => Event::FromClient,
            () = readable(sockets.v4.as_ref()) => Event::FromTargets(Family::V4),
            () = readable(sockets.v6.as_ref()) => Event::FromTargets(Family::V6),
            found = targets::next(lookups) => Event::Found(found),
        }
    }

    /// Handles an event. Returns whether the same event may already be ready again.
    fn act(&mut self, event: Event, now: Instant) -> bool {
        match event {
            Event::FromClient => self.pass_up(now),
            Event::FromTargets(family) => self.pass_down(family),
            Event::Found(found) => {
                self.targets.found(found, now);
                false
            }
        }
    }

    fn pass_up(&mut self, now: Instant) -> bool {
        let Self {
            inside,
            targets,
            udp,
            stats,
            ..
        } = self;
        with_scratch(|batch, gso| {
            // Errors do not end the association.
            let more = batch.receive(udp, &inside.socket, |_| true);
            batch.for_each(
                |origin, packet| match inside.client.read(origin.source, packet.data()) {
                    Ok((target, data)) => targets.send(target, data, now, gso),
                    Err(dropped) => stats.dropped(dropped),
                },
            );
            targets.flush(gso);
            more
        })
    }

    fn pass_down(&mut self, family: Family) -> bool {
        let Self {
            inside,
            targets,
            udp,
            stats,
            ..
        } = self;
        let Targets { sockets, peers, .. } = targets;
        let socket = match family {
            Family::V4 => &sockets.v4,
            Family::V6 => &sockets.v6,
        };
        // Only an open socket is readable, and the client's first datagram opens it.
        let (Some(socket), Some(client)) = (socket, inside.client.address.map(Route::To)) else {
            return false;
        };
        // All headers of a family have the same size, so the size of the data can be computed after
        // sending.
        let header_bytes = family.header_bytes();
        let count = |bytes: usize, sent: Result<(), Errno>| match sent {
            Ok(()) => stats.down(bytes - header_bytes),
            Err(errno) => stats.dropped(errno.into()),
        };
        let flush = |gso: &mut GsoBatch| gso.flush(udp, &inside.socket, count);
        with_scratch(|batch, gso| {
            let more = batch.receive(udp, socket, |_| true);
            batch.for_each(|Origin { source, .. }, mut packet| {
                if !peers.may_answer(source) {
                    return stats.dropped(Dropped::Unsolicited);
                }
                if let Err(dropped) = stats.charge_down(packet.data().len()) {
                    return stats.dropped(dropped);
                }
                let datagram = packet.behind(Header::of(source).as_bytes());
                if !gso.push(client, datagram, flush) {
                    count(datagram.len(), send(udp, &inside.socket, client, datagram));
                }
            });
            flush(gso);
            more
        })
    }
}

impl Family {
    fn header_bytes(self) -> usize {
        let any: IpAddr = match self {
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        Header::of(SocketAddr::new(any, 0)).as_bytes().len()
    }
}

/// The socket through which the client sends and receives datagrams.
#[derive(Debug)]
struct Inside {
    socket: UdpSocket,
    client: Client,
}

/// The source of the client's datagrams.
#[derive(Debug)]
struct Client {
    ip: IpAddr,
    /// `None` until the port is known.
    address: Option<SocketAddr>,
}

impl Client {
    fn new(connection: SocketAddr, asked: &Target) -> Self {
        let connection = canonical(connection);
        let declared = match asked {
            Target::Ip(asked) if asked.ip().to_canonical() == connection.ip() && asked.port() != 0 => {
                let mut declared = connection;
                declared.set_port(asked.port());
                Some(declared)
            }
            _ => None,
        };
        Self {
            ip: connection.ip(),
            address: declared,
        }
    }

    /// Parses a datagram if it comes from the client. The first valid datagram sets the client's
    /// port.
    fn read<'datagram>(
        &mut self,
        source: SocketAddr,
        datagram: &'datagram [u8],
    ) -> Result<(Target, &'datagram [u8]), Dropped> {
        let port = self.address.map_or(source.port(), |known| known.port());
        if (source.ip(), source.port()) != (self.ip, port) {
            return Err(Dropped::Source);
        }
        let read = datagram::parse(datagram).map_err(Dropped::Malformed)?;
        self.address.get_or_insert(source);
        Ok(read)
    }
}

/// Waits for the end of the client's connection and discards all bytes received until then.
async fn ended(client: &mut (impl AsyncRead + Unpin)) -> AssociateEnd {
    let mut forgotten = [0; 64];
    loop {
        match client.read(&mut forgotten).await {
            Ok(0) => return AssociateEnd::ClientEof,
            Ok(_) => {}
            Err(error) => return AssociateEnd::ClientFailed(error),
        }
    }
}

/// Returns the address that a client reached, but with port 0. Another socket can then be bound to
/// it.
pub(crate) fn at_any_port(reached: SocketAddr) -> SocketAddr {
    let mut address = canonical(reached);
    address.set_port(0);
    address
}
