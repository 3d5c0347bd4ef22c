//! The relays that are compared.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use spliceway::{Engine, RateLimit, RelayOptions};
use tokio::net::{TcpListener, TcpStream};

use crate::machine;
use crate::sampler::Sampler;
use crate::servers::Server;
use crate::variants;
use crate::workers;

/// A relay to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arm {
    /// No relay: clients connect to the server.
    Direct,
    /// tokio's `copy_bidirectional`, 8 KiB.
    Tokio,
    /// The same with 64 KiB buffers.
    Copy64k,
    /// The same with 256 KiB buffers.
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
    /// `io.Copy` of Go, which splices: `bench/peers/relay.go`.
    Go,
    /// HAProxy that splices where it chooses to.
    Haproxy,
    /// nginx, its `stream` module.
    Nginx,
    /// Ours.
    Spliceway,
    /// Ours once more: by what it differs is the run's own noise.
    Again,
    /// Ours, which always splices.
    Splice,
    /// Ours, which never splices.
    Copy,
    /// `spliceway::Relay`, no option chosen.
    Relay,
    /// The same, its live counts read ten times a second.
    Stats,
    /// The same with an idle and a half-close timeout, no counts read.
    Timeouts,
    /// The same with a rate limit that all relays share and never reach, alone.
    Rate,
    /// The same with counts read, timeouts and a cancel handle.
    Everything,
    /// Ours, on a runtime of two threads, on both cores.
    TwoWorkers,
    /// Ours, on two runtimes of a thread each, on both cores.
    TwoRuntimes,
    /// Ours, on a runtime of one thread, on either core.
    OneRuntime,
    /// Ours, of another build of this program: see [`variants`].
    #[value(skip)]
    Variant(usize),
}

/// What an arm is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// No relay: what could be had at best, and not compared with.
    Direct,
    /// What somebody may choose instead.
    Peer,
    Ours,
}

impl Arm {
    pub(crate) fn role(self) -> Role {
        match self {
            Self::Direct => Role::Direct,
            Self::Spliceway
            | Self::Again
            | Self::Splice
            | Self::Copy
            | Self::Relay
            | Self::Stats
            | Self::Timeouts
            | Self::Rate
            | Self::Everything
            | Self::TwoWorkers
            | Self::TwoRuntimes
            | Self::OneRuntime
            | Self::Variant(_) => Role::Ours,
            _ => Role::Peer,
        }
    }

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
            Self::Spliceway => "spliceway",
            Self::Again => "spliceway, again",
            Self::Splice => "spliceway, splice",
            Self::Copy => "spliceway, copy",
            Self::Relay => "Relay",
            Self::Stats => "stats read at 10 Hz",
            Self::Timeouts => "timeouts",
            Self::Rate => "rate limit never reached",
            Self::Everything => "stats, timeouts, cancel",
            Self::TwoWorkers => "a runtime of 2 threads",
            Self::TwoRuntimes => "2 runtimes of 1 thread",
            Self::OneRuntime => "1 runtime of 1 thread",
            Self::Variant(index) => variants::program(index).0,
        }
    }

    /// Whether it shares both cores with the load, which else have one each.
    pub(crate) fn shares_cores(self) -> bool {
        matches!(self, Self::TwoWorkers | Self::TwoRuntimes | Self::OneRuntime)
    }

    /// Why it cannot be measured here, if it cannot.
    pub(crate) fn missing(self) -> Option<String> {
        self.server()?.missing()
    }

    /// The program of others that it is, if it is one.
    pub(crate) fn server(self) -> Option<Server> {
        match self {
            Self::Go => Some(Server::Go),
            Self::Haproxy => Some(Server::Haproxy),
            Self::Nginx => Some(Server::Nginx),
            _ => None,
        }
    }

    /// The one that ratios are to.
    pub(crate) const FIRST: Self = Self::Tokio;

    /// Those that replace each other.
    pub(crate) const RELAYS: &[Self] = &[
        Self::Direct,
        Self::Tokio,
        Self::Copy64k,
        Self::Copy256k,
        #[cfg(feature = "peers")]
        Self::RealmIo,
        #[cfg(feature = "peers")]
        Self::TokioSplice,
        #[cfg(feature = "peers")]
        Self::TokioSplice2,
        Self::Go,
        Self::Haproxy,
        Self::Nginx,
        Self::Spliceway,
        Self::Splice,
        Self::Copy,
        Self::Again,
    ];
}

/// Connections that wait to be accepted, of every relay's listener: no scenario begins as many at once. One that found no room would
/// connect a second later, and the relay be compared with others that had it at once.
pub(crate) const BACKLOG: i32 = 4096;

const AFTER_REFUSAL: Duration = Duration::from_millis(5);

/// Relays every connection to `listen` on to `upstream`, most arms on one thread. Prints the address it listens on.
pub(crate) fn serve(arm: Arm, listen: IpAddr, upstream: SocketAddr) -> io::Result<()> {
    if arm.shares_cores() {
        return workers::serve(arm, listen, upstream);
    }
    machine::pin_to(machine::RELAY_CORE)?;
    // With timers for every arm, as programs have them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = listener((listen, 0).into(), false)?;
        report_address(listener.local_addr()?);
        accept(arm, TcpListener::from_std(listener)?, upstream).await
    })
}

/// One with room for all, which may share its address with others.
pub(crate) fn listener(address: SocketAddr, shares: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_port(shares)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Relays whatever connects, for ever.
pub(crate) async fn accept(arm: Arm, listener: TcpListener, upstream: SocketAddr) -> io::Result<()> {
    let relays = Arc::new(Relays::new(arm));
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // As programs do: a client that is gone already is nothing, and where there is no descriptor one may come free.
            tokio::time::sleep(AFTER_REFUSAL).await;
            continue;
        };
        let relays = Arc::clone(&relays);
        tokio::spawn(async move {
            // A session that ends in an error ends in a wrong count at the load, which reports it.
            let _ = relays.session(client, upstream).await;
        });
    }
}

#[expect(clippy::print_stdout, reason = "the parent reads the address from it")]
pub(crate) fn report_address(address: SocketAddr) {
    println!("{address}");
}

/// What the sessions of one arm share.
struct Relays {
    arm: Arm,
    options: Option<RelayOptions>,
    sampler: Option<Sampler>,
}

impl Relays {
    fn new(arm: Arm) -> Self {
        let timeouts = || {
            RelayOptions::new()
                .idle_timeout(Duration::from_secs(300))
                .half_close_timeout(Duration::from_secs(30))
        };
        // A terabyte per second.
        let rate = || RelayOptions::new().rate_limit(&RateLimit::new(1_000_000_000_000));
        Self {
            arm,
            options: match arm {
                Arm::Timeouts | Arm::Everything => Some(timeouts()),
                Arm::Rate => Some(rate()),
                Arm::Splice => Some(RelayOptions::new().engine(Engine::Splice)),
                Arm::Copy => Some(RelayOptions::new().engine(Engine::Copy)),
                _ => None,
            },
            sampler: matches!(arm, Arm::Stats | Arm::Everything).then(Sampler::start),
        }
    }

    async fn session(&self, mut client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
        let mut upstream = TcpStream::connect(upstream).await?;
        client.set_nodelay(true)?;
        upstream.set_nodelay(true)?;
        let (a, b) = (&mut client, &mut upstream);
        // On the heap, so that a session takes the memory of its own arm's future and not of the largest of all.
        match self.arm {
            Arm::Direct | Arm::Go | Arm::Haproxy | Arm::Nginx | Arm::Variant(_) => {
                unreachable!("no relay of this program")
            }
            Arm::Tokio => Box::pin(tokio::io::copy_bidirectional(a, b)).await.map(drop),
            Arm::Copy64k => Box::pin(tokio::io::copy_bidirectional_with_sizes(a, b, 64 << 10, 64 << 10))
                .await
                .map(drop),
            Arm::Copy256k => Box::pin(tokio::io::copy_bidirectional_with_sizes(a, b, 256 << 10, 256 << 10))
                .await
                .map(drop),
            #[cfg(feature = "peers")]
            Arm::RealmIo => Box::pin(realm_io::bidi_zero_copy(a, b)).await.map(drop),
            #[cfg(feature = "peers")]
            Arm::TokioSplice => Box::pin(tokio_splice::zero_copy_bidirectional(a, b)).await.map(drop),
            #[cfg(feature = "peers")]
            Arm::TokioSplice2 => Box::pin(tokio_splice2::copy_bidirectional(a, b)).await.map(drop),
            Arm::Spliceway | Arm::Again | Arm::TwoWorkers | Arm::TwoRuntimes | Arm::OneRuntime => {
                Box::pin(spliceway::copy_bidirectional(a, b)).await.map(drop)
            }
            Arm::Splice | Arm::Copy | Arm::Relay | Arm::Stats | Arm::Timeouts | Arm::Rate | Arm::Everything => {
                Box::pin(self.relay(a, b)).await
            }
        }
    }

    async fn relay(&self, a: &mut TcpStream, b: &mut TcpStream) -> io::Result<()> {
        let mut relay = match &self.options {
            None => spliceway::Relay::new(a, b),
            Some(options) => spliceway::Relay::with_options(a, b, options.clone()),
        };
        if let Some(sampler) = &self.sampler {
            sampler.watch(relay.stats());
        }
        let _cancel = (self.arm == Arm::Everything).then(|| relay.cancel_handle());
        relay.await?;
        Ok(())
    }
}
