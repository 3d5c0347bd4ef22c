//! One association: its sockets, and the task that forwards its datagrams.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UdpSocket;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};

use super::names::Names;
use super::peers::Peers;
use super::sockets::{TargetSockets, readable};
use super::targets::{self, Targets};
use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::access::rates::SessionRates;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::net::datagrams::{self, GsoBatch, Origin, Route, gather, send, system, with_scratch};
use crate::session::destinations::{Destinations, advertised, at_any_port};
use spliceway_protocol::address::{Target, canonical};
use spliceway_protocol::socks5::datagram::{self, Header};

/// The settings that all associations of a service share.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AssociateSettings {
    /// The IP address in replies to clients, if it has the family of the address that the client
    /// reached. Otherwise, a reply contains the address that the client reached. This setting is
    /// for a proxy behind a NAT that keeps the ports.
    pub(super) advertise: Option<IpAddr>,
    /// The time without a forwarded datagram that ends the association. `None` means no limit.
    pub(super) idle: Option<Duration>,
    /// The time limit for a name lookup.
    pub(super) lookup: Duration,
}

/// An association whose socket for the client is bound. [`run`](Self::run) forwards its datagrams.
#[derive(Debug)]
pub(crate) struct Association<D> {
    /// The socket through which the client sends and receives datagrams.
    socket: UdpSocket,
    client: Client,
    targets: Targets<D>,
    idle: Option<Duration>,
    advertised: SocketAddr,
}

#[derive(Debug, Clone, Copy)]
enum Family {
    V4,
    V6,
}

impl<D: Destinations> Association<D> {
    /// Binds the socket for the client to `reached`, on a port that the kernel chooses. `reached`
    /// is the address at which the client reached the proxy.
    ///
    /// `client` is the source address of the client's connection, and `requested` is the address in
    /// the client's request. If `requested` has a port on the same host, only this port may send
    /// datagrams. An address of another host is ignored, because a client behind NAT does not know
    /// its public address.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be opened or bound.
    pub(super) fn bind(
        reached: SocketAddr,
        client: SocketAddr,
        requested: &Target,
        settings: &AssociateSettings,
        destinations: D,
        rates: SessionRates,
    ) -> io::Result<Self> {
        let socket = datagrams::bind(at_any_port(reached))?;
        gather(&socket);
        let bound = socket.local_addr()?;
        Ok(Self {
            socket,
            client: Client::new(client, requested),
            targets: Targets {
                sockets: TargetSockets::default(),
                peers: Peers::default(),
                lookups: JoinSet::new(),
                names: Names::default(),
                destinations,
                lookup_limit: settings.lookup,
                prefers_v4: bound.is_ipv4(),
                udp: system()?,
                stats: DatagramStats::within(rates),
            },
            idle: settings.idle,
            advertised: advertised(bound, settings.advertise),
        })
    }

    /// Returns the address to which the client must send its datagrams.
    pub(crate) fn address(&self) -> SocketAddr {
        self.advertised
    }

    /// Returns a handle that reads the counts and can stop the association. The handle may outlive
    /// the association.
    pub(super) fn stats(&self) -> DatagramStats {
        self.targets.stats.clone()
    }

    /// Forwards datagrams until `client`, the association's connection, ends. The association also
    /// ends after the idle timeout, and after [`DatagramStats::stop`].
    ///
    /// # Cancel safety
    /// Dropping the future also ends the association. The sockets are closed and the lookups are
    /// cancelled, but [`stats`](Self::stats) keeps the counts. When an association ends, datagrams
    /// that wait for a lookup are lost and not counted.
    pub(super) async fn run(mut self, client: &mut (impl AsyncRead + Unpin)) -> Outcome {
        let stats = self.stats();
        let mut client_end = pin!(client_end(client));
        let mut stopped = pin!(stats.stopped());
        let (mut active, mut passed) = (Instant::now(), stats.passed());
        let mut silence = pin!(sleep_until(active + self.idle.unwrap_or_default()));
        loop {
            let Targets { sockets, lookups, .. } = &mut self.targets;
            let more = tokio::select! {
                () = datagrams::readable(&self.socket) => self.pass_up(),
                () = readable(sockets.v4.as_ref()) => self.pass_down(Family::V4),
                () = readable(sockets.v6.as_ref()) => self.pass_down(Family::V6),
                lookup = targets::next(lookups) => {
                    self.targets.finish_lookup(lookup, Instant::now());
                    false
                }
                end = &mut client_end => return end,
                () = &mut stopped => return SessionEnd::Drained.into(),
                // Datagrams do not reset the timer. When the timer fires, the time of the last
                // forwarded datagram decides.
                () = &mut silence, if self.idle.is_some() => match active + self.idle.unwrap_or_default() {
                    over if over <= Instant::now() => return SessionEnd::Idle.into(),
                    later => {
                        silence.as_mut().reset(later);
                        continue;
                    }
                },
            };
            if stats.passed() != passed {
                (active, passed) = (Instant::now(), stats.passed());
            }
            if more {
                // More datagrams may be ready, but other tasks on this thread run first.
                yield_now().await;
            }
        }
    }

    /// Returns whether more datagrams may be ready.
    fn pass_up(&mut self) -> bool {
        let Self {
            socket,
            client,
            targets,
            ..
        } = self;
        let now = Instant::now();
        with_scratch(|batch, gso| {
            // Errors do not end the association.
            let more = batch.receive(targets.udp, socket, |_| true);
            batch.for_each(|origin, packet| match client.read(origin.source, packet.data()) {
                Ok((target, data)) => targets.send(target, data, now, gso),
                Err(dropped) => targets.stats.dropped(dropped),
            });
            targets.flush(gso);
            more
        })
    }

    /// Returns whether more datagrams may be ready.
    fn pass_down(&mut self, family: Family) -> bool {
        let Targets {
            sockets,
            peers,
            udp,
            stats,
            ..
        } = &mut self.targets;
        let from = match family {
            Family::V4 => &sockets.v4,
            Family::V6 => &sockets.v6,
        };
        // Only an open socket is readable, and the client's first datagram opens it.
        let (Some(from), Some(client)) = (from, self.client.address.map(Route::To)) else {
            return false;
        };
        // All headers of a family have the same size, so the size of the data can be computed after
        // sending.
        let header_bytes = family.header_bytes();
        let count = |bytes: usize, sent: Result<(), Errno>| stats.down(bytes - header_bytes, sent);
        let flush = |gso: &mut GsoBatch| gso.flush(udp, &self.socket, count);
        with_scratch(|batch, gso| {
            let more = batch.receive(udp, from, |_| true);
            batch.for_each(|Origin { source, .. }, mut packet| {
                if !peers.may_answer(source) {
                    return stats.dropped(Dropped::Unsolicited);
                }
                if let Err(dropped) = stats.charge_down(packet.data().len()) {
                    return stats.dropped(dropped);
                }
                let datagram = packet.behind(Header::of(source).as_bytes());
                if !gso.push(client, datagram, flush) {
                    count(datagram.len(), send(udp, &self.socket, client, datagram));
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

/// The source of the client's datagrams.
#[derive(Debug)]
struct Client {
    ip: IpAddr,
    /// `None` until the port is known.
    address: Option<SocketAddr>,
}

impl Client {
    fn new(connection: SocketAddr, requested: &Target) -> Self {
        let mut address = canonical(connection);
        let ip = address.ip();
        let declared = match requested {
            Target::Ip(requested) if requested.ip().to_canonical() == ip => requested.port(),
            _ => 0,
        };
        address.set_port(declared);
        Self {
            ip,
            address: (declared != 0).then_some(address),
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
async fn client_end(client: &mut (impl AsyncRead + Unpin)) -> Outcome {
    let mut discarded = [0; 64];
    loop {
        match client.read(&mut discarded).await {
            Ok(0) => return SessionEnd::ClientEof.into(),
            Ok(_) => {}
            Err(error) => return Outcome::because(SessionEnd::ResetByClient, &error),
        }
    }
}
