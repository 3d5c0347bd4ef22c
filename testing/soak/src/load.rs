//! The load: a fixed number of concurrent connections through the program, and the program's
//! upstream server. Each connection is replaced when it ends.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::pattern::Pattern;
use super::peer::{self, Fault, NAME_LEN, Peer, failed};
use super::plan::{Kind, Session, Side};
use super::tally::Tally;
use spliceway_load::Random;

/// State that the tasks of a load share.
pub(super) struct Load {
    pub(super) seed: u64,
    pub(super) pattern: Pattern,
    pub(super) tally: Tally,
    pub(super) program: SocketAddr,
    pub(super) until: Until,
    /// The one session of a run with one connection.
    pub(super) single: Option<Session>,
    started: AtomicU64,
    /// Bytes sent and received by each end of the single session.
    moved: Mutex<Vec<(u64, u64)>>,
}

/// The limits after which no new connection begins.
pub(super) struct Until {
    pub(super) bytes: u64,
    pub(super) time: Option<Instant>,
}

/// The server's connections, and the number of connections that ended without a name.
#[derive(Default)]
struct Served {
    sessions: JoinSet<()>,
    nameless: Arc<AtomicU64>,
}

impl Load {
    pub(super) fn new(seed: u64, pattern: Pattern, program: SocketAddr, until: Until, single: Option<Session>) -> Self {
        Self {
            seed,
            pattern,
            tally: Tally::default(),
            program,
            until,
            single,
            started: AtomicU64::new(0),
            moved: Mutex::default(),
        }
    }

    /// Runs until the last connection has ended, on both sides.
    pub(super) async fn run(self: Arc<Self>, connections: u64, listener: &TcpListener) -> io::Result<()> {
        let mut clients = JoinSet::new();
        for _ in 0..connections {
            clients.spawn(Arc::clone(&self).connect_in_turn());
        }
        let mut served = Served::default();
        while !clients.is_empty() {
            tokio::select! {
                accepted = listener.accept() => self.accept(accepted?.0, &mut served),
                Some(_) = served.sessions.join_next() => {}
                Some(client) = clients.join_next() => client.map_err(io::Error::other)?,
            }
        }
        self.finish(listener, &mut served).await;
        self.compare_ends();
        Ok(())
    }

    fn accept(self: &Arc<Self>, socket: TcpStream, served: &mut Served) {
        let (load, nameless) = (Arc::clone(self), Arc::clone(&served.nameless));
        served.sessions.spawn(async move {
            if load.serve(socket).await {
                nameless.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Serves the connections that still arrive after the clients are gone. Returns when none has
    /// arrived for the longest time that a connection can take.
    async fn finish(self: &Arc<Self>, listener: &TcpListener, served: &mut Served) {
        const LAST_ARRIVAL: Duration = Duration::from_millis(500);
        loop {
            tokio::select! {
                Some(_) = served.sessions.join_next() => {}
                accepted = tokio::time::timeout(LAST_ARRIVAL, listener.accept()) => match accepted {
                    Ok(Ok((socket, _))) => self.accept(socket, served),
                    _ if served.sessions.is_empty() => break,
                    _ => {}
                },
            }
        }
        let kinds = self.tally.kinds();
        let (nameless, most) = (
            served.nameless.load(Ordering::Relaxed),
            kinds.get("silent").unwrap_or(&0) + kinds.get("reset").unwrap_or(&0),
        );
        if nameless > most {
            let what = format!("{nameless} connections ended before their first bytes, at most {most} may");
            self.tally.note(&"server", &what, "nameless");
        }
    }

    async fn connect_in_turn(self: Arc<Self>) {
        loop {
            let number = self.started.fetch_add(1, Ordering::Relaxed);
            if let Some(single) = &self.single {
                return self.client(single).await;
            }
            self.client(&Session::mixed(self.seed, number)).await;
            if self.is_over() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.tally.bytes() >= self.until.bytes
            || self.until.time.is_some_and(|end| Instant::now() >= end)
            || self.tally.hopeless()
    }

    async fn client(&self, session: &Session) {
        if let Err(fault) = self.play_client(session).await {
            self.tally.fault(&self.who(Side::Client, session), &fault);
        }
        self.tally.session_ended(session.kind.name());
    }

    async fn play_client(&self, session: &Session) -> Result<(), Fault> {
        let socket = TcpStream::connect(self.program).await.map_err(failed("connect"))?;
        socket.set_nodelay(true).map_err(failed("setsockopt"))?;
        if let Kind::Silent { reset } = session.kind {
            return match reset {
                true => set_socket_linger(&socket, Some(Duration::ZERO)).map_err(failed("setsockopt")),
                false => Ok(()),
            };
        }
        peer::send_name(&socket, self.name(session.number)).await?;
        let moved = self.peer(socket, Side::Client, session).play().await?;
        self.remember(moved);
        Ok(())
    }

    /// Serves one connection. Returns whether the connection ended before it sent its name.
    async fn serve(&self, socket: TcpStream) -> bool {
        match self.play_server(socket).await {
            Ok(named) => !named,
            Err((session, fault)) => {
                match session {
                    Some(session) => self.tally.fault(&self.who(Side::Server, &session), &fault),
                    None => self.tally.fault(&"server", &fault),
                }
                false
            }
        }
    }

    async fn play_server(&self, socket: TcpStream) -> Result<bool, (Option<Session>, Fault)> {
        let nobody = |fault| (None, fault);
        socket
            .set_nodelay(true)
            .map_err(|error| nobody(failed("setsockopt")(error)))?;
        let Some(name) = peer::receive_name(&socket).await.map_err(nobody)? else {
            return Ok(false);
        };
        let number = u64::from_le_bytes(name[..8].try_into().expect("eight bytes"));
        if name != self.name(number) {
            return Err(nobody(Fault::Name(name)));
        }
        let mixed;
        let session = match &self.single {
            Some(single) => single,
            None => {
                mixed = Session::mixed(self.seed, number);
                &mixed
            }
        };
        let played = self.peer(socket, Side::Server, session).play().await;
        let moved = played.map_err(|fault| (Some(session.clone()), fault))?;
        self.remember(moved);
        Ok(true)
    }

    fn remember(&self, moved: (u64, u64)) {
        if self.single.is_some() {
            self.moved.lock().expect("nobody panics with it").push(moved);
        }
    }

    /// Compares the two ends of a single session: each end must have received all that the other
    /// sent. The time limit may cut the session short, so its length is known only now.
    fn compare_ends(&self) {
        let moved = self.moved.lock().expect("nobody panics with it");
        let whole = matches!(moved[..], [(sent, received), other] if other == (received, sent));
        if self.single.is_some() && !whole && self.tally.faults().is_empty() {
            let what = format!("sent and received by each end: {moved:?}");
            self.tally.note(&"single session", &what, "unexpected end");
        }
    }

    fn peer<'run>(&'run self, socket: TcpStream, side: Side, session: &'run Session) -> Peer<'run> {
        Peer {
            socket,
            side,
            session,
            pattern: &self.pattern,
            tally: &self.tally,
        }
    }

    fn name(&self, number: u64) -> [u8; NAME_LEN] {
        let mut name = [0; NAME_LEN];
        name[..8].copy_from_slice(&number.to_le_bytes());
        name[8..].copy_from_slice(&Random::new(self.seed ^ number).next().to_le_bytes());
        name
    }

    fn who(&self, side: Side, session: &Session) -> String {
        format!(
            "{side:?} of session {} (seed {}): {:?}",
            session.number, self.seed, session.kind
        )
    }
}
