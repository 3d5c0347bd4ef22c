//! UDP ASSOCIATE, RFC 1928 section 7: datagrams between one client and the targets it names in each.
//!
//! ```text
//!                     header off, policy, name
//!   client ═══▶ inside ───────────────────────▶ one socket each for IPv4, IPv6 ═══▶ targets
//!          ◀═══        ◀───────────────────────                                ◀═══
//!                     sent to before? header on
//! ```
//!
//! The client's TCP connection carries nothing any more and holds the association: its end is the end of it. What the client still
//! sends there is read and forgotten.
//!
//! **Who may send.** To the inside, the client alone: from the address its connection comes from, and from one port, which it
//! declares in its request or else by its first datagram that is one. From outside, exactly the addresses and ports that the client has
//! sent to (the last 512 at least), so a server that answers from another port is not heard. The socket of a family is one for all targets:
//! its port is the same to each, as clients that look for their own address rely on.
//!
//! **Names** of both families are taken for their addresses of the family that the client reached us by, while there is a way to those:
//! nothing tells whether a datagram arrives, so happy eyeballs cannot run, and that family is known to work somewhere.
//!
//! **Order** is kept between two addresses, and to a name; not between datagrams of which some wait for a name.
//!
//! **Loss.** Nothing is waited for but names. What cannot be sent at once, or is not to be, is dropped and counted by its reason,
//! as a router would; fragments of SOCKS (FRAG other than 0) are among it. A datagram to the client has room for 65,507 bytes
//! (65,527 over IPv6) with its header, which is 10 bytes for a source of IPv4 and 22 for one of IPv6. What is longer than a link takes, the
//! kernel cuts into fragments of IP. No error that comes back for a datagram ends anything.
//!
//! **Held** by an association are 4 descriptors at most (the connection, the inside, one socket of each family) and, beside what their
//! kernel buffers hold:
//!
//! | what | at most |
//! |---|---|
//! | datagrams that wait for names | 128 KiB |
//! | names and their addresses: 64 of 255 bytes and 8 addresses | 40 KiB |
//! | peers: 2 × 512 | 44 KiB |
//! | lookups: 4 tasks | what the resolver takes |
//!
//! Datagrams on their way go through buffers of the thread's, 2 MiB at most, so an association that nobody uses holds none.

mod batch;
mod counts;
mod names;
mod peers;
mod sockets;
mod targets;
#[cfg(test)]
mod tests;
mod gso_batch;

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

use crate::address::{Target, canonical};
use crate::protocol::socks5::datagram::{self, Header};
use batch::with_scratch;
use sockets::readable;
use targets::{Found, Targets};
use gso_batch::{GsoBatch, send};

/// What a service settles for all of its associations.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AssociateSettings {
    /// What clients are told to send to, if its family is that of the address they reached; else they are told that address. For
    /// a proxy behind a translation of addresses, which must keep the ports.
    pub(crate) advertise: Option<IpAddr>,
    /// How long no datagram may pass; `None`: for ever.
    pub(crate) idle: Option<Duration>,
    /// How long a name may be looked up.
    pub(crate) lookup: Duration,
}

/// Who says where datagrams may go. Clones answer alike.
pub(crate) trait Destinations: Clone + Send + Sync + 'static {
    /// Whether datagrams may be sent to, or connections taken from, this address. Asked for each.
    fn allow(&self, address: SocketAddr) -> bool;

    /// A socket for datagrams to addresses of this one's family and no other, as the settings want it; or [`Dropped::Unreachable`] where that
    /// family is not used, [`Dropped::Socket`] where there is none left.
    fn socket(&self, to: IpAddr) -> Result<UdpSocket, Dropped>;

    /// The addresses of a name, best first, and why there are none.
    fn look_up(&self, target: &Target) -> impl Future<Output = Result<Vec<SocketAddr>, Dropped>> + Send;
}

/// An association that is bound and does not pass anything yet: see [`run`](Self::run).
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
    /// No datagram passed for as long as is allowed.
    Idle,
    /// By [`AssociateStats::stop`].
    Stopped,
}

/// What happens in an association.
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
    /// Binds the inside: a port that the kernel chooses on `reached`, the address at which the client reached us.
    ///
    /// `client` is where the client's connection comes from, `asked` the address in its request: where that names a port of
    /// the same host, no other may send. One of another host is ignored, as it is what a client behind a translation of addresses
    /// believes its own to be.
    ///
    /// # Errors
    /// The socket cannot be had.
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

    /// What the client is told to send its datagrams to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.advertised
    }

    /// Its counts and the way to stop it, from outside and for as long as wanted.
    pub(crate) fn stats(&self) -> AssociateStats {
        self.stats.clone()
    }

    /// Passes datagrams until `client`, the connection that asked for it, ends, or something else does (see [`AssociateEnd`]).
    ///
    /// # Cancel safety
    /// Dropping it is an end like the others: the sockets are closed, lookups cut short, and the counts are what
    /// [`stats`](Self::stats) says. Datagrams that wait for a name are lost, and counted nowhere, at every end.
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
                // Looks at the clock when it may be over, so that no datagram sets it anew.
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
                // As much is there as a turn takes, and there are others on this thread.
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

    /// Whether there may be more of the same at once.
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
        // Only sockets that are there are readable, and only where the client has sent something.
        let (Some(socket), Some(client)) = (socket, inside.client.address) else {
            return false;
        };
        // The same for all of a family, so of a batch what is data is known.
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

/// The socket that the client sends to and hears from.
#[derive(Debug)]
struct Inside {
    socket: UdpSocket,
    client: Client,
}

/// Where the client's datagrams come from.
#[derive(Debug)]
struct Client {
    ip: IpAddr,
    /// Once its port is known.
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

    /// What the client sent, if it is the client. Its first datagram says which port it sends from.
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

/// Waits for the end of the client's connection, and reads it dry until then.
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

/// To bind beside the socket that a client reached.
pub(crate) fn at_any_port(reached: SocketAddr) -> SocketAddr {
    let mut address = canonical(reached);
    address.set_port(0);
    address
}
