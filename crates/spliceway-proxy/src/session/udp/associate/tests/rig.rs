//! A client, its association, and targets that the test plays.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::access::policy::Denied;
use crate::access::rates::SessionRates;
use crate::kit::outcome::Outcome;
use crate::net::datagrams::bind;
use crate::reach::dial::DialError;
use crate::session::destinations::Destinations;
use crate::session::udp::associate::association::{AssociateSettings, Association};
use spliceway_protocol::address::Target;
use spliceway_protocol::socks5::datagram::{self, HEADER_MAX_BYTES, Header};

/// The address in the request of a client that does not know its own address.
pub(super) const ANYWHERE: Target = Target::Ip(spliceway_protocol::socks5::UNSPECIFIED);

/// Far longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for `expected`, but not longer than [`PATIENCE`].
pub(super) async fn soon<T>(expected: impl Future<Output = T>) -> T {
    timeout(PATIENCE, expected).await.expect("it never came")
}

/// Lookups that the test answers one by one, and a policy that the test sets.
#[derive(Debug, Clone)]
pub(super) struct Book {
    lookups: mpsc::UnboundedSender<Lookup>,
    refuses: Arc<AtomicBool>,
}

/// A name to look up, and the channel for the answer.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) target: String,
    pub(super) answer: oneshot::Sender<Result<Vec<SocketAddr>, DialError>>,
}

impl Book {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Lookup>) {
        let (lookups, asked) = mpsc::unbounded_channel();
        let refuses = Arc::default();
        (Self { lookups, refuses }, asked)
    }

    /// Sets whether every address is refused from now on.
    pub(super) fn refuse(&self, all: bool) {
        self.refuses.store(all, Ordering::SeqCst);
    }
}

impl Destinations for Book {
    fn check(&self, _: Option<&str>, _: SocketAddr) -> Result<(), Denied> {
        if self.refuses.load(Ordering::SeqCst) {
            Err(Denied::Private)
        } else {
            Ok(())
        }
    }

    fn socket(&self, to: IpAddr) -> Result<UdpSocket, Dropped> {
        match to {
            IpAddr::V4(_) => bind((Ipv4Addr::UNSPECIFIED, 0).into()),
            IpAddr::V6(_) => bind((Ipv6Addr::UNSPECIFIED, 0).into()),
        }
        .map_err(|_| Dropped::Socket)
    }

    async fn look_up(&self, target: &Target) -> Result<Vec<SocketAddr>, DialError> {
        let (answer, answered) = oneshot::channel();
        let target = target.to_string();
        self.lookups
            .send(Lookup { target, answer })
            .expect("the test looks after them");
        answered.await.expect("the test answers")
    }
}

/// A client with its association.
pub(super) struct Rig {
    /// The client's end of the connection that holds the association.
    pub(super) connection: TcpStream,
    pub(super) socket: UdpSocket,
    /// The address to which the client must send its datagrams.
    pub(super) address: SocketAddr,
    pub(super) stats: DatagramStats,
    pub(super) running: JoinHandle<Outcome>,
}

impl Rig {
    /// Starts a rig for a client at `host`, with default settings.
    pub(super) async fn new(host: &str) -> Self {
        Self::with(host, &AssociateSettings::patient(), Book::new().0, |_| ANYWHERE).await
    }

    /// Starts a rig for a client at `host`. `asked` gets the address of the client's socket and
    /// returns the address for the client's request.
    pub(super) async fn with(
        host: &str,
        settings: &AssociateSettings,
        book: Book,
        asked: impl FnOnce(SocketAddr) -> Target,
    ) -> Self {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let (connection, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut accepted, peer) = accepted.unwrap();
        let socket = UdpSocket::bind((host, 0)).await.unwrap();
        let asked = asked(socket.local_addr().unwrap());
        let association = Association::bind(
            accepted.local_addr().unwrap(),
            peer,
            &asked,
            settings,
            book,
            SessionRates::default(),
        )
        .unwrap();
        Self {
            connection: connection.unwrap(),
            socket,
            address: association.address(),
            stats: association.stats(),
            running: tokio::spawn(async move { association.run(&mut accepted).await }),
        }
    }

    /// Sends `data` to an address.
    pub(super) async fn send(&self, target: SocketAddr, data: &[u8]) {
        self.send_raw(&[Header::of(target).as_bytes(), data].concat()).await;
    }

    /// Sends `data` to a name.
    pub(super) async fn send_to_name(&self, name: &str, port: u16, data: &[u8]) {
        let length = u8::try_from(name.len()).unwrap();
        let header = [&[0, 0, 0, 3, length], name.as_bytes(), &port.to_be_bytes()].concat();
        self.send_raw(&[&header, data].concat()).await;
    }

    pub(super) async fn send_raw(&self, datagram: &[u8]) {
        let sent = self.socket.send_to(datagram, self.address).await.unwrap();
        assert_eq!(sent, datagram.len());
    }

    /// Receives the next datagram. Returns the source in its header, and its data.
    pub(super) async fn receive(&self) -> (SocketAddr, Vec<u8>) {
        let mut buffer = vec![0; usize::from(u16::MAX)];
        let (length, source) = soon(self.socket.recv_from(&mut buffer)).await.unwrap();
        assert_eq!(source, self.address, "the client hears from where it sends to");
        match datagram::parse(&buffer[..length]).unwrap() {
            (Target::Ip(source), data) => (source, data.to_vec()),
            named => panic!("a name as a source: {named:?}"),
        }
    }

    /// Checks that `data` arrives at the target and comes back. Returns the source that the target
    /// saw.
    pub(super) async fn echo(&self, target: &UdpSocket, data: &[u8]) -> SocketAddr {
        let address = target.local_addr().unwrap();
        self.send(address, data).await;
        let (received, source) = take(target).await;
        assert_eq!(received, data);
        target.send_to(data, source).await.unwrap();
        assert_eq!(self.receive().await, (address, data.to_vec()));
        source
    }

    /// Waits until at least `count` datagrams have been dropped for this reason. Only the counts
    /// show dropped datagrams.
    pub(super) async fn await_dropped(&self, reason: Dropped, count: u64) {
        let dropped = async {
            while self.dropped(reason) < count {
                tokio::task::yield_now().await;
            }
        };
        soon(dropped).await;
    }

    pub(super) fn dropped(&self, reason: Dropped) -> u64 {
        self.stats.snapshot().dropped(reason)
    }
}

/// Receives the next datagram at a target. Returns its data and its source.
pub(super) async fn take(target: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; usize::from(u16::MAX) + HEADER_MAX_BYTES];
    let (length, source) = soon(target.recv_from(&mut buffer)).await.unwrap();
    buffer.truncate(length);
    (buffer, source)
}

pub(super) async fn target(host: &str) -> UdpSocket {
    UdpSocket::bind((host, 0)).await.unwrap()
}

impl AssociateSettings {
    /// Returns settings without a limit that a slow test could reach.
    pub(super) fn patient() -> Self {
        Self {
            lookup: PATIENCE * 2,
            ..Self::default()
        }
    }
}
