//! Clients and a server, with and without TLS. Both are on the load's core.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use spliceway_net::Node;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio_rustls::rustls::HandshakeKind;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::kind;

/// The key of the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    Ecdsa,
    Rsa,
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Each connection carries one byte in each direction. With `resumes`, clients resume the
    /// session of an earlier connection.
    Connections {
        resumes: bool,
    },
    /// One connection carries bytes as fast as the relay can.
    Bulk {
        to_server: bool,
    },
    RoundTrips,
    Idle,
}

impl Work {
    pub(super) fn unit(self) -> (&'static str, usize) {
        match self {
            Self::Connections { .. } => ("µs of CPU each", 0),
            Self::Bulk { .. } => ("CPU s/GiB", 2),
            Self::RoundTrips => ("µs of CPU each", 1),
            Self::Idle => ("KiB each", 1),
        }
    }

    /// Converts seconds for one connection, byte or round trip to the unit.
    pub(super) fn units_per_second_of_cpu(self) -> f64 {
        match self {
            Self::Bulk { .. } => f64::from(1 << 30),
            _ => 1e6,
        }
    }
}

/// The name in certificates.
pub(super) const NAME: &str = "bench.test";
/// The connections of [`Work::Idle`].
pub(super) const IDLE: usize = 1_000;
/// The clients that connect again and again, and those that exchange messages.
const CONNECTING: usize = 8;
const EXCHANGING: usize = 64;
const MESSAGE_BYTES: usize = 64;
const BUFFER_BYTES: usize = 256 << 10;

/// The first byte of a client tells the server what to do.
const ECHO: u8 = b'e';
const SEND: u8 = b's';
const DISCARD: u8 = b'd';

/// A running server.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    _thread: Thread,
}

impl Server {
    pub(super) fn start(node: &Node, at: IpAddr, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        let listener = node.inside(|| kind::listener((at, 0).into(), false))?;
        let address = listener.local_addr()?;
        let thread = Thread::start(node, Arc::default(), async move {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (client, _) = listener.accept().await?;
                client.set_nodelay(true)?;
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => answer(tls.accept(client).await?).await,
                        None => answer(client).await,
                    }
                });
            }
        })?;
        Ok(Self {
            address,
            _thread: thread,
        })
    }
}

async fn answer(mut client: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    match client.read_u8().await? {
        ECHO => {
            let mut message = [0; 1 << 10];
            loop {
                let received = client.read(&mut message).await?;
                if received == 0 {
                    return client.shutdown().await;
                }
                client.write_all(&message[..received]).await?;
                client.flush().await?;
            }
        }
        SEND => {
            let bytes = vec![7; BUFFER_BYTES];
            loop {
                client.write_all(&bytes).await?;
            }
        }
        _ => {
            let mut bytes = vec![0; BUFFER_BYTES];
            while client.read(&mut bytes).await? > 0 {}
            client.shutdown().await
        }
    }
}

/// A thread with a runtime of its own. Dropping it ends the work.
struct Thread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Thread {
    fn start(
        node: &Node,
        state: Arc<State>,
        work: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = node.inside(|| {
            thread::Builder::new().spawn(move || {
                let ended = runtime.block_on(async {
                    tokio::select! {
                        _ = stopped => Ok(()),
                        ended = work => ended,
                    }
                });
                *state.failed.lock().expect("no holder panics") = ended.err();
            })
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed.
            let _ = thread.join();
        }
    }
}

/// Running clients.
pub(super) struct Client {
    state: Arc<State>,
    _thread: Thread,
}

#[derive(Default)]
struct State {
    /// Connections, bytes or round trips.
    done: AtomicU64,
    failed: Mutex<Option<io::Error>>,
}

/// How clients connect.
#[derive(Clone)]
struct Target {
    relay: SocketAddr,
    tls: Option<TlsConnector>,
}

impl Client {
    pub(super) fn start(node: &Node, work: Work, relay: SocketAddr, tls: Option<TlsConnector>) -> io::Result<Self> {
        let state = Arc::<State>::default();
        let clients = all(work, Target { relay, tls }, Arc::clone(&state));
        let thread = Thread::start(node, Arc::clone(&state), clients)?;
        Ok(Self { state, _thread: thread })
    }

    /// Returns the connections, bytes or round trips so far.
    pub(super) fn done(&self) -> io::Result<u64> {
        if let Some(error) = self.state.failed.lock().expect("no holder panics").take() {
            return Err(error);
        }
        Ok(self.state.done.load(Ordering::Relaxed))
    }

    /// Waits until all idle connections exist.
    #[expect(
        clippy::disallowed_methods,
        reason = "programs do not announce that they have freed memory"
    )]
    pub(super) fn wait_until_idle(&self) -> io::Result<()> {
        let patience = Instant::now() + Duration::from_secs(30);
        while self.done()? < IDLE as u64 {
            if Instant::now() > patience {
                return Err(io::Error::other("the clients did not connect within 30 s"));
            }
            // Sleeps because the clients need this core.
            thread::sleep(Duration::from_millis(10));
        }
        // Sleeps because a program may free memory some time after a handshake.
        thread::sleep(Duration::from_secs(1));
        Ok(())
    }
}

/// Runs all clients, without end.
async fn all(work: Work, target: Target, state: Arc<State>) -> io::Result<()> {
    let clients = match work {
        Work::Connections { .. } => CONNECTING,
        Work::Bulk { .. } => 1,
        Work::RoundTrips => EXCHANGING,
        Work::Idle => IDLE,
    };
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (target, state) = (target.clone(), Arc::clone(&state));
        match work {
            Work::Connections { resumes } => drop(tasks.spawn(connections(target, resumes, state))),
            Work::Bulk { to_server } => drop(tasks.spawn(bulk(target, to_server, state))),
            Work::RoundTrips => drop(tasks.spawn(round_trips(target, state))),
            Work::Idle => drop(tasks.spawn(idle(target, state))),
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    Ok(())
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects once, and states what the server shall do. Returns whether the TLS session is resumed,
/// too.
async fn connect(target: &Target, command: u8) -> io::Result<(Box<dyn Stream>, bool)> {
    let stream = TcpStream::connect(target.relay).await?;
    stream.set_nodelay(true)?;
    let mut resumed = false;
    let mut stream: Box<dyn Stream> = match &target.tls {
        Some(tls) => {
            let name = ServerName::try_from(NAME).expect("it is a name");
            let stream = tls.connect(name, stream).await?;
            resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
            Box::new(stream)
        }
        None => Box::new(stream),
    };
    stream.write_all(&[command]).await?;
    Ok((stream, resumed))
}

async fn connections(target: Target, resumes: bool, state: Arc<State>) -> io::Result<()> {
    let target = match (&target.tls, resumes) {
        // Each client has sessions of its own.
        (Some(tls), true) => Target {
            tls: Some(super::terminators::resuming(tls)),
            ..target
        },
        _ => target,
    };
    let mut is_first = true;
    loop {
        let (mut stream, resumed) = connect(&target, ECHO).await?;
        stream.write_all(&[ECHO]).await?;
        stream.read_u8().await?;
        if target.tls.is_some() && resumed != (resumes && !is_first) {
            return Err(io::Error::other("it does not resume sessions as it should"));
        }
        is_first = false;
        stream.shutdown().await?;
        match stream.read_to_end(&mut Vec::new()).await {
            // Some programs end without an announcement.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
        state.done.fetch_add(1, Ordering::Relaxed);
    }
}

async fn bulk(target: Target, to_server: bool, state: Arc<State>) -> io::Result<()> {
    let (mut stream, _) = connect(&target, if to_server { DISCARD } else { SEND }).await?;
    let mut bytes = vec![7; BUFFER_BYTES];
    loop {
        let count = if to_server {
            stream.write_all(&bytes).await?;
            bytes.len()
        } else {
            stream.read(&mut bytes).await?
        };
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.done.fetch_add(count as u64, Ordering::Relaxed);
    }
}

async fn round_trips(target: Target, state: Arc<State>) -> io::Result<()> {
    let (mut stream, _) = connect(&target, ECHO).await?;
    let mut message = [7; MESSAGE_BYTES];
    loop {
        stream.write_all(&message).await?;
        stream.flush().await?;
        stream.read_exact(&mut message).await?;
        state.done.fetch_add(1, Ordering::Relaxed);
    }
}

async fn idle(target: Target, state: Arc<State>) -> io::Result<()> {
    let (mut stream, _) = connect(&target, ECHO).await?;
    stream.write_all(&[ECHO]).await?;
    stream.read_u8().await?;
    state.done.fetch_add(1, Ordering::Relaxed);
    stream.read_u8().await.map(drop)
}
