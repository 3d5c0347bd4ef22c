//! Listens for clients and accepts them. No accept(2) error ends a listener.

mod abstract_socket;
mod bind;
mod inherited;
mod socket_file;

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket, UnixListener};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use crate::access::admission::{Admission, Permit};
use crate::kit::errno;
use crate::log::LogThrottle;
use crate::metrics::Metrics;
use crate::net::stream::Stream;
use spliceway_protocol::address::canonical;

pub(crate) use bind::{KEEPALIVE, adopted, bind, does_for, prepare, socket_to_listen};
pub(crate) use inherited::adopt as adopt_inherited;
pub(crate) use socket_file::{ModeChange, OTHERS_MAY_CONNECT, Ownership, SocketFile};

/// The number of connections that may wait to be accepted. The kernel uses the smaller of this
/// number and `net.core.somaxconn`, which is 4096 by default.
const BACKLOG: i32 = 4096;
/// The first and the longest wait after accept(2) failed because a resource was missing.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Once this many calls fail in a row, an error that seems to concern one client is treated as an
/// error of the listener. A sandbox that forbids accept(2) returns EPERM, as a firewall does. But
/// the sandbox returns it immediately and for every call.
const CLIENTS_IN_A_ROW_MAX: u32 = 16;
/// The number of clients to serve before other tasks run. `serve` may call connect(2). A short
/// session uses 70 µs of CPU time in total, so 16 of them delay other tasks by about 1 ms.
const CLIENTS_PER_POLL: u32 = 16;

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
}

impl Listener {
    /// Returns the address that clients connect to, or `None` for a Unix socket.
    #[cfg(test)]
    fn local_addr(&self) -> Option<SocketAddr> {
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

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        Poll::Ready(match self {
            // `udp_forward` receives the datagrams.
            Self::Udp(_) => return Poll::Pending,
            Self::Tcp(listener) => ready!(listener.poll_accept(cx)).map(|(stream, peer)| Accepted {
                stream: stream.into(),
                peer: Some(canonical(peer)),
            }),
            Self::Unix(_, listener) => loop {
                break match ready!(listener.poll_accept(cx)) {
                    // A client that may not connect sees the end of its connection.
                    Ok((stream, _)) if !abstract_socket::admits(listener, &stream) => continue,
                    accepted => accepted.map(|(stream, _)| Accepted {
                        stream: stream.into(),
                        peer: None,
                    }),
                };
            },
        })
    }

    /// Waits for the next client and a place for it. Cancel safe.
    ///
    /// A client leaves the backlog only if there is a place for it. A listener that waits for a
    /// client holds no place.
    async fn next(&self, admission: &Arc<Admission>) -> (io::Result<Accepted>, Permit) {
        loop {
            let mut place = Some(admission.admit().await);
            let look = poll_fn(|cx| {
                if place.is_none() {
                    // An earlier poll found no client and gave the place back.
                    return Poll::Ready(None);
                }
                let looked = self.poll_accept(cx).map(Some);
                if looked.is_pending() {
                    place = None;
                }
                looked
            });
            if let (Some(accepted), Some(place)) = (look.await, place) {
                return (accepted, place);
            }
        }
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
            Stream::Tcp(_) => false,
            Stream::Unix(stream) => !stream.peer_cred().is_ok_and(|peer| socket_file::is_owner(peer.uid())),
        }
    }

    /// Returns whether the client has connected to a path that is private now.
    pub(crate) fn is_on_private_path(&self) -> bool {
        match &self.stream {
            Stream::Tcp(_) => false,
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
    if let Stream::Tcp(stream) = stream {
        // If this call fails, the connection is closed normally.
        let _ = stream.set_zero_linger();
    }
}

/// Passes every client to `serve` until `stop` is ready. At the limit of `admission`, clients stay
/// in the backlog.
///
/// This function never ends before `stop` is ready, and never spins. It counts and skips clients
/// that have already disconnected, unless there are too many in a row. After a shortage of
/// descriptors or memory, the function waits. The wait is 50 ms at first and grows to 1 s.
pub(crate) async fn accept(
    listener: &Listener,
    admission: &Arc<Admission>,
    metrics: &Metrics,
    stop: impl Future<Output = ()>,
    mut serve: impl FnMut(Accepted, Permit),
) {
    let mut stop = std::pin::pin!(stop);
    let mut shortage = Shortage::default();
    let mut served = 0;
    loop {
        if served == CLIENTS_PER_POLL {
            served = 0;
            yield_now().await;
        }
        let (accepted, permit) = tokio::select! {
            biased;
            () = &mut stop => return,
            next = listener.next(admission) => next,
        };
        let error = match accepted {
            Ok(client) => {
                shortage.over();
                serve(client, permit);
                served += 1;
                continue;
            }
            Err(error) => error,
        };
        drop(permit);
        metrics.accept_failed(errno::name(&error));
        if is_of_the_client(&error) && shortage.may_be_of_one_client() {
            continue;
        }
        let (wait, worth_a_line) = shortage.next(Instant::now());
        if worth_a_line {
            let listener = listener.describe();
            tracing::warn!(listener, %error, "cannot accept: running sessions continue, new clients wait");
        }
        tokio::select! {
            biased;
            () = &mut stop => return,
            () = sleep(wait) => {}
        }
    }
}

/// Returns whether an error concerns one connection and not the listener. These are the errors in
/// the section "Error handling" of accept(2), and the errors that a firewall causes.
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
    throttle: LogThrottle,
    clients: u32,
}

impl Shortage {
    /// Returns how long to wait, and whether to log the failure.
    fn next(&mut self, now: Instant) -> (Duration, bool) {
        self.last_wait = (self.last_wait * 2).clamp(BACK_OFF_MIN, BACK_OFF_MAX);
        (self.last_wait, self.throttle.admits(now))
    }

    /// Returns whether a failure that seems to concern one client may indeed concern only this
    /// client.
    fn may_be_of_one_client(&mut self) -> bool {
        self.clients = (self.clients + 1).min(CLIENTS_IN_A_ROW_MAX);
        self.clients < CLIENTS_IN_A_ROW_MAX
    }

    /// Records that a client was accepted. The time of the last log line is kept, because every
    /// second accept(2) may fail at the limit.
    fn over(&mut self) {
        self.last_wait = Duration::ZERO;
        self.clients = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spliceway_protocol::address::ListenAddress;
    use tokio::net::{TcpStream, UnixStream};
    use tokio::sync::{mpsc, oneshot};

    #[test]
    fn accept_backs_off_longer_and_logs_once_in_ten_seconds() {
        let (start, mut shortage) = (Instant::now(), Shortage::default());
        let waits: Vec<_> = (0..7).map(|_| shortage.next(start)).collect();
        let millis: Vec<_> = waits.iter().map(|(wait, _)| wait.as_millis()).collect();
        assert_eq!(millis, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(waits.iter().filter(|(_, line)| *line).count(), 1);
        shortage.over();
        assert_eq!(shortage.next(start + LogThrottle::EVERY / 2), (BACK_OFF_MIN, false));
        assert_eq!(shortage.next(start + LogThrottle::EVERY), (BACK_OFF_MIN * 2, true));
    }

    async fn one(address: &str) -> Listener {
        let address = address.parse().unwrap();
        bind(&address, Transport::Streams).await.unwrap().remove(0)
    }

    /// Runs `accept` until the returned sender is used. The returned channel receives the accepted
    /// clients.
    fn run(
        listener: Listener,
        admission: &Arc<Admission>,
    ) -> (mpsc::UnboundedReceiver<(Accepted, Permit)>, oneshot::Sender<()>) {
        let ((clients, accepted), (stop, stopped)) = (mpsc::unbounded_channel(), oneshot::channel());
        let admission = Arc::clone(admission);
        tokio::spawn(async move {
            let metrics = Metrics::new(Arc::clone(&admission), Arc::default());
            let stop = async { drop(stopped.await) };
            let serve = |client, permit| clients.send((client, permit)).unwrap();
            accept(&listener, &admission, &metrics, stop, serve).await;
        });
        (accepted, stop)
    }

    #[tokio::test]
    async fn at_the_limit_no_client_is_accepted_until_a_session_ends() {
        let (listener, admission) = (one("127.0.0.1:0").await, Admission::new("sessions", 2, None));
        let address = listener.local_addr().unwrap();
        let (mut accepted, _stop) = run(listener, &admission);
        let mut clients = Vec::new();
        for _ in 0..3 {
            // The kernel completes the third connection before the program accepts it.
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let (first, _second) = (accepted.recv().await.unwrap(), accepted.recv().await.unwrap());
        while admission.waits() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(accepted.try_recv().is_err());
        assert_eq!(first.0.peer, Some(clients[0].local_addr().unwrap()));
        drop(first);
        let third = accepted.recv().await.unwrap().0;
        assert_eq!(third.peer, Some(clients[2].local_addr().unwrap()));
        assert_eq!(third.local(), Some(address));
    }

    #[tokio::test]
    async fn at_the_limit_a_listener_stops_immediately() {
        let (listener, admission) = (one("127.0.0.1:0").await, Admission::new("sessions", 1, None));
        let address = listener.local_addr().unwrap();
        let _place = admission.admit().await;
        let (mut accepted, stop) = run(listener, &admission);
        let _waits = TcpStream::connect(address).await.unwrap();
        stop.send(()).unwrap();
        assert!(accepted.recv().await.is_none());
        assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
    }

    #[tokio::test]
    async fn idle_listeners_do_not_hold_places() {
        let admission = Admission::new("sessions", 1, None);
        let idle = run(one("127.0.0.1:0").await, &admission);
        let listener = one("127.0.0.1:0").await;
        let address = listener.local_addr().unwrap();
        let mut busy = run(listener, &admission);
        for _ in 0..3 {
            let _client = TcpStream::connect(address).await.unwrap();
            drop(busy.0.recv().await.unwrap());
        }
        drop(idle);
    }

    #[tokio::test]
    async fn a_client_that_is_refused_is_reset() {
        let (listener, admission) = (one("127.0.0.1:0").await, Admission::new("sessions", 1, None));
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        reset(listener.next(&admission).await.0.unwrap().stream);
        client.readable().await.unwrap();
        let error = client.try_read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn every_address_means_both_families_on_one_port() {
        let listener = bind(&ListenAddress::Every(0), Transport::Streams)
            .await
            .unwrap()
            .remove(0);
        let admission = Admission::new("sessions", 1, None);
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let accepted = listener.next(&admission).await.0.unwrap();
        assert_eq!(accepted.peer, Some(client.local_addr().unwrap()));
        assert_eq!(accepted.local(), Some(client.peer_addr().unwrap()));
    }

    #[tokio::test]
    async fn clients_of_a_unix_socket_have_no_address() {
        let folder = socket_file::tests::Folder::new();
        let listener = one(&format!("unix:{}", folder.path("a.sock").display())).await;
        assert_eq!(listener.describe(), format!("unix:{}", folder.path("a.sock").display()));
        assert_eq!(listener.local_addr(), None);
        let admission = Admission::new("sessions", 1, None);
        let _client = UnixStream::connect(folder.path("a.sock")).await.unwrap();
        let accepted = listener.next(&admission).await.0.unwrap();
        assert_eq!((accepted.peer, accepted.local()), (None, None));
    }
}
