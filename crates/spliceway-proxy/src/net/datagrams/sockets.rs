//! Opens UDP sockets.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use crate::net::outgoing::{SocketSettings, unspecified};

/// Binds a socket to this address only. An IPv6 socket does not accept IPv4, so a peer's address
/// has only one form.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    bind_as(address, &SocketSettings::default())
}

/// Opens a socket for datagrams to addresses of the same family as `to`, on a port that the kernel
/// chooses.
///
/// # Errors
/// Returns `EAFNOSUPPORT` if that family is not used, or the error of a system call.
pub(crate) fn towards(to: IpAddr, settings: &SocketSettings) -> io::Result<UdpSocket> {
    let any = (!settings.has_source()).then(|| unspecified(to));
    let source = settings.source(to).or(any).ok_or(Errno::AFNOSUPPORT)?;
    bind_as(SocketAddr::new(source, 0), settings).inspect(gather)
}

/// Creates a socket. The caller must bind it to `address`.
pub(in crate::net) fn new_socket(address: SocketAddr, v6_only: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM.nonblocking(),
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    Ok(socket)
}

fn bind_as(address: SocketAddr, settings: &SocketSettings) -> io::Result<UdpSocket> {
    let socket = new_socket(address, true)?;
    if let Some(interface) = &settings.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(mark) = settings.mark {
        socket.set_mark(mark)?;
    }
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

/// Lets the kernel gather datagrams of one source in one slot of a [`Batch`](super::batch::Batch).
/// A bulk flow then costs about half as much. Only a batch may receive from this socket.
pub(crate) fn gather(socket: &UdpSocket) {
    // Before Linux 5.0, each datagram has a slot of its own.
    let _ = setsockopt(socket, sockopt::UdpGroSegment, &true);
}

/// Lets each received datagram tell to which address of this machine it was sent. The answer must
/// come from that address.
pub(in crate::net) fn report_reached(socket: &UdpSocket) -> io::Result<()> {
    match socket.local_addr()? {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
        // An IPv4 address is IPv4-mapped then.
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    Ok(())
}

/// Waits for datagrams.
pub(crate) async fn readable(socket: &UdpSocket) {
    // The only possible error is that the runtime is shutting down.
    let _ = poll_fn(|cx| socket.poll_recv_ready(cx)).await;
}

/// Returns the capabilities of the system for quinn-udp. quinn-udp detects them with a temporary
/// socket.
///
/// quinn-udp sets QUIC options on the temporary socket. One of them forbids datagrams that are
/// longer than the link allows. The proxy must not impose this limit, so the sockets of
/// sessions do not have these options. quinn-udp can send and receive through any socket.
pub(crate) fn system() -> io::Result<&'static UdpSocketState> {
    static SYSTEM: OnceLock<UdpSocketState> = OnceLock::new();
    if let Some(system) = SYSTEM.get() {
        return Ok(system);
    }
    let tried =
        Socket::new(Domain::IPV4, Type::DGRAM, None).or_else(|_| Socket::new(Domain::IPV6, Type::DGRAM, None))?;
    let system = UdpSocketState::new(UdpSockRef::from(&tried))?;
    Ok(SYSTEM.get_or_init(|| system))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[tokio::test]
    async fn a_source_of_one_family_leaves_the_other_unused() {
        let (v4, v6): (IpAddr, IpAddr) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        let any = SocketSettings::default();
        let bound =
            |to, settings: &SocketSettings| towards(to, settings).map(|socket| socket.local_addr().unwrap().ip());
        assert_eq!(bound(v4, &any).unwrap(), IpAddr::from(Ipv4Addr::UNSPECIFIED));
        assert_eq!(bound(v6, &any).unwrap(), IpAddr::from(Ipv6Addr::UNSPECIFIED));
        let source = Ipv4Addr::new(127, 0, 0, 9);
        let settings = SocketSettings {
            source_v4: Some(source),
            ..any
        };
        assert_eq!(bound(v4, &settings).unwrap(), IpAddr::from(source));
        let refused = bound(v6, &settings).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::AFNOSUPPORT));
    }
}
