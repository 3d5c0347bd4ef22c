//! Opens sockets to targets and sets their options before they connect.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::access::policy;
use crate::net::hops::Hops;
use crate::net::outgoing::SocketSettings;
use crate::net::transparent::{OwnDial, allow_foreign_addresses};

/// The call that failed on a socket, and its error.
#[derive(Debug)]
pub(crate) struct SocketError {
    pub(in crate::reach) call: Call,
    pub(in crate::reach) error: io::Error,
}

/// A connection to a target, and what recognizes it if it comes back.
pub(super) type ConnectedSocket = (TcpStream, Option<Box<OwnDial>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Open,
    Mark,
    Foreign,
    Interface,
    Source,
    Connect,
}

impl SocketSettings {
    /// Tries the options that need privileges, so that a missing privilege is reported once, at the
    /// start.
    ///
    /// # Errors
    /// Returns an error if a privilege is missing. A problem that may go away, such as a missing
    /// interface, is only logged.
    pub(super) fn probe(&self) -> io::Result<()> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        match self.steer(&socket) {
            Err(failed) if failed.error.kind() == io::ErrorKind::PermissionDenied => {
                Err(io::Error::new(failed.error.kind(), failed.to_string()))
            }
            Err(failed) => {
                let is_missing = Errno::from_io_error(&failed.error) == Some(Errno::NODEV);
                let failed = match &self.interface {
                    Some(name) if is_missing => format!("--bind-interface {name}: no such interface"),
                    _ => failed.to_string(),
                };
                tracing::warn!(%failed, "targets cannot be reached yet");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    #[cfg(test)]
    async fn connect(&self, address: SocketAddr, client: Option<IpAddr>) -> Result<ConnectedSocket, SocketError> {
        self.connect_after(Hops::default(), address, client).await
    }

    /// Connects to `address` for a client at `client`. With the first hop or a later one, the
    /// address is that of a listener of this program. Cancel safe: dropping the future closes the
    /// socket.
    pub(super) async fn connect_after(
        &self,
        hops: Hops,
        address: SocketAddr,
        client: Option<IpAddr>,
    ) -> Result<ConnectedSocket, SocketError> {
        let socket = self.new_socket(address.ip(), client)?;
        socket.set_tcp_nodelay(true).map_err(Call::Open.failed())?;
        if let Some(silence) = self.keepalive {
            let keepalive = TcpKeepalive::new().with_time(silence).with_interval(silence);
            socket.set_tcp_keepalive(&keepalive).map_err(Call::Open.failed())?;
        }
        let connected = if self.is_transparent || hops.exist() {
            connect_and_remember(socket, address, hops).await
        } else {
            let connecting = TcpSocket::from_std_stream(socket.into()).connect(address);
            connecting.await.map(|stream| (stream, None))
        };
        connected
            .and_then(|(stream, own)| Ok((not_itself(stream, address)?, own)))
            .map_err(Call::Connect.failed())
    }

    fn new_socket(&self, to: IpAddr, client: Option<IpAddr>) -> Result<Socket, SocketError> {
        // Checks of backends have no client.
        let client = client.filter(|_| self.keeps_client);
        let source = match client {
            Some(client) => Some(client).filter(|client| client.is_ipv4() == to.is_ipv4()),
            None => self.source(to),
        };
        if source.is_none() && (client.is_some() || self.has_source()) {
            return Err(Call::Source.failed()(Errno::AFNOSUPPORT.into()));
        }
        let domain = Domain::for_address(SocketAddr::new(to, 0));
        let opened = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP));
        let socket = opened.map_err(Call::Open.failed())?;
        self.steer(&socket)?;
        if let Some(source) = source {
            // The connection gets its port, so that all targets can share the ports of the source.
            // Before Linux 4.2, each connection has a port of its own.
            let _ = setsockopt(&socket, sockopt::IpBindAddressNoPort, &true);
            socket
                .bind(&SocketAddr::new(source, 0).into())
                .map_err(Call::Source.failed())?;
        }
        Ok(socket)
    }

    fn steer(&self, socket: &Socket) -> Result<(), SocketError> {
        if let Some(mark) = self.mark {
            socket.set_mark(mark).map_err(Call::Mark.failed())?;
        }
        if let Some(interface) = &self.interface {
            let bound = socket.bind_device(Some(interface.as_bytes()));
            bound.map_err(Call::Interface.failed())?;
        }
        if self.keeps_client {
            allow_foreign_addresses(socket).map_err(Call::Foreign.failed())?;
        }
        Ok(())
    }
}

/// Refuses a connection to itself. If nothing listens on a port of this machine, the kernel may
/// choose the same port as the source, and TCP then connects the socket to itself (simultaneous
/// open).
fn not_itself(stream: TcpStream, address: SocketAddr) -> io::Result<TcpStream> {
    let (local, reached) = (stream.local_addr()?, policy::reached(address.ip()));
    if (local.ip().to_canonical(), local.port()) != (reached.to_canonical(), address.port()) {
        return Ok(stream);
    }
    // Without a reset, the port would stay in use for a minute after the close, and the service
    // that belongs there could not start.
    stream.set_zero_linger()?;
    Err(Errno::CONNREFUSED.into())
}

/// Connects, and remembers the connection before anything can come back.
async fn connect_and_remember(socket: Socket, address: SocketAddr, hops: Hops) -> io::Result<ConnectedSocket> {
    let reached = SocketAddr::new(policy::reached(address.ip()), address.port());
    let own = OwnDial::begin(reached, hops, || {
        match socket.connect(&address.into()) {
            Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => return Err(error),
            _ => {}
        }
        let source = socket.local_addr()?.as_socket();
        source.ok_or_else(|| Errno::AFNOSUPPORT.into())
    })?;
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok((stream, Some(Box::new(own)))),
    }
}

impl Call {
    fn failed(self) -> impl Fn(io::Error) -> SocketError {
        move |error| SocketError { call: self, error }
    }
}

impl SocketError {
    /// Returns the error that the kernel would eventually report for a connection that takes too
    /// long.
    pub(super) fn timed_out() -> Self {
        Call::Connect.failed()(Errno::TIMEDOUT.into())
    }
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, error } = self;
        let denied = Errno::from_io_error(error) == Some(Errno::PERM);
        match call {
            Call::Open => write!(f, "cannot set up a socket: {error}"),
            Call::Mark if denied => write!(f, "cannot set the mark without CAP_NET_ADMIN: {error}"),
            Call::Mark => write!(f, "cannot set the mark: {error}"),
            Call::Interface if denied => {
                write!(
                    f,
                    "cannot bind to the interface (before Linux 5.7 this needs CAP_NET_RAW): {error}"
                )
            }
            Call::Foreign => write!(f, "cannot keep the client's address (--transparent-source): {error}"),
            Call::Interface => write!(f, "cannot bind to the interface: {error}"),
            Call::Source => write!(f, "cannot use the source address: {error}"),
            Call::Connect => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
