//! A relay of the library whose TLS is in the kernel.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::TcpStream as StdStream;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use rustls::ConnectionTrafficSecrets;
use socket2::SockRef;
use spliceway::{Engine, KernelTls, Relay, RelayError, RelayOptions, RelaySummary, TlsCipher, TlsSession, TrafficKey};
use tokio::net::TcpStream;

use crate::handshake::{Later, shake_hands};
use crate::identity::Identity;
use crate::plan::Plan;

/// What the sessions did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Bytes that were spliced from the TLS socket, and into it.
    pub spliced: [u64; 2],
    /// Bytes that were copied.
    pub copied: [u64; 2],
    /// Key updates of the peer, and of the relay.
    pub key_updates: [u64; 2],
    /// Tickets.
    pub tickets: u64,
    /// Ends of the peer that it announced.
    pub announced: u64,
    /// Relays that were suspended and resumed.
    pub moves: u64,
}

impl Counts {
    /// Adds the counts of another session.
    pub fn add(&mut self, other: &Self) {
        for of in 0..2 {
            self.spliced[of] += other.spliced[of];
            self.copied[of] += other.copied[of];
            self.key_updates[of] += other.key_updates[of];
        }
        self.tickets += other.tickets;
        self.announced += other.announced;
        self.moves += other.moves;
    }
}

/// Why a session ended early. Both connections are reset.
#[derive(Debug)]
pub enum Failure {
    /// The handshake.
    Handshake(String),
    /// The keys.
    Keys(io::Error),
    /// The relay.
    Relay(RelayError),
}

/// Relays one session.
///
/// # Errors
/// Returns an error after the connections were reset.
///
/// # Panics
/// If the process has no descriptors left.
pub fn relay(plan: &Plan, identity: &Identity, tls: StdStream, plain: StdStream) -> (Counts, Result<(), Failure>) {
    let events = Arc::new(Events::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("descriptors for a runtime");
    let (summary, result) = runtime.block_on(run(plan, identity, (tls, plain), &events));
    let [up, down] = [summary.a_to_b, summary.b_to_a];
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let counts = Counts {
        spliced: [up.spliced, down.spliced],
        copied: [up.bytes - up.spliced, down.bytes - down.spliced],
        key_updates: [of(&events.key_updates[0]), of(&events.key_updates[1])],
        tickets: of(&events.tickets),
        announced: of(&events.announced),
        moves: of(&events.moves),
    };
    (counts, result)
}

async fn run(
    plan: &Plan,
    identity: &Identity,
    (tls, plain): (StdStream, StdStream),
    events: &Arc<Events>,
) -> (RelaySummary, Result<(), Failure>) {
    let (tls, session, plain) = match prepare(plan, identity, tls, plain, events) {
        Ok(ends) => ends,
        Err(failure) => return (RelaySummary::default(), Err(failure)),
    };
    // Half of the sessions copy small messages.
    let engine = if plan.number.is_multiple_of(2) {
        Engine::Splice
    } else {
        Engine::Auto
    };
    let options = RelayOptions::new().engine(engine);
    let mut relay = Relay::with_options(tls, plain, options.clone());
    // A third of the relays move, and not more often than this, because a move costs time.
    let mut moves = if plan.number.is_multiple_of(3) { MOVES } else { 0 };
    let ended = loop {
        let polls = (moves > 0).then_some(1 + plan.number % 13);
        match poll_often(&mut relay, polls).await {
            Some(ended) => break ended,
            None => relay = moved(relay, &session, options.clone()),
        }
        moves -= 1;
    };
    match ended {
        Ok(summary) => (summary, Ok(())),
        Err(error) => {
            let (tls, plain) = relay.streams();
            for socket in [tls.socket(), plain] {
                socket.set_zero_linger().expect("a socket has this option");
            }
            (error.summary, Err(Failure::Relay(error)))
        }
    }
}

type TlsRelay = Relay<KernelTls, TcpStream>;

/// Polls the relay until it ends. After this many polls, returns `None` if the relay can move. It
/// is woken before that, so that the runtime sees its sockets.
async fn poll_often(relay: &mut TlsRelay, polls: Option<u64>) -> Option<Result<RelaySummary, RelayError>> {
    let mut count = 0;
    poll_fn(|cx| {
        let is_due = polls.is_some_and(|polls| count >= polls);
        if is_due && relay.can_suspend() && relay.streams().0.state().is_some() {
            return Poll::Ready(None);
        }
        count += 1;
        Pin::new(&mut *relay).poll(cx).map(Some)
    })
    .await
}

/// Continues the relay with other descriptors of its sockets, as another process would.
fn moved(relay: TlsRelay, session: &Session, options: RelayOptions) -> TlsRelay {
    session.events.moves.fetch_add(1, Ordering::Relaxed);
    let suspended = relay.suspend().expect("it can be suspended");
    let state = suspended.a.state().expect("no message is incomplete");
    let [tls, plain] = [suspended.a.as_fd(), suspended.b.as_fd()].map(|socket| {
        let socket = StdStream::from(socket.try_clone_to_owned().expect("a descriptor"));
        move || TcpStream::from_std(socket).expect("a socket that does not block")
    });
    drop((suspended.a, suspended.b));
    let tls = KernelTls::resume(tls(), &state, Box::new(session.clone())).expect("the kernel has its TLS");
    Relay::resume(tls, plain(), options, suspended.state)
}

/// The most moves of a relay.
const MOVES: u32 = 24;

/// Shakes hands, and gives the keys to the kernel.
fn prepare(
    plan: &Plan,
    identity: &Identity,
    tls: StdStream,
    plain: StdStream,
    events: &Arc<Events>,
) -> Result<(KernelTls, Session, TcpStream), Failure> {
    let set_up = || {
        // The kernel refuses a socket whose peer has sent its FIN, so this comes first.
        KernelTls::attach(&tls)?;
        for (socket, bytes) in [(&tls, plan.send_buffers[0]), (&plain, plan.send_buffers[1])] {
            socket.set_nodelay(true)?;
            if let Some(bytes) = bytes {
                SockRef::from(socket).set_send_buffer_size(bytes)?;
            }
        }
        Ok(())
    };
    set_up().map_err(Failure::Keys)?;
    let (secrets, later) = shake_hands(plan, identity, &tls).map_err(|why| {
        for socket in [&tls, &plain] {
            let lingering = SockRef::from(socket).set_linger(Some(Duration::ZERO));
            lingering.expect("a socket has this option");
        }
        Failure::Handshake(why)
    })?;
    let for_tokio = |socket: StdStream| {
        socket.set_nonblocking(true)?;
        TcpStream::from_std(socket)
    };
    let (send, receive) = (key(secrets.tx), key(secrets.rx));
    let session = Session {
        later: Arc::new(Mutex::new(later)),
        events: Arc::clone(events),
    };
    let tls = for_tokio(tls).map_err(Failure::Keys)?;
    let plain = for_tokio(plain).map_err(Failure::Keys)?;
    let tls = KernelTls::new(tls, &send, &receive, Box::new(session.clone()));
    Ok((tls.map_err(|(_, error)| Failure::Keys(error))?, session, plain))
}

fn key((next_record, keys): (u64, ConnectionTrafficSecrets)) -> TrafficKey {
    let (cipher, key, iv) = match keys {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (TlsCipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (TlsCipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (TlsCipher::ChaCha20Poly1305, key, iv),
        _ => unreachable!("the settings of rustls have three ciphers"),
    };
    let iv = iv.as_ref().try_into().expect("an IV of 12 bytes");
    TrafficKey::new(cipher, key.as_ref(), iv, next_record).expect("a key of the cipher")
}

#[derive(Debug, Default)]
struct Events {
    key_updates: [AtomicU64; 2],
    tickets: AtomicU64,
    announced: AtomicU64,
    moves: AtomicU64,
}

const UNBROKEN: &str = "no thread has panicked";

/// The session of a relay, also after it has moved.
#[derive(Clone)]
struct Session {
    later: Arc<Mutex<Later>>,
    events: Arc<Events>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl TlsSession for Session {
    fn next_send_key(&mut self) -> io::Result<TrafficKey> {
        self.events.key_updates[1].fetch_add(1, Ordering::Relaxed);
        let keys = self
            .later
            .lock()
            .expect(UNBROKEN)
            .next_send_keys()
            .map_err(io::Error::other)?;
        Ok(key((0, keys)))
    }

    fn next_receive_key(&mut self) -> io::Result<TrafficKey> {
        self.events.key_updates[0].fetch_add(1, Ordering::Relaxed);
        let keys = self
            .later
            .lock()
            .expect(UNBROKEN)
            .next_receive_keys()
            .map_err(io::Error::other)?;
        Ok(key((0, keys)))
    }

    fn ended(&mut self, is_announced: bool) {
        self.events.announced.fetch_add(is_announced.into(), Ordering::Relaxed);
    }

    fn ticket(&mut self, ticket: &[u8]) {
        self.events.tickets.fetch_add(1, Ordering::Relaxed);
        // A ticket that is not valid is of no use, and no harm.
        let _ = self.later.lock().expect(UNBROKEN).store_ticket(ticket);
    }
}
