//! Connects to targets: looked up, allowed, tried by happy eyeballs, and through other proxies where there are any.
//!
//! ```text
//!   Target ─ resolver ─▶ addresses ─ happy eyeballs ─▶ attempts: policy ▸ socket ▸ connect ─ chain ─▶ Dialed
//!              │ cache     RFC 8305                                                proxy ▸ proxy
//! ```

mod attempts;
mod cache;
mod chain;
mod error;
mod happy_eyeballs;
mod resolver;
mod socket;
mod unix;
mod upstream;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::address::{Target, canonical};
use crate::admission::ClientKey;
use crate::policy::TargetPolicy;
use crate::stream::Stream;
use attempts::{Lost, Tried, Why, first_to_connect};
use happy_eyeballs::HappyEyeballs;
use resolver::{Found, Lookup, LookupError, Pending, Resolver};

pub(crate) use error::DialError;
pub(crate) use resolver::ResolverSettings;
pub(crate) use socket::SocketSettings;
pub(crate) use upstream::{CHAIN_MAX, UpstreamProxy};

/// How to get to targets.
#[derive(Debug, Clone)]
pub(crate) struct DialSettings {
    pub(crate) resolver: ResolverSettings,
    pub(crate) sockets: SocketSettings,
    /// The first is dialled, each next through the ones before it. [`CHAIN_MAX`] at most.
    pub(crate) upstreams: Vec<UpstreamProxy>,
    /// For the lookup, all attempts and the handshakes with all proxies together.
    pub(crate) timeout: Duration,
}

/// Gets to targets. Cheap to clone; clones share what was looked up.
#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    resolver: Arc<Resolver>,
    settings: Arc<DialSettings>,
    policy: TargetPolicy,
    /// Descriptors for attempts beside others: a session has one of its own, and no number of clients can have more of these.
    beside: Arc<Semaphore>,
}

/// A connection to a target.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) stream: Stream,
    /// What an upstream proxy sent behind its answer: the first bytes from the target.
    pub(crate) early: Vec<u8>,
    /// The address that was connected to: the target's, or that of the first proxy on the way there. `None` of a path.
    pub(crate) address: Option<SocketAddr>,
}

/// What a connection is opened for, which decides what is checked of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A target: everything.
    Target,
    /// A proxy that who started the program has named: that it is not ourselves.
    Proxy,
}

/// The client of a dial or lookup, and its deadline.
#[derive(Debug, Clone, Copy)]
struct Caller {
    client: resolver::Key,
    deadline: Instant,
}

impl Dialer {
    /// Up to `transient` descriptors are open at once for lookups and for attempts beside a first one; what needs more waits, as long as
    /// its dial may. Reads `/etc/resolv.conf` and `/etc/hosts`, once, where the settings say so.
    ///
    /// # Errors
    /// Socket options that can never be set.
    pub(crate) fn new(settings: DialSettings, policy: TargetPolicy, transient: usize) -> io::Result<Self> {
        settings.sockets.probe()?;
        Ok(Self {
            resolver: Arc::new(Resolver::new(&settings.resolver, transient / 2)?),
            beside: Arc::new(Semaphore::new((transient / 2).max(1))),
            settings: Arc::new(settings),
            policy,
        })
    }

    /// A connection to `target`, within the timeout of the settings. Cancel safe: whatever was begun is closed.
    ///
    /// Of a name, every address may be tried, 16 at most: one at once, and the next when that fails, or after 250 ms beside it. Each
    /// is checked right before the attempt.
    ///
    /// # Errors
    /// A denial, if an address was denied and no other connected; else the last failure of an attempt.
    ///
    /// Lookups count for `client`. `via` names the proxies that the request has passed, this one included, for upstream
    /// proxies that can be told.
    pub(crate) async fn dial(
        &self,
        target: &Target,
        client: Option<ClientKey>,
        via: &str,
    ) -> Result<Dialed, DialError> {
        let caller = self.caller(client);
        self.policy.check_name(target)?;
        if self.settings.upstreams.is_empty() {
            self.connect(target, Purpose::Target, caller).await
        } else {
            self.dial_through(target, via, caller).await
        }
    }

    /// Where datagrams for `target` may go, IPv6 and IPv4 in turn and 16 at most: never none. Upstream proxies have no part in it.
    /// Cancel safe.
    ///
    /// # Errors
    /// As [`Self::dial`]. A path has no datagrams.
    pub(crate) async fn addresses(
        &self,
        target: &Target,
        client: Option<ClientKey>,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let caller = self.caller(client);
        self.policy.check_name(target)?;
        let all = match target {
            Target::Ip(address) => vec![canonical(*address)],
            Target::Name(name, port) => self.look_up(name, *port, caller).await?,
            Target::Unix(_) => Vec::new(),
        };
        let mut refused = DialError::Unresolved(LookupError::NoAddress);
        let mut allowed = Vec::with_capacity(all.len());
        for address in all {
            match self.policy.check(address) {
                Ok(()) => allowed.push(address),
                Err(denied) => refused = DialError::Denied(denied, Some(address.ip())),
            }
        }
        if allowed.is_empty() { Err(refused) } else { Ok(allowed) }
    }

    fn caller(&self, client: Option<ClientKey>) -> Caller {
        Caller {
            client,
            deadline: Instant::now() + self.settings.timeout,
        }
    }

    /// What sockets to targets are told, for those that are opened elsewhere: of datagrams.
    pub(crate) fn sockets(&self) -> &SocketSettings {
        &self.settings.sockets
    }

    /// Whether targets are reached through other proxies, which have TCP alone.
    pub(crate) fn has_upstreams(&self) -> bool {
        !self.settings.upstreams.is_empty()
    }

    /// What decides which targets are allowed.
    pub(crate) fn policy(&self) -> &TargetPolicy {
        &self.policy
    }

    /// A connection without any proxy.
    async fn connect(&self, target: &Target, purpose: Purpose, caller: Caller) -> Result<Dialed, DialError> {
        let deadline = caller.deadline;
        match target {
            Target::Ip(address) => self.connect_any(HappyEyeballs::of([address.ip()]), Vec::new(), address.port(), purpose, deadline),
            Target::Name(name, port) => return self.connect_by_name(name, *port, purpose, caller).await,
            Target::Unix(path) => {
                self.policy.check_path(path)?;
                let connected = unix::connect(path, deadline).await;
                let stream = connected.map_err(|error| DialError::Unreachable(target.clone(), error))?;
                return Ok(Dialed::new(stream.into(), None));
            }
        }
        .await
    }

    /// What a name may stand for is tried in turn, until something has an address.
    async fn connect_by_name(
        &self,
        name: &str,
        port: u16,
        purpose: Purpose,
        caller: Caller,
    ) -> Result<Dialed, DialError> {
        let deadline = caller.deadline;
        let mut unresolved = LookupError::NoAddress;
        for reading in self.resolver.readings(name) {
            let (eyeballs, lookups) = match self.resolver.look_up(&reading, caller) {
                Lookup::Families(lookups) => (HappyEyeballs::looking_up(), lookups.into()),
                Lookup::Whole(lookup) => match resolver::within(deadline, lookup).await {
                    Ok(addresses) => (HappyEyeballs::of(addresses), Vec::new()),
                    Err(error) => {
                        unresolved = error;
                        continue;
                    }
                },
            };
            match self.connect_any(eyeballs, lookups, port, purpose, deadline).await {
                Err(DialError::Unresolved(error)) => unresolved = error,
                done => return done,
            }
        }
        Err(unresolved.into())
    }

    async fn connect_any<'a>(
        &'a self,
        eyeballs: HappyEyeballs,
        lookups: Vec<Pending<'a, Found>>,
        port: u16,
        purpose: Purpose,
        deadline: Instant,
    ) -> Result<Dialed, DialError> {
        let own = Arc::new(Semaphore::new(1));
        let attempt = |ip: IpAddr| -> Pending<'a, Tried<TcpStream>> {
            let (address, own) = (SocketAddr::new(ip, port), Arc::clone(&own));
            Box::pin(async move {
                // The session's own descriptor, or one of those for what passes.
                let _descriptor = tokio::select! {
                    biased;
                    own = own.acquire() => own,
                    beside = self.beside.acquire() => beside,
                };
                let outcome = self.attempt(address, purpose).await;
                Tried { ip, outcome }
            })
        };
        match first_to_connect(eyeballs, lookups, attempt, deadline).await {
            Ok((ip, stream)) => Ok(Dialed::new(stream.into(), Some(SocketAddr::new(ip, port)))),
            Err(Lost::Unresolved(error)) => Err(error.into()),
            Err(Lost::Attempt(ip, Why::Denied(denied))) => Err(DialError::Denied(denied, Some(ip))),
            Err(Lost::Attempt(ip, Why::Failed(error))) => {
                let address = SocketAddr::new(ip, port);
                Err(DialError::Unreachable(Target::Ip(address), error))
            }
        }
    }

    /// The one place that connects to an address, and so the one that checks it.
    async fn attempt(&self, address: SocketAddr, purpose: Purpose) -> Result<TcpStream, Why> {
        let allowed = match purpose {
            Purpose::Target => self.policy.check(address),
            Purpose::Proxy => self.policy.check_loop(address),
        };
        allowed.map_err(Why::Denied)?;
        self.settings.sockets.connect(address).await.map_err(Why::Failed)
    }

    /// Every address of a name.
    async fn look_up(&self, name: &str, port: u16, caller: Caller) -> Result<Vec<SocketAddr>, DialError> {
        let addresses = self.resolver.all(name, caller).await?;
        Ok(addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }
}

impl Dialed {
    fn new(stream: Stream, address: Option<SocketAddr>) -> Self {
        Self {
            stream,
            early: Vec::new(),
            address,
        }
    }
}

#[cfg(test)]
mod tests;
