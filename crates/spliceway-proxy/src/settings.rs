//! The settings of the program. They are checked and complete, whatever their source.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use spliceway::{Engine, PipeSize};
use tracing_subscriber::filter::LevelFilter;

use crate::auth::Users;
use crate::dial::DialSettings;
use crate::policy::ClientPolicy;
use crate::rates::Rates;
use spliceway_protocol::address::{ListenAddress, ListenRange, TargetRange};
use spliceway_protocol::proxy;

/// Everything that a run depends on.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) services: Vec<ServiceSettings>,
    pub(crate) timeouts: Timeouts,
    pub(crate) limits: Limits,
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    /// The time that a worker stays awake after a message.
    pub(crate) spin: Duration,
    pub(crate) workers: NonZeroUsize,
    pub(crate) log_level: LevelFilter,
    pub(crate) metrics: Option<ListenAddress>,
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
}

/// The settings of one service.
#[derive(Debug)]
pub(crate) struct ServiceSettings {
    pub(crate) kind: Kind,
    pub(crate) listen: Vec<ListenRange>,
    /// The clients that may connect.
    pub(crate) clients: ClientPolicy,
    /// The users who may request a target. `None` means every client that may connect.
    pub(crate) users: Option<Arc<Users>>,
    /// The longest time that an address must wait after wrong passwords. Zero means no wait.
    pub(crate) auth_penalty: Duration,
    /// Whether everybody may use the service.
    pub(crate) open: bool,
    /// Whether clients on other machines may reach targets that are not on the public Internet.
    pub(crate) allow_private: bool,
    pub(crate) accept_proxy: Option<AcceptProxy>,
    pub(crate) send_proxy: Option<proxy::Version>,
    pub(crate) dial: DialSettings,
    /// The rate limits for bytes from clients.
    pub(crate) rates_in: Rates,
    /// The rate limits for bytes to clients.
    pub(crate) rates_out: Rates,
    /// The address that SOCKS replies give for UDP ASSOCIATE and BIND. `None` means the address
    /// that the client reached.
    pub(crate) advertise: Option<IpAddr>,
}

/// The kind of a service.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Relays to one target, or from each port of a range to its own target.
    Forward(TargetRange),
    /// Relays to the target that the client names in SOCKS5 (RFC 1928).
    Socks5,
    /// Relays to the target that the client names in HTTP (RFC 9110): in CONNECT, or in a request
    /// with an absolute URI.
    Http,
    /// Relays for SOCKS5, HTTP and SOCKS4 clients. The first byte identifies the protocol.
    Mixed,
}

impl Kind {
    /// Returns the value of `service` in metrics and records.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Forward(_) => "forward",
            Self::Socks5 => "socks5",
            Self::Http => "http",
            Self::Mixed => "mixed",
        }
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
}

/// Limits on resources. `None` means that the available descriptors are the only limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_conns: Option<NonZeroUsize>,
    pub(crate) max_conns_per_ip: Option<NonZeroU32>,
    pub(crate) max_dials_per_ip: NonZeroU32,
    pub(crate) descriptors: Option<u64>,
}
