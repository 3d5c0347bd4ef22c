//! Looks up names in `/etc/hosts`, the cache and DNS, or with the system's own resolver.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup as Answered;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::Caller;
use super::cache::Cache;
use super::happy_eyeballs::{Family, HappyEyeballs};
use places::{Place, Places, TooLate};

mod members;
mod places;

use members::Valid;
pub(crate) use members::{Member, MemberList};
pub(super) use places::Key;

/// The maximum number of search domains for a short name: as many as resolv.conf(5) has always
/// allowed. Each of them costs two queries.
const SEARCH_MAX: usize = 6;
/// The maximum number of sockets that a query for one family uses. hickory asks two servers at the
/// same time and asks again if one of them is slow.
const EACH_QUESTION: usize = 3;
/// The maximum number of threads in `getaddrinfo(3)`. A call may take 30 s and cannot be cancelled.
const IN_SYSTEM_MAX: usize = 64;

/// The resolver to use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ResolverSettings {
    /// DNS as configured in `/etc/resolv.conf`, or the system's resolver if that file cannot be
    /// used.
    #[default]
    Configured,
    /// The system's `getaddrinfo(3)`. It does not report how long an answer is valid, so every
    /// lookup calls it.
    System,
    /// DNS with these servers.
    Servers(Vec<SocketAddr>),
}

/// A boxed future of any type.
pub(super) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The answer for one address family.
pub(super) struct Found {
    pub(super) family: Family,
    pub(super) addresses: Result<Vec<IpAddr>, LookupError>,
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
    /// The client has too many slow lookups, so this lookup could not start in time.
    TooMany,
}

pub(super) enum Resolver {
    System(Places),
    Dns(Box<Dns>),
}

pub(super) struct Dns {
    servers: TokioResolver,
    hosts: Hosts,
    cache: Mutex<Cache>,
    search: Search,
    /// The places for queries. Answers from the cache do not need a place.
    asking: Places,
}

/// The search list for short names.
#[derive(Debug, Default)]
struct Search {
    /// The domains in lower case, each with a final dot.
    domains: Vec<Box<str>>,
    /// A name with at least this many dots is first tried as it is.
    ndots: usize,
}

impl Resolver {
    /// Creates a resolver whose DNS queries use up to `descriptors` sockets at the same time. At
    /// least one query can always run.
    ///
    /// # Errors
    /// Returns an error if no resolver can be created for the servers.
    pub(super) fn new(settings: &ResolverSettings, descriptors: usize) -> io::Result<Self> {
        let questions = (descriptors / EACH_QUESTION).max(1);
        match settings {
            ResolverSettings::System => Ok(Self::system()),
            ResolverSettings::Servers(servers) => {
                let servers = servers.iter().map(|address| server(*address)).collect();
                let config = ResolverConfig::from_name_servers(servers);
                Self::of(
                    config,
                    ResolverOpts::default(),
                    Hosts::from_system().unwrap_or_default(),
                    questions,
                )
            }
            ResolverSettings::Configured => match system_conf::read_system_conf() {
                Ok((config, options)) => Self::of(config, options, Hosts::from_system().unwrap_or_default(), questions),
                Err(error) => {
                    tracing::warn!(%error, "cannot use /etc/resolv.conf: the system looks up names, and nothing is cached");
                    Ok(Self::system())
                }
            },
        }
    }

    fn system() -> Self {
        Self::System(Places::new(IN_SYSTEM_MAX))
    }

    fn of(config: ResolverConfig, options: ResolverOpts, hosts: Hosts, questions: usize) -> io::Result<Self> {
        let search = Search::new(&config, options.ndots);
        // hickory gets only complete names. This module handles the search list, the hosts file and
        // the cache.
        let (_, _, name_servers) = config.into_parts();
        let config = ResolverConfig::from_name_servers(name_servers);
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options);
        builder.options_mut().cache_size = 0;
        builder.options_mut().use_hosts_file = ResolveHosts::Never;
        let servers = builder.build().map_err(io::Error::other)?;
        Ok(Self::Dns(Box::new(Dns {
            servers,
            hosts,
            cache: Mutex::default(),
            search,
            asking: Places::new(questions),
        })))
    }

    /// Adds a search domain, which has a final dot.
    #[cfg(test)]
    pub(super) fn with_search(mut self, domain: &str) -> Self {
        if let Self::Dns(dns) = &mut self {
            dns.search.domains = vec![domain.into()];
            dns.search.ndots = 1;
        }
        self
    }

    /// Returns the names that `host` may represent, in lower case and with the likeliest one first.
    /// There is at least one.
    ///
    /// The system's resolver has a search list of its own. With `only_whole`, it must not use that:
    /// the name has a final dot. Then it does not find names in `/etc/hosts`, either.
    pub(super) fn readings(&self, host: &str, only_whole: bool) -> Vec<String> {
        let host = host.to_ascii_lowercase();
        match self {
            Self::System(_) if only_whole && !host.ends_with('.') => vec![host + "."],
            Self::System(_) => vec![host],
            Self::Dns(dns) if dns.in_hosts(&host).is_some() => vec![host],
            Self::Dns(dns) => dns.search.readings(host),
        }
    }

    /// Starts the lookup of one reading.
    pub(super) fn look_up<'a>(&'a self, reading: &'a str, caller: Caller) -> Lookup<'a> {
        match self {
            Self::System(places) => Lookup::Whole(Box::pin(ask_system(reading, places, caller))),
            Self::Dns(dns) => match dns.in_hosts(reading) {
                Some(addresses) => Lookup::Whole(Box::pin(async { Ok(addresses) })),
                None => Lookup::Families([
                    Box::pin(dns.found(reading, Family::V6, caller)),
                    Box::pin(dns.found(reading, Family::V4, caller)),
                ]),
            },
        }
    }

    /// Returns the first of `readings` that has addresses, and those addresses that a connection
    /// would try, in that order. A reading that does not pass `check` is not looked up. Cancel
    /// safe.
    ///
    /// # Errors
    /// Returns the error of a check, or else that of the last lookup.
    pub(super) async fn all<E: From<LookupError>>(
        &self,
        readings: Vec<String>,
        caller: Caller,
        check: impl Fn(&str) -> Result<(), E>,
    ) -> Result<(String, Vec<IpAddr>), E> {
        let mut failed = LookupError::NoAddress;
        let mut refused = None;
        for reading in readings {
            if let Err(error) = check(&reading) {
                refused = Some(error);
                continue;
            }
            let found = match self.look_up(&reading, caller) {
                Lookup::Whole(lookup) => within(caller.deadline, lookup).await,
                Lookup::Families([v6, v4]) => within(caller.deadline, both(v6, v4)).await,
            };
            match found {
                Ok(addresses) if !addresses.is_empty() => {
                    return Ok((reading, HappyEyeballs::of(addresses).in_turn()));
                }
                Ok(_) => {}
                Err(error) => failed = error,
            }
        }
        Err(refused.unwrap_or_else(|| failed.into()))
    }
}

/// Waits for `lookup` until `deadline`.
pub(super) async fn within<T>(
    deadline: Instant,
    lookup: impl Future<Output = Result<T, LookupError>>,
) -> Result<T, LookupError> {
    timeout_at(deadline, lookup).await.unwrap_or(Err(LookupError::TimedOut))
}

/// Joins both answers. If one lookup fails, the addresses of the other one count.
async fn both(v6: Pending<'_, Found>, v4: Pending<'_, Found>) -> Result<Vec<IpAddr>, LookupError> {
    match tokio::join!(v6, v4) {
        (
            Found {
                addresses: Ok(mut v6), ..
            },
            Found { addresses: Ok(v4), .. },
        ) => {
            v6.extend(v4);
            Ok(v6)
        }
        (
            Found {
                addresses: Ok(found), ..
            },
            Found {
                addresses: Err(error), ..
            },
        )
        | (
            Found {
                addresses: Err(error), ..
            },
            Found {
                addresses: Ok(found), ..
            },
        ) => {
            if found.is_empty() {
                Err(error)
            } else {
                Ok(found)
            }
        }
        (
            Found {
                addresses: Err(error), ..
            },
            Found { addresses: Err(_), .. },
        ) => Err(error),
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

fn failure(error: &NetError) -> LookupError {
    match error {
        NetError::Timeout => LookupError::TimedOut,
        NetError::Dns(DnsError::NoRecordsFound(_)) => LookupError::NoAddress,
        error => LookupError::Failed(error.to_string().into()),
    }
}

/// Returns the configuration of a server that is queried over UDP, and over TCP for long answers.
fn server(address: SocketAddr) -> NameServerConfig {
    let connection = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = vec![connection(ConnectionConfig::udp()), connection(ConnectionConfig::tcp())];
    NameServerConfig::new(address.ip(), true, connections)
}

impl Dns {
    /// Returns the addresses of a name in `/etc/hosts`. If the file has addresses of only one
    /// family, the name has no address of the other family, and no server is asked.
    fn in_hosts(&self, name: &str) -> Option<Vec<IpAddr>> {
        let name = Name::from_ascii(name).ok()?;
        let of_type = |record_type| self.hosts.lookup_static_host(&Query::query(name.clone(), record_type));
        let (v6, v4) = (of_type(RecordType::AAAA), of_type(RecordType::A));
        let answers = [&v6, &v4].into_iter().flatten().flat_map(Answered::answers);
        let addresses: Vec<IpAddr> = answers.filter_map(|record| record.data.ip_addr()).collect();
        (!addresses.is_empty()).then_some(addresses)
    }

    async fn found(&self, name: &str, family: Family, caller: Caller) -> Found {
        let addresses = match self.cached(name, family) {
            Some(addresses) => Ok(addresses),
            None => match self.asking.take(caller.client, caller.deadline).await {
                Ok(place) => self.ask(name, family, place).await,
                Err(too_late) => Err(too_late.into()),
            },
        };
        Found { family, addresses }
    }

    fn cached(&self, name: &str, family: Family) -> Option<Vec<IpAddr>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = cache.get(name, family, Instant::now())?;
        Some(addresses.to_vec())
    }

    /// Queries the servers and caches the answer for its TTL.
    async fn ask(&self, name: &str, family: Family, _place: Place) -> Result<Vec<IpAddr>, LookupError> {
        let (addresses, ttl) = self.query(name, family).await?;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.put(name, family, &addresses, ttl, Instant::now());
        Ok(addresses)
    }

    /// Queries the servers. Returns the addresses, which may be none, and the TTL.
    async fn query(&self, name: &str, family: Family) -> Result<Valid<IpAddr>, LookupError> {
        // A text that is not a DNS name has no address, so no server is asked.
        let question = Name::from_ascii(name).map_err(|_| LookupError::NoAddress)?;
        let record_type = match family {
            Family::V6 => RecordType::AAAA,
            Family::V4 => RecordType::A,
        };
        let (addresses, ttl) = match self.servers.lookup(question, record_type).await {
            Ok(lookup) => {
                let answers = lookup.answers();
                let of_type = answers.iter().filter(|record| record.record_type() == record_type);
                let addresses: Vec<IpAddr> = of_type.filter_map(|record| record.data.ip_addr()).collect();
                // An alias and the addresses that it leads to are valid only together, so the
                // shortest TTL counts.
                (addresses, answers.iter().map(|record| record.ttl).min())
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => (Vec::new(), none.negative_ttl),
            Err(error) => return Err(failure(&error)),
        };
        Ok((addresses, Duration::from_secs(ttl.unwrap_or(0).into())))
    }
}

impl Search {
    fn new(config: &ResolverConfig, ndots: usize) -> Self {
        let listed = config.search().iter();
        // Without a search list, the domain of this machine is searched.
        let own = config.domain().filter(|_| config.search().is_empty());
        let text = |domain: &Name| format!("{}.", domain.to_lowercase().to_ascii().trim_end_matches('.'));
        Self {
            domains: listed
                .chain(own)
                .take(SEARCH_MAX)
                .map(|domain| text(domain).into())
                .collect(),
            ndots,
        }
    }

    /// Returns the readings in the order that resolv.conf(5) specifies. A name with a final dot is
    /// complete. A name with enough dots is probably complete, so it is first tried as it is.
    fn readings(&self, host: String) -> Vec<String> {
        if host.ends_with('.') {
            return vec![host];
        }
        let searched = self.domains.iter().map(|domain| format!("{host}.{domain}"));
        let whole = std::iter::once(format!("{host}."));
        let is_localhost = host.rsplit('.').next() == Some("localhost");
        if is_localhost || host.matches('.').count() >= self.ndots {
            whole.chain(searched).collect()
        } else {
            searched.chain(whole).collect()
        }
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(_) => f.write_str("System"),
            Self::Dns(dns) => f
                .debug_struct("Dns")
                .field("search", &dns.search)
                .finish_non_exhaustive(),
        }
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
            Self::Failed(error) => f.write_str(error),
            Self::TooMany => f.write_str("too many lookups of this client are in progress"),
        }
    }
}

#[cfg(test)]
mod tests;
