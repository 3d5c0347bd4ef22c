//! The settings of the program. They are checked and complete, whatever their source.

mod backends;
mod chains;
pub(crate) mod config;
mod distinct;
pub(crate) mod exposure;
mod origin;
mod settle;
mod targets;
mod udp;
mod user_limits;
mod users;

use parking_lot::Mutex;
use std::collections::HashSet;
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use spliceway::{Engine, PipeSize};

use crate::access::accounts::AllLimits;
use crate::access::auth::Users;
use crate::access::policy::{ClientPolicy, TargetAccess};
use crate::access::rates::Rates;
use crate::log::LogSettings;
use crate::net::listener::Transport;
use crate::net::transparent::Interception;
use crate::reach::balance::BalanceSettings;
use crate::reach::dial::DialSettings;
use crate::reach::sni::Routes;
use crate::settings::config::Config;
use spliceway_protocol::address::{ListenAddress, ListenRange, TargetRange};
use spliceway_protocol::proxy;

pub(crate) use origin::Origin;
pub(crate) use settle::settle;

/// Where settings come from. A reload reads them again.
#[derive(Debug)]
pub(crate) enum Source {
    CommandLine(Box<Config>),
    /// A file, or a directory of files.
    Files(PathBuf),
}

impl Source {
    /// Returns the settings as they are now. Files are read again, and user files too.
    ///
    /// # Errors
    /// Returns the first fault, with its flag or its place in a file.
    pub(crate) fn settings(&self) -> Result<Settings, String> {
        match self {
            Self::CommandLine(config) => settle(config, &Origin::CommandLine),
            Self::Files(path) => {
                let (config, sources) = config::source::read(path, &config::source::variable)?;
                settle(&config, &Origin::Files(sources))
            }
        }
    }
}

/// Everything that a run depends on.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) services: Vec<ServiceSettings>,
    pub(crate) users: AllLimits,
    pub(crate) timeouts: Timeouts,
    pub(crate) limits: Limits,
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    /// The time that a worker stays awake after a message.
    pub(crate) spin: Duration,
    pub(crate) workers: NonZeroUsize,
    pub(crate) log: LogSettings,
    /// The time between two records of an open session. `None` means that there are none.
    pub(crate) record_interval: Option<Duration>,
    pub(crate) metrics: Option<ListenAddress>,
    /// The status page on the metrics listener, with the names that its requests may use.
    pub(crate) status_page: Option<Vec<Box<str>>>,
    pub(crate) admin: Option<ListenAddress>,
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
}

impl Settings {
    /// Returns whether sessions depend on these settings in the same way, apart from those of their
    /// service.
    pub(crate) fn has_same_sessions(&self, other: &Self) -> bool {
        let of = |settings: &Self| {
            let Timeouts {
                drain: _,
                handshake,
                connect,
                idle,
                half_close,
                udp,
                max_session,
            } = settings.timeouts;
            let times = (handshake, connect, idle, half_close, udp, max_session);
            (
                times,
                settings.engine,
                settings.pipe_size,
                settings.spin,
                settings.limits.max_dials_per_ip,
            )
        };
        of(self) == of(other)
    }

    /// Returns the keys of settings that differ and cannot change at run time.
    pub(crate) fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        let differ = [
            ("log.format", self.log.format != other.log.format),
            ("log.access", self.log.access != other.log.access),
            ("log.record_interval", self.record_interval != other.record_interval),
            ("limits.nofile", self.limits.descriptors != other.limits.descriptors),
            ("limits.quota_file", self.limits.quota_file != other.limits.quota_file),
            ("engine.workers", self.workers != other.workers),
            ("admin.socket", self.admin != other.admin),
            ("admin.metrics", self.metrics != other.metrics),
            ("admin.status_page", self.status_page != other.status_page),
        ];
        let differ = differ.into_iter().filter(|(_, differs)| *differs);
        differ.map(|(key, _)| key).collect()
    }
}

/// The settings of one service.
#[derive(Debug)]
pub(crate) struct ServiceSettings {
    /// The value of `service` in metrics and records.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) listen: Vec<ListenRange>,
    pub(crate) transport: Transport,
    /// The clients that may connect.
    pub(crate) clients: ClientPolicy,
    /// The users who may request a target. `None` means every client that may connect.
    pub(crate) users: Option<Arc<Users>>,
    /// The longest time that an address must wait after wrong passwords. Zero means no wait.
    pub(crate) auth_penalty: Duration,
    /// Whether everybody may use the service.
    pub(crate) open: bool,
    /// The targets that clients may reach.
    pub(crate) targets: TargetAccess,
    /// The targets of users who have a table of their own.
    pub(crate) user_targets: Vec<UserTargets>,
    pub(crate) accept_proxy: Option<AcceptProxy>,
    pub(crate) send_proxy: Option<proxy::Version>,
    pub(crate) dial: DialSettings,
    /// The backends of a forwarder. `None` if there is only the target of its kind.
    pub(crate) balance: Option<BalanceSettings>,
    /// The rate limits for bytes from clients.
    pub(crate) rates_in: Rates,
    /// The rate limits for bytes to clients.
    pub(crate) rates_out: Rates,
    /// The address that SOCKS replies give for UDP ASSOCIATE and BIND. `None` means the address
    /// that the client reached.
    pub(crate) advertise: Option<IpAddr>,
    /// What the operator has written, with the defaults for all services.
    pub(crate) config: config::Service,
}

/// The targets that one user may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserTargets {
    /// The name as clients send it.
    pub(crate) name: Box<[u8]>,
    pub(crate) targets: TargetAccess,
}

/// The kind of a service.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Relays to one target, or from each port of a range to its own target. With several backends,
    /// this is the first one.
    Forward(TargetRange),
    /// Relays to the target that the client names in SOCKS5 (RFC 1928).
    Socks5,
    /// Relays to the target that the client names in HTTP (RFC 9110): in CONNECT, or in a request
    /// with an absolute URI.
    Http,
    /// Relays for SOCKS5, HTTP and SOCKS4 clients. The first byte identifies the protocol.
    Mixed,
    /// Relays to the target that the client wanted to reach. A firewall rule has sent the client
    /// here instead.
    Transparent(Interception),
    /// Relays TLS clients to the target of the name that they state.
    Sni(Arc<Routes>),
}

impl Kind {
    /// Returns the default name of such a service.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Forward(_) => "forward",
            Self::Socks5 => "socks5",
            Self::Http => "http",
            Self::Mixed => "mixed",
            Self::Transparent(_) => "transparent",
            Self::Sni(_) => "sni",
        }
    }

    /// Returns whether a TPROXY rule sends clients to the listeners.
    pub(crate) fn is_behind_tproxy(&self) -> bool {
        matches!(self, Self::Transparent(Interception::Tproxy))
    }

    /// Returns whether only the operator names targets.
    pub(crate) fn has_fixed_targets(&self) -> bool {
        matches!(self, Self::Forward(_) | Self::Sni(_))
    }
}

impl ServiceSettings {
    /// Returns whether it is a proxy that would serve a client of any address without a password.
    pub(crate) fn is_unguarded_proxy(&self) -> bool {
        let is_proxy = matches!(self.kind, Kind::Socks5 | Kind::Http | Kind::Mixed);
        is_proxy && self.users.is_none() && !self.open && self.accept_proxy.is_none()
    }
}

/// The requirement that every connection begins with a PROXY header, which names the client.
#[derive(Debug, Clone)]
pub(crate) struct AcceptProxy {
    pub(crate) versions: proxy::Accept,
    /// The networks whose headers are trusted. A connection from any other network is refused.
    pub(crate) from: Vec<IpNet>,
}

/// The timeouts of all phases. `None` means off. A timeout that is not an `Option` cannot be off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) handshake: Duration,
    pub(crate) connect: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) half_close: Option<Duration>,
    pub(crate) drain: Duration,
    /// The silence that ends a session of forwarded datagrams.
    pub(crate) udp: Duration,
    /// The longest session. Sessions end up to a tenth of it earlier.
    pub(crate) max_session: Option<Duration>,
}

/// Limits on resources. `None` means that the available descriptors are the only limit.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) max_conns: Option<NonZeroUsize>,
    pub(crate) max_conns_per_ip: Option<NonZeroU32>,
    pub(crate) max_dials_per_ip: NonZeroU32,
    pub(crate) descriptors: Option<u64>,
    /// The file with what users have used of their quotas.
    pub(crate) quota_file: Option<PathBuf>,
}

/// Returns the name as a label of metrics. A name is never forgotten, because counters never go
/// back. So the memory for names grows only with new names.
fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}
