//! A socket that clients reach, and its clients.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::{Protocol, SockRef, Socket};
use tokio::net::{TcpListener, UdpSocket, UnixListener};

use super::abstract_socket;
use super::socket_file::{self, SocketFile};
use crate::net::datagrams::{gather, report_reached};
use crate::net::stream::Stream;
use spliceway_protocol::address::canonical;

/// What clients of a listener send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Transport {
    /// Streams over connections.
    Streams,
    /// UDP datagrams.
    Datagrams,
}

/// A socket that clients reach.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// A socket for the datagrams of all clients. It has no connections.
    Udp(Arc<UdpSocket>),
    /// A Unix socket, and its file if this program must remove it. The file is dropped first.
    Unix(Option<SocketFile>, UnixListener),
}

/// A client that has connected.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    /// The client's address. An IPv4-mapped IPv6 address is converted to IPv4. `None` for a Unix
    /// socket.
    pub(crate) peer: Option<SocketAddr>,
    /// Whether [`Listener::is_plain_tcp`] was asked, and said so.
    pub(crate) is_plain_tcp: bool,
}

impl Listener {
    /// Returns the listener of a bound socket for datagrams.
    pub(super) fn of_datagrams(socket: Socket) -> io::Result<Self> {
        let socket = UdpSocket::from_std(socket.into())?;
        gather(&socket);
        if socket.local_addr()?.ip().is_unspecified() {
            report_reached(&socket)?;
        }
        Ok(Self::Udp(Arc::new(socket)))
    }

    /// Returns the address that clients connect to, or `None` for a Unix socket.
    #[cfg(test)]
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Udp(socket) => socket.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    pub(crate) fn transport(&self) -> Transport {
        match self {
            Self::Udp(_) => Transport::Datagrams,
            Self::Tcp(_) | Self::Unix(..) => Transport::Streams,
        }
    }

    /// Returns whether its clients have sockets of TCP. A service manager may pass a listener of
    /// another protocol, such as MPTCP.
    pub(crate) fn is_plain_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
            && SockRef::from(self)
                .protocol()
                .is_ok_and(|found| found == Some(Protocol::TCP))
    }

    /// Returns whether only local clients can reach the listener. It must be on loopback, or be a
    /// Unix socket that no other user may open.
    pub(crate) fn is_local(&self) -> bool {
        let is_loopback = |address: SocketAddr| canonical(address).ip().is_loopback();
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(is_loopback),
            Self::Udp(socket) => socket.local_addr().is_ok_and(is_loopback),
            Self::Unix(Some(file), _) => file.is_private(),
            Self::Unix(None, listener) => listener.local_addr().is_ok_and(|address| match address.as_pathname() {
                Some(path) => socket_file::is_private(path),
                None => abstract_socket::name(listener).is_some_and(|name| abstract_socket::is_private(&name)),
            }),
        }
    }

    /// Returns the address of the listener in human-readable form.
    pub(crate) fn describe(&self) -> String {
        let described = match self {
            Self::Tcp(listener) => listener.local_addr().map(|address| address.to_string()),
            Self::Udp(socket) => socket.local_addr().map(|address| format!("{address}/udp")),
            Self::Unix(_, listener) => listener.local_addr().map(|address| match address.as_pathname() {
                Some(path) => format!("unix:{}", path.display()),
                None => match abstract_socket::name(listener) {
                    Some(name) => format!("unix:{name}"),
                    None => format!("unix:{address:?}"),
                },
            }),
        };
        described.unwrap_or_else(|_| "?".to_owned())
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        Poll::Ready(match self {
            // `udp_forward` receives the datagrams.
            Self::Udp(_) => return Poll::Pending,
            Self::Tcp(listener) => ready!(listener.poll_accept(cx)).map(|(stream, peer)| Accepted {
                stream: stream.into(),
                peer: Some(canonical(peer)),
                is_plain_tcp: false,
            }),
            Self::Unix(_, listener) => loop {
                break match ready!(listener.poll_accept(cx)) {
                    // A client that may not connect sees the end of its connection.
                    Ok((stream, _)) if !abstract_socket::admits(listener, &stream) => continue,
                    accepted => accepted.map(|(stream, _)| Accepted {
                        stream: stream.into(),
                        peer: None,
                        is_plain_tcp: false,
                    }),
                };
            },
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
            Self::Unix(_, listener) => listener.as_fd(),
        }
    }
}

impl Accepted {
    /// Returns the address that the client connected to. An IPv4-mapped IPv6 address is converted
    /// to IPv4. `None` for a Unix socket.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.stream.local_addr().map(canonical)
    }

    /// Returns whether this is a client of a Unix socket with another user than this program and
    /// root. It may have connected when the mode of the socket was another one.
    pub(crate) fn is_of_other_user(&self) -> bool {
        match &self.stream {
            Stream::Tcp(_) | Stream::Tls(_) | Stream::Kernel(_) => false,
            Stream::Unix(stream) => !abstract_socket::is_of_owner(stream),
        }
    }

    /// Returns whether the client has connected to a path that is private now.
    pub(crate) fn is_on_private_path(&self) -> bool {
        match &self.stream {
            Stream::Tcp(_) | Stream::Tls(_) | Stream::Kernel(_) => false,
            Stream::Unix(stream) => stream
                .local_addr()
                .is_ok_and(|address| address.as_pathname().is_some_and(socket_file::is_private)),
        }
    }
}

/// Closes a connection immediately with a reset, for clients that are refused before the handshake.
/// A client cannot mistake the reset for a regular end. No connection stays in TIME_WAIT on this
/// machine.
pub(crate) fn reset(stream: Stream) {
    if let Stream::Tcp(stream) = stream.into_socket() {
        // If this call fails, the connection is closed normally.
        let _ = stream.set_zero_linger();
    }
}

/// Waits until nothing listens at `address`. A program that another test starts has a copy of each
/// listener until it executes.
#[cfg(test)]
pub(crate) async fn closes(address: impl std::net::ToSocketAddrs) {
    use std::time::{Duration, Instant};
    let address = address.to_socket_addrs().unwrap().next().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let attempt = || std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1));
    while !attempt().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        assert!(Instant::now() < until, "the listener is still open");
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::super::bind::bind;
    use super::*;
    use spliceway_protocol::address::ListenAddress;
    use tokio::net::{TcpStream, UnixStream};

    async fn one(address: &str) -> Listener {
        let address = address.parse().unwrap();
        bind(&address, Transport::Streams).await.unwrap().remove(0)
    }

    #[tokio::test]
    async fn every_address_means_both_families_on_one_port() {
        let listener = bind(&ListenAddress::Every(0), Transport::Streams)
            .await
            .unwrap()
            .remove(0);
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let accepted = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
        assert_eq!(accepted.peer, Some(client.local_addr().unwrap()));
        assert_eq!(accepted.local(), Some(client.peer_addr().unwrap()));
    }

    #[tokio::test]
    async fn clients_of_a_unix_socket_have_no_address() {
        let folder = socket_file::tests::Folder::new();
        let listener = one(&format!("unix:{}", folder.path("a.sock").display())).await;
        assert_eq!(listener.describe(), format!("unix:{}", folder.path("a.sock").display()));
        assert_eq!(listener.local_addr(), None);
        let _client = UnixStream::connect(folder.path("a.sock")).await.unwrap();
        let accepted = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
        assert_eq!((accepted.peer, accepted.local()), (None, None));
    }
}
