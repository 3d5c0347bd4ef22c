//! The UDP sockets of an association.

use std::future::{pending, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use quinn_udp::{UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use super::Destinations;
use super::counts::Dropped;
use crate::dial::SocketSettings;

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

/// Binds a socket to this address only. An IPv6 socket does not accept IPv4, so a peer's address
/// has only one form.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    bind_as(address, &SocketSettings::default())
}

/// Opens a socket for datagrams to addresses of the same family as `to`, on a port that the kernel
/// chooses. [`Destinations::socket`] states the requirements.
pub(crate) fn towards(to: IpAddr, settings: &SocketSettings) -> Result<UdpSocket, Dropped> {
    let any = settings.source_v4.is_none() && settings.source_v6.is_none();
    let source = match to {
        IpAddr::V4(_) => settings
            .source_v4
            .or(any.then_some(Ipv4Addr::UNSPECIFIED))
            .map(IpAddr::from),
        IpAddr::V6(_) => settings
            .source_v6
            .or(any.then_some(Ipv6Addr::UNSPECIFIED))
            .map(IpAddr::from),
    };
    let source = source.ok_or(Dropped::Unreachable)?;
    bind_as(SocketAddr::new(source, 0), settings).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => Dropped::Unreachable,
        _ => {
            tracing::debug!(%source, %error, "cannot open a socket for datagrams to targets");
            Dropped::Socket
        }
    })
}

fn bind_as(address: SocketAddr, settings: &SocketSettings) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM.nonblocking(),
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if let Some(interface) = &settings.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(mark) = settings.mark {
        socket.set_mark(mark)?;
    }
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

/// Returns the capabilities of the system for quinn-udp. quinn-udp detects them with a temporary
/// socket.
///
/// quinn-udp sets QUIC options on the temporary socket. One of them forbids datagrams that are
/// longer than the link allows. The proxy must not impose this limit, so the sockets of
/// associations do not have these options. quinn-udp can send and receive through any socket.
pub(super) fn system() -> io::Result<&'static UdpSocketState> {
    static SYSTEM: OnceLock<UdpSocketState> = OnceLock::new();
    if let Some(system) = SYSTEM.get() {
        return Ok(system);
    }
    let tried =
        Socket::new(Domain::IPV4, Type::DGRAM, None).or_else(|_| Socket::new(Domain::IPV6, Type::DGRAM, None))?;
    let system = UdpSocketState::new(UdpSockRef::from(&tried))?;
    Ok(SYSTEM.get_or_init(|| system))
}

/// Waits for datagrams, or forever if there is no socket.
pub(super) async fn readable(socket: Option<&UdpSocket>) {
    let Some(socket) = socket else {
        return pending().await;
    };
    // The only possible error is that the runtime is shutting down.
    let _ = poll_fn(|cx| socket.poll_recv_ready(cx)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_source_of_one_family_leaves_the_other_unused() {
        let (v4, v6): (IpAddr, IpAddr) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        let any = SocketSettings::default();
        let bound = |socket: UdpSocket| socket.local_addr().unwrap().ip();
        assert_eq!(towards(v4, &any).map(bound), Ok(Ipv4Addr::UNSPECIFIED.into()));
        assert_eq!(towards(v6, &any).map(bound), Ok(Ipv6Addr::UNSPECIFIED.into()));
        let source = Ipv4Addr::new(127, 0, 0, 9);
        let settings = SocketSettings {
            source_v4: Some(source),
            ..any
        };
        assert_eq!(towards(v4, &settings).map(bound), Ok(source.into()));
        assert_eq!(towards(v6, &settings).map(bound), Err(Dropped::Unreachable));
    }
}
