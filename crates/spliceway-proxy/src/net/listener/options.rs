//! The options of sockets that clients reach.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// The number of connections that may wait to be accepted. The kernel uses the smaller of this
/// number and `net.core.somaxconn`, which is 4096 by default.
pub(super) const BACKLOG: i32 = 4096;
/// The silence before the kernel sends a keepalive probe, and the time between probes. With the
/// probes, a vanished peer is noticed even if the idle timeout is off.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(60);

/// Creates a socket to listen on `address`. The caller must bind it. Accepted sockets inherit its
/// options, which saves calls for each of them.
pub(crate) fn socket_to_listen(address: SocketAddr, v6_only: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    set_options(&socket)?;
    Ok(socket)
}

/// Sets the options of every relayed socket: keepalive and `TCP_NODELAY`. The relay does not need
/// Nagle's algorithm, because it always sends all bytes that it has.
pub(super) fn set_options<'socket>(socket: impl Into<SockRef<'socket>>) -> io::Result<()> {
    let socket = socket.into();
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))
}
