//! UDP ASSOCIATE of SOCKS5 (RFC 1928 section 7): datagrams between one client and targets. Each
//! datagram of the client names its target.
//!
//! ```text
//!                     remove header, policy, name
//!   client ═══▶ inside ──────────────────────────▶ one socket each for IPv4, IPv6 ═══▶ targets
//!          ◀═══        ◀──────────────────────────                                ◀═══
//!                     sent to before? add header
//! ```
//!
//! The client's TCP connection carries no data. It holds the association, which ends with it. Bytes
//! that the client sends on it are read and discarded.
//!
//! **Permitted senders.** Only the client may send to the inside socket: from the address of its
//! connection, and from one port. The client declares this port in its request, or its first valid
//! datagram sets the port. A target may send if the client has sent to the same address and port.
//! At least the last 512 of them are known. A server that answers from another port is not heard.
//! Each family has one socket for all targets, so every target sees the same port. Clients that
//! discover their own address rely on this.
//!
//! **Names.** If a name has addresses of both families, those of the family that the client itself
//! uses come first. The other family is used if there is no route. Nothing shows whether a datagram
//! arrives, so happy eyeballs cannot run. The client's family is at least known to work somewhere.
//!
//! **Order.** Datagrams between two addresses keep their order, and so do datagrams to one name.
//! Datagrams that wait for a name may be overtaken by others.
//!
//! **Loss.** Datagrams wait for names only. A datagram that cannot be sent at once, or that is not
//! allowed, is dropped and counted by its reason, as in a router. This includes SOCKS fragments,
//! whose FRAG is not 0. A datagram to the client has room for 65,507 bytes with its header (65,527
//! bytes over IPv6). The header of an IPv4 source takes 10 bytes, and that of an IPv6 source takes
//! 22 bytes. The kernel splits datagrams that are longer than a link allows into IP fragments.
//! Errors that come back for a datagram do not end the association.
//!
//! **Resources.** An association has at most 4 descriptors: the connection, the inside socket and
//! one socket of each family. Besides the kernel's buffers, it holds:
//!
//! | what | at most |
//! |---|---|
//! | datagrams that wait for names | 128 KiB |
//! | names and their addresses: 64 names with 255 bytes and 8 addresses each | 40 KiB |
//! | peers: 2 × 512 | 44 KiB |
//! | lookups: 4 tasks | what the resolver needs |
//!
//! Datagrams in transit use buffers of the thread, at most 2 MiB, so an idle association holds
//! none.

mod batch;
mod counts;
mod gso_batch;
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
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UdpSocket;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

pub(crate) use counts::{AssociateStats, AssociateSummary, Dropped};
pub(crate) use sockets::towards;

use batch::with_scratch;
use gso_batch::{GsoBatch, send};
use sockets::readable;
use spliceway_protocol::address::{Target, canonical};
use spliceway_protocol::socks5::datagram::{self, Header};
use targets::{Found, Targets};

/// The settings of all associations of a service.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AssociateSettings {
    /// The IP address that clients are told to send to, if it has the family of the address that
    /// they reached. Otherwise, they are told the address that they reached. This is for a proxy
    /// behind NAT, which must keep the ports.
    pub(crate) advertise: Option<IpAddr>,
    /// The time without a forwarded datagram that ends the association. `None`: no limit.
    pub(crate) idle: Option<Duration>,
    /// The time limit for the lookup of a name.
    pub(crate) lookup: Duration,
}

/// Decides where datagrams may go, and opens the sockets for them. Clones decide alike.
pub(crate) trait Destinations: Clone + Send + Sync + 'static {
    /// Returns whether datagrams may be sent to this address, or connections accepted from it.
    /// Called for each datagram and each connection.
    fn allow(&self, address: SocketAddr) -> bool;

    /// Opens a UDP socket for addresses of the family of `to` only, with the options of the
    /// settings.
    ///
    /// # Errors
    /// Returns [`Dropped::Unreachable`] if that family is not used, and [`Dropped::Socket`] if no
    /// socket can be opened.
    fn socket(&self, to: IpAddr) -> Result<UdpSocket, Dropped>;

    /// Returns the addresses of a name, best first, or the reason why there are none.
    fn look_up(&self, target: &Target) -> impl Future<Output = Result<Vec<SocketAddr>, Dropped>> + Send;
}

/// An association whose inside socket is bound. [`run`](Self::run) forwards its datagrams.
#[derive(Debug)]
pub(crate) struct Association<D> {
    inside: Inside,
    targets: Targets<D>,
    idle: Option<Duration>,
    advertised: SocketAddr,
    udp: &'static UdpSocketState,
    stats: AssociateStats,
}

/// How an association ended.
#[derive(Debug)]
pub(crate) enum AssociateEnd {
    /// The client closed its connection.
    ClientEof,
    /// The client's connection failed.
    ClientFailed(io::Error),
    /// No datagram was forwarded for the idle timeout.
    Idle,
    /// [`AssociateStats::stop`] was called.
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
    /// Binds the inside socket to a port that the kernel chooses, on `reached`. This is the address
    /// at which the client reached the proxy.
    ///
    /// `client` is the source of the client's connection, and `asked` is the address in its
    /// request. If `asked` is a port of the same host, only this port may send. An address of
    /// another host is ignored: a client behind NAT takes such an address for its own.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be opened or bound.
    pub(crate) fn open(
        reached: SocketAddr,
        client: SocketAddr,
        asked: &Target,
        settings: &AssociateSettings,
        destinations: D,
    ) -> io::Result<Self> {
        let udp = sockets::system()?;
        let socket = sockets::bind(at_any_port(reached))?;
        let bound = socket.local_addr()?;
        let advertised = settings.advertise.filter(|ip| ip.is_ipv4() == bound.is_ipv4());
        let stats = AssociateStats::default();
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

    /// Returns the address that the client is told to send its datagrams to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.advertised
    }

    /// Returns a handle that reads the counts and can stop the association. It outlives the
    /// association.
    pub(crate) fn stats(&self) -> AssociateStats {
        self.stats.clone()
    }

    /// Forwards datagrams until `client`, the connection of the association, ends. [`AssociateEnd`]
    /// has the other reasons to end.
    ///
    /// # Cancel safety
    /// Dropping the future ends the association as well: the sockets are closed, lookups are
    /// cancelled, and [`stats`](Self::stats) has the counts. At every end, datagrams that wait for
    /// a name are lost and not counted.
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
                // A datagram does not reset the timer. When the timer fires, the last activity
                // counts.
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

    /// Handles an event. Returns whether the same event may be ready again at once.
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
            let more = batch.receive(udp, &inside.socket);
            for (source, packet) in batch.packets() {
                match inside.client.read(source, packet.data()) {
                    Ok((target, data)) => targets.send(target, data, now, gso),
                    Err(dropped) => stats.dropped(dropped),
                }
            }
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
        let (Some(socket), Some(client)) = (socket, inside.client.address) else {
            return false;
        };
        // All headers of a family have the same size, so the size of the data is known after
        // sending.
        let header_bytes = family.header_bytes();
        let count = |bytes: usize, sent: Result<(), Dropped>| match sent {
            Ok(()) => stats.down(bytes - header_bytes),
            Err(dropped) => stats.dropped(dropped),
        };
        let flush = |gso: &mut GsoBatch| gso.flush(udp, &inside.socket, count);
        with_scratch(|batch, gso| {
            let more = batch.receive(udp, socket);
            for (source, mut packet) in batch.packets() {
                if !peers.may_answer(source) {
                    stats.dropped(Dropped::Unsolicited);
                    continue;
                }
                let datagram = packet.behind(&Header::of(source));
                if !gso.push(client, datagram, flush) {
                    count(datagram.len(), send(&inside.socket, client, datagram));
                }
            }
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

/// The socket that the client sends to and receives from.
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

/// Waits for the end of the client's connection, and discards everything that it receives until
/// then.
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

/// Returns the address that a client reached, with port 0, so that another socket can be bound to
/// it.
pub(crate) fn at_any_port(reached: SocketAddr) -> SocketAddr {
    let mut address = canonical(reached);
    address.set_port(0);
    address
}
