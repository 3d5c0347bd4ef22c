//! Looks up names as glibc does: in `/etc/hosts`, with the servers of `/etc/resolv.conf`, or with
//! the C library where only that knows the answer (`docs/design/011-names.md`).

use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::rr::RecordType;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::Caller;
use super::cache::Cache;
use super::happy_eyeballs::{Family, HappyEyeballs, RESOLUTION_DELAY};
use files::{Files, Snapshot};
use nsswitch::{OwnPlan, Plan, Source};
use places::{Place, Places, TooLate};
use query::{Reply, ask};
use resolv_conf::ResolvConf;

mod files;
mod hosts;
mod ignored;
mod members;
mod nsswitch;
mod places;
mod query;
mod resolv_conf;

#[cfg(test)]
pub(crate) use members::Families;
pub(crate) use members::{Member, MemberList, Memory};
pub(super) use places::Key;

/// The maximum number of threads in `getaddrinfo(3)`. A call may take 30 s and cannot be cancelled.
const IN_SYSTEM_MAX: usize = 64;
/// How long the lookup of all addresses waits for IPv4 when it has IPv6 addresses. IPv6 may have no
/// route.
const V4_DELAY: Duration = Duration::from_millis(250);
/// How long a lookup waits for the other family when a server has said that there is no such name.
/// That holds for both families, but some servers say so wrongly about IPv6.
pub(super) const NO_NAME_DELAY: Duration = Duration::from_secs(1);
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

/// A boxed future of any type.
pub(super) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The answer for one address family.
pub(super) struct Found {
    pub(super) family: Family,
    pub(super) addresses: Result<Vec<IpAddr>, LookupError>,
    /// Whether a server has said that there is no such name.
    pub(super) no_such_name: bool,
}

/// A name that a host may stand for, and who knows its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) name: String,
    origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// The addresses are known, from `/etc/hosts`.
    Known(Vec<IpAddr>),
    /// The name servers. The name may have a search domain.
    Dns { is_searched: bool },
    /// The C library.
    System,
}

/// A lookup in progress.
pub(super) enum Lookup<'a> {
    Whole(Pending<'a, Result<Vec<IpAddr>, LookupError>>),
    /// One future for each family, because one answer may take much longer than the other.
    Families([Pending<'a, Found>; 2]),
}

/// The reason why a lookup found no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// The name has no address.
    NoAddress,
    /// No answer came in time.
    TimedOut,
    /// The lookup failed.
    Failed(Arc<str>),
    /// No server could be reached.
    Unreachable(Arc<str>),
    /// The client has too many slow lookups, so this lookup could not start in time.
    TooMany,
}

pub(super) struct Resolver {
    from: Servers,
    files: Arc<Files>,
    cache: Mutex<Cached>,
    /// The places for queries. Each uses one socket. Answers from the cache do not need a place.
    asking: Places,
    /// The places for calls of the C library.
    in_system: Places,
    /// The number of lookups, for the option `rotate`.
    lookups: AtomicUsize,
}

enum Servers {
    /// Those of the files.
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
    pub(super) fn new(settings: &ResolverSettings, descriptors: usize) -> Self {
        let from = match settings {
            ResolverSettings::Configured => Servers::Configured,
            ResolverSettings::System => Servers::System,
            ResolverSettings::Servers(servers) => Servers::These(Arc::new(ResolvConf::of_servers(servers.clone()))),
        };
        Self::of(from, Files::of_system(), descriptors)
    }

    fn of(from: Servers, files: Arc<Files>, descriptors: usize) -> Self {
        Self {
            from,
            files,
            cache: Mutex::default(),
            asking: Places::new(descriptors),
            in_system: Places::new(IN_SYSTEM_MAX),
            lookups: AtomicUsize::new(0),
        }
    }

    /// Adds a search domain, which has a final dot.
    #[cfg(test)]
    pub(super) fn with_search(mut self, domain: &str) -> Self {
        if let Servers::These(conf) = &mut self.from {
            Arc::make_mut(conf).search = vec![domain.into()];
        }
        self
    }

    /// Returns what the files say now. `None` means that the C library looks up all names.
    fn current(&self) -> Option<Snapshot> {
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
    pub(super) fn readings(&self, host: &str, only_whole: bool) -> Vec<Reading> {
        let host = host.to_ascii_lowercase();
        let Some(now) = self.current() else {
            return vec![by_system(host, only_whole)];
        };
        // `current` has checked the plan.
        let Plan::Own(plan) = &*now.plan else {
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
    pub(super) fn look_up<'a>(&'a self, reading: &'a Reading, caller: Caller) -> Lookup<'a> {
        let name = &*reading.name;
        match (&reading.origin, self.current()) {
            (Origin::Known(addresses), _) => Lookup::Whole(Box::pin(async { Ok(addresses.clone()) })),
            (Origin::Dns { .. }, Some(now)) => {
                let is_in_turn = now.conf.options.single_request;
                let first = self.first_server(&now);
                let found = |family, now: Snapshot| -> Pending<'a, Found> {
                    Box::pin(self.found(name, family, now, first, caller))
                };
                let [v6, v4] = [found(Family::V6, now.clone()), found(Family::V4, now)];
                if is_in_turn {
                    Lookup::Whole(Box::pin(one_after_other(v4, v6)))
                } else {
                    Lookup::Families([v6, v4])
                }
            }
            (Origin::Dns { .. } | Origin::System, _) => {
                Lookup::Whole(Box::pin(ask_system(name, &self.in_system, caller)))
            }
        }
    }

    fn first_server(&self, now: &Snapshot) -> usize {
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
    pub(super) async fn all<E: From<LookupError>>(
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
                    return Ok((reading.name, HappyEyeballs::of(addresses).in_turn()));
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

    async fn found(&self, name: &str, family: Family, now: Snapshot, first: usize, caller: Caller) -> Found {
        let reply = if family == Family::V6 && now.conf.options.no_aaaa {
            Ok((Vec::new(), false))
        } else if let Some(addresses) = self.cached(name, family, now.generation) {
            Ok((addresses, false))
        } else {
            match self.asking.take(caller.client, caller.deadline).await {
                Ok(place) => self.ask(name, family, &now, first, place).await,
                Err(too_late) => Err(too_late.into()),
            }
        };
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

    /// Queries the servers and caches the answer for its TTL. Returns whether there is no such
    /// name, too.
    async fn ask(
        &self,
        name: &str,
        family: Family,
        now: &Snapshot,
        first: usize,
        _place: Place,
    ) -> Result<(Vec<IpAddr>, bool), LookupError> {
        let reply = query(&now.conf, first, name, family).await?;
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

/// What a failed reading means for the later ones.
#[derive(Debug, Default)]
pub(super) struct SearchEnd(bool);

impl SearchEnd {
    /// Returns whether this reading must not be tried any more.
    pub(super) fn skips(&self, reading: &Reading) -> bool {
        self.0 && reading.origin == Origin::Dns { is_searched: true }
    }

    /// Records the failure of a reading. If no server has answered about a name with a search
    /// domain, that name may exist, and the next domain may have another host of this name. glibc
    /// then tries only the name without a domain.
    pub(super) fn failed(&mut self, reading: &Reading, error: &LookupError) {
        let is_silence = !matches!(error, LookupError::NoAddress | LookupError::Failed(_));
        self.0 |= is_silence && reading.origin == Origin::Dns { is_searched: true };
    }
}

fn by_dns(host: &str, names: Vec<String>) -> impl Iterator<Item = Reading> {
    let shortest = host.len() + 1;
    names.into_iter().map(move |name| Reading {
        origin: Origin::Dns {
            is_searched: name.len() > shortest,
        },
        name,
    })
}

fn by_system(mut host: String, only_whole: bool) -> Reading {
    if only_whole && !host.ends_with('.') {
        host.push('.');
    }
    Reading {
        name: host,
        origin: Origin::System,
    }
}

fn known(name: String, addresses: Vec<IpAddr>) -> Reading {
    Reading {
        name,
        origin: Origin::Known(addresses),
    }
}

/// Returns the addresses of `localhost` and of all names below it (RFC 6761).
fn loopback_of(host: &str) -> Option<Vec<IpAddr>> {
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_localhost = name == "localhost" || name.ends_with(".localhost");
    is_localhost.then(|| {
        vec![
            std::net::Ipv6Addr::LOCALHOST.into(),
            std::net::Ipv4Addr::LOCALHOST.into(),
        ]
    })
}

async fn query(conf: &ResolvConf, first: usize, name: &str, family: Family) -> Result<Reply, LookupError> {
    let record_type = match family {
        Family::V6 => RecordType::AAAA,
        Family::V4 => RecordType::A,
    };
    ask(conf, first, name, record_type).await
}

/// Waits for `lookup` until `deadline`.
pub(super) async fn within<T>(
    deadline: Instant,
    lookup: impl Future<Output = Result<T, LookupError>>,
) -> Result<T, LookupError> {
    timeout_at(deadline, lookup).await.unwrap_or(Err(LookupError::TimedOut))
}

/// Joins both answers.
async fn both(mut v6: Pending<'_, Found>, mut v4: Pending<'_, Found>) -> Result<Vec<IpAddr>, LookupError> {
    let (first, other) = tokio::select! {
        biased;
        found = &mut v6 => (found, v4),
        found = &mut v4 => (found, v6),
    };
    joined(first, other).await
}

async fn one_after_other(v4: Pending<'_, Found>, v6: Pending<'_, Found>) -> Result<Vec<IpAddr>, LookupError> {
    joined(v4.await, v6).await
}

/// Joins the answer for one family and that for the other, which may never come. If one lookup
/// fails, the addresses of the other one count.
async fn joined(first: Found, other: Pending<'_, Found>) -> Result<Vec<IpAddr>, LookupError> {
    let patience = match &first.addresses {
        Ok(found) if !found.is_empty() && first.family == Family::V4 => Some(RESOLUTION_DELAY),
        Ok(found) if !found.is_empty() => Some(V4_DELAY),
        Ok(_) if first.no_such_name => Some(NO_NAME_DELAY),
        _ => None,
    };
    let other = match patience {
        None => other.await,
        Some(patience) => match tokio::time::timeout(patience, other).await {
            Ok(other) => other,
            Err(_) => return first.addresses,
        },
    };
    match (first.addresses, other.addresses) {
        (Ok(mut found), Ok(more)) => {
            found.extend(more);
            Ok(found)
        }
        (Ok(found), Err(_)) | (Err(_), Ok(found)) if !found.is_empty() => Ok(found),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

async fn ask_system(name: &str, places: &Places, caller: Caller) -> Result<Vec<IpAddr>, LookupError> {
    let place = places.take(caller.client, caller.deadline).await?;
    let name = name.to_owned();
    // The thread keeps its place even if the caller gives up.
    let found = spawn_blocking(move || (system_look_up(&name), place)).await;
    let found = found.map_err(io::Error::other).and_then(|(found, _)| found);
    found.map_err(|error| LookupError::Failed(error.to_string().into()))
}

fn system_look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl From<TooLate> for LookupError {
    fn from(_: TooLate) -> Self {
        Self::TooMany
    }
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("the name has no address"),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Failed(error) | Self::Unreachable(error) => f.write_str(error),
            Self::TooMany => f.write_str("too many lookups of this client are in progress"),
        }
    }
}

#[cfg(test)]
mod tests;
