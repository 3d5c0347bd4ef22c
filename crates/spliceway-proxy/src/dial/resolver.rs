//! Names to addresses: `/etc/hosts`, the cache, then the name servers; or the system's own resolver.

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

mod places;

pub(super) use places::Key;

/// Domains that a short name is tried in: as many as resolv.conf(5) could always have. Each costs two questions.
const SEARCH_MAX: usize = 6;
/// Sockets that a question for one family has open at most: hickory asks two servers at once, and again where one is slow.
const EACH_QUESTION: usize = 3;
/// The most threads in `getaddrinfo(3)` at once. A call may take half a minute and cannot be cancelled.
const IN_SYSTEM_MAX: usize = 64;

/// Who looks names up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ResolverSettings {
    /// We, as `/etc/resolv.conf` says; without one, the system.
    #[default]
    Configured,
    /// The system's `getaddrinfo(3)`. It tells nobody how long an answer holds, so that it is asked every time.
    System,
    /// We, of these servers.
    Servers(Vec<SocketAddr>),
}

/// Something to be polled, of whatever kind.
pub(super) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An answer about one family of addresses.
pub(super) struct Found {
    pub(super) family: Family,
    pub(super) addresses: Result<Vec<IpAddr>, LookupError>,
}

/// A question, under way.
pub(super) enum Lookup<'a> {
    Whole(Pending<'a, Result<Vec<IpAddr>, LookupError>>),
    /// Two, of which one may be much later than the other.
    Families([Pending<'a, Found>; 2]),
}

/// Why a name came to no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// It has none.
    NoAddress,
    /// No answer came.
    TimedOut,
    /// Nobody could say.
    Failed(Arc<str>),
    /// The client has so many slow lookups that this one could not start in time.
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
    /// Questions under way. What the cache knows is no question.
    asking: Places,
}

/// What short names may be short for.
#[derive(Debug, Default)]
struct Search {
    /// In lower case, each with a dot at the end.
    domains: Vec<Box<str>>,
    /// A name with so many dots is tried as it is before anything else.
    ndots: usize,
}

impl Resolver {
    /// # Errors
    /// Servers that no resolver can be made of.
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
                    tracing::warn!(%error, "no usable /etc/resolv.conf: names are looked up by the system, and nothing is cached");
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
        // Names are whole when they come there, and hosts and cache are ours.
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

    /// What `host` may stand for, the likeliest first: never nothing. In lower case.
    pub(super) fn readings(&self, host: &str) -> Vec<String> {
        let host = host.to_ascii_lowercase();
        match self {
            Self::System(_) => vec![host],
            Self::Dns(dns) if dns.in_hosts(&host).is_some() => vec![host],
            Self::Dns(dns) => dns.search.readings(host),
        }
    }

    /// Asks for one of the readings.
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

    /// Every address of `host` that a connection would try, in the order it would. Cancel safe.
    pub(super) async fn all(&self, host: &str, caller: Caller) -> Result<Vec<IpAddr>, LookupError> {
        let mut failed = LookupError::NoAddress;
        for reading in self.readings(host) {
            let found = match self.look_up(&reading, caller) {
                Lookup::Whole(lookup) => within(caller.deadline, lookup).await,
                Lookup::Families([v6, v4]) => within(caller.deadline, both(v6, v4)).await,
            };
            match found {
                Ok(addresses) if !addresses.is_empty() => return Ok(HappyEyeballs::of(addresses).in_turn()),
                Ok(_) => {}
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

/// `lookup`, if it is done in time.
pub(super) async fn within<T>(
    deadline: Instant,
    lookup: impl Future<Output = Result<T, LookupError>>,
) -> Result<T, LookupError> {
    timeout_at(deadline, lookup).await.unwrap_or(Err(LookupError::TimedOut))
}

/// What either has, if one of them has something.
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

/// A server asked by UDP, and by TCP where an answer is too long for that.
fn server(address: SocketAddr) -> NameServerConfig {
    let connection = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = vec![connection(ConnectionConfig::udp()), connection(ConnectionConfig::tcp())];
    NameServerConfig::new(address.ip(), true, connections)
}

impl Dns {
    /// What `/etc/hosts` says of a name. What it has no address of a family for has none: that is asked of nobody else.
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

    /// Asks the servers, and remembers the answer for as long as it says.
    async fn ask(&self, name: &str, family: Family, _place: Place) -> Result<Vec<IpAddr>, LookupError> {
        // No name of DNS: nobody has to be asked to know that it has no address.
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
                // Aliases on the way hold no longer than the addresses behind them, nor the other way round.
                (addresses, answers.iter().map(|record| record.ttl).min())
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => (Vec::new(), none.negative_ttl),
            Err(NetError::Timeout) => return Err(LookupError::TimedOut),
            Err(error) => return Err(LookupError::Failed(error.to_string().into())),
        };
        let ttl = Duration::from_secs(ttl.unwrap_or(0).into());
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.put(name, family, &addresses, ttl, Instant::now());
        Ok(addresses)
    }
}

impl Search {
    fn new(config: &ResolverConfig, ndots: usize) -> Self {
        let listed = config.search().iter();
        // The domain of this machine is what is searched if nothing is said.
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

    /// As resolv.conf(5) has it: a name with a dot at its end is whole, a name with dots is more likely so than not.
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
            Self::TooMany => f.write_str("too many lookups of this client are under way"),
        }
    }
}

#[cfg(test)]
mod tests;
