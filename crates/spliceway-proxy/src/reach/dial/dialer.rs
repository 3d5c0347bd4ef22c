//! The dialer: connects to targets and looks up their addresses.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::attempts::first_to_connect;
use super::error::DialError;
use super::happy_eyeballs::HappyEyeballs;
use super::request::{Caller, DialRequest, Purpose};
use super::resolver::{
    Found, Lookup, LookupError, MemberList, Memory, Pending, Reading, Resolver, ResolverSettings, SearchEnd, within,
};
use super::socket::SocketError;
use super::unix;
use super::upstream::UpstreamProxy;
use crate::access::policy::{Denied, TargetPolicy};
use crate::kit::client_key::ClientKey;
use crate::kit::first_poll::in_own_task;
use crate::net::hops::Hops;
use crate::net::outgoing::SocketSettings;
use crate::net::stream::Stream;
use crate::net::transparent::OwnDial;
use crate::tls::client::{AgreedWithServer, Originator};
use spliceway_protocol::address::{Target, canonical};

/// The settings for connections to targets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DialSettings {
    pub(crate) resolver: ResolverSettings,
    pub(crate) sockets: SocketSettings,
    /// The chain of upstream proxies, at most [`CHAIN_MAX`]. The first one is dialled directly, and
    /// each further one through those before it.
    pub(crate) upstreams: Vec<UpstreamProxy>,
    /// The total time for the lookup, all attempts, all handshakes with upstream proxies, and the
    /// TLS handshake with the target.
    pub(crate) timeout: Duration,
}

/// Connects to targets. Clones are cheap and share the resolver and its cache.
#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    pub(super) resolver: Arc<Resolver>,
    pub(super) settings: Arc<DialSettings>,
    pub(super) policy: TargetPolicy,
    /// Descriptors for the attempts of a dial that run in parallel with its first attempt. All
    /// clients share them. The first attempt uses the session's own descriptor.
    pub(super) beside: Arc<Semaphore>,
    /// Speaks TLS to targets and upstream proxies. `None` if none of them speaks it.
    originator: Option<Arc<Originator>>,
}

/// A connection to a target.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) stream: Stream,
    /// The bytes that an upstream proxy sent after its answer. They are the first bytes from the
    /// target.
    pub(crate) early: Vec<u8>,
    /// The remote address of the connection: the target's, or the first upstream proxy's. `None`
    /// for a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// Whether nothing has read from the socket yet.
    pub(crate) is_new: bool,
    /// Recognizes the connection if a firewall rule sends it back to this process.
    pub(crate) own: Option<Box<OwnDial>>,
    /// The HTTP proxy at the other end, if it awaits the request in place of the target.
    pub(crate) proxy: Option<Box<UpstreamProxy>>,
    /// What is known about the TLS of the target. The target then has the PROXY header.
    pub(crate) tls: Option<Box<TargetTls>>,
}

/// What is known about the TLS of a target.
#[derive(Debug)]
pub(crate) struct TargetTls {
    pub(crate) agreed: AgreedWithServer,
    /// Becomes `true` if the target ends the connection without an announcement.
    pub(crate) is_truncated: Arc<AtomicBool>,
}

impl Dialer {
    /// Creates a dialer that opens up to `transient` descriptors at the same time for lookups and
    /// parallel attempts. Work that needs more descriptors waits, within the timeout of its dial.
    ///
    /// # Errors
    /// Returns an error if a socket option can never be set.
    pub(crate) fn new(settings: DialSettings, policy: TargetPolicy, transient: usize) -> io::Result<Self> {
        settings.sockets.probe()?;
        Ok(Self {
            resolver: Arc::new(Resolver::new(&settings.resolver, transient / 2)),
            beside: Arc::new(Semaphore::new((transient / 2).max(1))),
            settings: Arc::new(settings),
            policy,
            originator: None,
        })
    }

    /// Returns what speaks TLS to targets and upstream proxies.
    pub(crate) fn originator(&self) -> Option<&Arc<Originator>> {
        self.originator.as_ref()
    }

    /// Returns the dialer with another way to speak TLS.
    pub(crate) fn with_tls(self, originator: Option<Arc<Originator>>) -> Self {
        Self { originator, ..self }
    }

    /// Connects to `target` within the configured timeout. Cancel safe: dropping the future cancels
    /// everything that it has started.
    ///
    /// Up to 16 addresses of a name are tried. The first attempt starts immediately. The next
    /// attempt starts when one fails, or in parallel after 250 ms. Each address is checked directly
    /// before its attempt.
    ///
    /// Lookups count towards the share of the client.
    ///
    /// # Errors
    /// Returns a denial if an address was denied and no other address connected. Otherwise, returns
    /// the error of the last failed attempt.
    pub(crate) async fn dial_for(&self, target: &Target, request: DialRequest<'_>) -> Result<Dialed, DialError> {
        let caller = Caller {
            ip: request.client,
            hops: request.hops,
            ..self.caller(request.client.map(ClientKey::from))
        };
        self.policy.check_name(target)?;
        let dialed = if self.settings.upstreams.is_empty() {
            self.connect(target, Purpose::Target(None), caller).await?
        } else {
            // Boxed, so that a direct dial does not hold the memory of a chain.
            Box::pin(self.dial_through(request.passage, target, request.via, caller)).await?
        };
        match request.tls {
            None => Ok(dialed),
            // Boxed, so that other dials do not hold the memory of this handshake.
            Some(tls) => Box::pin(self.begin_tls(dialed, target, tls, caller.deadline)).await,
        }
    }

    /// Returns the addresses to which datagrams for `target` may go, at least 1 and at most 16.
    /// IPv6 and IPv4 addresses alternate. Upstream proxies are not used. Cancel safe.
    ///
    /// # Errors
    /// Returns the errors of [`Self::dial_for`], and an error for a Unix socket, which does not
    /// accept datagrams.
    pub(crate) async fn addresses(
        &self,
        target: &Target,
        client: Option<ClientKey>,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let caller = self.caller(client);
        self.policy.check_name(target)?;
        let (name, all) = match target {
            Target::Ip(address) => (None, vec![canonical(*address)]),
            Target::Name(name, port) => {
                let (name, all) = self.look_up(name, *port, Purpose::Target(None), caller).await?;
                (Some(name), all)
            }
            Target::Unix(_) => (None, Vec::new()),
        };
        let mut refused = DialError::Unresolved(LookupError::NoAddress);
        let mut allowed = Vec::with_capacity(all.len());
        for address in all {
            match self.policy.check(name.as_deref(), address) {
                Ok(()) => allowed.push(address),
                Err(denied) => refused = DialError::Denied(denied, Some(address.ip())),
            }
        }
        if allowed.is_empty() { Err(refused) } else { Ok(allowed) }
    }

    /// Returns every address that a name stands for, and how long the answer is valid. With
    /// `is_srv`, the name has SRV records, and the port is theirs. `memory` is that of the last
    /// lookup of this name. Cancel safe.
    ///
    /// # Errors
    /// Returns an error if there is no address, or if the lookup fails or takes too long.
    pub(in crate::reach) async fn members(
        &self,
        name: &str,
        port: u16,
        is_srv: bool,
        memory: &mut Memory,
    ) -> Result<MemberList, LookupError> {
        let caller = self.caller(None);
        if is_srv {
            self.resolver.services(name, memory, caller).await
        } else {
            self.resolver.members(name, port, memory, caller).await
        }
    }

    /// Returns every address that a name stands for, as [`Self::members`] finds them now.
    ///
    /// # Errors
    /// As [`Self::members`].
    pub(crate) async fn members_now(
        &self,
        name: &str,
        port: u16,
        is_srv: bool,
    ) -> Result<Vec<SocketAddr>, LookupError> {
        let found = self.members(name, port, is_srv, &mut Memory::default()).await?;
        Ok(found.members.iter().map(|member| member.address).collect())
    }

    pub(super) fn caller(&self, client: Option<ClientKey>) -> Caller {
        Caller {
            client,
            ip: None,
            hops: Hops::default(),
            deadline: Instant::now() + self.settings.timeout,
        }
    }

    /// Returns the settings for sockets to targets, for UDP sockets that other modules open.
    pub(crate) fn sockets(&self) -> &SocketSettings {
        &self.settings.sockets
    }

    /// Returns whether targets are reached through upstream proxies, which carry TCP only.
    pub(crate) fn has_upstreams(&self) -> bool {
        !self.settings.upstreams.is_empty()
    }

    /// Returns a dialer that shares everything with this one, except for the policy.
    pub(crate) fn with_policy(&self, policy: TargetPolicy) -> Self {
        Self { policy, ..self.clone() }
    }

    /// Returns a dialer that shares everything with this one, and also dials what no rule allows.
    pub(crate) fn allowing_unlisted(&self) -> Self {
        self.with_policy(self.policy.allowing_unlisted())
    }

    /// Returns the policy for targets.
    pub(crate) fn policy(&self) -> &TargetPolicy {
        &self.policy
    }

    /// Returns a dialer for targets that get datagrams.
    pub(crate) fn for_datagrams(&self) -> Self {
        self.with_policy(self.policy.clone().for_datagrams())
    }

    /// Checks `address`. If the client has named the target, the address is one of those that
    /// [`Self::addresses`] has returned for `name`.
    ///
    /// # Errors
    /// Returns the reason for a refusal.
    pub(crate) fn check(&self, name: Option<&str>, address: SocketAddr) -> Result<(), Denied> {
        let Some(name) = name.filter(|_| self.policy.has_rules_for_names()) else {
            return self.policy.check(None, address);
        };
        // It is not known which reading has led to the address, but it was an allowed one.
        let readings = self.readings(name, Purpose::Target(None));
        let mut checks = readings
            .iter()
            .map(|reading| self.policy.check(Some(&reading.name), address));
        let first = checks.next().unwrap_or_else(|| self.policy.check(Some(name), address));
        first.or_else(|denied| checks.find(Result::is_ok).unwrap_or(Err(denied)))
    }

    /// Returns whether a target is a listener of this program, to which an upstream proxy would
    /// connect.
    pub(crate) fn is_own_listener(&self, target: SocketAddr) -> bool {
        self.policy.check_loop(target).is_err()
    }

    /// Connects without upstream proxies.
    pub(super) async fn connect(
        &self,
        target: &Target,
        purpose: Purpose<'_>,
        caller: Caller,
    ) -> Result<Dialed, DialError> {
        match target {
            Target::Ip(address) => {
                let address = canonical(*address);
                tokio::select! {
                    biased;
                    dialed = self.attempt(address, purpose, caller) => dialed,
                    () = in_own_task(sleep_until(caller.deadline)) => {
                        Err(DialError::Unreachable(Target::Ip(address), SocketError::timed_out()))
                    }
                }
            }
            // Boxed, so that a dial of an address does not hold the memory of lookups.
            Target::Name(name, port) => Box::pin(self.connect_by_name(name, *port, purpose, caller)).await,
            Target::Unix(path) => {
                self.policy.check_path(path)?;
                if self.policy.is_hop_to_path(path) {
                    caller.hops.next().map_err(Denied::from)?;
                }
                let connected = unix::connect(path, caller.deadline).await;
                let stream = connected.map_err(|error| DialError::Unreachable(target.clone(), error))?;
                Ok(Dialed::new(stream.into(), None, None))
            }
        }
    }

    /// Tries the readings of a name in order, until one of them has an address. A reading is the
    /// name itself, or the name with a search domain.
    async fn connect_by_name(
        &self,
        name: &str,
        port: u16,
        purpose: Purpose<'_>,
        caller: Caller,
    ) -> Result<Dialed, DialError> {
        let deadline = caller.deadline;
        let mut unresolved = DialError::Unresolved(LookupError::NoAddress);
        let (any, mut end) = (SocketAddr::from(([0, 0, 0, 0], port)), SearchEnd::default());
        for reading in self.readings(name, purpose) {
            if end.skips(&reading) {
                continue;
            }
            let purpose = match self.check_reading(&reading.name, port, purpose) {
                Ok(purpose) => purpose,
                Err(denied) => {
                    unresolved = denied;
                    continue;
                }
            };
            let (eyeballs, lookups) = match self.resolver.look_up(&reading, caller) {
                Lookup::Families(lookups) => (HappyEyeballs::looking_up(), lookups.into()),
                Lookup::Whole(lookup) => match within(deadline, lookup).await {
                    Ok(addresses) => (HappyEyeballs::with_addresses(addresses), Vec::new()),
                    Err(error) => {
                        end.failed(&reading, &error);
                        unresolved = unresolved.or(error.into());
                        continue;
                    }
                },
            };
            match self.connect_any(eyeballs, lookups, any, purpose, caller).await {
                Err(DialError::Unresolved(error)) => {
                    end.failed(&reading, &error);
                    unresolved = unresolved.or(error.into());
                }
                done => return done,
            }
        }
        Err(unresolved)
    }

    /// Returns the whole names that a name may represent. If a rule has a name, the system's
    /// resolver must not use its search list, because the program would not know the whole name.
    fn readings(&self, name: &str, purpose: Purpose<'_>) -> Vec<Reading> {
        let only_whole = purpose != Purpose::Proxy && self.policy.has_rules_for_names();
        self.resolver.readings(name, only_whole)
    }

    /// Checks a whole name before its lookup, and returns the purpose with the name.
    fn check_reading<'a>(&self, reading: &'a str, port: u16, purpose: Purpose<'_>) -> Result<Purpose<'a>, DialError> {
        match purpose {
            Purpose::Proxy => Ok(Purpose::Proxy),
            Purpose::Target(_) => {
                self.policy.check_reading(reading, port)?;
                Ok(Purpose::Target(Some(reading)))
            }
        }
    }

    /// Tries addresses with the port of `model`, and with its zone.
    pub(super) async fn connect_any<'a>(
        &'a self,
        eyeballs: HappyEyeballs,
        lookups: Vec<Pending<'a, Found>>,
        model: SocketAddr,
        purpose: Purpose<'a>,
        caller: Caller,
    ) -> Result<Dialed, DialError> {
        let own = Arc::new(Semaphore::new(1));
        let attempt = |address: SocketAddr| -> Pending<'a, Result<Dialed, DialError>> {
            let own = Arc::clone(&own);
            Box::pin(async move {
                // The attempt uses the session's own descriptor, or else a shared one.
                let _descriptor = tokio::select! {
                    biased;
                    own = own.acquire() => own,
                    beside = self.beside.acquire() => beside,
                };
                self.attempt(address, purpose, caller).await
            })
        };
        first_to_connect(eyeballs, lookups, model, attempt, caller.deadline).await
    }

    /// Checks `address` and connects to it. Every dial of an IP address uses this method, so no
    /// address is unchecked.
    async fn attempt(&self, address: SocketAddr, purpose: Purpose<'_>, caller: Caller) -> Result<Dialed, DialError> {
        let denied = |denied| DialError::Denied(denied, Some(address.ip()));
        let is_hop = match purpose {
            Purpose::Target(name) => {
                self.policy.check(name, address).map_err(denied)?;
                self.policy.is_hop(address)
            }
            // The operator has named the proxy.
            Purpose::Proxy => self.is_own_listener(address),
        };
        let hops = if is_hop {
            caller.hops.next().map_err(|many| denied(many.into()))?
        } else {
            Hops::default()
        };
        let connected = self.settings.sockets.connect_after(hops, address, caller.ip).await;
        let (stream, own) = connected.map_err(|error| DialError::Unreachable(Target::Ip(address), error))?;
        Ok(Dialed::new(stream.into(), Some(address), own))
    }

    /// Looks up the addresses of a name. Returns the whole name that has them, too.
    pub(super) async fn look_up(
        &self,
        name: &str,
        port: u16,
        purpose: Purpose<'_>,
        caller: Caller,
    ) -> Result<(String, Vec<SocketAddr>), DialError> {
        let check = |reading: &str| self.check_reading(reading, port, purpose).map(drop);
        let (reading, addresses) = self
            .resolver
            .first_with_addresses(self.readings(name, purpose), caller, check)
            .await?;
        let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, port));
        Ok((reading, addresses.collect()))
    }
}

impl Dialed {
    fn new(stream: Stream, address: Option<SocketAddr>, own: Option<Box<OwnDial>>) -> Self {
        Self {
            stream,
            early: Vec::new(),
            address,
            is_new: true,
            own,
            proxy: None,
            tls: None,
        }
    }
}
