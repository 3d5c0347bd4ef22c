//! BIND in SOCKS5 (RFC 1928 section 4) and SOCKS4: one connection from a target to the client,
//! through the proxy.
//!
//! ```text
//!   listen ─ first reply: address ─▶ accept ─ second reply: peer ─▶ relay
//! ```
//!
//! The host that the client named may connect from any port. Protocols that use BIND often connect
//! from a port other than the announced one. For example, FTP data comes from port 20. If the
//! client named the unspecified address, any host may connect. In both cases, the policy for
//! targets must allow the peer. The proxy closes other connections immediately and keeps waiting.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::net::listener::socket_to_listen;
use crate::reach::dial::DialError;
use crate::session::destinations::{Destinations, advertised, at_any_port};
use spliceway_protocol::address::Target;

/// The length of the backlog. The proxy accepts one connection, and may close a few others before
/// that.
const BACKLOG: i32 = 8;

/// The peers that the client expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expected {
    Anyone,
    /// A peer with one of these addresses, and their name, if the client gave a name.
    These(Vec<IpAddr>, Option<Box<str>>),
}

impl Expected {
    /// Returns the peers that `requested`, the address in a request for BIND, represents. A name
    /// represents all of its addresses that the policy allows.
    ///
    /// # Errors
    /// Returns the errors of a dial, so that a refusal names its rule.
    pub(super) async fn new(requested: &Target, destinations: &impl Destinations) -> Result<Self, DialError> {
        let name = match requested {
            Target::Ip(address) if address.ip().to_canonical().is_unspecified() => return Ok(Self::Anyone),
            Target::Name(name, _) => Some(name.clone()),
            _ => None,
        };
        let addresses = destinations.look_up(requested).await?;
        let ips = addresses.iter().map(|address| address.ip().to_canonical());
        Ok(Self::These(ips.collect(), name))
    }

    /// Returns whether `peer` is expected and allowed.
    fn admits(&self, peer: SocketAddr, destinations: &impl Destinations) -> bool {
        match self {
            Self::Anyone => destinations.check(None, peer).is_ok(),
            Self::These(ips, name) => ips.contains(&peer.ip()) && destinations.check(name.as_deref(), peer).is_ok(),
        }
    }
}

/// A listener for one connection.
#[derive(Debug)]
pub(super) struct Binding {
    listener: TcpListener,
    advertised: SocketAddr,
}

/// The reason why no connection was accepted.
#[derive(Debug)]
pub(super) enum AcceptError {
    /// No permitted peer connected in time.
    TimedOut,
    /// The listener cannot accept.
    Listener(io::Error),
}

impl Binding {
    /// Listens on `reached`, on a port that the kernel chooses. `reached` is the address at which
    /// the client reached the proxy.
    ///
    /// The reply to the client contains `advertise` instead of `reached` if both have the same
    /// family.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be opened or bound, or cannot listen.
    pub(super) fn listen(reached: SocketAddr, advertise: Option<IpAddr>) -> io::Result<Self> {
        let address = at_any_port(reached);
        let socket = socket_to_listen(address, true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from_std(socket.into())?;
        let advertised = advertised(listener.local_addr()?, advertise);
        Ok(Self { listener, advertised })
    }

    /// Returns the address for the first reply.
    pub(super) fn address(&self) -> SocketAddr {
        self.advertised
    }

    /// Waits at most `limit` for a permitted peer, and then closes the listener.
    ///
    /// # Errors
    /// Returns the reason why no connection was accepted.
    ///
    /// # Cancel safety
    /// Dropping the future closes the listener. A connection is either returned or closed.
    pub(super) async fn accept(
        self,
        expected: &Expected,
        destinations: &impl Destinations,
        limit: Duration,
    ) -> Result<(TcpStream, SocketAddr), AcceptError> {
        match timeout(limit, self.accept_expected(expected, destinations)).await {
            Ok(accepted) => accepted.map_err(AcceptError::Listener),
            Err(_) => Err(AcceptError::TimedOut),
        }
    }

    async fn accept_expected(
        &self,
        expected: &Expected,
        destinations: &impl Destinations,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) if expected.admits(peer, destinations) => return Ok((stream, peer)),
                Ok((_, peer)) => tracing::debug!(%peer, "closed a connection from a peer that may not connect"),
                // The peer closed the connection before the proxy accepted it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::sync::Arc;

    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UdpSocket;

    use super::*;
    use crate::access::datagram_counts::Dropped;
    use crate::access::policy::Denied;
    use crate::net::listener::closes;
    use crate::reach::dial::LookupError;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A policy that refuses these addresses.
    #[derive(Debug, Clone, Default)]
    struct Book {
        refused: Arc<Mutex<Vec<IpAddr>>>,
    }

    impl Destinations for Book {
        fn check(&self, _: Option<&str>, address: SocketAddr) -> Result<(), Denied> {
            if self.refused.lock().contains(&address.ip()) {
                Err(Denied::Private)
            } else {
                Ok(())
            }
        }

        fn socket(&self, _: IpAddr) -> Result<UdpSocket, Dropped> {
            Err(Dropped::Socket)
        }

        async fn look_up(&self, _: &Target) -> Result<Vec<SocketAddr>, DialError> {
            Err(DialError::Unresolved(LookupError::NoAddress))
        }
    }

    fn ip(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    fn bound() -> Binding {
        let address = SocketAddr::new(ip(1), 0);
        let binding = Binding::listen(address, None).unwrap();
        assert_eq!(binding.address().ip(), address.ip());
        binding
    }

    /// Connects to `address` from 127.0.0.`last`.
    async fn connect_from(last: u8, address: SocketAddr) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(ip(last), 0)).unwrap();
        socket.connect(address).await.unwrap()
    }

    #[tokio::test]
    async fn an_expected_peer_is_connected_and_another_one_is_closed() {
        let binding = bound();
        let (address, book) = (binding.address(), Book::default());
        let expected = Expected::These(vec![ip(5)], None);
        let mut stranger = connect_from(6, address).await;
        let mut friend = connect_from(5, address).await;
        let (mut accepted, peer) = binding.accept(&expected, &book, LIMIT).await.unwrap();
        assert_eq!(peer, friend.local_addr().unwrap());
        assert_eq!(stranger.read(&mut [0]).await.unwrap_or(0), 0, "closed");
        friend.write_all(b"in").await.unwrap();
        accepted.read_exact(&mut [0; 2]).await.unwrap();
        assert!(SockRef::from(&accepted).tcp_nodelay().unwrap() && SockRef::from(&accepted).keepalive().unwrap());
        closes(address).await;
    }

    #[tokio::test]
    async fn the_unspecified_address_admits_any_peer_that_the_policy_allows() {
        let binding = bound();
        let (address, book) = (binding.address(), Book::default());
        book.refused.lock().push(ip(6));
        let _refused = connect_from(6, address).await;
        let friend = connect_from(7, address).await;
        let (_, peer) = binding.accept(&Expected::Anyone, &book, LIMIT).await.unwrap();
        assert_eq!(peer, friend.local_addr().unwrap());
    }

    #[tokio::test]
    async fn the_wait_ends_with_the_limit() {
        let binding = bound();
        let address = binding.address();
        tokio::time::pause();
        let ended = binding.accept(&Expected::Anyone, &Book::default(), LIMIT).await;
        assert!(matches!(ended, Err(AcceptError::TimedOut)), "{ended:?}");
        closes(address).await;
    }
}
