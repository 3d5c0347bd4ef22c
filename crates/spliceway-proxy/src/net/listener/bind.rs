//! Binds listeners of every kind.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, UdpSocket, UnixListener, lookup_host};

use super::listening::{Listener, Transport};
use super::options::{BACKLOG, socket_to_listen};
use super::socket_file::{Ownership, SocketFile};
use super::{abstract_socket, inherited};
use crate::net::datagrams;
use crate::net::holder::{Holder, holder};
use crate::net::transparent::may_allow_foreign_addresses;
use spliceway_protocol::address::{ListenAddress, is_abstract};

/// The receive buffer of a socket for the datagrams of all clients. The kernel lowers it to
/// `net.core.rmem_max`, which is 208 KiB by default.
const DATAGRAM_BUFFER_BYTES: usize = 4 << 20;

/// What permits a port below 1024.
const PRIVILEGE: &str = ": this port needs the capability CAP_NET_BIND_SERVICE (in a unit of systemd \
    AmbientCapabilities=CAP_NET_BIND_SERVICE, else `setcap cap_net_bind_service=+ep` for the program), or a lower \
    limit in the sysctl net.ipv4.ip_unprivileged_port_start";

/// Binds the listeners for `address`. A host name gets one listener for each of its addresses.
/// `fd:NAME` gets one listener for each socket with this name from the service manager. `:PORT` is
/// one socket for IPv6 and IPv4, if the machine has IPv6.
///
/// # Errors
/// Returns the first error, whose text contains the address.
pub(crate) async fn bind(address: &ListenAddress, transport: Transport) -> io::Result<Vec<Listener>> {
    let listen = match transport {
        Transport::Streams => listen,
        Transport::Datagrams => receive,
    };
    let bound = match address {
        ListenAddress::Every(_) | ListenAddress::Ip(_) | ListenAddress::Name(..) => each_ip(address, listen).await,
        ListenAddress::Unix { .. } if transport == Transport::Datagrams => {
            Err(io::Error::other("a Unix socket is not for datagrams"))
        }
        ListenAddress::Unix { path, mode } if is_abstract(path) => {
            abstract_socket::listen(path, *mode).map(|listener| vec![Listener::Unix(None, listener)])
        }
        ListenAddress::Unix { path, mode } => {
            SocketFile::listen(path, *mode).map(|(file, listener)| vec![Listener::Unix(Some(file), listener)])
        }
        ListenAddress::Inherited(name) => inherited::take(name, transport),
    };
    let error = match bound {
        Ok(bound) => return Ok(bound),
        Err(error) => error,
    };
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied if is_privileged(address) => PRIVILEGE.to_owned(),
        io::ErrorKind::NotFound if matches!(address, ListenAddress::Unix { .. }) => {
            ": create its folder, or correct the path".to_owned()
        }
        io::ErrorKind::AddrInUse => in_use(address, transport).await,
        _ => String::new(),
    };
    Err(io::Error::new(
        error.kind(),
        format!("cannot listen on {address}: {error}{remedy}"),
    ))
}

/// Returns what an operator can do about an address that is in use.
async fn in_use(address: &ListenAddress, transport: Transport) -> String {
    let address = address.clone();
    // A machine may have thousands of processes to look at.
    let holder = tokio::task::spawn_blocking(move || holder(&address, transport == Transport::Datagrams));
    match holder.await {
        Ok(known @ (Holder::Instance(_) | Holder::Other { .. })) => format!(": in use by {known}"),
        // It may also be a socket of this process.
        _ => ": `spliceway doctor -c FILE`, as root, names the process".to_owned(),
    }
}

/// Tells whether [`bind`] would succeed, and changes nothing. No client can connect meanwhile, and
/// a program that listens there notices nothing.
///
/// # Errors
/// Returns the first error, whose text lacks the address.
pub(crate) async fn try_out(address: &ListenAddress, transport: Transport, is_behind_tproxy: bool) -> io::Result<()> {
    let bind = match transport {
        Transport::Streams => bound,
        Transport::Datagrams => bound_for_datagrams,
    };
    let sockets = match address {
        ListenAddress::Every(_) | ListenAddress::Ip(_) | ListenAddress::Name(..) => each_ip(address, bind).await?,
        ListenAddress::Unix { path, .. } if is_abstract(path) => return abstract_socket::try_out(path),
        ListenAddress::Unix { path, .. } => return SocketFile::try_out(path),
        // The service manager passes it only to the service.
        ListenAddress::Inherited(_) => return Ok(()),
    };
    let mut sockets = sockets.iter().filter(|_| is_behind_tproxy);
    sockets.try_for_each(may_allow_foreign_addresses)
}

/// Calls `bind` for each IP address that this address stands for: a host name has several.
async fn each_ip<T>(address: &ListenAddress, bind: fn(SocketAddr, bool) -> io::Result<T>) -> io::Result<Vec<T>> {
    match address {
        ListenAddress::Every(port) => match bind((Ipv6Addr::UNSPECIFIED, *port).into(), false) {
            Err(error) if no_such_family(&error) => bind((Ipv4Addr::UNSPECIFIED, *port).into(), false),
            bound => bound,
        }
        .map(|bound| vec![bound]),
        ListenAddress::Ip(address) => bind(*address, true).map(|bound| vec![bound]),
        ListenAddress::Name(name, port) => on_all(lookup_host((&**name, *port)).await?, bind),
        ListenAddress::Unix { .. } | ListenAddress::Inherited(_) => Ok(Vec::new()),
    }
}

/// Returns the listener of a socket that another process opened for `address`. Its file belongs to
/// this process when `ownership` says so.
pub(in crate::net) fn adopted(socket: OwnedFd, address: &ListenAddress, ownership: &Ownership) -> io::Result<Listener> {
    let unfit = || io::Error::new(io::ErrorKind::InvalidInput, "the socket is no listener");
    let options = SockRef::from(&socket);
    if options.r#type()? == Type::DGRAM && matches!(options.domain()?, Domain::IPV4 | Domain::IPV6) {
        options.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket.into())?;
        return Ok(Listener::Udp(Arc::new(socket)));
    }
    if !options.is_listener()? || options.r#type()? != Type::STREAM {
        return Err(unfit());
    }
    options.set_nonblocking(true)?;
    match options.domain()? {
        Domain::UNIX => {
            let file = match address {
                ListenAddress::Unix { path, mode } if is_abstract(path) => {
                    abstract_socket::set_mode(path, *mode);
                    None
                }
                ListenAddress::Unix { path, .. } => SocketFile::receive(path, ownership),
                _ => None,
            };
            UnixListener::from_std(socket.into()).map(|listener| Listener::Unix(file, listener))
        }
        Domain::IPV4 | Domain::IPV6 => TcpListener::from_std(socket.into()).map(Listener::Tcp),
        _ => Err(unfit()),
    }
}

/// Returns whether listeners that are `open` would do for what is `wanted`. Both are an address,
/// the name of what uses it, and what clients send.
pub(crate) fn does_for(open: (&ListenAddress, &str, Transport), wanted: (&ListenAddress, &str, Transport)) -> bool {
    if open.2 != wanted.2 {
        return false;
    }
    // The kernel has chosen the port, and clients of that port expect the same service.
    if has_any_port(wanted.0) && open.1 != wanted.1 {
        return false;
    }
    match (open.0, wanted.0) {
        (ListenAddress::Unix { path: open, .. }, ListenAddress::Unix { path: wanted, .. }) => open == wanted,
        (open, wanted) => open == wanted,
    }
}

/// Returns a number that is the same for addresses that differ at most in the mode of a socket. If
/// the kernel chooses the port, only one user of the address has it, and thousands may have the
/// same address.
pub(crate) fn hash_of(address: &ListenAddress, user: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    if has_any_port(address) {
        user.hash(&mut hasher);
    }
    match address {
        ListenAddress::Every(port) => (0, port).hash(&mut hasher),
        ListenAddress::Ip(address) => (1, address).hash(&mut hasher),
        ListenAddress::Name(name, port) => (2, name, port).hash(&mut hasher),
        ListenAddress::Unix { path, .. } => (3, path).hash(&mut hasher),
        ListenAddress::Inherited(name) => (4, name).hash(&mut hasher),
    }
    hasher.finish()
}

/// Returns whether the kernel chooses the port for this address.
fn has_any_port(address: &ListenAddress) -> bool {
    port(address) == Some(0)
}

/// Returns whether the port needs a privilege, if the machine has the usual limit.
fn is_privileged(address: &ListenAddress) -> bool {
    port(address).is_some_and(|port| port < 1024)
}

fn port(address: &ListenAddress) -> Option<u16> {
    match address {
        ListenAddress::Every(port) | ListenAddress::Name(_, port) => Some(*port),
        ListenAddress::Ip(address) => Some(address.port()),
        ListenAddress::Unix { .. } | ListenAddress::Inherited(_) => None,
    }
}

/// Binds all addresses of a name. It skips an address that this machine does not have, such as
/// `::1` if IPv6 is off. It returns an error if the machine has none of the addresses.
fn on_all<T>(
    addresses: impl Iterator<Item = SocketAddr>,
    bind: fn(SocketAddr, bool) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    let (mut all, mut missing) = (Vec::new(), io::Error::other("the name has no address"));
    for address in addresses {
        match bind(address, true) {
            Ok(bound) => all.push(bound),
            Err(error) if no_such_family(&error) => missing = error,
            Err(error) => return Err(error),
        }
    }
    if all.is_empty() { Err(missing) } else { Ok(all) }
}

fn no_such_family(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)
    )
}

fn listen(address: SocketAddr, v6_only: bool) -> io::Result<Listener> {
    let socket = bound(address, v6_only)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into()).map(Listener::Tcp)
}

fn bound(address: SocketAddr, v6_only: bool) -> io::Result<Socket> {
    let socket = socket_to_listen(address, v6_only)?;
    // Without this option, a restart must wait until the last connections of the previous run have
    // left TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn receive(address: SocketAddr, v6_only: bool) -> io::Result<Listener> {
    let socket = bound_for_datagrams(address, v6_only)?;
    Listener::of_datagrams(socket)
}

/// Binds a socket for datagrams. It lacks `SO_REUSEADDR`, with which another program could take the
/// datagrams.
fn bound_for_datagrams(address: SocketAddr, v6_only: bool) -> io::Result<Socket> {
    let socket = datagrams::new_socket(address, v6_only)?;
    socket.set_recv_buffer_size(DATAGRAM_BUFFER_BYTES)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::super::options::KEEPALIVE;
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn accepted_sockets_inherit_nodelay_and_keepalive() {
        let Ok(Listener::Tcp(listener)) = listen(([127, 0, 0, 1], 0).into(), true) else {
            panic!("no listener")
        };
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, _client) = tokio::join!(listener.accept(), client);
        let (accepted, _) = accepted.unwrap();
        let options = SockRef::from(&accepted);
        assert!(options.tcp_nodelay().unwrap() && options.keepalive().unwrap());
        assert_eq!(options.tcp_keepalive_time().unwrap(), KEEPALIVE);
    }

    #[tokio::test]
    async fn the_error_for_a_busy_address_names_the_address() {
        let Listener::Tcp(taken) = bind(&"127.0.0.1:0".parse().unwrap(), Transport::Streams)
            .await
            .unwrap()
            .remove(0)
        else {
            panic!("no TCP listener")
        };
        let address = ListenAddress::Ip(taken.local_addr().unwrap());
        let error = bind(&address, Transport::Streams).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(
            error.to_string().starts_with(&format!("cannot listen on {address}: ")),
            "{error}"
        );
    }
}
