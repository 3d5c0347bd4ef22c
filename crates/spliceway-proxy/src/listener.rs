//! Listens and accepts, whatever `accept(2)` says.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::time::{Instant, sleep};

use crate::address::ListenAddress;
use crate::errno;
use crate::metrics::Metrics;

/// Connections that may wait to be accepted; the kernel takes the lesser of this and `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;
/// Silence after which the kernel asks whether the peer is still there, and the time between questions. A peer that vanished is
/// noticed also where the idle timeout is off.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// The first wait after accept failed for want of something, and the longest.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Failures in a row that may each be one client's affair. What comes after them is the listener's: a sandbox that forbids
/// accept says EPERM as a firewall does, and says it at once, for ever.
const CLIENTS_IN_A_ROW_MAX: u32 = 16;
/// A shortage is logged once in this time.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Listeners for `address`: one, or one for each address of a name. `:port` is one socket for IPv6 and IPv4, where there is IPv6.
///
/// # Errors
/// The first address that cannot be had; the text names it.
pub(crate) async fn bind(address: &ListenAddress) -> io::Result<Vec<TcpListener>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
    let bound = match address {
        ListenAddress::Every(port) => match listen((Ipv6Addr::UNSPECIFIED, *port).into(), false) {
            Err(error) if no_such_family(&error) => listen((Ipv4Addr::UNSPECIFIED, *port).into(), false),
            listener => listener,
        }
        .map(|listener| vec![listener]),
        ListenAddress::Ip(address) => listen(*address, true).map(|listener| vec![listener]),
        ListenAddress::Name(name, port) => match lookup_host((&**name, *port)).await {
            Ok(addresses) => listen_on_all(addresses),
            Err(error) => Err(error),
        },
    };
    bound.map_err(named)
}

/// Addresses of a name that this machine does not have (`::1` where IPv6 is off) are left out, unless it has none of them.
fn listen_on_all(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<Vec<TcpListener>> {
    let (mut listeners, mut missing) = (Vec::new(), io::Error::other("the name has no address"));
    for address in addresses {
        match listen(address, true) {
            Ok(listener) => listeners.push(listener),
            Err(error) if no_such_family(&error) => missing = error,
            Err(error) => return Err(error),
        }
    }
    if listeners.is_empty() {
        Err(missing)
    } else {
        Ok(listeners)
    }
}

fn no_such_family(error: &io::Error) -> bool {
    matches!(errno::name(error), "EAFNOSUPPORT" | "EADDRNOTAVAIL")
}

fn listen(address: SocketAddr, v6_only: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    // Else a restart must wait until the last connections of the run before it have left TIME_WAIT.
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit both options: no call for each of them.
    prepare(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// What every relayed socket has: no waiting for more to send (the relay sends what there is), and keepalive.
pub(crate) fn prepare<'socket>(socket: impl Into<SockRef<'socket>>) -> io::Result<()> {
    let socket = socket.into();
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))
}

/// Hands every client to `serve` until `stop`, then closes the listener.
///
/// Never ends before that and never spins: a client that went away again is counted and forgotten, unless every one of them is; want of
/// descriptors or memory is waited for, 50 ms at first and 1 s at most.
pub(crate) async fn accept(
    listener: TcpListener,
    metrics: &Metrics,
    stop: impl Future<Output = ()>,
    mut serve: impl FnMut(TcpStream, SocketAddr),
) {
    let mut stop = std::pin::pin!(stop);
    let mut shortage = Shortage::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            accepted = listener.accept() => accepted,
        };
        let error = match accepted {
            Ok((stream, client)) => {
                shortage.over();
                serve(stream, canonical(client));
                continue;
            }
            Err(error) => error,
        };
        metrics.accept_failed(errno::name(&error));
        if is_of_the_client(&error) && shortage.may_be_of_one_client() {
            continue;
        }
        let (wait, worth_a_line) = shortage.next(Instant::now());
        if worth_a_line {
            let listener = listener
                .local_addr()
                .map_or_else(|_| "?".to_owned(), |address| address.to_string());
            tracing::warn!(listener, %error, "cannot accept; running sessions go on, new clients wait");
        }
        tokio::select! {
            biased;
            () = &mut stop => return,
            () = sleep(wait) => {}
        }
    }
}

/// An IPv4 client of a socket for both families is shown as the IPv4 address it has.
fn canonical(client: SocketAddr) -> SocketAddr {
    SocketAddr::new(client.ip().to_canonical(), client.port())
}

/// Errors of one connection, not of the listener: accept(2), "Error handling", and what a firewall gives.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        errno::name(error),
        "ECONNABORTED"
            | "EINTR"
            | "EPROTO"
            | "EPERM"
            | "ENETDOWN"
            | "ENOPROTOOPT"
            | "EHOSTDOWN"
            | "ENONET"
            | "EHOSTUNREACH"
            | "EOPNOTSUPP"
            | "ENETUNREACH"
    )
}

/// Consecutive failures of one listener.
#[derive(Debug, Default)]
struct Shortage {
    last_wait: Duration,
    logged: Option<Instant>,
    clients: u32,
}

impl Shortage {
    /// How long to wait, and whether to say so.
    fn next(&mut self, now: Instant) -> (Duration, bool) {
        self.last_wait = (self.last_wait * 2).clamp(BACK_OFF_MIN, BACK_OFF_MAX);
        let worth_a_line = self.logged.is_none_or(|logged| now - logged >= LOG_EVERY);
        if worth_a_line {
            self.logged = Some(now);
        }
        (self.last_wait, worth_a_line)
    }

    /// Whether a failure that looks like one client's may be just that.
    fn may_be_of_one_client(&mut self) -> bool {
        self.clients = (self.clients + 1).min(CLIENTS_IN_A_ROW_MAX);
        self.clients < CLIENTS_IN_A_ROW_MAX
    }

    /// A client came through. (When the last line was written stays: at the limit every other accept may fail.)
    fn over(&mut self) {
        self.last_wait = Duration::ZERO;
        self.clients = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_waited_for_longer_each_time_and_logged_once_in_ten_seconds() {
        let (start, mut shortage) = (Instant::now(), Shortage::default());
        let waits: Vec<_> = (0..7).map(|_| shortage.next(start)).collect();
        let millis: Vec<_> = waits.iter().map(|(wait, _)| wait.as_millis()).collect();
        assert_eq!(millis, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(waits.iter().filter(|(_, line)| *line).count(), 1);
        shortage.over();
        assert_eq!(shortage.next(start + LOG_EVERY / 2), (BACK_OFF_MIN, false));
        assert_eq!(shortage.next(start + LOG_EVERY), (BACK_OFF_MIN * 2, true));
    }

    #[tokio::test]
    async fn accepted_sockets_inherit_nodelay_and_keepalive() {
        let listener = bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap().remove(0);
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, _client) = tokio::join!(listener.accept(), client);
        let (accepted, _) = accepted.unwrap();
        let options = SockRef::from(&accepted);
        assert!(options.tcp_nodelay().unwrap() && options.keepalive().unwrap());
        assert_eq!(options.tcp_keepalive_time().unwrap(), KEEPALIVE);
    }

    #[tokio::test]
    async fn every_address_means_both_families_on_one_port() {
        let listener = bind(&ListenAddress::Every(0)).await.unwrap().remove(0);
        let port = listener.local_addr().unwrap().port();
        let (accepted, client) = tokio::join!(listener.accept(), TcpStream::connect(("127.0.0.1", port)));
        assert_eq!(canonical(accepted.unwrap().1), client.unwrap().local_addr().unwrap());
    }
}
