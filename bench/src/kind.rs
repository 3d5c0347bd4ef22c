//! The relays to compare. Some of them are built into this program.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use socket2::{Domain, Protocol, Socket, Type};
use spliceway_machine as machine;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use crate::RELAY_CORE;
use crate::servers::Server;

/// A relay to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// No relay: clients connect to the server, and the relay's host forwards their packets.
    Direct,
    /// tokio's `copy_bidirectional` with 8 KiB buffers.
    Tokio,
    /// tokio's `copy_bidirectional` with 64 KiB buffers.
    Copy64k,
    /// tokio's `copy_bidirectional` with 256 KiB buffers.
    Copy256k,
    /// The published crate `realm_io`: splice, 64 KiB pipes.
    #[cfg(feature = "peers")]
    RealmIo,
    /// The published crate `tokio-splice`: splice, 64 KiB pipes.
    #[cfg(feature = "peers")]
    TokioSplice,
    /// The published crate `tokio-splice2`: splice, 1 MiB pipes.
    #[cfg(feature = "peers")]
    TokioSplice2,
    /// Go's `io.Copy`, which splices: `bench/peers/relay.go`.
    Go,
    /// HAProxy, which splices when it chooses to.
    Haproxy,
    /// nginx with its `stream` module.
    Nginx,
    /// spliceway's program, `spliceway forward`, with its log discarded.
    Program,
    /// spliceway's program without records of sessions.
    ProgramNoLog,
    /// spliceway's `copy_bidirectional`.
    Spliceway,
    /// The A/A control: [`Self::Spliceway`] once more. The difference is the noise of the run.
    Again,
    /// spliceway's `copy_bidirectional` from another build: see [`BEFORE`].
    Before,
    /// spliceway's program from another build.
    ProgramBefore,
    /// tokio's `copy_bidirectional` on a runtime of two threads, on both cores.
    TokioTwoWorkers,
    /// spliceway on a runtime of two threads, on both cores.
    TwoWorkers,
    /// spliceway on two runtimes with one thread each, on both cores.
    TwoRuntimes,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Tokio => "tokio 8 KiB",
            Self::Copy64k => "copy 64 KiB",
            Self::Copy256k => "copy 256 KiB",
            #[cfg(feature = "peers")]
            Self::RealmIo => "realm_io",
            #[cfg(feature = "peers")]
            Self::TokioSplice => "tokio-splice",
            #[cfg(feature = "peers")]
            Self::TokioSplice2 => "tokio-splice2",
            Self::Go => "Go",
            Self::Haproxy => "HAProxy",
            Self::Nginx => "nginx",
            Self::Program => "spliceway forward",
            Self::ProgramNoLog => "spliceway forward, no log",
            Self::Spliceway => "spliceway",
            Self::Again => "spliceway, again",
            Self::Before => "spliceway, before",
            Self::ProgramBefore => "spliceway forward, before",
            Self::TokioTwoWorkers => "tokio 8 KiB, 2 workers",
            Self::TwoWorkers => "spliceway, 2 workers",
            Self::TwoRuntimes => "spliceway, 2 × 1 worker",
        }
    }

    /// Returns whether the relay runs on both cores, which it shares with the load. All other
    /// relays have their own core.
    pub(crate) fn shares_cores(self) -> bool {
        matches!(self, Self::TokioTwoWorkers | Self::TwoWorkers | Self::TwoRuntimes)
    }

    /// Returns the reason why the relay cannot be measured here, if there is one.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Before | Self::ProgramBefore if build_before().is_none() => {
                Some(format!("{BEFORE} does not name another build"))
            }
            _ => self.server()?.missing(),
        }
    }

    /// Returns the server program, if the relay is one.
    pub(crate) fn server(self) -> Option<Server> {
        match self {
            Self::Go => Some(Server::Go),
            Self::Haproxy => Some(Server::Haproxy),
            Self::Nginx => Some(Server::Nginx),
            Self::Program => Some(Server::Spliceway),
            Self::ProgramNoLog => Some(Server::SplicewayNoLog),
            Self::ProgramBefore => Some(Server::SplicewayBefore),
            _ => None,
        }
    }
}

/// The environment variable that names another build of this benchmark. That build's spliceway
/// becomes a contender too, so that one run can compare two commits. The program of that build is
/// in the same folder.
pub(crate) const BEFORE: &str = "SPLICEWAY_BENCH_BEFORE";

/// Returns another build of this benchmark for comparison, if there is one.
pub(crate) fn build_before() -> Option<PathBuf> {
    std::env::var_os(BEFORE).map(PathBuf::from)
}

/// The backlog of every relay's listener. No load opens this many connections at the same time.
pub(crate) const BACKLOG: i32 = 4096;

/// Relays every connection from `listen` to one of the upstreams, which take turns. Prints the
/// address that it listens on.
pub(crate) fn serve(kind: Kind, listen: IpAddr, upstreams: &'static [SocketAddr]) -> io::Result<()> {
    if kind.shares_cores() {
        machine::use_all_cores()?;
    } else {
        machine::pin_to(RELAY_CORE)?;
    }
    let two = kind == Kind::TwoRuntimes;
    let first = listener((listen, 0).into(), two)?;
    let address = first.local_addr()?;
    report_address(address);
    match kind {
        Kind::TokioTwoWorkers | Kind::TwoWorkers => {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            // The accept loop is a task on a worker, as in programs that do more than relay.
            let accepting = runtime.spawn(async move { accept(kind, TcpListener::from_std(first)?, upstreams).await });
            runtime.block_on(accepting).expect("it does not panic")
        }
        Kind::TwoRuntimes => {
            let second = listener(address, true)?;
            thread::spawn(move || on_this_thread(kind, second, upstreams));
            on_this_thread(kind, first, upstreams)
        }
        _ => on_this_thread(kind, first, upstreams),
    }
}

/// Relays on this thread. Every relay has timers, because real programs do.
fn on_this_thread(kind: Kind, listener: std::net::TcpListener, upstreams: &[SocketAddr]) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { accept(kind, TcpListener::from_std(listener)?, upstreams).await })
}

/// Returns a listener whose queue holds all connections. With `shares`, another listener may use
/// the same address.
pub(crate) fn listener(address: SocketAddr, shares: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_port(shares)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[expect(clippy::print_stdout, reason = "the parent reads the address from it")]
fn report_address(address: SocketAddr) {
    println!("{address}");
}

/// Relays every connection, without end.
async fn accept(kind: Kind, listener: TcpListener, upstreams: &[SocketAddr]) -> io::Result<()> {
    let mut turns = upstreams.iter().cycle().copied();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Programs wait in this case: if all descriptors are in use, one may become free.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let upstream = turns.next().expect("there is an upstream");
        tokio::spawn(async move {
            // A session that ends in an error causes a wrong count at the load, which reports the
            // error.
            let _ = session(kind, client, upstream).await;
        });
    }
}

async fn session(kind: Kind, mut client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
    let mut upstream = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    let (a, b) = (&mut client, &mut upstream);
    // The future is on the heap. A session then uses the memory of its own relay's future, not of
    // the largest future.
    match kind {
        Kind::Direct
        | Kind::Go
        | Kind::Haproxy
        | Kind::Nginx
        | Kind::Program
        | Kind::ProgramNoLog
        | Kind::ProgramBefore => {
            unreachable!("no relay of this program")
        }
        Kind::Tokio | Kind::TokioTwoWorkers => Box::pin(tokio::io::copy_bidirectional(a, b)).await.map(drop),
        Kind::Copy64k => copy(a, b, 64 << 10).await,
        Kind::Copy256k => copy(a, b, 256 << 10).await,
        #[cfg(feature = "peers")]
        Kind::RealmIo => Box::pin(realm_io::bidi_zero_copy(a, b)).await.map(drop),
        #[cfg(feature = "peers")]
        Kind::TokioSplice => Box::pin(tokio_splice::zero_copy_bidirectional(a, b)).await.map(drop),
        #[cfg(feature = "peers")]
        Kind::TokioSplice2 => Box::pin(tokio_splice2::copy_bidirectional(a, b)).await.map(drop),
        Kind::Spliceway | Kind::Again | Kind::Before | Kind::TwoWorkers | Kind::TwoRuntimes => {
            Box::pin(spliceway::copy_bidirectional(a, b)).await.map(drop)
        }
    }
}

async fn copy(a: &mut TcpStream, b: &mut TcpStream, size: usize) -> io::Result<()> {
    Box::pin(tokio::io::copy_bidirectional_with_sizes(a, b, size, size))
        .await
        .map(drop)
}
