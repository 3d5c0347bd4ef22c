//! What the program is to do, checked and complete, whoever said it.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use spliceway::{Engine, PipeSize};
use tracing_subscriber::filter::LevelFilter;

use crate::address::{ListenAddress, ListenRange, TargetRange};
use crate::auth::Users;
use crate::dial::DialSettings;
use crate::policy::ClientPolicy;
use crate::protocol::proxy;
use crate::rates::Rates;

/// Everything a run depends on.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) services: Vec<ServiceSettings>,
    pub(crate) timeouts: Timeouts,
    pub(crate) limits: Limits,
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    pub(crate) workers: NonZeroUsize,
    pub(crate) log_level: LevelFilter,
    pub(crate) metrics: Option<ListenAddress>,
    /// What whoever wrote them should know.
    pub(crate) warnings: Vec<String>,
}

/// One service and where it listens.
#[derive(Debug)]
pub(crate) struct ServiceSettings {
    pub(crate) kind: Kind,
    pub(crate) listen: Vec<ListenRange>,
    /// Who may connect.
    pub(crate) clients: ClientPolicy,
    /// Who may ask for a target. `None`: who may connect.
    pub(crate) users: Option<Arc<Users>>,
    /// The longest that an address waits after wrong secrets; zero: not at all.
    pub(crate) auth_penalty: Duration,
    /// That everybody may.
    pub(crate) open: bool,
    /// That clients of other machines may reach this network.
    pub(crate) allow_private: bool,
    pub(crate) accept_proxy: Option<AcceptProxy>,
    pub(crate) send_proxy: Option<proxy::Version>,
    pub(crate) dial: DialSettings,
    /// From clients, and to them.
    pub(crate) rates_in: Rates,
    pub(crate) rates_out: Rates,
    /// The address that clients are told to send datagrams, or connections, to. `None`: the one they reached.
    pub(crate) advertise: Option<IpAddr>,
}

/// What a service does with a client.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Relays to one target, or each port of a range to one of its own.
    Forward(TargetRange),
    /// Relays to where the client asks, RFC 1928.
    Socks5,
    /// Relays to where the client asks, RFC 9110: CONNECT, and requests for a whole URI.
    Http,
    /// Either, and SOCKS4, by the first byte.
    Mixed,
}

impl Kind {
    /// The `service` of metrics and records.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Forward(_) => "forward",
            Self::Socks5 => "socks5",
            Self::Http => "http",
            Self::Mixed => "mixed",
        }
    }
}

/// That every connection begins with a header that says whose it is.
#[derive(Debug, Clone)]
pub(crate) struct AcceptProxy {
    pub(crate) versions: proxy::Accept,
    /// Who is believed; nobody else is served.
    pub(crate) from: Vec<IpNet>,
}

/// The deadline of every phase. `None` is "off"; what cannot be off is no option.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) handshake: Duration,
    pub(crate) connect: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) half_close: Option<Duration>,
    pub(crate) drain: Duration,
}

/// How much of everything. `None`: as much as the descriptors allow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_conns: Option<NonZeroUsize>,
    pub(crate) max_conns_per_ip: Option<NonZeroU32>,
    pub(crate) max_dials_per_ip: NonZeroU32,
    pub(crate) descriptors: Option<u64>,
}
