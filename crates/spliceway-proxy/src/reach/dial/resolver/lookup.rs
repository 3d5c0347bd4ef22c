//! Looks up names in `/etc/hosts`, with name servers, or with the C library.

use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::answer::{Found, Lookup, LookupError, Pending, both, joined, within};
use super::files::{Files, Snapshot};
use super::nsswitch::{OwnPlan, Plan, Source};
use super::permits::LookupPermits;
use super::query::query_addresses;
use super::reading::{Origin, Reading, SearchEnd, by_dns, by_system, known, loopback_of};
use super::resolv_conf::ResolvConf;
use crate::reach::dial::cache::Cache;
use crate::reach::dial::happy_eyeballs::{Family, HappyEyeballs};
use crate::reach::dial::request::Caller;

/// The maximum number of threads in `getaddrinfo(3)`. A call may take 30 s and cannot be cancelled.
const IN_SYSTEM_MAX: usize = 64;
/// Where systemd-machined lists the containers.
const MACHINES: &str = "/run/systemd/machines";

/// The resolver to use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ResolverSettings {
    /// As `/etc/nsswitch.conf`, `/etc/resolv.conf` and `/etc/hosts` say.
    #[default]
    Configured,
    /// The system's `getaddrinfo(3)`. It does not report how long an answer is valid, so every
    /// lookup calls it.
    System,
    /// `/etc/hosts`, and DNS with these servers, which are asked in this order.
    Servers(Vec<SocketAddr>),
}

impl ResolverSettings {
    /// Returns whether the operator has named this server.
    pub(crate) fn has(&self, server: SocketAddr) -> bool {
        matches!(self, Self::Servers(servers) if servers.contains(&server))
    }
}

pub(in crate::reach::dial) struct Resolver {
    pub(super) from: Servers,
    pub(super) files: Arc<Files>,
    cache: Mutex<Cached>,
    /// Each query uses one socket. Answers from the cache do not need a permit.
    pub(super) query_permits: LookupPermits,
    /// The permits to call the C library.
    system_permits: LookupPermits,
    /// The number of lookups, for the option `rotate`.
    lookups: AtomicUsize,
}

pub(super) enum Servers {
    /// The addresses in the files.
    Configured,
    System,
    These(Arc<ResolvConf>),
}

#[derive(Default)]
struct Cached {
    cache: Cache,
    /// The generation of the files under which the answers came.
    generation: u64,
}

impl Resolver {
    /// Creates a resolver whose DNS queries use up to `descriptors` sockets at the same time. At
    /// least one query can always run.
    pub(in crate::reach::dial) fn new(settings: &ResolverSettings, descriptors: usize) -> Self {
        let from = match settings {
            ResolverSettings::Configured => Servers::Configured,
            ResolverSettings::System => Servers::System,
            ResolverSettings::Servers(servers) => Servers::These(Arc::new(ResolvConf::with_servers(servers.clone()))),
        };
        Self::with_files(from, Files::system(), descriptors)
    }

    pub(super) fn with_files(from: Servers, files: Arc<Files>, descriptors: usize) -> Self {
        Self {
            from,
            files,
            cache: Mutex::default(),
            query_permits: LookupPermits::new(descriptors),
            system_permits: LookupPermits::new(IN_SYSTEM_MAX),
            lookups: AtomicUsize::new(0),
        }
    }

    /// Adds a search domain, which has a final dot.
    #[cfg(test)]
    pub(in crate::reach::dial) fn with_search(mut self, domain: &str) -> Self {
        if let Servers::These(conf) = &mut self.from {
            Arc::make_mut(conf).search = vec![domain.into()];
        }
        self
    }

    /// Returns what the files say now. `None` means that the C library looks up all names.
    pub(super) fn current(&self) -> Option<Snapshot> {
        let mut now = match self.from {
            Servers::System => return None,
            Servers::Configured | Servers::These(_) => self.files.current(),
        };
        if let Servers::These(conf) = &self.from {
            (now.conf, now.plan, now.generation) = (Arc::clone(conf), Arc::default(), 0);
        }
        now.reason_for_system().is_none().then_some(now)
    }

    /// Returns the names that `host` may represent, with the likeliest one first.
    ///
    /// The C library has a search list of its own. With `only_whole`, it must not use that: the
    /// name has a final dot. Then it does not find names in `/etc/hosts`, either.
    pub(in crate::reach::dial) fn readings(&self, host: &str, only_whole: bool) -> Vec<Reading> {
        let host = host.to_ascii_lowercase();
        let now = self.current();
        let Some((now, Plan::Own(plan))) = now.as_ref().map(|now| (now, &*now.plan)) else {
            return vec![by_system(host, only_whole)];
        };
        let in_files = || now.hosts.get(&host).map(<[IpAddr]>::to_vec);
        if let Some(addresses) = loopback_of(&host) {
            // The file of this machine may have one of the two addresses only.
            let listed = now.hosts.get(host.trim_end_matches('.')).map(<[IpAddr]>::to_vec);
            return vec![known(host, listed.unwrap_or(addresses))];
        }
        if self.is_for_system(&host, plan) && in_files().is_none() {
            return vec![by_system(host, only_whole)];
        }
        let mut readings = Vec::new();
        for source in &plan.sources {
            match source {
                Source::Files => match in_files() {
                    Some(addresses) if readings.is_empty() => return vec![known(host, addresses)],
                    Some(addresses) => readings.push(known(host.clone(), addresses)),
                    None => {}
                },
                Source::Dns if host.ends_with(".onion") || host.ends_with(".onion.") => {}
                Source::Dns => readings.extend(by_dns(&host, now.conf.whole_names(&host))),
            }
        }
        if readings.is_empty() {
            readings.push(known(host, Vec::new()));
        }
        readings
    }

    /// Returns whether only a module of the C library knows the name.
    fn is_for_system(&self, host: &str, plan: &OwnPlan) -> bool {
        let name = host.strip_suffix('.').unwrap_or(host);
        let is_own = || name.eq_ignore_ascii_case(self.files.hostname()) || matches!(name, "_gateway" | "_outbound");
        // A host name has no slash, and a name of dots is none.
        let is_machine = || !name.starts_with('.') && Path::new(MACHINES).join(name).exists();
        (plan.mdns && name.ends_with(".local")) || (plan.myhostname && is_own()) || (plan.mymachines && is_machine())
    }

    /// Starts the lookup of one reading.
    pub(in crate::reach::dial) fn look_up<'a>(&'a self, reading: &'a Reading, caller: Caller) -> Lookup<'a> {
        let name = &*reading.name;
        match (&reading.origin, self.current()) {
            (Origin::Known(addresses), _) => Lookup::Whole(Box::pin(async { Ok(addresses.clone()) })),
            (Origin::Dns { .. }, Some(now)) => {
                let is_in_turn = now.conf.options.single_request;
                let first = self.first_server(&now);
                let lookup = |family, now: Snapshot| -> Pending<'a, Found> {
                    Box::pin(self.look_up_family(name, family, now, first, caller))
                };
                let [v6, v4] = [lookup(Family::V6, now.clone()), lookup(Family::V4, now)];
                if is_in_turn {
                    Lookup::Whole(Box::pin(async { joined(v4.await, v6).await }))
                } else {
                    Lookup::Families([v6, v4])
                }
            }
            (Origin::Dns { .. } | Origin::System, _) => {
                Lookup::Whole(Box::pin(look_up_in_system(name, &self.system_permits, caller)))
            }
        }
    }

    pub(super) fn first_server(&self, now: &Snapshot) -> usize {
        if now.conf.options.rotate {
            self.lookups.fetch_add(1, Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Returns the first of `readings` that has addresses, and those addresses that a connection
    /// would try, in that order. A reading that does not pass `check` is not looked up. Cancel
    /// safe.
    ///
    /// If one family has addresses, the other one gets little more time: a name server may never
    /// answer about it.
    ///
    /// # Errors
    /// Returns the error of a check, or else that of the last lookup.
    pub(in crate::reach::dial) async fn first_with_addresses<E: From<LookupError>>(
        &self,
        readings: Vec<Reading>,
        caller: Caller,
        check: impl Fn(&str) -> Result<(), E>,
    ) -> Result<(String, Vec<IpAddr>), E> {
        let mut failed = LookupError::NoAddress;
        let (mut refused, mut end) = (None, SearchEnd::default());
        for reading in readings {
            if end.skips(&reading) {
                continue;
            }
            if let Err(error) = check(&reading.name) {
                refused = Some(error);
                continue;
            }
            let found = match self.look_up(&reading, caller) {
                Lookup::Whole(lookup) => within(caller.deadline, lookup).await,
                Lookup::Families([v6, v4]) => within(caller.deadline, both(v6, v4)).await,
            };
            match found {
                Ok(addresses) if !addresses.is_empty() => {
                    return Ok((reading.name, HappyEyeballs::with_addresses(addresses).in_turn()));
                }
                Ok(_) => {}
                Err(error) => {
                    end.failed(&reading, &error);
                    failed = failed.or(error);
                }
            }
        }
        Err(refused.unwrap_or_else(|| failed.into()))
    }

    async fn look_up_family(&self, name: &str, family: Family, now: Snapshot, first: usize, caller: Caller) -> Found {
        let reply = self.addresses(name, family, now, first, caller).await;
        let no_such_name = matches!(reply, Ok((_, true)));
        Found {
            family,
            addresses: reply.map(|(addresses, _)| addresses),
            no_such_name,
        }
    }

    fn cached(&self, name: &str, family: Family, generation: u64) -> Option<Vec<IpAddr>> {
        let mut cached = self.cache.lock();
        if cached.generation != generation {
            // Other servers may know other names.
            *cached = Cached {
                cache: Cache::default(),
                generation,
            };
        }
        let addresses = cached.cache.get(name, family, Instant::now())?;
        Some(addresses.to_vec())
    }

    /// Returns the addresses of one family: those of the cache, or else those of an answer, which
    /// is cached for its TTL. Returns whether a server has said that there is no such name, too.
    async fn addresses(
        &self,
        name: &str,
        family: Family,
        now: Snapshot,
        first: usize,
        caller: Caller,
    ) -> Result<(Vec<IpAddr>, bool), LookupError> {
        if family == Family::V6 && now.conf.options.no_aaaa {
            return Ok((Vec::new(), false));
        }
        if let Some(addresses) = self.cached(name, family, now.generation) {
            return Ok((addresses, false));
        }
        let _permit = self.query_permits.take(caller.client, caller.deadline).await?;
        let reply = query_addresses(&now.conf, first, name, family).await?;
        let addresses = reply.addresses();
        let mut cached = self.cache.lock();
        if cached.generation == now.generation {
            let now = Instant::now();
            cached.cache.put(name, family, &addresses, reply.ttl, now);
            // The name has no addresses of the other family either. Servers that say so wrongly do
            // it for IPv6.
            if reply.no_such_name && family == Family::V4 && cached.cache.get(name, Family::V6, now).is_none() {
                cached.cache.put(name, Family::V6, &[], reply.ttl, now);
            }
        }
        Ok((addresses, reply.no_such_name))
    }
}

async fn look_up_in_system(name: &str, permits: &LookupPermits, caller: Caller) -> Result<Vec<IpAddr>, LookupError> {
    let permit = permits.take(caller.client, caller.deadline).await?;
    let name = name.to_owned();
    // The thread keeps its permit even if the caller gives up.
    let found = spawn_blocking(move || ((&*name, 0).to_socket_addrs(), permit)).await;
    let found = found.map_err(io::Error::other).and_then(|(found, _)| found);
    let found = found.map_err(|error| LookupError::Failed(error.to_string().into()))?;
    Ok(found.map(|address| address.ip()).collect())
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}
